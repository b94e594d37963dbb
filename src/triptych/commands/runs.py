"""`triptych runs`: every run in a folder as a row of a table, the newest first."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from triptych.errors import UserError
from triptych.runs import folder, metrics_rows
from triptych.runs.folder import RunFolder

console = Console(highlight=False, markup=False)
_ABSENT = "–"


@dataclass(frozen=True)
class Row:
    """One run as the table has it; ``started`` in seconds since 1970."""

    path: Path
    task: str
    status: str
    metric: str
    started: float


def show(texts: Mapping[str, str]) -> None:
    """Print the table of the runs in the folder ``TRIPTYCH_RUNS``, or in ``runs``.

    Raises:
        UserError: There is no such folder.
    """
    runs = Path(texts.get("TRIPTYCH_RUNS", "runs")).expanduser()
    if not runs.is_dir():
        raise UserError(f"{runs} is not a folder: triptych train makes runs in runs/, for others: triptych runs FOLDER")
    rows = gather(runs)
    if not rows:
        console.print(f"no runs in {runs} yet: triptych train task=charlm makes one", soft_wrap=True)
        return
    table = Table("run", "task", "status", "metric", "age")
    now = time.time()
    for row in rows:
        table.add_row(str(row.path), row.task, row.status, row.metric, age(now - row.started))
    if not console.is_terminal:
        console.width = 240  # a file or a pipe wraps by itself
    console.print(table)


def gather(runs: Path) -> list[Row]:
    """A row for every folder ``runs/TASK/RUN``, the newest first; links and the records of sweeps are none."""
    tasks = [path for path in runs.iterdir() if path.is_dir() and not path.is_symlink() and path.name != "sweeps"]
    rows = [_row(run) for task in tasks for run in folder.all_runs(runs, task.name)]
    return sorted(rows, key=lambda row: (row.started, row.path.name), reverse=True)


def age(seconds: float) -> str:
    """A time span in the one unit that fits."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def _row(run: RunFolder) -> Row:
    name, task = run.path.name, run.path.parent.name
    try:
        started = datetime.strptime(name[:15], "%Y%m%d-%H%M%S").timestamp()
    except ValueError:
        started = run.path.stat().st_mtime
    try:
        config = run.config()
        task = str(config.task.name)
        watched, mode = str(config.watch.metric), str(config.watch.mode)
    except Exception as error:  # whatever is wrong with one folder, the others are listed
        why = " ".join(str(error).split())
        held = "starting: " if run.held else "broken: "
        return Row(run.path, task, held + (why.partition(": ")[2] or why), _ABSENT, started)
    summary = run.summary()
    if not summary:
        return Row(run.path, task, f"broken: {folder.SUMMARY} is missing or cannot be read", _ABSENT, started)
    status = str(summary.get("status") or "running")
    if status == "running" and not run.held:
        status = "killed"
    value = _number(summary.get("metrics"), watched)
    if value is None:
        value = _best(run, watched, mode)
    return Row(run.path, task, status, _ABSENT if value is None else f"{watched} {value:#.4g}", started)


def _number(metrics: Any, name: str) -> float | None:
    value = metrics.get(name) if isinstance(metrics, dict) else None
    return float(value) if isinstance(value, int | float) else None


def _best(run: RunFolder, metric: str, mode: str) -> float | None:
    """The best validation of a run that has not been tested."""
    rows = metrics_rows.read(run.path / "metrics.csv")
    finite = [row[metric] for row in rows if metric in row and math.isfinite(row[metric])]
    return (min if mode == "min" else max)(finite, default=None)
