"""From a trained model and examples to explain.json: maps of every method, what tests say of them, interventions."""

import base64
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from triptych.data.batches import Probe
from triptych.explain.alignment.alignment import Choice
from triptych.explain.evaluation import verdicts
from triptych.explain.evaluation.judging import Judging, Scores
from triptych.explain.methods.registry import METHODS, chosen
from triptych.explain.targets.registry import Question, subjects
from triptych.explain.targets.subject import Subject
from triptych.maps.capture import probing
from triptych.tasks.base import Task

FEW = 8  # examples: so few are worth the slow methods too
BASELINE = "attention"
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
    question = Question(
        about=settings.about,
        seed=None if every_word else settings.seed,
        together=settings.together,
        choice=choice,
        concept=settings.concept,
    )
    with probing(task.model) as model:
        found = subjects(task, data, probes, question)
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
