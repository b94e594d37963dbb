"""`make predict`: a trained model's answer, and the maps of what it was given."""

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import track

from triptych.attention import set_backend
from triptych.commands.assembly import analyses
from triptych.config import validate
from triptych.config.containers import to_dict
from triptych.data.batches import Probe
from triptych.environment import silence_lightning
from triptych.errors import UserError
from triptych.files import write_text, written_whole
from triptych.inference.loading import Trained, load
from triptych.maps.capture import sites
from triptych.maps.record import MapRecord, save
from triptych.maps.taking import take_maps
from triptych.pictures import render
from triptych.pictures.records import overview, sheet
from triptych.report import run_page
from triptych.runs import folder
from triptych.tasks.base import Task

NOT_FOR_THE_TASK = ("run", "checkpoint", "attention", "input", "maps", "output")  # options of predict that are ours

console = Console(highlight=False, markup=False)


def predict(config: DictConfig) -> None:
    """Answer ``input`` with a trained model, streaming to standard output, or whole into the file ``output``."""
    silence_lightning()
    trained = load(config.run or "", checkpoint=config.checkpoint)
    if config.attention is not None:
        set_backend(trained.model, config.attention)
    if config.input is None or config.input == "":
        raise UserError('input= is empty: give what the model is to answer, e.g. make predict run=... input="The "')
    drawn, given = config.maps.draw, str(config.input)
    chosen = _for_the_task(config, trained.task.predict, trained.task)
    looked_at = _for_the_task(config, trained.task.inputs, trained.task)
    pieces = _counted(trained.task, given, trained.task.predict(trained.data, given, **chosen))
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
        console.print(f"maps              {into}\npage              {run_page.write(into)}", soft_wrap=True)


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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as partial, partial.open("w", encoding="utf-8") as file:
            file.writelines(pieces)
            file.write("\n")
    except OSError as error:
        raise UserError(f"output={path} could not be written: {error.strerror}") from error
    console.print(str(path), soft_wrap=True)


def _for_the_task(config: DictConfig, function: Callable[..., Any], task: Task) -> dict[str, Any]:
    """The options of predict that ``function`` takes. Raises UserError for one that the task takes nowhere."""
    takes = {**inspect.signature(task.predict).parameters, **inspect.signature(task.inputs).parameters}
    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    for word in given:
        name = word.partition("=")[0].lstrip("+~").partition(".")[0]
        if name in config and name not in (*takes, *NOT_FOR_THE_TASK):
            known = ", ".join(name for name in takes if name not in ("data", "given"))
            raise UserError(f"{name}= says nothing to task={task.name}; it takes: {known}")
    chosen = {key: option for key, option in to_dict(config).items() if key in inspect.signature(function).parameters}
    validate.check(OmegaConf.create(chosen), function, "")
    return chosen


def draw_maps(trained: Trained, probes: list[Probe], into: Path, checkpoint: str) -> int:
    """Records and pictures of every layer's maps, one set per example: a folder that ``report.write`` makes a page of.

    Returns the checkpoint's step.
    """
    summary = trained.folder.summary()
    step = folder.checkpoint_contents(trained.folder.path / "checkpoints" / f"{checkpoint}.ckpt")["global_step"]
    more = analyses(trained.config, trained.folder.path)
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
    write_text(into / folder.SUMMARY, json.dumps({**of, "status": "prediction"}))
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
