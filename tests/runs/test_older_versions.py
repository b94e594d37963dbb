"""Run folders that version 0.1.0 wrote are still evaluated, used, explained, reported and resumed, for every task.

``version_0_1_0`` holds three of them, as that version left them (without pages and pictures), and the files that they
were trained on.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from PIL import Image

from triptych.commands.cli import CONF
from triptych.commands.evaluate import evaluate
from triptych.commands.explain import explain
from triptych.commands.predict import predict
from triptych.commands.report import rebuild_report
from triptych.commands.train import train
from triptych.runs.folder import RunFolder

STORED = Path(__file__).parent / "version_0_1_0"
DATA = {"charlm": STORED / "data" / "text.txt", "translation": STORED / "data" / "pairs", "vit": None}
ASKED = {"charlm": "The ", "translation": "one plus two is big", "vit": "picture.png"}


@pytest.fixture(params=DATA)
def run(request: pytest.FixtureRequest, tmp_path: Path, one_thread: None) -> Path:
    """A copy of a stored run's folder."""
    Image.new("L", (8, 8), 100).save(tmp_path / "picture.png")
    return Path(shutil.copytree(STORED / request.param, tmp_path / request.param))


def composed(name: str, run: Path, *overrides: str, data: bool = True) -> Any:
    path = DATA[run.name]
    where = [f"data.path={path}"] if data and path is not None else []
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(name, overrides=[f"run={run}", *where, *overrides])


def test_it_measures_what_it_measured(run: Path) -> None:
    before = json.loads((run / "summary.json").read_text(encoding="utf-8"))["metrics"]
    now = evaluate(composed("evaluate", run))
    assert now.keys() == before.keys()
    for name, number in before.items():
        # This translator was trained for ten updates: its maps are almost even, so which source word a link goes to may
        # change with the last bits of a machine's arithmetic. Two links of fifty are .04.
        links = name.partition("/")[2] in ("aer", "alignment_precision", "alignment_recall")
        assert now[name] == pytest.approx(number, rel=1e-6, abs=0.04 if links else 1e-6), name


def test_it_answers_and_draws(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = str(run.parent / "picture.png") if run.name == "vit" else ASKED[run.name]
    more = ["length=5"] if run.name == "charlm" else []
    config = composed("predict", run, f'input="{asked}"', "maps.draw=true", *more, data=False)
    predict(config)
    assert capsys.readouterr().out.strip()
    assert list((run / "predictions").glob("*.png"))


def test_it_is_explained_and_reported(run: Path) -> None:
    into = explain(composed("explain", run, "split=test", "n=2", "orders=2", "methods=attention"))
    assert json.loads((into / "explain.json").read_text(encoding="utf-8"))["examples"] == 2
    rebuild_report(composed("report", run, data=False))
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "finished" in page
    assert "Final metrics" in page


def test_it_goes_on(run: Path) -> None:
    config = RunFolder(run).config()
    config.resume, config.trainer.max_steps, config.explain.examples = str(run), 12, 0
    if DATA[run.name] is not None:
        config.data.path = str(DATA[run.name])
    assert train(config).path == run
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert (summary["status"], summary["steps"]) == ("finished", 12)
