"""What is measured and drawn beside a task's own metrics, by the task's name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triptych.explain.analysis import Analysis, AnalysisGroup


def beside(task: str, folder: Path, explain: Mapping[str, Any] | None = None) -> AnalysisGroup:
    """What is measured beside the metrics of ``task``, for the run in ``folder``.

    explain: ``examples`` and ``seconds`` of `explaining.ExplanationsCallback`; None where no run is ending.
    """
    from triptych.callbacks.head_tables import (
        HeadTablesCallback,
    )  # imported here: a run needs them, its configuration does not

    found: list[Analysis] = [HeadTablesCallback(folder=folder)]
    if task == "translation":
        from triptych.callbacks.aligning import AlignmentCallback

        found.insert(0, AlignmentCallback(folder=folder))
    if explain is not None:
        from triptych.callbacks.verdicts import ExplanationsCallback

        found.append(ExplanationsCallback(folder=folder, **explain))
    return AnalysisGroup(*found)
