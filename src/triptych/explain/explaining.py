"""From a trained model and examples to explain.json: maps of every method, what tests say of them, interventions."""

import base64
import io
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from PIL import Image
from rich.table import Table
from torch import Tensor

from triptych.data.batches import Probe
from triptych.explain.alignment.alignment import Choice
from triptych.explain.evaluation import verdicts
from triptych.explain.evaluation.judging import Judging, Scores
from triptych.explain.examples import examples
from triptych.explain.methods.registry import METHODS, chosen
from triptych.explain.targets import PairSubject, Subject, subjects
from triptych.loggers import publish
from triptych.maps.capture import probing, sites
from triptych.maps.labels import shortened
from triptych.pictures.rankings import ranking_picture
from triptych.pictures.render import Picture
from triptych.runs.folder import write_atomically
from triptych.tasks.base import Task

FILE = "explain.json"
FEW = 8  # examples: so few are worth the slow methods too
BASELINE = "attention"
STRETCH = 32  # characters of an example at a run's end
AT_LEISURE = ("smooth_cdam", "integrated_cdam", "signed_attention_gradient")  # not at a run's end
CONTROL = (
    "the same method on the same model with every weight drawn anew, normal with the trained matrix's own standard "
    "deviation; its ranking is tested on the trained model"
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is asked for. about: see ``subjects``. methods: names, None for all. orders: random orders per example.
    points: steps of the curves. seconds: begin no more examples after so long; None for all. shown: how many examples'
    scores are kept. together: examples judged at once. concept: pictures that show one, for vision transformers."""

    about: str | None = None
    methods: Sequence[str] | None = None
    orders: int = verdicts.ORDERS
    points: int | None = 12
    seed: int = 0
    seconds: float | None = None
    control: bool = True
    shown: int = FEW
    together: int = 32
    concept: Sequence[Probe] = ()


def explain(
    task: Task,
    data: Any,
    probes: Sequence[Probe],
    settings: Settings,
    *,
    every_word: bool = False,
    choice: Choice | None = None,
    begin: Callable[[int], None] = lambda steps: None,
    step: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Explain an output of each probe and judge the explanations: what explain.json says, but for where it comes from.

    every_word: of a translation, ask about every word instead of one drawn with the seed. choice: where the run reads
    alignments. begin, step: called with the number of steps, and after each.

    Raises UserError for a method, an output or an input that the model does not have.
    """
    started = time.perf_counter()
    seed = None if every_word else settings.seed
    with probing(task.model) as model:
        found = subjects(task, data, probes, about=settings.about, seed=seed, together=settings.together)
        concept = _class_tokens(task, data, settings.concept) if settings.concept else None
        for subject in found:
            subject.concept = concept
            if isinstance(subject, PairSubject):
                subject.choice = choice
        judging = Judging(
            model,
            names=settings.methods,
            slow=len(probes) <= FEW,
            orders=settings.orders,
            points=settings.points,
            seed=settings.seed,
            control=settings.control,
        )
        begin(len(found) * len(chosen(settings.methods, model, found[0], slow=judging.slow)))
        results: list[dict[str, Any]] = []
        for subject in found:
            scores = judging.add(subject, step)
            results += _results(subject, scores, settings.shown - _different(results))
            if settings.seconds is not None and time.perf_counter() - started > settings.seconds:
                break
    rows = judging.measured()
    about = {method.name: {"title": method.title, "meaning": method.meaning} for method in METHODS}
    sensitive = [each.name for each in judging.used if each.needs == "gradients"]
    compared = any(row.method == BASELINE for row in rows) and sensitive
    return {
        "examples": judging.seen,
        "asked_for": len({probe.example for probe in probes}),
        "orders": settings.orders,
        "points": settings.points,
        "seed": settings.seed,
        "seconds": round(time.perf_counter() - started, 2),
        "capture_error": judging.capture_error,
        "control": CONTROL if settings.control else None,
        "methods": [{**about[row.method], **row.to_json()} for row in rows],
        "comparison": verdicts.compared(
            rows, BASELINE, sensitive, {name: each["title"] for name, each in about.items()}
        )
        if compared
        else None,
        "interventions": judging.interventions(),
        "results": results,
    }


def write(folder: Path, explained: dict[str, Any], **origin: Any) -> Path:
    """Keep it as ``folder``/explain.json. origin: task, step, checkpoint, split, data fingerprint."""
    path = folder / FILE
    text = json.dumps({**origin, **explained}, ensure_ascii=False, indent=1, allow_nan=False)
    write_atomically(path, text + "\n")
    return path


def table(explained: dict[str, Any]) -> Table:
    """What a terminal shows of the methods: advantages over random order with their 95 % intervals."""
    shown = Table(title=f"{explained['examples']} examples, advantage over {explained['orders']} random orders of each")
    columns = ("method", "deletion", "insertion", "class sensitivity", "compactness", "control", "ms per example")
    for column in columns:
        shown.add_column(column, justify="left" if column == "method" else "right")
    for row in explained["methods"]:
        shown.add_row(
            row["title"],
            *(_cell(row[name]) for name in ("deletion", "insertion", "class_sensitivity", "compactness", "control")),
            f"{row['seconds_per_example'] * 1000:.2f}",
        )
    return shown


def sentences(explained: dict[str, Any]) -> list[str]:
    """The verdict on each method, how they compare, and the interventions on inputs and layers."""
    lines = [f"{row['title']}: {row['verdict']}" for row in explained["methods"] if row["name"] != "random"]
    lines += [explained["comparison"]] if explained["comparison"] else []
    return lines + [row["sentence"] for row in explained["interventions"] if row["kind"] != "head"]


def pictures(explained: dict[str, Any], probes: Sequence[Probe]) -> Iterator[tuple[str, Picture]]:
    """A picture per output whose scores were kept: the example, and every method's map of it over its verdict."""
    titles = {row["name"]: row["title"] for row in explained["methods"]}
    says = {row["title"]: _in_short(row["verdict"]) for row in explained["methods"] if row["name"] != "random"}
    of = {probe.example: probe.picture for probe in probes}
    outputs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for each in explained["results"]:
        if each["example"] in of:
            outputs.setdefault((each["example"], each["output"]), []).append(each)
    for (example, output), results in outputs.items():
        grid = results[0]["grid"]
        yield (
            example,
            ranking_picture(
                results[0]["units"],
                {titles[each["method"]]: each["scores"] for each in results},
                None if grid is None else (grid[0], grid[1]),
                of[example],
                title=f"{shortened(example)} · output {shortened(output)}",
                says=says,
                caption=f"Each map up to its own largest score. Verdicts over {explained['examples']} examples.",
            ),
        )


def _in_short(verdict: str) -> str:
    """The verdict without its numbers."""
    return verdict.partition(" (")[0] + ("; fails its control" if "fails its control" in verdict else "")


def _cell(interval: dict[str, Any] | None) -> str:
    if interval is None:
        return ""
    mean, low, high = (interval[name] for name in ("mean", "low", "high"))
    return f"{mean:.3f}" if low is None else f"{mean:.3f} [{low:.3f}, {high:.3f}]"


def _different(results: list[dict[str, Any]]) -> int:
    return len({each["example"] for each in results})


def _results(subject: Subject, scores: Scores, most: int) -> list[dict[str, Any]]:
    """Scores of up to ``most`` different examples, one entry per output and method."""
    examples = list(dict.fromkeys(subject.examples))[: max(0, most)]
    found = []
    for at, example in enumerate(subject.examples):
        if example not in examples:
            continue
        picture = _picture(subject.probes[at])
        for name, each in scores.items():
            found.append(
                {
                    "example": example,
                    "output": subject.outputs[at],
                    "method": name,
                    "units": subject.units[at],
                    "scores": [float(f"{score:.6g}") for score in each[at].tolist()],
                    "grid": list(subject.grid) if subject.grid else None,
                    "picture": picture,
                }
            )
    return found


def _picture(probe: Probe) -> str | None:
    """The picture as a page can show it, where the example is one."""
    if probe.picture is None:
        return None
    file = io.BytesIO()
    pixels = probe.picture.numpy()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _class_tokens(task: Task, data: Any, probes: Sequence[Probe]) -> Tensor:
    """The class tokens of pictures (pictures, width), as the last norm puts them out."""
    found = subjects(task, data, probes)
    seen: list[Tensor] = []
    with probing(task.model) as model:
        handle = model.norm.register_forward_hook(  # type: ignore[union-attr]
            lambda module, args, output: seen.append(output)
        )
        try:
            for subject in found:
                subject.answer(model)
        finally:
            handle.remove()
    return torch.cat(seen)


class Verdicts(pl.Callback):
    """At a run's end: what its maps show of validation examples, tested, as explain.json in the run's ``folder``.

    examples: how many, 0 for none. seconds: begin no more after so long. No test example is looked at.
    """

    def __init__(self, *, folder: Path, examples: int, seconds: float) -> None:
        self.folder, self.examples, self.seconds = folder, examples, seconds

    def measure(self, task: Task, data: Any) -> tuple[dict[str, float], dict[str, str]]:
        """Nothing: these are findings about maps, not figures of the model."""
        return {}, {}

    def conclude(self, task: Task, data: Any, loggers: list[pl.loggers.Logger], step: int) -> None:
        """Explain and judge, and write it down for the report."""
        if self.examples == 0 or not sites(task.model):
            return
        probes = examples(task, data, "validation", self.examples, longest=STRETCH)
        names = [each.name for each in METHODS if not each.slow and each.name not in AT_LEISURE]
        first = subjects(task, data, probes[:1], seed=0)[0]
        settings = Settings(
            methods=[each.name for each in METHODS if each.name in names and each.refusal(task.model, first) is None],
            seconds=self.seconds,
            together=4,
        )
        explained = explain(task, data, probes, settings)
        write(self.folder, explained, task=task.name, step=step, checkpoint="best.ckpt", split="validation")
        for example, picture in islice(pictures(explained, probes), 1):
            publish.picture(loggers, "maps/explanations", picture, step, caption=shortened(example))

    def pictures(self, task: Task, probe: Probe, step: int) -> dict[str, Any]:
        """None: what is drawn of an input is its maps; `make explain` draws its explanations."""
        return {}
