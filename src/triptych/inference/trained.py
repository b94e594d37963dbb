"""A trained model put to use: load it, measure it again, let it answer, draw what it attends to."""

import inspect
import json
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

from triptych import hardware
from triptych.attention import set_backend
from triptych.callbacks.analysis import Beside, beside
from triptych.callbacks.maps import overview, sheet, take_maps
from triptych.config import build, validate
from triptych.data.batches import Probe
from triptych.errors import UserError
from triptych.maps.capture import sites
from triptych.maps.record import MapRecord, save
from triptych.pictures import render
from triptych.report import run_page
from triptych.runs import folder
from triptych.runs.folder import RunFolder
from triptych.tasks.base import Task

console = Console(highlight=False)
NOT_FOR_THE_TASK = ("run", "checkpoint", "attention", "input", "maps", "output")  # options of predict that are ours


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


def measure(config: DictConfig, task: Task, data: Any, more: Beside | None) -> tuple[dict[str, float], dict[str, str]]:
    """Every metric over the whole validation and test splits, with the weights that ``task`` holds now; and notes."""
    alone, notes = build.alone(config), {}
    if alone.trainer.precision == "16-mixed" and hardware.accelerator().type == "cpu":
        alone.trainer.precision = "32-true"  # Lightning would take bf16-mixed, without a word
        notes["precision"] = "measured in 32-true, since the run's 16-mixed needs a GPU"
    trainer = build.build_trainer(alone, None, logger=False, callbacks=[], enable_checkpointing=False, max_epochs=-1)
    found: dict[str, float] = {}
    for run in (trainer.validate, trainer.test):
        found.update(run(task, datamodule=data, verbose=False)[0])
    notes.update(task.notes)
    if more is not None:
        figures, said = more.measure(task.eval(), data)
        found.update(figures)
        notes.update(said)
    return {name: float(number) for name, number in found.items() if "/" in name}, notes


def evaluate(config: DictConfig) -> dict[str, float]:
    """Measure a checkpoint of a run again, on validation and test, and compare with what the run said."""
    quiet()
    trained = load(config.run or "", checkpoint=config.checkpoint)
    if config.data.path is not None:  # the data have moved
        trained.data.path = config.data.path
    trained.data.open()
    console.print(trained.data.describe(), soft_wrap=True)
    summary = trained.folder.summary()
    known = summary.get("data", {}).get("fingerprint")
    if known != trained.data.fingerprint:
        raise UserError(
            f"the data are not those the run was trained on (fingerprint {trained.data.fingerprint[:12]}, then "
            f"{str(known)[:12]}): point path= at the same data"
        )
    measured, notes = measure(
        trained.config, trained.task, trained.data, beside(trained.task.name, trained.folder.path)
    )
    table = Table(title=f"{trained.folder.path.name}, {config.checkpoint}.ckpt")
    for column in ("metric", "now", "in the run", "difference"):
        table.add_column(column, justify="left" if column == "metric" else "right")
    for name, number in measured.items():
        before = summary.get("metrics", {}).get(name)
        then = ("", "") if before is None else (f"{before:.6f}", f"{number - before:+.1e}")
        table.add_row(name, f"{number:.6f}", *then)
    console.print(table)
    for name, note in notes.items():
        console.print(f"{name}: {note}", soft_wrap=True)
    return measured


def predict(config: DictConfig) -> None:
    """Answer ``input`` with a trained model, streaming to standard output, or whole into the file ``output``."""
    quiet()
    trained = load(config.run or "", checkpoint=config.checkpoint)
    if config.attention is not None:
        set_backend(trained.model, config.attention)
    if config.input is None or config.input == "":
        raise UserError('input= is empty: give what the model is to answer, e.g. make predict run=... input="The "')
    drawn, given = config.maps.draw, str(config.input)
    chosen = _for_the_task(config, trained.task.respond, trained.task)
    looked_at = _for_the_task(config, trained.task.inputs, trained.task)
    pieces = _counted(trained.task, given, trained.task.respond(trained.data, given, **chosen))
    if config.output is not None and not drawn:
        _write_answer(Path(config.output).expanduser(), [trained.task.echo(trained.data, given), *pieces])
        return
    sys.stdout.write(trained.task.echo(trained.data, given))
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
    if drawn:
        if not sites(trained.model):
            raise UserError("maps=true: this model has no attention to draw")
        into = Path(config.output or trained.folder.path / "predictions")
        draw_maps(trained, trained.task.inputs(trained.data, given, **looked_at), into, config.checkpoint)
        console.print(f"maps              {into}\npage              {report.write(into)}", soft_wrap=True)


def _counted(task: Task, given: str, pieces: Iterable[str]) -> Iterable[str]:
    """The pieces, with a progress bar where there are many of them and a terminal does not show them itself."""
    total = task.pieces(given)
    if total is None or total < 2 or sys.stdout.isatty():
        return pieces
    return track(pieces, description="answering", total=total, console=Console(stderr=True), transient=True)


def _write_answer(path: Path, pieces: Iterable[str]) -> None:
    """The whole answer as a file, or no file at all."""
    if path.is_dir():
        raise UserError(f"output={path} is a folder: give the name of a file for the answer")
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8") as file:
            file.writelines(pieces)
            file.write("\n")
        partial.replace(path)
    except OSError as error:
        raise UserError(f"output={path} could not be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    console.print(str(path), soft_wrap=True)


def _for_the_task(config: DictConfig, function: Callable[..., Any], task: Task) -> dict[str, Any]:
    """The options of predict that ``function`` takes. Raises UserError for one that the task takes nowhere."""
    takes = {**inspect.signature(task.respond).parameters, **inspect.signature(task.inputs).parameters}
    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    for word in given:
        name = word.partition("=")[0].lstrip("+~").partition(".")[0]
        if name in config and name not in (*takes, *NOT_FOR_THE_TASK):
            known = ", ".join(name for name in takes if name not in ("data", "given"))
            raise UserError(f"{name}= says nothing to task={task.name}; it takes: {known}")
    chosen = {key: option for key, option in plain(config).items() if key in inspect.signature(function).parameters}
    validate.check(OmegaConf.create(chosen), function, "")
    return chosen


def draw_maps(trained: Trained, probes: list[Probe], into: Path, checkpoint: str) -> int:
    """Records and pictures of every layer's maps, one set per example: a folder that ``report.write`` makes a page of.

    Returns the checkpoint's step.
    """
    summary = trained.folder.summary()
    step = folder.checkpoint_contents(trained.folder.path / "checkpoints" / f"{checkpoint}.ckpt")["global_step"]
    more = beside(trained.task.name, trained.folder.path)
    names: set[str] = set()
    every: list[MapRecord] = []
    for probe in probes:
        records = take_maps(
            trained.task,
            probe,
            layers=None,
            heads=None,
            scores=False,
            step=step,
            checkpoint=f"{checkpoint}.ckpt",
            fingerprint=str(summary.get("data", {}).get("fingerprint", "")),
        )
        every += records
        name = stem = file_name(probe.example)
        while name in names:  # a.png and a.jpg, or a.png of two folders
            name = f"{stem}-{len(names)}"
        names.add(name)
        drawn = more.pictures(trained.task, probe, step)
        for title, picture in {"": overview(records), **drawn}.items():
            render.write_png(picture, into / f"{name}{title and '-'}{title}.png")
        for record in records:
            render.write_png(sheet(record), into / f"{name}-{_place(record, records)}.png")
    for old in (into / "maps").glob("step-*"):
        old.unlink()
    save(every, into / "maps" / f"step-{step:08d}.safetensors")
    of = {key: summary[key] for key in ("task", "data", "versions") if key in summary}
    folder.write_atomically(into / folder.SUMMARY, json.dumps({**of, "status": "prediction"}))
    return step


def file_name(example: str) -> str:
    """The example as part of a file's name: a picture's own, or the first words of a sentence."""
    name = re.sub(r"[^\w.,-]+", "_", Path(example.replace("/", "_") if " " in example else example).stem)[:60]
    return name.encode()[:150].decode(errors="ignore")  # file systems count bytes: 255 for the whole name


def _place(record: MapRecord, records: list[MapRecord]) -> str:
    """The record's layer, and its stack where several are numbered alike."""
    several = len({each.site.split(".")[0] for each in records}) > 1
    stack = f"{record.site.split('.')[0]}-{record.kind}-" if several else ""
    return f"{stack}layer-{record.layer}"


def rebuild_report(config: DictConfig) -> None:
    """Write a run's ``report.html`` again, from its folder alone."""
    console.print(str(run_page.write(folder.existing(config.run or "", "run").path)))


def plain(config: DictConfig) -> dict[str, Any]:
    """A configuration as plain containers, its values filled in."""
    contents = OmegaConf.to_container(config, resolve=True)
    assert isinstance(contents, dict)
    return {str(key): item for key, item in contents.items()}


def quiet() -> None:
    """Lightning's advice for other programs is not for our users."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning.*")
    warnings.filterwarnings("ignore", module="lightning_fabric.*")
    warnings.filterwarnings("ignore", category=FutureWarning)
