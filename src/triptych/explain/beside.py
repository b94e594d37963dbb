"""What is measured and drawn beside a task's own metrics, by the task's name."""

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pytorch_lightning as pl


@runtime_checkable
class Beside(Protocol):
    """A callback that measures while a model trains, and again when it is trained."""

    def measure(self, task: Any, data: Any) -> tuple[dict[str, float], dict[str, str]]:
        """Figures of the trained model, and what to say about them."""
        ...

    def conclude(self, task: Any, data: Any, loggers: list[pl.loggers.Logger], step: int) -> None:
        """Keep and draw what the whole run shows, after ``measure``."""
        ...

    def pictures(self, task: Any, probe: Any, step: int) -> dict[str, Any]:
        """By name, what to draw of a person's input beside its maps."""
        ...


def beside(task: str, folder: Path) -> Beside | None:
    """What is measured beside the metrics of ``task``, for the run in ``folder``; None where nothing is."""
    if task == "translation":  # imported here: other tasks do without what it needs
        from triptych.explain.aligning import Aligning

        return Aligning(folder=folder)
    return None
