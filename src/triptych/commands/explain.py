"""`make explain`: what a trained model's maps show of an input or a split, and the tests that stand beside them."""

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import Progress

from triptych.attention import set_backend
from triptych.callbacks.aligning import CHOICE_FILE
from triptych.commands.predict import draw_maps, file_name
from triptych.config import validate
from triptych.config.containers import to_dict
from triptych.data.batches import Probe
from triptych.environment import silence_lightning
from triptych.errors import UserError
from triptych.explain import explaining
from triptych.explain.alignment.alignment import Choice
from triptych.explain.explaining import Settings
from triptych.explain.targets.registry import examples, required_target
from triptych.inference.loading import Trained, load
from triptych.maps.capture import sites
from triptych.pictures import explanations as drawn_explanations
from triptych.pictures import render
from triptych.report import explanation_table, run_page
from triptych.runs import explanations

console = Console(highlight=False, markup=False)
DRAWN = 4  # examples of a split whose maps are drawn
WIDE = 170  # characters of the table where no terminal sets a width


def explain(config: DictConfig) -> Path:
    """Explain what a run's model makes of ``input``, or of ``n`` examples of ``split``; the folder with the results.

    It holds explain.json, maps/ (records), pictures and report.html. Raises UserError for options that do not go
    together, and for what the model or its input does not allow.
    """
    silence_lightning()
    settings = _settings(config)
    trained = load(config.run or "", checkpoint=config.checkpoint)
    if config.attention is not None:
        set_backend(trained.model, config.attention)
    required_target(trained.task)
    if not sites(trained.model):
        raise UserError(f"run={config.run}: this model has no attention to explain")
    given = None if config.input in (None, "") else str(config.input)
    if (given is None) == (config.split is None):
        raise UserError('say what to explain: input="..." (a text, a sentence, a picture), or args="split=test n=64"')
    if given is None:
        if config.data.path is not None:  # the data have moved
            trained.data.path = config.data.path
        trained.data.open()
        probes = examples(trained.task, trained.data, config.split, config.n)
        name = f"{config.split}-{len(probes)}"
    else:
        probes = _inputs(trained, given, config.reference)
        name = file_name(given)
    if config.concept is not None:
        settings = _with_concept(settings, trained, str(config.concept))
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("explaining", total=None)
        explained = explaining.explain(
            trained.task,
            trained.data,
            probes,
            settings,
            every_word=given is not None,
            choice=_choice(trained),
            begin=lambda steps: progress.update(bar, total=steps),
            step=lambda: progress.advance(bar),
        )
    into = Path(config.output).expanduser() if config.output else trained.folder.path / "explanations" / name
    step = draw_maps(trained, probes[:DRAWN], into, config.checkpoint)
    _draw_methods(explained, probes, into)
    explanations.write(
        into,
        explained,
        task=trained.task.name,
        step=step,
        checkpoint=f"{config.checkpoint}.ckpt",
        split=config.split,
    )
    page = run_page.write(into)
    (console if console.is_terminal else Console(width=WIDE, markup=False)).print(explanation_table.table(explained))
    for sentence in explanation_table.sentences(explained):
        console.print(sentence, soft_wrap=True, markup=False)
    console.print(f"everything        {into}\npage              {page}", soft_wrap=True)
    return into


def _settings(config: DictConfig) -> Settings:
    names = ("about", "methods", "orders", "points", "seed", "seconds", "control", "shown")
    chosen = {name: option for name, option in to_dict(config).items() if name in names}
    chosen["about"] = None if chosen["about"] is None else str(chosen["about"])  # 7 is a class too
    if isinstance(chosen["methods"], str):
        chosen["methods"] = [chosen["methods"]]
    _whole(config, "n", 1)
    for name, least in (("orders", 1), ("seed", 0), ("shown", 0)):
        _whole(config, name, least)
    if config.points is not None:
        _whole(config, "points", 1)
    validate.check(OmegaConf.create(chosen), Settings, "")
    return Settings(**chosen)


def _whole(config: DictConfig, name: str, least: int) -> None:
    number = config[name]
    if type(number) is not int or number < least:
        raise UserError(f"{name}={number}; it must be a whole number of at least {least}")


def _inputs(trained: Trained, given: str, reference: str | None) -> list[Probe]:
    if reference is None:
        return trained.task.inputs(trained.data, given)
    if "reference" not in inspect.signature(trained.task.inputs).parameters:
        raise UserError(f"reference= says nothing to task={trained.task.name}: it is for translations")
    return trained.task.inputs(trained.data, given, reference=reference)


def _with_concept(settings: Settings, trained: Trained, path: str) -> Settings:
    if not required_target(trained.task).takes_concept:
        raise UserError("concept= takes pictures, so it is for task=vit")
    return replace(settings, concept=trained.task.inputs(trained.data, path))


def _choice(trained: Trained) -> Choice | None:
    """Where a translator's run chose to read alignments, if it has ended."""
    try:
        return Choice(**json.loads((trained.folder.path / CHOICE_FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def _draw_methods(explained: dict[str, Any], probes: list[Probe], into: Path) -> None:
    """A picture per output whose scores were kept, of the examples that are drawn."""
    for number, (example, drawn) in enumerate(drawn_explanations.pictures(explained, probes[:DRAWN])):
        render.write_png(drawn, into / f"{file_name(example)}-methods-{number}.png")
