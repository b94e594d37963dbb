"""The view while a model trains: one bar for the whole run with ETA, loss and speed; and the training curves."""

import statistics
import time
from array import array
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.trainer.states import TrainerFn
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from triptych.distributed import collectives
from triptych.tasks.base import Task

FIRST_STEPS = 20  # warm-up, left out of the speed


class ProgressCallback(pl.Callback):
    """Shows progress in the terminal and logs ``train/loss``, ``train/lr``, ``epoch`` and ``seen``.

    unit: what is counted ("characters"). console: where to show it; without a terminal a line now and then.

    log_every: updates between two rows. ``train/loss`` is the mean over all that was predicted since the row before.
    """

    def __init__(self, *, unit: str, console: Console, log_every: int) -> None:
        self.unit, self.console, self.log_every = unit, console, log_every
        self._intervals = array("d")  # seconds between the ends of two updates
        self._seen = array("d")
        self._previous: float | None = None
        self._previous_step = 0
        self._loss_sum: torch.Tensor | None = None
        self._losses = 0  # how many of them that is the sum of: what was predicted
        self._counted = 0  # of that, in the update that is being made
        self._shown_loss = float("nan")
        self._bar: Progress | None = None
        self._drawn = 0.0

    def state_dict(self) -> dict[str, Any]:
        # A resumed run's next row is the same mean as an uninterrupted run's.
        loss_sum = None if self._loss_sum is None else float(collectives.mean(self._loss_sum))
        return {"loss_sum": loss_sum, "losses": self._losses}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        loss_sum = state_dict["loss_sum"]
        self._loss_sum = None if loss_sum is None else torch.tensor(loss_sum, dtype=torch.float64)
        self._losses = state_dict["losses"]

    @property
    def seen_per_second(self) -> float | None:
        """Median speed of the updates after the first 20; None for a shorter run."""
        steady = [
            seen / seconds
            for seen, seconds in zip(self._seen[FIRST_STEPS:], self._intervals[FIRST_STEPS:], strict=True)
        ]
        return statistics.median(steady) if steady else None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._previous, self._previous_step, self._counted = None, trainer.global_step, 0
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("step {task.completed:,.0f}/{task.total:,.0f}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[shown]}"),
                console=self.console,
                auto_refresh=False,  # a refreshing thread would take time from training on few cores
            )
            self._bar.add_task("train", total=trainer.max_steps, completed=trainer.global_step, shown="")
            self._bar.start()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._previous = None  # the time spent validating is not a step's
        if trainer.state.fn == TrainerFn.FITTING:
            shown = "  ".join(
                f"{name} {float(number):.4f}"
                for name, number in trainer.callback_metrics.items()
                if name.startswith("val/")
            )
            self.console.print(f"step {trainer.global_step:,}  {shown}", highlight=False, soft_wrap=True)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.perf_counter()
        step = trainer.global_step
        count = batch.seen_by_all
        loss = outputs["loss"].detach().double() * trainer.accumulate_grad_batches * count
        self._loss_sum = loss if self._loss_sum is None else self._loss_sum + loss
        self._losses += count
        self._counted += count
        if step == self._previous_step:  # gradients are still being accumulated
            return
        if self._previous is not None:
            self._intervals.append(now - self._previous)
            self._seen.append(self._counted)
        self._previous, self._previous_step, self._counted = now, step, 0
        if step % self.log_every == 0:
            assert isinstance(pl_module, Task)
            self._log(trainer, pl_module, step)
        if now - self._drawn > (0.5 if self._bar else 15.0):
            self._draw(trainer, step)
            self._drawn = now

    def _log(self, trainer: pl.Trainer, task: Task, step: int) -> None:
        assert self._loss_sum is not None
        self._shown_loss = float(collectives.mean(self._loss_sum)) / max(self._losses, 1)
        self._loss_sum, self._losses = None, 0
        row = {
            "train/loss": self._shown_loss,
            "train/lr": trainer.optimizers[0].param_groups[0]["lr"],
            "epoch": task.epoch,
            "seen": float(task.seen),
        }
        for logger in trainer.loggers:
            logger.log_metrics(row, step)

    def _draw(self, trainer: pl.Trainer, step: int) -> None:
        recent = slice(-50, None)
        speed = sum(self._seen[recent]) / (sum(self._intervals[recent]) or 1.0)
        loss = self._shown_loss
        if self._loss_sum is not None:
            loss = float(self._loss_sum) / max(self._losses, 1)
        shown = f"loss {loss:.3f}  {speed:,.0f} {self.unit}/s"
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=step, shown=shown)
            self._bar.refresh()
        else:
            left = (trainer.max_steps - step) * statistics.median(self._intervals[recent] or [0.0])
            self.console.print(
                f"step {step:,}/{trainer.max_steps:,}  {shown}  {left:,.0f} s left", highlight=False, soft_wrap=True
            )

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._stop(trainer)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._stop(trainer)

    def _stop(self, trainer: pl.Trainer) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=trainer.global_step)
            self._bar.refresh()
            self._bar.stop()
            self._bar = None
