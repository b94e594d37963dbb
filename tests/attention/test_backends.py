"""Every backend gives the same context and gradients, whatever the shapes, dtype and mask; naive equals loops."""

import pytest
import torch
from cases import DTYPES, Case, cases, solve
from hypothesis import example, given

from triptych.attention import Attend, AttentionMask
from triptych.attention.score_mods import alibi, soft_cap

# A fused kernel reads half-precision inputs, sums in float32 and rounds the weights, the context and in backward
# what it hands from one product to the next: a few roundings of numbers no larger than the answer's largest. In
# float32 and float64 the sums differ in order: tens of terms, each with its own rounding.
ROUNDINGS = {torch.float64: 32, torch.float32: 32, torch.bfloat16: 6, torch.float16: 6}
EMPTY_ROW = Case(batch=2, queries=2, keys=2, padding=((False, False), (True, False)))
ALL_EMPTY = Case(causal=True, window=1, offset=5)
NAMES = ("context", "query gradient", "key gradient", "value gradient")


def assert_close(case: Case, found: tuple, expected: tuple) -> None:
    for name, one, other in zip(NAMES, found, expected, strict=True):
        assert one.dtype == case.dtype
        allowed = ROUNDINGS[case.dtype] * torch.finfo(case.dtype).eps * max(1.0, other.abs().max().item())
        worst = (one.double() - other.double()).abs().max().item()
        assert worst <= allowed, f"{name}: off by {worst:.2e}, allowed {allowed:.2e}"


@given(cases(dtypes=(torch.float64,)))
@example(EMPTY_ROW)
@example(ALL_EMPTY)
def test_naive_is_the_equation(case: Case) -> None:
    tensors = tuple(tensor.detach().double() for tensor in case.tensors())
    for name, one, other in zip(NAMES, solve(case, "naive", tensors), solve(case, "loops", tensors), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12), name


@given(cases())
@example(EMPTY_ROW)
@example(ALL_EMPTY)
@pytest.mark.parametrize("backend", ["naive", "flash"])
def test_context_and_gradients_in_every_dtype(backend: str, case: Case) -> None:
    tensors = case.tensors()
    exact = tuple(tensor.detach().double() for tensor in tensors)
    assert_close(case, solve(case, backend, tensors), solve(case, "naive", exact))


@given(cases(dtypes=(torch.float32, torch.bfloat16)))
@example(EMPTY_ROW)
@pytest.mark.parametrize("backend", ["naive", "flash"])
def test_what_no_query_sees_changes_nothing(backend: str, case: Case) -> None:
    query, key, value = (tensor.detach() for tensor in case.tensors())
    clean = solve(case, backend, (query, key, value))
    unseen = case.never_seen()
    poisoned = (query, key.masked_fill(unseen, torch.nan), value.masked_fill(unseen, torch.inf))
    for name, one, other in zip(NAMES, clean, solve(case, backend, poisoned), strict=True):
        assert torch.equal(one, other), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", ["naive", "flash"])
def test_a_query_that_sees_nothing_gets_0_and_gives_0(backend: str, dtype: torch.dtype) -> None:
    case = Case(batch=2, queries=2, keys=2, padding=((False, False), (True, False)), dtype=dtype, head_size=3)
    context, query_grad, key_grad, value_grad = solve(case, backend, case.tensors())
    for gradient in (context, query_grad, key_grad, value_grad):
        assert gradient.isfinite().all()
        assert not gradient[0].any()
    # Example 1 sees one key: all weight goes there, so the context is that value and scores do not matter.
    assert torch.equal(context[1, 0], case.tensors()[2][1, 0, :1].detach().expand(2, 3))
    # In float16 the fused kernel of some processors leaves the last bit of the difference of two equal sums.
    last_bit = 2.0**-24 if (backend, dtype) == ("flash", torch.float16) else 0.0
    assert query_grad[1].abs().max() <= last_bit
    assert value_grad[1, 0, 0].all()


@pytest.mark.parametrize(
    "mask",
    [
        AttentionMask(causal=True),
        AttentionMask(causal=True, window=37, query_offset=5),
        AttentionMask(key_padding=torch.arange(530).repeat(2, 1) < torch.tensor([[530], [7]])),
    ],
    ids=AttentionMask.describe,
)
def test_more_keys_than_one_tile_of_the_kernel(mask: AttentionMask) -> None:
    case = Case(batch=2, kv_heads=1, group=2, queries=530, keys=530, head_size=16)
    tensors = case.tensors()

    def run(backend: str, tensors: tuple) -> tuple:
        context = Attend(backend=backend)(*tensors, mask)
        return context, *torch.autograd.grad(context.square().sum(), tensors)

    for one, other in zip(run("flash", tensors), run("naive", tensors), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)


@given(cases(dtypes=(torch.float32,)))
def test_shared_key_value_heads_equal_repeated_ones(case: Case) -> None:
    query, key, value = (tensor.detach() for tensor in case.tensors())
    repeated = (query, key.repeat_interleave(case.group, 1), value.repeat_interleave(case.group, 1))
    for backend in ("naive", "flash"):
        shared = Attend(backend=backend)(query, key, value, case.mask())
        assert torch.allclose(shared, Attend(backend=backend)(*repeated, case.mask()), atol=1e-5)


def test_naive_computes_in_float32_also_under_autocast() -> None:
    query, key, value = (t.detach() for t in Case(queries=50, keys=50, dtype=torch.bfloat16).tensors())
    outside = Attend(backend="naive")(query, key, value, AttentionMask(causal=True))
    with torch.autocast("cpu", torch.bfloat16):
        inside = Attend(backend="naive")(query, key, value, AttentionMask(causal=True))
    assert torch.equal(outside, inside)


def test_alibi_costs_each_head_its_slope_per_key_of_distance() -> None:
    # 2 heads: slopes 2^-4 and 2^-8. The query stands at position 3, three keys before it.
    score = torch.zeros(1, 2, 1, 4)
    at = (torch.tensor([0]), torch.tensor([0, 1])[:, None, None], torch.tensor([[3]]), torch.arange(4))
    changed = alibi(heads=2)(score, *at)
    assert changed[0, 0, 0].tolist() == [-3 / 16, -2 / 16, -1 / 16, 0]
    assert changed[0, 1, 0].tolist() == [-3 / 256, -2 / 256, -1 / 256, 0]


def test_soft_cap_bounds_scores_and_leaves_small_ones() -> None:
    nowhere = (torch.tensor(0),) * 4
    changed = soft_cap(cap=2.0)(torch.tensor([-100.0, 0.0, 0.002, 100.0]), *nowhere)
    assert torch.allclose(changed, torch.tensor([-2.0, 0.0, 0.002, 2.0]))
    with pytest.raises(ValueError, match="cap is 0"):
        soft_cap(cap=0)


def test_a_score_change_acts_before_the_mask_and_at_the_true_position() -> None:
    """The same token asked in a full pass and as a cached step (offset 3) gives the same context."""
    query, key, value = (t.detach() for t in Case(queries=4, keys=4, group=2).tensors())
    attend = Attend(backend="naive", score_mod=alibi(heads=2))
    whole = attend(query, key, value, AttentionMask(causal=True))
    step = attend(query[:, :, 3:], key, value, AttentionMask(causal=True, query_offset=3))
    assert torch.allclose(whole[:, :, 3:], step, atol=1e-6)
    plain = Attend(backend="naive")(query, key, value, AttentionMask(causal=True))
    assert not torch.allclose(whole, plain)
