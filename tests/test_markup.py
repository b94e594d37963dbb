"""What a person's files are called reaches the terminal as it is: no name is taken for markup."""

import json
from pathlib import Path

import pytest

from conftest import Composed
from triptych.commands.train import train


def test_names_that_look_like_markup(composed: Composed, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "set [bold]"
    folder.mkdir()
    (folder / "a.txt").write_text("Some text that is long enough to learn from. " * 40, encoding="utf-8")
    (folder / "x [bold]b.pdf").write_text("")
    run = train(
        composed(f"data.path={json.dumps(str(folder))}", "maps=none", "trainer.max_steps=2", "validations=1")
    ).path
    said = capsys.readouterr().out
    assert "set [bold]" in said
    assert "x [bold]b.pdf (no kind that is read)" in said
    assert (run / "report.html").is_file()
