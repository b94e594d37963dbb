"""The composition root: a configuration becomes a trained model in a run folder."""

import logging
import os
import shlex
import time
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from triptych import hardware
from triptych.commands.assembly import Assembly, assemble, learner
from triptych.config import build, validate
from triptych.config.containers import to_dict
from triptych.distributed import launch
from triptych.distributed.launch import ProcessGroup
from triptych.environment import silence_lightning
from triptych.errors import Requeued
from triptych.inference.loading import weights
from triptych.inference.measuring import measure
from triptych.loggers import publish
from triptych.maps.capture import backends
from triptych.maps.taking import check_choice
from triptych.models.blocks import parameter_count
from triptych.report import run_page
from triptych.runs import folder
from triptych.runs.folder import RunFolder
from triptych.runs.resume import Resumed, named, newest
from triptych.sweeps.pruning import Pruned, Trial, trial_of
from triptych.tasks.base import Task
from triptych.training.checkpoints import Interrupted

console = Console(highlight=False, markup=False)


def train(config: DictConfig) -> RunFolder:
    """Train as configured, test the best checkpoint, and leave a run folder (see README, "A run's folder")."""
    silence_lightning()
    trial = trial_of(config)
    task_class = build.check(config)
    validate.check(config.sample, task_class.sample, "sample")
    _absolute_paths(config)
    config.trainer.precision = hardware.full_name(config.trainer.precision)
    with launch.world(build.processes(config), **build.rendezvous(config), entry="triptych.commands.rank") as world:
        return join(world) if world.rank else _prepare(config, task_class, world, trial)


def join(world: ProcessGroup) -> RunFolder:
    """Train in the run that rank 0 of ``world`` has prepared, and leave every file to it."""
    silence_lightning()
    run = RunFolder(world.share(None))
    config = run.config()
    data = build.build_data(config)
    data.restore(run.path)
    data.open()
    if run.checkpoint:
        step = folder.checkpoint_contents(run.checkpoint)["global_step"]
        data.start = step * config.trainer.accumulate_grad_batches
    task, plan = learner(config, data, None)
    parts = assemble(config, plan, data, task, run, world, Console(quiet=True, markup=False), None, None)
    world.connect(plan.device)
    try:
        parts.fit(task, data, run)
    except Interrupted as error:
        raise SystemExit(130) from error
    world.disconnect()
    return run


def _prepare(config: DictConfig, task_class: type[Task], world: ProcessGroup, trial: Trial | None) -> RunFolder:
    resumed = named(config, task_class.name)
    run = resumed.folder if resumed else None
    try:
        data = build.build_data(config)
        if run:
            data.restore(run.path)
        data.open()
        console.print(data.describe(), soft_wrap=True)
        if config.resume == "auto":
            resumed = newest(config, task_class.name, data.fingerprint)
            run = resumed.folder if resumed else None
            if run and not data.reads_as(run.path):  # an earlier version made another vocabulary of the same data
                data.restore(run.path)
                data.open()
            console.print(
                f"resume=auto: going on with {run.path} at step {resumed.step}"
                if run and resumed
                else "resume=auto: no unfinished run of this configuration and data; starting a new one",
                soft_wrap=True,
            )
        if resumed:
            resumed.check_data(data.fingerprint)
            data.start = resumed.step * config.trainer.accumulate_grad_batches
        config.resume = None  # what is stored composes again to a run of its own

        task, plan = learner(config, data, resumed.config if resumed else None)
        # Whatever these refuse, they refuse while there is no folder yet.
        task.configure_optimizers()
        task.check_sample(**to_dict(config.sample))
        check_choice(task.model, to_dict(config.maps))
        run = run or folder.create(Path(config.runs), task_class.name)
        return _fit(config, plan, data, task, run, resumed, world, trial)
    finally:
        if run:
            run.release()


def _fit(
    config: DictConfig,
    plan: build.Plan,
    data: Any,
    task: Task,
    run: RunFolder,
    resumed: Resumed | None,
    world: ProcessGroup,
    trial: Trial | None,
) -> RunFolder:
    summary = _first_summary(config, data, task, resumed)
    before, started = summary["fit_seconds"], time.perf_counter()
    parts: Assembly | None = None
    try:  # from the first write on, however this ends, the run's status says so
        run.write_config(config)
        data.save(run.path)
        run.write_summary(summary)
        parts = assemble(config, plan, data, task, run, world, console, resumed.step if resumed else None, trial)
        for logger in parts.loggers:
            logger.log_hyperparams(_hyperparameters(config))
        console.print(
            f"{parameter_count(task.model):,} parameters on {plan.device.type}"
            f"{f' in {world.size} processes' if world.size > 1 else ''}, {config.trainer.precision}"
            f"{', compiled' if config.compile else ''}; attention {backends(task.model)}; run {run.path}",
            soft_wrap=True,
        )
        started = time.perf_counter()
        world.share(run.path)
        world.connect(plan.device)
        parts.fit(task, data, run)
        summary.update(_costs(before, task, parts, started))
        world.disconnect()  # what follows is measured as `make evaluate` measures it, by one process
        data.rank, data.processes = 0, 1
        if build.sharded(config):  # a whole model again
            task = build.build_task(config, build.build_model(config, data.sizes), compiled=False)
        task.model.load_state_dict(weights(run.path / folder.BEST))
        summary["metrics"], summary["notes"] = measure(config, task, data, parts.analyses)
        # What a callback logged and the run watched is not measured again: it stands as it was for these weights.
        summary["metrics"].setdefault(config.watch.metric, parts.checkpoints.best_score)
        summary["best_step"] = parts.checkpoints.best_step
        if task.answers:
            run.write_answers(task.answers)
        parts.analyses.conclude(task, data, parts.loggers, parts.checkpoints.best_step or 0)
        _conclude(summary, parts.loggers, run)
    except BaseException as error:
        asked = isinstance(error, Interrupted | KeyboardInterrupt | SystemExit)
        pruned = isinstance(error, Pruned)
        summary["status"] = "interrupted" if asked else "pruned" if pruned else "failed"
        if pruned and parts is not None:  # the sweep gave it up: what it had reached stands, without a test
            summary["metrics"] = {config.watch.metric: parts.checkpoints.best_score}
            summary["notes"], summary["best_step"] = {"pruned": str(error)}, parts.checkpoints.best_step
        if parts is not None:
            summary.update(_costs(before, task, parts, started))
        _try(run.write_summary, summary)
        _try(run_page.write, run.path)
        if parts is not None:
            _try(publish.close, parts.loggers, pruned)
        if isinstance(error, Requeued):
            raise
        if asked and trial is not None:  # the sweep says how to go on
            raise SystemExit(130) from error
        if asked:
            why = str(error) if isinstance(error, Interrupted) else "stopped"
            console.print(f"{why}; to go on: {_resume_command(config, run)}", soft_wrap=True)
            raise SystemExit(130) from error
        raise
    _show_results(config, summary, parts.samples, run)
    return run


def _conclude(summary: dict[str, Any], loggers: list[Any], run: RunFolder) -> None:
    """The final numbers, to every dashboard, and the page that shows them."""
    step = summary["steps"]
    tested = {name: number for name, number in summary["metrics"].items() if name.startswith("test/")}
    for logger in loggers:
        logger.log_metrics(tested, step)
        logger.save()
    summary["status"] = "finished"
    run.write_summary(summary)
    publish.page(loggers, "report", run_page.write(run.path), step)
    publish.close(loggers, True)


def _first_summary(config: DictConfig, data: Any, task: Task, resumed: Resumed | None) -> dict[str, Any]:
    return {
        "task": task.name,
        "status": "running",
        "data": {
            "source": config.data.path or config.data.source,
            "fingerprint": data.fingerprint,
            "read": data.report.to_json(),
        },
        "seed": config.seed,
        "versions": folder.versions(),
        "parameters": parameter_count(task.model),
        "steps": resumed.step if resumed else 0,
        "seen": {"value": 0, "unit": data.unit},
        "fit_seconds": resumed.seconds if resumed else 0.0,
        "seen_per_second": None,
        "metrics": {},
        "notes": {},
        "maps": {"capture_error": None},
        "paths": {
            "config": folder.CONFIG,
            "best": folder.BEST,
            "last": folder.LAST,
            "metrics": "metrics.csv",
            "maps": "maps",
            "report": "report.html",
        },
    }


def _costs(before: float, task: Task, parts: Assembly, started: float) -> dict[str, Any]:
    """How far the run came, and what it took; ``before`` are the seconds it took before it was resumed."""
    speed = parts.live.seen_per_second
    return {
        "steps": parts.trainer.global_step,
        "seen": {"value": task.seen, "unit": parts.live.unit},
        "fit_seconds": round(before + time.perf_counter() - started, 2),
        "seen_per_second": None if speed is None else round(speed, 1),
        "maps": {"capture_error": parts.capture_error, "seconds": round(parts.map_seconds, 2)},
    }


def _show_results(config: DictConfig, summary: dict[str, Any], samples: list[dict[str, Any]], run: RunFolder) -> None:
    table = Table(show_header=False)
    seen, speed = summary["seen"], summary["seen_per_second"]
    for name, number in summary["metrics"].items():
        table.add_row(name, f"{number:.4f}")
    table.add_row("best at step", f"{summary['best_step']:,} of {summary['steps']:,}")
    table.add_row(f"{seen['unit']} seen", f"{seen['value']:,}" + (f" ({speed:,.0f}/s)" if speed else ""))
    table.add_row("fit", f"{summary['fit_seconds']:.0f} s, of which maps {summary['maps']['seconds']:.1f} s")
    if summary["maps"]["capture_error"] is not None:
        table.add_row("capture error", f"{summary['maps']['capture_error']:.1e}")
    console.print(table)
    for name, note in summary["notes"].items():
        console.print(f"{name}: {note}", soft_wrap=True)
    if samples:
        shown = Text(samples[-1]["prompt"], style="dim") + Text(samples[-1]["text"])
        console.print(Panel(shown, title=f"a sample at step {samples[-1]['step']:,}", title_align="left"))
    name = run.path
    console.print(f"maps and curves   {name}/report.html\ndashboard         make dashboard", soft_wrap=True)
    console.print(f'use it            make predict run={name} input="..."', soft_wrap=True)


def _resume_command(config: DictConfig, run: RunFolder) -> str:
    """What to type; the options of this command line again, so that the configurations agree."""
    words = [f"make train task={config.task.name}"]
    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    again = [word for word in given if not word.startswith(("task=", "resume="))]
    if again:
        words.append(f"args={shlex.quote(shlex.join(again))}")
    if path := os.environ.get("TRIPTYCH_DATA_PATH"):
        words.append(f"path={shlex.quote(path)}")
    return " ".join([*words, f"resume={shlex.quote(str(run.path))}"])


def _hyperparameters(config: DictConfig) -> dict[str, Any]:
    contents = to_dict(config)
    return {key: contents[key] for key in ("task", "data", "model", "attention", "optimizer", "scheduler", "seed")}


def _absolute_paths(config: DictConfig) -> None:
    """A run's configuration means the same from any working directory."""
    if config.data.path is not None:
        config.data.path = folder.literal_text(str(Path(config.data.path).expanduser().absolute()))


def _try(function: Any, *args: Any) -> None:
    """Do what can still be done after a failure; the failure itself is what the user hears of."""
    try:
        function(*args)
    except Exception as error:
        logging.getLogger(__name__).warning("after that, %s failed too: %s", function.__name__, error)
