"""The chunked cross-entropy is torch's own, loss and gradient, on shapes drawn at random."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as some

from triptych.tasks.losses import cross_entropy


@given(
    rows=some.integers(1, 200),
    classes=some.integers(1, 40),
    smoothing=some.sampled_from([0.0, 0.1, 0.9]),
    dtype=some.sampled_from([torch.float32, torch.bfloat16]),
    scale=some.sampled_from([1.0, 30.0]),
    seed=some.integers(0, 1000),
)
def test_it_is_torchs_own(
    rows: int, classes: int, smoothing: float, dtype: torch.dtype, scale: float, seed: int
) -> None:
    torch.manual_seed(seed)
    logits = (torch.randn(rows, classes) * scale).to(dtype)
    expected = torch.randint(-1, classes, (rows,))
    expected[0] = 0  # one at least counts
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    found = cross_entropy(ours, expected, ignored=-1, label_smoothing=smoothing)
    wanted = F.cross_entropy(theirs.float(), expected, ignore_index=-1, label_smoothing=smoothing)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    (found * 3).backward()
    (wanted * 3).backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_by_hand() -> None:
    """Two classes, logits 0 and ln 3: probabilities 1/4 and 3/4; smoothing 0.2 makes the target 0.1 and 0.9."""
    logits = torch.tensor([[0.0, 1.0986123], [5.0, 1.0]], requires_grad=True)
    loss = cross_entropy(logits, torch.tensor([1, 7]), ignored=7, label_smoothing=0.2)
    loss.backward()
    quarter, rest = torch.tensor([0.25, 0.75]).log()
    assert loss.item() == pytest.approx(-0.1 * quarter.item() - 0.9 * rest.item(), rel=1e-5)
    torch.testing.assert_close(logits.grad, torch.tensor([[0.15, -0.15], [0.0, 0.0]]))


def test_evaluation_without_gradient_is_the_same_number() -> None:
    torch.manual_seed(0)
    logits, expected = torch.randn(100, 9), torch.randint(9, (100,))
    with_gradient = cross_entropy(logits.clone().requires_grad_(), expected, ignored=0, label_smoothing=0.0)
    torch.testing.assert_close(cross_entropy(logits, expected, ignored=0, label_smoothing=0.0), with_gradient)
    assert cross_entropy(logits, torch.zeros_like(expected), ignored=0, label_smoothing=0.0).isnan()
