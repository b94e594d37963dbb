"""explain.json made ready for the page: what each method shows, and the test that stands beside it.

A file may come from another version or be cut short: what cannot be read is left out and said so, never guessed.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.explain.evaluation.verdict import Verdict
from triptych.maps.labels import label, shortened
from triptych.report.whiskers import Shown, on_one_scale, read_interval, sentence

FILE = "explain.json"
_PICTURE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=]+")
_KINDS = {
    "key": "The one input ranked first is taken away",
    "permuted": "A layer’s weights are shuffled or made even",
    "uniform": "A layer’s weights are shuffled or made even",
    "head": "One head is left out",
}
_WIDE = (
    "deletion_area",
    "insertion_area",
    "comprehensiveness",
    "sufficiency",
    "class_sensitivity",
    "compactness",
    "stability",
)


@dataclass(frozen=True)
class Method:
    """A method's row: its advantage over random orders (positive is better), the other figures, the verdict."""

    name: str
    title: str
    meaning: str
    standing: str  # the verdict in a word or two
    tone: str  # good, warn, bad, soft
    verdict: str
    deletion: Shown | None
    insertion: Shown | None
    control: Shown | None
    figures: list[str]  # of _WIDE and the milliseconds per example, "" where there is none


@dataclass(frozen=True)
class Intervention:
    """What changing or taking away something did to the probability of the answer."""

    kind: str
    effect: Shown | None
    sentence: str


@dataclass(frozen=True)
class Explained:
    """The whole of explain.json as the page shows it."""

    origin: str  # "64 validation examples, step 4,000, ..."
    comparison: str
    control: str
    methods: list[Method]
    interventions: list[tuple[str, list[Intervention]]]  # by kind, with a title
    results: dict[str, Any] | None  # for the page's script


def read(folder: Path, notes: list[str], budget: int) -> Explained | None:
    """The run's explain.json or, without one, the newest under explanations/; None where there is neither.

    budget: bytes that the examples may take on the page.
    """
    made = sorted(folder.glob(f"explanations/*/{FILE}"), key=lambda path: path.stat().st_mtime)
    path = next((path for path in [folder / FILE, *reversed(made)] if path.is_file()), None)
    if path is None:
        return None
    said = path.relative_to(folder).as_posix()
    try:
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        if not isinstance(found, dict):
            raise ValueError("not an object")
    except (OSError, ValueError) as error:
        notes.append(f"{said} could not be read ({type(error).__name__}).")
        return None
    raw_methods = _dicts(found, "methods", said, notes)
    raw_changes = _dicts(found, "interventions", said, notes)
    deletions = on_one_scale([read_interval(row.get("deletion")) for row in raw_methods])
    insertions = on_one_scale([read_interval(row.get("insertion")) for row in raw_methods])
    effects = on_one_scale([read_interval(row.get("effect")) for row in raw_changes])
    methods = [
        _method(row, deletion, insertion)
        for row, deletion, insertion in zip(raw_methods, deletions, insertions, strict=True)
    ]
    changes = [
        Intervention(str(row.get("kind") or ""), effect, sentence(row.get("sentence") or row.get("what")))
        for row, effect in zip(raw_changes, effects, strict=True)
    ]
    return Explained(
        origin=_origin(found, "" if path.parent == folder else said),
        comparison=sentence(found.get("comparison")),
        control=sentence(found.get("control")),
        methods=methods,
        interventions=_by_kind(changes),
        results=_results(_dicts(found, "results", said, notes), methods, said, notes, budget),
    )


def judged(row: dict[str, Any]) -> Verdict | None:
    """The verdict that the intervals of a method's row allow; None where there are none."""
    deletion, insertion, control = (read_interval(row.get(name)) for name in ("deletion", "insertion", "control"))
    if deletion is None or insertion is None:
        return None
    constant = row.get("constant")
    return Verdict.of(deletion, insertion, control, constant if isinstance(constant, int) else 0)


def _method(row: dict[str, Any], deletion: Shown | None, insertion: Shown | None) -> Method:
    verdict = judged(row)
    word, tone = (verdict.short, verdict.tone.value) if verdict else ("no verdict", "soft")
    name = str(row.get("name") or "")
    if name == "random":
        word, tone = "what a method must beat", "soft"
    figures = [interval.amount if (interval := read_interval(row.get(name))) else "" for name in _WIDE]
    seconds = row.get("seconds_per_example")
    control = on_one_scale([read_interval(row.get("control"))])[0]
    return Method(
        name=name,
        title=str(row.get("title") or name),
        meaning=str(row.get("meaning") or ""),
        standing=word,
        tone=tone,
        verdict=sentence(row.get("verdict")),
        deletion=deletion,
        insertion=insertion,
        control=control,
        figures=[*figures, f"{1000 * seconds:.3g} ms" if seconds is not None and _finite(seconds) else ""],
    )


def _by_kind(changes: Sequence[Intervention]) -> list[tuple[str, list[Intervention]]]:
    groups: dict[str, list[Intervention]] = {}
    for each in changes:
        groups.setdefault(_KINDS.get(each.kind, "Other changes"), []).append(each)
    return list(groups.items())


def _origin(found: dict[str, Any], elsewhere: str) -> str:
    examples, split = found.get("examples"), str(found.get("split") or "")
    parts = []
    if isinstance(examples, int):
        parts.append(f"{examples:,} {split + ' ' if split else ''}example{'' if examples == 1 else 's'}")
    if isinstance(found.get("step"), int):
        parts.append(f"step {found['step']:,}")
    if found.get("checkpoint"):
        parts.append(f"checkpoint {Path(str(found['checkpoint'])).name}")
    if isinstance(found.get("orders"), int):
        parts.append(f"{found['orders']} random orders per example")
    if isinstance(found.get("capture_error"), float) and math.isfinite(found["capture_error"]):
        parts.append(f"largest capture error {found['capture_error']:.1e}")
    return "; ".join([*parts, *([f"from {elsewhere}"] if elsewhere else [])])


def _results(
    rows: Sequence[dict[str, Any]], methods: Sequence[Method], said: str, notes: list[str], budget: int
) -> dict[str, Any] | None:
    """Scores grouped by example and output, with a picture stored once; as many as fit into ``budget`` bytes."""
    pictures: dict[str, int] = {}
    examples: dict[tuple[str, str], dict[str, Any]] = {}
    torn = 0
    for row in rows:
        try:
            units = [label(str(unit), longest=24) for unit in row["units"]]
            scores = [float(f"{score:.4g}") if _finite(score) else None for score in row["scores"]]
            grid = None if row["grid"] is None else [int(side) for side in row["grid"]]
            picture = row["picture"]
            if len(units) != len(scores) or not units or (grid is not None and math.prod(grid) != len(units)):
                raise ValueError("not a score for each unit")
            if picture is not None and not _PICTURE.fullmatch(str(picture)):
                raise ValueError("not a picture")
        except (KeyError, TypeError, ValueError, OverflowError):
            torn += 1
            continue
        key = str(row.get("example")), str(row.get("output"))
        place = None if picture is None or grid is None else pictures.setdefault(picture, len(pictures))
        made: dict[str, Any] = {
            "example": key[0],
            "title": shortened(key[0]),
            "output": key[1],
            "units": units,
            "grid": grid,
            "picture": place,
            "scores": {},
        }
        entry = examples.setdefault(key, made)
        if len(entry["units"]) == len(scores):
            entry["scores"][str(row.get("method"))] = scores
    if torn:
        notes.append(f"{said}: {torn} results could not be read.")
    kept: list[dict[str, Any]] = []
    stored: list[str] = list(pictures)
    seen: set[int] = set()
    for entry in examples.values():
        picture = entry["picture"]
        budget -= len(json.dumps(entry)) + 2
        budget -= len(stored[picture]) + 2 if picture is not None and picture not in seen else 0
        if budget < 0:
            notes.append(f"To keep this page small it holds {len(kept)} of {len(examples)} explained outputs.")
            break
        kept.append(entry)
        seen.add(picture)
    about = {
        each.name: {"title": each.title, "meaning": each.meaning, "verdict": each.verdict, "standing": each.standing}
        | {"tone": each.tone}
        for each in methods
    }
    shown = [address if place in seen else "" for place, address in enumerate(stored)]
    return {"examples": kept, "pictures": shown, "methods": about} if kept else None


def _dicts(found: dict[str, Any], name: str, said: str, notes: list[str]) -> list[dict[str, Any]]:
    rows = found.get(name) or []
    good = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    if not isinstance(rows, list) or len(good) < len(rows):
        notes.append(f"{said}: some of its {name} could not be read.")
    return good


def _finite(number: Any) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
