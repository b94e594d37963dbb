"""An update over several batches, and several processes, is that of one batch of all their examples."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from pytorch_lightning.plugins import MixedPrecision
from torch import Tensor
from torch.utils.data import DataLoader

from conftest import SUMS, SUMS_MODEL, TINY
from triptych.commands.cli import CONF
from triptych.commands.train import train
from triptych.config import build
from triptych.data.batches import Batch, ImageBatch, TextBatch, TranslationBatch
from triptych.runs.metrics_rows import read
from triptych.tasks.base import Task

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS = {
    "charlm": ("data=text", *TINY, "model.dropout=0"),
    "translation": ("data=parallel", *SUMS, *SUMS_MODEL),
    "vit": ("data=digits", "model.depth=2", "model.width=32", "model.heads=2", "model.stochastic_depth=0"),
}
SIZES = {
    "charlm": {"vocab_size": 11},
    "translation": {"vocab_size": 120, "positions": 128},
    "vit": {"classes": 10, "channels": 1, "image_height": 8, "image_width": 8},
}
UNEVEN = ([0], [1, 2, 3], list(range(4, 24)))  # rows of the parts of an update
Step = Callable[..., tuple[Task, Task]]


def pairs() -> TranslationBatch:
    """Sentences of 1 token, and of up to 20, each with its end token."""
    lengths = [2] + [10 + row % 12 for row in range(23)]
    expected = torch.zeros(24, max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        expected[row, :length] = torch.randint(4, 120, (length,))
        expected[row, length - 1] = 2
    target = expected.roll(1, 1).masked_fill(expected == 0, 0)
    target[:, 0] = 1
    return TranslationBatch(expected.clone(), target, expected, torch.arange(24))


def whole(name: str) -> Batch:
    """A batch of 24 examples."""
    if name == "charlm":
        text = torch.randint(11, (24, 21))
        return TextBatch(text[:, :-1], text[:, 1:])
    return pairs() if name == "translation" else ImageBatch(torch.randn(24, 1, 8, 8), torch.randint(10, (24,)))


@pytest.fixture
def step() -> Step:
    """``step("vit", parts)``: a task after one update over ``parts`` of a batch, and a copy given the whole batch."""

    def run(name: str, parts: Any, *, clip: float | None = None, **more: Any) -> tuple[Task, Task]:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("train", overrides=[f"task={name}", *SETTINGS[name]])
        torch.manual_seed(3)
        batch, task = whole(name), build.build_task(config, build.build_model(config, SIZES[name]), compiled=False)
        for parameter in task.model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)  # some begin as 0, and pass no gradient on
        other = deepcopy(task)
        with torch.autocast("cpu", torch.float16, enabled="plugins" in more):
            loss = other.loss(other.logits(other.model, batch), batch)[0]
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(other.model.parameters(), clip)
        trainer = pl.Trainer(
            accelerator="cpu",
            max_steps=1,
            accumulate_grad_batches=len(parts),
            gradient_clip_val=clip,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **more,
        )
        batches: Any = [batch.take(torch.tensor(rows)) for rows in parts]
        trainer.fit(task, DataLoader(batches, batch_size=None))
        assert trainer.global_step == 1
        return task, other

    return run


def gradient(task: Task) -> Tensor:
    return torch.cat([each.grad.flatten() for each in task.model.parameters() if each.grad is not None])


def error(task: Task, other: Task) -> float:
    """How far the first's gradient is from the second's, relative to its length."""
    return float((gradient(task) - gradient(other)).norm() / gradient(other).norm())


@pytest.mark.parametrize("clip", [None, 0.01])
@pytest.mark.parametrize("parts", [UNEVEN, UNEVEN[::-1], (*UNEVEN[:1], list(range(1, 24)))])
@pytest.mark.parametrize("name", list(SETTINGS))
def test_parts_of_an_update_count_by_what_they_predict(step: Step, name: str, parts: Any, clip: float | None) -> None:
    task, other = step(name, parts, clip=clip)
    assert error(task, other) < 1e-5
    if clip:
        assert float(gradient(task).norm()) == pytest.approx(clip, rel=1e-4)


@pytest.mark.parametrize("name", list(SETTINGS))
def test_a_loss_scale_is_undone_before_parts_are_counted(step: Step, name: str) -> None:
    """A mean of means is off by half, a scale that stays in by its size; float16 by its rounding."""
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    task, other = step(name, UNEVEN, clip=0.01, plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
    assert error(task, other) < 0.02


def test_a_first_part_that_predicts_nothing_counts_nothing(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when all its tokens were padding: no division by 0, and the gradient is that of the others."""
    seen = TextBatch.seen
    monkeypatch.setattr(TextBatch, "seen", property(lambda batch: 0 if len(batch.tokens) == 1 else seen.__get__(batch)))
    task, _ = step("charlm", UNEVEN)
    monkeypatch.undo()
    others, _ = step("charlm", UNEVEN[1:])
    assert error(task, others) < 1e-5


# ---- whole runs ----


@pytest.fixture(scope="module")
def unequal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 short sentence pairs and 8 long ones: as batches of 256 tokens two very different ones, of 4,096 one."""
    folder = tmp_path_factory.mktemp("unequal")
    words = ["red", "blue", "green", "black", "white"]
    short = [f"{a} {b}" for a in words for b in words]
    long = [" ".join(words[(start + step * each) % 5] for each in range(24)) for start in range(4) for step in (1, 2)]
    for split, texts in (("train", short + long), ("validation", short[::2] + long[:2]), ("test", short[1::8])):
        rows = [json.dumps({"source": text, "target": text.replace("e", "a")}) for text in texts]
        (folder / f"{split}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def translator(folder: Path, runs: Path, *overrides: str) -> DictConfig:
    mine = [
        *SUMS,
        *SUMS_MODEL,
        "data.max_length=64",
        "data.eval_batch_tokens=512",
        "optimizer=adamw",
        "optimizer.lr=0.01",
    ]
    mine += ["trainer.max_steps=6", "validations=2", "trainer.log_every_n_steps=2", "maps.probes=0", "logger=[]"]
    mine += ["scheduler.warmup_steps=1", f"data.path={folder}", f"runs={runs}", "trainer.gradient_clip_val=0.5"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", overrides=["task=translation", *mine, *overrides])


def losses(run: Path) -> list[float]:
    return [row[name] for row in read(run / "metrics.csv") for name in ("train/loss", "val/loss") if name in row]


PARTS = ("data.batch_tokens=256", "trainer.accumulate_grad_batches=2")
TOGETHER = ("trainer.devices=2", "trainer.accelerator=cpu")


@pytest.fixture(scope="module")
def at_once(unequal: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Losses of a run whose every update is over all pairs at once."""
    return losses(train(translator(unequal, tmp_path_factory.mktemp("once"), "data.batch_tokens=4096")).path)


@pytest.mark.parametrize("processes", [(), ("trainer=ddp", *TOGETHER)], ids=["one", "ddp"])
def test_a_run_over_parts_is_the_run_over_whole_batches(
    unequal: Path, tmp_path: Path, at_once: list[float], processes: tuple[str, ...]
) -> None:
    """Its curves too: the logged loss is of all that an update saw, not of its last part, nor a mean of means."""
    found = losses(train(translator(unequal, tmp_path, *PARTS, *processes)).path)
    assert len(found) == 5
    assert found == pytest.approx(at_once, abs=2e-5)


@pytest.mark.slow
def test_a_sharded_run_over_parts_too(
    unequal: Path, tmp_path: Path, at_once: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On two CPU processes, which people are refused."""
    monkeypatch.setattr(build, "_check_processes", lambda config: None)
    found = losses(train(translator(unequal, tmp_path, *PARTS, "trainer=fsdp", *TOGETHER)).path)
    assert found == pytest.approx(at_once, abs=2e-5)
