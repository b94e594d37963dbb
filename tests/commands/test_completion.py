"""Completion: commands by name, options as Hydra composes them, and bash's own half."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lines import SOURCE, run

from triptych.commands import completion


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("triptych ", {"train", "predict", "runs"}),
        ("triptych tr", {"train"}),
        ("triptych train task=", {"task=charlm", "task=vit", "task=translation"}),
        ("triptych train task=vit optimizer.", {"optimizer.lr=", "optimizer.momentum="}),
        ("triptych train task=vit optimizer=adamw optimizer.b", {"optimizer.betas."}),
        ("triptych train att", {"attention="}),
        ("triptych predict RUN text temp", {"temperature="}),
    ],
)
def test_what_may_follow(line: str, expected: set[str]) -> None:
    assert expected <= set(completion.suggestions(line))


@pytest.mark.parametrize("words", ["zzz a", "runs a", "train task=zzz model.w", "train ["])
def test_a_line_that_makes_no_sense_has_no_continuation(words: str) -> None:
    assert completion.suggestions(f"triptych {words}") == []


def test_both_ways_to_ask_give_the_same(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ended = run(capfd, monkeypatch, "--shell-completion", "install=bash")
    assert ended == run(capfd, monkeypatch, "train", "--shell-completion", "install=bash")
    assert "complete -o nospace" in ended.out


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_after_an_equals_sign(tmp_path: Path) -> None:
    """bash splits words at =; what it is given must be the rest only."""
    program = tmp_path / "triptych"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={SOURCE} exec "{sys.executable}" -m triptych.commands "$@"\n')
    program.chmod(0o755)
    asked = 'COMP_LINE="triptych train task=v"; COMP_POINT=${#COMP_LINE}; _triptych; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", f'eval "$(triptych --shell-completion install=bash)"; {asked}'],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.stdout == "vit\n", done.stderr
