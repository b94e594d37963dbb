"""FlexAttention: equal to naive, honest about what it cannot do on a CPU, and no compilation per decoding step.

Each kind of call compiles for seconds, so most of this is slow.
"""

import functools
import itertools

import pytest
import torch
from cases import Case

from triptych.attention import Attend, AttentionMask, flex, set_backend
from triptych.attention.score_mods import alibi, soft_cap
from triptych.errors import UserError
from triptych.models.charlm import CharLM
from triptych.models.sampling import generate

FULL = {
    "batch": 2,
    "kv_heads": 2,
    "group": 2,
    "queries": 5,
    "keys": 7,
    "head_size": 8,
    "causal": True,
    "window": 4,
    "offset": 2,
    "padding": ((False,) * 7, (True, False, True, True, True, True, False)),
}


def assert_equals_naive(case: Case, score_mod=None) -> None:
    query, key, value = (tensor.detach() for tensor in case.tensors())
    found = Attend(backend="flex", score_mod=score_mod)(query, key, value, case.mask())
    exact = Attend(backend="naive", score_mod=score_mod)(query.double(), key.double(), value.double(), case.mask())
    allowed = 6 * max(torch.finfo(case.dtype).eps, 1e-6)
    assert torch.allclose(found.double(), exact, rtol=0, atol=allowed)


def test_shared_heads_window_offset_padding_an_empty_example_and_alibi() -> None:
    case = Case(**FULL)
    assert_equals_naive(case, alibi(heads=4))
    query, key, value = (tensor.detach() for tensor in case.tensors())
    unseen = case.never_seen()
    poisoned = key.masked_fill(unseen, torch.nan), value.masked_fill(unseen, torch.inf)
    context = Attend(backend="flex", score_mod=alibi(heads=4))(query, *poisoned, case.mask())
    assert context.isfinite().all()
    assert not context[0].any(), "example 0 sees nothing"


@pytest.mark.parametrize("needs", range(3))
def test_cpu_training_is_refused(needs: int) -> None:
    tensors = [tensor.detach() for tensor in Case().tensors()]
    tensors[needs].requires_grad_()
    with pytest.raises(UserError, match=r"cannot train on a CPU .* no backward pass there"):
        Attend(backend="flex")(*tensors, AttentionMask())


def test_float64_on_a_cpu_is_refused() -> None:
    tensors = [tensor.detach() for tensor in Case(dtype=torch.float64).tensors()]
    with pytest.raises(UserError, match="no float64 on a CPU"):
        Attend(backend="flex")(*tensors, AttentionMask())


def test_a_kept_block_mask_made_in_validation_serves_training() -> None:
    with torch.inference_mode():
        made = flex._positional(True, 3, 0, 11, 11, torch.device("cpu"))
    assert not made.kv_num_blocks.is_inference()
    assert flex._positional(True, 3, 0, 11, 11, torch.device("cpu")) is made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "score_mod"),
    [
        ({"dtype": torch.bfloat16}, None),
        ({"dtype": torch.float16}, soft_cap(cap=1.5)),
        ({"head_size": 5, "padding": None}, None),
        ({"head_size": 1, "padding": None, "window": None, "causal": False, "offset": 0}, None),
        ({"queries": 300, "keys": 300, "offset": 0, "padding": None, "window": 50}, None),
        ({"queries": 7, "offset": 0, "window": None}, alibi(heads=4)),
    ],
)
def test_equals_naive(changes: dict, score_mod) -> None:
    assert_equals_naive(Case(**(FULL | changes)), score_mod)


@pytest.mark.slow
def test_more_kinds_of_call_than_torch_compiles_by_default() -> None:
    """torch stops compiling a function after 8 kinds of call and computes plainly: that must not happen here."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for kv_heads, head_size in itertools.product((1, 2, 3, 4, 5), (4, 5)):
        assert_equals_naive(Case(kv_heads=kv_heads, head_size=head_size, causal=True))
    frames = torch._dynamo.utils.counters["frames"]
    assert frames["ok"] == frames["total"]
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.slow
def test_padded_batches_of_many_lengths_share_kernels() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for keys in range(5, 17):
        padding = ((True,) * keys, (True,) * (keys - 3) + (False,) * 3)
        for window in (2, 4):
            assert_equals_naive(Case(batch=2, queries=keys, keys=keys, causal=True, window=window, padding=padding))
    # Two fixed sizes of padding table (8 and 16), and the first call before lengths become variables.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 4


@pytest.mark.slow
@pytest.mark.parametrize("score_mod", [None, alibi(heads=4)], ids=["plain", "alibi"])
def test_cached_decoding_compiles_a_few_times_not_once_a_step(score_mod) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    model = CharLM(
        vocab_size=9,
        context=32,
        depth=2,
        width=32,
        heads=4,
        kv_heads=2,
        feed_forward=8,
        activation="gelu",
        positions="rotary",
        qk_norm=False,
        tied=True,
        dropout=0.0,
        attention=functools.partial(Attend, backend="naive", score_mod=score_mod),
    ).eval()
    for block in model.blocks:
        torch.nn.init.normal_(block.attention.output.weight)
    expected = list(generate(model, [1, 2, 3], length=60, temperature=0))
    set_backend(model, "flex")
    assert list(generate(model, [1, 2, 3], length=60, temperature=0)) == expected
    # Prompt, step, step with a full cache, and refill: measured 4.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 6
