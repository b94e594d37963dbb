"""The help texts: complete, taken from where the settings are documented, and there without anything heavy."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from lines import SOURCE, run

from triptych.commands import help_text
from triptych.commands.catalogue import COMMANDS
from triptych.config.search_path import CONF

HEAVY = {"torch", "hydra", "omegaconf", "pytorch_lightning", "numpy", "rich", "yaml", "scipy", "datasets"}


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["predict", "RUN", "--help"], ["runs", "-h"], []])
def test_help_ends_well(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run(capfd, monkeypatch, *words)
    assert (ended.code, ended.err) == (0, "")
    assert len(re.findall("^  triptych ", ended.out, re.MULTILINE)) == 2, "two examples"


def test_help_of_all_names_every_command() -> None:
    text = help_text.overview()
    for command in COMMANDS.values():
        assert re.search(rf"^  {command.name} +\S", text, re.MULTILINE)


@pytest.mark.parametrize("command", [c for c in COMMANDS.values() if c.config], ids=lambda command: command.name)
def test_every_option_is_listed_with_its_comment(command: help_text.Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    text = " ".join(help_text.of_command(command).split())
    settings = help_text.read(CONF / f"{command.config}.yaml").settings
    assert settings
    for setting in settings:
        assert f" {setting.name}" in text
        assert setting.remark in text


def test_comments_over_several_lines_and_nested_settings_are_read(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(
        "# What it is.\ndefaults:\n  - base/two@_here_\n  - data: null\n  - override /model: vit  # later\n  - _self_\n"
        "a: 1     # first\n         # and more\nb:       # holds\n  c: {x: y}  # nested\nd: a#b\n"
        "hydra:\n  run: {dir: .}\n"
    )
    contents = help_text.read(file)
    assert contents.title == "What it is."
    assert contents.choices == {"data": "null", "model": "vit"}
    assert contents.bases == ["base/two"]
    assert [(setting.name, setting.value, setting.remark) for setting in contents.settings] == [
        ("a", "1", "first and more"),
        ("b", "", "holds"),
        ("b.c", "{x: y}", "nested"),
        ("d", "a#b", ""),
    ]


def test_of_choices_the_options_are_listed_too() -> None:
    text = help_text.of_command(COMMANDS["train"], ["optimizer=muon", "task=vit", "data=mnist_5k", "sweep=search"])
    for part in ("optimizer.momentum=0.9", "trainer.max_steps=1000", "data.mixup=0.0", "sweep.trials=20"):
        assert part in text
    assert "data.source=embedded:mnist_5k" in text, "its own value, not that of the file it takes first"


@pytest.mark.parametrize("group", sorted(folder.name for folder in CONF.iterdir() if folder.is_dir()))
def test_every_file_of_a_choice_can_be_described(group: str) -> None:
    for file in (CONF / group).glob("*.yaml"):
        assert f"{group}={file.stem}: " in help_text.of_command(COMMANDS["train"], [f"{group}={file.stem}"])


@pytest.mark.parametrize("words", [[], ["train", "--help"], ["trian"]])
def test_help_and_misspelt_commands_import_nothing_heavy(words: list[str]) -> None:
    """Whoever looks for a word waits for no library; that is what keeps it under a second on any machine."""
    code = (
        f"import sys, atexit; sys.path.insert(0, {str(SOURCE)!r}); "
        "atexit.register(lambda: print('modules', *sys.modules)); from triptych.commands.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "triptych.commands.cli" in loaded
    assert not loaded & HEAVY
