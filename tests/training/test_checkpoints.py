"""Checkpoints: written whole or not at all, "best" by the watched metric, and readable without trusting them."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from triptych.training.checkpoints import AtomicCheckpointIO, CheckpointCallback, Diverged


def test_a_checkpoint_replaces_the_one_before_only_when_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoints" / "last.ckpt"
    files = AtomicCheckpointIO()
    files.save_checkpoint({"step": 1}, path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)  # some file systems say so only now
        with pytest.raises(OSError, match="No space left"):
            files.save_checkpoint({"step": 2}, path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"]
    files.save_checkpoint({"step": 3}, path)
    assert torch.load(path, weights_only=True) == {"step": 3}


class Trainer(SimpleNamespace):
    """What Checkpoints asks of Lightning's Trainer."""

    def __init__(self, folder: Path, checkpoints: CheckpointCallback) -> None:
        super().__init__(
            global_step=0,
            callback_metrics={},
            lightning_module=torch.nn.Linear(2, 2),
            optimizers=[SimpleNamespace(param_groups=[{"lr": 0.5}, {"lr": 0.25}])],
            loggers=[],
            checkpoint_callback=checkpoints,
        )
        self.saved: list[tuple[int, str]] = []

    def save_checkpoint(self, path: Path) -> None:
        self.saved.append((self.global_step, path.name))

    def measures(self, step: int, value: float) -> None:
        self.global_step, self.callback_metrics = step, {"val/loss": torch.tensor(value)}


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest, unchecked: None) -> tuple[CheckpointCallback, Any]:
    mode = getattr(request, "param", "min")
    checkpoints = CheckpointCallback(folder=tmp_path, metric="val/loss", mode=mode, every_n_steps=10, look_every=5)
    return checkpoints, Trainer(tmp_path, checkpoints)


@pytest.mark.parametrize(("pair", "kept"), [("min", [1, 3]), ("max", [1, 2])], indirect=["pair"])
def test_best_is_the_first_of_the_best(pair: tuple[CheckpointCallback, Any], kept: list[int]) -> None:
    """An equal score does not replace an earlier one."""
    checkpoints, trainer = pair
    for step, value in ((1, 2.0), (2, 3.0), (3, 1.0), (4, 1.0), (5, 2.5)):
        trainer.measures(step, value)
        checkpoints.consider(trainer)
    assert trainer.saved == [(step, "best.ckpt") for step in kept]
    assert checkpoints.best_step == kept[-1]
    assert checkpoints.measured_at == 5


def test_the_best_score_survives_resuming_without_any_path(
    pair: tuple[CheckpointCallback, Any], tmp_path: Path
) -> None:
    checkpoints, trainer = pair
    trainer.measures(3, 1.0)
    checkpoints.consider(trainer)
    state = checkpoints.state_dict()
    assert str(tmp_path) not in repr(state)
    other = CheckpointCallback(folder=tmp_path / "moved", metric="val/loss", mode="min", every_n_steps=10, look_every=5)
    other.load_state_dict(state)
    trainer.measures(4, 1.5)
    other.consider(trainer)
    assert (other.best_score, other.best_step) == (1.0, 3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_metric_that_is_no_number_is_never_the_best(pair: tuple[CheckpointCallback, Any], value: float) -> None:
    """NaN compares false with everything: kept once, no later score would replace it."""
    checkpoints, trainer = pair
    trainer.measures(7, value)
    with pytest.raises(
        Diverged, match=r"val/loss is (nan|inf) at step 7, learning rate 0\.5, 0\.25; there was no checkp"
    ):
        checkpoints.consider(trainer)
    assert trainer.saved == []


def test_a_broken_parameter_is_not_saved(pair: tuple[CheckpointCallback, Any]) -> None:
    checkpoints, trainer = pair
    with torch.no_grad():
        trainer.lightning_module.weight[1, 1] = torch.nan
    trainer.measures(7, 1.0)
    with pytest.raises(Diverged, match="a parameter is no finite number at step 7"):
        checkpoints.consider(trainer)
    assert trainer.saved == []
