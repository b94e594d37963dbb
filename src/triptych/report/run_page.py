"""The run's own page, report.html: one file that opens offline, rebuilt from the run folder alone."""

from itertools import groupby
from pathlib import Path
from typing import Any

from markupsafe import Markup

from triptych.errors import UserError
from triptych.report import count_tables, explanations, final_metrics, head_data, map_data
from triptych.report.page import LIMIT, island, render, write_whole
from triptych.runs.readers import read_alignments, read_config, read_curves, read_samples, read_summary, read_tables

SCRIPTS = (
    "page.js",
    "curves.js",
    "patches.js",
    "maps.js",
    "explanations.js",
    "heads.js",
)  # in this order, after plotly.js
STYLES = ("report.css", "explanations.css")
_EXPLAINED = 1_500_000  # bytes of them that explained examples may take

_TASKS = {
    "charlm": "Character language model",
    "translation": "Translator",
    "vit": "Vision transformer",
}


def write(run_folder: Path | str) -> Path:
    """Build ``report.html`` in a run folder from the files there; what is missing is left out of the page.

    The page appears whole or not at all. Returns its path.
    """
    folder = Path(run_folder)
    if not folder.is_dir():
        raise UserError(f"There is no run folder {folder}: give the path of a folder that a training run made.")
    path = folder / "report.html"
    write_whole(path, build(folder), "The report")
    return path


def build(folder: Path) -> bytes:
    """The page of a run folder, at most ``LIMIT`` bytes where maps are what makes it large."""
    notes: list[str] = []
    run, place = _run_of(folder)
    summary = read_summary(run, notes)
    samples = read_samples(folder, notes)
    tables = [count_tables.prepare(table) for table in read_tables(folder, notes)]
    drawn = [table.drawn for table in tables if table.drawn]
    curves = read_curves(folder, notes) if folder == run else []
    explained = explanations.read(folder, notes, _EXPLAINED)
    heads = head_data.read(folder, notes)
    measured = _mapping(summary.get("metrics")) if folder == run else {}
    metrics, others = final_metrics.rows(measured, final_metrics.read_seeds(folder, notes))
    content = {
        "name": place,
        "place": f"runs/{summary.get('task') or 'TASK'}/{run.resolve().name}",
        "task": str(summary.get("task")),
        "title": _TASKS.get(str(summary.get("task")), str(summary.get("task") or "Training run")),
        "status": str(summary.get("status") or "unknown"),
        "data": _mapping(summary.get("data")),
        "facts": _facts(summary),
        "versions": _mapping(summary.get("versions")),
        "metrics": metrics,
        "other_metrics": others,
        "how": [(str(name), str(note)) for name, note in _mapping(summary.get("notes")).items()],
        "alignments": read_alignments(folder, notes),
        "tables": tables,
        "table_data": island(drawn) if drawn else None,
        "samples": [(step, list(group)) for step, group in groupby(samples, key=lambda sample: sample.step)],
        "config": read_config(folder),
        "curves": island([vars(curve) for curve in curves]),
        "explained": explained,
        "explained_data": island(explained.results) if explained and explained.results else None,
        "heads": heads,
        "heads_data": island(heads.moments) if heads else None,
        "notes": notes,
    }
    without = _render(content, maps=None)
    maps = map_data.pack(folder / "maps", LIMIT - len(without) - 2000, notes)
    return _render(content, maps=island(maps)) if maps else _render(content, maps=None)


def _render(content: dict[str, Any], maps: Markup | None) -> bytes:
    return render("report.html.j2", {**content, "maps": maps}, scripts=SCRIPTS, styles=STYLES)


def _run_of(folder: Path) -> tuple[Path, str]:
    """The run that a folder is, or is an explanation of (RUN/explanations/NAME); and what the page calls it."""
    whole = folder.resolve()
    if whole.parent.name == "explanations" and (folder / explanations.FILE).is_file():
        return whole.parent.parent, f"{whole.parent.parent.name} · explanation {whole.name}"
    return folder, whole.name


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


def _whole(number: Any) -> str:
    return f"{number:,.0f}" if isinstance(number, int | float) and number == number else ""


def _duration(seconds: Any) -> str:
    if not isinstance(seconds, int | float) or seconds != seconds:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{seconds:.0f} s"
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
