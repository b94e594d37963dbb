"""The composition root: train, evaluate, predict, and load what was trained. The only module that may import all."""

import inspect
import logging
import os
import shlex
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.callbacks import EarlyStopping
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from torch import nn

from triptych import build, folder, options
from triptych.attention import set_backend
from triptych.dashboards import publish, report
from triptych.dashboards.live import Live
from triptych.dashboards.metrics_file import MetricsFile
from triptych.dashboards.samples import Samples
from triptych.dashboards.tables import Tables
from triptych.errors import UserError
from triptych.folder import RunFolder
from triptych.maps import render
from triptych.maps.callback import MapsCallback, check_choice, overview, sheet, take_maps
from triptych.models.blocks import parameter_count
from triptych.resume import Resumed, named, newest
from triptych.tasks.averaging import Averaged
from triptych.tasks.base import Task
from triptych.tasks.checkpoints import Checkpoints, Interrupted, WholeFiles

console = Console(highlight=False)
NOT_FOR_THE_TASK = ("run", "checkpoint", "attention", "input", "maps", "output")  # options of predict that are ours


def train(config: DictConfig) -> RunFolder:
    """Train as configured, test the best checkpoint, and leave a run folder (see README, "A run's folder")."""
    _quiet()
    task_class = build.check(config)
    options.check(config.maps, MapsCallback.__init__, "maps")
    options.check(config.sample, task_class.sample, "sample")
    _absolute_paths(config)
    resumed = named(config, task_class.name)
    run = resumed.folder if resumed else None
    try:
        data = build.build_data(config)
        data.open()
        console.print(data.describe())
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
        positions = config.data.batch_size * getattr(model, "context", 1)
        compiled = build.settle_compile(config, model, positions, plan)
        task = build.build_task(config, model, compiled=compiled)
        # Whatever these refuse, they refuse while there is no folder yet.
        task.configure_optimizers()
        task.check_sample(**_plain(config.sample))
        check_choice(model, _plain(config.maps))
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
        folder=run.path / "maps", fingerprint=data.fingerprint, resumed_at=resumed_at, **_plain(config.maps)
    )
    samples = Samples(
        path=run.path / "samples.jsonl",
        every_n_steps=config.maps.every_n_steps,
        resumed_at=resumed_at,
        options=_plain(config.sample),
    )
    tables = Tables(folder=run.path)
    callbacks: list[pl.Callback] = [live, maps, samples, tables, checkpoints]
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
        f"{', compiled' if config.compile else ''}; attention {config.attention.backend}; run {run.path}"
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
        summary["metrics"] = measure(config, task, data)
        summary["best_step"] = checkpoints.best_step
        tables.publish(task, data, loggers, "test", checkpoints.best_step or 0)
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


def evaluate(config: DictConfig) -> dict[str, float]:
    """Measure a checkpoint of a run again, on validation and test, and compare with what the run said."""
    _quiet()
    trained = load(config.run or "", checkpoint=config.checkpoint)
    if config.data.path is not None:  # the data have moved
        trained.data.path = config.data.path
    trained.data.open()
    summary = trained.folder.summary()
    known = summary.get("data", {}).get("fingerprint")
    if known != trained.data.fingerprint:
        raise UserError(
            f"the data are not those the run was trained on (fingerprint {trained.data.fingerprint[:12]}, then "
            f"{str(known)[:12]}): point path= at the same data"
        )
    measured = measure(trained.config, trained.task, trained.data)
    table = Table(title=f"{trained.folder.path.name}, {config.checkpoint}.ckpt")
    for column in ("metric", "now", "in the run", "difference"):
        table.add_column(column, justify="left" if column == "metric" else "right")
    for name, number in measured.items():
        before = summary.get("metrics", {}).get(name)
        then = ("", "") if before is None else (f"{before:.6f}", f"{number - before:+.1e}")
        table.add_row(name, f"{number:.6f}", *then)
    console.print(table)
    return measured


def predict(config: DictConfig) -> None:
    """Answer ``input`` with a trained model, streaming to standard output."""
    _quiet()
    trained = load(config.run or "", checkpoint=config.checkpoint)
    set_backend(trained.model, config.attention)
    if config.input is None or config.input == "":
        raise UserError('input= is empty: give what the model is to answer, e.g. make predict run=... input="The "')
    chosen = _for_the_task(config, trained.task)
    given = str(config.input)
    sys.stdout.write(trained.task.echo(trained.data, given))
    for piece in trained.task.respond(trained.data, given, **chosen):
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
    if config.maps.draw:
        _draw_maps(trained, given, Path(config.output or trained.folder.path / "predictions"), config.checkpoint)


def _for_the_task(config: DictConfig, task: Task) -> dict[str, Any]:
    """The options of predict that this task takes. Raises UserError for one that was given and is not among them."""
    takes = inspect.signature(task.respond).parameters
    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    for word in given:
        name = word.partition("=")[0].lstrip("+~").partition(".")[0]
        if name in config and name not in (*takes, *NOT_FOR_THE_TASK):
            known = ", ".join(name for name in takes if name not in ("data", "given"))
            raise UserError(f"{name}= says nothing to task={task.name}; it takes: {known}")
    chosen = {key: option for key, option in _plain(config).items() if key in takes}
    options.check(OmegaConf.create(chosen), task.respond, "")
    return chosen


def _draw_maps(trained: "Trained", given: str, into: Path, checkpoint: str) -> None:
    """Pictures of every layer's maps for what a person gave, one set per example, and where they are."""
    fingerprint = str(trained.folder.summary().get("data", {}).get("fingerprint", ""))
    step = folder.checkpoint_contents(trained.folder.path / "checkpoints" / f"{checkpoint}.ckpt")["global_step"]
    names: set[str] = set()
    for probe in trained.task.inputs(trained.data, given):
        records = take_maps(
            trained.task,
            probe,
            layers=None,
            heads=None,
            scores=False,
            step=step,
            checkpoint=f"{checkpoint}.ckpt",
            fingerprint=fingerprint,
        )
        name = stem = Path(probe.example).stem
        while name in names:  # a.png and a.jpg, or a.png of two folders
            name = f"{stem}-{len(names)}"
        names.add(name)
        render.write_png(overview(records), into / f"{name}.png")
        for record in records:
            render.write_png(sheet(record), into / f"{name}-layer-{record.layer}.png")
    console.print(f"maps              {into}", soft_wrap=True)


def rebuild_report(config: DictConfig) -> None:
    """Write a run's ``report.html`` again, from its folder alone."""
    console.print(str(report.write(folder.existing(config.run or "", "run").path)))


@dataclass(frozen=True)
class Trained:
    """A trained model and what is needed to use it."""

    model: nn.Module
    task: Task
    data: Any
    config: DictConfig
    folder: RunFolder

    @property
    def tokenizer(self) -> Any:
        """Text to ids and back, for models of text."""
        return self.data.tokenizer


def load(run: str | Path, *, checkpoint: str = "best") -> Trained:
    """The model of a run folder, in eval mode on the CPU, with its tokenizer.

    checkpoint: "best" or "last". Raises UserError when the folder or the checkpoint is none, or damaged.
    """
    found = folder.existing(run, "run")
    config = found.config()
    path = found.path / "checkpoints" / f"{checkpoint}.ckpt"
    if not path.exists():
        raise UserError(f"checkpoint={checkpoint}: {path} does not exist; use best or last, of a run that got that far")
    data = build.build_data(config)
    data.restore(found.path)
    model = build.build_model(config, data.sizes)
    model.load_state_dict(weights(path))
    task = build.build_task(config, model, compiled=False)
    return Trained(model=model.eval(), task=task.eval(), data=data, config=config, folder=found)


def weights(path: Path) -> dict[str, torch.Tensor]:
    """The model's parameters in a checkpoint. Raises UserError when the file is damaged."""
    state = folder.checkpoint_contents(path)["state_dict"]
    return {name.removeprefix("model."): tensor for name, tensor in state.items() if name.startswith("model.")}


def measure(config: DictConfig, task: Task, data: Any) -> dict[str, float]:
    """Every metric over the whole validation and test splits, with the weights that ``task`` holds now."""
    trainer = build.build_trainer(config, None, logger=False, callbacks=[], enable_checkpointing=False, max_epochs=-1)
    found: dict[str, float] = {}
    for run in (trainer.validate, trainer.test):
        found.update(run(task, datamodule=data, verbose=False)[0])
    return {name: float(number) for name, number in found.items() if "/" in name}


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
    plain = _plain(config)
    return {key: plain[key] for key in ("task", "data", "model", "attention", "optimizer", "scheduler", "seed")}


def _plain(config: DictConfig) -> dict[str, Any]:
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): item for key, item in plain.items()}


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


def _quiet() -> None:
    """Lightning's advice for other programs is not for our users."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning.*")
    warnings.filterwarnings("ignore", module="lightning_fabric.*")
    warnings.filterwarnings("ignore", category=FutureWarning)
