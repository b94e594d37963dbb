"""The vision transformer's task: metrics by hand, what it says in words, one batch learned by heart, and whole runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from omegaconf import DictConfig
from PIL import Image

from triptych.errors import UserError
from triptych.maps import record
from triptych.runs import metrics_rows

SMALL = (
    "data=digits",
    "model.patch_size=2",
    "model.depth=2",
    "model.width=32",
    "model.heads=2",
    "model.feed_forward=64",
    "trainer.accelerator=cpu",
    "trainer.max_steps=60",
    "scheduler.warmup_steps=5",
    "trainer.log_every_n_steps=5",
    "explain.examples=0",
    "validations=2",
    "maps.every_n_steps=30",
    "logger=tensorboard",
)


def compose_vit(*overrides: str) -> DictConfig:
    from hydra import compose, initialize_config_dir

    from triptych.commands.cli import CONF

    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", overrides=["task=vit", *SMALL, *overrides])


def built(*overrides: str) -> tuple[Any, Any]:
    """A task with its model, and opened data."""
    from hydra.utils import instantiate

    from triptych.config import build

    config = compose_vit(*overrides)
    data = instantiate(config.data)
    data.open()
    return build.build_task(config, build.build_model(config, data.sizes), compiled=False), data


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run on digits. Only to be read."""
    from triptych.commands.train import train

    torch.set_num_threads(1)
    return train(compose_vit(f"runs={tmp_path_factory.mktemp('vit')}")).path


def test_one_batch_is_learned_by_heart(one_thread: None) -> None:
    task, data = built("data.batch_size=32", "task.label_smoothing=0", "data.augmentation=none")
    batch = data.training.batch(0, 0)
    optimizer = task.optimizer(task.model)
    task.train()
    for _ in range(120):
        loss, count = task.loss(task.logits(task.model, batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert count == 32
    assert loss.item() < 0.02
    assert (task.logits(task.model, batch).argmax(-1) == batch.labels).all()


def test_smoothing_is_for_training_alone() -> None:
    task, data = built("task.label_smoothing=0.2")
    batch = data.training.batch(0, 0)
    logits = torch.randn(len(batch.images), 10)
    task.train()
    plain = F.cross_entropy(logits, batch.labels)
    even = -logits.log_softmax(-1).mean()
    assert float(task.loss(logits, batch)[0]) == pytest.approx(float(0.8 * plain + 0.2 * even), rel=1e-5)
    task.eval()
    assert float(task.loss(logits, batch)[0]) == pytest.approx(float(plain), rel=1e-6)


def test_mixed_labels_are_shares_of_the_loss() -> None:
    task, data = built("task.label_smoothing=0", "data.mixup=1.0")
    batch = data.training.batch(0, 0)
    logits = torch.randn(len(batch.images), 10)
    expected = -(batch.labels * logits.log_softmax(-1)).sum(-1).mean()
    assert float(task.loss(logits, batch)[0]) == pytest.approx(float(expected), rel=1e-5)


def test_metrics_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four images, three right; confidence is 0.9 each time, so the calibration error is |0.9 - 0.75|."""
    from triptych.data.batches import ImageBatch

    task, data = built()
    logged: dict[str, float] = {}
    monkeypatch.setattr(task, "log", lambda name, number: logged.__setitem__(name, float(number)))
    monkeypatch.setattr(type(task), "trainer", type("Fake", (), {"datamodule": data})())
    labels = torch.tensor([0, 1, 2, 2])
    predicted = torch.tensor([0, 1, 2, 3])
    probability = torch.full((4, 10), 0.1 / 9)
    probability[range(4), predicted] = 0.9
    task.eval()
    monkeypatch.setattr(task, "logits", lambda model, batch: probability.log())
    task.test_step(ImageBatch(images=torch.zeros(4, 1, 8, 8), labels=labels), 0)
    task.on_test_epoch_end()
    assert logged["test/accuracy"] == 0.75
    assert logged["test/calibration_error"] == pytest.approx(0.15, abs=1e-5)
    assert logged["test/loss"] == pytest.approx(-(3 * np.log(0.9) + np.log(0.1 / 9)) / 4, rel=1e-5)
    assert {name: value for name, value in logged.items() if name.startswith("test/accuracy/")} == {
        "test/accuracy/0": 1.0,
        "test/accuracy/1": 1.0,
        "test/accuracy/2": 0.5,
    }
    counts = task.tables(data)["confusion"].counts
    assert counts[2, 2] == counts[2, 3] == 1
    assert counts.sum() == 4


def test_top_5_is_measured_where_there_are_more_than_5_classes() -> None:
    from triptych.tasks.vit import _metrics

    assert "top5_accuracy" in _metrics(6)
    assert "top5_accuracy" not in _metrics(5)


def test_words_for_an_image(run: Path) -> None:
    from triptych.inference.loading import load

    trained = load(run)
    trained.data.open()
    (probe,) = trained.task.probes(trained.data, 1, 0)
    logits = torch.full((1, 10), -20.0)
    logits[0, 3] = 0.0
    label = int(probe.batch.labels)
    assert trained.task.outcome(logits, probe) == f"label {label}, predicted 3 (1.000)"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("task.label_smoothing=1", "task.label_smoothing=1"),
        ("watch.metric=val/bits_per_character", "not a metric of task=vit"),
        ("data=python_reference", "task=vit does not go with data=CharacterData"),
        ("sample.top=0", "sample.top=0"),
    ],
)
def test_what_does_not_fit_is_refused(override: str, said: str, tmp_path: Path, unchecked: None) -> None:
    from triptych.commands.train import train

    with pytest.raises(UserError, match=said):
        train(compose_vit(override, f"runs={tmp_path}"))
    assert not list(tmp_path.glob("*/2*"))


def test_the_sentence_is_the_users_also_from_inside_hydra(tmp_path: Path) -> None:
    from hydra.errors import InstantiationException

    from triptych.commands.train import train
    from triptych.config.messages import _configuration_sentence

    with pytest.raises(InstantiationException) as caught:
        train(compose_vit("model.patch_size=3", f"runs={tmp_path}"))
    sentence = _configuration_sentence(caught.value, "train")
    assert sentence == "model.patch_size=3: it does not divide images of 8 x 8 pixels; what works: 1, 2, 4, 8"


@pytest.mark.parametrize("override", ["ema=1.5", "ema=true", "ema=much"])
def test_a_decay_that_is_none_is_refused(override: str) -> None:
    from triptych.config import build

    with pytest.raises(UserError, match=override.replace("true", "True")):
        build.check(compose_vit(override))


# ---- whole runs ----


def test_a_run_folder_holds_what_is_promised(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert (summary["task"], summary["status"], summary["steps"]) == ("vit", "finished", 60)
    assert summary["seen"] == {"value": 60 * 64, "unit": "images"}
    assert summary["maps"]["capture_error"] <= 1e-5
    names = {"loss", "accuracy", "top5_accuracy", "calibration_error"}
    assert {f"{split}/{name}" for split in ("val", "test") for name in names} <= summary["metrics"].keys()
    assert {f"test/accuracy/{digit}" for digit in range(10)} <= summary["metrics"].keys()
    assert summary["metrics"]["test/accuracy"] > 0.12  # chance is 0.1, and these are 60 updates
    for file in ("images.json", "report.html", "samples.jsonl"):
        assert (run / file).is_file()
    rows = metrics_rows.read(run / "metrics.csv")
    assert [int(row["step"]) for row in rows if "val/accuracy" in row] == [30, 60]


def test_records_say_which_patch_is_where_and_what_was_predicted(run: Path) -> None:
    records = record.load(run / "maps" / "step-00000060.safetensors")
    assert len(records) == 2 * 2
    for each in records:
        assert (each.grid, each.causal, each.operation) == ((4, 4), False, "bidirectional self-attention")
        assert each.key_labels[:3] == ("CLS", "0,0", "0,1")
        assert each.picture is not None
        assert each.picture.shape == (8, 8, 1)
        assert each.outcome is not None
        assert each.outcome.startswith("label ")
        assert torch.allclose(each.weights.sum(-1), torch.ones(()), atol=1e-5)
    for name in ("step-00000060.png", "step-00000060-layer-1.png", "step-00000060-distance.png"):
        assert (run / "maps" / name).stat().st_size > 1000


def test_the_logged_accuracy_is_the_share_of_right_answers(run: Path) -> None:
    from triptych.inference.loading import load

    trained = load(run)
    trained.data.open()
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    for split, name in (("validation", "val"), ("test", "test")):
        with torch.inference_mode():
            logits = trained.model(trained.data.format.normalise(trained.data.images[split]))
        labels = trained.data.labels[split]
        accuracy = float((logits.argmax(-1) == labels).float().mean())
        assert summary["metrics"][f"{name}/accuracy"] == pytest.approx(accuracy, abs=1e-6)
        assert summary["metrics"][f"{name}/loss"] == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-4)


def test_two_runs_of_one_seed_are_the_same(run: Path, tmp_path: Path, one_thread: None) -> None:
    from triptych.commands.train import train

    again = train(compose_vit(f"runs={tmp_path}")).path
    rows, others = (
        [{name: v for name, v in row.items() if name != "seconds"} for row in metrics_rows.read(each / "metrics.csv")]
        for each in (run, again)
    )
    assert rows == others


def test_a_resumed_run_is_the_same_run(run: Path, tmp_path: Path, one_thread: None) -> None:
    """Stopped by a signal in the middle of an epoch and gone on with: the same numbers as in one go."""
    import os
    import signal

    import pytorch_lightning as pl

    from triptych.commands import train as running

    class Stop(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
            if trainer.global_step == 17:
                os.kill(os.getpid(), signal.SIGTERM)

    original: Callable[..., Any] = running.build.build_trainer

    def with_stop(config: DictConfig, folder: Path | None, **more: Any) -> Any:
        return original(config, folder, **{**more, "callbacks": [*more["callbacks"], Stop()]} if folder else more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running.build, "build_trainer", with_stop)
        with pytest.raises(SystemExit):
            running.train(compose_vit(f"runs={tmp_path}"))
    resumed = running.train(compose_vit(f"runs={tmp_path}", "resume=auto")).path
    rows, others = (
        [{name: v for name, v in row.items() if name != "seconds"} for row in metrics_rows.read(each / "metrics.csv")]
        for each in (run, resumed)
    )
    assert rows == others


def test_predict_answers_files_and_folders(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from triptych.commands.cli import CONF
    from triptych.commands.predict import predict

    Image.new("RGBA", (31, 17), (9, 9, 9, 40)).save(tmp_path / "one.png")
    Image.new("CMYK", (8, 8)).save(tmp_path / "two.jpg")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("predict")
    OmegaConf.update(config, "run", str(run))
    OmegaConf.update(config, "input", str(tmp_path))
    OmegaConf.update(config, "maps.draw", True)
    OmegaConf.update(config, "output", str(tmp_path / "drawn"))
    capsys.readouterr()
    predict(config)
    lines = capsys.readouterr().out.splitlines()
    assert "one.png: " in lines[0]
    assert "two.jpg: " in lines[1]
    shares = [float(part.split(")")[0]) for part in lines[0].split("(")[1:]]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 1.002
    drawn = sorted(file.name for file in (tmp_path / "drawn").iterdir())
    assert [name for name in drawn if name.startswith("one")] == ["one-layer-0.png", "one-layer-1.png", "one.png"]
    (tmp_path / "no.png").write_text("no picture")
    with pytest.raises(UserError, match=r"no\.png is not a picture"):
        predict(config)


def test_options_of_another_task_are_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from triptych.commands import predict as running
    from triptych.commands.cli import CONF

    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("predict", overrides=["temperature=0.5"])
    OmegaConf.update(config, "run", str(run))
    OmegaConf.update(config, "input", str(run))
    typed = SimpleNamespace(overrides=SimpleNamespace(task=["temperature=0.5", "run=x"]))
    monkeypatch.setattr(running, "HydraConfig", SimpleNamespace(initialized=lambda: True, get=lambda: typed))
    with pytest.raises(UserError, match="temperature= says nothing to task=vit; it takes: top"):
        running.predict(config)


def test_the_averaged_weights_are_the_ones_tested(tmp_path: Path, one_thread: None) -> None:
    """By hand: the average of every update's weights; the weights that train stand beside it in the checkpoint."""
    import pytorch_lightning as pl

    from triptych.commands import train as running

    kept: list[dict[str, torch.Tensor]] = []

    class Keep(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, task: pl.LightningModule, *args: Any) -> None:
            kept.append({name: weight.detach().clone() for name, weight in task.model.named_parameters()})

    original = running.build.build_trainer

    def with_keep(config: DictConfig, folder: Path | None, **more: Any) -> Any:
        return original(config, folder, **{**more, "callbacks": [*more["callbacks"], Keep()]} if folder else more)

    short = ("trainer.max_steps=6", "validations=1", "ema=0.3", "maps=none", f"runs={tmp_path}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running.build, "build_trainer", with_keep)
        path = running.train(compose_vit(*short)).path
    average = kept[0]
    for n, weights in enumerate(kept[1:], start=1):
        decay = min(0.3, (1 + n) / (10 + n))
        average = {name: decay * average[name] + (1 - decay) * weight for name, weight in weights.items()}
    tested = running.weights(path / "checkpoints" / "best.ckpt")
    for name, weight in average.items():
        assert torch.allclose(tested[name], weight, atol=1e-6), name
        assert not torch.equal(tested[name], kept[-1][name])
    last = torch.load(path / "checkpoints" / "last.ckpt", weights_only=True)
    for name, weight in kept[-1].items():
        assert torch.equal(last["current_model_state"][f"model.{name}"], weight)


def test_maps_true_reaches_predict_although_maps_is_a_folder_of_options() -> None:
    from triptych.commands.cli import _switch

    assert _switch("maps=true") == "maps.draw=true"
    assert [_switch(word) for word in ("maps=none", "compile=true", "input=maps=true")] == [
        "maps=none",
        "compile=true",
        "input=maps=true",
    ]
