"""Other ways to attend: numbers worked by hand, the map against the fast form, and models that train on them."""

import math
from functools import partial

import pytest
import torch
from cases import Case, cases
from hypothesis import given
from torch import Tensor

from triptych.attention import EVERYTHING, Attend, AttentionMask, naive, set_backend
from triptych.attention.operators.base import AttentionOperator
from triptych.attention.operators.delta import DeltaAttend
from triptych.attention.operators.hard import HardAttend
from triptych.attention.operators.linear import CHUNK, LinearAttend
from triptych.attention.operators.positional import PositionalAttend
from triptych.errors import UserError
from triptych.maps.capture import capture, intervene
from triptych.models.charlm import CharLM

CAUSAL = AttentionMask(causal=True)
POSITIONAL = {"heads": 2, "positions": 24, "rank": None}


def row(*numbers: float) -> Tensor:
    """One batch, one head, one channel; a position each."""
    return torch.tensor(numbers)[None, None, :, None]


def rows(module: AttentionOperator, query: Tensor, key: Tensor, mask: AttentionMask) -> list[list[float]]:
    return module.weights_and_scores(query, key, mask)[0][0, 0].tolist()


def test_linear_attention_by_hand() -> None:
    """phi(0) = 1 and phi(1) = 2: weights 1/3 and 2/3."""
    module, query, key, value = LinearAttend(), row(0.0), row(0.0, 1.0), row(0.0, 3.0)
    assert rows(module, query, key, EVERYTHING)[0] == pytest.approx([1 / 3, 2 / 3])
    assert module(query, key, value, EVERYTHING).item() == pytest.approx(2)


def test_the_delta_rule_corrects_what_a_key_wrote() -> None:
    """1, then 3, written with full strength at one key: it reads 3. A sum would read 4."""
    module = DeltaAttend(strength=0.5)
    with torch.no_grad():
        module.strength.fill_(math.inf)
    same = row(1.0, 1.0)
    assert module(same, same, row(1.0, 3.0), CAUSAL).flatten().tolist() == pytest.approx([1, 3])
    assert rows(module, same, same, CAUSAL) == [[1, 0], [0, 1]]


def test_the_delta_rule_written_as_its_loop() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 1, 6, 4).unbind()
    module = DeltaAttend(strength=0.7)

    def phi(x: Tensor) -> Tensor:
        found = torch.nn.functional.elu(x) + 1
        return found / found.norm()

    W, expected = torch.zeros(4, 4), []
    for q, k, v in zip(query[0, 0], key[0, 0], value[0, 0], strict=True):
        W = W + 0.7 * torch.outer(v - W @ phi(k), phi(k))
        expected.append(W @ phi(q))
    torch.testing.assert_close(module(query, key, value, CAUSAL)[0, 0], torch.stack(expected))


def test_delta_weights_may_be_negative() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 12, 4).unbind()
    assert torch.tensor(rows(DeltaAttend(strength=0.5), query, key, CAUSAL)).min() < 0


@pytest.mark.parametrize("mask", [EVERYTHING, AttentionMask(causal=True, window=3)])
def test_the_delta_rule_needs_an_order(mask: AttentionMask) -> None:
    with pytest.raises(UserError, match="attention=delta writes position after position"):
        DeltaAttend(strength=0.5)(row(1.0), row(1.0), row(1.0), mask)


def test_hard_attention_by_hand() -> None:
    """Scores 1 and 2, values 0 and 10: out 10, and the gradient that softmax would have."""
    query, key, value = row(1.0), row(1.0, 2.0).requires_grad_(), row(0.0, 10.0)
    module = HardAttend()
    context = module(query, key, value, EVERYTHING)
    (gradient,) = torch.autograd.grad(context.sum(), key)  # the keys are the scores: one channel, query 1
    assert context.item() == pytest.approx(10)
    assert gradient.flatten().tolist() == pytest.approx([-1.9661, 1.9661], abs=5e-5)


def test_positional_attention_by_hand() -> None:
    """F1 = [1, 2], F2 = [1, 0]: P = [[1, 0], [2, 0]]."""
    module = PositionalAttend(heads=1, positions=2, rank=1)
    with torch.no_grad():
        module.factors[0].copy_(torch.tensor([[[1.0], [2.0]]]))
        module.factors[1].copy_(torch.tensor([[[1.0], [0.0]]]))
    anything = row(3.0, -5.0)
    weights, scores = module.weights_and_scores(anything, anything, CAUSAL)
    assert scores[0, 0, 1].tolist() == [2, 0]
    assert weights[0, 0].flatten().tolist() == pytest.approx([1, 0, 0.8808, 0.1192], abs=5e-5)


def test_positional_weights_know_nothing_of_the_input() -> None:
    module = PositionalAttend(heads=2, positions=5, rank=3)
    one, other = (module.weights_and_scores(x, x, EVERYTHING)[0] for x in torch.randn(2, 3, 2, 4, 8))
    assert torch.equal(one, other)
    assert torch.equal(one[0], one[2])


def test_positional_attention_of_another_size_is_refused() -> None:
    x = torch.randn(1, 2, 6, 4)
    with pytest.raises(UserError, match=r"give attention.heads=2 attention.positions=6"):
        PositionalAttend(heads=2, positions=5, rank=None)(x, x, x, EVERYTHING)


def made(name: str, case: Case) -> AttentionOperator:
    torch.manual_seed(case.seed)
    positions = max(case.keys, case.offset + case.queries)
    return {
        "linear": LinearAttend,
        "delta": partial(DeltaAttend, strength=0.5),
        "hard": HardAttend,
        "positional": lambda: PositionalAttend(heads=case.kv_heads * case.group, positions=positions, rank=2),
    }[name]()


@pytest.mark.parametrize("name", ["linear", "delta", "hard", "positional"])
@given(case=cases(dtypes=(torch.float64, torch.float32, torch.bfloat16)))
def test_weights_times_values_are_the_context(name: str, case: Case) -> None:
    """What maps show is what ran, whatever the mask; a query without a visible key gets 0, and gradients are finite."""
    if name == "delta" and (not case.causal or case.window is not None):
        return
    module, mask = made(name, case), case.mask()
    query, key, value = case.tensors()
    context = module(query, key, value, mask)
    weights, _ = module.weights_and_scores(query, *mask.zero_hidden(key, value, case.queries)[:1], mask)
    expected = naive.weighted_sum(weights, mask.zero_hidden(key, value, case.queries)[1])
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 4e-2}[case.dtype]
    torch.testing.assert_close(context.to(expected.dtype), expected, rtol=tolerance, atol=tolerance)
    visible = mask.visible(case.queries, case.keys, query.device)
    assert not weights.masked_select(~visible.expand_as(weights)).any()
    assert not context.masked_select(~visible.any(-1)[..., None].expand_as(context)).any()
    if name != "delta":  # whose weights need not sum to 1
        assert torch.allclose(weights.sum(-1), visible.any(-1).expand(weights.shape[:-1]).to(weights.dtype), atol=1e-4)
    for gradient in torch.autograd.grad(context.sum(), [query, key, value], materialize_grads=True):
        assert gradient.isfinite().all()


def test_linear_attention_over_several_chunks() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 2, 2 * CHUNK + 7, 4, dtype=torch.float64).unbind()
    module = LinearAttend()
    expected = naive.weighted_sum(module.weights_and_scores(query, key, CAUSAL)[0], value)
    torch.testing.assert_close(module(query, key, value, CAUSAL), expected)


def language_model(attention: type[AttentionOperator]) -> CharLM:
    torch.manual_seed(0)
    sizes = {"depth": 2, "width": 32, "heads": 2, "kv_heads": None, "feed_forward": 64, "context": 24}
    more = {"activation": "gelu", "positions": "rotary", "qk_norm": False, "tied": False, "dropout": 0.0}

    def attend(**given: object) -> Attend:
        return attention(**given, **{DeltaAttend: {"strength": 0.5}, PositionalAttend: POSITIONAL}.get(attention, {}))

    return CharLM(vocab_size=5, attention=attend, **sizes, **more)


@pytest.mark.parametrize("attention", [LinearAttend, DeltaAttend, HardAttend, PositionalAttend])
def test_a_language_model_learns_to_repeat(attention: type[AttentionOperator]) -> None:
    """a b c a b c ...: every rule can look three places back, or learn it by heart; and the cache continues it."""
    model = language_model(attention)
    text = torch.tensor([1, 2, 3] * 8)[None]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(model(text[:, :-1])[0], text[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.05
    cache = model.new_cache()
    stepped = torch.cat([model(text[:, i : i + 1], cache) for i in range(10)], dim=1)
    torch.testing.assert_close(stepped, model(text[:, :10]), rtol=1e-4, atol=1e-4)


def test_maps_and_interventions_take_these_too() -> None:
    model, tokens = language_model(DeltaAttend), torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad(), capture(model, scores=True) as maps:
        model(tokens)
    first = maps["blocks.0.attention.attend"]
    assert first.score == DeltaAttend.description
    assert first.backend == "delta"
    assert first.scores is None
    with torch.no_grad(), intervene(model, lambda weights, site: weights):
        same = model(tokens)
    torch.testing.assert_close(same, model(tokens))


def test_no_backend_stands_in_for_another_operation() -> None:
    model = language_model(LinearAttend)
    with pytest.raises(UserError, match="attention=flash: this model attends by attention=linear"):
        set_backend(model, "flash")


@pytest.mark.parametrize(
    "module", [LinearAttend(), HardAttend(), DeltaAttend(strength=0.5), PositionalAttend(**POSITIONAL)]
)
def test_a_padding_of_another_batch_is_refused_as_attend_refuses_it(module: AttentionOperator) -> None:
    """One that is broadcast over the batch would hide the keys of one example in all."""
    query = torch.randn(3, 2, 4, 8)
    mask = AttentionMask(key_padding=torch.tensor([[True, True, True, False]]))
    for attend in (Attend(backend="naive"), module):
        with pytest.raises(ValueError, match=r"key_padding \(1, 4\) does not fit the keys' B S = \(3, 4\)"):
            attend(query, query, query, mask)
