"""Head statistics: the numbers worked by hand, what even weights have by chance, and that padding does not count."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from triptych.attention import EVERYTHING, AttentionMask
from triptych.errors import UserError
from triptych.explain.evaluation.measures import measures
from triptych.explain.heads import patterns

CPU = torch.device("cpu")
SMALL = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]])


def even(positions: int) -> Tensor:
    """Causal weights, the same over all visible keys."""
    return patterns.even(AttentionMask(causal=True).visible(positions, positions, CPU))


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)).softmax(-1)


def test_distance_and_previous_token_by_hand() -> None:
    assert patterns.distance(SMALL).item() == 0.25
    assert patterns.previous_token(SMALL).item() == 0.5


def test_a_head_that_looks_ahead_is_as_far_as_one_that_looks_back() -> None:
    assert patterns.distance(torch.tensor([[[[0.0, 1.0], [1.0, 0.0]]]])).item() == 1.0


def test_induction_of_even_weights_is_chance() -> None:
    """Block of 3: the rows of the second copy see 4, 5, 6 keys, and each has one right one."""
    assert patterns.induction(even(6), 3).item() == pytest.approx(0.2056, abs=5e-5)


def test_induction_reads_what_followed_the_first_time() -> None:
    """a b c a b c: the second a (row 3) was followed by b (column 1), the last c (row 5) by a (column 3)."""
    weights = torch.zeros(1, 1, 6, 6)
    for row, column in ((3, 1), (4, 2), (5, 3)):
        weights[0, 0, row, column] = 1.0
    assert patterns.induction(weights, 3).item() == 1.0
    assert patterns.induction(weights.roll(1, -1), 3).item() == 0.0, "the same token itself is no induction"
    with pytest.raises(ValueError, match="block of 2 tokens said twice"):
        patterns.induction(weights, 2)


@pytest.mark.parametrize(("positions", "without_row_0"), [(3, 0.4167), (64, 0.0594)])
def test_sink_leaves_out_the_row_that_can_look_nowhere_else(positions: int, without_row_0: float) -> None:
    assert patterns.sink(even(positions)).item() == pytest.approx(without_row_0, abs=5e-5)


@pytest.mark.parametrize(("positions", "with_row_0"), [(3, 0.6111), (64, 0.0741)])
def test_sink_with_that_row_would_be_higher(positions: int, with_row_0: float) -> None:
    """The figure that is not ours, so that both can be compared with what others report."""
    assert even(positions)[..., 0].mean().item() == pytest.approx(with_row_0, abs=5e-5)


def test_entropy_in_nats_and_as_a_share() -> None:
    weights = torch.tensor([[[[0.9, 0.1]]]])
    seen = EVERYTHING.visible(1, 2, CPU)
    assert patterns.entropy(weights).item() == pytest.approx(0.3251, abs=5e-5)
    assert patterns.relative_entropy(weights, seen).item() == pytest.approx(0.4690, abs=5e-5)


@given(st.integers(0, 2**30), st.integers(2, 6), st.integers(2, 6))
def test_without_a_mask_the_entropies_are_those_of_an_alignment(seed: int, targets: int, sources: int) -> None:
    weights = drawn(seed, 2, 3, targets, sources)
    wanted = measures(weights)
    seen = EVERYTHING.visible(targets, sources, CPU)
    assert torch.allclose(patterns.entropy(weights).double(), wanted.entropy, atol=1e-5)
    assert torch.allclose(patterns.relative_entropy(weights, seen).double(), wanted.relative_entropy, atol=1e-5)


@given(st.integers(2, 12))
def test_even_causal_weights_are_fully_spread_over_what_each_row_sees(positions: int) -> None:
    """Divided by ln T instead of each row's own ln n, they would look sharp."""
    seen = AttentionMask(causal=True).visible(positions, positions, CPU)
    assert patterns.relative_entropy(even(positions), seen).item() == pytest.approx(1.0, abs=1e-6)


def test_a_map_of_one_key_is_neither_sharp_nor_spread() -> None:
    seen = EVERYTHING.visible(2, 1, CPU)
    weights = torch.ones(1, 1, 2, 1)
    assert patterns.entropy(weights).item() == 0.0
    assert math.isnan(patterns.relative_entropy(weights, seen).item())


@given(st.integers(0, 2**30), st.integers(2, 6), st.integers(1, 4))
def test_padding_changes_nothing(seed: int, real: int, padded: int) -> None:
    """Weights of an example alone, and of the same example in a longer batch: padded rows hold anything."""
    alone = drawn(seed, 1, 2, real, real)
    whole = drawn(seed + 1, 1, 2, real + padded, real + padded)
    whole[..., real:] = 0
    whole[:, :, :real, :real] = alone
    rows = (torch.arange(real + padded) < real)[None]
    seen = AttentionMask(key_padding=rows).visible(real + padded, real + padded, CPU)
    everything = EVERYTHING.visible(real, real, CPU)
    for found, wanted in (
        (patterns.distance(whole, rows), patterns.distance(alone)),
        (patterns.entropy(whole, rows), patterns.entropy(alone)),
        (patterns.previous_token(whole, rows), patterns.previous_token(alone)),
        (patterns.sink(whole, rows), patterns.sink(alone)),
        (patterns.relative_entropy(whole, seen, rows), patterns.relative_entropy(alone, everything)),
    ):
        assert torch.allclose(found, wanted, atol=1e-6)


def test_patches_have_distances_down_and_across() -> None:
    """A grid of 2 x 3 behind one prefix token: all on the patch diagonally opposite, sqrt(1 + 4) patches away."""
    weights = torch.zeros(1, 2, 7, 7)
    weights[0, 0, :, 1] = 1.0  # every patch on patch (0, 0)
    weights[0, 1, :, 0] = 1.0  # all on the prefix token: nothing among patches
    found = patterns.patch_distance(weights, (2, 3))[0]
    assert found[0].item() == pytest.approx((0 + 1 + 2 + 1 + math.sqrt(2) + math.sqrt(5)) / 6)
    assert found[1].item() == 0.0


def test_what_goes_to_a_prefix_token_makes_no_distance_shorter() -> None:
    weights = torch.zeros(1, 1, 3, 3)
    weights[..., 0], weights[..., 2] = 0.75, 0.25
    assert patterns.patch_distance(weights, (1, 2)).item() == 0.5, (
        "one of two patches looks one away, the other at itself"
    )


def test_negative_weights_are_refused() -> None:
    with pytest.raises(UserError, match="not negative"):
        patterns.entropy(torch.tensor([[[[1.5, -0.5]]]]))
