"""Trials elsewhere than in the sweep's process: jobs in parallel, jobs queued again, extras that are missing."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from triptych import environment
from triptych.commands.cli import CONF
from triptych.errors import Requeued, UserError
from triptych.runs import folder
from triptych.sweeps import launchers
from triptych.training.checkpoints import CheckpointCallback, Interrupted

LAUNCHERS = sorted(file.stem for file in (CONF / "hydra" / "launcher").glob("*.yaml"))
TRIALS = (
    "task=vit",
    "data=digits",
    "model.depth=1",
    "model.width=32",
    "model.heads=2",
    "maps=none",
    "logger=[]",
    "validations=1",
    "trainer.accelerator=cpu",
    "trainer.max_steps=4",
    "seed=1,2",
)


def sweep(runs: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "triptych.commands", "sweep", *TRIALS, f"runs={runs}", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=900)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["hydra/launcher=parallel", "hydra.launcher.n_jobs=2"],
        ["hydra/launcher=slurm_local", "sweep.at_once=2"],
        ["hydra/launcher=ray_cluster"],
    ],
    ids=["joblib", "slurm_local", "ray"],
)
def test_trials_run_elsewhere_and_come_back(tmp_path: Path, words: list[str]) -> None:
    if "ray" in words[0]:
        pytest.importorskip("ray", reason="Ray is not in the development environment; README.md has a way")
    done = sweep(tmp_path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = tmp_path.glob("sweeps/*/sweep.json")
    trials = json.loads(record.read_text())["trials"]
    assert [trial["status"] for trial in trials] == ["finished", "finished"]
    assert len({trial["run"] for trial in trials}) == len(folder.all_runs(tmp_path, "vit")) == 2
    assert "best " in done.stdout


@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_launcher_composes_and_says_what_it_needs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        words = ["task=vit", "sweep=grid", f"hydra/launcher={name}"]
        config = compose("train", overrides=words, return_hydra_config=True)
    target = config.hydra.launcher._target_
    monkeypatch.setattr(environment, "find_spec", lambda package: object())
    launchers.check(target)
    monkeypatch.setattr(environment, "find_spec", lambda package: None)
    extra = {"parallel": "joblib", "ray_cluster": "ray"}.get(name, "slurm")
    with pytest.raises(UserError, match=rf'needs hydra-\w+-launcher: pip install "triptych\[{extra}\]"'):
        launchers.check(target)


def test_hydras_own_launcher_needs_nothing() -> None:
    launchers.check("hydra._internal.core_plugins.basic_launcher.BasicLauncher")


# ---- a job that is to be queued again ----


class Trainer(SimpleNamespace):
    """What Checkpoints asks of Lightning's Trainer between two updates."""

    def __init__(self, checkpoints: CheckpointCallback) -> None:
        super().__init__(
            global_step=0, accumulate_grad_batches=1, val_check_batch=1000, loggers=[], checkpoint_callback=checkpoints
        )
        self.saved: list[int] = []
        self.lightning_module = SimpleNamespace(parameters=lambda: iter(()))

    def save_checkpoint(self, path: Path) -> None:
        self.saved.append(self.global_step)


@pytest.fixture
def checkpoints(tmp_path: Path, unchecked: None) -> Any:
    return CheckpointCallback(folder=tmp_path, metric="val/loss", mode="min", every_n_steps=1000, look_every=5)


def update(checkpoints: CheckpointCallback, trainer: Any) -> None:
    trainer.global_step += 1
    checkpoints.on_train_batch_end(trainer, None, None, None, trainer.global_step - 1)  # type: ignore[arg-type]


def test_a_job_is_queued_again_only_once_it_has_saved(checkpoints: Any) -> None:
    """As submitit's handler does: it exits, with a code of its own that says so."""
    trainer = Trainer(checkpoints)
    saved_before: list[list[int]] = []

    def requeue(number: int, frame: Any) -> None:
        saved_before.append(list(trainer.saved))
        sys.exit(144)

    before = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGUSR2, requeue)
    try:
        checkpoints.on_train_start(trainer, None)
        update(checkpoints, trainer)
        os.kill(os.getpid(), signal.SIGTERM)  # Slurm sends both
        update(checkpoints, trainer)
        assert trainer.saved == [2]
        os.kill(os.getpid(), signal.SIGUSR2)
        assert saved_before == []  # not in the middle of an update
        with pytest.raises(Requeued) as ended:
            update(checkpoints, trainer)
        assert ended.value.code == 144
        assert saved_before == [[2, 3]]
    finally:
        checkpoints._restore_handlers()
        for number, handler in before.items():
            signal.signal(number, handler)


def test_without_such_a_launcher_sigterm_stops(checkpoints: Any) -> None:
    trainer = Trainer(checkpoints)
    before = signal.getsignal(signal.SIGTERM)
    checkpoints.on_train_start(trainer, None)
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted, match="stopped by SIGTERM at step 1"):
            update(checkpoints, trainer)
        assert trainer.saved == [1]
    finally:
        checkpoints._restore_handlers()
    assert signal.getsignal(signal.SIGTERM) is before
