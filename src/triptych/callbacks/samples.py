"""Samples of what a model says, while it trains: kept in ``samples.jsonl`` and sent to every dashboard."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from triptych.files import write_text
from triptych.loggers import publish
from triptych.maps.capture import probing
from triptych.runs import jsonlines
from triptych.tasks.base import Task
from triptych.training.checkpoints import require_finite

FILE = "samples.jsonl"


class SamplesCallback(pl.Callback):
    """Asks the task for a sample every N updates and at the end; a task may have none to give.

    folder: the run's. every_n_steps: 0 for the end only. resumed_at: a resumed run's step; later rows are cut.
    options: what ``Task.sample`` takes.
    """

    def __init__(self, *, folder: Path, every_n_steps: int, resumed_at: int | None, options: Mapping[Any, Any]) -> None:
        self.path, self.every_n_steps = folder / FILE, every_n_steps
        self.options = {str(name): option for name, option in options.items()}
        self.rows = [] if resumed_at is None else [row for row in read(self.path) if row["step"] <= resumed_at]

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if self.every_n_steps and step and step % self.every_n_steps == 0:
            self._take(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._take(trainer, pl_module)

    def _take(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        step = trainer.global_step
        if not trainer.is_global_zero or (self.rows and self.rows[-1]["step"] == step):
            return
        require_finite(trainer)
        assert isinstance(task, Task)
        with probing(task.model):
            sample = task.sample(trainer.datamodule, **self.options)  # type: ignore[attr-defined]
        if sample is None:
            return
        prompt, text = sample
        self.rows.append({"step": step, "prompt": prompt, "text": text})
        write_text(self.path, jsonlines.dumps(self.rows))
        publish.text(trainer.loggers, "samples", prompt + text, step)


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a samples file, without those that are damaged; nothing when there is no file."""
    rows = jsonlines.read(path).values if path.exists() else []
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("step"), int)]
