"""JSON lines end at line feeds alone: what separates lines elsewhere in Unicode is a character of a text here."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.callbacks import samples
from triptych.errors import UserError
from triptych.report import run_page
from triptych.runs import jsonlines
from triptych.runs.folder import ANSWERS, RunFolder
from triptych.runs.readers import read_alignments, read_curves, read_samples

SEPARATORS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"  # of lines, to str.splitlines


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.none(), max_size=3), max_size=5))
def test_any_values_there_and_back(rows: list[dict[str, object]]) -> None:
    text = jsonlines.dumps(rows)
    assert text.count("\n") == len(rows)


def test_values_are_read_back_and_damaged_lines_counted(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"text": f"a{sign}b\r\n"} for sign in SEPARATORS]
    path.write_text(jsonlines.dumps(rows), encoding="utf-8", newline="")
    assert jsonlines.read(path) == (rows, 0)
    with path.open("ab") as file:
        file.write(b'\n[1]\r\n{"text": "\xff"}\n{"text": "cut')
    assert jsonlines.read(path) == ([*rows, [1], {"text": "�"}], 1)
    with pytest.raises(FileNotFoundError):
        jsonlines.read(tmp_path / "none.jsonl")


def test_answers_are_read_back_and_a_damaged_file_is_one_sentence(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.answers() == []
    answers = [{"source": SEPARATORS, "reference": "b", "translation": f"c{sign}"} for sign in SEPARATORS]
    folder.write_answers(answers)
    assert folder.answers() == answers
    (tmp_path / ANSWERS).write_text('{"source": "a"}\n{"sou', encoding="utf-8")
    with pytest.raises(UserError, match="1 of its lines cannot be read"):
        folder.answers()


def test_samples_are_read_back_without_those_that_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    rows = [{"step": step, "prompt": SEPARATORS, "text": f"{SEPARATORS}{step}"} for step in (4, 8)]
    path.write_text(jsonlines.dumps(rows) + '[]\n{"text": "no step"}\n{"step": 12, "te', encoding="utf-8")
    assert samples.read(path) == rows
    assert samples.read(tmp_path / "none.jsonl") == []
    notes: list[str] = []
    assert [each.text for each in read_samples(tmp_path, notes)] == ["8", "4"]
    assert notes == ["samples.jsonl: 3 lines could not be read."]


def test_tables_and_the_report_know_names_with_separators(tmp_path: Path) -> None:
    """A class may be called anything, and a metric after it; cells of a csv file may hold lines of their own."""
    name = f"val/accuracy {SEPARATORS}\r\nx"
    (tmp_path / "metrics.csv").write_text(f'step,"{name}"\n1,0.5\n2,0.75\n', encoding="utf-8", newline="")
    (tmp_path / "alignment.csv").write_text(f'layer,"{name}"\n0,0.5\n', encoding="utf-8", newline="")
    rows = [{"step": 1, "prompt": "", "text": f"said{sign}so"} for sign in SEPARATORS]
    (tmp_path / "samples.jsonl").write_text(jsonlines.dumps(rows), encoding="utf-8")
    (tmp_path / "summary.json").write_text(json.dumps({"task": "charlm", "status": "finished"}))
    notes: list[str] = []
    (curve,) = read_curves(tmp_path, notes)
    assert (curve.name, curve.steps, curve.values) == (name, [1, 2], [0.5, 0.75])
    assert read_alignments(tmp_path, notes) == (["layer", name], [["0", "0.5"]])
    assert notes == []
    page = run_page.write(tmp_path).read_text(encoding="utf-8")
    assert "could not be read" not in page
    assert "said\u2028so" in page
