"""What a run's maps show, tested on validation examples when the run ends."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from triptych.data.batches import Probe
from triptych.explain.explaining import Settings, explain
from triptych.explain.methods.registry import METHODS
from triptych.explain.targets.registry import Question, examples, subjects, target_of, undefined
from triptych.loggers import publish
from triptych.maps.capture import sites
from triptych.maps.labels import shortened
from triptych.pictures.explanations import pictures
from triptych.runs.explanations import write
from triptych.tasks.base import Task

STRETCH = 32  # characters of an example at a run's end


AT_LEISURE = ("smooth_cdam", "integrated_cdam", "signed_attention_gradient")  # not at a run's end


class ExplanationsCallback(pl.Callback):
    """At a run's end: what its maps show of validation examples, tested, as explain.json in the run's ``folder``.

    examples: how many, 0 for none. seconds: begin no more after so long. No test example is looked at.
    """

    def __init__(self, *, folder: Path, examples: int, seconds: float) -> None:
        self.folder, self.examples, self.seconds = folder, examples, seconds

    def measure(self, task: Task, data: Any) -> tuple[dict[str, float], dict[str, str]]:
        """No figures, since these are findings about maps; of a task without explanations, that it has none."""
        return {}, {} if target_of(task) else {"explanations": undefined(task)}

    def conclude(self, task: Task, data: Any, loggers: list[pl.loggers.Logger], step: int) -> None:
        """Explain and judge, and write it down for the report."""
        if self.examples == 0 or not sites(task.model) or target_of(task) is None:
            return
        probes = examples(task, data, "validation", self.examples, max_length=STRETCH)
        names = [each.name for each in METHODS if not each.slow and each.name not in AT_LEISURE]
        first = subjects(task, data, probes[:1], Question(seed=0))[0]
        settings = Settings(
            methods=[each.name for each in METHODS if each.name in names and each.refusal(task.model, first) is None],
            seconds=self.seconds,
            together=4,
        )
        explained = explain(task, data, probes, settings)
        write(self.folder, explained, task=task.name, step=step, checkpoint="best.ckpt", split="validation")
        for example, picture in islice(pictures(explained, probes), 1):
            publish.picture(loggers, "maps/explanations", picture, step, caption=shortened(example))

    def pictures(self, task: Task, probe: Probe, step: int) -> dict[str, Any]:
        """None: what is drawn of an input is its maps; `make explain` draws its explanations."""
        return {}
