"""Which run to go on with, and whether it may be gone on with."""

from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from triptych.errors import UserError
from triptych.runs import folder, metrics_file
from triptych.runs.folder import RunFolder

# Left out when configurations are compared: how to resume, and where things are.
PATHS = ("resume", "runs", "data.path")
# Left out when they say "auto": a resumed run keeps what that came to when it began.
AUTO = ("compile", "trainer.precision")
# What may change between a run and its continuation: its length, and what is logged.
LENGTH_AND_LOGGING = (
    "trainer.max_steps",
    "trainer.log_every_n_steps",
    "validations",
    "checkpoint_every",
    "early_stopping",
    "logger",
    "maps",
    "sample",
    "explain",
)


@dataclass(frozen=True)
class Resumed:
    """A run that is gone on with: its folder (locked), its configuration, and where it stands."""

    folder: RunFolder
    config: DictConfig
    step: int  # parameter updates made
    seconds: float  # wall time of fitting so far

    def check_data(self, fingerprint: str) -> None:
        """Raise UserError unless the data are those the run began with."""
        known = _fingerprint(self.folder)
        if known not in (None, fingerprint):
            raise UserError(
                f"resume={self.folder.path}: the data have changed since (fingerprint {fingerprint[:12]}, then "
                f"{known[:12]}); resume with the same data, or start a new run"
            )


def named(config: DictConfig, task: str) -> Resumed | None:
    """The run folder that ``resume`` names, locked; None when it names none (null or auto).

    Raises UserError when the folder is no run, belongs to another task, differs in more than length and logging, is
    being trained, or has nothing left to do.
    """
    if config.resume in (None, "auto"):
        return None
    found = folder.existing(config.resume, "resume")
    stored = found.config("resume")
    if stored.task.name != task:
        raise UserError(f"resume={config.resume} is a run of task={stored.task.name}, not {task}")
    keys = folder.differing(config, stored, (*_ignored(config), *LENGTH_AND_LOGGING))
    if keys:
        raise UserError(
            f"resume={config.resume}: only the length of training and logging may differ, and these do: "
            f"{', '.join(keys)}; give the run's own settings (its config.yaml), or start a new run"
        )
    if not found.lock():
        raise UserError(f"resume={config.resume} is being trained by another process; wait for it, or stop it")
    try:
        resumed = _standing(found, stored)
        if resumed.step >= config.trainer.max_steps and found.summary().get("status") == "finished":
            raise UserError(
                f"resume={config.resume} has made its {resumed.step} updates; give a larger trainer.max_steps to go on"
            )
    except UserError:
        found.release()
        raise
    return resumed


def newest(config: DictConfig, task: str, fingerprint: str) -> Resumed | None:
    """For ``resume=auto``: the newest unfinished run of the same configuration and data that no process holds."""
    for found in folder.all_runs(Path(config.runs), task):
        if found.summary().get("status") in ("finished", "pruned") or _fingerprint(found) not in (None, fingerprint):
            continue
        try:
            stored = found.config()
        except UserError:
            continue  # killed before its configuration was written
        if folder.differing(config, stored, _ignored(config)) or not found.lock():
            continue
        try:
            return _standing(found, stored)
        except UserError:
            found.release()
            raise
    return None


def _ignored(config: DictConfig) -> tuple[str, ...]:
    return (*PATHS, *(key for key in AUTO if OmegaConf.select(config, key) == "auto"))


def _fingerprint(found: RunFolder) -> str | None:
    return found.summary().get("data", {}).get("fingerprint")


def _standing(found: RunFolder, stored: DictConfig) -> Resumed:
    step = folder.checkpoint_contents(found.checkpoint)["global_step"] if found.checkpoint else 0
    # A killed run had no time to write its summary: what its last checkpoint had cost stands with the metrics.
    logged = [row.get("seconds", 0.0) for row in metrics_file.read(found.path / "metrics.csv") if row["step"] <= step]
    seconds = max([float(found.summary().get("fit_seconds") or 0.0), *logged])
    return Resumed(folder=found, config=stored, step=step, seconds=seconds)
