"""``metrics.csv``: every number a run logs, one row per step, in a file that survives kills and resumes."""

import csv
import io
import os
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only

from triptych.files import write_text
from triptych.runs.metrics_rows import read

FIRST = ("step", "epoch", "seconds")


class MetricsFile(Logger):
    """A Lightning logger that writes ``metrics.csv`` (Lightning's own deletes the rows of a run that is resumed).

    path: the file. resumed_at: step that a resumed run continues from; rows past it are cut.

    ``seconds`` counts training time over all the run's processes, in wall time.
    """

    def __init__(self, *, path: Path, resumed_at: int | None) -> None:
        super().__init__()
        self.path = path
        self._columns: list[str] = list(FIRST)
        self._rows: list[dict[str, Any]] = []
        if resumed_at is not None:
            self._rows = [row for row in read(path) if row["step"] <= resumed_at]
            for row in self._rows:
                self._columns += [name for name in row if name not in self._columns]
        self._before = max((row.get("seconds", 0.0) for row in self._rows), default=0.0)
        self._written = 0  # rows that the file holds, under the header it has
        self._started = time.perf_counter()

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return ""

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing: ``config.yaml`` holds them."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Add to the row of this step."""
        if not self._rows or self._rows[-1]["step"] != step:
            elapsed = self._before + time.perf_counter() - self._started
            self._rows.append({"step": step or 0, "seconds": round(elapsed, 3)})
        self._rows[-1].update({name: float(number) for name, number in metrics.items()})
        fresh = [name for name in metrics if name not in self._columns]
        self._columns += fresh
        if fresh or self._written == len(self._rows):  # a column has come, or a row that the file holds has grown
            self._written = 0

    @rank_zero_only
    def save(self) -> None:
        """Bring the file up to date: append, or write it anew where appending cannot say it."""
        if self._written == len(self._rows):
            return
        if not self.path.exists():
            self._written = 0
        lines = io.StringIO()
        writer = csv.DictWriter(lines, fieldnames=self._columns, lineterminator="\n")
        if self._written == 0:
            writer.writeheader()
        writer.writerows(self._rows[self._written :])
        if self._written == 0:
            write_text(self.path, lines.getvalue())
        else:
            _append(self.path, lines.getvalue())
        self._written = len(self._rows)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        self.save()


def _append(path: Path, lines: str) -> None:
    """Add lines to a file, all or none: half a row would run into the next one."""
    size = path.stat().st_size
    try:
        with path.open("a", encoding="utf-8", newline="") as file:
            file.write(lines)
    except OSError:
        os.truncate(path, size)
        raise
