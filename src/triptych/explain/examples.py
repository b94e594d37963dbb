"""Examples to explain: evenly spread over a split, as the probes that maps are taken of."""

from typing import Any

from torch import nn

from triptych.data.batches import ImageBatch, Probe
from triptych.data.characters import CharacterData
from triptych.data.images import ImageData
from triptych.data.translation import TranslationData
from triptych.errors import UserError
from triptych.models.vit import ViT
from triptych.tasks.base import Task

SPLITS = ("validation", "test")
LONGEST = 64  # characters of a text: each is a unit to take away


def examples(task: Task, data: Any, split: str, count: int, *, longest: int = LONGEST) -> list[Probe]:
    """``count`` fixed examples of "validation" or "test"; all of a split that has fewer. ``data`` are opened.

    longest: characters of a stretch of text, at most.
    Raises UserError for another split, or fewer than one example.
    """
    if split not in SPLITS:
        raise UserError(f"split={split}; it must be validation or test")
    if count < 1:
        raise UserError(f"n={count}; it must be at least 1")
    if isinstance(data, ImageData):
        return [_image(task.model, data, split, at) for at in _spread(len(data.images[split]), count)]
    if isinstance(data, CharacterData):
        length = min(data.context, longest)
        ids = data.ids[split]
        return [
            data.stretch(ids[at : at + length], f"{split} characters {at} to {at + length - 1}")
            for at in _spread(len(ids) - length, count)
        ]
    assert isinstance(data, TranslationData)
    texts = data.texts(split)
    fitting = [pair for pair in texts if all(len(data.tokenizer.encode(side)) < data.positions for side in pair)]
    return [data.pair(*fitting[at]) for at in _spread(len(fitting), count)]


def _image(model: nn.Module, data: ImageData, split: str, at: int) -> Probe:
    assert isinstance(model, ViT)
    image, label = data.images[split][at], data.labels[split][at]
    batch = ImageBatch(images=data.format.normalise(image[None]), labels=label[None])
    labels = {"classes": list(data.format.classes), "positions": model.labels}
    return Probe(f"{split} image {at}", batch, labels, picture=image.movedim(0, -1), grid=model.grid)


def _spread(size: int, count: int) -> list[int]:
    count = min(size, count)
    return [index * size // count for index in range(count)]
