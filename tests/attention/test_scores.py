"""Other ways for a query to meet a key: numbers worked by hand, and the same contexts from every backend that can."""

import math

import pytest
import torch
from cases import cases
from hypothesis import given
from torch import Tensor, nn

from triptych.attention import EVERYTHING, Attend, AttentionMask, naive, set_backend
from triptych.attention.score_mods import soft_cap
from triptych.attention.scores import Additive, Dot, General, Score
from triptych.errors import UserError
from triptych.maps.capture import capture, intervene

QUERY, KEY = torch.tensor([[[[1.0]]]]), torch.tensor([[[[0.0], [1.0]]]])


def filled(score: Score, value: float) -> Score:
    for parameter in score.parameters():
        nn.init.constant_(parameter, value)
    return score


def drawn(name: str, size: int) -> Score:
    torch.manual_seed(0)
    return {"dot": Dot, "general": lambda: General(size=size), "additive": lambda: Additive(size=size, hidden=5)}[
        name
    ]()


@pytest.mark.parametrize(
    ("score", "weights"),
    [
        (filled(Additive(size=1, hidden=1), 1.0), [0.4496, 0.5504]),  # tanh 1, tanh 2
        (Dot(), [0.2689, 0.7311]),  # 0, 1
        (filled(General(size=1), 1.0), [0.2689, 0.7311]),
        (filled(General(size=1), 3.0), [0.0474, 0.9526]),  # 0, 3
    ],
)
def test_weights_by_hand(score: Score, weights: list[float]) -> None:
    found = naive.softmax(naive.scores(QUERY, KEY, EVERYTHING, None, score))
    assert found.flatten().tolist() == pytest.approx(weights, abs=5e-5)


def test_general_and_additive_by_hand_in_two_channels() -> None:
    query, key = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[3.0, 5.0]]]])
    general = General(size=2)
    with torch.no_grad():
        general.weight.copy_(torch.tensor([[1.0, 0.0], [10.0, 100.0]]))
    # (1 + 20, 200) . (3, 5)
    assert naive.scores(query, key, EVERYTHING, None, general).item() == 21 * 3 + 200 * 5
    additive = Additive(size=2, hidden=2)
    with torch.no_grad():
        additive.query_weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 0.1]]))
        additive.key_weight.copy_(torch.tensor([[0.0, -0.1], [0.0, 0.0]]))
        additive.vector.copy_(torch.tensor([2.0, -1.0]))
    expected = 2 * math.tanh(1 - 0.5) - math.tanh(0.2)
    assert naive.scores(query, key, EVERYTHING, None, additive).item() == pytest.approx(expected, abs=1e-6)


@given(cases(dtypes=(torch.float64,)))
@pytest.mark.parametrize("name", ["dot", "general"])
def test_fused_kernels_compute_the_same(name: str, case) -> None:
    """Context and every gradient, those of the score's own weights too."""

    def solve(backend: str) -> list[Tensor]:
        score = drawn(name, case.head_size).double()
        query, key, value = case.tensors()
        context = Attend(backend=backend, score=score)(query, key, value, case.mask())
        leaves = [query, key, value, *score.parameters()]
        direction = torch.randn(context.shape, generator=torch.Generator().manual_seed(1), dtype=context.dtype)
        return [context, *torch.autograd.grad(context, leaves, direction, materialize_grads=True)]

    for one, other in zip(solve("naive"), solve("flash"), strict=True):
        assert torch.allclose(one, other, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dot", "general"])
def test_flex_computes_the_same(name: str) -> None:
    torch.manual_seed(1)
    query, key, value = (torch.randn(2, 2, 3, 16) for _ in range(3))
    score, mask = drawn(name, 16), AttentionMask(causal=True)
    with torch.no_grad():
        one, other = (Attend(backend=each, score=score)(query, key, value, mask) for each in ("naive", "flex"))
    assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("name", ["dot", "general", "additive"])
def test_what_no_query_may_see_changes_nothing(name: str) -> None:
    torch.manual_seed(1)
    query, key = torch.randn(1, 2, 3, 4), torch.randn(1, 1, 5, 4)
    mask = AttentionMask(key_padding=torch.tensor([[True, True, True, False, False]]))
    attend = Attend(backend="naive", score=drawn(name, 4))
    broken = key.clone()
    broken[:, :, 3:] = torch.nan
    assert torch.equal(attend(query, key, key, mask), attend(query, broken, broken, mask))
    assert torch.allclose(attend(query, key, key, mask), attend(query, key[:, :, :3], key[:, :, :3], EVERYTHING))


@pytest.mark.parametrize("backend", ["naive", "flash"])
def test_half_precision_is_computed_in_single(backend: str) -> None:
    """As without a score, also where its weights are of half precision."""
    torch.manual_seed(1)
    query, key = torch.randn(1, 1, 3, 8).bfloat16(), torch.randn(1, 1, 4, 8).bfloat16()
    score = drawn("general", 8).bfloat16()
    context = Attend(backend=backend, score=score)(query, key, key, EVERYTHING)
    assert context.dtype == torch.bfloat16
    exact = Attend(backend="naive", score=score.float())(query.float(), key.float(), key.float(), EVERYTHING)
    assert torch.allclose(context.float(), exact, atol=3e-2)


@pytest.mark.parametrize("backend", ["flash", "flex"])
def test_a_score_that_a_kernel_cannot_do_is_refused_when_built_and_when_switched(backend: str) -> None:
    words = f"attention={backend} computes scaled dot products, and the score here is additive .*: use attention=naive"
    score = Additive(size=4, hidden=4)
    with pytest.raises(UserError, match=words):
        Attend(backend=backend, score=score)
    model = nn.ModuleList([Attend(backend="naive"), Attend(backend="naive", score=score)])
    with pytest.raises(UserError, match=words):
        set_backend(model, backend)
    assert [site.backend for site in model] == ["naive", "naive"]


@pytest.mark.parametrize("backend", ["naive", "flash"])
@pytest.mark.parametrize(
    ("score", "words"),
    [(Dot(), "dot product"), (drawn("general", 4), "general (query W key)")],
)
def test_maps_say_and_use_the_score(backend: str, score: Score, words: str) -> None:
    torch.manual_seed(1)
    query, key = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 5, 4)
    attend = Attend(backend=backend, score=score)
    with capture(attend, scores=True) as maps:
        context = attend(query, key, key, EVERYTHING)
    (found,) = maps.values()
    assert found.score == words
    assert torch.allclose(found.scores, score(query, key))
    assert not torch.allclose(found.weights, naive.softmax(naive.scores(query, key, EVERYTHING)), atol=1e-2)
    with intervene(attend, lambda weights, site: weights):
        assert torch.allclose(attend(query, key, key, EVERYTHING), context, atol=1e-6)


def test_maps_name_a_changed_score() -> None:
    attend = Attend(backend="naive", score=filled(Additive(size=1, hidden=1), 1.0), score_mod=soft_cap(cap=1.0))
    with capture(attend, scores=True) as maps:
        attend(QUERY, KEY, KEY, EVERYTHING)
    (found,) = maps.values()
    assert found.score == "additive (v tanh(Wq query + Wk key)), then capped"
    expected = [math.tanh(math.tanh(1)), math.tanh(math.tanh(2))]
    assert found.scores.flatten().tolist() == pytest.approx(expected, abs=1e-6)
