"""Whole runs of a tiny model: what a run folder holds, the numbers in it, and what the dashboards' files read back."""

import csv
import io
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from omegaconf import DictConfig, OmegaConf
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import triptych
from conftest import Composed
from triptych.commands.evaluate import evaluate
from triptych.commands.predict import predict
from triptych.commands.train import train
from triptych.errors import UserError
from triptych.inference.loading import load
from triptych.maps import record
from triptych.runs import metrics_rows


def rows_of(run: Path) -> list[dict[str, float]]:
    """What a run logged, without the wall time."""
    return [
        {name: number for name, number in row.items() if name != "seconds"}
        for row in metrics_rows.read(run / "metrics.csv")
    ]


def summary_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text(encoding="utf-8"))


def config_for(name: str, **options: Any) -> DictConfig:
    from hydra import compose, initialize_config_dir

    from triptych.commands.cli import CONF

    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(name)
    for key, option in options.items():
        OmegaConf.update(config, key, option)
    return config


# ---- the run folder ----


def test_a_run_folder_holds_what_is_promised(trained: Path) -> None:
    """Other programs read these names (architecture, "Run directory"); they are never renamed."""
    summary = summary_of(trained)
    for path in ("config.yaml", "metrics.csv", "samples.jsonl", "report.html", "tokenizer.json", "tensorboard", "maps"):
        assert (trained / path).exists(), path
    assert {file.name for file in (trained / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    assert all((trained / path).exists() for path in summary["paths"].values())
    required = "task status data seed versions parameters steps seen fit_seconds seen_per_second metrics maps paths"
    assert set(required.split()) <= summary.keys()
    assert not list(trained.rglob("*.partial"))


def test_the_summary_counts_by_hand(trained: Path) -> None:
    summary = summary_of(trained)
    assert (summary["task"], summary["status"], summary["seed"], summary["steps"]) == ("charlm", "finished", 0, 40)
    assert summary["seen"] == {"value": 40 * 8 * 32, "unit": "characters"}  # updates, windows, positions
    assert len(summary["data"]["fingerprint"]) == 64
    assert summary["versions"]["torch"] == torch.__version__.split("+")[0]
    assert set(summary["metrics"]) == {f"{split}/{name}" for split in ("val", "test") for name in NAMES}
    assert summary["maps"]["capture_error"] <= 1e-5
    assert summary["fit_seconds"] > 0
    assert summary["seen_per_second"] > 0
    characters = len(json.loads((trained / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"])
    block = 4 * 32 * 32 + 2 * 32 * 64 + 2 * 32  # projections, feed-forward, gains
    assert summary["parameters"] == 2 * characters * 32 + 2 * block + 32


NAMES = ("loss", "bits_per_character")


def test_bits_are_nats_over_the_logarithm_of_two(trained: Path) -> None:
    metrics = summary_of(trained)["metrics"]
    for split in ("val", "test"):
        assert metrics[f"{split}/bits_per_character"] == pytest.approx(metrics[f"{split}/loss"] / math.log(2), rel=1e-6)


def test_the_logged_validation_loss_is_the_mean_over_every_character_but_the_first(trained: Path) -> None:
    """Against a plain loop over the text, for the best checkpoint, over the whole split and its short last window."""
    run = load(trained)
    run.data.open()
    for split, name in (("validation", "val"), ("test", "test")):
        ids = run.data.ids[split]
        total, count = 0.0, 0
        with torch.inference_mode():
            for start in range(0, len(ids) - 1, 32):
                window = ids[start : start + 33]
                total += float(F.cross_entropy(run.model(window[None, :-1])[0], window[1:], reduction="sum"))
                count += len(window) - 1
        assert count == len(ids) - 1
        assert summary_of(trained)["metrics"][f"{name}/loss"] == pytest.approx(total / count, rel=1e-5)


def test_the_loss_goes_down_to_a_target(composed: Composed) -> None:
    """From chance (ln of the alphabet's size, about 4.4) well into what single characters' frequencies give."""
    run = train(composed("trainer.max_steps=150", "maps=none"))
    losses = [row["train/loss"] for row in rows_of(run.path) if "train/loss" in row]
    assert losses[0] > 3.5
    assert summary_of(run.path)["metrics"]["val/loss"] < 2.75
    assert summary_of(run.path)["maps"]["capture_error"] is None  # none were taken


def test_the_stored_configuration_trains_the_same_again(composed: Composed, tmp_path: Path) -> None:
    """config.yaml says by itself what ran: from it alone, another run logs the very same numbers."""
    first = train(composed())
    again = OmegaConf.load(first.path / "config.yaml")
    assert isinstance(again, DictConfig)
    assert again.trainer.precision == "32-true"  # what "auto" came to
    assert again.compile is False
    second = train(again)
    assert second.path != first.path
    assert rows_of(second.path) == rows_of(first.path)
    assert summary_of(second.path)["metrics"] == summary_of(first.path)["metrics"]


def test_another_seed_is_another_run(composed: Composed) -> None:
    first, second = (train(composed(f"seed={seed}", "trainer.max_steps=5", "maps=none")) for seed in (0, 1))
    assert summary_of(first.path)["metrics"]["val/loss"] != summary_of(second.path)["metrics"]["val/loss"]


def test_latest_links_to_the_newest_run(composed: Composed, tmp_path: Path) -> None:
    run = train(composed("trainer.max_steps=2", "maps=none"))
    latest = tmp_path / "runs" / "charlm" / "latest"
    assert latest.is_symlink()
    assert latest.resolve() == run.path.resolve()
    assert [path.name for path in latest.parent.iterdir() if path != latest] == [run.path.name]


def test_the_first_loss_is_the_mean_over_accumulated_batches(composed: Composed) -> None:
    """Two batches of 8 in one update: the row is their mean in nats, not half of it, and both count as seen."""
    config = composed(
        "trainer.max_steps=1", "trainer.accumulate_grad_batches=2", "trainer.log_every_n_steps=1", "maps=none"
    )
    run = train(config)
    row = rows_of(run.path)[0]
    assert row["seen"] == 2 * 8 * 32
    assert row["train/loss"] == pytest.approx(math.log(load(run.path).data.tokenizer.size), abs=0.2)
    assert summary_of(run.path)["steps"] == 1


def test_the_last_update_is_always_validated(composed: Composed) -> None:
    """25 updates and 10 validations do not divide: the last weights still compete for best."""
    run = train(composed("trainer.max_steps=25", "validations=3", "maps=none"))
    validated = [int(row["step"]) for row in rows_of(run.path) if "val/loss" in row]
    assert validated == [8, 16, 24, 25]
    assert summary_of(run.path)["best_step"] == 25


def test_early_stopping_keeps_the_best(composed: Composed) -> None:
    """Watching for the highest loss, the first validation stays the best and the second ends the run."""
    run = train(composed("watch.mode=max", "early_stopping=1", "maps=none"))
    summary = summary_of(run.path)
    assert (summary["steps"], summary["best_step"], summary["status"]) == (20, 10, "finished")
    step_10 = next(row for row in rows_of(run.path) if row["step"] == 10)
    assert summary["metrics"]["val/loss"] == pytest.approx(step_10["val/loss"], rel=1e-6)


def test_checkpoints_load_without_trusting_them(trained: Path) -> None:
    for name in ("best", "last"):
        torch.load(trained / "checkpoints" / f"{name}.ckpt", weights_only=True)


# ---- dashboards, read back ----


def test_tensorboard_reads_back_curves_texts_and_maps(trained: Path) -> None:
    events = EventAccumulator(str(trained / "tensorboard"), size_guidance={"images": 0, "scalars": 0, "tensors": 0})
    events.Reload()
    curve = {event.step: event.value for event in events.Scalars("train/loss")}
    logged = {int(row["step"]): row["train/loss"] for row in rows_of(trained) if "train/loss" in row}
    assert curve == pytest.approx(logged)
    assert {event.step for event in events.Scalars("val/loss")} == {10, 20, 30, 40}
    assert events.Scalars("test/loss")[0].value == pytest.approx(summary_of(trained)["metrics"]["test/loss"])
    assert [event.step for event in events.Images("maps/overview")] == [20, 40]
    picture = np.asarray(Image.open(io.BytesIO(events.Images("maps/overview")[-1].encoded_image_string)))
    assert np.array_equal(picture, np.asarray(Image.open(trained / "maps" / "step-00000040.png")))
    shown = events.Tensors("samples/text_summary")[-1].tensor_proto.string_val[0].decode()
    sample = json.loads((trained / "samples.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert shown.replace("\n    ", "\n").removeprefix("    ") == sample["prompt"] + sample["text"]


def test_wandb_reads_back_metrics_pictures_texts_and_the_page(trained: Path) -> None:
    """An offline run, without an account: read with W&B's own reader, it is finished and holds everything."""
    (folder,) = (trained / "wandb").glob("offline-run-*")
    found = json.loads(wandb_inspect("--summary", folder))
    assert (found["state"], found["exit_code"], found["name"]) == ("finished", 0, trained.name)
    assert found["config"]["model"]["width"] == 32  # hyperparameters
    last = found["summary"]
    for name in ("val/loss", "test/loss"):
        assert last[name] == pytest.approx(summary_of(trained)["metrics"][name], rel=1e-6)
    kinds = {
        "maps/overview": "image-file",
        "maps/layer 1": "image-file",
        "samples": "table-file",
        "report": "html-file",
    }
    for name, kind in kinds.items():
        assert last[name]["_type"] == kind
        assert (folder / "files" / last[name]["path"]).is_file()
    assert "causal self-attention" in str(last["maps/overview"]["caption"])


def wandb_inspect(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_map_records_and_pictures_are_there_for_every_moment(trained: Path) -> None:
    for step in (20, 40):
        records = record.load(trained / "maps" / f"step-{step:08d}.safetensors")
        assert len(records) == 2 * 2  # probes, layers
        for each in records:
            assert (each.step, each.task, each.backend, each.dtype) == (step, "charlm", "flash", "float32")
            assert each.data == summary_of(trained)["data"]["fingerprint"]
            assert each.capture_error <= 1e-5
            assert torch.allclose(each.weights.sum(-1), torch.ones(()), atol=1e-5)
        assert (trained / "maps" / f"step-{step:08d}.png").stat().st_size > 1000


@pytest.mark.parametrize(("override", "made"), [("logger=[]", set()), ("logger=tensorboard", {"tensorboard"})])
def test_loggers_are_the_ones_asked_for(composed: Composed, override: str, made: set[str]) -> None:
    """metrics.csv is there in any case; ``logger=x`` replaces the default and does not add to it."""
    run = train(composed(override, "trainer.max_steps=2", "maps=none"))
    found = {path.name for path in run.path.iterdir()} & {"tensorboard", "wandb", "lightning_logs"}
    assert found == made
    assert rows_of(run.path)[-1]["step"] == 2


def test_choosing_a_logger_replaces_the_default_one(composed: Composed) -> None:
    assert list(composed("logger=wandb").logger) == ["wandb"]
    assert list(composed("logger=[wandb,tensorboard]").logger) == ["wandb", "tensorboard"]


# ---- evaluate, predict, load ----


def test_evaluate_agrees_exactly_with_the_training_run(trained: Path, one_thread: None) -> None:
    assert evaluate(config_for("evaluate", run=str(trained))) == summary_of(trained)["metrics"]


def test_evaluate_refuses_other_data(trained: Path, tmp_path: Path) -> None:
    """Numbers on another text would look like the run's own."""
    other = tmp_path / "other.txt"
    other.write_text("another text " * 1000, encoding="utf-8")
    with pytest.raises(UserError, match=r"not those the run was trained on.*path="):
        evaluate(config_for("evaluate", run=str(trained), **{"data.path": str(other)}))


def test_evaluate_finds_data_that_moved(trained: Path, text_file: Path, tmp_path: Path, one_thread: None) -> None:
    moved = tmp_path / "moved to ${here}.txt"
    shutil.copy(text_file, moved)
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    stored = OmegaConf.load(run / "config.yaml")
    stored.data.path = "/nowhere/text.txt"
    OmegaConf.save(stored, run / "config.yaml")
    with pytest.raises(UserError, match=r"/nowhere/text\.txt"):
        evaluate(config_for("evaluate", run=str(run)))
    config = config_for("evaluate", run=str(run))
    config.data.path = str(moved).replace("${", "\\${")
    assert evaluate(config) == summary_of(trained)["metrics"]


def test_predict_streams_a_continuation(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predict(config_for("predict", run=str(trained), input="The ", length=30))
    first = capsys.readouterr().out
    assert first.startswith("The ")
    assert len(first) == len("The ") + 30 + 1
    predict(config_for("predict", run=str(trained), input="The ", length=30))
    assert capsys.readouterr().out == first  # the seed decides
    predict(config_for("predict", run=str(trained), input="The ", length=30, seed=1))
    assert capsys.readouterr().out != first


def test_predict_is_the_same_with_every_backend(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for backend in ("flash", "naive"):
        predict(config_for("predict", run=str(trained), input="The ", length=40, temperature=0, attention=backend))
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]


def test_predict_shows_what_the_model_cannot_read(
    trained: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A character never trained on becomes a visible replacement and a warning; half a surrogate pair (an argument
    that was not UTF-8) is no reason to crash either."""
    predict(config_for("predict", run=str(trained), input="A 雪 \udce9 B", length=3))
    assert capsys.readouterr().out.startswith("A \N{REPLACEMENT CHARACTER} \N{REPLACEMENT CHARACTER} B")
    assert "雪" in caplog.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"input": ""}, "input="),
        ({"input": None}, "input="),
        ({"temperature": -1}, "temperature=-1"),
        ({"temperature": "hot"}, "temperature=hot; it must be a number"),
        ({"length": 0}, "length=0"),
        ({"length": "long"}, "length=long; it must be a whole number"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_p": 2.0}, "top_p=2"),
        ({"attention": "flsh"}, "flsh"),
        ({"checkpoint": "newest"}, "use best or last"),
        ({"run": None}, "run= is not set"),
    ],
)
def test_predict_refuses(trained: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as error:
        predict(config_for("predict", **{"run": str(trained), "input": "The ", "length": 3, **options}))
    assert said in str(error.value)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "nowhere", "does not exist"), (tmp_path, "is no run folder")):
        with pytest.raises(UserError, match=said):
            load(path)


def test_a_damaged_run_says_which_file(trained: Path, tmp_path: Path) -> None:
    for damage, name in (("checkpoints/best.ckpt", "best.ckpt"), ("tokenizer.json", "tokenizer"), ("config.yaml", "")):
        run = tmp_path / name / "run"
        shutil.copytree(trained, run)
        file = run / damage
        file.write_bytes(file.read_bytes()[:100] + b"\0: [")
        with pytest.raises(UserError, match=damage.rpartition("/")[2].replace(".", r"\.")):
            load(run)


def test_load_gives_model_and_tokenizer_from_python(trained: Path) -> None:
    run = triptych.load(trained)
    assert not run.model.training
    logits = run.model(torch.tensor([run.tokenizer.encode("The ")]))
    assert logits.shape == (1, 4, run.tokenizer.size)


def test_metrics_csv_is_plain_csv(trained: Path) -> None:
    with open(trained / "metrics.csv", encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert table[0]["step"] == "5"
    assert float(table[-1]["test/loss"]) == pytest.approx(summary_of(trained)["metrics"]["test/loss"])


@pytest.mark.parametrize("attention", ["linear", "delta", "hard", "positional"])
def test_other_ways_to_attend_train_to_a_report(composed: Composed, tmp_path: Path, attention: str) -> None:
    """Maps, heads and explanations at the end: what does not apply to a rule is left out, and says so."""
    words = (f"attention={attention}", "trainer.max_steps=4", "explain.examples=2", "logger=[]", f"runs={tmp_path}")
    run = train(composed(*words)).path
    methods = [row["name"] for row in json.loads((run / "explain.json").read_text())["methods"]]
    notes = json.loads((run / "summary.json").read_text())["notes"]
    signed = attention == "delta"
    assert ("rollout" in methods) is not signed
    assert notes.get("heads", "").startswith("no table") is signed
    assert (run / "heads.json").exists() is not signed
    assert "relevance" in methods
    assert (run / "report.html").exists()
