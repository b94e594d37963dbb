"""The live view: its speed is a median without the warm-up, and its rows are means over the steps between them."""

import io
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from triptych.callbacks import progress
from triptych.callbacks.progress import ProgressCallback
from triptych.tasks.charlm import CharLMTask

pytestmark = pytest.mark.usefixtures("unchecked")  # a stand-in for Lightning's Trainer will do


class Rows:
    """A logger that remembers."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, row: dict[str, float], step: int) -> None:
        self.rows.append((step, row))


class FakeTask(CharLMTask):
    """Only what Live asks a task for."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.seen = 0

    @property
    def epoch(self) -> float:
        return 0.5


def run(
    monkeypatch: pytest.MonkeyPatch,
    seconds: list[float],
    *,
    losses: list[float] | None = None,
    sizes: tuple[int, ...] = (100,),
    accumulate: int = 1,
    log_every: int = 5,
    view: ProgressCallback | None = None,
    first: int = 0,
) -> tuple[ProgressCallback, Rows, str]:
    """Show updates that take ``seconds`` each, of so many characters per batch in turn."""
    now = 0.0
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now)
    shown = io.StringIO()
    view = view or ProgressCallback(unit="characters", console=Console(file=shown, width=120), log_every=log_every)
    logger = Rows()
    optimizer = SimpleNamespace(param_groups=[{"lr": 0.25}])
    trainer: Any = SimpleNamespace(
        global_step=first, accumulate_grad_batches=accumulate, max_steps=100, loggers=[logger], optimizers=[optimizer]
    )
    task = FakeTask()
    view.on_train_start(trainer, task)
    values = losses or [1.0] * len(seconds)
    for number, (taken, value) in enumerate(zip(seconds, values, strict=True), start=1):
        now += taken
        trainer.global_step = first + number // accumulate
        loss = torch.tensor(value / accumulate)
        batch = SimpleNamespace(seen_by_all=sizes[(number - 1) % len(sizes)])
        view.on_train_batch_end(trainer, task, {"loss": loss}, batch, number - 1)
    return view, logger, shown.getvalue()


def test_the_speed_is_the_median_after_the_first_twenty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow start (compilation) and a pause (maps) do not count."""
    view, _, _ = run(monkeypatch, [5.0] * 21 + [0.5] * 9 + [60.0] + [0.5] * 9)
    assert view.seen_per_second == pytest.approx(200)


def test_a_short_run_has_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, [1.0] * 21)[0].seen_per_second is None
    assert run(monkeypatch, [1.0] * 22)[0].seen_per_second == pytest.approx(100)


def test_accumulated_batches_are_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    view, logger, _ = run(monkeypatch, [0.25] * 100, losses=[1.0, 3.0] * 50, accumulate=2)
    assert view.seen_per_second == pytest.approx(400)
    assert [step for step, _ in logger.rows] == list(range(5, 51, 5))
    assert all(row["train/loss"] == pytest.approx(2.0) for _, row in logger.rows)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_unequal_batches_count_by_what_they_predict(monkeypatch: pytest.MonkeyPatch, accumulate: int) -> None:
    """2 characters at 5 nats and 198 at 1: 1.04 nats per character, not 3; and speed counts all of them."""
    seconds, sizes = [0.5 / accumulate] * 100, (2, 198)
    view, logger, _ = run(monkeypatch, seconds, losses=[5.0, 1.0] * 50, sizes=sizes, accumulate=accumulate, log_every=2)
    assert all(row["train/loss"] == pytest.approx(1.04) for _, row in logger.rows)
    if accumulate == 2:
        assert view.seen_per_second == pytest.approx(400)


def test_a_row_is_the_mean_since_the_row_before(monkeypatch: pytest.MonkeyPatch) -> None:
    _, logger, _ = run(monkeypatch, [1.0] * 6, losses=[1.0, 2.0, 6.0, 4.0, 4.0, 1.0], log_every=3)
    assert [(step, row["train/loss"], row["train/lr"]) for step, row in logger.rows] == [(3, 3.0, 0.25), (6, 3.0, 0.25)]


def test_a_resumed_run_completes_the_mean_that_was_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    view, _, _ = run(monkeypatch, [1.0] * 2, losses=[1.0, 2.0], log_every=3)
    resumed = ProgressCallback(unit="characters", console=Console(file=io.StringIO()), log_every=3)
    resumed.load_state_dict(view.state_dict())
    _, logger, _ = run(monkeypatch, [1.0], losses=[6.0], view=resumed, first=2)
    assert logger.rows == [(3, {"train/loss": 3.0, "train/lr": 0.25, "epoch": 0.5, "seen": 0.0})]


def test_without_a_terminal_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log file gets a line every 15 seconds, with loss, speed and what is left, not a moving bar."""
    _, _, shown = run(monkeypatch, [1.0] * 40, losses=[2.5] * 40)
    lines = shown.splitlines()
    assert 1 <= len(lines) <= 3
    assert "step 32/100  loss 2.500  100 characters/s  68 s left" in lines[-1]
    assert "\x1b" not in shown
