"""Inside a run that is a trial of a sweep: it tells the sweep how it does, and is given up if told so."""

import math
import os
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from omegaconf import DictConfig, open_dict
from pytorch_lightning.trainer.states import TrainerFn

from triptych.runs.folder import CONFIG, RunFolder, literal_text
from triptych.sweeps.record import SweepFolder


class Pruned(Exception):
    """The trial was given up: others did better after as many updates."""


class Trial:
    """The trial of a sweep that a run is made for."""

    def __init__(self, folder: SweepFolder, number: int) -> None:
        self.folder, self.number = folder, number

    def callback(self, run: RunFolder) -> "PruningCallback":
        """What the run's trainer needs."""
        return PruningCallback(self.folder, self.number, run)


def trial_of(config: DictConfig) -> Trial | None:
    """The trial that ``config`` is for; None for a run of its own.

    Takes out of ``config`` what concerns the sweep, so that what a run stores composes again to a run of its own, and
    lets a trial that was cut go on in the run folder it had.
    """
    wanted = config.get("trial")
    with open_dict(config):
        config.pop("sweep", None)
        config.trial = None
    if wanted is None:
        return None
    trial = Trial(SweepFolder(Path(config.runs) / "sweeps" / wanted.sweep), wanted.number)
    run = trial.folder.run(trial.folder.trial(trial.number))
    if run is not None and (run.path / CONFIG).is_file():
        config.resume = literal_text(str(run.path))
    return trial


class PruningCallback(pl.Callback):
    """Notes the run in ``sweep.json``; in a search, reports every validation to Optuna and raises Pruned if told to."""

    def __init__(self, folder: SweepFolder, number: int, run: RunFolder) -> None:
        self.folder, self.number, self.run = folder, number, run
        self._trial: Any = None
        self._metric = ""
        self._pruned: str | None = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        place = os.path.relpath(self.run.path.resolve(), self.folder.path.resolve())
        self.folder.update(self.number, run=place)
        record = self.folder.read()
        self._metric = record["metric"]
        if record["settings"]["sampler"] is None:
            return
        from triptych.sweeps.search import installed, study

        opened = study(self.folder.path, record)
        number = next(each for each in opened.get_trials(deepcopy=False) if each.number == self.number)
        self._trial = installed().trial.Trial(opened, number._trial_id)
        self._reported = set(number.intermediate_values)  # by what this run was before it was cut

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._trial is None or trainer.state.fn != TrainerFn.FITTING:
            return
        step, value = trainer.global_step, float(trainer.callback_metrics[self._metric])
        if not math.isfinite(value):
            return  # Checkpoints ends the run
        if step not in self._reported:
            self._trial.report(value, step)
        if step < trainer.max_steps and self._trial.should_prune():
            self._pruned = f"{self._metric} {value:.4g} at step {step:,}: others did better there"

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, index: int) -> None:
        # Not at once: Checkpoints keeps the weights just measured first.
        if self._pruned is not None:
            raise Pruned(self._pruned)
