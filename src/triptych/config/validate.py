"""Configured values against the signatures they go to: a word where a number belongs is refused before any work."""

import collections.abc
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf

from triptych.errors import UserError
from triptych.runs.stored import RENAMED

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "null",
    list: "a list",
    dict: "a mapping",
}
PLURALS = {int: "whole numbers", float: "numbers", bool: "truth values", str: "texts"}
OBJECTS = {"is_instance_of", "is_subclass_of", "callable_type", "dataclass_exact_type"}
"""Errors of pydantic that ask for an object of Python, which no YAML value is."""


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
        if name in hints and (wrong := mismatch(value, hints[name])):
            key = ".".join(filter(None, (where, name, *wrong.keys)))
            raise UserError(f"{key}={wrong.value}; it must be {in_words(wrong.hint)}")


class Mismatch(NamedTuple):
    """A value of another type than ``hint``; ``keys`` lead to it where it lies inside a mapping."""

    keys: tuple[str, ...]
    value: Any
    hint: Any


def mismatch(value: Any, hint: Any) -> Mismatch | None:
    """Where a value read from YAML is of another type than ``hint``; None where it may go there.

    Strict: true is no number and 2.0 no whole one, but 2 is a number. None also for a type that no YAML value has.
    """
    from pydantic import ValidationError

    adapter = _adapter(hint)
    if adapter is None:
        return None
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        details = [detail for detail in details if detail["loc"][-1:] != ("[key]",)]  # names: whoever reads them judges
        if details and not any(_asks_for_an_object(detail) for detail in details):
            return _innermost(value, hint, [str(key) for key in details[0]["loc"]])
    return None


@cache
def _adapter(hint: Any) -> "TypeAdapter[Any] | None":
    """Pydantic's check for a type; None for a type that it has no check for."""
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter
    from pydantic_core import SchemaError

    try:
        return TypeAdapter(hint, config=ConfigDict(strict=True, arbitrary_types_allowed=True))
    except (PydanticUserError, SchemaError):
        return None


def _asks_for_an_object(detail: "ErrorDetails") -> bool:
    """Whether the error is that a value is no object of Python. A list is none of Sequence, which YAML has."""
    return detail["type"] in OBJECTS and not hasattr(collections.abc, detail.get("ctx", {}).get("class", ""))


def _innermost(value: Any, hint: Any, keys: Sequence[str]) -> Mismatch:
    """The mismatch in the mapping that ``keys`` lead into; lists are told as a whole."""
    mappings = [choice for choice in (hint, *get_args(hint)) if _is(choice, Mapping)]
    if keys and isinstance(value, dict) and keys[0] in value and mappings:
        inner = _innermost(value[keys[0]], get_args(mappings[0])[1], keys[1:])
        return inner._replace(keys=(keys[0], *inner.keys))
    return Mismatch((), value, hint)


def in_words(hint: Any) -> str:
    """A type as a person says it: "a whole number or null"."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(in_words(choice) for choice in get_args(hint)))
    if origin is Literal:
        return " or ".join(str(choice) for choice in get_args(hint))
    if _is(hint, Mapping):
        return WORDS[dict]
    if _is(hint, Sequence):
        items = get_args(get_args(hint)[0]) or get_args(hint)
        known = [PLURALS[item] for item in items if item in PLURALS]
        return f"{WORDS[list]} of {' or '.join(known)}" if len(known) == len(items) else WORDS[list]
    return WORDS.get(hint, getattr(hint, "__name__", str(hint)))


def _is(hint: Any, kind: type) -> bool:
    """Whether a type with arguments, such as ``Sequence[int]``, is of a kind of container."""
    origin = get_origin(hint)
    return inspect.isclass(origin) and issubclass(origin, kind)
