"""metrics.csv: one row per step, columns that come later, and a file that survives kills and resumes."""

import csv
import resource
from pathlib import Path

import pytest

from triptych.runs.metrics_file import MetricsFile
from triptych.runs.metrics_rows import read


def lines(path: Path) -> list[list[str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_what_is_logged_at_one_step_is_one_row(tmp_path: Path) -> None:
    log = MetricsFile(path=tmp_path / "metrics.csv", resumed_at=None)
    log.log_metrics({"train/loss": 2.0, "epoch": 0.1}, 5)
    log.log_metrics({"train/loss": 1.5, "epoch": 0.2}, 10)
    log.log_metrics({"val/loss": 1.25}, 10)
    log.save()
    header, *rows = lines(tmp_path / "metrics.csv")
    assert header == ["step", "epoch", "seconds", "train/loss", "val/loss"]
    assert [[row[0], row[3], row[4]] for row in rows] == [["5", "2.0", ""], ["10", "1.5", "1.25"]]


def test_saving_appends_and_a_row_that_grows_rewrites(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    log = MetricsFile(path=path, resumed_at=None)
    for step in (1, 2, 3):
        log.log_metrics({"train/loss": 1.0 / step}, step)
        log.save()
        assert [row["step"] for row in read(path)] == list(range(1, step + 1))
    log.log_metrics({"test/loss": 0.1}, 3)
    log.finalize("success")
    assert [row.get("test/loss") for row in read(path)] == [None, None, 0.1]  # with its row, though that was written
    assert len({len(row) for row in lines(path)}) == 1
    assert read(path)[2]["train/loss"] == 1 / 3  # every digit


def test_a_resumed_run_cuts_rows_past_its_checkpoint_and_counts_on(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    log = MetricsFile(path=path, resumed_at=None)
    for step in (5, 10, 15):
        log.log_metrics({"train/loss": float(step), "val/loss": 1.0}, step)
    log.save()
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("\n10,", "\n10,").rstrip("\n")[:-2], encoding="utf-8")  # killed while writing row 15
    resumed = MetricsFile(path=path, resumed_at=10)
    resumed.log_metrics({"train/loss": 11.0, "extra": 2.0}, 11)
    resumed.save()
    rows = read(path)
    assert [row["step"] for row in rows] == [5, 10, 11]
    assert rows[1]["val/loss"] == 1.0
    assert rows[2]["extra"] == 2.0
    assert rows[2]["seconds"] >= rows[1]["seconds"]


def test_a_last_line_cut_within_a_number_is_dropped(tmp_path: Path) -> None:
    """What is left of 1.25 may read 1.2, a number too: only the missing line end tells."""
    path = tmp_path / "metrics.csv"
    path.write_text("step,seconds,train/loss\n5,1.0,2.5\n10,2.0,1.2", encoding="utf-8")
    assert read(path) == [{"step": 5, "seconds": 1.0, "train/loss": 2.5}]


def test_a_missing_or_empty_file_has_no_rows(tmp_path: Path) -> None:
    assert read(tmp_path / "none.csv") == []
    (tmp_path / "empty.csv").touch()
    assert read(tmp_path / "empty.csv") == []
    assert MetricsFile(path=tmp_path / "empty.csv", resumed_at=5).name == "metrics"


def test_a_full_disk_leaves_no_half_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    log = MetricsFile(path=path, resumed_at=None)
    log.log_metrics({"train/loss": 1.0}, 1)
    log.save()
    before = path.read_text(encoding="utf-8")
    log.log_metrics({"train/loss": 2.0}, 2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 3, limits[1]))  # room for three bytes of the next row
    try:
        with pytest.raises(OSError, match="too large"):
            log.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text(encoding="utf-8") == before
    log.log_metrics({"train/loss": 3.0}, 3)
    log.save()  # there is room again
    assert [(row["step"], row["train/loss"]) for row in read(path)] == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_a_file_that_was_removed_meanwhile_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    log = MetricsFile(path=path, resumed_at=None)
    log.log_metrics({"train/loss": 1.0}, 1)
    log.save()
    path.unlink()
    log.log_metrics({"train/loss": 2.0}, 2)
    log.save()
    assert [row["step"] for row in read(path)] == [1, 2]
