"""The composition root: a configuration becomes a trained model in a run folder."""

import logging
import os
import shlex
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from pytorch_lightning.callbacks import EarlyStopping
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from triptych import build, folder, options
from triptych.dashboards import publish, report
from triptych.dashboards.live import Live
from triptych.dashboards.metrics_file import MetricsFile
from triptych.dashboards.samples import Samples
from triptych.dashboards.tables import Tables
from triptych.explain.beside import beside
from triptych.folder import RunFolder
from triptych.maps.callback import MapsCallback, check_choice
from triptych.models.blocks import parameter_count
from triptych.resume import Resumed, named, newest
from triptych.tasks.averaging import Averaged
from triptych.tasks.base import Task
from triptych.tasks.checkpoints import Checkpoints, Interrupted, WholeFiles
from triptych.trained import measure, plain, quiet, weights

console = Console(highlight=False)


def train(config: DictConfig) -> RunFolder:
    """Train as configured, test the best checkpoint, and leave a run folder (see README, "A run's folder")."""
    quiet()
    task_class = build.check(config)
    options.check(config.maps, MapsCallback.__init__, "maps")
    options.check(config.sample, task_class.sample, "sample")
    _absolute_paths(config)
    resumed = named(config, task_class.name)
    run = resumed.folder if resumed else None
    try:
        data = build.build_data(config)
        data.open()
        console.print(data.describe(), soft_wrap=True)
        if config.resume == "auto":
            resumed = newest(config, task_class.name, data.fingerprint)
            run = resumed.folder if resumed else None
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

        plan = build.settle(config, resumed.config if resumed else None)
        pl.seed_everything(config.seed, verbose=False)
        model = build.build_model(config, data.sizes)
        build.check_attention(model, plan, config.trainer.precision, training=True)
        positions = data.positions_per_batch(getattr(model, "context", 1))
        compiled = build.settle_compile(config, model, positions, plan)
        task = build.build_task(config, model, compiled=compiled)
        # Whatever these refuse, they refuse while there is no folder yet.
        task.configure_optimizers()
        task.check_sample(**plain(config.sample))
        check_choice(model, plain(config.maps))
        run = run or folder.create(Path(config.runs), task_class.name)
        return _fit(config, plan, data, task, run, resumed)
    finally:
        if run:
            run.release()


def _fit(
    config: DictConfig, plan: build.Plan, data: Any, task: Task, run: RunFolder, resumed: Resumed | None
) -> RunFolder:
    resumed_at = resumed.step if resumed else None
    run.write_config(config)
    data.save(run.path)
    summary = _first_summary(config, data, task, resumed)
    run.write_summary(summary)

    live = Live(unit=data.unit, console=console, log_every=config.trainer.log_every_n_steps)
    checkpoints = Checkpoints(
        folder=run.path / "checkpoints",
        metric=config.watch.metric,
        mode=config.watch.mode,
        every_n_steps=config.checkpoint_every,
        look_every=config.trainer.log_every_n_steps,
    )
    maps = MapsCallback(
        folder=run.path / "maps", fingerprint=data.fingerprint, resumed_at=resumed_at, **plain(config.maps)
    )
    samples = Samples(
        path=run.path / "samples.jsonl",
        every_n_steps=config.maps.every_n_steps,
        resumed_at=resumed_at,
        options=plain(config.sample),
    )
    tables = Tables(folder=run.path)
    measuring = beside(task.name, run.path)
    callbacks: list[Any] = [live, maps, samples, tables, *([measuring] if measuring else []), checkpoints]
    if config.ema is not None:
        callbacks.insert(0, Averaged(decay=config.ema))
    if config.early_stopping is not None:
        callbacks.insert(0, EarlyStopping(config.watch.metric, mode=config.watch.mode, patience=config.early_stopping))
    metrics_file = MetricsFile(path=run.path / "metrics.csv", resumed_at=resumed_at)
    loggers = [metrics_file, *build.loggers(config, run.path, resumed_at=resumed_at)]
    trainer = build.build_trainer(
        config,
        run.path,
        callbacks=callbacks,
        logger=loggers,
        plugins=[WholeFiles()],
        max_epochs=-1,
        check_val_every_n_epoch=None,
        val_check_interval=plan.validation_every,
    )
    for logger in loggers:
        logger.log_hyperparams(_hyperparameters(config))
    console.print(
        f"{parameter_count(task.model):,} parameters on {plan.device.type}, {config.trainer.precision}"
        f"{', compiled' if config.compile else ''}; attention {config.attention.backend}; run {run.path}",
        soft_wrap=True,
    )

    before, started = summary["fit_seconds"], time.perf_counter()
    try:
        trainer.fit(
            task,
            datamodule=data,
            ckpt_path=str(run.checkpoint) if run.checkpoint else None,
            weights_only=True,
        )
        if checkpoints.measured_at != trainer.global_step:
            _validate_last(trainer, task, data, checkpoints)
        summary.update(_costs(before, task, trainer, live, maps, started))
        task.model.load_state_dict(weights(run.path / folder.BEST))
        summary["metrics"], summary["notes"] = measure(config, task, data, measuring)
        summary["best_step"] = checkpoints.best_step
        if task.answers:
            run.write_answers(task.answers)
        tables.publish(task, data, loggers, "test", checkpoints.best_step or 0)
        if measuring:
            measuring.conclude(task, data, loggers, trainer.global_step)
        _conclude(summary, loggers, run)
    except BaseException as error:
        asked = isinstance(error, Interrupted | KeyboardInterrupt | SystemExit)
        summary["status"] = "interrupted" if asked else "failed"
        summary.update(_costs(before, task, trainer, live, maps, started))
        _try(run.write_summary, summary)
        _try(report.write, run.path)
        _try(publish.close, loggers, False)
        if asked:
            why = str(error) if isinstance(error, Interrupted) else "stopped"
            console.print(f"{why}; to go on: {_resume_command(config, run)}", soft_wrap=True)
            raise SystemExit(130) from error
        raise
    _show_results(config, summary, samples.rows, run)
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
    publish.page(loggers, "report", report.write(run.path), step)
    publish.close(loggers, True)


def _validate_last(trainer: pl.Trainer, task: Task, data: Any, checkpoints: Checkpoints) -> None:
    """The last updates, when they are no whole interval between validations, count for the best checkpoint too."""
    trainer.validate(task, datamodule=data, verbose=False)
    checkpoints.consider(trainer)


def _first_summary(config: DictConfig, data: Any, task: Task, resumed: Resumed | None) -> dict[str, Any]:
    return {
        "task": task.name,
        "status": "running",
        "data": {"source": config.data.path or config.data.source, "fingerprint": data.fingerprint},
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


def _costs(
    before: float, task: Task, trainer: pl.Trainer, live: Live, maps: MapsCallback, started: float
) -> dict[str, Any]:
    """How far the run came, and what it took; ``before`` are the seconds it took before it was resumed."""
    speed = live.seen_per_second
    return {
        "steps": trainer.global_step,
        "seen": {"value": task.seen, "unit": live.unit},
        "fit_seconds": round(before + time.perf_counter() - started, 2),
        "seen_per_second": None if speed is None else round(speed, 1),
        "maps": {"capture_error": maps.capture_error, "seconds": round(maps.seconds, 2)},
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
    contents = plain(config)
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
