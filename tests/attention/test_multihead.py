"""Heads and positions: rotary scores know distance alone, normalised queries know direction alone, and the cache."""

import functools
import math

import pytest
import torch
from torch import nn

from triptych.attention import (
    EVERYTHING,
    Attend,
    AttentionMask,
    KeyValueCache,
    LayerCache,
    MultiHeadAttention,
    Rotary,
)
from triptych.errors import UserError

ATTEND = functools.partial(Attend, backend="naive")


def layer(**options) -> MultiHeadAttention:
    torch.manual_seed(0)
    return MultiHeadAttention(**{"width": 8, "heads": 4, "kv_heads": None, "attend": ATTEND} | options)


def test_one_pair_turned_by_hand() -> None:
    # Head size 2, base irrelevant: position p turns (x, y) by p radians.
    rotary = Rotary(head_size=2, positions=4)
    turned = rotary(torch.tensor([[[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]]]))
    expected = [[1, 0], [math.cos(1), math.sin(1)], [-math.sin(2), math.cos(2)]]
    assert torch.allclose(turned[0, 0], torch.tensor(expected), atol=1e-6)


def test_pairs_are_half_a_head_apart_and_turn_slower_and_slower() -> None:
    # Head size 4, base 100: pair (0, 2) turns by 1 per position, pair (1, 3) by 1/10.
    turned = Rotary(head_size=4, positions=3, base=100.0)(torch.tensor([[[[1.0, 1.0, 0.0, 0.0]]]]), 2)
    expected = [math.cos(2), math.cos(0.2), math.sin(2), math.sin(0.2)]
    assert torch.allclose(turned[0, 0, 0], torch.tensor(expected), atol=1e-6)


def test_scores_depend_on_distance_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    rotary = Rotary(head_size=8, positions=200)
    query = torch.randn(1, 1, 1, 8, generator=generator)
    key = torch.randn(1, 1, 1, 8, generator=generator)
    near = [(rotary(query, p + 5) * rotary(key, p)).sum().item() for p in (0, 1, 50, 194)]
    assert max(near) - min(near) < 1e-4
    assert abs((rotary(query, 9) * rotary(key, 0)).sum().item() - near[0]) > 1e-2


def test_an_offset_is_a_later_part_of_the_same_sequence() -> None:
    rotary, x = Rotary(head_size=6, positions=9), torch.ones(2, 3, 9, 6)
    assert torch.equal(rotary(x)[:, :, 4:], rotary(x[:, :, 4:], 4))


def test_rotary_keeps_lengths_dtype_and_the_checkpoint_small() -> None:
    rotary = Rotary(head_size=6, positions=9)
    x = torch.randn(1, 2, 9, 6)
    assert torch.allclose(rotary(x).norm(dim=-1), x.norm(dim=-1))
    assert rotary(x.bfloat16()).dtype == torch.bfloat16
    assert not rotary.state_dict()


def test_rotary_refuses_an_odd_head() -> None:
    with pytest.raises(ValueError, match="head size 5 is odd"):
        Rotary(head_size=5, positions=4)


def test_a_layer_by_hand() -> None:
    """Width 2, one head: identity projections, so scores are x x^T / sqrt(2)."""
    attention = layer(width=2, heads=1)
    for linear in (attention.query, attention.key, attention.value, attention.output):
        nn.init.eye_(linear.weight)
    x = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])
    out = attention(x, EVERYTHING)
    # Row 0 scores (1, 0)/sqrt(2); row 1 scores (0, 4)/sqrt(2).
    first, second = 1 / (1 + math.exp(-1 / math.sqrt(2))), 1 / (1 + math.exp(-4 / math.sqrt(2)))
    expected = torch.tensor([[[first, 2 * (1 - first)], [1 - second, 2 * second]]])
    assert torch.allclose(out, expected, atol=1e-6)


def test_shared_key_value_heads_are_smaller_projections() -> None:
    attention = layer(kv_heads=2)
    assert attention.query.weight.shape == (8, 8)
    assert attention.key.weight.shape == attention.value.weight.shape == (4, 8)
    # Query heads 0 and 1 share key/value head 0: copying its rows for each makes the same layer without sharing.
    full = layer()
    full.load_state_dict(
        attention.state_dict()
        | {
            f"{name}.weight": getattr(attention, name).weight.unflatten(0, (2, 2)).repeat_interleave(2, 0).flatten(0, 1)
            for name in ("key", "value")
        }
    )
    x = torch.randn(2, 5, 8)
    assert torch.allclose(attention(x, EVERYTHING), full(x, EVERYTHING), atol=1e-6)


def test_normalised_queries_and_keys_score_by_direction() -> None:
    """Scaling what goes in changes values only: with the value path undone, the output is the same."""
    # Large, so that the norm's epsilon does not count.
    attention, x = layer(qk_norm=True, heads=2), 100 * torch.randn(2, 5, 8)
    assert torch.allclose(attention(3 * x, EVERYTHING), 3 * attention(x, EVERYTHING), rtol=1e-3, atol=1e-2)
    plain, x = layer(heads=2), x / 100
    assert not torch.allclose(plain(3 * x, EVERYTHING), 3 * plain(x, EVERYTHING), atol=1e-3)


def test_a_norm_that_answers_in_float32_does_not_mix_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As CUDA's autocast does: fused and flex kernels want one dtype."""
    monkeypatch.setattr(nn.LayerNorm, "forward", lambda self, x: x.float())
    attention = layer(qk_norm=True, attend=functools.partial(Attend, backend="flash")).bfloat16()
    assert attention(torch.ones(1, 3, 8, dtype=torch.bfloat16), EVERYTHING).dtype == torch.bfloat16


def test_cross_attention_reads_memory_and_says_so() -> None:
    attention = layer(kind="cross")
    assert attention.attend.kind == "cross"
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    assert attention(x, EVERYTHING, memory).shape == x.shape
    with pytest.raises(ValueError, match="cross-attention was called without memory"):
        attention(x, EVERYTHING)
    with pytest.raises(ValueError, match="self-attention was called with memory"):
        layer()(x, EVERYTHING, memory)
    with pytest.raises(ValueError, match="cross-attention has two"):
        layer(kind="cross", rotary=Rotary(head_size=2, positions=4))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"width": 12, "heads": 5}, "width=12 does not divide into model.heads=5; .* 1, 2, 3, 4, 6, 12$"),
        ({"heads": 0}, "width=8 does not divide into model.heads=0; .* 1, 2, 4, 8$"),
        ({"kv_heads": 3}, "heads=4 is no multiple of model.kv_heads=3; .* 1, 2, 4$"),
        ({"kv_heads": 0}, "model.kv_heads=0"),
    ],
)
def test_refusals_name_numbers_that_work(options: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        layer(**options)


def test_steps_through_the_cache_equal_one_pass() -> None:
    attention = layer(rotary=Rotary(head_size=2, positions=6), kv_heads=2)
    x, cache = torch.randn(2, 6, 8), LayerCache(6)
    whole = attention(x, AttentionMask(causal=True))
    parts, start = [], 0
    for length in (3, 1, 2):
        mask = AttentionMask(causal=True, query_offset=start)
        parts.append(attention(x[:, start : start + length], mask, None, cache))
        start += length
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-6)


def test_the_cache_counts_refuses_and_forgets() -> None:
    cache = KeyValueCache(layers=2, capacity=3)
    step = torch.arange(4.0).view(1, 1, 2, 2)
    for index in (0, 1):
        key, value = cache[index].extend(step, 10 * step)
        assert torch.equal(key, step)
        assert torch.equal(value, 10 * step)
    assert cache.length == 2
    with pytest.raises(ValueError, match="holds 3 positions, and 4 were asked for"):
        cache[0].extend(step, step)
    cache.reset()
    assert cache.length == 0
    two = step.expand(2, 1, 2, 2)
    assert cache[0].extend(two, two)[0].shape == (2, 1, 2, 2)  # another batch after forgetting
    cache.reset()
    assert cache[0].extend(step, step)[0].shape == (1, 1, 2, 2)
