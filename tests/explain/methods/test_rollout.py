"""Rollout and flow against numbers worked by hand, against other ways to the same number, and against known bugs."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from triptych.errors import UserError
from triptych.explain.methods.rollout import flow, fuse, gradient_rollout, joined, maximum_flows, rollout, with_residual

FIRST, LAST = [[0.5, 0.5], [0.2, 0.8]], [[0.6, 0.4], [0.1, 0.9]]
HEADS = [[[0.9, 0.1], [0.5, 0.5]], [[0.2, 0.8], [0.3, 0.7]]]


def one(*heads: list[list[float]]) -> Tensor:
    """A batch of one example with these heads."""
    return torch.tensor([heads], dtype=torch.float64)


def close(found: Tensor, expected: list[list[float]], digits: int = 4) -> None:
    """The first example is what was worked out, to the digits that are given."""
    torch.testing.assert_close(found[0], torch.tensor(expected, dtype=found.dtype), rtol=0, atol=0.51 * 10**-digits)


def attention(*size: int, seed: int = 0, causal: bool = False) -> Tensor:
    """Weights (B H T S) as a softmax leaves them."""
    scores = 2 * torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if causal:
        scores = scores.masked_fill(~torch.ones(size[-2:], dtype=torch.bool).tril(), -torch.inf)
    return scores.softmax(-1)


def test_later_layers_multiply_from_the_left() -> None:
    close(rollout([one(FIRST), one(LAST)]), [[0.62, 0.38], [0.1325, 0.8675]], digits=5)
    close(rollout([one(LAST), one(FIRST)]), [[0.6125, 0.3875], [0.125, 0.875]], digits=5)  # layers in the wrong order


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        ("max", [[0.7037, 0.2963], [0.2273, 0.7727]]),
        ("min", [[0.9231, 0.0769], [0.1667, 0.8333]]),
        ("mean", [[0.775, 0.225], [0.2, 0.8]]),
    ],
)
def test_heads_are_fused_and_rows_divided_by_their_own_sum(heads: str, expected: list[list[float]]) -> None:
    close(rollout([one(*HEADS)], heads=heads), expected)  # type: ignore[arg-type]


def test_a_row_is_not_divided_by_the_sums_of_other_rows() -> None:
    """Published code divides column j by the sum of row j, which is the same only where all rows sum to the same."""
    mixed = fuse(one(*HEADS), heads="max") + torch.eye(2, dtype=torch.float64)
    wrong = mixed / mixed.sum(-1)
    close(wrong, [[0.7037, 0.3636], [0.1852, 0.7727]])
    assert not torch.allclose(rollout([one(*HEADS)], heads="max"), wrong, atol=0.01)


def test_the_lowest_share_is_discarded_in_every_example_of_a_batch() -> None:
    """Published code discards in the first example only. The first position's weight on itself stays."""
    map_ = [[0.1, 0.9], [0.6, 0.4]]
    batch = torch.cat([one(map_), one(map_), one([[0.7, 0.3], [0.2, 0.8]])])
    fused = fuse(batch, heads="mean", discard=0.5)
    close(fused, [[0.1, 0.9], [0.6, 0]])
    close(fused[1:], [[0.1, 0.9], [0.6, 0]])
    close(fused[2:], [[0.7, 0], [0, 0.8]])
    close(rollout([batch], discard=0.5)[1:], [[0.55, 0.45], [0.375, 0.625]])


def test_masked_positions_do_not_count_as_discarded() -> None:
    causal = one([[1, 0, 0], [0.4, 0.6, 0], [0.2, 0.3, 0.5]])
    close(fuse(causal, heads="mean", discard=0.5), [[1, 0, 0], [0, 0.6, 0], [0, 0, 0.5]])


def test_flow_is_what_the_edges_between_layers_let_through() -> None:
    capacities = [with_residual(fuse(one(A), heads="mean")) for A in (FIRST, LAST)]
    close(maximum_flows(capacities), [[0.85, 0.45], [0.15, 0.95]], digits=6)
    shares = flow([one(FIRST), one(LAST)])
    close(shares, [[0.6538, 0.3462], [0.1364, 0.8636]])
    torch.testing.assert_close(flow([one(FIRST), one(LAST)], rows=[-1]), shares[:, 1:])


@given(st.integers(1, 5), st.integers(0, 1000), st.booleans())
def test_flow_through_two_layers_is_the_sum_of_the_smaller_edges(T: int, seed: int, causal: bool) -> None:
    capacities = [with_residual(attention(2, 1, T, T, seed=seed + k, causal=causal)[:, 0]) for k in (0, 1)]
    first, last = capacities
    expected = torch.minimum(last[:, :, :, None], first[:, None]).sum(2)
    torch.testing.assert_close(maximum_flows(capacities), expected, rtol=0, atol=1e-8)


@settings(max_examples=8)
@given(st.integers(0, 1000))
def test_flow_through_three_layers_is_the_smallest_cut(seed: int) -> None:
    """Every way to part the nodes into those with the row and those with the input, tried one by one."""
    T = 2
    layers = [with_residual(attention(1, 1, T, T, seed=seed + k)[:, 0]) for k in range(3)]
    for row, column in itertools.product(range(T), repeat=2):
        cuts = []
        for sides in itertools.product([False, True], repeat=4 * T):
            above = torch.tensor(sides).view(4, T)  # [l, p]: position p above layer l is on the row's side
            if above[3, row] and not above[0, column]:
                crossing = [layers[k][0] * (above[k + 1][:, None] & ~above[k][None]) for k in range(3)]
                cuts.append(sum(float(each.sum()) for each in crossing))
        assert float(maximum_flows(layers, rows=[row])[0, 0, column]) == pytest.approx(min(cuts), abs=1e-8)


def test_gradients_weight_the_layers_they_belong_to() -> None:
    gradients = [one([[2, -1], [0, 1]]), one([[1, 2], [-1, 0]])]
    weights = [one(FIRST), one(LAST)]
    close(gradient_rollout(weights, gradients), [[0.6667, 0.3333], [0, 1]])
    close(gradient_rollout(weights, gradients[::-1]), [[0.6, 0.4], [0, 1]])  # as backward hooks fire: last layer first


def test_gradient_rollout_means_over_heads_before_it_cuts_at_0() -> None:
    weights, gradients = one([[1, 0], [0, 1]], [[0, 1], [0, 1]]), one([[1, 0], [0, -3]], [[0, 1], [0, 1]])
    close(gradient_rollout([weights], [gradients]), [[0.75, 0.25], [0, 1]])


@given(st.integers(1, 6), st.integers(1, 4), st.sampled_from(["mean", "min", "max"]), st.sampled_from([0, 0.3, 0.9]))
def test_rows_sum_to_one_whatever_was_fused_or_discarded(T: int, layers: int, heads: str, discard: float) -> None:
    weights = [attention(2, 3, T, T, seed=k, causal=bool(k % 2)) for k in range(layers)]
    rolled = rollout(weights, heads=heads, discard=discard)  # type: ignore[arg-type]
    assert bool((rolled >= 0).all())
    torch.testing.assert_close(rolled.sum(-1), torch.ones(2, T, dtype=torch.float64))


@given(st.integers(0, 1000))
def test_an_example_is_the_same_alone_and_in_a_batch(seed: int) -> None:
    weights = [attention(3, 2, 4, 4, seed=seed + k) for k in range(2)]
    alone = [layer[1:2] for layer in weights]
    torch.testing.assert_close(rollout(weights, discard=0.4)[1:2], rollout(alone, discard=0.4))
    torch.testing.assert_close(flow(weights, rows=[0])[1:2], flow(alone, rows=[0]))


def test_a_causal_model_never_leads_to_later_positions() -> None:
    weights = [attention(1, 2, 5, 5, seed=k, causal=True) for k in range(3)]
    for traced in (rollout(weights), flow(weights)):
        assert float(traced.triu(1).abs().max()) == 0


def test_padding_passes_on_only_itself() -> None:
    """A query without any visible key has weights of 0: rollout keeps its residual stream, without NaN."""
    weights = attention(1, 2, 3, 3)
    weights[:, :, 2] = weights[:, :, :, 2] = 0
    close(rollout([weights, weights])[:, 2:], [[0, 0, 1]])
    close(flow([weights, weights])[:, 2:], [[0, 0, 1]])


def test_an_encoder_with_a_decoder_rolls_out_as_one_stack() -> None:
    """Side by side by hand: source to source, target to target, and target to source over the encoder's rollout."""
    encoder = [attention(2, 2, 4, 4, seed=k) for k in range(2)]
    decoder = [(attention(2, 3, 3, 3, seed=k, causal=True), attention(2, 3, 3, 4, seed=9 + k)) for k in range(2)]
    source = rollout(encoder)
    target, across = torch.eye(3, dtype=torch.float64).expand(2, 3, 3), torch.zeros(2, 3, 4, dtype=torch.float64)
    for own, cross in decoder:
        mixed = with_residual(own.mean(1))
        target, across = mixed @ target, mixed @ across
        target, across = target / 2, (across + cross.mean(1) @ source) / 2
    rolled = rollout(joined(encoder, decoder))
    torch.testing.assert_close(rolled[:, :4, :4], source)
    torch.testing.assert_close(rolled[:, 4:], torch.cat([across, target], -1))
    assert float(rolled[:, :4, 4:].abs().max()) == 0
    flows = flow(joined(encoder, decoder), rows=[6])
    torch.testing.assert_close(flows.sum(-1), torch.ones(2, 1, dtype=torch.float64))


def test_mistakes_are_refused_with_the_reason() -> None:
    signed = one([[1.5, -0.5], [0.2, 0.8]])
    for method in (rollout, flow):
        with pytest.raises(UserError, match="not defined for weights below 0, as the delta rule may have them"):
            method([one(FIRST), signed])
        with pytest.raises(UserError, match="at least one layer"):
            method([])
    with pytest.raises(UserError, match="at least one layer"):
        joined([], [])
    with pytest.raises(UserError, match="NaN"):
        rollout([one(FIRST) * float("nan")])
    for share in (-0.1, 1.0, float("nan")):
        with pytest.raises(UserError, match="at least 0 and below 1"):
            rollout([one(FIRST)], discard=share)
    with pytest.raises(UserError, match="row 2 of attention flow: there are 2 positions, 0 to 1"):
        flow([one(FIRST)], rows=[2])


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_fusion_is_refused() -> None:
    with pytest.raises(UserError, match="heads='median': heads are fused by mean, min, max"):
        rollout([one(FIRST)], heads="median")  # type: ignore[arg-type]
