"""What a handful of numbers allows one to say: a mean with its 95 % interval, and a rank correlation."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

LEVEL = 0.95


class Interval(NamedTuple):
    """A mean over ``n`` examples (or seeds) with the ends of its 95 % interval; both ends NaN where none exists."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def known(self) -> bool:
        """Whether there is an interval at all: one example has none."""
        return not math.isnan(self.low)

    @property
    def clear(self) -> bool:
        """Whether the interval lies on one side of 0. An end that touches 0 is not clear of it."""
        return self.low > 0 or self.high < 0

    @property
    def amount(self) -> str:
        """``0.25 [0.04, 0.46]``: two decimals, or as many as an end that is not 0 needs to show that it is not."""
        ends = [end for end in (self.low, self.high) if self.known and end != 0] or [self.mean or 1.0]
        decimals = next((n for n in range(2, 6) if all(abs(end) >= 0.5 * 10**-n for end in ends)), 6)
        mean, low, high = (f"{value:z.{decimals}f}" for value in self[:3])
        return f"{mean} [{low}, {high}]" if self.known else mean

    @property
    def size(self) -> str:
        """``amount`` without its sign, which the words around it say."""
        mean, low, high, n = self
        return (self if mean >= 0 else Interval(-mean, -high, -low, n)).amount

    def __str__(self) -> str:
        if self.known:
            return f"{self.amount}, n={self.n}"
        return f"{self.amount} (no interval: {'one example' if self.n == 1 else f'{self.n} examples'})"

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Interval":
        """What `to_json` wrote."""
        mean, low, high = (math.nan if stored[name] is None else stored[name] for name in ("mean", "low", "high"))
        return cls(mean, low, high, stored["n"])

    def to_json(self) -> dict[str, float | int | None]:
        """The four numbers by name; NaN, which JSON does not know, becomes null."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in self._asdict().items()
        }


def t_interval(values: Sequence[float]) -> Interval:
    """Student's t interval of the mean, for examples or seeds: mean +- t(n-1) sd / sqrt(n).

    One value gives its mean and no interval. Raises ValueError without any value.
    """
    from scipy import stats  # a quarter of a second, which a command that only trains need not wait

    numbers = _numbers(values)
    n = len(numbers)
    mean = float(numbers.mean())
    if n == 1:
        return Interval(mean, math.nan, math.nan, 1)
    # The interval of a mean with error 1, times its error: scipy itself gives NaN where all values are the same.
    half = float(stats.t.interval(LEVEL, n - 1)[1] * stats.sem(numbers))
    return Interval(mean, mean - half, mean + half, n)


def bootstrap(values: Sequence[float], draws: int = 10_000, seed: int = 0) -> Interval:
    """Percentile bootstrap interval of the mean (Efron 1979): the middle 95 % of ``draws`` seeded resampled means.

    One value gives its mean and no interval. Raises ValueError without any value.
    """
    numbers = _numbers(values)
    n = len(numbers)
    if n == 1:
        return Interval(float(numbers[0]), math.nan, math.nan, 1)
    low, high = np.quantile(_drawn(n, draws, seed) @ numbers / n, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(numbers.mean()), float(low), float(high), n)


@lru_cache(maxsize=2)
def _drawn(n: int, draws: int, seed: int) -> np.ndarray:
    """draws x n: how often each value is drawn, which is all a mean needs. Kept: many means have as many values."""
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws).astype(np.float64)


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation, ties sharing their mean rank; NaN where a side is constant or has one value.

    Raises ValueError for sequences of different lengths.
    """
    from scipy import stats

    if len(first) != len(second):
        raise ValueError(f"rank correlation compares as many values with as many: {len(first)} and {len(second)}")
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    return float(stats.spearmanr(first, second).statistic)


def _numbers(values: Sequence[float]) -> np.ndarray:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or len(numbers) == 0:
        raise ValueError("a mean needs a flat list of at least one value")
    return numbers
