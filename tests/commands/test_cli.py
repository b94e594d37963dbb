"""Command lines as they are typed: each option of a command's file in conf/ is taken with a value that it may have."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from triptych.commands.cli import command
from triptych.config.messages import own_settings

COMMANDS = ("predict", "evaluate", "explain", "report", "compare")
PARTS_OF_ALL = ("defaults", "hydra")
# A value for each option, as it is typed, other than the one that stands in conf/.
VALUES: dict[str, Any] = {
    "about": "cat",
    "attention": "naive",
    "beam": 3,
    "checkpoint": "last",
    "concept": "pictures",
    "control": False,
    "data.path": "elsewhere",
    "input": "photo.png",
    "length": 40,
    "length_penalty": 0.5,
    "maps.draw": True,
    "methods": ["cdam", "rollout"],
    "metric": "val/loss",
    "mode": "min",
    "n": 8,
    "n_best": 2,
    "orders": 3,
    "output": "answer.txt",
    "points": 5,
    "reference": "Guten Tag",
    "run": "runs/vit/latest",
    "runs": "runs/vit/*",
    "seconds": 20,
    "seed": 7,
    "shown": 2,
    "sort": "test/loss",
    "split": "test",
    "temperature": 0.2,
    "top": 3,
    "top_k": 9,
    "top_p": 0.9,
}

Typed = Callable[..., DictConfig]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Typed:
    """``typed("predict", "seed=1")``: the configuration that the command is called with."""

    def run(name: str, *words: str) -> DictConfig:
        configurations: list[DictConfig] = []
        monkeypatch.setattr(sys, "argv", [name, *words])
        command(configurations.append, name)
        (configuration,) = configurations
        return configuration

    return run


def options(name: str) -> list[str]:
    """The options of a command, those with parts by the names of these parts."""
    own = {key: value for key, value in own_settings(name).items() if key not in PARTS_OF_ALL}
    mappings = {key: value for key, value in own.items() if isinstance(value, dict)}
    return [*(own.keys() - mappings.keys()), *(f"{key}.{part}" for key, parts in mappings.items() for part in parts)]


@pytest.mark.parametrize(("name", "option"), [(name, option) for name in COMMANDS for option in sorted(options(name))])
def test_every_option_of_a_command_is_taken(typed: Typed, name: str, option: str) -> None:
    """``attention`` is also the name of a folder in conf/: to Hydra, ``attention=naive`` chose a file for nothing."""
    value = VALUES[option]
    written = f"[{','.join(value)}]" if isinstance(value, list) else f"'{value}'" if option == "reference" else value
    assert OmegaConf.select(typed(name), option) != value
    assert OmegaConf.select(typed(name, f"{option}={written}"), option) == value


def test_an_option_is_taken_back_to_null(typed: Typed) -> None:
    assert typed("predict", "attention=null").attention is None


def test_maps_true_is_short_for_its_part(typed: Typed) -> None:
    assert typed("predict", "maps=true").maps.draw is True


@pytest.mark.parametrize(
    ("name", "word", "sentence"),
    [
        ("predict", "logger=wandb", "logger is not an option; there are: attention, beam"),
        ("predict", "atention=naive", "atention is not an option; did you mean attention?"),
        ("evaluate", "attention=naive", "attention is not an option; there are: checkpoint, data, data.path, run"),
        ("evaluate", "+attention=naive", "attention is not an option; there are: checkpoint, data, data.path, run"),
        ("explain", "maps=true", "maps is not an option; there are: about, attention"),
        ("explain", "data=digits", "data=digits says nothing: the option has parts, write data.path=..."),
        ("predict", "maps=none", "maps=none says nothing: the option has parts, write maps.draw=..."),
    ],
)
def test_what_a_command_has_no_option_for_is_refused(
    typed: Typed, capsys: pytest.CaptureFixture[str], name: str, word: str, sentence: str
) -> None:
    """Folders of conf/ that only training chooses from are no options of these commands, and not offered by them."""
    with pytest.raises(SystemExit) as ended:
        typed(name, word)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"triptych: {sentence}")
