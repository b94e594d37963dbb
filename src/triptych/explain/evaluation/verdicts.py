"""What the interventions measure of a method, against random orders and re-initialised weights; see `verdict`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch

from triptych.attention.shapes import Bool, Float, Tensor
from triptych.explain.evaluation import faithfulness
from triptych.explain.evaluation.faithfulness import Faithfulness, Probability
from triptych.explain.evaluation.intervals import Interval, bootstrap, t_interval
from triptych.explain.evaluation.verdict import Verdict

ORDERS = 10  # random orders per example
FEW = 30  # examples; below it a bootstrap's interval is too narrow, and Student's t is used
BETTER = (-1, 1, 1, -1)  # the direction of each of Faithfulness's figures
TIES = 2**32  # away from the seeds of random orders: ties must not be broken by one of the orders compared with


class Chance(NamedTuple):
    """What random orders reach on a batch (figures B, mean over the orders); measured once, for every method."""

    figures: Faithfulness
    points: int | None
    seed: int


class Judged(NamedTuple):
    """One method on a batch. Figures are B; an advantage over random orders is positive where the method is better."""

    figures: Faithfulness
    advantage: Faithfulness
    constant: Bool[Tensor, " B"]  # where the map ranks nothing: its order is a random one


def chance(
    probability: Probability, B: int, U: int, *, seed: int, orders: int = ORDERS, points: int | None = None
) -> Chance:
    """Random orders on B examples of U units. Give each batch its own seed. points: steps of the curves."""
    found = faithfulness.measure(probability, faithfulness.random_orders(B, U, orders, seed), points)
    return Chance(Faithfulness(*(each.mean(dim=-1) for each in found)), points, seed)


def judge(scores: Float[Tensor, "B U"], probability: Probability, by: Chance) -> Judged:
    """A method's scores of the units, tested on the examples, steps and seed that ``by`` was measured with.

    Ties are broken at random: a map must gain nothing from where its equal scores happen to lie.
    """
    orders = _orders(scores, by)
    found = Faithfulness(*(each[:, 0] for each in faithfulness.measure(probability, orders, by.points)))
    advantage = [sign * (own - random) for sign, own, random in zip(BETTER, found, by.figures, strict=True)]
    return Judged(found, Faithfulness(*advantage), faithfulness.constant(scores))


def deletion_advantage(scores: Float[Tensor, "B U"], probability: Probability, by: Chance) -> Float[Tensor, " B"]:
    """Random orders' deletion area minus the method's, alone: enough for the control, at a third of the passes.

    The control takes the scores from a model with re-initialised weights and asks the trained model's ``probability``:
    an advantage that stays has nothing to do with what was learnt.
    """
    curves = faithfulness.deletion(probability, _orders(scores, by), by.points)
    U = scores.shape[-1]
    own = faithfulness.area(curves, faithfulness.counts(U, by.points) / U)[:, 0]
    return by.figures.deletion - own


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A method's row of the table: intervals over examples, and the verdict that stands beside its maps.

    The first four are paired advantages over random orders: positive is better, whichever way the figure runs.
    control: the same deletion advantage with re-initialised weights; None when it was not run. stability: how far the
    method ranks the same places alike on other examples (``stability.over_examples``); None where places differ.
    """

    method: str
    deletion: Interval
    insertion: Interval
    comprehensiveness_advantage: Interval
    sufficiency_advantage: Interval
    deletion_area: Interval
    insertion_area: Interval
    comprehensiveness: Interval
    sufficiency: Interval
    class_sensitivity: Interval | None
    compactness: Interval | None
    seconds_per_example: float
    control: Interval | None
    stability: Interval | None
    constant: int  # examples on which the map ranks nothing
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        """The row as JSON; the method under "name", each interval as mean, low, high, n; the verdict as its sentence,
        and under "judgement" as data."""
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        row["name"], row["verdict"] = row.pop("method"), self.verdict.sentence
        row["judgement"] = self.verdict.to_json()
        return {name: value.to_json() if isinstance(value, Interval) else value for name, value in row.items()}


def measured(
    method: str,
    batches: Sequence[Judged],
    *,
    seconds_per_example: float,
    class_sensitivity: Sequence[float] = (),
    compactness: Sequence[float] = (),
    control: Sequence[float] | None = None,
    stability: Interval | None = None,
) -> Measured:
    """Judged batches pooled over all examples.

    class_sensitivity, compactness: per example; those that are NaN (constant maps) are left out.
    control: deletion advantages per example with re-initialised weights (``deletion_advantage``).
    """
    figures, advantage = _pooled([each.figures for each in batches]), _pooled([each.advantage for each in batches])
    controlled = None if control is None else over_examples(control)
    constant = sum(int(batch.constant.sum()) for batch in batches)
    return Measured(
        method=method,
        deletion=advantage["deletion"],
        insertion=advantage["insertion"],
        comprehensiveness_advantage=advantage["comprehensiveness"],
        sufficiency_advantage=advantage["sufficiency"],
        deletion_area=figures["deletion"],
        insertion_area=figures["insertion"],
        comprehensiveness=figures["comprehensiveness"],
        sufficiency=figures["sufficiency"],
        class_sensitivity=_known(class_sensitivity),
        compactness=_known(compactness),
        seconds_per_example=seconds_per_example,
        control=controlled,
        stability=stability,
        constant=constant,
        verdict=Verdict.of(advantage["deletion"], advantage["insertion"], controlled, constant),
    )


def over_examples(values: Sequence[float]) -> Interval:
    """Mean with its 95 % interval over examples: Student's t for fewer than 30, from there on a seeded bootstrap."""
    return t_interval(values) if len(values) < FEW else bootstrap(values)


def effect_verdict(done: str, effect: Interval, what: str, *, than: str | None = None) -> str:
    """One plain sentence on an intervention: ``done`` moves ``what`` by ``effect``.

    than: what it was paired with; ``effect`` is then the difference of the two, and neither alone is spoken of.

    >>> effect_verdict("masking the aligned word", Interval(-0.2, -0.3, -0.1, 64), "the probability")
    'masking the aligned word lowers the probability by 0.20 [0.10, 0.30] on 64 examples'
    """
    on = f"on {effect.n} examples" if effect.known else "on one example: with no interval, this may well be chance"
    if effect.known and not effect.clear:
        compared = f" differently from {than}" if than else ""
        return f"{done} does not clearly change {what}{compared} {on} (difference {effect.amount})"
    up = effect.mean >= 0
    if than:
        return f"{done} leaves {what} {effect.size} {'higher' if up else 'lower'} than {than}, {on}"
    return f"{done} {'raises' if up else 'lowers'} {what} by {effect.size} {on}"


def compared(
    rows: Sequence[Measured], baseline: str, candidates: Sequence[str], titles: Mapping[str, str] | None = None
) -> str:
    """Which ``candidates`` beat random order and the ``baseline`` method, with deletion intervals clear of each other.

    One sentence for the table; it says so when none does. titles: what methods are called in it. Raises ValueError when
    the baseline has no row.
    """
    base = next((row for row in rows if row.method == baseline), None)
    if base is None:
        raise ValueError(f"there is no row for {baseline}")

    def called(name: str) -> str:
        return (titles or {}).get(name, name)

    better = [
        f"{called(row.method)} ({row.deletion.amount})"
        for row in rows
        if row.method in candidates and row.deletion.low > 0 and row.deletion.low > base.deletion.high
    ]
    against = f"both random order and {called(baseline)} ({base.deletion.amount}) by deletion area"
    against += f" on {base.deletion.n} examples"
    if not base.deletion.known:
        return f"one example has no interval: whether a method beats random order or {called(baseline)} cannot be said"
    if not better:
        return f"none of {', '.join(map(called, candidates))} beats {against}, with intervals clear of each other"
    return f"{', '.join(better)} beat{'s' if len(better) == 1 else ''} {against}, with intervals clear of each other"


def _orders(scores: Tensor, by: Chance) -> Tensor:
    return faithfulness.order(scores, seed=by.seed + TIES)[:, None]


def _pooled(parts: Sequence[Faithfulness]) -> dict[str, Interval]:
    together = {name: torch.cat([getattr(part, name) for part in parts]) for name in Faithfulness._fields}
    return {name: over_examples(each.tolist()) for name, each in together.items()}


def _known(values: Sequence[float]) -> Interval | None:
    finite = [value for value in values if math.isfinite(value)]
    return over_examples(finite) if finite else None
