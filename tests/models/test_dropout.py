"""Dropout from random bytes: how much goes, that the mean stays, and that gradients follow the same mask."""

import pytest
import torch

from triptych.models.dropout import Dropout


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 0.9])
def test_the_share_that_goes_and_the_scale_of_the_rest(rate: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(1000, 999)  # no multiple of eight: the last byte is used in part
    dropped = Dropout(rate)(x)
    rounded = round(256 * rate) / 256
    share = (dropped == 0).float().mean().item()
    assert share == pytest.approx(rounded, abs=3e-3), "five standard errors of a million draws are 0.0025 at most"
    torch.testing.assert_close(dropped[dropped != 0].unique(), torch.tensor([1 / (1 - rounded)]))
    assert dropped.mean().item() == pytest.approx(1, abs=0.02)


def test_places_are_dropped_independently() -> None:
    """Bytes of one drawn number lie next to each other: neighbours must not go together."""
    torch.manual_seed(0)
    gone = (Dropout(0.5)(torch.ones(400_000)) == 0).double() - 0.5
    for distance in (1, 2, 7, 8, 9):
        assert abs(float((gone[distance:] * gone[:-distance]).mean()) * 4) < 0.01


def test_gradients_go_where_values_went() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 32, requires_grad=True)
    dropped = Dropout(0.3)(x)
    dropped.sum().backward()
    torch.testing.assert_close(x.grad, torch.where(dropped == 0, 0.0, torch.tensor(256 / (256 - 77)).expand(64, 32)))


def test_a_seed_repeats_it_and_evaluation_leaves_everything() -> None:
    x, module = torch.randn(7, 5, dtype=torch.bfloat16), Dropout(0.4)
    torch.manual_seed(3)
    first = module(x)
    torch.manual_seed(3)
    assert torch.equal(module(x), first)
    assert first.dtype == torch.bfloat16
    assert torch.equal(module.eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)


def test_a_rate_that_bytes_cannot_say_is_kept_exactly() -> None:
    torch.manual_seed(0)
    assert float((Dropout(0.002)(torch.ones(1_000_000)) == 0).float().mean()) == pytest.approx(0.002, abs=2e-4)
    assert float((Dropout(0.999)(torch.ones(1_000_000)) == 0).float().mean()) == pytest.approx(0.999, abs=2e-4)
