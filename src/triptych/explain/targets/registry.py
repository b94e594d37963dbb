"""Which outputs of a task are explained, and by which of its inputs: one target per task, found by the task's class."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn

from triptych.attention.shapes import Int, Tensor
from triptych.data.batches import Probe
from triptych.environment import require
from triptych.errors import UserError
from triptych.explain.alignment.alignment import Choice
from triptych.explain.targets.subject import Subject
from triptych.maps.capture import probing
from triptych.tasks.base import Task

SPLITS = ("validation", "test")
MAX_LENGTH = 64  # units of a text: each is one to take away


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked about examples.

    Attributes:
        about: The output to explain: a class (or its number), a character, a target word (or its number, from 0). None
            for the model's own likeliest answer.
        seed: Of translations, one word of each is drawn with it; None for every word of each, an example per word.
        together: Examples of a subject, at most.
        choice: Where the run chose to read alignments.
        concept: Pictures that show a concept.
    """

    about: str | None = None
    seed: int | None = None
    together: int = 32
    choice: Choice | None = None
    concept: Sequence[Probe] = ()


@dataclass(frozen=True)
class HeadExamples:
    """Examples that heads are described on: batches of one without padding, and the patch grid where there is one."""

    batches: list[Any]
    grid: tuple[int, int] | None = None


class ExplanationTarget(ABC):
    """What is explained of a task. A task without one trains and is tested, and says that it has no explanations."""

    optional_modules: ClassVar[tuple[str, ...]] = ()
    """Modules of ``environment.EXTRAS`` that its explanations need."""

    takes_concept: ClassVar[bool] = False
    """Whether ``Question.concept`` means anything to this task."""

    @abstractmethod
    def examples(self, task: Task, data: Any, split: str, count: int, max_length: int) -> list[Probe]:
        """``count`` fixed examples, evenly spread over ``split`` of opened data; all of a split that has fewer."""

    @abstractmethod
    def subjects(self, task: Task, data: Any, probes: Sequence[Probe], question: Question) -> list[Subject]:
        """The examples, those of one shape together, each asked about an output.

        Raises:
            UserError: For an output that does not exist, or an input that the model does not take.
        """

    def head_examples(self, task: Task, data: Any, count: int, max_length: int) -> HeadExamples:
        """At most ``count`` validation examples, evenly spread, none in another, which heads are described on."""
        return probes_as_batches(task, data, count, max_length)

    def repeated(self, task: Task, data: Any) -> Int[Tensor, "B T"] | None:
        """Token sequences whose second half repeats the first, on which induction is measured; None without tokens."""
        return None


Target = TypeVar("Target", bound=type[ExplanationTarget])
_TARGETS: dict[type[Task], ExplanationTarget] = {}
# Our own are imported when they are asked for: each needs what its task needs, and no more.
_OURS = {
    "triptych.tasks.charlm": "triptych.explain.targets.texts",
    "triptych.tasks.translation": "triptych.explain.targets.pairs",
    "triptych.tasks.vit": "triptych.explain.targets.images",
}


def explains(task_class: type[Task]) -> Callable[[Target], Target]:
    """Class decorator: this ``ExplanationTarget`` says what is explained of ``task_class`` and its subclasses."""

    def register(target_class: Target) -> Target:
        _TARGETS[task_class] = target_class()
        return target_class

    return register


def target_of(task: Task) -> ExplanationTarget | None:
    """The target of a task, or of the nearest class that it derives from; None where explanations are not defined."""
    for task_class in type(task).__mro__:
        if task_class.__module__ in _OURS:
            import_module(_OURS[task_class.__module__])
        if task_class in _TARGETS:
            return _TARGETS[task_class]
    return None


def undefined(task: Task) -> str:
    """The sentence for a task without a target."""
    return f"explanations are not defined for task={task.name}: it has no explanation target"


def required_target(task: Task) -> ExplanationTarget:
    """The target of a task. Raises UserError where it has none, or where a package that it needs is missing."""
    target = target_of(task)
    if target is None:
        raise UserError(undefined(task))
    require(f"an explanation of task={task.name}", *target.optional_modules)
    return target


def examples(task: Task, data: Any, split: str, count: int, *, max_length: int = MAX_LENGTH) -> list[Probe]:
    """``count`` fixed examples of "validation" or "test"; all of a split that has fewer. ``data`` are opened.

    Args:
        task: The trained task.
        data: Its data.
        split: "validation" or "test".
        count: How many.
        max_length: Units of a stretch of text, at most.

    Raises:
        UserError: For another split, fewer than one example, or a task without explanations.
    """
    target = required_target(task)
    if split not in SPLITS:
        raise UserError(f"split={split}; it must be validation or test")
    if count < 1:
        raise UserError(f"n={count}; it must be at least 1")
    return target.examples(task, data, split, count, max_length)


def subjects(task: Task, data: Any, probes: Sequence[Probe], question: Question | None = None) -> list[Subject]:
    """The examples, those of one shape together, each asked about ``question``, or its own likeliest answer.

    Raises:
        UserError: For a task without explanations, an output that does not exist, or an input that does not fit.
    """
    return required_target(task).subjects(task, data, probes, question or Question())


# ---- what targets share ----


def asked_or_likeliest(model: nn.Module, made: Sequence[Subject], index: int | None) -> list[Subject]:
    """The subjects, asked about the output ``index``; where that is None, each example about its likeliest output."""
    if index is not None:
        return [subject.asking(torch.full_like(subject.target, index)) for subject in made]
    with probing(model) as probed:
        return [subject.asking(subject.logits(probed).argmax(-1)) for subject in made]


def spread(size: int, count: int) -> list[int]:
    """``count`` places, evenly over ``size``; all where there are fewer."""
    count = min(size, count)
    return [index * size // count for index in range(count)]


def parts(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """The items in order, ``size`` at a time."""
    return [items[at : at + size] for at in range(0, len(items), size)]


def probes_as_batches(task: Task, data: Any, count: int, max_length: int) -> HeadExamples:
    """The task's probes as examples for heads, each once: what serves any task."""
    probes = {probe.example: probe for probe in task.probes(data, count, max_length)}
    grid = next((probe.grid for probe in probes.values()), None)
    return HeadExamples([probe.batch for probe in probes.values()], grid)
