"""A run's final metrics as rows of a table: value, what it means, and its interval over seeds where there are some."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.explain.evaluation.intervals import Interval
from triptych.report.whiskers import read_interval

SEEDS_FILE = "seeds.json"
# Folded away: what describes alignments rather than says how good they are, and other ways to count the same.
_DETAILS = {
    "bleu_lowercase",
    "bleu_all_references",
    "alignment_precision",
    "alignment_recall",
    "alignment_entropy",
    "relative_entropy",
    "diagonality",
    "monotonicity",
    "coverage",
}

_MEANINGS = {
    "loss": "cross-entropy in nats, lower is better",
    "bits_per_character": "lower is better",
    "bpc": "bits per character, lower is better",
    "accuracy": "share of right answers, higher is better",
    "top5_accuracy": "share of images whose class is among the five likeliest",
    "calibration_error": "mean gap between confidence and accuracy, lower is better",
    "perplexity": "exponential of the loss, lower is better",
    "bleu": "0 to 100, higher is better",
    "bleu_lowercase": "BLEU of lower-cased words",
    "bleu_all_references": "each distinct source once, against all of its references",
    "chrf": "0 to 100, higher is better",
    "exact_match": "share of translations that are their reference",
    "aer": "alignment error rate, lower is better",
    "alignment_precision": "share of the linked words whose link is possible",
    "alignment_recall": "share of the sure links that were found",
    "alignment_entropy": "of a target word's weights over the source's words, in nats",
    "relative_entropy": "the same as a share of the most there can be",
    "diagonality": "1: target and source words stand at the same relative places",
    "monotonicity": "share of steps to the next target word that do not go back in the source",
    "coverage": "sum of log min(attention a source word got, 1); 0: every word got its share",
}


@dataclass(frozen=True)
class Row:
    """One metric."""

    name: str
    value: str
    meaning: str
    seeds: str  # "5 seeds: 0.912 [0.905, 0.919], SD 0.006"; "" where there is one seed


def rows(metrics: dict[str, Any], seeds: dict[str, str]) -> tuple[list[Row], list[Row]]:
    """(What is shown at once, what is folded): the test split's figures; then details, one class's, and other splits'.

    All are shown where nothing was tested.
    """
    order = {"test": 0, "val": 1, "train": 2}
    found = []
    for name in sorted(metrics, key=lambda name: (order.get(name.split("/")[0], 3), name)):
        value = metrics[name]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        meaning = _MEANINGS.get(name.split("/", 1)[-1], "")
        found.append(Row(name, f"{value:#.4g}" if number else str(value), meaning, seeds.get(name, "")))
    first = [row for row in found if row.name.startswith("test/") and row.name.count("/") == 1]
    first = [row for row in first if row.name.split("/")[1] not in _DETAILS] or found
    return first, [row for row in found if row not in first]


def read_seeds(folder: Path, notes: list[str]) -> dict[str, str]:
    """seeds.json, what runs that differ in nothing but the seed have in common: a text per metric. {} without it."""
    try:
        found = json.loads((folder / SEEDS_FILE).read_text(encoding="utf-8", errors="replace"))["metrics"]
        return {str(name): text for name, row in found.items() if (text := _text(read_interval(row), row))}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        notes.append(f"{SEEDS_FILE} could not be read ({type(error).__name__}).")
        return {}


def _text(interval: Interval | None, row: dict[str, Any]) -> str:
    if interval is None or not interval.known:
        return ""
    sd = row.get("sd")
    half = (interval.high - interval.low) / 2
    decimals = 2 if half <= 0 else min(max(1 - math.floor(math.log10(half)), 0), 8)  # two digits of what seeds change
    mean, low, high = (f"{number:z.{decimals}f}" for number in interval[:3])
    spread = f", SD {sd:.2g}" if isinstance(sd, int | float) else ""
    return f"{interval.n} seeds: {mean} [{low}, {high}]{spread}"
