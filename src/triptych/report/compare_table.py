"""Several runs as rows: what differs in their configurations, what came out, and what repeats over seeds."""

import csv
import difflib
import io
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from triptych.errors import UserError
from triptych.explain.evaluation.intervals import Interval, t_interval
from triptych.runs import folder, metrics_rows
from triptych.runs.folder import RunFolder
from triptych.runs.readers import read_summary

# Where things are, and which trial of a sweep it was, is no difference between two runs.
IGNORED = ("resume", "runs", "trial")
COSTS = ("parameters", "steps", "seen", "fit_seconds", "seen_per_second")
LABEL_KEYS, LABEL_VALUE = 4, 20  # settings that name a run, and characters of each
OWN = ("run", "status", "seed")  # columns beside options and results
HEADLINES = ("loss", "accuracy", "bits_per_character", "bleu", "chrf", "exact_match", "aer")  # measured first
ABSENT = "–"


@dataclass(frozen=True)
class Row:
    """One run. What of its folder could not be read is missing here and named in ``notes``."""

    run: RunFolder
    status: str  # as in summary.json; "killed": never said to have ended, but no process holds it
    task: str | None
    seed: int | None
    options: dict[str, Any]  # the configuration, dotted
    results: dict[str, float]  # metrics as logged, and what the run cost
    notes: list[str]

    @property
    def name(self) -> str:
        return self.run.path.name


@dataclass(frozen=True)
class Seeds:
    """Finished runs that differ in nothing but the seed."""

    values: dict[str, Any]  # what sets them apart from the other runs
    seeds: list[int]
    spread: dict[str, tuple[Interval, float]]  # of a metric: mean with 95 % interval, standard deviation


@dataclass(frozen=True)
class Runs:
    """Runs of one task, best first, side by side.

    keys: the dotted keys in which they differ. metrics: every metric that one of them has, the compared one first.
    groups: for each row the number of its configuration, the seed left out, counted from 1.
    """

    rows: list[Row]
    metric: str
    mode: str
    keys: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    seeds: list[Seeds] = field(default_factory=list)

    @property
    def short(self) -> dict[str, str]:
        """The keys as column heads: their last words where those are unambiguous."""
        words = {key: key.removesuffix("._target_").rpartition(".")[2] for key in self.keys}
        taken = [*words.values(), *OWN, *self.metrics, *COSTS]
        return {key: word if taken.count(word) == 1 else key for key, word in words.items()}

    @property
    def best(self) -> Row | None:
        """The run with the best value of the metric."""
        measured = [row for row in self.rows if math.isfinite(row.results.get(self.metric, math.nan))]
        return (min if self.mode == "min" else max)(measured, key=lambda row: row.results[self.metric], default=None)

    def label(self, row: Row) -> str:
        """What sets this run apart, in a few words; two runs may have the same."""
        shown = self.keys[:LABEL_KEYS]
        parts = [f"{self.short[key]} {written(row.options.get(key, ABSENT))[:LABEL_VALUE]}" for key in shown]
        if len({each.seed for each in self.rows}) > 1:
            parts.append(f"seed {row.seed}")
        return ", ".join(parts) or row.name

    def csv(self) -> str:
        """Every run and every column, in full precision."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        results = [*self.metrics, *COSTS]
        writer.writerow(["run", "status", "configuration", "seed", *self.keys, *results, "notes"])
        for row, group in zip(self.rows, self.groups, strict=True):
            options = [row.options.get(key, "") for key in self.keys]
            numbers = [row.results.get(name, "") for name in results]
            seed = "" if row.seed is None else row.seed
            writer.writerow([row.run.path, row.status, group, seed, *options, *numbers, " ".join(row.notes)])
        return text.getvalue()


def gather(runs: Sequence[RunFolder], metric: str, mode: str, sort: str | None = None) -> Runs:
    """Read the runs and put them side by side, best first, or by the column ``sort`` (``-NAME``: largest first).

    Raises UserError for runs of different tasks, a metric that none of them has, and a column that is none.
    """
    rows = [read(run, metric, mode) for run in runs]
    _one_task(rows)
    found = {name for row in rows for name in row.results} - set(COSTS)
    if found and metric not in found:
        raise UserError(f"metric={metric} was measured in none of these runs; they have {', '.join(sorted(found))}")
    metrics = sorted(found, key=lambda name: (name != metric, *_standing(name)))
    keys = _differing(rows)
    rows = _sorted(rows, sort or (metric if mode == "min" else f"-{metric}"), keys, metrics)
    chosen: dict[str, int] = {}
    groups = [chosen.setdefault(repr([row.options.get(key) for key in keys]), len(chosen) + 1) for row in rows]
    seeds = [
        _over_seeds([row for row, at in zip(rows, groups, strict=True) if at == group], keys, metrics)
        for group in chosen.values()
    ]
    return Runs(rows, metric, mode, keys, metrics, groups, [group for group in seeds if group])


def read(run: RunFolder, metric: str, mode: str) -> Row:
    """One run as it is: also one that is going on, or was killed at any moment.

    A run that has no final metrics is shown with its best validation so far.
    """
    notes: list[str] = []
    summary: dict[str, Any] = {}
    options: dict[str, Any] = {}
    if (run.path / folder.SUMMARY).exists() or (run.path / folder.CONFIG).exists():
        summary = read_summary(run.path, notes)
        try:
            options = folder.flat(run.config("runs"))
        except UserError as error:
            notes.append(f"{error}.")
        except Exception as error:  # a value that refers to one that is gone
            notes.append(f"{folder.CONFIG} could not be filled in ({type(error).__name__}).")
    else:
        notes.append("This run has written nothing yet, or ended before it did.")
    status = str(summary.get("status") or "running")
    if status == "running" and not run.held:
        status = "killed"
    try:
        logged = metrics_rows.read(run.path / "metrics.csv")
    except (ValueError, csv.Error) as error:
        logged = []
        notes.append(f"metrics.csv could not be read ({type(error).__name__}).")
    results = {**_best(logged, metric, mode), **_numbers(summary.get("metrics"))}
    seen = summary.get("seen")
    results |= _numbers({name: summary.get(name) for name in COSTS if name != "seen"})
    results |= _numbers({"seen": seen.get("value") if isinstance(seen, dict) else None})
    if logged:  # what a killed run had no time to sum up
        results["steps"] = max(results.get("steps", 0), *(row["step"] for row in logged))
        results["fit_seconds"] = max(results.get("fit_seconds", 0), *(row.get("seconds", 0.0) for row in logged))
    task = summary.get("task") or options.get("task.name")
    seed = options.get("seed", summary.get("seed"))
    return Row(run, status, None if task is None else str(task), seed, options, results, notes)


def written(value: Any, nothing: str = "null") -> str:
    """A value of a configuration as a table shows it; of a dotted name of ours, the last word."""
    if value is None:
        return nothing
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value)
    return text.rpartition(".")[2] if text.startswith(("triptych.", "torch.", "pytorch_lightning.")) else text


def number(name: str, value: float | None) -> str:
    """A result as a table shows it."""
    if value is None:
        return ABSENT
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if name in COSTS else f"{value:#.4g}"


def spread(group: Seeds, metric: str) -> str:
    """ "0.245 ± 0.012 [0.231, 0.259]" """
    if metric not in group.spread:
        return ABSENT
    interval, deviation = group.spread[metric]
    if not interval.known:
        return number(metric, interval.mean)
    return f"{interval.mean:#.4g} ± {deviation:.2g} [{interval.low:#.4g}, {interval.high:#.4g}]"


def _one_task(rows: Sequence[Row]) -> None:
    tasks: dict[str, Row] = {}
    for row in rows:
        if row.task is not None:
            tasks.setdefault(row.task, row)
    if len(tasks) > 1:
        named = " and ".join(f"{task} (such as {row.run.path})" for task, row in sorted(tasks.items()))
        raise UserError(
            f'runs= has runs of different tasks, {named}: compare runs of one task, as in runs="runs/TASK/*"'
        )


def _standing(metric: str) -> tuple[int, int, int, str]:
    """Where a metric's column stands: test before validation, what counts most first, single classes last."""
    split, _, name = metric.partition("/")
    headline = HEADLINES.index(name) if name in HEADLINES else len(HEADLINES)
    return metric.count("/") > 1, {"test": 0, "val": 1}.get(split, 2), headline, metric


def _differing(rows: Sequence[Row]) -> list[str]:
    """Keys whose values differ, without the seed and what follows from it."""
    known = [row for row in rows if row.options]
    missing = object()
    return [
        key
        for key in dict.fromkeys(key for row in known for key in row.options)
        if not any(key == prefix or key.startswith(prefix + ".") for prefix in IGNORED)
        and len({repr(row.options.get(key, missing)) for row in known}) > 1
        and not (key.rpartition(".")[2] == "seed" and all(row.options.get(key, row.seed) == row.seed for row in known))
    ]


def _sorted(rows: list[Row], sort: str, keys: Sequence[str], metrics: Sequence[str]) -> list[Row]:
    """By one column: numbers, then words, then what has no value; ``-`` in front turns the order of the first two."""
    column = sort.removeprefix("-")
    short = {key.rpartition(".")[2]: key for key in keys}
    column = short.get(column, column) if column not in keys else column
    columns = [*OWN, *keys, *metrics, *COSTS]
    if column not in columns and metrics:
        near = difflib.get_close_matches(column, columns, n=3, cutoff=0.5) or columns
        raise UserError(f"sort={sort} is no column of the table; there are: {', '.join(near)}")

    def value(row: Row) -> Any:
        own = {"run": row.name, "status": row.status, "seed": row.seed}
        found = own.get(column, row.results.get(column, row.options.get(column)))
        return None if isinstance(found, float) and math.isnan(found) else found

    present = [row for row in rows if value(row) is not None]

    def rank(row: Row) -> tuple[bool, float, str]:
        found = value(row)
        numeric = isinstance(found, int | float)
        return (not numeric, float(found) if numeric else 0.0, "" if numeric else str(found))

    present.sort(key=rank, reverse=sort.startswith("-"))
    return present + [row for row in rows if value(row) is None]


def _over_seeds(rows: Sequence[Row], keys: Sequence[str], metrics: Sequence[str]) -> Seeds | None:
    """The same seed run twice counts once (its newest run): it is no second draw."""
    ended = [row for row in sorted(rows, key=lambda row: row.name) if row.status == "finished"]
    drawn = {row.seed: row for row in ended if row.seed is not None}
    if len(drawn) < 2:
        return None
    measured = {}
    for name in metrics:
        values = [row.results[name] for row in drawn.values() if math.isfinite(row.results.get(name, math.nan))]
        if values:
            measured[name] = (t_interval(values), statistics.stdev(values) if len(values) > 1 else math.nan)
    apart = {key: rows[0].options[key] for key in keys if key in rows[0].options}
    return Seeds(apart, sorted(drawn), measured)


def _best(logged: Sequence[dict[str, float]], metric: str, mode: str) -> dict[str, float]:
    """What was validated together with the best value of ``metric`` so far."""
    rows = [row for row in logged if math.isfinite(row.get(metric, math.nan))]
    if not rows:
        return {}
    best = (min if mode == "min" else max)(rows, key=lambda row: row[metric])
    return {name: value for name, value in best.items() if name == metric or name.startswith("val/")}


def _numbers(found: Any) -> dict[str, float]:
    if not isinstance(found, dict):
        return {}
    return {
        str(name): value
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
