"""Intervals on the page: read from a file, and drawn as a whisker on the scale that the rows of a table share."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from triptych.explain.evaluation.intervals import Interval


@dataclass(frozen=True)
class Shown:
    """An interval in numbers, and its places on a scale as percentages from the left."""

    text: str  # "0.25 [0.04, 0.46]"
    known: bool  # whether there is an interval, or a mean only
    n: int
    mean: str
    low: str
    width: str
    zero: str


def read_interval(found: Any) -> Interval | None:
    """{"mean", "low", "high", "n"} as an interval; null ends are none. None where there is no mean."""
    if not isinstance(found, dict):
        return None
    mean, low, high = (_number(found.get(name)) for name in ("mean", "low", "high"))
    if math.isnan(mean):
        return None
    if math.isnan(low) or math.isnan(high):
        low = high = math.nan
    n = found.get("n")
    return Interval(mean, low, high, n if isinstance(n, int) and n > 0 else 1)


def on_one_scale(intervals: Sequence[Interval | None]) -> list[Shown | None]:
    """The rows of a column: one scale for all, which holds 0."""
    ends = [0.0]
    for each in intervals:
        ends += [] if each is None else [each.mean] if not each.known else [each.low, each.mean, each.high]
    start, stop = min(ends), max(ends)
    room = 0.04 * (stop - start) or 1.0
    start, stop = start - room, stop + room

    def place(value: float) -> float:
        return 100 * (value - start) / (stop - start)

    shown: list[Shown | None] = []
    for each in intervals:
        if each is None:
            shown.append(None)
            continue
        low, high = (each.low, each.high) if each.known else (each.mean, each.mean)
        places = (place(each.mean), place(low), place(high) - place(low), place(0.0))
        mean_at, low_at, width, zero = (f"{number:.2f}%" for number in places)
        shown.append(Shown(each.amount, each.known, each.n, mean_at, low_at, width, zero))
    return shown


def _number(found: Any) -> float:
    good = isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found)
    return float(found) if good else math.nan


def sentence(found: Any) -> str:
    """A clause as the page writes it: with a capital and a full stop; "" where there is none."""
    text = str(found or "").strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".") if text else ""
