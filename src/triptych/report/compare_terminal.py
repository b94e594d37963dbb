"""The comparison of runs in a terminal, with as many of its columns as there is room for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from triptych.report.compare_table import ABSENT, Runs, number, spread, written

METRICS, KEYS = 4, 8  # at most; the page and the CSV have all


@dataclass(frozen=True)
class Terminal:
    """What ``rich`` prints: the runs, and under them what repeats over seeds."""

    runs: Runs

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        keys, metrics = len(self.runs.keys[:KEYS]), len(self.runs.metrics[:METRICS])
        shown = self._table(self.runs.keys[:keys], self.runs.metrics[:metrics])
        # Results that are not what the runs are compared by go first, then what differs.
        while _width(shown, console, options) > options.max_width and (metrics > 1 or keys > 1):
            keys, metrics = (keys, metrics - 1) if metrics > 1 else (keys - 1, metrics)
            shown = self._table(self.runs.keys[:keys], self.runs.metrics[:metrics])
        yield shown
        if left_out := len(self.runs.keys) - keys + len(self.runs.metrics) - metrics:
            yield Text(f"{left_out} more columns are in compare.csv and compare.html")
        if self.runs.seeds:
            yield self._seeds()

    def _table(self, keys: Sequence[str], metrics: Sequence[str]) -> Table:
        shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        rows = self.runs.rows
        seeds = len({row.seed for row in rows}) > 1
        statuses = {row.status for row in rows} != {"finished"}
        shown.add_column("run", no_wrap=True)
        own = [*(["status"] if statuses else []), *(["seed"] if seeds else [])]
        for head in (*own, *(self.runs.short[key] for key in keys)):
            shown.add_column(Text(head), overflow="fold")
        for head in (*metrics, "steps", "fit, s"):
            shown.add_column(Text(head), justify="right", no_wrap=True)
        for row in rows:
            cells = [row.name, *([row.status] if statuses else []), *([written(row.seed, ABSENT)] if seeds else [])]
            cells += [written(row.options.get(key, ABSENT)) for key in keys]
            cells += [number(name, row.results.get(name)) for name in (*metrics, "steps", "fit_seconds")]
            shown.add_row(*map(Text, cells))
        return shown

    def _seeds(self) -> Table:
        shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="over seeds")
        for head in ("configuration", "metric"):
            shown.add_column(head, overflow="fold")
        shown.add_column("mean ± standard deviation [95 % interval]", justify="right", no_wrap=True)
        shown.add_column("seeds", overflow="fold")
        for group in self.runs.seeds:
            options = {self.runs.short[key]: written(group.values.get(key, ABSENT)) for key in self.runs.keys}
            first = [", ".join(f"{name}={value}" for name, value in options.items()), ", ".join(map(str, group.seeds))]
            for name in self.runs.metrics:
                shown.add_row(*map(Text, (first[0], name, spread(group, name), first[1])))
                first = ["", ""]
        return shown


def _width(table: Table, console: Console, options: ConsoleOptions) -> int:
    """Characters that the table takes when nothing is cut."""
    return Measurement.get(console, options.update(max_width=10_000), table).maximum
