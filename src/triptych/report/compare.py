"""Comparing runs: which ones, then a table in the terminal, compare.csv, and one page, compare.html."""

import glob
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console, RenderableType

from triptych.errors import UserError
from triptych.files import write_text
from triptych.report import compare_page
from triptych.report.compare_table import Runs, gather
from triptych.report.compare_terminal import Terminal
from triptych.report.page import write_whole
from triptych.runs import folder
from triptych.runs.folder import RunFolder

CSV, PAGE, SWEEP = "compare.csv", "compare.html", "sweep.json"


@dataclass(frozen=True)
class Comparison:
    """Runs side by side, and the files that say so."""

    runs: Runs
    csv: Path
    page: Path

    def table(self) -> RenderableType:
        """For the terminal."""
        return Terminal(self.runs)


@dataclass
class Selection:
    """What ``runs=`` names: runs, and the sweeps that some of them are from."""

    runs: dict[Path, RunFolder] = field(default_factory=dict)  # by real path: none twice
    sweeps: list[tuple[Path, dict[str, Any]]] = field(default_factory=list)

    def add(self, path: Path) -> None:
        """A run folder, a sweep's folder, or a folder that holds runs; anything else holds none."""
        if (path / SWEEP).is_file():
            sweep = read_sweep(path)
            self.sweeps.append((path, sweep))
            found = [Path(os.path.normpath(path / trial["run"])) for trial in sweep["trials"] if trial.get("run")]
        else:
            found = [path] if _is_run(path) else sorted(path.iterdir())
        for each in found:
            if each.is_dir() and _is_run(each) and (each == path or not each.is_symlink()):
                self.runs.setdefault(each.resolve(), RunFolder(each))


def compare(config: DictConfig) -> Comparison:
    """Print what differs between runs and what came out, and write compare.csv and compare.html.

    Raises UserError where ``runs=`` names no runs, a single one, or runs of different tasks.
    """
    chosen = select(config.runs)
    runs = list(chosen.runs.values())
    # Of several sweeps no single study speaks: the best command and the importances are one sweep's own.
    sweep = chosen.sweeps[0][1] if len(chosen.sweeps) == 1 else {}
    metric, mode = _watched(runs, sweep)
    if config.metric is not None and config.metric != metric and config.mode is None:
        raise UserError(f"metric={config.metric} needs mode=min or mode=max: which of two values is the better one")
    if config.mode not in (None, "min", "max"):
        raise UserError(f"mode={config.mode} is neither min nor max")
    output = config.output or (chosen.sweeps[0][0] if len(chosen.sweeps) == 1 else Path("runs/compare"))
    comparison = write(
        runs,
        Path(output).expanduser(),
        title=f"Sweep {sweep['id']}" if sweep.get("id") else f"{len(runs)} runs",
        metric=config.metric or metric,
        mode=config.mode or mode,
        importance=sweep.get("importance"),
        best=sweep.get("best"),
        failed=[trial for _, each in chosen.sweeps for trial in each["trials"] if trial.get("status") == "failed"],
        sort=config.sort,
    )
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 240  # a file or a pipe wraps by itself
    console.print(comparison.table())
    console.print(f"as a page   {comparison.page}\nas numbers  {comparison.csv}", soft_wrap=True)
    return comparison


def write(
    runs: Sequence[RunFolder],
    into: Path,
    *,
    title: str,
    metric: str,
    mode: str,
    importance: Mapping[str, float] | None = None,
    best: str | None = None,
    failed: Sequence[Mapping[str, Any]] = (),
    sort: str | None = None,
) -> Comparison:
    """Write compare.csv and compare.html into ``into``; each appears whole or not at all.

    metric, mode: what decides which run is better, ``min`` or ``max``. importance: of a sweep's parameters, shares.
    best: a command line to show. failed: trials as sweep.json has them. sort: the column to sort by instead.

    Raises UserError for runs of different tasks, and for a metric or a column that does not exist.
    """
    if into.exists() and not into.is_dir():
        raise UserError(f"output={into} is a file: give a folder for {CSV} and {PAGE}")
    gathered = gather(runs, metric, mode, sort)
    page = compare_page.build(gathered, into, title=title, importance=importance, best=best, failed=failed)
    into.mkdir(parents=True, exist_ok=True)
    write_text(into / CSV, gathered.csv())
    write_whole(into / PAGE, page, "The comparison")
    return Comparison(gathered, into / CSV, into / PAGE)


def select(runs: str | Sequence[str] | None) -> Selection:
    """The runs that a text of paths and patterns names (or a list of such); links found by a pattern are skipped.

    Raises UserError when there are fewer than two.
    """
    if not runs:
        raise UserError('runs= is not set: say which runs to compare, e.g. runs="runs/charlm/*"')
    chosen = Selection()
    words = _words(runs) if isinstance(runs, str) else [str(word) for word in runs]
    for word in words:
        path = Path(word).expanduser()
        if path.is_dir():
            chosen.add(path)
        elif glob.has_magic(word):
            for found in sorted(glob.glob(str(path))):
                if Path(found).is_dir() and not Path(found).is_symlink():
                    chosen.add(Path(found))
        else:
            raise UserError(f"runs={word} does not exist; runs are under runs/TASK/, sweeps under runs/sweeps/")
    shown = " ".join(words)
    if not chosen.runs:
        raise UserError(f'runs={shown} matches no run folder; runs are under runs/TASK/, as in runs="runs/charlm/*"')
    if len(chosen.runs) == 1 and not chosen.sweeps:
        (one,) = chosen.runs.values()
        raise UserError(f"runs={shown} is a single run: compare at least two; its own page is {one.path}/report.html")
    return chosen


def read_sweep(path: Path) -> dict[str, Any]:
    """A sweep's ``sweep.json``; the ``run`` of a trial is relative to the sweep's folder."""
    try:
        sweep = json.loads((path / SWEEP).read_text(encoding="utf-8"))
        if not all(isinstance(trial, dict) for trial in sweep["trials"]):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path / SWEEP} cannot be read ({type(error).__name__}): name the runs themselves") from error
    return sweep


def _words(text: str) -> list[str]:
    """Paths and patterns separated by blanks; one path that has blanks itself needs no quotes."""
    if Path(text).expanduser().exists():
        return [text]
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"runs={text}: a quotation mark is left open") from error


def _is_run(path: Path) -> bool:
    """Also one that was killed before it could write anything. A sweep has a lock as well."""
    return not (path / SWEEP).exists() and any(
        (path / name).exists() for name in (folder.CONFIG, folder.SUMMARY, ".lock")
    )


def _watched(runs: Sequence[RunFolder], sweep: Mapping[str, Any]) -> tuple[str, str]:
    """What the sweep, or else the first run whose configuration can be read, calls best."""
    if sweep.get("metric") and sweep.get("mode"):
        return str(sweep["metric"]), str(sweep["mode"])
    for run in runs:
        try:
            watch = run.config("runs").watch
            return str(watch.metric), str(watch.mode)
        except Exception:  # damaged, or of a time before there was a watched metric
            continue
    return "val/loss", "min"
