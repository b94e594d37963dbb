"""Hydra's sweeper for grids, seeds and searches: trials are claimed, run by whichever launcher, and noted."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from triptych.config import build
from triptych.config.callbacks import watchable
from triptych.config.messages import refuse_added
from triptych.environment import silence_lightning
from triptych.errors import UserError
from triptych.runs import folder
from triptych.sweeps import launchers, results, settings, space
from triptych.sweeps.plans import Grid, Plan, claim
from triptych.sweeps.record import OVER, Record, SweepFolder, all_sweeps, new_id, of_number
from triptych.sweeps.search import Search, installed
from triptych.sweeps.settings import Settings
from triptych.sweeps.space import Space
from triptych.sweeps.trial import Outcome, RunTrial, stoppable

NAME = "hydra_plugins.triptych.Sweep"
# What may change between a sweep and its continuation: how it is run, not what it compares.
NOT_COMPARED = ("sweep.", "hydra", "resume=", "sweep=", "runs=", "data.path=")


def register() -> None:
    """Make the sweeper known to Hydra, which takes plugins only from a package of the name hydra_plugins."""
    plugins = Plugins.instance()
    plugins.register(Sweep)
    plugins.class_name_to_class[NAME] = Sweep


class Sweep(Sweeper):
    """See ``conf/sweep/grid.yaml`` and ``search.yaml``.

    max_batch_size, params: of Hydra's own sweeper, as an experiment may set them. Raises UserError before the first
    trial for whatever is wrong with the space, the settings, or the configuration that all trials share.
    """

    def __init__(self, max_batch_size: int | None = None, params: dict[str, str] | None = None) -> None:
        self.max_batch_size, self.params = max_batch_size, dict(params or {})

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config, self.task_function = hydra_context, config, task_function
        self.launcher = None

    def sweep(self, arguments: list[str]) -> None:
        """Run what is left of the sweep, then compare. arguments: the words of the command line."""
        assert self.config is not None
        silence_lightning()
        parser = OverridesParser.create(config_loader=self._loader)
        chosen = settings.read(self.config)
        swept = [f"{name}={value}" for name, value in self.params.items()]
        words = [word for word in arguments if not word.startswith("resume=")]
        varied = space.read(chosen.space, words, parser, swept)
        defaults = self._check(chosen, varied)
        if chosen.sampler is None:
            plan: Plan = Grid(varied)
        else:
            installed()
        at = self._folder(chosen, varied)
        os.environ.pop("TRIPTYCH_RESUME", None)  # it was the sweep's, not its trials'
        if chosen.sampler is not None:
            plan = Search(at, chosen, varied, defaults)
        worker = at.join()
        try:
            with stoppable():
                stopped = self._work(at, plan, worker.name, varied, chosen)
        except KeyboardInterrupt:
            stopped = True
        finally:
            worker.leave()
        if stopped:
            again = results.command_line("sweep", arguments, self.config.task.name, resume=str(at.path))
            results.console.print(f"the sweep stopped; to go on: {again}", soft_wrap=True, markup=False)
            raise SystemExit(130)
        with at.concluding():
            with at.editing() as record:
                plan.learn(record)
            importance = (
                plan.importance() if isinstance(plan, Search) else results.grid_importance(record, dict(varied.axes))
            )
            results.conclude(at, self._base(varied), importance)

    # ---- before the first trial ----

    @property
    def _loader(self) -> Any:
        assert self.hydra_context is not None
        return self.hydra_context.config_loader

    def _compose(self, words: Sequence[str]) -> DictConfig:
        return self._loader.load_sweep_config(self.config, list(words))

    @staticmethod
    def _job(config: DictConfig) -> DictConfig:
        """What a trial sees of a composed configuration."""
        return OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])

    def _check(self, chosen: Settings, varied: Space) -> dict[str, Any]:
        """Compose every value once, check the whole of the first; returns what the options are without the sweep."""
        assert self.config is not None
        launchers.check(self.config.hydra.launcher._target_)
        for n, words in enumerate(varied.probes()):
            everything = [*varied.fixed, *words]
            config = self._compose(everything)
            before = HydraConfig.instance().cfg
            HydraConfig.instance().set_config(config)
            try:
                refuse_added(config, everything)
                if n == 0:
                    job = self._job(config)
                    task = build.check(job)
                    metrics = watchable(job, task)
            finally:
                HydraConfig.instance().cfg = before
        if chosen.metric not in metrics:
            raise UserError(
                f"sweep.metric={chosen.metric} is not a metric of task={task.name}; it has: {', '.join(metrics)}"
            )
        choices = self.config.hydra.runtime.choices
        return {name: choices.get(name, OmegaConf.select(self.config, name)) for name in varied.axes}

    def _base(self, varied: Space) -> list[str]:
        """The words that all trials share, and what ``sweep=`` set besides, as words."""
        assert self.config is not None
        words = [word for word in varied.fixed if not word.startswith(("sweep=", "sweep.", "hydra"))]
        plain = self._compose([*words, *([] if _has(words, "task") else [f"task={self.config.task.name}"])])
        ignored = ("sweep", "trial", "resume", *varied.axes)
        ours = self._job(self.config)
        more = [
            f"{key}={Override._get_value_element_as_str(OmegaConf.select(ours, key))}"
            for key in folder.differing(ours, self._job(plain), ignored)
        ]
        return [*words, *more]

    def _folder(self, chosen: Settings, varied: Space) -> SweepFolder:
        """The sweep's folder, new or gone on with. Raises UserError when it is another sweep's."""
        assert self.config is not None
        config, runs = self.config, Path(self.config.runs)
        resume = os.environ.get("TRIPTYCH_RESUME") or config.resume
        record = self._record(chosen, varied)
        if resume not in (None, "auto"):
            found = SweepFolder(Path(resume).expanduser())
            if found.path.resolve().parent != (runs / "sweeps").resolve():
                raise UserError(f"resume={resume} is no sweep under {runs / 'sweeps'}")
            found.read()
            found = SweepFolder(runs / "sweeps" / found.path.resolve().name)
        else:
            named = runs / "sweeps" / (chosen.study or new_id())
            found = (self._unfinished(runs, record) if resume == "auto" and chosen.study is None else None) or (
                SweepFolder(named)
            )
        existed = (found.path / "sweep.json").exists()
        stored = found.start({"id": found.id, **record})
        name = f"sweep.study={chosen.study}" if chosen.study else f"resume={found.path}"
        for part in ("task", "space", "command", "metric", "mode"):
            if stored[part] != record[part]:
                what = {"command": "with other settings"}.get(part, f"of another {part}")
                raise UserError(
                    f"{name} exists and is a sweep {what} ({_short(stored[part])}, now {_short(record[part])}); "
                    "give it the same, or take another name with sweep.study="
                )
        if existed:
            with found.editing() as stored:
                stored["settings"] = record["settings"]
        counted = sum(trial["status"] in OVER for trial in stored["trials"])
        results.console.print(
            f"sweep {found.path}" + (f": going on, {counted} trials are over" if existed else ""), soft_wrap=True
        )
        return found

    def _record(self, chosen: Settings, varied: Space) -> Record:
        assert self.config is not None
        config = self.config
        kept = {"sampler": chosen.sampler, "pruner": chosen.pruner, "startup": chosen.startup, "trials": chosen.trials}
        steps = config.trainer.max_steps
        return {
            "task": config.task.name,
            "metric": chosen.metric,
            "mode": chosen.mode,
            "space": varied.to_json(),
            "command": [word for word in varied.fixed if not word.startswith(NOT_COMPARED)],
            "settings": {**kept, "max_steps": steps, "first_validation": max(1, steps // config.validations)},
            "trials": [],
        }

    def _unfinished(self, runs: Path, record: Record) -> SweepFolder | None:
        """For ``resume=auto``: the newest sweep like this one that has something left, and no process that does it."""
        for found in all_sweeps(runs):
            stored = found.read()
            same = all(stored[part] == record[part] for part in ("task", "space", "command", "metric", "mode"))
            left = any(trial["status"] not in OVER for trial in stored["trials"]) or "best" not in stored
            if same and left and not any(found.alive(trial["worker"]) for trial in stored["trials"]):
                return found
        return None

    # ---- the trials ----

    def _work(self, at: SweepFolder, plan: Plan, worker: str, varied: Space, chosen: Settings) -> bool:
        """Claim trials and run them until there are none; True when one was stopped."""
        at_once = self._at_once(chosen, plan)
        while True:
            batch: list[dict[str, Any]] = []
            while len(batch) < at_once and (trial := claim(at, plan, worker)) is not None:
                batch.append(trial)
            if not batch:
                return False
            ended = self._launch(at, batch, varied)
            for trial in batch:
                results.progress(at, trial["number"], plan.total)
            if "interrupted" in ended:
                return True

    def _launch(self, at: SweepFolder, batch: list[dict[str, Any]], varied: Space) -> list[str]:
        """Hand trials to the launcher; returns how they ended. One whose process died is noted as failed."""
        numbers = [trial["number"] for trial in batch]
        words = [
            [*varied.fixed, *trial["overrides"], f"trial={{sweep:{_quoted(at.id)},number:{trial['number']}}}"]
            for trial in batch
        ]
        why = None
        try:
            if self.launcher is None:
                self.launcher = Plugins.instance().instantiate_launcher(
                    hydra_context=self.hydra_context,  # type: ignore[arg-type]
                    task_function=RunTrial(self.task_function),
                    config=self.config,  # type: ignore[arg-type]
                )
            returned = self.launcher.launch(words, initial_job_idx=numbers[0])
            errors = [job._return_value for job in returned if not isinstance(job._return_value, Outcome)]
            why = errors[0] if errors else None
        except Exception as error:
            why = error
        with at.editing() as record:
            trials = [of_number(record, number) for number in numbers]
            said = "" if why is None else " ".join(f"{type(why).__name__}: {why}".split())[:300]
            if why is not None and all(trial["steps"] is None for trial in record["trials"]):
                for trial in trials:
                    trial["status"] = "interrupted"
                failure: UserError | None = UserError(f"hydra/launcher: no trial could be started ({said})")
            else:
                failure = None
                for trial in trials:
                    if trial["status"] == "running":
                        trial.update(status="failed", why=f"its process ended without a word ({said})")
        if failure is not None:
            raise failure from why
        return [trial["status"] for trial in trials]

    def _at_once(self, chosen: Settings, plan: Plan) -> int:
        """How many trials to hand over together: a launcher that runs several at a time wants them so."""
        assert self.config is not None
        if given := chosen.at_once or self.max_batch_size:
            return given
        launcher = self.config.hydra.launcher
        if launcher._target_.endswith("BasicLauncher"):
            return 1
        jobs = launcher.get("n_jobs")
        if jobs is None and "joblib" in launcher:
            jobs = launcher.joblib.get("n_jobs")
        if chosen.sampler is None:
            return plan.total
        return jobs if isinstance(jobs, int) and jobs > 0 else min(os.cpu_count() or 1, plan.total)


def _has(words: Sequence[str], name: str) -> bool:
    return any(word.startswith(f"{name}=") for word in words)


def _quoted(text: str) -> str:
    return f"'{text}'"  # an id has no quotes in it


def _short(value: Any) -> str:
    if isinstance(value, dict):
        value = ", ".join(f"{name}={text}" for name, text in value.items())
    return " ".join(value) if isinstance(value, list) else str(value)
