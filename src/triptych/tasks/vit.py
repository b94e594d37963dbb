"""The vision transformer as a task: which class an image shows, how often that is right, and how sure to be of it."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError, MulticlassConfusionMatrix

from triptych.attention.naive import upcast
from triptych.data.batches import ImageBatch, Probe
from triptych.data.images import ImageData
from triptych.errors import UserError
from triptych.models.vit import ViT
from triptych.tasks.base import Table, Task

FEW_CLASSES = 20  # up to so many, the test gives an accuracy for each
BINS = 15  # of confidence, for the calibration error (Guo et al., arXiv 1706.04599)


class ViTTask(Task):
    """Classify images. ``val/loss`` is cross-entropy in nats per image, without smoothing; accuracies are shares.

    label_smoothing: share of each training label that is spread evenly over all classes (Szegedy et al., arXiv
        1512.00567, section 7).

    ``calibration_error`` is the mean gap between confidence and accuracy over bins of confidence, weighted by how many
    images fall into each (expected calibration error). Raises UserError for smoothing out of range.
    """

    name = "vit"
    metrics = ("val/loss", "val/accuracy", "val/calibration_error")
    optional_modules = ("torchvision",)
    data_class, model_classes = ImageData, (ViT,)
    model: ViT

    def __init__(self, *, label_smoothing: float, **more: Any) -> None:
        super().__init__(**more)
        if not 0 <= label_smoothing < 1:
            raise UserError(f"task.label_smoothing={label_smoothing}; it must be in 0 <= label_smoothing < 1")
        self.label_smoothing = label_smoothing
        self.measured = nn.ModuleDict({split: _metrics(self.model.predict.out_features) for split in ("val", "test")})
        self._confusion: Tensor | None = None

    def logits(self, model: Callable[..., Tensor], batch: ImageBatch) -> Tensor:
        """Logits B K of the classes."""
        return model(batch.images)

    def loss(self, logits: Tensor, batch: ImageBatch) -> tuple[Tensor, int]:
        """Mean cross-entropy in nats per image; smoothed in training only."""
        smoothing = self.label_smoothing if self.training else 0.0
        logits = upcast(logits)
        labels = batch.labels.to(logits.dtype) if batch.labels.is_floating_point() else batch.labels
        return F.cross_entropy(logits, labels, label_smoothing=smoothing), len(batch.images)

    def evaluated(self, split: str, logits: Tensor, batch: ImageBatch) -> None:
        self._metrics(split).update(logits, batch.labels)

    def log_split(self, split: str) -> None:
        metrics = self._metrics(split)
        found = metrics.compute()
        metrics.reset()
        self._confusion = confusion = found.pop("confusion").cpu()
        for name, number in found.items():
            self.log(f"{split}/{name}", number)
        if split == "test" and len(confusion) <= FEW_CLASSES:
            shown = confusion.sum(1)
            for name, right, count in zip(self._names(), confusion.diag(), shown, strict=True):
                if count:
                    self.log(f"test/accuracy/{name.replace('/', '-')}", right / count)
        super().log_split(split)

    def tables(self, data: ImageData) -> dict[str, Table]:
        """The confusion matrix: rows are the true classes, columns the predicted ones."""
        if self._confusion is None:
            return {}
        return {"confusion": Table(data.format.classes, self._confusion, rows="true", columns="predicted")}

    def streams(self, site: str, kind: Literal["self", "cross"]) -> tuple[str, str]:
        """Queries and keys are the same positions."""
        return "positions", "positions"

    def probes(self, data: ImageData, count: int, length: int) -> list[Probe]:
        """``count`` fixed validation images, whole."""
        return [self._placed(probe) for probe in data.probes(count, length)]

    def inputs(self, data: ImageData, given: str) -> list[Probe]:
        """The picture, or the folder's pictures, that ``given`` names."""
        return [self._placed(probe) for probe in data.pictures(Path(given).expanduser(), "input")]

    def _placed(self, probe: Probe) -> Probe:
        labels = {**probe.labels, "positions": self.model.labels}
        return dataclasses.replace(probe, labels=labels, grid=self.model.grid)

    def outcome(self, logits: Tensor, probe: Probe) -> str:
        """The true class, where it is known, and the predicted one with its probability."""
        return _in_words(logits, probe, top=1)

    def sample(self, data: ImageData, *, images: int, top: int) -> tuple[str, str]:
        """What the model says to a few fixed validation images, one line each."""
        lines = []
        for probe in self.probes(data, images, 0):
            lines.append(f"{probe.example}: {_in_words(self._look(probe), probe, top=top)}\n")
        return "", "".join(lines)

    def check_sample(self, *, images: int, top: int) -> None:  # type: ignore[override]
        """Raise UserError naming the option that is out of range."""
        for name, number in (("images", images), ("top", top)):
            if number < 1:
                raise UserError(f"sample.{name}={number}; it must be at least 1")

    def predict(self, data: ImageData, given: str, *, top: int) -> Iterator[str]:
        """One line per picture: its file and the ``top`` likeliest classes with their probabilities."""
        if top < 1:
            raise UserError(f"top={top}; it must be at least 1")
        for index, probe in enumerate(self.inputs(data, given)):
            yield ("\n" if index else "") + f"{probe.example}: {_in_words(self._look(probe), probe, top=top)}"

    @torch.inference_mode()
    def _look(self, probe: Probe) -> Tensor:
        return self.logits(self.model, self.transfer_batch_to_device(probe.batch, self.device, 0))

    def _metrics(self, split: str) -> MetricCollection:
        return cast(MetricCollection, self.measured[split])

    def _names(self) -> tuple[str, ...]:
        return self.trainer.datamodule.format.classes  # type: ignore[attr-defined]


def _metrics(classes: int) -> MetricCollection:
    """What is measured over a split, the mean loss aside."""
    measured: dict[str, Metric | MetricCollection] = {
        "accuracy": MulticlassAccuracy(classes, average="micro"),
        "calibration_error": MulticlassCalibrationError(classes, n_bins=BINS),
        "confusion": MulticlassConfusionMatrix(classes),
    }
    if classes > 5:
        measured["top5_accuracy"] = MulticlassAccuracy(classes, top_k=5, average="micro")
    return MetricCollection(measured, compute_groups=False)


def _in_words(logits: Tensor, probe: Probe, *, top: int) -> str:
    """The label, if the probe has one, and the ``top`` likeliest classes: "label 7, predicted 7 (0.982), 1 (0.011)"."""
    classes = probe.labels["classes"]
    probability = logits[0].detach().float().softmax(-1)
    best = probability.topk(min(top, len(classes)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    predicted = ", ".join(f"{classes[place]} ({share:.3f})" for place, share in pairs)
    (label,) = probe.batch.labels.tolist()
    return predicted if label < 0 else f"label {classes[label]}, predicted {predicted}"
