"""Whether a ranking (of heads by a statistic, of inputs by a method) repeats on other examples, or in other runs."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from triptych.attention.shapes import Float, Tensor
from triptych.errors import UserError
from triptych.explain.evaluation.intervals import Interval, bootstrap, rank_correlation, t_interval

HEADS_FILE = "heads.json"
PLACE = ("site", "layer", "kind", "head")  # of a row in it; everything else is a statistic


def agreements(scores: Sequence[Sequence[float]]) -> list[float]:
    """For each ranking of the same things, its rank correlation with the mean of all others; NaN where it is constant.

    Each is compared with the others only: in the mean of all it would agree with itself.
    """
    numbers = np.asarray(scores, dtype=np.float64)
    total, count = numbers.sum(0), len(numbers)
    return [rank_correlation(row.tolist(), ((total - row) / (count - 1)).tolist()) for row in numbers]


def over_examples(scores: Float[Tensor, "B K"]) -> Interval:
    """How far B examples rank K things alike: mean of ``agreements``, with its interval over examples (bootstrap).

    1 where all agree, about 0 where a ranking says nothing about another example. NaN for one example, which has
    nothing to agree with; an example that ranks nothing (all equal) is left out of ``n``.
    """
    known = [number for number in agreements(scores.tolist()) if not math.isnan(number)] if len(scores) > 1 else []
    return bootstrap(known) if known else Interval(math.nan, math.nan, math.nan, 0)


def over_runs(runs: Sequence[Path]) -> dict[str, dict[str, Interval]]:
    """How far trained runs agree, for each statistic of their ``heads.json``: mean of ``agreements``, t interval.

    "layers": layers ranked by the mean of their heads. "heads": heads ranked by their place. Heads of a layer are
    interchangeable when a model is made, so another seed may give head 2 what head 0 has here: a low agreement of heads
    beside a high one of layers says that, and no more.

    Raises UserError for fewer than two runs, a run without that file, or runs whose heads are not the same.
    """
    if len(runs) < 2:
        raise UserError("stability over runs compares two runs or more, of the same model and different seeds")
    tables = [_last(run) for run in runs]
    places = [{tuple(row[name] for name in PLACE) for row in table} for table in tables]
    for run, place in zip(runs, places, strict=True):
        if place != places[0]:
            raise UserError(f"{run} has other layers or heads than {runs[0]}: compare runs of one model")
    found: dict[str, dict[str, Interval]] = {}
    for statistic in sorted({name for row in tables[0] for name in row} - set(PLACE)):
        scores = [_by_head(table, statistic) for table in tables]
        found[statistic] = {"layers": _interval([_by_layer(each) for each in scores]), "heads": _interval(scores)}
    return found


def _last(run: Path) -> list[dict[str, Any]]:
    """The rows of a run's last moment."""
    try:
        moments = json.loads((run / HEADS_FILE).read_text(encoding="utf-8"))["moments"]
        return sorted(moments[-1]["rows"], key=lambda row: (row["site"], row["head"]))
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise UserError(
            f"{run} has no head table to read ({HEADS_FILE}): it did not end, or is of an older version"
        ) from error


def _by_head(table: list[dict[str, Any]], statistic: str) -> dict[tuple[str, int], float]:
    return {(row["site"], row["head"]): row[statistic] for row in table if row.get(statistic) is not None}


def _by_layer(scores: Mapping[tuple[str, int], float]) -> dict[str, float]:
    sites: dict[str, list[float]] = {}
    for (site, _), score in scores.items():
        sites.setdefault(site, []).append(score)
    return {site: sum(each) / len(each) for site, each in sites.items()}


def _interval(rankings: Sequence[Mapping[Any, float]]) -> Interval:
    shared = sorted(set.intersection(*(set(each) for each in rankings)))
    known = [number for number in agreements([[each[key] for key in shared] for each in rankings]) if number == number]
    return t_interval(known) if known else Interval(math.nan, math.nan, math.nan, 0)
