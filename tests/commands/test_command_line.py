"""The command line's promises: texts arrive byte for byte, and a mistake is one sentence with exit code 2."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lines import Ended, run, run_alone

import triptych.commands.predict
import triptych.report.compare
from triptych.commands.catalogue import COMMANDS
from triptych.commands.words import FROM_ENVIRONMENT

Line = Callable[..., Ended]


@pytest.fixture
def line(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Line:
    """``line("predict", "RUN", "text")`` in a folder of its own, with no variable of make set."""
    monkeypatch.chdir(tmp_path)
    for variable in FROM_ENVIRONMENT:
        monkeypatch.delenv(variable, raising=False)
    return lambda *words: run(capfd, monkeypatch, *words)


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What ``predict`` or ``compare`` would be asked for, as soon as one of them is started."""
    settings: dict[str, Any] = {}

    def take(config: Any) -> None:
        settings.update(config)

    monkeypatch.setattr(triptych.commands.predict, "predict", take)
    monkeypatch.setattr(triptych.report.compare, "compare", take)
    return settings


TEXTS = [
    "The assert statement", "", " blank first", "two\nlines\n", "a=b", "x = 3", "def f(n=3):", "${oc.env:HOME}",
    "\\${a}", "\\\\${a}", "[1, 2]", "{a: b}", "{", "'", '"', "a, b", "null", "true", "~", "~x y", "+a", "???", "# none",
    "-5 degrees", "- item", "@x", "a/b=c", "100 %", "\\", "é 日本 🙂", "key: value", "$(touch bad)",
    "\x01", "choose(1,2)",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_arrives_as_typed(line: Line, received: dict[str, Any], text: str) -> None:
    assert line("predict", "runs/a run", text, "length=5").code == 0
    assert (received["run"], received["input"], received["length"]) == ("runs/a run", text, 5)


@pytest.mark.parametrize("text", ["seed=3", "--help", "-n", "--cfg", "--", "lenght=3", "input=x", "--config-dir"])
def test_a_text_that_looks_like_an_option_follows_two_dashes(line: Line, received: dict[str, Any], text: str) -> None:
    assert line("predict", "length=5", "RUN", "--", text).code == 0
    assert (received["input"], received["length"]) == (text, 5)


@pytest.mark.parametrize("text", ["a, b", "${x}", "null", "[", " x=1 "])
def test_texts_and_paths_given_by_name_are_literal_too(line: Line, received: dict[str, Any], text: str) -> None:
    words = [f"{name}={text}" for name in ("input", "reference", "output", "run")]
    assert line("predict", *words).code == 0
    assert [received[name] for name in ("input", "reference", "output", "run")] == [text] * 4


def test_bytes_that_are_no_text_arrive_too(line: Line, received: dict[str, Any]) -> None:
    text = os.fsdecode(b"\xff\xfe ${")
    line("predict", "RUN", text)
    assert os.fsencode(received["input"]) == b"\xff\xfe ${"


def test_what_make_put_into_the_environment_counts_and_words_win(
    line: Line, received: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIPTYCH_RUN", "theirs")
    monkeypatch.setenv("TRIPTYCH_INPUT", "a ${b}")
    assert line("predict").code == 0
    assert (received["run"], received["input"]) == ("theirs", "a ${b}")
    assert line("predict", "mine", "text").code == 0
    assert (received["run"], received["input"]) == ("mine", "text")
    assert os.environ["TRIPTYCH_RUN"] == "theirs", "the next command of this process has words of its own"


def test_runs_to_compare_may_have_blanks_and_quotes(line: Line, received: dict[str, Any]) -> None:
    from triptych.report.compare import _words

    paths = ["runs/a b", "it's", "runs/charlm/*", "x,y"]
    assert line("compare", *paths, "sort=test/loss").code == 0
    assert _words(received["runs"]) == paths
    assert received["sort"] == "test/loss"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["trian", "task=vit"], "trian is not a command; did you mean triptych train?"),
        (["zzz"], r"zzz is not a command; there are: train, predict, .*runs"),
        (["task=vit"], "say first what to do, as in: triptych train task=vit"),
        (["predict"], "which run\\? Give run folders, as in: triptych predict runs/charlm/latest"),
        (["evaluate"], "which run\\?"),
        (["explain", "split=test"], "which run\\?"),
        (["report", "checkpoint"], "run=checkpoint does not exist"),
        (["compare"], "which runs\\?"),
        (["predict", "RUN"], "what is the model to answer\\? Give a text"),
        (["predict", "RUN", "The", "assert"], "predict takes RUN TEXT .*, and 'assert' is one word too many; .*quotes"),
        (["evaluate", "RUN", "x"], "evaluate takes RUN .*, and 'x' is one word too many"),
        (["predict", "RUN", "lenght=3"], "lenght= is not an option of predict; did you mean length=\\? .*follows --"),
        (["predict", "RUN", "--hlep"], "--hlep is not a flag; did you mean --help\\?; a text .* follows --"),
        (["evaluate", "RUN", "chekpoint=last"], "chekpoint is not an option; did you mean checkpoint"),
        (["train", "vit"], "train takes options only, and 'vit' is none; did you mean task=vit\\?"),
        (["train", "modle.width=3", "task=vit"], "modle.width is not an option; did you mean model.width"),
        (["train", "task=vit", "3x=4"], "3x=4 cannot be read"),
        (["sweep", "task"], "sweep takes options only, and 'task' is none"),
        (["train", "--config-dir"], "--config-dir takes a folder"),
        (["train", "--config-dir", "nowhere"], "--config-dir nowhere is not a folder"),
        (["runs", "nowhere"], "nowhere is not a folder"),
        (["runs", "a", "b"], r"runs takes \[FOLDER\], and 'b' is one word too many"),
        (["runs", "--cfg", "job"], "--cfg is not an option of runs"),
        (["--shell-completion", "install=tcsh"], "--shell-completion takes one of install=bash"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_sentence(line: Line, words: list[str], sentence: str) -> None:
    ended = line(*words)
    assert ended.code == 2
    assert re.fullmatch(f"triptych: .*{sentence}.*\n", ended.err)
    assert not ended.out


def test_hydras_own_flags_work(line: Line) -> None:
    shown = line("train", "task=vit", "optimizer.lr=0.5", "--cfg", "job", "--package", "optimizer")
    assert shown.code == 0
    assert "lr: 0.5" in shown.out
    assert line("predict", "--cfg", "job").code == 0, "what is only looked at needs no run"
    assert "--config-dir" in line("train", "--hydra-help").out


def test_the_version(line: Line) -> None:
    from triptych import __version__

    assert line("--version") == (0, f"triptych {__version__}\n", "")


def test_every_command_has_its_function_and_its_settings() -> None:
    from importlib import import_module

    from triptych.config.search_path import CONF

    for command in COMMANDS.values():
        module, _, name = command.function.partition(":")
        assert callable(getattr(import_module(module), name))
        assert command.config is None or (CONF / f"{command.config}.yaml").is_file()
        assert all(example.startswith(f"triptych {command.name}") for example in command.examples)


def test_a_process_of_its_own_ends_the_same_way(tmp_path: Path) -> None:
    """As a person has it; what the shell sees is the exit code and one line."""
    ended = run_alone(tmp_path, "predict", "nowhere", b"\xff")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("triptych: run=nowhere does not exist")
    assert sys.executable not in ended.err
