"""The character model: it never sees the future, starts at chance, counts its parameters, and learns."""

import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from small import SIZES, stirred, untouched

from triptych.attention import AttentionMask
from triptych.errors import UserError
from triptych.models.blocks import FeedForward, parameter_count

TOKENS = torch.randint(0, 11, (2, 16), generator=torch.Generator().manual_seed(3))


@given(position=st.integers(0, 15), token=st.integers(0, 10), seed=st.integers(0, 20))
@pytest.mark.parametrize("backend", ["naive", "flash"])
@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_a_later_token_never_changes_an_earlier_output(
    backend: str, positions: str, position: int, token: int, seed: int
) -> None:
    model = stirred(backend=backend, positions=positions)
    before = torch.randint(0, 11, (1, 16), generator=torch.Generator().manual_seed(seed))
    after = before.clone()
    after[0, position] = token
    with torch.no_grad():
        one, other = model(before), model(after)
    assert torch.equal(one[:, :position], other[:, :position])  # to the bit
    if not torch.equal(before, after):
        assert not torch.equal(one[:, position], other[:, position])


@pytest.mark.parametrize("backend", ["naive", "flash"])
@pytest.mark.parametrize("mask", [AttentionMask(causal=True, window=3)], ids=AttentionMask.describe)
def test_a_window_hides_the_future_and_the_far_past(backend: str, mask: AttentionMask) -> None:
    block = stirred(backend=backend).blocks[0]
    x = torch.randn(1, 9, 16, generator=torch.Generator().manual_seed(0))
    changed = x.clone()
    changed[0, 4] += 1
    with torch.no_grad():
        moved = (block(x, mask) != block(changed, mask)).any(-1)[0]
    assert moved.tolist() == [False] * 4 + [True] * 3 + [False] * 2


@pytest.mark.parametrize("backend", ["naive", "flash"])
@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_cached_steps_equal_one_pass(backend: str, positions: str) -> None:
    model = stirred(backend=backend, positions=positions)
    with torch.no_grad():
        whole, cache = model(TOKENS), model.new_cache()
        steps = [model(TOKENS[:, :5], cache), *(model(TOKENS[:, i : i + 1], cache) for i in range(5, 16))]
    assert torch.allclose(torch.cat(steps, 1), whole, atol=1e-5)
    with pytest.raises(ValueError, match="17 positions do not fit the context of 16"):
        model(TOKENS[:, :1], cache)


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_backends_agree_on_loss_and_gradients(positions: str) -> None:
    def run(backend: str) -> list[torch.Tensor]:
        model = stirred(backend=backend, positions=positions, qk_norm=True)
        loss = F.cross_entropy(model(TOKENS)[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())
        loss.backward()
        return [loss.detach(), *(parameter.grad for parameter in model.parameters())]

    for one, other in zip(run("naive"), run("flash"), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_order_matters() -> None:
    """Without positions, a causal model of one layer sees its past as a bag."""
    for positions in ("rotary", "learned"):
        model = stirred(positions=positions, depth=1)
        a, b = torch.tensor([[1, 2, 3]]), torch.tensor([[2, 1, 3]])
        assert not torch.allclose(model(a)[0, -1], model(b)[0, -1], atol=1e-3)


def test_it_starts_at_chance() -> None:
    def loss(**changes) -> float:
        return F.cross_entropy(untouched(**changes)(TOKENS)[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten()).item()

    assert loss() == pytest.approx(math.log(11), abs=1e-6)
    assert loss(tied=True) == pytest.approx(math.log(11), abs=0.1)


def test_blocks_start_as_the_identity() -> None:
    x = torch.randn(1, 4, 16)
    for block in untouched().blocks:
        assert torch.equal(block(x, AttentionMask(causal=True)), x)


def test_parameters_counted_by_hand() -> None:
    # width 16, 4 heads of 4, 2 key/value heads of 4: query 16x16, key and value 16x8, output 16x16; feed-forward
    # 16x24 twice; two norms of 16.
    block = 256 + 2 * 128 + 256 + 2 * 384 + 2 * 16
    embedding, norm, predict = 11 * 16, 16, 11 * 16
    assert parameter_count(untouched()) == embedding + 2 * block + norm + predict
    assert parameter_count(untouched(tied=True)) == embedding + 2 * block + norm
    assert parameter_count(untouched(positions="learned")) == embedding + 16 * 16 + 2 * block + norm + predict
    assert parameter_count(untouched(qk_norm=True)) == embedding + 2 * (block + 2 * 4) + norm + predict


@pytest.mark.parametrize("changes", [{}, {"tied": True, "positions": "learned", "qk_norm": True}])
def test_after_one_step_every_parameter_has_a_gradient(changes: dict) -> None:
    """What starts at 0 blocks the gradient to what lies before it for one step, and for one step only."""
    model = untouched(**changes)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(3):  # the projections to 0 open one after the other: predict, output, then the rest
        optimizer.zero_grad()
        F.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.flatten()).backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_it_learns_one_batch_by_heart() -> None:
    model = untouched()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(100):
        loss = F.cross_entropy(model(TOKENS)[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05


def test_dropout_acts_in_training_only() -> None:
    model = stirred(dropout=0.5)
    assert torch.equal(model(TOKENS), model(TOKENS))
    model.train()
    assert not torch.equal(model(TOKENS), model(TOKENS))


def test_squared_relu_by_hand() -> None:
    part = FeedForward(width=1, hidden=2, activation="relu_squared")
    with torch.no_grad():
        part.expand.weight.copy_(torch.tensor([[3.0], [-1.0]]))
        part.contract.weight.copy_(torch.tensor([[1.0, 1.0]]))
    assert part(torch.tensor([[[2.0]]])).item() == 36  # relu(6)^2 + relu(-2)^2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"context": 0}, "model.context=0; it must be at least 1"),
        ({"depth": 0}, "model.depth=0"),
        ({"dropout": 1.0}, "model.dropout=1.0; it must be in 0 <= dropout < 1"),
        ({"positions": "absolute"}, "model.positions=absolute is not known; use rotary or learned"),
        ({"heads": 3}, "width=16 does not divide into model.heads=3; what works: 1, 2, 4, 8$"),
        ({"heads": 16, "kv_heads": None}, "16 / 16 heads is odd; what works: 1, 2, 4, 8$"),
        ({"heads": 0, "kv_heads": None}, "model.heads=0"),
        ({"kv_heads": 3}, "heads=4 is no multiple of model.kv_heads=3"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_refusals(changes: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        untouched(**changes)


COMPILED = f"""
import functools, torch
from triptych.attention import Attend, AttentionMask
from triptych.models.charlm import CharLM

for backend in ("naive", "flash"):
    torch.manual_seed(0)
    model = CharLM(**{SIZES!r}, attention=functools.partial(Attend, backend=backend))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    compiled = torch.compile(model, fullgraph=True)
    tokens = torch.randint(0, 11, (2, 16))
    runs = []
    for run in (model, compiled):
        out = run(tokens)
        runs.append([out, *torch.autograd.grad(out.square().sum(), list(model.parameters()))])
    for eager, fast in zip(*runs):
        assert torch.allclose(eager, fast, rtol=1e-4, atol=1e-4), (eager - fast).abs().max()
print("equal")
"""


@pytest.mark.slow
def test_compiled_equals_eager_in_one_graph() -> None:
    """In a process of its own: run-time shape checks are no part of what is compiled in production."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True)
    assert done.stdout.strip() == "equal", done.stderr[-2000:]
