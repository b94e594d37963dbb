"""The head table of a model: statistics of every attention head, and which heads are worth leaving out."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from triptych.explain.evaluation.intervals import Interval
from triptych.explain.evaluation.stability import over_examples
from triptych.explain.heads import patterns
from triptych.explain.heads.importance import Head, contexts, evaluating, importance, normalised
from triptych.explain.targets.registry import target_of
from triptych.maps.capture import Captured, capture, probing, sites
from triptych.tasks.base import Task

_TOGETHER = 16  # examples in one pass

# What each column is, in the words of a table's legend.
STATISTICS = {
    "distance": "mean distance between a position and what it attends to, weighted by attention",
    "entropy": "how spread the weights of a position are, in nats: 0 where all is on one key",
    "relative_entropy": "the entropy as a share of what even weights over the visible keys have",
    "previous_token": "mean weight on the position just before",
    "sink": "mean weight on the first position, for all later ones",
    "induction": "in a random block said twice, mean weight on what followed this token the first time",
    "importance": "size of the loss gradient along what the head adds, per example (Michel et al. 2019), "
    "of length 1 per layer",
}
_TELLING = {"previous_token": "strongest previous-token", "induction": "strongest induction"}


@dataclass
class HeadTable:
    """Statistics of every head that they apply to. ``scores``: site -> statistic -> B H, an example a row."""

    places: dict[str, dict[str, Any]]  # site -> its layer and kind
    scores: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    chance: dict[str, dict[str, float]] = field(default_factory=dict)  # what even weights have
    means: dict[str, Tensor] = field(default_factory=dict)  # site -> mean context H D over examples and positions

    def rows(self) -> list[dict[str, Any]]:
        """One row a head: its place, and the mean of each statistic over examples."""
        found = []
        for site, statistics in self.scores.items():
            means = {name: each.mean(0) for name, each in statistics.items()}
            if "importance" in means:
                means["importance"] = normalised(means["importance"])
            for head in range(len(next(iter(means.values())))):
                numbers = {name: as_json_number(float(each[head])) for name, each in means.items()}
                found.append({"site": site, **self.places[site], "head": head, **numbers})
        return found

    def strongest(self, statistic: str) -> tuple[Head, float] | None:
        """The head with the highest mean, and that; None where the statistic applies to no head."""
        rows = [row for row in self.rows() if row.get(statistic) is not None]
        if not rows:
            return None
        row = max(rows, key=lambda row: row[statistic])
        return self.head(row["site"], row["head"]), row[statistic]

    def head(self, site: str, head: int) -> Head:
        """A head by its place; with its stack where layers of several are numbered alike."""
        stacks = {each: f"{each.split('.')[0]} {place['kind']}-attention " for each, place in self.places.items()}
        stack = stacks[site] if len(set(stacks.values())) > 1 else ""
        return Head(site, head, f"{stack}layer {self.places[site]['layer']} head {head}")

    def every(self) -> list[Head]:
        """All heads."""
        return [self.head(row["site"], row["head"]) for row in self.rows()]

    def stability(self) -> dict[str, Interval]:
        """How far examples agree on which heads have most of a statistic: rank correlation, see ``over_examples``."""
        found: dict[str, list[Tensor]] = {}
        for statistics in self.scores.values():
            for name, each in statistics.items():
                found.setdefault(name, []).append(each)
        return {name: over_examples(torch.cat(each, 1)) for name, each in found.items()}


def statistics(weights: Tensor, captured: Captured, grid: tuple[int, int] | None) -> dict[str, Tensor]:
    """What applies to an attention operation, B H each, of ``weights`` B H T S under its mask.

    Every map has entropies. Patches have distances in two dimensions and no order; cross-attention compares places in
    two sequences, which have no common distance.
    """
    visible = _visible(captured)
    found = {
        "entropy": patterns.entropy(weights),
        "relative_entropy": patterns.relative_entropy(weights, visible),
    }
    if captured.kind == "self" and grid is not None:
        return {"distance": patterns.patch_distance(weights, grid), **found}
    if captured.kind == "self":
        found = {"distance": patterns.distance(weights), **found}
        if weights.shape[-1] > 1:  # a single position has none before it
            found |= {"previous_token": patterns.previous_token(weights), "sink": patterns.sink(weights)}
    return found


def _visible(captured: Captured) -> Tensor:
    T, S = captured.weights.shape[-2:]
    return captured.mask.visible(T, S, captured.weights.device)


def table_of(task: Task, data: Any, batches: Sequence[Any], grid: tuple[int, int] | None = None) -> HeadTable:
    """The table of a model as it is now, over ``batches`` without padding; see ``ExplanationTarget.head_examples``.

    Empty for a model without attention. Nothing of training is touched: no gradient of a parameter, no random state.
    """
    table = HeadTable({site.name: {"layer": site.layer, "kind": site.module.kind} for site in sites(task.model)})
    if not table.places:
        return table
    scores: dict[str, dict[str, list[Tensor]]] = {}
    chances: dict[str, dict[str, list[Tensor]]] = {}
    sums: dict[str, Tensor] = {}
    positions: dict[str, int] = {}

    def add(site: str, numbers: Mapping[str, Tensor]) -> None:
        for name, each in numbers.items():
            scores.setdefault(site, {}).setdefault(name, []).append(each.detach().double().cpu())

    with probing(task.model, grad=True) as model, evaluating(task):
        for batch in batches:
            here = task.transfer_batch_to_device(batch, task.device, 0)
            with capture(model) as maps, contexts(model) as made:
                loss, count = task.loss(task.logits(model, here), here)
            # Of the sum over what each example predicts: no example's gradient depends on another then.
            gradients = torch.autograd.grad(loss * count, list(made.values()))
            for (site, context), gradient in zip(made.items(), gradients, strict=True):
                captured = maps[site]
                add(site, statistics(captured.weights, captured, grid))
                add(site, {"importance": importance(context, gradient)})
                even = patterns.even(_visible(captured))
                for name, each in statistics(even, captured, grid).items():
                    chances.setdefault(site, {}).setdefault(name, []).append(each.mean().repeat(len(context)))
                sums[site] = sums.get(site, 0.0) + context.detach().sum((0, 2))
                positions[site] = positions.get(site, 0) + context.shape[0] * context.shape[2]
    table.chance = {
        site: {name: float(torch.cat(each).nanmean()) for name, each in numbers.items()}
        for site, numbers in chances.items()
    }
    table.means = {site: total / positions[site] for site, total in sums.items()}
    target = target_of(task)
    tokens = None if target is None else target.repeated(task, data)
    if tokens is not None:
        block = tokens.shape[1] // 2
        with probing(task.model) as model, capture(model) as maps:
            model(tokens.to(task.device))
        for site, captured in maps.items():
            add(site, {"induction": patterns.induction(captured.weights, block)})
            even = patterns.even(_visible(captured))
            table.chance[site]["induction"] = float(patterns.induction(even, block))
    table.scores = {
        site: {name: torch.cat(numbers[name]) for name in STATISTICS if name in numbers}
        for site, numbers in scores.items()
    }
    return table


def together(batches: Sequence[Any]) -> list[Any]:
    """Batches of one, joined where their shapes are the same, so that there is no padding."""
    alike: dict[Any, list[Any]] = {}
    for batch in batches:
        shapes = tuple(tuple(getattr(batch, each.name).shape) for each in dataclasses.fields(batch))
        alike.setdefault(shapes, []).append(batch)
    return [_joined(group[at : at + _TOGETHER]) for group in alike.values() for at in range(0, len(group), _TOGETHER)]


def _joined(batches: Sequence[Any]) -> Any:
    names = [each.name for each in dataclasses.fields(batches[0])]
    return type(batches[0])(**{name: torch.cat([getattr(each, name) for each in batches]) for name in names})


def telling(table: HeadTable) -> dict[Head, str]:
    """The heads worth leaving out, and why: the strongest by each fixed place, and the most important."""
    found: dict[Head, list[str]] = {}
    for statistic, title in _TELLING.items():
        if strongest := table.strongest(statistic):
            head, score = strongest
            chance = table.chance[head.site][statistic]
            found.setdefault(head, []).append(f"{title}, {score:.2f}, by chance {chance:.2f}")
    if important := _most_important(table):
        found.setdefault(important, []).append("most important by its gradient")
    return {head: "; ".join(why) for head, why in found.items()}


def _most_important(table: HeadTable) -> Head | None:
    """By the figure before it is brought to length 1 per layer: layers are compared here too."""
    means = {
        (site, head): float(number)
        for site, each in table.scores.items()
        if "importance" in each
        for head, number in enumerate(each["importance"].mean(0))
    }
    return table.head(*max(means, key=lambda place: means[place])) if means else None


def as_json_number(number: float) -> float | None:
    """As JSON can say it, to six digits; None for what is no number."""
    return float(f"{number:.6g}") if math.isfinite(number) else None
