"""Somebody adds a task with a data module, a model, a task and three yaml files, and a callback with one yaml.

Protects that nothing of triptych has to be edited for it, and that what such a task does not have is said.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOY = ROOT / "tests" / "toy"


def call(command: str, *words: str, code: int = 0, **environment: str) -> str:
    """A command as a person types it who has the toy's modules on his path; what it printed."""
    path = os.pathsep.join([str(TOY), str(ROOT / "src")])
    variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment}
    command_line = [sys.executable, "-m", "triptych.commands", command, *words]
    done = subprocess.run(command_line, env=variables, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the toy task, with its callback, and without our head tables."""
    runs = tmp_path_factory.mktemp("runs")
    words = ["task=majority", "callbacks=[default,weight_norm]", "callbacks.heads=null", "watch.metric=val/weight_norm"]
    call("train", "--config-dir", str(TOY / "conf"), *words, f"runs={runs}")
    return (runs / "majority" / "latest").resolve()


def test_it_trains_with_maps_and_learns(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert (summary["status"], summary["task"], summary["seen"]["unit"]) == ("finished", "majority", "rows")
    assert summary["metrics"]["test/loss"] < 0.5, "chance is 0.69"
    assert summary["maps"]["capture_error"] < 1e-5
    assert list((run / "maps").glob("step-*.safetensors"))
    assert not (run / "samples.jsonl").exists(), "the task has no samples to give"


def test_its_callback_runs_and_ours_is_switched_off(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert summary["metrics"]["val/weight_norm"] > 0
    assert (run / "ended.txt").read_text(encoding="utf-8") == "40\n"
    assert not (run / "heads.json").exists()
    assert not (run / "explain.json").exists()


def test_a_failure_between_the_folder_and_training_is_in_the_status(tmp_path: Path) -> None:
    """The callback is made once the run has a folder, and refuses then."""
    words = ["task=majority", "callbacks=[default,weight_norm]", "callbacks.weight_norm.power=-1.0", f"runs={tmp_path}"]
    printed = call("train", "--config-dir", str(TOY / "conf"), *words, code=2)
    assert printed.endswith("triptych: callbacks.weight_norm.power=-1.0; it must be above 0\n")
    (summary,) = (tmp_path / "majority").glob("2*/summary.json")
    assert json.loads(summary.read_text(encoding="utf-8"))["status"] == "failed"


def test_it_is_evaluated_predicts_and_reports(run: Path) -> None:
    assert "test/loss" in call("evaluate", f"run={run}", "allow=majority")
    assert call("predict", "allow=majority", TRIPTYCH_RUN=str(run), TRIPTYCH_INPUT="111101111").strip() == "1"
    call("report", f"run={run}")
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "explanations are not defined for task=majority" in page


def test_without_a_target_it_is_not_explained(run: Path) -> None:
    said = call("explain", "allow=majority", TRIPTYCH_RUN=str(run), TRIPTYCH_INPUT="111101111", code=2)
    assert said.strip() == ("triptych: explanations are not defined for task=majority: it has no explanation target")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["+callbacks.weight_norm.powr=1"], "callbacks.weight_norm.powr is not an option"),
        (["callbacks.weight_norm.power=much"], "callbacks.weight_norm.power=much; it must be a number"),
        (["~callbacks.weight_norm.power"], "callbacks.weight_norm.power is missing: WeightNorm needs it"),
        (["callbacks.weight_norm._target_=majority.Nothing"], "majority.Nothing cannot be imported"),
        (["callbacks.weight_norm._target_=majority.BitModel"], "majority.BitModel is no Lightning callback"),
        (["callbacks.weight_norm=2"], "callbacks.weight_norm must hold the _target_ of a Lightning callback"),
        (
            ["+callbacks.alignment._target_=triptych.callbacks.aligning.AlignmentCallback"],
            "callbacks.alignment is for task=translation, not task=majority",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_callback_that_cannot_be_made_is_refused_before_any_work(
    words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hydra import compose, initialize_config_dir

    from triptych.config import build
    from triptych.config.messages import CONF
    from triptych.errors import UserError

    monkeypatch.syspath_prepend(str(TOY))
    overrides = ["task=majority", f"hydra.searchpath=[{TOY / 'conf'}]"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", overrides=[*overrides, "callbacks=[default,weight_norm]", *words])
    with pytest.raises(UserError, match=sentence.replace("[", r"\[")):
        build.check(config)
