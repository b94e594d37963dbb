"""Read a run folder as it is: also one that is still running, was interrupted, or lacks a file.

Every reader returns what it could read; what it could not goes into ``notes`` as a sentence for the page.
"""

import csv
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from triptych.runs import jsonlines

_TIME_COLUMNS = ("wall_seconds", "seconds", "wall_time", "elapsed", "time")
_POINTS = 1000  # of one curve; more cannot be seen on a page
_SAMPLES = 12
_LONGEST = 4000  # characters of one sample, and of the config in thousands of lines


@dataclass(frozen=True)
class Curve:
    """One logged metric over training."""

    name: str  # as logged, "val/loss"
    steps: list[int]
    seconds: list[float] | None  # since the run started; None where no time was logged
    values: list[float | None]  # None: not a finite number


@dataclass(frozen=True)
class Sample:
    """What the model wrote at one moment."""

    step: int
    prompt: str
    text: str  # without the prompt


@dataclass(frozen=True)
class Counts:
    """A table of counts over one split, such as a confusion matrix: the same names in rows and columns."""

    name: str
    split: str  # "val" or "test"
    step: int
    rows: str  # what they are: "true"
    columns: str
    names: list[str]
    counts: list[list[int]]


def read_summary(folder: Path, notes: list[str]) -> dict[str, Any]:
    """summary.json, or {} where there is none."""
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        notes.append("This run has no summary.json yet.")
        return {}
    except (OSError, ValueError) as error:
        notes.append(f"summary.json could not be read ({type(error).__name__}).")
        return {}
    if not isinstance(summary, dict):
        notes.append("summary.json does not hold an object.")
        return {}
    return summary


def read_config(folder: Path) -> str:
    """config.yaml as text, or ""."""
    try:
        return (folder / "config.yaml").read_text(encoding="utf-8", errors="replace")[: 25 * _LONGEST]
    except OSError:
        return ""


def read_curves(folder: Path, notes: list[str], most: int = _POINTS) -> list[Curve]:
    """The columns of metrics.csv, each as at most ``most`` points; its rows are sparse: what was logged together."""
    rows: list[dict[str, float]] = []
    dropped = 0
    try:
        with (folder / "metrics.csv").open(encoding="utf-8", errors="replace", newline="") as file:
            for row in csv.DictReader(file):
                numbers = {name: number for name, cell in row.items() if name and (number := _number(cell)) is not None}
                step = numbers.get("step")
                if step is None or not math.isfinite(step):
                    dropped += 1
                else:
                    rows.append(numbers)
    except FileNotFoundError:
        notes.append("This run has no metrics.csv yet.")
    except (OSError, csv.Error) as error:
        notes.append(f"metrics.csv could not be read to its end ({type(error).__name__}).")
    if dropped:
        notes.append(f"metrics.csv: {dropped} rows without a step were left out.")
    rows.sort(key=lambda row: row["step"])
    names = sorted({name for row in rows for name in row})
    clock = next((name for last in _TIME_COLUMNS for name in names if name.split("/")[-1] == last), None)
    times = [(row["step"], row[clock]) for row in rows if clock in row and math.isfinite(row[clock])] if clock else []
    curves = []
    for name in names:
        if name in ("step", "epoch", clock) or name.startswith("test/"):  # tested once: no curve
            continue
        points = [(row["step"], row[name]) for row in rows if name in row]
        kept = _spread(len(points), most)
        steps = [points[i][0] for i in kept]
        values = [float(f"{points[i][1]:.6g}") if math.isfinite(points[i][1]) else None for i in kept]
        # validation rows carry no time of their own: read it off the training rows around them
        seconds = np.interp(steps, *np.array(times).T).round(2).tolist() if times else None
        curves.append(Curve(name, [int(step) for step in steps], seconds, values))
    return curves


def read_samples(folder: Path, notes: list[str]) -> list[Sample]:
    """samples.jsonl, latest first; of many, the first, the last and some between."""
    samples: list[Sample] = []
    try:
        rows, dropped = jsonlines.read(folder / "samples.jsonl")
    except FileNotFoundError:
        return []
    except OSError as error:
        notes.append(f"samples.jsonl could not be read ({type(error).__name__}).")
        return []
    for row in rows:
        try:
            written, prompt = str(row["text"]), str(row.get("prompt") or "")
            samples.append(Sample(int(row["step"]), prompt, written.removeprefix(prompt)[:_LONGEST]))
        except (ValueError, KeyError, TypeError, AttributeError):
            dropped += 1
    if dropped:
        notes.append(f"samples.jsonl: {dropped} lines could not be read.")
    samples.sort(key=lambda sample: sample.step)  # stable: several prompts keep their order
    kept = _spread(len(samples), _SAMPLES)
    if len(kept) < len(samples):
        notes.append(f"{len(kept)} of {len(samples)} text samples are shown; all are in samples.jsonl.")
    return [samples[i] for i in reversed(kept)]


def read_tables(folder: Path, notes: list[str]) -> list[Counts]:
    """The tables of counts, ``SPLIT-NAME.json``, the test split's first."""
    found = []
    for path in [*sorted(folder.glob("test-*.json")), *sorted(folder.glob("val-*.json"))]:
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            names = [str(name) for name in stored["names"]]
            counts = [[int(count) for count in row] for row in stored["counts"]]
            if not names or [len(row) for row in counts] != [len(names)] * len(names) or min(map(min, counts)) < 0:
                raise ValueError("not as many rows and columns as names, or a count below 0")
            name, split, rows, columns = (str(stored[field]) for field in ("name", "split", "rows", "columns"))
            found.append(Counts(name, split, int(stored["step"]), rows, columns, names, counts))
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            notes.append(f"{path.name} could not be read ({type(error).__name__}).")
    return found


def read_alignments(folder: Path, notes: list[str]) -> tuple[list[str], list[list[str]]] | None:
    """alignment.csv, a translator's figures by layer, row and heads: what columns hold, and rows; None without it."""
    try:
        with (folder / "alignment.csv").open(encoding="utf-8", newline="") as file:
            lines = list(csv.reader(file))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, csv.Error) as error:
        notes.append(f"alignment.csv could not be read ({type(error).__name__}).")
        return None
    header, rows = (lines[0], lines[1:]) if lines else ([], [])
    said = [at for at, name in enumerate(header) if any(row[at : at + 1] not in ([], [""]) for row in rows)]
    return [header[at] for at in said], [[row[at] for at in said if at < len(row)] for row in rows]


def _number(cell: Any) -> float | None:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return None


def _spread(count: int, most: int) -> list[int]:
    """At most ``most`` of ``count`` places: the first, the last, evenly spaced between."""
    return np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist() if count else []
