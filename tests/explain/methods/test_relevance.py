"""Relevance against numbers worked by hand and the rules written out, and where published code gives NaN."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from triptych.errors import UserError
from triptych.explain.methods.relevance import cross_relevance, positive, self_relevance

A1, A2 = [[0.5, 0.5], [0.2, 0.8]], [[0.6, 0.4], [0.1, 0.9]]
G1, G2 = [[2, -1], [0, 1]], [[1, 2], [-1, 0]]


def tensor(numbers: list) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def maps(*size: int, seed: int, causal: bool = False) -> Tensor:
    """Layer maps of at least 0, of which some are exactly 0."""
    drawn = torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).relu()
    return drawn.tril() if causal else drawn


def close(found: Tensor, expected: list) -> None:
    torch.testing.assert_close(found, tensor(expected), rtol=0, atol=1e-9)


def test_what_is_below_0_is_cut_in_each_head_before_the_mean() -> None:
    weights, gradients = tensor([[[[0.2, 0.8]], [[0.5, 0.5]]]]), tensor([[[[1, -1]], [[2, 0]]]])
    close(positive(weights, gradients), [[[0.6, 0]]])
    weights, gradients = tensor([[[[0.5, 0.5]], [[0.5, 0.5]]]]), tensor([[[[4, 0]], [[-2, 0]]]])
    close(positive(weights, gradients), [[[1, 0]]])  # the mean first would give .5


def test_self_attention() -> None:
    cams = [positive(tensor([[A]]), tensor([[G]])) for A, G in ((A1, G1), (A2, G2))]
    close(self_relevance(cams), [[[3.2, 1.44], [0, 1.8]]])


def test_cross_attention_then_the_next_layers_self_attention() -> None:
    encoder = [tensor([[[0.5, 0.5], [0, 1]]])]  # one layer: R of source to source is I plus it
    first = tensor([[[0, 0], [0.4, 0.6]]]), tensor([[[0, 0], [0.3, 0.1]]])
    target, across = cross_relevance(encoder, [first])
    close(target, [[[1, 0], [0.4, 1.6]]])
    close(across, [[[0.18, 0.14], [0.72, 0.56]]])
    second = tensor([[[0, 0], [0.5, 0.25]]]), torch.zeros(1, 2, 2, dtype=torch.float64)
    close(cross_relevance(encoder, [first, second])[1], [[[0.18, 0.14], [0.99, 0.77]]])


def test_a_row_of_zeros_stays_identity_and_does_not_wipe_the_rest() -> None:
    """In published code 0 / 0 of one row becomes NaN in every entry; causal decoders always have such a row."""
    own, cross = torch.zeros(1, 3, 3, dtype=torch.float64), maps(1, 3, 4, seed=0)
    target, across = cross_relevance([torch.zeros(1, 4, 4, dtype=torch.float64)], [(own, cross)])
    close(target, torch.eye(3)[None].tolist())
    torch.testing.assert_close(across, cross)
    beyond = target - torch.eye(3)
    assert bool((beyond / beyond.sum(-1, keepdim=True)).isnan().all())  # the published normalisation


def written_out(encoder: list[Tensor], decoder: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The rules of the paper on one example, with loops, each update from old values."""
    T, S = decoder[0][1].shape
    Rss, Rqq, Rqs = (torch.eye(n, m, dtype=torch.float64) for n, m in ((S, S), (T, T), (T, S)))
    Rqs = Rqs * 0

    def bar(R: Tensor) -> Tensor:
        identity = torch.eye(len(R), dtype=R.dtype)
        rows = []
        for row, own in zip(R - identity, identity, strict=True):
            rows.append(own if not row.any() else row / row.sum() + own)
        return torch.stack(rows)

    for cam in encoder:
        Rss = Rss + cam @ Rss
    for own, cross in decoder:
        Rqq, Rqs = Rqq + own @ Rqq, Rqs + own @ Rqs
        Rqs = Rqs + bar(Rqq).T @ cross @ bar(Rss)
    return Rqq, Rqs


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 3), st.integers(1, 3), st.integers(0, 1000))
def test_batches_follow_the_rules_written_out(T: int, S: int, encoders: int, decoders: int, seed: int) -> None:
    encoder = [maps(2, S, S, seed=seed + k) for k in range(encoders)]
    decoder = [(maps(2, T, T, seed=seed + k, causal=True), maps(2, T, S, seed=seed - k)) for k in range(decoders)]
    target, across = cross_relevance(encoder, decoder)
    for b in range(2):
        expected = written_out([cam[b] for cam in encoder], [(own[b], cross[b]) for own, cross in decoder])
        torch.testing.assert_close(target[b], expected[0])
        torch.testing.assert_close(across[b], expected[1])
    torch.testing.assert_close(target, self_relevance([own for own, _ in decoder]))


def test_small_gradients_keep_their_proportions() -> None:
    """A sure model has gradients near 0. I added to such maps in float32 would round them away before normalisation."""
    encoder, (own, cross) = maps(1, 3, 3, seed=1), (maps(1, 3, 3, seed=2, causal=True), maps(1, 3, 3, seed=3))
    exact = cross_relevance([encoder * 1e-9], [(own * 1e-9, cross * 1e-9)])[1]
    found = cross_relevance([encoder.float() * 1e-9], [(own.float() * 1e-9, cross.float() * 1e-9)])[1]
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=0)


def test_a_causal_decoder_finds_no_relevance_in_later_tokens() -> None:
    relevance = self_relevance([maps(1, 5, 5, seed=k, causal=True) for k in range(3)])
    assert float(relevance.triu(1).abs().max()) == 0


def test_no_layer_is_refused() -> None:
    with pytest.raises(UserError, match="at least one layer"):
        self_relevance([])
    with pytest.raises(UserError, match="at least one decoder layer"):
        cross_relevance([maps(1, 2, 2, seed=0)], [])
