"""A search: a current Optuna chooses what to try next, remembers it on disk, and judges which trial to give up.

Driven directly: the plugin hydra-optuna-sweeper needs Optuna 2.10, whose storage breaks with current SQLAlchemy, and
does not prune.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock

from triptych.environment import needs
from triptych.sweeps.record import OVER, Record, SweepFolder
from triptych.sweeps.settings import Settings
from triptych.sweeps.space import Axis, Space

if TYPE_CHECKING:
    import optuna

JOURNAL, STUDY = "optuna.journal", "sweep"


class Search:
    """Trials that Optuna proposes. The first one is the configuration as it stands, where the space holds it.

    defaults: option to its value without the sweep. Raises UserError when Optuna is not installed.
    """

    def __init__(self, folder: SweepFolder, settings: Settings, space: Space, defaults: dict[str, Any]) -> None:
        self.folder, self.settings = folder, settings
        assert settings.trials is not None
        self.total = settings.trials
        self.axes = dict(space.axes)
        self.distributions = {name: distribution(axis) for name, axis in self.axes.items()}
        with folder.editing() as record:
            self.study = study(folder.path, record)
            if not self.study.get_trials(deepcopy=False) and (first := self._first(defaults)):
                self.study.enqueue_trial(first)

    def propose(self, record: Record) -> tuple[int, list[str]] | None:
        if len(record["trials"]) >= self.total:
            return None
        self.study.sampler = self._sampler(len(record["trials"]))
        trial = self.study.ask(self.distributions)
        return trial.number, [f"{self.axes[name].name}={word(value)}" for name, value in trial.params.items()]

    def learn(self, record: Record) -> None:
        optuna = installed()
        known = {trial["number"]: trial for trial in record["trials"]}
        for trial in self.study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
            entry = known.get(trial.number)
            if entry is None:  # its worker died between asking and noting
                self.study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            elif entry["status"] == "finished":
                self.study.tell(trial.number, entry["value"])
            elif entry["status"] in OVER:
                pruned = entry["status"] == "pruned" and trial.intermediate_values
                state = optuna.trial.TrialState.PRUNED if pruned else optuna.trial.TrialState.FAIL
                self.study.tell(trial.number, state=state)

    def importance(self) -> dict[str, float]:
        """How much of the differences between finished trials each option explains, from 1 to 0 in all."""
        return importance(self.study)

    def _sampler(self, trial: int) -> "optuna.samplers.BaseSampler":
        """A sampler whose numbers are those of this trial: no two workers draw the same, nor does one that is back."""
        samplers = installed().samplers
        seed = int(np.random.SeedSequence((self.settings.seed, trial)).generate_state(1)[0])
        if self.settings.sampler == "tpe":
            return samplers.TPESampler(n_startup_trials=self.settings.startup, seed=seed)
        return samplers.RandomSampler(seed=seed)

    def _first(self, defaults: dict[str, Any]) -> dict[str, Any] | None:
        """The configuration's own values as parameters; None when the space leaves one out."""
        found: dict[str, Any] = {}
        for name, kind in self.distributions.items():
            value = defaults.get(name)
            if hasattr(kind, "choices"):
                value = "null" if value is None else str(value)
                inside = value in kind.choices
            else:
                inside = isinstance(value, int | float) and kind.low <= value <= kind.high  # type: ignore[attr-defined]
            if not inside:
                return None
            found[name] = value
        return found


def study(path: Path, record: Record) -> "optuna.Study":
    """The study in a sweep's folder, with the pruner that the sweep's settings name. May be called in any process."""
    optuna = installed()
    settings = record["settings"]
    pruners = {
        "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=settings["startup"]),
        "quartile": lambda: optuna.pruners.PercentilePruner(25.0, n_startup_trials=settings["startup"]),
        "hyperband": lambda: optuna.pruners.HyperbandPruner(
            min_resource=settings["first_validation"], max_resource=settings["max_steps"]
        ),
        "none": optuna.pruners.NopPruner,
    }
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(path / JOURNAL), lock_obj=_JournalLock(path / JOURNAL))
    )
    return optuna.create_study(
        storage=storage,
        study_name=STUDY,
        direction="minimize" if record["mode"] == "min" else "maximize",
        sampler=optuna.samplers.RandomSampler(),  # `Search` gives it another for each trial that it asks for
        pruner=pruners[settings["pruner"]](),
        load_if_exists=True,
    )


def distribution(axis: Axis) -> "optuna.distributions.BaseDistribution":
    """An axis as Optuna names it: an interval or a range is numbers in order, anything else a choice."""
    kinds = installed().distributions
    if (found := axis.interval) is not None:
        kind = kinds.IntDistribution if isinstance(found.start, int) else kinds.FloatDistribution
        return kind(found.start, found.end, log="log" in found.tags)
    if (steps := axis.range) is not None and len(axis.values or ()) > 1 and steps.step > 0:
        numbers = list(steps.range())
        kind = kinds.IntDistribution if all(isinstance(n, int) for n in numbers) else kinds.FloatDistribution
        return kind(numbers[0], numbers[-1], step=steps.step)
    return kinds.CategoricalDistribution(axis.values)


def word(value: Any) -> str:
    """A value as it stands on the command line; four digits of a number are enough to tell trials apart."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def importance(study: "optuna.Study") -> dict[str, float]:
    """Optuna's estimate (PED-ANOVA, Watanabe et al. 2023, arXiv 2304.10255), largest first; empty where none exists."""
    optuna = installed()
    values = {trial.value for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))}
    if len(values) < 4:
        return {}
    try:
        return dict(optuna.importance.get_param_importances(study))
    except (ValueError, RuntimeError):  # an option that was the same in all of them
        return {}


class _JournalLock:
    """A lock that goes with its process (Optuna's own outlives a kill), and a last line that a kill cut is dropped."""

    def __init__(self, journal: Path) -> None:
        self._journal, self._lock = journal, FileLock(f"{journal}.lock")

    def acquire(self) -> bool:
        self._lock.acquire()
        with open(self._journal, "rb+") as file:
            contents = file.read()
            if not contents.endswith(b"\n"):
                file.truncate(contents.rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        self._lock.release()


def installed() -> Any:
    """Optuna itself. Raises UserError when it is not installed."""
    with needs("a search", "optuna"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
