"""Class-sensitive maps against numbers worked by hand, with gradients from autograd, and where a map says nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from triptych.errors import UserError
from triptych.explain.methods.class_maps import (
    attention_grad_cam,
    attention_gradient,
    cdam,
    concept_similarity,
    grad_cam,
    integrated_cdam,
    min_max,
    smooth_cdam,
)

SCALARS = torch.tensor([[[0.0], [1.0], [2.0]]], dtype=torch.float64)


def tensor(numbers: list) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def close(found: Tensor, expected: list, digits: int = 4) -> None:
    torch.testing.assert_close(found, tensor(expected), rtol=0, atol=0.51 * 10**-digits)


def gradient(function, tokens: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    tokens = tokens.clone().requires_grad_()
    (found,) = torch.autograd.grad(function(tokens).sum(), tokens)
    return found


def attends(tokens: Tensor) -> Tensor:
    """Attention of tokens to themselves, whose scores and values are the tokens' own numbers."""
    return (tokens.softmax(1) * tokens).sum((1, 2))


def linear(tokens: Tensor) -> Tensor:
    """Uniform attention, V = O = I, and a class that weights two features with 3 and -3."""
    return tokens.mean(1) @ tensor([3, -3])


def test_cdam_keeps_the_sign() -> None:
    tokens = tensor([[[1, 0], [2, 1], [0, 1]]])
    scores = cdam(tokens, gradient(linear, tokens))
    close(scores[:, 1:], [[1, -1]], digits=9)  # the class token comes first


def test_cdam_and_integrated_cdam_through_a_softmax() -> None:
    assert float(attends(SCALARS)) == pytest.approx(1.5752, abs=5e-5)
    close(cdam(SCALARS, gradient(attends, SCALARS)), [[0, 0.1040, 1.8957]])
    close(integrated_cdam(attends, SCALARS), [[0, 0.2447, 1.3305]])


def test_integrated_cdam_is_the_limit_of_the_textbook_sum_and_completes() -> None:
    """With gradients at the right end of each step, as the sum is mostly written, 50 steps give only one digit."""
    steps = 4000
    ends = sum(gradient(attends, SCALARS * (k / steps)) for k in range(1, steps + 1)) / steps
    torch.testing.assert_close(integrated_cdam(attends, SCALARS), cdam(SCALARS, ends), rtol=0, atol=2e-4)
    whole = integrated_cdam(attends, SCALARS, steps=500).sum(1)
    torch.testing.assert_close(whole, attends(SCALARS) - attends(0 * SCALARS), rtol=0, atol=1e-6)


def test_a_linear_model_has_the_same_map_in_all_forms() -> None:
    tokens = tensor([[[1, 0], [2, 1], [0, 1]], [[0, 3], [1, 1], [2, 0]]])
    vanilla = cdam(tokens, gradient(linear, tokens))
    torch.testing.assert_close(integrated_cdam(linear, tokens, steps=1), vanilla)
    torch.testing.assert_close(smooth_cdam(linear, tokens, spread=0), vanilla)


def test_smooth_cdam_multiplies_each_noisy_copy_with_its_own_gradient() -> None:
    """For y = half the sum of squares the gradient is the token: the mean of a noisy token's square is T^2 + sd^2."""
    tokens = tensor([[[0.0], [10.0]]])
    smooth = smooth_cdam(lambda t: (t**2).sum((1, 2)) / 2, tokens, draws=4000, spread=0.1)
    close(smooth - tokens[..., 0] ** 2, [[1, 1]], digits=0)  # noise of sd .1 * (10 - 0)
    assert float(smooth[0, 0]) == pytest.approx(1, abs=0.1)


def test_smooth_cdam_repeats_with_its_seed() -> None:
    again = [smooth_cdam(attends, SCALARS, draws=3, seed=seed) for seed in (1, 1, 2)]
    assert torch.equal(again[0], again[1])
    assert not torch.equal(again[0], again[2])


@settings(max_examples=8)
@given(st.integers(0, 1000))
def test_an_example_has_the_same_map_alone_and_in_a_batch(seed: int) -> None:
    tokens = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 5
    for method in (smooth_cdam, integrated_cdam):
        torch.testing.assert_close(method(attends, tokens)[1:2], method(attends, tokens[1:2]))
    torch.testing.assert_close(grad_cam(tokens, tokens)[1:2], grad_cam(tokens[1:2], tokens[1:2]))


def test_maps_are_found_where_gradients_are_off_and_leave_the_tokens_alone() -> None:
    tokens = SCALARS.clone().requires_grad_()
    with torch.no_grad():
        found = integrated_cdam(attends, tokens)
    assert not found.requires_grad
    assert tokens.grad is None


def test_a_concept_is_the_mean_of_its_examples() -> None:
    close(concept_similarity(tensor([[1, 2], [0, 1]]), tensor([[1, 0], [3, 2]])), [4, 1], digits=9)


FEATURES, SLOPES = [[1, 0], [0, 1], [2, 1], [1, 1]], [[1, 0], [1, -1], [0, -1], [2, 0]]


def test_grad_cam() -> None:
    close(tensor(SLOPES).mean(0), [1, -0.5])
    close(tensor(FEATURES) @ tensor([1, -0.5]), [1, -0.5, 1.5, 0.5])
    close(grad_cam(tensor([FEATURES]), tensor([SLOPES]), scaled=False), [[1, 0, 1.5, 0.5]])
    close(grad_cam(tensor([FEATURES]), tensor([SLOPES])), [[0.6667, 0, 1, 0.3333]])


def test_attention_times_gradient_with_and_without_sign() -> None:
    weights, gradients = tensor([[[[0.2, 0.8]], [[0.5, 0.5]]]]), tensor([[[[1, -1]], [[2, 0]]]])
    close(attention_gradient(weights, gradients), [[[0.6, 0]]], digits=9)
    close(attention_gradient(weights, gradients, signed=True), [[[0.6, -0.4]]], digits=9)


def test_attention_grad_cam_weights_heads_by_their_mean_gradient() -> None:
    weights, gradients = tensor([[[0.2, 0.8], [0.5, 0.5]]]), tensor([[[1, -1], [2, 0]]])
    close(attention_grad_cam(weights, gradients, scaled=False), [[0.25, 0.25]], digits=9)
    close(attention_grad_cam(weights, gradients), [[0, 0]], digits=9)  # constant: it says nothing
    close(attention_grad_cam(weights, gradients + 1), [[0, 1]], digits=9)


def test_a_constant_map_becomes_zeros_in_its_own_example_only() -> None:
    close(min_max(tensor([[2, 2, 2], [0, 0, 0], [1, 3, 2]])), [[0, 0, 0], [0, 0, 0], [0, 1, 0.5]], digits=9)
    almost = torch.full((1, 4), 0.25)
    almost[0, 1] += torch.finfo(torch.float32).eps / 4  # rounding, which would be stretched to the whole range
    assert almost.unique().numel() == 2
    assert not min_max(almost).any()
    assert min_max(torch.tensor([[1e-12, 3e-12]])).tolist() == [[0, 1]]  # small is not constant


def test_mistakes_are_refused_with_the_setting() -> None:
    with pytest.raises(UserError, match="draws=0"):
        smooth_cdam(attends, SCALARS, draws=0)
    with pytest.raises(UserError, match="spread=-1"):
        smooth_cdam(attends, SCALARS, spread=-1)
    with pytest.raises(UserError, match="steps=0"):
        integrated_cdam(attends, SCALARS, steps=0)
