"""Heads of a run: their statistics while the model trains, and what leaving the most telling ones out does to it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from triptych.explain.evaluation.stability import HEADS_FILE
from triptych.explain.heads.importance import ablations
from triptych.explain.heads.table import STATISTICS, as_json_number, table_of, telling, together
from triptych.explain.targets.registry import HeadExamples, probes_as_batches, target_of
from triptych.files import write_text
from triptych.maps.capture import signed, sites
from triptych.tasks.base import Task

LOOKED_AT = 32  # validation examples that statistics are taken of
LEFT_OUT_ON = 64  # other ones, on which heads are left out
LENGTH = 128  # positions of each, at most


class HeadTablesCallback(pl.Callback):
    """Takes the head table when training starts, in its middle, and of the trained model; keeps ``heads.json``.

    folder: the run's. ``ablations`` and ``stability`` are there once the model is trained.
    """

    def __init__(self, *, folder: Path) -> None:
        self.folder = folder
        self._moments: list[dict[str, Any]] = []
        self._measured: dict[str, Any] | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # A resumed run goes on with the moments that it had, up to where it goes on.
        self._moments = [each for each in self._earlier() if each["step"] <= trainer.global_step]
        if trainer.global_step == 0:
            self._moments = []
            self._take(trainer, pl_module, "start")

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if step and step == trainer.max_steps // 2 and all(each["step"] != step for each in self._moments):
            self._take(trainer, pl_module, "middle")

    def measure(self, task: Task, data: Any) -> tuple[dict[str, float], dict[str, str]]:
        """No figures; in words, what leaving out the strongest heads does."""
        if not sites(task.model):
            return {}, {}  # a model may have no attention at all
        if signed(task.model):
            return {}, {
                "heads": "no table: weights of this attention may be negative, and statistics of heads need shares"
            }
        examples = _examples(task, data)
        every = examples.batches
        seen, unseen = every[::3], [each for index, each in enumerate(every) if index % 3] or every
        table = table_of(task, data, together(seen), examples.grid)
        left_out = ablations(task, together(unseen), telling(table), table.every(), table.means)
        self._measured = {
            "trained": table.rows(),
            "examples": len(seen),
            "chance": _as_json(table.chance),
            "stability": {name: each.to_json() for name, each in table.stability().items()},
            "ablations": [each.to_json() for each in left_out],
        }
        said = "; ".join(each.sentence for each in left_out if each.how == "zero")
        return {}, {"heads": said} if said else {}

    def conclude(self, task: Task, data: Any, loggers: list[pl.loggers.Logger], step: int) -> None:
        """Keep what ``measure`` made of the trained weights, which are those of ``step``."""
        if self._measured is None:
            return
        rows = self._measured["trained"]
        self._moments = [*self._earlier(), {"step": step, "name": "trained", "rows": rows}]
        self._write({name: value for name, value in self._measured.items() if name != "trained"})

    def pictures(self, task: Task, probe: Any, step: int) -> dict[str, Any]:
        """None: the table is of many examples, not of one."""
        return {}

    def _take(self, trainer: pl.Trainer, task: pl.LightningModule, name: str) -> None:
        if not trainer.is_global_zero or not sites(task) or signed(task):
            return
        assert isinstance(task, Task)
        data = trainer.datamodule  # type: ignore[attr-defined]
        examples = _examples(task, data)
        seen = examples.batches[::3]
        table = table_of(task, data, together(seen), examples.grid)
        self._moments.append({"step": trainer.global_step, "name": name, "rows": table.rows()})
        self._write({"examples": len(seen), "chance": _as_json(table.chance), "stability": {}, "ablations": []})

    def _write(self, more: Mapping[str, Any]) -> None:
        contents = {"statistics": STATISTICS, "moments": self._moments, **more}
        write_text(self.folder / HEADS_FILE, json.dumps(contents, allow_nan=False) + "\n")

    def _earlier(self) -> list[dict[str, Any]]:
        """The moments of training that the run has kept."""
        try:
            kept = json.loads((self.folder / HEADS_FILE).read_text(encoding="utf-8"))["moments"]
        except FileNotFoundError:  # a new run, or one of a version that kept none
            return []
        return [each for each in kept if each["name"] != "trained"]


def _examples(task: Task, data: Any) -> HeadExamples:
    """As the task's explanation target chooses them; the task's own probes where it has no target."""
    target = target_of(task)
    choose = probes_as_batches if target is None else target.head_examples
    return choose(task, data, LOOKED_AT + LEFT_OUT_ON, LENGTH)


def _as_json(chance: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float | None]]:
    return {
        site: {name: as_json_number(number) for name, number in statistics.items()}
        for site, statistics in chance.items()
    }
