"""Heads of a run: their statistics while the model trains, and what leaving the most telling ones out does to it."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from triptych.data.batches import TextBatch, generator_for
from triptych.data.characters import CharacterData
from triptych.explain.evaluation.intervals import Interval
from triptych.explain.evaluation.stability import HEADS_FILE, over_examples
from triptych.explain.heads import patterns
from triptych.explain.heads.importance import Head, ablations, contexts, evaluating, importance, normalised
from triptych.files import write_text
from triptych.maps.capture import Captured, capture, probing, signed, sites
from triptych.runs import folder
from triptych.tasks.base import Task

LOOKED_AT = 32  # validation examples that statistics are taken of
LEFT_OUT_ON = 64  # other ones, on which heads are left out
LENGTH = 128  # positions of each, at most
BLOCK = 64  # tokens of the random block that is said twice, at most
BLOCKS = 16  # such blocks
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
                numbers = {name: _number(float(each[head])) for name, each in means.items()}
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
    """The table of a model as it is now, over ``batches`` without padding; see ``examples``.

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
    block = min(BLOCK, int(getattr(task.model, "context", 0)) // 2)
    if isinstance(data, CharacterData) and block > 1:
        with probing(task.model) as model, capture(model) as maps:
            model(repeated(data.tokenizer.size, block).to(task.device))
        for site, captured in maps.items():
            add(site, {"induction": patterns.induction(captured.weights, block)})
            even = patterns.even(_visible(captured))
            table.chance[site]["induction"] = float(patterns.induction(even, block))
    table.scores = {
        site: {name: torch.cat(numbers[name]) for name in STATISTICS if name in numbers}
        for site, numbers in scores.items()
    }
    return table


def repeated(vocab_size: int, block: int, count: int = BLOCKS) -> Tensor:
    """``count`` random blocks of tokens, each said twice: B 2L, always the same ones; without id 0, the unknown."""
    once = torch.randint(1, vocab_size, (count, block), generator=generator_for(block, count))
    return once.repeat(1, 2)


def examples(task: Task, data: Any, count: int) -> tuple[list[Any], tuple[int, int] | None]:
    """At most ``count`` validation examples, evenly spread, none in another, as batches of one; and the patch grid."""
    if isinstance(data, CharacterData):
        windows = [batch for batch in data.evaluation("validation") if batch.tokens.shape[1] == data.context]
        tokens, targets = (torch.cat([getattr(each, name) for each in windows]) for name in ("tokens", "targets"))
        chosen = sorted({index * len(tokens) // count for index in range(count)})
        cut = slice(None, LENGTH)
        return [TextBatch(tokens[at : at + 1, cut], targets[at : at + 1, cut]) for at in chosen], None
    probes = {probe.example: probe for probe in task.probes(data, count, LENGTH)}
    return [probe.batch for probe in probes.values()], next((probe.grid for probe in probes.values()), None)


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


class HeadTablesCallback(pl.Callback):
    """Takes the head table when training starts, in its middle, and of the trained model; keeps ``heads.json``.

    folder: the run's. ``ablations`` and ``stability`` are there once the model is trained.
    """

    def __init__(self, *, folder: Path) -> None:
        self.folder = folder
        self._moments: list[dict[str, Any]] = []
        self._found: dict[str, Any] | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # A resumed run goes on with the moments that it had, up to where it goes on.
        self._moments = [each for each in self._earlier() if each["step"] <= trainer.global_step]
        if trainer.global_step == 0:
            self._moments = []
            self._take(trainer, pl_module, "start")

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if step and step == trainer.max_steps // 2 and all(each["step"] != step for each in self._moments):
            self._take(trainer, pl_module, "middle")

    def measure(self, task: Task, data: Any) -> tuple[dict[str, float], dict[str, str]]:
        """No figures; in words, what leaving out the strongest heads does."""
        if not sites(task.model):
            return {}, {}  # a model may have no attention at all
        if signed(task.model):
            return {}, {
                "heads": "no table: weights of this attention may be negative, and statistics of heads need shares"
            }
        every, grid = examples(task, data, LOOKED_AT + LEFT_OUT_ON)
        seen, unseen = every[::3], [each for index, each in enumerate(every) if index % 3] or every
        table = table_of(task, data, together(seen), grid)
        left_out = ablations(task, together(unseen), telling(table), table.every(), table.means)
        self._found = {
            "trained": table.rows(),
            "examples": len(seen),
            "chance": _said(table.chance),
            "stability": {name: each.to_json() for name, each in table.stability().items()},
            "ablations": [each.to_json() for each in left_out],
        }
        said = "; ".join(each.sentence for each in left_out if each.how == "zero")
        return {}, {"heads": said} if said else {}

    def conclude(self, task: Task, data: Any, loggers: list[pl.loggers.Logger], step: int) -> None:
        """Keep what ``measure`` found of the best weights, under the step that they are of."""
        if self._found is None:
            return
        best = self.folder / folder.BEST
        step = int(folder.checkpoint_contents(best)["global_step"]) if best.exists() else step
        found = dict(self._found)
        self._moments = [*self._earlier(), {"step": step, "name": "trained", "rows": found.pop("trained")}]
        self._write(found)

    def pictures(self, task: Task, probe: Any, step: int) -> dict[str, Any]:
        """None: the table is of many examples, not of one."""
        return {}

    def _take(self, trainer: pl.Trainer, task: pl.LightningModule, name: str) -> None:
        if not trainer.is_global_zero or not sites(task) or signed(task):
            return
        assert isinstance(task, Task)
        data = trainer.datamodule  # type: ignore[attr-defined]
        every, grid = examples(task, data, LOOKED_AT + LEFT_OUT_ON)
        table = table_of(task, data, together(every[::3]), grid)
        self._moments.append({"step": trainer.global_step, "name": name, "rows": table.rows()})
        self._write({"examples": len(every[::3]), "chance": _said(table.chance), "stability": {}, "ablations": []})

    def _write(self, more: Mapping[str, Any]) -> None:
        contents = {"statistics": STATISTICS, "moments": self._moments, **more}
        write_text(self.folder / HEADS_FILE, json.dumps(contents, allow_nan=False) + "\n")

    def _earlier(self) -> list[dict[str, Any]]:
        """The moments of training that the run has kept."""
        try:
            kept = json.loads((self.folder / HEADS_FILE).read_text(encoding="utf-8"))["moments"]
        except FileNotFoundError:  # a new run, or one of a version that kept none
            return []
        return [each for each in kept if each["name"] != "trained"]


def _said(chance: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float | None]]:
    return {site: {name: _number(number) for name, number in each.items()} for site, each in chance.items()}


def _number(number: float) -> float | None:
    """As JSON can say it, to six digits; None for what is no number."""
    return float(f"{number:.6g}") if math.isfinite(number) else None
