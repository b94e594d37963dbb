"""Schedules: numbers worked by hand, saving, and refusals."""

import io
import math
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from triptych.errors import UserError
from triptych.training.schedules import warmup_cosine, warmup_stable_decay

COSINE: dict[str, Any] = {"total_steps": 10, "warmup_steps": 2, "final_fraction": 0.1}
WSD: dict[str, Any] = {**COSINE, "decay_fraction": 0.4, "shape": "linear"}


def two_groups() -> torch.optim.Optimizer:
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    return torch.optim.SGD([{"params": weights[:1], "lr": 1.0}, {"params": weights[1:], "lr": 0.5}])


def factors(build: Any, steps: int, **options: Any) -> list[float]:
    """The first group's rate, which starts at 1, at every update; the second's must be half of it."""
    optimizer = two_groups()
    schedule = build(optimizer, **options)
    seen = []
    for _ in range(steps):
        first, second = (group["lr"] for group in optimizer.param_groups)
        assert second == pytest.approx(first / 2)
        seen.append(first)
        optimizer.step()
        schedule.step()
    return seen


def test_cosine_by_hand() -> None:
    # two steps of warm-up, then eighths of half a cosine: (1 + cos 0) / 2 = 1, (1 + cos(pi / 4)) / 2 = 0.8536, ...
    eighths = [1.0, 0.9619, 0.8536, 0.6913, 0.5, 0.3087, 0.1464, 0.0381]
    expected = [0.5, 1.0] + [0.1 + 0.9 * value for value in eighths] + [0.1, 0.1]
    assert factors(warmup_cosine, 12, **COSINE) == pytest.approx(expected, abs=1e-4)


def test_stable_decay_by_hand() -> None:
    expected = [0.5, 1, 1, 1, 1, 1, 1, 0.775, 0.55, 0.325, 0.1, 0.1]
    assert factors(warmup_stable_decay, 12, **WSD) == pytest.approx(expected)


def test_decay_in_the_shape_of_a_root_by_hand() -> None:
    options = {**WSD, "shape": "sqrt", "final_fraction": 0.0}
    expected = [0.5, 1, 1, 1, 1, 1, 1, 1 - 0.5, 1 - math.sqrt(0.5), 1 - math.sqrt(0.75), 0]
    assert factors(warmup_stable_decay, 11, **options) == pytest.approx(expected)


def test_decay_over_the_whole_run_starts_when_warm_up_ends() -> None:
    options = {**WSD, "decay_fraction": 1.0, "final_fraction": 0.0}
    expected = [0.5, 1.0, 1.0, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]
    assert factors(warmup_stable_decay, 10, **options) == pytest.approx(expected)


def test_no_warm_up_and_no_decay() -> None:
    assert factors(warmup_stable_decay, 3, **{**WSD, "warmup_steps": 0, "decay_fraction": 0.0}) == [1.0] * 3


@pytest.mark.parametrize(("build", "options"), [(warmup_cosine, COSINE), (warmup_stable_decay, WSD)])
def test_saved_and_resumed(build: Any, options: dict[str, Any]) -> None:
    optimizer = two_groups()
    schedule = build(optimizer, **options)
    for _ in range(4):
        optimizer.step()
        schedule.step()
    pickle.loads(pickle.dumps(schedule.lr_lambdas))
    file = io.BytesIO()
    torch.save([optimizer.state_dict(), schedule.state_dict()], file)
    file.seek(0)
    states = torch.load(file, weights_only=True)
    resumed = two_groups()
    # a longer run: what follows is the longer run's, nothing of the old length is remembered
    longer = build(resumed, **{**options, "total_steps": 20})
    resumed.load_state_dict(states[0])
    longer.load_state_dict(states[1])
    resumed.step()
    longer.step()
    assert resumed.param_groups[0]["lr"] == pytest.approx(factors(build, 6, **{**options, "total_steps": 20})[5])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"warmup_steps": 10}, "scheduler.warmup_steps=10 does not fit a run of 10 steps"),
        ({"warmup_steps": -1}, "scheduler.warmup_steps=-1"),
        ({"total_steps": -1}, "trainer.max_steps"),
        ({"total_steps": math.inf}, "trainer.max_steps"),
        ({"final_fraction": 1.5}, "scheduler.final_fraction=1.5"),
        ({"decay_fraction": -0.5}, "scheduler.decay_fraction=-0.5"),
        ({"shape": "bent"}, "use linear or sqrt"),
    ],
)
def test_refusals(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        warmup_stable_decay(two_groups(), **{**WSD, **wrong})
