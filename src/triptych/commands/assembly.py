"""What a run's training is put together from, the same in every process: data, task, callbacks, Trainer."""

from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
from omegaconf import DictConfig
from pytorch_lightning.callbacks import EarlyStopping
from rich.console import Console

from triptych.callbacks.analysis import beside
from triptych.callbacks.maps import MapsCallback
from triptych.callbacks.progress import ProgressCallback
from triptych.callbacks.samples import SamplesCallback
from triptych.callbacks.tables import TablesCallback
from triptych.config import build
from triptych.config.containers import to_dict
from triptych.distributed.launch import ProcessGroup
from triptych.explain.analysis import AnalysisGroup
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
    maps: MapsCallback
    samples: SamplesCallback
    tables: TablesCallback
    measuring: AnalysisGroup
    checkpoints: CheckpointCallback
    loggers: list[Any]

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
    maps = MapsCallback(
        folder=run.path / "maps", fingerprint=data.fingerprint, resumed_at=resumed_at, **to_dict(config.maps)
    )
    samples = SamplesCallback(
        path=run.path / "samples.jsonl",
        every_n_steps=config.maps.every_n_steps,
        resumed_at=resumed_at,
        options=to_dict(config.sample),
    )
    tables = TablesCallback(folder=run.path)
    measuring = beside(task.name, run.path, to_dict(config.explain) if config.get("explain") else None)
    callbacks: list[Any] = [live, maps, samples, tables, *measuring, checkpoints]
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
    return Assembly(trainer, live, maps, samples, tables, measuring, checkpoints, loggers)
