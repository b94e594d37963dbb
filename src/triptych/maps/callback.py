"""When maps are taken: every N updates and at the end, of a fixed probe set, for every dashboard and the report."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from triptych.dashboards import publish
from triptych.data.batches import Probe
from triptych.maps import record, render
from triptych.maps.capture import capture, choose_heads, choose_sites, probing
from triptych.maps.record import MapRecord
from triptych.tasks.base import Task


class MapsCallback(pl.Callback):
    """Captures the probes' attention while a model trains, and writes records and pictures.

    folder: where records and pictures go. every_n_steps: parameter updates between two moments; 0 for the end only.
    probes: how many fixed examples. length: longest probe, in positions. layers, heads: which; None for all.
    scores: keep scores before softmax beside the weights. fingerprint: of the data.

    Between those moments training does not pay for it. ``capture_error`` is the worst difference seen between
    weights times values and the kernel's own context.
    """

    def __init__(
        self,
        *,
        folder: Path,
        fingerprint: str,
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
        self.capture_error = 0.0
        self.seconds = 0.0  # spent here, of the run's wall time
        self._taken_at = -1
        self._probes: list[Probe] | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"capture_error": self.capture_error, "seconds": self.seconds, "taken_at": self._taken_at}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.capture_error, self.seconds = state_dict["capture_error"], state_dict["seconds"]
        self._taken_at = state_dict["taken_at"]

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        # A layer or head that does not exist is refused before the first step.
        assert isinstance(pl_module, Task)
        for site in choose_sites(pl_module.model, self.layers):
            heads = getattr(pl_module.model.get_submodule(site.name.rpartition(".")[0]), "heads", None)
            if heads is not None:
                choose_heads(heads, self.heads)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if self.every_n_steps and step % self.every_n_steps == 0 and step != self._taken_at:
            self._take(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.global_step != self._taken_at:
            self._take(trainer, pl_module)

    def _take(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        if not trainer.is_global_zero or self.count == 0:
            return
        assert isinstance(task, Task)
        started = time.perf_counter()
        if self._probes is None:
            self._probes = trainer.datamodule.probes(self.count, self.length)  # type: ignore[attr-defined]
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
        self.capture_error = max([self.capture_error, *(found.capture_error for found in records)])
        name = f"step-{step:08d}"
        record.save(records, self.folder / f"{name}.safetensors")
        first = [found for found in records if found.example == self._probes[0].example]
        mosaic = render.overview(first)
        render.write_png(mosaic, self.folder / f"{name}.png")
        publish.picture(trainer.loggers, "maps/overview", mosaic, step, caption=first[-1].caption())
        last = first[-1]
        sheet = render.sheet(last)
        render.write_png(sheet, self.folder / f"{name}-layer-{last.layer}.png")
        publish.picture(trainer.loggers, f"maps/layer {last.layer}", sheet, step, caption=last.caption())
        self.seconds += time.perf_counter() - started


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
        task.answer(model, batch)
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
            )
        )
    return records
