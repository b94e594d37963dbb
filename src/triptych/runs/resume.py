"""Which run to go on with, and whether it may be gone on with."""

from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from triptych.errors import UserError
from triptych.files import remove_leftovers
from triptych.runs import folder, metrics_rows
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
    "callbacks",
    "sample",
    "explain",
)


# What a run's status says once there is nothing left to do, unless it is made longer.
ENDED = ("finished", "pruned")


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
    """The run that ``resume`` names.

    Args:
        config: of the run that is asked for.
        task: its name.

    Returns:
        The run, locked before its configuration and status are read; None when ``resume`` names none (null or auto).

    Raises:
        UserError: the folder is no run, is being trained, belongs to another task, differs in more than length and
            logging, has a checkpoint that cannot be read, or has nothing left to do.
    """
    if config.resume in (None, "auto"):
        return None
    run = folder.existing(config.resume, "resume")
    if not run.lock():
        raise UserError(f"resume={config.resume} is being trained by another process; wait for it, or stop it")
    try:
        stored = run.config("resume")
        _check_same(config, stored, task)
        resumed = _standing(run, stored)
        if resumed.step >= config.trainer.max_steps and run.summary().get("status") == "finished":
            raise UserError(
                f"resume={config.resume} has made its {resumed.step} updates; give a larger trainer.max_steps to go on"
            )
    except BaseException:
        run.release()
        raise
    return resumed


def newest(config: DictConfig, task: str, fingerprint: str) -> Resumed | None:
    """For ``resume=auto``: the newest unfinished run of the same configuration and data that no process holds.

    Args:
        config: of the run that is asked for.
        task: its name.
        fingerprint: of its data.

    Returns:
        The run, locked; None when there is none.

    Raises:
        UserError: the run's last checkpoint cannot be read.
    """
    for run in folder.all_runs(Path(config.runs), task):
        # Another process passes over a run whose lock is held, however briefly: only a candidate is locked.
        if _candidate(run, config, fingerprint) is None or not run.lock():
            continue
        try:
            # Whoever held the lock until now may have ended the run since: what counts is read under the lock.
            stored = _candidate(run, config, fingerprint)
            if stored is not None:
                return _standing(run, stored)
        except BaseException:
            run.release()
            raise
        run.release()
    return None


def _candidate(run: RunFolder, config: DictConfig, fingerprint: str) -> DictConfig | None:
    """The stored configuration of a run that ``resume=auto`` may go on with; None for another run."""
    if run.summary().get("status") in ENDED or _fingerprint(run) not in (None, fingerprint):
        return None
    try:
        stored = run.config()
    except UserError:
        return None  # killed before its configuration was written
    return None if folder.differing(config, stored, _ignored(config)) else stored


def _check_same(config: DictConfig, stored: DictConfig, task: str) -> None:
    if stored.task.name != task:
        raise UserError(f"resume={config.resume} is a run of task={stored.task.name}, not {task}")
    keys = folder.differing(config, stored, (*_ignored(config), *LENGTH_AND_LOGGING))
    if keys:
        raise UserError(
            f"resume={config.resume}: only the length of training and logging may differ, and these do: "
            f"{', '.join(keys)}; give the run's own settings (its config.yaml), or start a new run"
        )


def _ignored(config: DictConfig) -> tuple[str, ...]:
    return (*PATHS, *(key for key in AUTO if OmegaConf.select(config, key) == "auto"))


def _fingerprint(run: RunFolder) -> str | None:
    return run.summary().get("data", {}).get("fingerprint")


def _standing(run: RunFolder, stored: DictConfig) -> Resumed:
    """Where a run stands that this process has locked."""
    # Each kill in the middle of a save leaves a file of a checkpoint's size. Elsewhere in the folder a report may be
    # written by a process without the lock.
    remove_leftovers((run.path / folder.LAST).parent)
    step = folder.checkpoint_contents(run.checkpoint)["global_step"] if run.checkpoint else 0
    # A killed run had no time to write its summary: what its last checkpoint had cost stands with the metrics.
    logged = [row.get("seconds", 0.0) for row in metrics_rows.read(run.path / "metrics.csv") if row["step"] <= step]
    seconds = max([float(run.summary().get("fit_seconds") or 0.0), *logged])
    return Resumed(folder=run, config=stored, step=step, seconds=seconds)
