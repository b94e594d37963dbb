"""When maps are taken: every N updates and at the end, of a fixed probe set, for every dashboard and the report."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from torch import nn

from triptych.data.batches import Probe
from triptych.errors import UserError
from triptych.loggers import publish
from triptych.maps import record
from triptych.maps.capture import capture, choose_heads, choose_sites, probing, sites
from triptych.maps.record import MapRecord
from triptych.pictures import images, render
from triptych.report import run_page
from triptych.tasks.base import Task
from triptych.training.checkpoints import require_finite


class MapsCallback(pl.Callback):
    """Captures the probes' attention while a model trains, and writes records and pictures.

    folder: where records and pictures go, inside the run's folder, whose report is written at each moment too.
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
        self.folder, self.fingerprint = folder, fingerprint
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
        run_page.write(self.folder.parent)  # the page can be looked at while the model trains
        self.seconds += time.perf_counter() - started


def overview(records: list[MapRecord]) -> render.Picture:
    """All layers and heads of one moment: over the picture where positions are patches of one, else as matrices."""
    return (render if records[0].grid is None else images).overview(records)


def sheet(record: MapRecord) -> render.Picture:
    """All heads of one layer: over the picture where positions are patches of one, else as matrices."""
    return (render if record.grid is None else images).sheet(record)


def check_choice(model: nn.Module, maps: Mapping[str, Any]) -> None:
    """Raise UserError for numbers of ``conf/maps`` out of range, and for layers or heads that ``model`` lacks."""
    for name, least in (("every_n_steps", 0), ("probes", 0), ("length", 1)):
        if maps[name] < least:
            raise UserError(f"maps.{name}={maps[name]}; it must be at least {least}")
    for name in ("layers", "heads"):
        if maps[name] is not None and not len(maps[name]):
            raise UserError(f"maps.{name}=[] chooses none; use null for all, or maps=none for no maps")
    for site in choose_sites(model, maps["layers"]):
        heads = getattr(model.get_submodule(site.name.rpartition(".")[0]), "heads", None)
        if heads is not None:
            choose_heads(heads, maps["heads"])


def take_maps(
    task: Task,
    probe: Probe,
    *,
    layers: Sequence[int | str] | None,
    heads: Sequence[int] | None,
    scores: bool,
    step: int,
    checkpoint: str | None,
    fingerprint: str,
) -> list[MapRecord]:
    """Records of one probe: one per attention site, all chosen heads, in float32 and eval mode."""
    batch = task.transfer_batch_to_device(probe.batch, task.device, 0)
    with probing(task.model) as model, capture(model, layers, heads, scores=scores) as maps:
        outcome = task.outcome(task.answer(model, batch), probe)
    records = []
    for site, captured in maps.items():
        weights, score, visible = captured.example(0)
        query, key = (tuple(probe.labels[stream]) for stream in task.streams(site, captured.kind))  # type: ignore[arg-type]
        records.append(
            MapRecord(
                weights=weights,
                scores=score,
                visible=visible,
                task=task.name,
                site=site,
                layer=captured.layer,
                heads=captured.heads,
                kind=captured.kind,  # type: ignore[arg-type]
                causal=captured.mask.causal,
                mask=captured.mask.describe(),
                score=captured.score,
                query_labels=query,
                key_labels=key,
                example=probe.example,
                step=step,
                checkpoint=checkpoint,
                data=fingerprint,
                backend=captured.backend,
                kernel=captured.kernel,
                dtype=str(weights.dtype).removeprefix("torch."),
                capture_error=captured.error,
                picture=probe.picture,
                grid=probe.grid,
                outcome=outcome,
            )
        )
    return records
