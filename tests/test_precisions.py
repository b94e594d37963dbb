"""Every precision trains to its report, is measured in float64, and says the same when it is measured again."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from conftest import SUMS, SUMS_MODEL, TINY
from triptych.commands.cli import CONF
from triptych.commands.evaluate import evaluate
from triptych.commands.explain import explain
from triptych.commands.predict import predict
from triptych.commands.train import train
from triptych.config import build
from triptych.data.tokenizers import PAD_ID
from triptych.errors import UserError
from triptych.inference.loading import Trained, load
from triptych.runs.metrics_rows import read

pytestmark = pytest.mark.usefixtures("one_thread")
DTYPES = {
    "32-true": torch.float32,
    "bf16-mixed": torch.float32,
    "bf16-true": torch.bfloat16,
    "64-true": torch.float64,
}
SMALL = {
    "charlm": ("data=text", *TINY, "model.depth=1"),
    "translation": ("data=parallel", *SUMS, *SUMS_MODEL, "data.columns.alignment=alignment", "model.decoder_depth=1"),
    "vit": ("data=digits", "data.batch_size=16", "model.depth=1", "model.width=32", "model.heads=2", "ema=0.9"),
}
SHORT = (
    "trainer.accelerator=cpu",
    "trainer.max_steps=3",
    "trainer.log_every_n_steps=1",
    "validations=1",
    "maps.every_n_steps=0",
    "maps.probes=1",
    "explain.examples=1",
    "logger=[]",
    "compile=false",
)
Given = dict[str, tuple[str, str]]


@pytest.fixture
def given(text_file: Path, pairs_folder: Path, tmp_path: Path) -> Given:
    """For each task, where its data are, and something to answer."""
    return {
        "charlm": (str(text_file), "The"),
        "translation": (str(pairs_folder), "one plus two is big"),
        "vit": ("null", str(tmp_path / "picture.png")),
    }


def composed(name: str, *overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(name, overrides=list(overrides))


def measured(trained: Trained, precision: str) -> float:
    """The validation loss, in float64 from the logits on."""
    total, count = 0.0, 0
    trained.data.open()
    for batch in trained.data.evaluation("validation"):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
            logits = trained.task.logits(trained.model, batch).double().flatten(0, -2)
        expected = next(getattr(batch, name) for name in ("targets", "expected", "labels") if hasattr(batch, name))
        ignored = PAD_ID if trained.task.name == "translation" else -1
        total += float(F.cross_entropy(logits, expected.flatten(), ignore_index=ignored, reduction="sum"))
        count += batch.seen
    return total / count


# In float32 the runs of other tests do the same.
@pytest.mark.parametrize("precision", [pytest.param("32-true", marks=pytest.mark.slow), *list(DTYPES)[1:]])
@pytest.mark.parametrize("name", list(SMALL))
def test_a_run_from_training_to_explanation(name: str, precision: str, given: Given, tmp_path: Path) -> None:
    from PIL import Image

    Image.new("L", (8, 8), 128).save(tmp_path / "picture.png")
    path, asked = given[name]
    words = (f"task={name}", *SMALL[name], *SHORT, f"trainer.precision={precision}", f"runs={tmp_path}")
    run = train(composed("train", *words, f"data.path={path}")).path
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "finished"

    trained = load(run)
    assert {parameter.dtype for parameter in trained.model.parameters()} == {DTYPES[precision]}
    loss = measured(trained, precision)
    assert summary["metrics"]["val/loss"] == pytest.approx(loss, rel=1e-12)
    rows = read(run / "metrics.csv")
    (logged,) = (row["val/loss"] for row in rows if "val/loss" in row)
    assert logged == pytest.approx(loss, rel=1e-12)
    _, *later = (row["train/loss"] for row in rows if "train/loss" in row)  # an untrained model's is the same for all
    assert later != torch.tensor(later).bfloat16().tolist()

    assert evaluate(composed("evaluate", f"run={run}")) == summary["metrics"]
    folder = explain(composed("explain", f"run={run}", "split=test", "n=1", "orders=2", "methods=attention"))
    assert json.loads((folder / "explain.json").read_text())["methods"]
    output = tmp_path / "answer"
    predict(composed("predict", f"run={run}", f'input="{asked}"', "maps.draw=true", f"output={output}"))
    (record,) = (output / "maps").glob("*.json")
    assert {kept["dtype"] for kept in json.loads(record.read_text())} == {"float32"}

    longer = ("trainer.max_steps=4", "maps.probes=0", "explain.examples=0")
    again = train(composed("train", *words, f"data.path={path}", *longer, f"resume={run}")).path
    assert again == run
    assert json.loads((run / "summary.json").read_text())["steps"] == 4


@pytest.mark.parametrize(
    ("overrides", "device", "sentence"),
    [
        (
            ["trainer.precision=16-true"],
            "cpu",
            r"trainer\.precision=16-true: .* loss scale; use 16-mixed or bf16-mixed",
        ),
        (["trainer.precision=16-mixed"], "cpu", r"trainer\.precision=16-mixed is for GPUs: use bf16-mixed or 32-true"),
        (["trainer.precision=16"], "cpu", r"trainer\.precision=16 is for GPUs"),
        (["trainer.precision=64-true"], "mps", r"trainer\.precision=64-true: mps has no float64; use 32-true"),
        (
            ["trainer.precision=64", "trainer=fsdp"],
            "cuda",
            r"trainer\.precision=64: trainer=fsdp keeps .*32; use 32-true",
        ),
        (["trainer.precision=bf16-true", "trainer=fsdp"], "cuda", r"precision=bf16-true: trainer=fsdp .*bf16-mixed"),
    ],
)
def test_what_would_go_wrong_is_refused_before_there_is_a_folder(
    overrides: list[str], device: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_device", lambda accelerator: torch.device(device))
    words = ["task=charlm", "data=text", *TINY, "data.path=nowhere", "optimizer=adamw", f"runs={tmp_path}", *overrides]
    with pytest.raises(UserError, match=sentence):
        train(composed("train", *words))
    assert not list(tmp_path.iterdir())


def test_a_short_name_is_stored_as_the_full_one(text_file: Path, tmp_path: Path) -> None:
    """So that a run that is resumed under either name is the same run."""
    words = ["task=charlm", *SMALL["charlm"], *SHORT, f"data.path={text_file}", f"runs={tmp_path}", "maps.probes=0"]
    words += ["explain.examples=0"]
    run = train(composed("train", *words, "trainer.precision=64")).path
    assert load(run).config.trainer.precision == "64-true"
    train(composed("train", *words, "trainer.precision=64-true", "trainer.max_steps=4", f"resume={run}"))
