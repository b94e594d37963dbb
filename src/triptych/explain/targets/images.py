"""Vision transformers explained: a class of an image, by its patches."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from triptych.attention.shapes import Bool, Float, Int, Tensor
from triptych.data.batches import ImageBatch, Probe
from triptych.environment import needs
from triptych.errors import UserError
from triptych.explain.targets.registry import ExplanationTarget, Question, asked_or_likeliest, explains, parts, spread
from triptych.explain.targets.subject import Start, Subject
from triptych.maps.capture import probing
from triptych.models.vit import ViT
from triptych.tasks.base import Task
from triptych.tasks.vit import ViTTask


@explains(ViTTask)
class ImageTarget(ExplanationTarget):
    """A class of an image, by default the likeliest; units are patches."""

    optional_modules = ("torchvision",)
    takes_concept = True

    def examples(self, task: Task, data: Any, split: str, count: int, max_length: int) -> list[Probe]:
        return [_example(task.model, data, split, at) for at in spread(len(data.images[split]), count)]

    def subjects(self, task: Task, data: Any, probes: Sequence[Probe], question: Question) -> list[Subject]:
        made: list[Subject] = [ImageSubject(task, part) for part in parts(probes, question.together)]
        index = None if question.about is None else _class(data, question.about)
        made = asked_or_likeliest(task.model, made, index)
        if question.concept:
            concept = class_tokens(task, question.concept)
            for subject in made:
                subject.concept = concept
        return made


class ImageSubject(Subject):
    """Images and a class; units are patches. A removed patch is the mean pixel of the training images, 0 after
    normalisation; insertion starts from the image blurred over two patches instead (RISE, arXiv 1806.07421)."""

    def __init__(self, task: Task, probes: Sequence[Probe]) -> None:
        model = task.model
        assert isinstance(model, ViT)
        super().__init__(probes, [model.labels[len(model.prefix) :]] * len(probes))
        self.images = torch.cat([probe.batch.images for probe in probes]).to(task.device)
        self.grid, self.patch_size, self.prefix = model.grid, model.patch_size, len(model.prefix)
        self.has_class_token = "CLS" in model.prefix
        self.classes: list[str] = probes[0].labels["classes"]
        with needs("an explanation of task=vit", "torchvision"):
            from torchvision.transforms.v2.functional import gaussian_blur
        radius = min(2 * self.patch_size, min(self.images.shape[2:]) - 1)
        self.blurred = gaussian_blur(self.images, [2 * radius + 1] * 2, [float(self.patch_size)] * 2)

    def logits(self, model: nn.Module) -> Float[Tensor, "B V"]:
        return model(self.images)

    def changed(
        self, model: nn.Module, removed: Bool[Tensor, "N U"], rows: Int[Tensor, " N"], start: Start
    ) -> Float[Tensor, "N V"]:
        assert self.grid is not None
        gone = removed.view(-1, 1, *self.grid)
        for axis in (2, 3):
            gone = gone.repeat_interleave(self.patch_size, axis)
        images = self.images[rows]
        return model(
            images.masked_fill(gone, 0.0) if start == "deletion" else torch.where(gone, self.blurred[rows], images)
        )

    def read(self, matrix: Float[Tensor, "B T S"]) -> Float[Tensor, "B S"]:
        """CLS's row; without CLS the mean over the rows of the patches, which is what the answer is read off."""
        return matrix[:, 0] if self.has_class_token else matrix[:, self.prefix :].mean(1)

    @property
    def query_rows(self) -> list[int]:
        return [0] if self.has_class_token else list(range(self.prefix, self.prefix + self.size))

    def at_units(self, positions: Float[Tensor, "B S"]) -> Float[Tensor, "B U"]:
        return positions[:, self.prefix :]

    def in_words(self, target: int) -> str:
        return self.classes[target]


def _example(model: nn.Module, data: Any, split: str, at: int) -> Probe:
    assert isinstance(model, ViT)
    image, label = data.images[split][at], data.labels[split][at]
    batch = ImageBatch(images=data.format.normalise(image[None]), labels=label[None])
    labels = {"classes": list(data.format.classes), "positions": model.labels}
    return Probe(f"{split} image {at}", batch, labels, picture=image.movedim(0, -1), grid=model.grid)


def _class(data: Any, about: str) -> int:
    classes = list(data.format.classes)
    if about in classes:
        return classes.index(about)
    if about.isdecimal() and int(about) < len(classes):
        return int(about)
    raise UserError(f"about={about} is no class; there are {len(classes)}, from 0: {', '.join(classes[:20])}")


def class_tokens(task: Task, probes: Sequence[Probe]) -> Float[Tensor, "N C"]:
    """The class tokens of pictures, as the last norm puts them out."""
    outputs: list[Tensor] = []
    with probing(task.model) as model:
        handle = model.norm.register_forward_hook(  # type: ignore[union-attr]
            lambda module, args, output: outputs.append(output)
        )
        try:
            for part in parts(probes, 32):
                model(torch.cat([probe.batch.images for probe in part]).to(task.device))
        finally:
            handle.remove()
    return torch.cat(outputs)
