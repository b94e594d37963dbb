"""Configured values against the signatures they go to: a word where a number belongs is refused before any work."""

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf

from triptych.errors import UserError
from triptych.runs.stored import RENAMED

WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "null",
    list: "a list",
    dict: "a mapping",
}


def check(configured: DictConfig, target: Callable[..., Any], where: str) -> None:
    """Raise UserError for a value under ``where`` that ``target`` has no argument for, or one of another type.

    Without ``where``, ``configured`` may hold more than that. Arguments without a plain type (a tensor, a function)
    are not looked at.
    """
    try:
        hints = get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except (NameError, TypeError):  # a library's annotation that exists only for its type checker
        return
    plain = OmegaConf.to_container(configured, resolve=True)
    assert isinstance(plain, dict)
    takes = inspect.signature(target).parameters
    open_ended = not where or any(each.kind is each.VAR_KEYWORD for each in takes.values())
    for name, value in ((str(key), value) for key, value in plain.items()):
        if not open_ended and name not in takes and not name.startswith("_"):
            if (old := f"{where}.{name}") in RENAMED:
                raise UserError(f"{old} is now called {RENAMED[old]}: write that instead")
            known = ", ".join(str(other) for other in plain if other in takes)
            raise UserError(f"{where}.{name} is not an option; there are: {known}")
        if name in hints and not fits(value, hints[name]):
            key = f"{where}.{name}" if where else name
            raise UserError(f"{key}={value}; it must be {in_words(hints[name])}")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value read from YAML may go where ``hint`` stands. True for types that no YAML value has."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, choice) for choice in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if hint is None or hint is type(None):
        return value is None
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (str, bool):
        return isinstance(value, hint)
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return isinstance(value, dict)
    if inspect.isclass(origin) and issubclass(origin, Sequence):
        items = get_args(hint)[:1]
        return isinstance(value, list) and all(fits(item, items[0]) for item in value if items)
    return True


def in_words(hint: Any) -> str:
    """A type as a person says it: "a whole number or null"."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(in_words(choice) for choice in get_args(hint)))
    if origin is Literal:
        return " or ".join(str(choice) for choice in get_args(hint))
    if inspect.isclass(origin):
        return WORDS[dict if issubclass(origin, Mapping) else list]
    return WORDS.get(hint, getattr(hint, "__name__", str(hint)))
