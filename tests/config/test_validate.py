"""A configured value of another type than its argument is refused in one sentence, and nothing that fits is."""

import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from triptych.config import validate
from triptych.errors import UserError


@dataclass
class _Shape:
    size: int


class _Speaks(Protocol):
    def speak(self) -> str: ...


def target(
    whole: int = 0,
    number: float = 0.0,
    flag: bool = False,
    text: str = "",
    rank: int | None = None,
    mode: Literal["min", "max"] | None = None,
    size: Sequence[int] | None = None,
    layers: Sequence[int | str] = (),
    splits: Mapping[str, str | float] | None = None,
    deep: Mapping[str, Mapping[str, int]] | None = None,
    space: dict[str, Any] | None = None,
    layer: nn.Module | None = None,
    weights: torch.Tensor | None = None,
    make: Callable[..., nn.Module] | None = None,
    shape: _Shape | None = None,
    speaker: "_Speaks | int | None" = None,
    folder: Path | None = None,
    anything: Any = None,
) -> None:
    """What the configuration is checked against."""


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"whole": "abc"}, "part.whole=abc; it must be a whole number"),
        ({"whole": 2.0}, "part.whole=2.0; it must be a whole number"),
        ({"whole": True}, "part.whole=True; it must be a whole number"),
        ({"whole": None}, "part.whole=None; it must be a whole number"),
        ({"number": True}, "part.number=True; it must be a number"),
        ({"number": "1e-3x"}, "part.number=1e-3x; it must be a number"),
        ({"flag": 1}, "part.flag=1; it must be true or false"),
        ({"flag": "true"}, "part.flag=true; it must be true or false"),
        ({"text": 7}, "part.text=7; it must be text"),
        ({"rank": "x"}, "part.rank=x; it must be a whole number or null"),
        ({"mode": "best"}, "part.mode=best; it must be min or max or null"),
        ({"size": 3}, "part.size=3; it must be a list of whole numbers or null"),
        ({"size": "33"}, "part.size=33; it must be a list of whole numbers or null"),
        ({"size": [3, "x"]}, "part.size=[3, 'x']; it must be a list of whole numbers or null"),
        ({"layers": [1.5]}, "part.layers=[1.5]; it must be a list of whole numbers or texts"),
        ({"splits": "train"}, "part.splits=train; it must be a mapping or null"),
        ({"splits": {"train": "train", "test": None}}, "part.splits.test=None; it must be text or a number"),
        ({"deep": {"a": {"b": 1, "c": "x"}}}, "part.deep.a.c=x; it must be a whole number"),
        ({"space": [1]}, "part.space=[1]; it must be a mapping or null"),
        ({"wohle": 1, "whole": 1}, "part.wohle is not an option; there are: whole"),
    ],
)
def test_another_type_is_refused_in_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        validate.check(OmegaConf.create(values), target, "part")
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    "values",
    [
        {"whole": 2, "number": 2, "flag": True, "text": "7", "rank": None, "mode": "max"},
        {"whole": 10**30, "number": math.nan, "text": "\udcff.txt"},  # a path may hold bytes that are no character
        {"size": [], "layers": [1, "last"]},
        {"splits": {"train": "train", "test": 0.1, 3: 1}, "space": {"lr": [1, "x"]}},
        {"anything": [1, None]},
    ],
)
def test_what_fits_passes(values: dict[str, Any]) -> None:
    validate.check(OmegaConf.create(values), target, "part")


@pytest.mark.parametrize("name", ["layer", "weights", "make", "shape", "speaker", "folder"])
@pytest.mark.parametrize("value", [{"_target_": "torch.nn.Identity"}, "x", 0.5, [1]])
def test_types_that_no_yaml_value_has_are_not_looked_at(name: str, value: Any) -> None:
    """What Hydra makes an object of is a mapping here; whoever gets the object judges it."""
    validate.check(OmegaConf.create({name: value}), target, "part")


def test_the_name_of_a_value_without_a_part_is_its_own() -> None:
    with pytest.raises(UserError, match=r"^whole=x; it must be a whole number$"):
        validate.check(OmegaConf.create({"whole": "x", "more": 1}), target, "")


def test_help_and_import_do_not_wait_for_the_checks() -> None:
    """Pydantic is loaded when the first value is checked, not with the module."""
    code = "import sys, triptych.config.validate; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
