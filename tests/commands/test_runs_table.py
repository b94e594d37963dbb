"""`triptych runs`: every run in a row, the newest first, and none that is broken hides the others."""

import json
import re
from pathlib import Path

import pytest
from lines import run

from triptych.commands import runs as table
from triptych.runs import folder
from triptych.runs.folder import RunFolder


def make(runs: Path, task: str, name: str, **summary: object) -> Path:
    path = runs / task / name
    path.mkdir(parents=True)
    metric = "val/loss" if task == "charlm" else "val/accuracy"
    mode = "min" if task == "charlm" else "max"
    (path / folder.CONFIG).write_text(
        f"task: {{name: {task}}}\nwatch: {{metric: {metric}, mode: {mode}}}\nsettings_version: 3\n"
    )
    if summary:
        (path / folder.SUMMARY).write_text(json.dumps(summary))
    return path


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    runs = tmp_path / "my runs"
    make(runs, "charlm", "20260101-120000-aaaaaa", status="finished", metrics={"val/loss": 1.5, "test/loss": 1.75})
    make(runs, "vit", "20260301-120000-bbbbbb", status="finished", metrics={"val/accuracy": 0.9375})
    killed = make(runs, "vit", "20260201-120000-cccccc", status="running", metrics={})
    (killed / "metrics.csv").write_text("step,val/accuracy\n1,0.5\n2,\n3,0.75\n4,nan\n")
    (runs / "vit" / "20260401-120000-dddddd").mkdir()
    (runs / "vit" / "latest").symlink_to("20260301-120000-bbbbbb")
    (runs / "again").symlink_to("vit")
    (runs / "sweeps" / "20260105-120000-eeeeee").mkdir(parents=True)
    return runs


def test_rows_are_the_runs_newest_first(runs: Path) -> None:
    rows = table.gather(runs)
    assert [(row.path.name[-6:], row.task, row.metric) for row in rows] == [
        ("dddddd", "vit", "–"),
        ("bbbbbb", "vit", "val/accuracy 0.9375"),
        ("cccccc", "vit", "val/accuracy 0.7500"),
        ("aaaaaa", "charlm", "val/loss 1.500"),
    ]
    assert [row.status for row in rows[1:]] == ["finished", "killed", "finished"]
    assert rows[0].status.startswith("broken: ")
    assert "config.yaml" in rows[0].status


def test_a_run_that_a_process_holds_is_running(runs: Path) -> None:
    held = RunFolder(runs / "vit" / "20260201-120000-cccccc")
    assert held.lock()
    try:
        (row,) = (row for row in table.gather(runs) if row.path == held.path)
        assert row.status == "running"
    finally:
        held.release()


@pytest.mark.parametrize("content", ["{", "[1]", "task: 3", "", "settings_version: 99\ntask: {name: vit}"])
def test_whatever_a_configuration_holds_there_is_a_row(runs: Path, content: str) -> None:
    (runs / "vit" / "20260401-120000-dddddd" / folder.CONFIG).write_text(content)
    assert table.gather(runs)[0].status.startswith("broken: ")
    assert len(table.gather(runs)) == 4


@pytest.mark.parametrize("content", ["", "[]", "{", "3"])
def test_whatever_a_summary_holds_there_is_a_row(runs: Path, content: str) -> None:
    (runs / "vit" / "20260301-120000-bbbbbb" / folder.SUMMARY).write_text(content)
    assert table.gather(runs)[1].status.startswith("broken: summary.json")


def test_the_table_is_printed(
    runs: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ended = run(capfd, monkeypatch, "runs", str(runs))
    assert ended.code == 0
    assert re.search(r"bbbbbb +│ vit +│ finished +│ val/accuracy 0\.9375 +│ \d+ d ", ended.out)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no runs in" in run(capfd, monkeypatch, "runs", str(empty)).out


@pytest.mark.parametrize(
    ("seconds", "text"), [(-3, "0 s"), (59, "59 s"), (60, "1 min"), (7199, "1 h"), (86400 * 9, "9 d")]
)
def test_an_age_has_one_unit(seconds: float, text: str) -> None:
    assert table.age(seconds) == text
