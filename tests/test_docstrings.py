"""The examples in docstrings: each says what the code really answers."""

import doctest
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
MODULES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(SOURCE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", MODULES)
def test_every_example_answers_what_it_shows(module: str) -> None:
    """A module whose examples are not all run fails too: a wrapper can hide a docstring from doctest."""
    imported = importlib.import_module(module)
    written = Path(str(imported.__file__)).read_text(encoding="utf-8").count(">>> ")
    outcome = doctest.testmod(imported)
    assert outcome.failed == 0
    assert outcome.attempted == written
