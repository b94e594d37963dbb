"""Best and last checkpoints, written whole or not at all, and stopping so that nothing is lost."""

import io
import math
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.trainer.states import TrainerFn

from triptych.distributed import collectives
from triptych.errors import Requeued, UserError
from triptych.files import written_whole
from triptych.training.sharding import is_finite

REQUEUE = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name))
Handler = Callable[[int, FrameType | None], Any] | int | None


class Interrupted(Exception):
    """The run was asked to stop (Ctrl-C or SIGTERM), and ``last`` holds everything up to this update."""


class Diverged(UserError):
    """The loss or a parameter is no longer a number."""


def require_finite(trainer: pl.Trainer) -> None:
    """Raise Diverged if a parameter is not finite: to be asked before anything is made of the model and kept."""
    if not all(map(is_finite, trainer.lightning_module.parameters())):
        raise diverged(trainer, "a parameter is no finite number")


def diverged(trainer: pl.Trainer, what: str) -> Diverged:
    """What to tell the user: what is not a number, when, at which learning rate, and what is left."""
    rates = sorted({group["lr"] for group in trainer.optimizers[0].param_groups}, reverse=True)
    checkpoints = trainer.checkpoint_callback
    saved = isinstance(checkpoints, CheckpointCallback) and (checkpoints.folder / "last.ckpt").exists()
    return Diverged(
        f"training diverged: {what} at step {trainer.global_step}, learning rate "
        f"{', '.join(f'{rate:.3g}' for rate in rates)}; "
        f"{'the last good checkpoint is kept' if saved else 'there was no checkpoint yet'}; "
        "lower optimizer.lr or trainer.gradient_clip_val"
    )


CALLBACKS = {"Live": "ProgressCallback", "Averaged": "EMACallback", "Checkpoints": "CheckpointCallback"}
"""What version 0.1.0 called the callbacks whose state checkpoints hold, and what they are called now."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoints that replace their predecessor only once they are complete on disk."""

    def load_checkpoint(self, path: Any, *args: Any, **options: Any) -> Any:
        """What was saved, callbacks' state under today's names: Lightning looks for it by the class's."""
        checkpoint = super().load_checkpoint(path, *args, **options)
        states = checkpoint.get("callbacks", {})
        checkpoint["callbacks"] = {CALLBACKS.get(name, name): state for name, state in states.items()}
        return checkpoint

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as temporary, open(temporary, "wb") as file:
            file.write(buffer.getbuffer())
            file.flush()
            os.fsync(file.fileno())


class CheckpointCallback(Checkpoint):
    """Keeps ``best.ckpt`` (by a validation metric) and ``last.ckpt``, and turns signals into a clean stop.

    folder: where they go. metric, mode: what "best" means. every_n_steps: parameter updates between two ``last``;
    one is also written after every validation. look_every: updates between two looks at the loss on a GPU.

    ``last`` is written only between two updates and, where a validation is due, after it: a run that resumes from it
    repeats nothing and skips nothing. Neither is written once a parameter is not finite. Raises Diverged when the
    loss becomes NaN or infinite, and Interrupted after a signal.

    In a job whose launcher (submitit) has a handler for SIGUSR1 or SIGUSR2 that puts it back into the queue, that
    handler is called only once ``last`` is written, and Requeued raised; SIGTERM, which comes beside it, only saves.
    """

    def __init__(self, *, folder: Path, metric: str, mode: str, every_n_steps: int, look_every: int) -> None:
        self.folder, self.metric, self.every_n_steps = folder, metric, every_n_steps
        self.look_every = look_every
        self.sign = 1.0 if mode == "min" else -1.0
        self.best_score: float | None = None
        self.best_step: int | None = None
        self.measured_at = -1
        self._saved_at = -1
        self._stop: str | None = None
        self._save_now = False
        self._requeue: Callable[[], None] | None = None
        self._in_queue = False
        self._handlers: dict[int, Handler] = {}

    def state_dict(self) -> dict[str, Any]:
        # The score without any path: a run folder may be moved.
        return {"best_score": self.best_score, "best_step": self.best_step, "measured_at": self.measured_at}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best_score, self.best_step = state_dict["best_score"], state_dict["best_step"]
        self.measured_at = state_dict["measured_at"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._saved_at = trainer.global_step
        requeueing = [number for number in REQUEUE if callable(signal.getsignal(number))]
        self._in_queue = bool(requeueing)
        for number in (signal.SIGINT, signal.SIGTERM, *requeueing):
            try:
                self._handlers[number] = signal.signal(number, self._on_signal)
            except ValueError:  # not the main thread: whoever runs us there handles signals
                return

    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: torch.Tensor) -> None:
        # On a GPU, looking at the loss waits for it.
        looked_at = loss.device.type == "cpu" or trainer.global_step % self.look_every == 0
        if looked_at and not torch.isfinite(loss):
            raise diverged(trainer, f"the loss is {float(loss.detach())}")

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if step == self._saved_at or (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        validation_is_due = (batch_idx + 1) % int(trainer.val_check_batch or 1) == 0
        if validation_is_due:
            return
        mine = self._stop is not None, self._save_now
        self._save_now = False
        asked, save = collectives.any_says(*mine)
        if asked or save or step % self.every_n_steps == 0:
            self._save_last(trainer)
        self._stop_if(asked, trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn != TrainerFn.FITTING:
            return
        self.consider(trainer)
        self._save_last(trainer)
        (asked,) = collectives.any_says(self._stop is not None)
        self._stop_if(asked, trainer)

    def consider(self, trainer: pl.Trainer) -> None:
        """Keep the current weights as ``best`` if the metric just measured says so."""
        self.measured_at = trainer.global_step
        logged = {name: float(number) for name, number in trainer.callback_metrics.items() if "/" in name}
        if self.metric not in logged:
            raise UserError(
                f"watch.metric={self.metric} was not logged by the validation at step {trainer.global_step}; logged: "
                f"{', '.join(logged)}"
            )
        score = logged[self.metric]
        if not math.isfinite(score):
            raise diverged(trainer, f"{self.metric} is {score}")
        if self.best_score is None or self.sign * score < self.sign * self.best_score:
            self.best_score, self.best_step = score, trainer.global_step
            self._save(trainer, self.folder / "best.ckpt")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._restore_handlers()
        if self._saved_at != trainer.global_step:
            self._save_last(trainer)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._restore_handlers()

    def _save_last(self, trainer: pl.Trainer) -> None:
        for logger in trainer.loggers:
            logger.save()  # a run that resumes from here finds every row up to here
        self._save(trainer, self.folder / "last.ckpt")
        self._saved_at = trainer.global_step

    def _save(self, trainer: pl.Trainer, path: Path) -> None:
        require_finite(trainer)
        trainer.save_checkpoint(path)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stop is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # asked twice: stop at once, with the last checkpoint there is
        if self._in_queue and number == signal.SIGTERM:
            self._save_now = True
            return
        handler = self._handlers[number]
        if number in REQUEUE and callable(handler):
            self._requeue = partial(handler, number, frame)
        self._stop = signal.Signals(number).name

    def _stop_if(self, asked: bool, trainer: pl.Trainer) -> None:
        if asked and self._requeue is not None:
            try:
                self._requeue()
            except SystemExit as error:
                raise Requeued(error.code) from error
        if asked:
            raise Interrupted(f"stopped by {self._stop or 'another process'} at step {trainer.global_step}")

    def _restore_handlers(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}
