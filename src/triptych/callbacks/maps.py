"""When maps are taken: every N updates and at the end, of a fixed probe set, for every dashboard and the report."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from triptych.data.batches import Probe
from triptych.loggers import publish
from triptych.maps import record
from triptych.maps.capture import sites
from triptych.maps.taking import take_maps
from triptych.pictures import images, render
from triptych.pictures.records import overview, sheet
from triptych.report import run_page
from triptych.tasks.base import Task
from triptych.training.checkpoints import require_finite


class MapsCallback(pl.Callback):
    """Captures the probes' attention while a model trains, and writes records and pictures.

    folder: the run's; records and pictures go into its maps/, and its report is written at each moment too.
    every_n_steps: parameter updates between two moments; 0 for the end only.
    probes: how many fixed examples. length: longest probe, in positions. layers, heads: which; None for all.
    scores: keep scores before softmax beside the weights. fingerprint: of the data. resumed_at: a resumed run's
    step; what was kept of later steps is removed, since the run comes there again.

    Between those moments training does not pay for it. ``capture_error`` is the worst difference seen between
    weights times values and the kernel's own context; None before the first capture.
    """

    def __init__(
        self,
        *,
        folder: Path,
        fingerprint: str,
        resumed_at: int | None,
        every_n_steps: int,
        probes: int,
        length: int,
        layers: Sequence[int | str] | None,
        heads: Sequence[int] | None,
        scores: bool,
    ) -> None:
        self.run, self.folder, self.fingerprint = folder, folder / "maps", fingerprint
        self.every_n_steps, self.count, self.length = every_n_steps, probes, length
        self.layers, self.heads, self.scores = layers, heads, scores
        self.resumed_at = resumed_at
        self.capture_error: float | None = None
        self.seconds = 0.0  # spent here, of the run's wall time
        self._taken_at = -1
        self._probes: list[Probe] | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"capture_error": self.capture_error, "seconds": self.seconds, "taken_at": self._taken_at}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.capture_error, self.seconds = state_dict["capture_error"], state_dict["seconds"]
        self._taken_at = state_dict["taken_at"]

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if self.resumed_at is None or stage != "fit" or not trainer.is_global_zero:
            return
        for file in self.folder.glob("step-*"):
            step = file.name[len("step-") :][:8]
            if step.isdigit() and int(step) > self.resumed_at:
                file.unlink()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if self.every_n_steps and step and step % self.every_n_steps == 0 and step != self._taken_at:
            self._take(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.global_step != self._taken_at:
            self._take(trainer, pl_module)

    def _take(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        if not trainer.is_global_zero or self.count == 0 or not sites(task):
            return  # a model may have no attention at all
        require_finite(trainer)
        assert isinstance(task, Task)
        started = time.perf_counter()
        if self._probes is None:
            data = trainer.datamodule  # type: ignore[attr-defined]
            self._probes = task.probes(data, self.count, self.length)
        step = trainer.global_step
        records = [
            found
            for probe in self._probes
            for found in take_maps(
                task,
                probe,
                layers=self.layers,
                heads=self.heads,
                scores=self.scores,
                step=step,
                checkpoint=None,
                fingerprint=self.fingerprint,
            )
        ]
        self._taken_at = step
        self.capture_error = max([self.capture_error or 0.0, *(found.capture_error for found in records)])
        name = f"step-{step:08d}"
        record.save(records, self.folder / f"{name}.safetensors")
        first = [found for found in records if found.example == self._probes[0].example]
        last = first[-1]
        drawn = {
            f"{name}": ("overview", overview(first)),
            f"{name}-layer-{last.layer}": (f"layer {last.layer}", sheet(last)),
        }
        if last.grid is not None:
            drawn[f"{name}-distance"] = ("attention distance", images.distances(records))
        for file, (title, picture) in drawn.items():
            render.write_png(picture, self.folder / f"{file}.png")
            publish.picture(trainer.loggers, f"maps/{title}", picture, step, caption=last.caption())
        for logger in trainer.loggers:
            logger.save()
        run_page.write(self.run)  # the page can be looked at while the model trains
        self.seconds += time.perf_counter() - started
