"""Attend: what it refuses, how masks reach the fused kernel, and that it never computes slowly in silence."""

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import Case, cases, solve
from hypothesis import given
from torch import Tensor, nn

from triptych.attention import EVERYTHING, Attend, AttentionMask, MultiHeadAttention, flash, set_backend
from triptych.attention.score_mods import soft_cap
from triptych.errors import UserError

PADDING = torch.tensor([[True, True, False]])


def inputs(**options: Any) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = Case(**options).tensors()
    return query.detach(), key.detach(), value.detach()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "quick"}, "attention=quick is not a backend; there are: naive, flash, flex"),
        ({"backend": "flash", "score_mod": soft_cap(cap=1.0)}, "attention=flash cannot change scores"),
        ({"backend": "naive", "implementation": "FA3"}, "belongs to attention=flash, not naive"),
        ({"backend": "flash", "implementation": "FA99"}, "FA99 is not offered by torch"),
    ],
)
def test_refused_when_built(options: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Attend(**options)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("key", "padding", "words"),
    [
        ((2, 2, 3, 4), None, "do not fit"),  # another batch
        ((1, 3, 3, 4), None, "H a multiple of G"),  # 2 query heads over 3
        ((1, 2, 3, 5), None, "do not fit"),  # another head size
        ((1, 2, 3, 4), (1, 4), "does not fit the keys' B S"),
    ],
)
def test_shapes_that_do_not_fit(key: tuple, padding: tuple | None, words: str) -> None:
    mask = AttentionMask(key_padding=None if padding is None else torch.ones(padding, dtype=torch.bool))
    with pytest.raises(ValueError, match=words):
        Attend(backend="naive")(torch.zeros(1, 2, 3, 4), torch.zeros(key), torch.zeros(key), mask)


def test_set_backend_switches_all_or_none() -> None:
    model = nn.ModuleList([Attend(backend="naive"), Attend(backend="naive", score_mod=soft_cap(cap=1.0))])
    with pytest.raises(UserError, match="cannot change scores"):
        set_backend(model, "flash")
    assert [site.backend for site in model] == ["naive", "naive"]
    set_backend(model, "flex")
    assert [site.backend for site in model] == ["flex", "flex"]
    with pytest.raises(UserError, match="is not a backend"):
        set_backend(model, "quick")


@pytest.fixture
def kernel_calls(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """The options of every call of the fused kernel."""
    calls: list[dict] = []
    original = F.scaled_dot_product_attention

    def spy(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        calls.append(options)
        return original(query, key, value, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    return calls


@pytest.mark.parametrize(
    ("mask", "queries", "is_causal", "shape"),
    [
        (EVERYTHING, 3, False, None),
        (AttentionMask(causal=True), 3, True, None),
        # One query at the end sees everything: no mask, and above all not is_causal, which would show it key 0 only.
        (AttentionMask(causal=True, query_offset=2), 1, False, None),
        (AttentionMask(causal=True, query_offset=1), 2, False, (1, 1, 2, 3)),
        (AttentionMask(causal=True), 2, False, (1, 1, 2, 3)),  # not square
        (AttentionMask(window=9), 3, False, None),  # wider than all keys
        (AttentionMask(causal=True, window=9), 3, True, None),
        (AttentionMask(causal=True, window=2), 3, False, (1, 1, 3, 3)),
        (AttentionMask(key_padding=PADDING), 3, False, (1, 1, 1, 3)),
        (AttentionMask(key_padding=PADDING, causal=True, query_offset=2), 1, False, (1, 1, 1, 3)),
        (AttentionMask(key_padding=PADDING, causal=True), 3, False, (1, 1, 3, 3)),
    ],
)
def test_the_cheapest_exact_form_reaches_the_kernel(
    kernel_calls: list[dict], mask: AttentionMask, queries: int, is_causal: bool, shape: tuple | None
) -> None:
    Attend(backend="flash")(*inputs(queries=queries), mask)
    (call,) = kernel_calls
    assert call["is_causal"] is is_causal
    assert (None if call["attn_mask"] is None else tuple(call["attn_mask"].shape)) == shape


def test_one_mask_for_all_layers(kernel_calls: list[dict]) -> None:
    layers = [
        MultiHeadAttention(width=4, heads=2, kv_heads=None, attend=functools.partial(Attend, backend="flash"))
        for _ in range(3)
    ]
    x, mask = torch.zeros(1, 3, 4), AttentionMask(causal=True, key_padding=PADDING)
    for layer in layers:
        x = layer(x, mask)
    assert len({call["attn_mask"].data_ptr() for call in kernel_calls}) == 1
    assert len(kernel_calls) == 3


@given(cases(dtypes=(torch.float32,)))
def test_what_gpu_kernels_are_given_computes_the_same(case: Case) -> None:
    """GPU kernels are spared rows of -inf and grouped heads under a mask; run here on the CPU's kernel."""
    query, key, value = (tensor.detach() for tensor in case.tensors())
    mask = case.mask()
    key, value = mask.zero_hidden(key, value, case.queries)
    key, value, options, empty = flash._lower(query, key, value, mask, gpu=True)
    if options["attn_mask"] is not None:
        assert options["attn_mask"].any(dim=-1).all(), "a row that sees nothing is NaN in some GPU kernels"
    assert not options["enable_gqa"], "in float32, GPU kernels know no grouped heads"
    context = F.scaled_dot_product_attention(query, key, value, **options)
    context = context if empty is None else context.masked_fill(empty, 0.0)
    assert torch.allclose(context, solve(case, "naive", case.tensors())[0], atol=1e-5)


def test_gpu_keeps_grouped_heads_where_the_flash_kernel_takes_them() -> None:
    query, key, value = inputs(group=2, dtype=torch.bfloat16)
    shared, _, options, _ = flash._lower(query, key, value, AttentionMask(causal=True), gpu=True)
    assert shared is key
    assert options["enable_gqa"]
    assert options["is_causal"]


def test_the_kernel_is_named() -> None:
    query, key, value = inputs(group=2)
    for mask in (EVERYTHING, AttentionMask(causal=True), AttentionMask(key_padding=PADDING)):
        assert Attend(backend="flash").kernel(query, key, value, mask) == "flash_attention"
    assert Attend(backend="naive").kernel(query, key, value, EVERYTHING) == "naive"


@pytest.mark.filterwarnings("ignore:.*kernel:UserWarning", "ignore:.*stride:UserWarning")
def test_flash_never_falls_back_to_the_plain_computation() -> None:
    # Every fused kernel wants the last dimension contiguous; the plain one would take this.
    query = torch.zeros(1, 2, 4, 8).transpose(-1, -2)
    attend = Attend(backend="flash")
    for call in (attend, attend.kernel):
        with pytest.raises(UserError, match="no fused kernel takes float32 queries of head size 4 on cpu"):
            call(query, query, query, EVERYTHING)
    assert attend.kernel(*3 * [query.contiguous()], EVERYTHING) == "flash_attention"


def test_a_layer_says_before_training_what_it_cannot_do() -> None:
    def layer(backend: str) -> MultiHeadAttention:
        return MultiHeadAttention(width=4, heads=2, kv_heads=1, attend=functools.partial(Attend, backend=backend))

    cpu = torch.device("cpu")
    with pytest.raises(UserError, match=r"attention=flex cannot train on a CPU .* train with attention=flash"):
        layer("flex").check_device(cpu, torch.float32, training=True)
    layer("flex").check_device(cpu, torch.float32, training=False)
    layer("flash").check_device(cpu, torch.bfloat16, training=True)


def test_other_errors_of_the_kernel_keep_their_own_words() -> None:
    query, key, value = inputs()
    with pytest.raises(RuntimeError, match="same dtype"):
        Attend(backend="flash")(query, key.double(), value.double(), EVERYTHING)
