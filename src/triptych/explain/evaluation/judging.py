"""Every method on every example, each ranking tested by intervention, beside random orders and untrained weights."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from triptych.attention.shapes import Float, Tensor
from triptych.explain.evaluation import faithfulness, verdicts
from triptych.explain.evaluation.faithfulness import Faithfulness, Probability
from triptych.explain.evaluation.intervals import Interval
from triptych.explain.evaluation.interventions import InterventionEffect, ablate_heads, layers_changed
from triptych.explain.evaluation.stability import over_examples
from triptych.explain.evaluation.verdicts import Judged, Measured
from triptych.explain.evidence import collect_evidence, reinitialised
from triptych.explain.methods.registry import Method, chosen
from triptych.explain.targets.subject import Subject

Scores = dict[str, Float[Tensor, "B U"]]


class Judging:
    """Judges methods on one subject after the other; ``add`` takes a subject, ``measured``, ``interventions`` sum up.

    model: trained. names: of the methods, None for all that the model has (slow ones with ``slow``). orders: random
    orders per example. points: steps of deletion and insertion curves, None for one unit at a time. control: judge each
    method with re-initialised weights too. Outputs of the same example (words of one sentence) count as one: their
    mean. Raises UserError for a method that is not defined for the model.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        names: Sequence[str] | None,
        slow: bool,
        orders: int,
        points: int | None,
        seed: int,
        control: bool,
    ) -> None:
        self.model, self.names, self.slow = model, names, slow
        self.orders, self.points, self.seed = orders, points, seed
        self.blank = reinitialised(model, seed + 1) if control else None
        self.used: list[Method] = []
        self.capture_error = 0.0
        self._examples: list[str] = []
        self._batches = 0
        self._judged: dict[str, list[Judged]] = {}
        self._figures: dict[str, dict[str, list[Tensor]]] = {}  # method -> figure -> a value per example, by batch
        self._seconds: dict[str, float] = {}
        self._scores: dict[str, list[Tensor]] = {}
        self._knocks: list[InterventionEffect] = []

    @property
    def seen(self) -> int:
        """Different examples so far."""
        return len(set(self._examples))

    def add(self, subject: Subject, done: Callable[[], None] = lambda: None) -> Scores:
        """Judge all methods on these examples; the scores they gave. done: called after each method."""
        self.used = chosen(self.names, self.model, subject, slow=self.slow)
        self._examples += subject.examples
        self._batches += 1
        probability: Probability = partial(subject.probability, self.model)
        plain = collect_evidence(self.model, subject, gradients=False)
        full = collect_evidence(self.model, subject, gradients=True)
        self.capture_error = max(self.capture_error, full.error)
        other = subject.asking(subject.runner_up(self.model))
        beside = collect_evidence(self.model, other, gradients=True)
        untrained = collect_evidence(self.blank, subject, gradients=True) if self.blank is not None else None
        by = verdicts.chance(
            probability,
            len(subject),
            subject.size,
            seed=self.seed + self._batches,
            orders=self.orders,
            points=self.points,
        )
        found: Scores = {}
        for method in self.used:
            evidence = full if method.needs == "gradients" else plain
            started = time.perf_counter()
            scores = method(evidence, subject)
            taken = time.perf_counter() - started + (evidence.seconds if method.needs != "nothing" else 0.0)
            self._seconds[method.name] = self._seconds.get(method.name, 0.0) + taken
            found[method.name] = scores
            self._scores.setdefault(method.name, []).append(scores)
            self._judged.setdefault(method.name, []).append(verdicts.judge(scores, probability, by))
            figures = self._figures.setdefault(method.name, {})
            figures.setdefault("compactness", []).append(faithfulness.compactness(scores))
            if method.needs == "weights":  # they are the same for every output
                figures.setdefault("class_sensitivity", []).append(torch.zeros(len(subject)))
            elif method.needs == "gradients":
                sensitivity = faithfulness.class_sensitivity(scores, method(beside, other))
                figures.setdefault("class_sensitivity", []).append(sensitivity)
            if untrained is not None and method.needs != "nothing":
                blank = method(untrained, subject)
                figures.setdefault("control", []).append(verdicts.deletion_advantage(blank, probability, by))
            done()
        self._intervene(subject, found, probability)
        return found

    def _intervene(self, subject: Subject, scores: Scores, probability: Probability) -> None:
        alone = torch.eye(subject.size, dtype=torch.bool).expand(len(subject), -1, -1)
        whole = torch.zeros(len(subject), 1, subject.size, dtype=torch.bool)
        changed = probability(torch.cat([whole, alone], dim=1), "deletion")
        fall = changed[:, :1] - changed[:, 1:]
        luck = faithfulness.random_orders(len(subject), subject.size, self.orders, self.seed + self._batches)
        for name, each in scores.items():
            if name == "random":
                continue
            top = faithfulness.order(each, seed=self.seed)[:, :1]
            own, others = fall.gather(1, top)[:, 0], fall.gather(1, luck[:, :, 0]).mean(1)
            title = next(method.title for method in self.used if method.name == name)
            self._knocks.append(InterventionEffect.of_unit(name, title, own, others))
        self._knocks += layers_changed(self.model, subject, seed=self.seed + self._batches)
        self._knocks += ablate_heads(self.model, subject)

    def measured(self) -> list[Measured]:
        """A row per method over all examples so far."""
        rows = []
        for method in self.used:
            figures = {
                name: _by_example(self._examples, torch.cat(parts))
                for name, parts in self._figures[method.name].items()
            }
            rows.append(
                verdicts.measured(
                    method.name,
                    [_pooled(self._examples, self._judged[method.name])],
                    seconds_per_example=self._seconds[method.name] / len(self._examples),
                    class_sensitivity=figures.get("class_sensitivity", []),
                    compactness=figures["compactness"],
                    control=figures.get("control"),
                    stability=_stability(self._scores[method.name]),
                )
            )
        return rows

    def interventions(self) -> list[dict[str, Any]]:
        """A row per intervention, with its effect on the probability of the asked output, and a sentence."""
        return [
            InterventionEffect.joined([each for each in self._knocks if (each.kind, each.name) == key]).row(
                lambda values: verdicts.over_examples(_by_example(self._examples, values))
            )
            for key in dict.fromkeys((each.kind, each.name) for each in self._knocks)
        ]


def _stability(scores: Sequence[Tensor]) -> Interval | None:
    """Whether the method ranks the same places on every example; None where examples differ in their places."""
    return over_examples(torch.cat(list(scores))) if len({each.shape[1] for each in scores}) == 1 else None


def _by_example(examples: Sequence[str], values: Tensor) -> list[float]:
    """A value per example: outputs of the same one are averaged, since they are not independent."""
    groups: dict[str, list[float]] = {}
    for example, value in zip(examples, values.tolist(), strict=True):
        groups.setdefault(example, []).append(value)
    return [sum(group) / len(group) for group in groups.values()]


def _pooled(examples: Sequence[str], batches: Sequence[Judged]) -> Judged:
    def averaged(parts: Sequence[Tensor]) -> Tensor:
        return torch.tensor(_by_example(examples, torch.cat(list(parts))))

    figures, advantage = (
        Faithfulness(*(averaged(parts) for parts in zip(*each, strict=True)))
        for each in ([batch.figures for batch in batches], [batch.advantage for batch in batches])
    )
    constant = averaged([batch.constant.float() for batch in batches]) == 1
    return Judged(figures, advantage, constant)
