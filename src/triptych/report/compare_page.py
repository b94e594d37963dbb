"""compare.html: several runs on one page that opens offline: table, learning curves, and their maps side by side."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from triptych.report import map_data
from triptych.report.compare_table import ABSENT, COSTS, Row, Runs, number, spread, written
from triptych.report.page import LIMIT, island, render
from triptych.runs.readers import read_curves

SCRIPTS = ("page.js", "patches.js", "compare.js")  # in this order, after plotly.js
STYLES = ("report.css", "compare.css")
POINTS = 20_000  # of one metric's curves, all runs together

_HEADS = {"fit_seconds": "fit, s", "seen_per_second": "seen/s"}


def build(
    runs: Runs,
    into: Path,
    *,
    title: str,
    importance: Mapping[str, float] | None,
    best: str | None,
    failed: Sequence[Mapping[str, Any]],
) -> bytes:
    """The page as bytes, at most ``LIMIT`` of them where maps are what makes it large. ``into``: where it will lie."""
    notes = [f"{row.name}: {note}" for row in runs.rows for note in row.notes]
    labels = _labels(runs)
    points = max(60, min(1000, POINTS // max(1, len(runs.rows))))
    curves = [
        {
            "name": label,
            "group": group,
            "curves": [vars(curve) for curve in read_curves(row.run.path, [], points)],
        }
        for row, group, label in zip(runs.rows, runs.groups, labels, strict=True)
    ]
    columns = _columns(runs)
    content = {
        "title": title,
        "task": next((row.task for row in runs.rows if row.task), "no run"),
        "metric": runs.metric,
        "better": "lower is better" if runs.mode == "min" else "higher is better",
        "best": best,
        "columns": columns,
        "rows": [
            {
                "name": row.name,
                "href": _link(row, into),
                "status": row.status,
                "label": label,
                "cells": [_cell(kind, key, row) for kind, key, _ in columns],
            }
            for row, label in zip(runs.rows, labels, strict=True)
        ],
        "seed_heads": [*(runs.short[key] for key in runs.keys), "seeds", *runs.metrics],
        "seeds": [
            [
                *(written(group.values.get(key, ABSENT)) for key in runs.keys),
                ", ".join(map(str, group.seeds)),
                *(spread(group, name) for name in runs.metrics),
            ]
            for group in runs.seeds
        ],
        "importance": _importance(importance or {}),
        "failed": [
            (f"trial {trial['number']}", " ".join(trial.get("overrides", ())), trial.get("why") or trial.get("status"))
            for trial in failed
        ],
        "curves": island({"metric": runs.metric, "best": _place(runs), "runs": curves}),
        "notes": notes,
    }
    without = render("compare.html.j2", {**content, "maps": None}, scripts=SCRIPTS, styles=STYLES)
    maps = map_data.pack_runs([row.run.path / "maps" for row in runs.rows], LIMIT - len(without) - 2000, notes)
    return render("compare.html.j2", {**content, "maps": maps and island(maps)}, scripts=SCRIPTS, styles=STYLES)


def _columns(runs: Runs) -> list[tuple[str, str, str]]:
    """(kind, key, head) of every column behind the run's name."""
    statuses = {row.status for row in runs.rows} != {"finished"}
    seeds = len({row.seed for row in runs.rows}) > 1
    return [
        *([("status", "status", "status")] if statuses else []),
        *([("seed", "seed", "seed")] if seeds else []),
        *(("option", key, runs.short[key]) for key in runs.keys),
        *(("result", name, _HEADS.get(name, name)) for name in (*runs.metrics, *COSTS)),
    ]


def _cell(kind: str, key: str, row: Row) -> dict[str, Any]:
    """What a cell shows, and the value that it is sorted by: a number, a text, or nothing."""
    if kind == "result":
        value: Any = row.results.get(key)
        return {"text": number(key, value), "by": _sortable(value), "number": True}
    value = {"status": row.status, "seed": row.seed}.get(key) if kind != "option" else row.options.get(key, ABSENT)
    return {
        "text": written(value, ABSENT if kind == "seed" else "null"),
        "by": _sortable(value),
        "number": isinstance(value, int | float),
    }


def _sortable(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    return "" if value is None or value == ABSENT else str(value)


def _labels(runs: Runs) -> list[str]:
    """What sets each run apart, no two alike."""
    labels = [runs.label(row) for row in runs.rows]
    return [
        label if labels.count(label) == 1 else f"{label} ({row.name[-6:]})"
        for label, row in zip(labels, runs.rows, strict=True)
    ]


def _place(runs: Runs) -> int | None:
    return next((place for place, row in enumerate(runs.rows) if row is runs.best), None)


def _link(row: Row, into: Path) -> str | None:
    """From the page to the run's own report; relative, so both can be moved together."""
    report = row.run.path / "report.html"
    if not report.is_file():
        return None
    return quote(os.path.relpath(report.resolve(), into.resolve()).replace(os.sep, "/"))


def _importance(importance: Mapping[str, float]) -> list[tuple[str, str, str]]:
    """(name, share in words, width in percent), largest first."""
    ordered = sorted(importance.items(), key=lambda item: -item[1])
    return [(str(name), f"{share:.0%}", f"{100 * min(max(share, 0.0), 1.0):.1f}") for name, share in ordered]
