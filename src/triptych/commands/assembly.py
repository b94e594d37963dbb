"""What a run's training is put together from, the same in every process: data, task, callbacks, Trainer."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from omegaconf import DictConfig
from pytorch_lightning.callbacks import EarlyStopping
from rich.console import Console

from triptych.callbacks.maps import MapsCallback
from triptych.callbacks.progress import ProgressCallback
from triptych.callbacks.samples import SamplesCallback
from triptych.config import build
from triptych.config.callbacks import build_callbacks
from triptych.distributed.launch import ProcessGroup
from triptych.explain.analysis import Analysis, AnalysisGroup
from triptych.runs.folder import RunFolder
from triptych.runs.metrics_file import MetricsFile
from triptych.sweeps.pruning import Trial
from triptych.tasks.base import Task
from triptych.training.checkpoints import AtomicCheckpointIO, CheckpointCallback
from triptych.training.ema import EMACallback
from triptych.training.sharding import GatherCallback


def learner(config: DictConfig, data: Any, stored: DictConfig | None) -> tuple[Task, build.Plan]:
    """The task around a new model, and what ``auto`` in the configuration, which is replaced, came to.

    stored: the configuration that a resumed run began with. data: opened.
    """
    plan = build.resolve_auto(config, stored)
    pl.seed_everything(config.seed, verbose=False)
    model = build.build_model(config, data.sizes)
    build.check_attention(model, plan, config.trainer.precision, training=True)
    compiled = build.resolve_compile(config, model, data.positions_per_batch(getattr(model, "context", 1)), plan)
    return build.build_task(config, model, compiled=compiled), plan


@dataclass
class Assembly:
    """A Trainer, ready to fit, and those of its callbacks that are asked about it later."""

    trainer: pl.Trainer
    live: ProgressCallback
    configured: list[pl.Callback]
    checkpoints: CheckpointCallback
    loggers: list[Any]

    @property
    def analyses(self) -> AnalysisGroup:
        """What is measured and concluded beside the task's own metrics."""
        return _analyses(self.configured)

    @property
    def capture_error(self) -> float | None:
        """The worst of the maps that were taken; None where none were."""
        errors = [callback.capture_error for callback in self.configured if isinstance(callback, MapsCallback)]
        return max((error for error in errors if error is not None), default=None)

    @property
    def map_seconds(self) -> float:
        """Wall time that maps took."""
        return sum(callback.seconds for callback in self.configured if isinstance(callback, MapsCallback))

    @property
    def samples(self) -> list[dict[str, Any]]:
        """What the model said while it trained."""
        return [row for each in self.configured if isinstance(each, SamplesCallback) for row in each.rows]

    def fit(self, task: Task, data: Any, run: RunFolder) -> None:
        """Train to the end, from the run's last checkpoint where it has one."""
        checkpoint = str(run.checkpoint) if run.checkpoint else None
        self.trainer.fit(task, datamodule=data, ckpt_path=checkpoint, weights_only=True)
        if self.checkpoints.measured_at != self.trainer.global_step:
            # The last updates, when they are no whole interval, count for the best checkpoint too.
            self.trainer.validate(task, datamodule=data, verbose=False)
            self.checkpoints.consider(self.trainer)


def assemble(
    config: DictConfig,
    plan: build.Plan,
    data: Any,
    task: Task,
    run: RunFolder,
    world: ProcessGroup,
    console: Console,
    resumed_at: int | None,
    trial: Trial | None,
) -> Assembly:
    """Callbacks and Trainer for a run in its folder. Only rank 0 of ``world`` gets loggers, and knows of a trial."""
    data.rank, data.processes = world.rank, world.size
    live = ProgressCallback(unit=data.unit, console=console, log_every=config.trainer.log_every_n_steps)
    checkpoints = CheckpointCallback(
        folder=run.path / "checkpoints",
        metric=config.watch.metric,
        mode=config.watch.mode,
        every_n_steps=config.checkpoint_every,
        look_every=config.trainer.log_every_n_steps,
    )
    configured = build_callbacks(config, folder=run.path, fingerprint=data.fingerprint, resumed_at=resumed_at)
    callbacks: list[Any] = [live, *configured.values(), checkpoints]
    if trial is not None:
        callbacks.append(trial.callback(run))
    if config.ema is not None:
        callbacks.insert(0, EMACallback(decay=config.ema))
    if config.early_stopping is not None:
        callbacks.insert(0, EarlyStopping(config.watch.metric, mode=config.watch.mode, patience=config.early_stopping))
    if build.sharded(config):
        callbacks.insert(0, GatherCallback(every_n_steps=config.maps.every_n_steps))
    loggers: list[Any] = []
    if world.rank == 0:
        metrics_file = MetricsFile(path=run.path / "metrics.csv", resumed_at=resumed_at)
        loggers = [metrics_file, *build.loggers(config, run.path, resumed_at=resumed_at)]
    trainer = build.build_trainer(
        config,
        run.path,
        callbacks=callbacks,
        logger=loggers or False,
        plugins=[AtomicCheckpointIO(), world.environment],
        max_epochs=-1,
        check_val_every_n_epoch=None,
        val_check_interval=plan.validation_every,
    )
    return Assembly(trainer, live, list(configured.values()), checkpoints, loggers)


def analyses(config: DictConfig, folder: Path) -> AnalysisGroup:
    """Those of a run's callbacks that measure and draw, for a run that has ended.

    Args:
        config: The run's configuration.
        folder: The run's.
    """
    configured = build_callbacks(config, folder=folder, fingerprint="", resumed_at=None)
    return _analyses(configured.values())


def _analyses(callbacks: Iterable[pl.Callback]) -> AnalysisGroup:
    return AnalysisGroup(*(callback for callback in callbacks if isinstance(callback, Analysis)))
