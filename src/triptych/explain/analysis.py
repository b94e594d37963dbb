"""What is measured beside a task's own metrics: the contract, and several as one."""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import pytorch_lightning as pl


@runtime_checkable
class Analysis(Protocol):
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


class AnalysisGroup:
    """Some of them as one, in their order: what each measures, concludes and draws."""

    def __init__(self, *each: Analysis) -> None:
        self.each = each

    def __iter__(self) -> Iterator[Analysis]:
        """The callbacks themselves, for a trainer."""
        return iter(self.each)

    def measure(self, task: Any, data: Any) -> tuple[dict[str, float], dict[str, str]]:
        """All figures, and all that is to be said."""
        figures: dict[str, float] = {}
        notes: dict[str, str] = {}
        for one in self.each:
            found, said = one.measure(task, data)
            figures |= found
            notes |= said
        return figures, notes

    def conclude(self, task: Any, data: Any, loggers: list[pl.loggers.Logger], step: int) -> None:
        """Let each conclude, after all have measured."""
        for one in self.each:
            one.conclude(task, data, loggers, step)

    def pictures(self, task: Any, probe: Any, step: int) -> dict[str, Any]:
        """All pictures, by name."""
        return {name: picture for one in self.each for name, picture in one.pictures(task, probe, step).items()}
