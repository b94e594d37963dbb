"""JSON lines: a file of JSON values, one to a line.

A line ends at "\\n" and nowhere else. ``str.splitlines`` also breaks at U+2028, U+0085, form feeds and other
separators, which JSON leaves as they are inside a text.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple


class Contents(NamedTuple):
    """What a file holds. ``damaged`` counts the lines that are no JSON value, such as a last one that was cut short."""

    values: list[Any]
    damaged: int


def dumps(values: Iterable[Any]) -> str:
    """The values as the text of a file; no value spreads over several lines."""
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)


def read(path: Path) -> Contents:
    """The values of a file; empty lines are none. Bytes that are no UTF-8 become U+FFFD. Raises OSError."""
    values: list[Any] = []
    damaged = 0
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            if line.strip():
                try:
                    values.append(json.loads(line))
                except ValueError:
                    damaged += 1
    return Contents(values, damaged)
