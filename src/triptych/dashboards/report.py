"""The run's own page, report.html: one file that opens offline, rebuilt from the run folder alone."""

import base64
import contextlib
import hashlib
import json
import os
from functools import cache
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from triptych.dashboards import count_tables, map_data
from triptych.dashboards.run_folder import read_config, read_curves, read_samples, read_summary, read_tables
from triptych.errors import UserError

LIMIT = 8_000_000  # bytes of the whole page; plotly.js alone is 4.8 million

_TASKS = {
    "charlm": "Character language model",
    "translation": "Translator",
    "vit": "Vision transformer",
}
_MEANINGS = {
    "loss": "cross-entropy in nats, lower is better",
    "bits_per_character": "lower is better",
    "bpc": "bits per character, lower is better",
    "accuracy": "share of right answers, higher is better",
    "top5_accuracy": "share of images whose class is among the five likeliest",
    "calibration_error": "mean gap between confidence and accuracy, lower is better",
    "perplexity": "exponential of the loss, lower is better",
    "bleu": "0 to 100, higher is better",
    "bleu_lowercase": "BLEU of lower-cased words",
    "bleu_all_references": "each distinct source once, against all of its references",
    "chrf": "0 to 100, higher is better",
    "exact_match": "share of translations that are their reference",
    "aer": "alignment error rate, lower is better",
    "alignment_precision": "share of the linked words whose link is possible",
    "alignment_recall": "share of the sure links that were found",
    "alignment_entropy": "of a target word's weights over the source's words, in nats",
    "relative_entropy": "the same as a share of the most there can be",
    "diagonality": "1: target and source words stand at the same relative places",
    "monotonicity": "share of steps to the next target word that do not go back in the source",
    "coverage": "sum of log min(attention a source word got, 1); 0: every word got its share",
}


def write(run_folder: Path | str) -> Path:
    """Build ``report.html`` in a run folder from the files there; what is missing is left out of the page.

    The page appears whole or not at all. Returns its path.
    """
    folder = Path(run_folder)
    if not folder.is_dir():
        raise UserError(f"There is no run folder {folder}: give the path of a folder that a training run made.")
    path = folder / "report.html"
    temporary = path.with_name(f"{path.name}.{os.getpid()}.partial")
    page = build(folder)
    try:
        temporary.write_bytes(page)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise UserError(f"The report could not be written to {path}: {error.strerror}.") from error
    return path


def build(folder: Path) -> bytes:
    """The page of a run folder, at most ``LIMIT`` bytes where maps are what makes it large."""
    notes: list[str] = []
    summary = read_summary(folder, notes)
    samples = read_samples(folder, notes)
    tables = [count_tables.prepare(table) for table in read_tables(folder, notes)]
    drawn = [table.drawn for table in tables if table.drawn]
    content = {
        "name": folder.resolve().name,
        "title": _TASKS.get(str(summary.get("task")), str(summary.get("task") or "Training run")),
        "status": str(summary.get("status") or "unknown"),
        "data": _mapping(summary.get("data")),
        "facts": _facts(summary),
        "versions": _mapping(summary.get("versions")),
        "metrics": _metrics(_mapping(summary.get("metrics"))),
        "how": [(str(name), str(note)) for name, note in _mapping(summary.get("notes")).items()],
        "tables": tables,
        "table_data": _island(drawn) if drawn else None,
        "samples": [(step, list(group)) for step, group in groupby(samples, key=lambda sample: sample.step)],
        "config": read_config(folder),
        "curves": _island([vars(curve) for curve in read_curves(folder, notes)]),
        "notes": notes,
    }
    without = _render(content, maps=None)
    maps = map_data.pack(folder / "maps", LIMIT - len(without) - 2000, notes)
    return _render(content, maps=_island(maps)) if maps else _render(content, maps=None)


def _render(content: dict[str, Any], maps: Markup | None) -> bytes:
    scripts = {
        "plotly": _plotly(),
        "viewer": Markup(_asset("report.js")),
        "style": Markup(_asset("report.css")),
    }
    # The page may hold text from anywhere. Escaping is the first wall, this policy the second: no script but
    # these two runs, and nothing is fetched.
    hashes = " ".join(f"'sha256-{_sha256(scripts[name])}'" for name in ("plotly", "viewer"))
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"
    text = _template().render(**content, **scripts, maps=maps, policy=Markup(policy))
    return text.encode("utf-8", errors="replace")  # a lone surrogate in a text must not cost the page


def _island(data: Any) -> Markup:
    """JSON that is safe inside <script type="application/json">; ASCII, so U+2028/9 are escaped as well."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


@cache
def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("triptych.dashboards", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")


@cache
def _plotly() -> Markup:
    from plotly.offline import get_plotlyjs  # 5 MB of text: only when a page is written

    return Markup(get_plotlyjs())


@cache
def _asset(name: str) -> str:
    return files("triptych.dashboards").joinpath(name).read_text(encoding="utf-8")


@cache
def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _mapping(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _facts(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """The tiles under the title: name and value, for whatever summary.json holds."""
    seen = _mapping(summary.get("seen"))
    unit = str(seen.get("unit") or "")
    error = _mapping(summary.get("maps")).get("capture_error")
    return [
        (name, shown)
        for name, shown in (
            ("Parameters", _whole(summary.get("parameters"))),
            ("Parameter updates", _whole(summary.get("steps"))),
            (f"Seen, {unit}" if unit else "Seen", _whole(seen.get("value"))),
            ("Wall time", _duration(summary.get("fit_seconds"))),
            (f"Speed, {unit}/s" if unit else "Seen per second", _whole(summary.get("seen_per_second"))),
            ("Seed", "" if summary.get("seed") is None else str(summary["seed"])),
            ("Capture error", f"{error:.1e}" if isinstance(error, int | float) else ""),
        )
        if shown
    ]


def _metrics(metrics: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(name, value, meaning): test first, then validation, then what else was measured."""
    order = {"test": 0, "val": 1, "train": 2}
    rows = []
    for name in sorted(metrics, key=lambda name: (order.get(name.split("/")[0], 3), name)):
        value = metrics[name]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        rows.append((name, f"{value:#.4g}" if number else str(value), _MEANINGS.get(name.split("/", 1)[-1], "")))
    return rows


def _whole(number: Any) -> str:
    return f"{number:,.0f}" if isinstance(number, int | float) and number == number else ""


def _duration(seconds: Any) -> str:
    if not isinstance(seconds, int | float) or seconds != seconds:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{seconds:.0f} s"
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
