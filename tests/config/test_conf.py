"""conf/: every option composes, says what it is for, and names only arguments that what it makes really has."""

import inspect
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from hydra.utils import get_method
from omegaconf import DictConfig, OmegaConf

from triptych.callbacks.maps import MapsCallback
from triptych.commands.cli import CONF, FROM_ENVIRONMENT
from triptych.config import messages, validate

FILES = sorted(CONF.rglob("*.yaml"))
GROUPS = sorted(folder.name for folder in CONF.iterdir() if folder.is_dir())
OPTIONS = [(file.parent.name, file.stem) for file in FILES if file.parent.parent == CONF]  # launchers: test_launchers
TASKS = [stem for group, stem in OPTIONS if group == "task"]
# Keys that build.py reads itself instead of passing them on.
OURS = {
    **{"WandbLogger": {"mode"}, "Trainer": {"port"}},
    **{"CharLMTask": {"name"}, "ViTTask": {"name"}, "TranslationTask": {"name"}},
}
# Given when the callback is made, never in YAML.
FILLED_IN = {"folder", "fingerprint", "resumed_at"}


def composed(name: str, *overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(name, overrides=list(overrides))


def task_of(group: str, stem: str) -> str:
    """The task to compose an option with: an experiment names its own."""
    text = (CONF / group / f"{stem}.yaml").read_text(encoding="utf-8")
    return next(
        (task for task in TASKS if f"override /task: {task}" in text or (group, stem) == ("task", task)), TASKS[0]
    )


def made_by(node: Any) -> list[DictConfig]:
    """Every part of a configuration that says what it makes."""
    found = []
    if OmegaConf.is_dict(node):
        found += [node] if "_target_" in node else []
        for key in node:
            found += [] if OmegaConf.is_missing(node, key) else made_by(node[key])
    elif OmegaConf.is_list(node):
        for item in node:
            found += made_by(item)
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(CONF)))
def test_a_file_says_first_what_it_is_for(file: Path) -> None:
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("# @package")]
    assert lines[0].startswith("# ")
    assert len(lines[0].split()) > 2


@pytest.mark.parametrize("name", sorted(file.stem for file in CONF.glob("*.yaml")))
def test_every_command_composes(name: str) -> None:
    for task in TASKS if name == "train" else [None]:
        composed(name, *([f"task={task}"] if task else []))


@pytest.mark.parametrize(("group", "stem"), OPTIONS)
def test_every_option_composes_and_names_only_real_arguments(group: str, stem: str) -> None:
    """A misspelt or outdated key would fail in the first step, or be ignored."""
    task = task_of(group, stem)
    config = composed("train", f"task={task}", *([] if group == "task" else [f"{group}={stem}"]))
    for part in made_by(config if group in ("task", "experiment", "sweep") else config[group]):
        target = get_method(part._target_)
        takes = inspect.signature(target).parameters
        named = {str(key) for key in part if not str(key).startswith("_")} - OURS.get(
            part._target_.split(".")[-1], set()
        )
        if not any(each.kind is each.VAR_KEYWORD for each in takes.values()):
            assert named <= takes.keys(), part._target_
        if part._target_.startswith("triptych") and part._target_ != "triptych.attention.Attend":  # also used alone
            # One place for a default: what stands in YAML has none in our own signatures.
            doubled = {name for name in named if takes[name].default is not inspect.Parameter.empty}
            assert not doubled, f"{part._target_} has defaults for {sorted(doubled)}, and {group}={stem} too"
            positional = {name for name in named if takes[name].kind is not inspect.Parameter.KEYWORD_ONLY}
            assert not positional, f"{part._target_}: {sorted(positional)} should be keyword-only"


@pytest.mark.parametrize("mistyped", ["images", "q"])
def test_what_the_image_data_sets_share_is_no_choice_of_its_own(mistyped: str) -> None:
    """The shared file alone names no data: a sentence that lists the choices of ``data=`` must not offer it."""
    with pytest.raises(HydraException) as refused:
        composed("train", "task=vit", f"data={mistyped}")
    answer = messages.sentence(refused.value)
    assert answer is not None
    assert "image_folder" in answer
    assert "base" not in answer


@pytest.mark.parametrize("task", TASKS)
def test_values_have_the_types_that_signatures_declare(task: str) -> None:
    config = composed("train", f"task={task}")
    for part in ("data", "model", "attention", "optimizer", "scheduler"):
        validate.check(config[part], get_method(config[part]._target_), part)


def test_maps_options_are_the_callbacks_arguments() -> None:
    takes = inspect.signature(MapsCallback).parameters.keys() - FILLED_IN
    for stem in ("default", "none"):
        assert composed("train", "task=charlm", f"maps={stem}").maps.keys() == takes


def test_the_comparison_of_configurations_knows_only_keys_that_exist() -> None:
    """A renamed key would silently stop being exempt when a run is resumed."""
    from triptych.runs.resume import AUTO, LENGTH_AND_LOGGING, PATHS

    config = composed("train", "task=charlm")
    for key in (*AUTO, *LENGTH_AND_LOGGING, *PATHS):
        OmegaConf.select(config, key, throw_on_missing=True)
        parent, _, last = key.rpartition(".")
        assert last in (OmegaConf.select(config, parent) if parent else config), key


def test_what_the_environment_gives_has_a_place() -> None:
    homes = {"input": "predict", "run": "evaluate", "data.path": "train", "resume": "train"}
    for key in FROM_ENVIRONMENT.values():
        if key in homes:
            overrides = ["task=charlm"] if homes[key] == "train" else []
            parent, _, last = key.rpartition(".")
            config = composed(homes[key], *overrides)
            assert last in (OmegaConf.select(config, parent) if parent else config)
