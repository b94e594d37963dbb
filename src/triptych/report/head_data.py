"""heads.json made ready for the page: statistics of heads at moments of training, and what leaving heads out does."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.explain.evaluation.stability import HEADS_FILE
from triptych.report.whiskers import Shown, on_one_scale, read_interval, sentence

_PLACE = {"site", "layer", "head", "kind"}


@dataclass(frozen=True)
class Ablation:
    """One head left out: what it does to the loss, beside leaving out random other heads."""

    sentence: str
    change: Shown | None
    random: Shown | None


@dataclass(frozen=True)
class HeadsShown:
    """The whole of heads.json as the page shows it."""

    examples: int | None
    moments: dict[str, Any]  # for the page's script
    ablations: list[Ablation]


def read(folder: Path, notes: list[str]) -> HeadsShown | None:
    """The run's heads.json; None where there is none, or nothing in it."""
    path = folder / HEADS_FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        moments = [_moment(each) for each in found["moments"]]
        statistics = _statistics(found.get("statistics"), moments)
        chance = {str(site): _numbers(each) for site, each in (found.get("chance") or {}).items()}
        ablations = found.get("ablations") or []
        both = [read_interval(row[name]) for row in ablations for name in ("loss_change", "random")]
        sentences = [sentence(row["sentence"]) for row in ablations]
        stability = {str(name): read_interval(each) for name, each in (found.get("stability") or {}).items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        notes.append(f"{HEADS_FILE} could not be read ({type(error).__name__}).")
        return None
    moments = [each for each in moments if each["rows"]]
    if not moments or not statistics:
        return None
    shown = on_one_scale(both)
    return HeadsShown(
        examples=found["examples"] if isinstance(found.get("examples"), int) else None,
        moments={
            "moments": moments,
            "statistics": statistics,
            "chance": chance,
            "stability": {name: str(each) for name, each in stability.items() if each is not None},
        },
        ablations=[
            Ablation(sentence, *pair)
            for sentence, pair in zip(sentences, zip(shown[::2], shown[1::2], strict=True), strict=True)
        ],
    )


def _moment(found: dict[str, Any]) -> dict[str, Any]:
    rows = [
        {
            "site": str(row["site"]),
            "layer": int(row["layer"]),
            "head": int(row["head"]),
            "kind": str(row.get("kind") or ""),
            "numbers": _numbers({name: each for name, each in row.items() if name not in _PLACE}),
        }
        for row in found["rows"]
    ]
    return {"step": int(found["step"]), "name": str(found.get("name") or ""), "rows": rows}


def _statistics(said: Any, moments: list[dict[str, Any]]) -> dict[str, str]:
    """Name and meaning of the statistics that some head has, in the file's order."""
    there = {name for each in moments for row in each["rows"] for name, number in row["numbers"].items()}
    meanings = {str(name): str(meaning) for name, meaning in said.items()} if isinstance(said, dict) else {}
    return {name: meanings.get(name, "") for name in [*meanings, *sorted(there - set(meanings))] if name in there}


def _numbers(found: dict[str, Any]) -> dict[str, float]:
    return {
        str(name): float(each)
        for name, each in found.items()
        if isinstance(each, int | float) and not isinstance(each, bool) and math.isfinite(each)
    }
