"""Protects the statistics under every verdict: a wrong interval would call chance a finding."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from triptych.explain.evaluation.intervals import Interval, bootstrap, rank_correlation, t_interval

NUMBERS = st.floats(-100, 100, allow_nan=False).map(lambda value: round(value, 3))


def test_the_t_interval_of_the_design_document() -> None:
    interval = t_interval([0.1, 0.2, 0.3, 0.4])
    assert interval.mean == pytest.approx(0.25)
    assert (interval.low, interval.high) == pytest.approx((0.0446, 0.4554), abs=5e-5)
    assert interval.n == 4
    assert interval.clear
    assert str(interval) == "0.25 [0.04, 0.46], n=4"


@pytest.mark.parametrize("method", [t_interval, bootstrap])
def test_one_example_has_no_interval_and_says_so(method) -> None:
    interval = method([0.3])
    assert interval.mean == 0.3
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)
    assert not interval.known
    assert not interval.clear
    assert str(interval) == "0.30 (no interval: one example)"
    assert json.loads(json.dumps(interval.to_json(), allow_nan=False)) == {
        "mean": 0.3,
        "low": None,
        "high": None,
        "n": 1,
    }


@pytest.mark.parametrize("method", [t_interval, bootstrap])
def test_no_value_at_all_is_refused(method) -> None:
    with pytest.raises(ValueError, match="at least one value"):
        method([])


@pytest.mark.parametrize(
    ("low", "high", "clear"), [(0.01, 0.2, True), (-0.2, -0.01, True), (0.0, 0.2, False), (-0.1, 0.1, False)]
)
def test_an_end_that_touches_zero_is_not_clear_of_it(low: float, high: float, clear: bool) -> None:
    assert Interval((low + high) / 2, low, high, 9).clear is clear


def test_what_is_clear_of_zero_is_not_printed_as_zero() -> None:
    assert Interval(0.002, 0.0004, 0.0036, 9).amount == "0.0020 [0.0004, 0.0036]"
    assert Interval(-0.001, -0.002, 0.0, 9).amount == "-0.001 [-0.002, 0.000]"
    assert Interval(-1e-9, -0.2, 0.2, 9).amount == "0.00 [-0.20, 0.20]"


def test_a_bootstrap_is_seeded_and_close_to_the_known_spread_of_the_mean() -> None:
    values = np.random.default_rng(3).normal(1.0, 2.0, size=400).tolist()
    interval = bootstrap(values)
    assert interval == bootstrap(values)
    assert interval != bootstrap(values, seed=1)
    by_t = t_interval(values)
    assert (interval.mean, interval.low, interval.high) == pytest.approx(by_t[:3], abs=0.02)


def test_a_bootstrap_over_two_values_has_only_three_means() -> None:
    """0 and 1: means 0, .5, 1 with chances 1/4, 1/2, 1/4, so the middle 95 % reaches both ends."""
    assert bootstrap([0.0, 1.0]) == Interval(0.5, 0.0, 1.0, 2)


@given(st.lists(NUMBERS, min_size=2, max_size=20))
def test_equal_to_scipy(values: list[float]) -> None:
    interval = t_interval(values)
    spread = stats.sem(values)
    if spread > 1e-9:
        wanted = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=spread)
        assert (interval.low, interval.high) == pytest.approx(wanted, abs=1e-6)
    else:
        assert interval.low == pytest.approx(interval.high, abs=1e-6)


def test_equal_values_have_an_interval_without_width() -> None:
    """scipy's own interval around a mean without spread is NaN; seeds that agree to the bit are no unknown."""
    assert t_interval([0.25, 0.25, 0.25]) == Interval(0.25, 0.25, 0.25, 3)


def test_rank_correlation_by_hand() -> None:
    assert rank_correlation([1, 2, 3], [10, 200, 3000]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3], [5, 4, -9]) == pytest.approx(-1.0)
    assert rank_correlation([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(0.6)  # 1 - 6*4/(4*15)
    assert rank_correlation([1, 1, 2], [1, 2, 3]) == pytest.approx(math.sqrt(3) / 2)  # ranks 1.5 1.5 3


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=3, max_size=15))
def test_rank_correlation_equals_scipy(pairs: list[tuple[float, float]]) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    ours = rank_correlation(first, second)
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert math.isnan(ours)
    else:
        assert ours == pytest.approx(stats.spearmanr(first, second).statistic)


@pytest.mark.filterwarnings("error")
def test_rank_correlation_of_a_constant_is_unknown_and_of_two_lengths_refused() -> None:
    assert math.isnan(rank_correlation([1, 1, 1], [1, 2, 3]))
    assert math.isnan(rank_correlation([1], [2]))
    with pytest.raises(ValueError, match="3 and 2"):
        rank_correlation([1, 2, 3], [1, 2])
