"""The end of a sweep: the table, the best configuration as a command, what mattered, and how seeds differ."""

import json
import os
import shlex
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from triptych.errors import UserError
from triptych.explain.evaluation.intervals import t_interval
from triptych.explain.evaluation.stability import HEADS_FILE, over_runs
from triptych.files import write_text
from triptych.report import compare, run_page
from triptych.report.final_metrics import SEEDS_FILE
from triptych.sweeps.record import OVER, Record, SweepFolder
from triptych.sweeps.space import Axis

console = Console(highlight=False, markup=False)
if not console.is_terminal:
    console.width = 240  # a file or a pipe wraps by itself


def command_line(program: str, words: Sequence[str], task: str, **more: str) -> str:
    """What to type: the words as make takes them, the data's path with them when there is one."""
    sweep = [word.partition("=")[2] for word in words if word.startswith("sweep=")]
    typed = [f"make {program} task={task}", *([f"sweep={sweep[-1]}"] if sweep and sweep[-1] != "grid" else [])]
    rest = [word for word in words if not word.startswith(("task=", "sweep=", "resume=", "trial="))]
    if rest:
        typed.append(f"args={shlex.quote(shlex.join(rest))}")
    if path := os.environ.get("TRIPTYCH_DATA_PATH"):
        more["path"] = path
    return " ".join([*typed, *(f"{name}={shlex.quote(value)}" for name, value in more.items())])


def by_configuration(record: Record) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """Finished trials, those together that differ in nothing but the seed."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for trial in record["trials"]:
        if trial["status"] == "finished" and trial["value"] is not None:
            groups[tuple(word for word in trial["overrides"] if not word.startswith("seed="))].append(trial)
    return groups


def best(record: Record) -> tuple[tuple[str, ...], float] | None:
    """The words of the best configuration, and its value (over seeds their mean); None when nothing finished."""
    means = {
        words: statistics.fmean(trial["value"] for trial in trials)
        for words, trials in by_configuration(record).items()
    }
    if not means:
        return None
    better = min if record["mode"] == "min" else max
    words = better(means, key=means.__getitem__)
    return words, means[words]


def grid_importance(record: Record, axes: dict[str, Axis]) -> dict[str, float]:
    """How much of the differences each option of a grid explains: variance of its values' means, as shares of 1.

    Main effects of a full grid; empty when fewer than two options vary or nothing differs.
    """
    trials = [trial for trial in record["trials"] if trial["status"] == "finished" and trial["value"] is not None]
    found: dict[str, float] = {}
    for name, axis in axes.items():
        values: dict[str, list[float]] = defaultdict(list)
        for trial in trials:
            word = next((word for word in trial["overrides"] if word.startswith(f"{axis.name}=")), "")
            values[word].append(trial["value"])
        if len(values) > 1:
            found[name] = statistics.pvariance([statistics.fmean(each) for each in values.values()])
    total = sum(found.values())
    if len(found) < 2 or not total:
        return {}
    return dict(sorted(((name, share / total) for name, share in found.items()), key=lambda each: -each[1]))


def heads_table(folder: SweepFolder, record: Record) -> Table | None:
    """Of every configuration that ran with several seeds: how far its head statistics agree from seed to seed."""
    table = Table(title="heads over seeds: mean rank correlation of a run with the others, 95 % interval")
    for column in ("configuration", "statistic", "layers", "heads", "seeds"):
        table.add_column(column, justify="left" if column in ("configuration", "statistic") else "right")
    for words, trials in by_configuration(record).items():
        runs = [run.path for trial in trials if (run := folder.run(trial)) is not None]
        if len(runs) < 2 or not all((run / HEADS_FILE).exists() for run in runs):
            continue
        label = " ".join(words)
        for name, found in over_runs(runs).items():
            table.add_row(label, name, found["layers"].amount, found["heads"].amount, str(len(runs)))
            label = ""
    return table if table.row_count else None


def keep_seeds(folder: SweepFolder, record: Record) -> None:
    """In each run that has siblings of other seeds, ``seeds.json`` with their metrics together, and a report of it."""
    for trials in by_configuration(record).values():
        runs = [run for trial in trials if (run := folder.run(trial)) is not None]
        if len(runs) < 2:
            continue
        metrics: dict[str, list[float]] = defaultdict(list)
        for run in runs:
            for name, value in run.summary().get("metrics", {}).items():
                metrics[name].append(value)
        kept = {
            name: {**t_interval(values).to_json(), "sd": statistics.stdev(values)}
            for name, values in metrics.items()
            if len(values) > 1
        }
        for run in runs:
            write_text(run.path / SEEDS_FILE, json.dumps({"metrics": kept}, indent=1) + "\n")
            run_page.write(run.path)


def conclude(folder: SweepFolder, base: Sequence[str], importance: dict[str, float]) -> None:
    """Store and print what came out so far. To be called while the process is `SweepFolder.concluding`.

    Args:
        folder: of the sweep.
        base: the words that all trials share.
        importance: of the options that vary, as shares of 1.

    Raises:
        UserError: no trial finished, and no other process still runs one.
    """
    with folder.editing() as record:
        winner = best(record)
        command = None if winner is None else command_line("train", [*base, *winner[0]], record["task"])
        record.update(best=command, importance=importance)
    failed = [trial for trial in record["trials"] if trial["status"] == "failed"]
    waiting = [trial for trial in record["trials"] if trial["status"] not in OVER]
    if waiting:
        console.print(f"other processes still run {len(waiting)} trials of {folder.path}", soft_wrap=True)
    runs = [run for trial in record["trials"] if (run := folder.run(trial)) is not None and run.path.is_dir()]
    if len(runs) > 1:
        try:
            comparison = compare.write(
                runs,
                folder.path,
                title=f"Sweep {folder.id}",
                metric=record["metric"],
                mode=record["mode"],
                importance=importance or None,
                best=command,
                failed=failed,
            )
            console.print(comparison.table())
            console.print(f"as a page   {comparison.page}\nas numbers  {comparison.csv}", soft_wrap=True)
        except UserError as error:
            console.print(f"no comparison: {error}", soft_wrap=True)
    keep_seeds(folder, record)
    if (heads := heads_table(folder, record)) is not None:
        console.print(heads)
    for trial in failed:
        console.print(f"failed: {' '.join(trial['overrides'])}: {trial['why']}", soft_wrap=True, markup=False)
    if importance:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in importance.items())
        console.print(f"importance  {shares}", soft_wrap=True)
    steps = sum(trial["steps"] or 0 for trial in record["trials"])
    counts = Counter(trial["status"] for trial in record["trials"])
    said = ", ".join(f"{count} {status}" for status, count in counts.items())
    console.print(f"{len(record['trials'])} trials: {said}; {steps:,} updates in all; {folder.path}", soft_wrap=True)
    if winner is None and waiting:
        return  # whoever runs them draws the conclusion
    if winner is None:
        raise UserError(f"no trial of the sweep finished; the first failure: {failed[0]['why'] if failed else 'none'}")
    console.print(f"best        {record['metric']} {winner[1]:.4f}\n{command}", soft_wrap=True, markup=False)


def progress(folder: SweepFolder, number: int, total: int) -> None:
    """One line on a trial that ended."""
    record = folder.read()
    trial = next(each for each in record["trials"] if each["number"] == number)
    value = "" if trial["value"] is None else f" {record['metric']} {trial['value']:.4f}"
    why = f" ({trial['why']})" if trial["why"] else ""
    console.print(
        f"trial {number} ({len(record['trials'])} of {total}) {trial['status']}{value}{why}: "
        f"{' '.join(trial['overrides'])}",
        soft_wrap=True,
        markup=False,
    )
