"""Labelled images for an image classifier: what a model is to see, and batches of it."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from triptych.data import augment, pictures, pixels, sources
from triptych.data.augment import Augment
from triptych.data.batches import ImageBatch, Probe, generator_for, permutation
from triptych.data.local.report import some
from triptych.data.module import TaskData
from triptych.data.pictures import Levels
from triptych.data.pixels import Images
from triptych.data.tokenizers import spaced
from triptych.errors import UserError
from triptych.files import write_text

if TYPE_CHECKING:
    from datasets import Dataset as Rows

FILE = "images.json"
WHOLE_RANGE = (0.0, 65535.0)


@dataclass(frozen=True)
class Format:
    """What a model was trained to see: the classes' names, the size in pixels, and what pixels are scaled by."""

    classes: tuple[str, ...]
    channels: int
    height: int
    width: int
    mean: tuple[float, ...]  # per channel, of pixels in 0 to 1
    std: tuple[float, ...]
    levels: Levels | None  # values of pictures with more than 8 bits that become 0 and 255; see `pictures.decode`

    def normalise(self, images: Tensor) -> Tensor:
        """Bytes B C H W as numbers of mean 0 and deviation 1 per channel, over the training images."""
        mean, std = (torch.tensor(numbers).view(1, -1, 1, 1) for numbers in (self.mean, self.std))
        return images.float().mul_(1 / (255 * std)).sub_(mean / std)


class ImageData(TaskData):
    """Images with one label each: channels, size and classes come from them.

    source, path, config, revision, files, columns (image, label), splits: see ``sources.open``. A path may be a folder
    with one folder of pictures per class, or a table of their paths and labels.
    layout: what the folders are: "classes", "splits", or neither, since "tables" name the pictures; "auto" finds out by
    the rules of `local.pictures`. A split that is cut from train has the same share of every class.
    pixel_range: [low, high], the values of pictures with more than 8 bits per pixel that become 0 and 255; None for the
    lowest and the highest of the training pictures.
    size: [height, width] that every image is scaled and cut to; None where all have one size.
    mean, std: per channel, of pixels in 0 to 1; None for those of the training split.
    augmentation: a policy of ``augment.POLICIES``. mixup, cutmix: see ``augment.Augment``.
    batch_size, eval_batch_size: images. seed: decides order and augmentation. workers: processes that make batches.
    memory: the most megabytes that the decoded images may take; more than that are decoded again for every batch.

    ``open`` raises UserError when there is nothing to read, when an image or a label is none (naming it), and when
    there are fewer than two classes.
    """

    unit = "images"
    format: Format

    def __init__(
        self,
        *,
        source: str,
        path: str | None,
        config: str | None,
        revision: str | None,
        files: str | None,
        columns: Mapping[str, str],
        splits: Mapping[str, str | float],
        layout: Literal["auto", "classes", "splits", "tables"],
        pixel_range: Sequence[float] | None,
        size: Sequence[int] | None,
        mean: Sequence[float] | None,
        std: Sequence[float] | None,
        augmentation: str,
        mixup: float,
        cutmix: float,
        batch_size: int,
        eval_batch_size: int,
        seed: int,
        workers: int,
        memory: int,
    ) -> None:
        super().__init__(
            source=source,
            path=path,
            config=config,
            revision=revision,
            files=files,
            columns=columns,
            splits=splits,
            seed=seed,
            workers=workers,
        )
        for name, number in (("batch_size", batch_size), ("eval_batch_size", eval_batch_size), ("memory", memory)):
            if number < 1:
                raise UserError(f"data.{name}={number}; it must be at least 1")
        if size is not None and (len(size) != 2 or min(size) < 1):
            raise UserError(f"data.size={list(size)}; it must be [height, width] in pixels, or null")
        if set(columns) != {"image", "label"}:
            raise UserError(f"data.columns must name image and label, not: {', '.join(columns) or 'none'}")
        augment.check(augmentation, mixup, cutmix)
        if pixel_range is not None and (len(pixel_range) != 2 or not pixel_range[0] < pixel_range[1]):
            raise UserError(f"data.pixel_range={list(pixel_range)}; it must be [LOW, HIGH], LOW below HIGH, or null")
        self.layout, self.pixel_range = layout, pixel_range
        self.size, self.mean, self.std = size, mean, std
        self.augmentation, self.mixup, self.cutmix = augmentation, mixup, cutmix
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.memory = memory

    def open(self) -> None:
        """Read and decode every image, learn the classes and the mean pixel of the training split."""
        dataset = self._read(document=False, stratify="label", layout=self.layout)
        names = _class_names(dataset["train"], self.path or self.source)
        if alike := _alike(names):
            quoted = [f'"{name}"' for name in alike]
            self.report.notes.append(
                f"{len(alike):,} of the {len(names):,} classes have a name that differs from another one only in "
                f"blanks or in composed letters (NFC), and are kept apart: {some(quoted)}"
            )
        self.labels = {split: _labels(dataset[split], names, split) for split in sources.SPLITS}
        if len(self.labels["train"].unique()) < 2:
            raise UserError(
                f"the training images of {self.path or self.source} are all of the class "
                f"{names[self.labels['train'][0]]}: at least two classes are needed"
            )
        size = None if self.size is None else (self.size[0], self.size[1])
        levels = None if self.pixel_range is None else (float(self.pixel_range[0]), float(self.pixel_range[1]))
        if self.restored:
            levels = self.format.levels
        found = pixels.read(dataset, size, self.memory, levels)
        self.report.notes += found.notes
        self.images, self.in_memory = found.images, found.in_memory
        if not self.restored:
            self.format = Format(
                classes=tuple(names),
                channels=found.channels,
                height=found.height,
                width=found.width,
                mean=_per_channel(self.mean, found.channels, "mean") or found.mean,
                std=_per_channel(self.std, found.channels, "std") or found.std,
                levels=found.levels,
            )
        self.training = TrainingImages(
            self.images["train"],
            self.labels["train"],
            self.format,
            Augment(
                policy=self.augmentation,
                size=(found.height, found.width),
                mixup=self.mixup,
                cutmix=self.cutmix,
                classes=len(names),
            ),
            self.batch_size,
            self.seed,
        )

    @property
    def sizes(self) -> dict[str, int]:
        """What the data decide about the model."""
        form = self.format
        return {
            "classes": len(form.classes),
            "channels": form.channels,
            "image_height": form.height,
            "image_width": form.width,
        }

    def contents(self) -> str:
        """Images of every split, their size, and the number of classes."""
        form = self.format
        counts = ", ".join(f"{len(images):,} {split}" for split, images in self.images.items())
        kind = "grey" if form.channels == 1 else "colour"
        later = f"; decoded as they come, being more than data.memory={self.memory} megabytes: data.workers helps"
        return (
            f"{counts} images, {form.height} x {form.width} pixels, {kind}, "
            f"{len(form.classes)} classes{'' if self.in_memory else later}"
        )

    def save(self, folder: Path) -> None:
        """Store what a trained model needs to see and name a picture."""
        write_text(folder / FILE, json.dumps(vars(self.format), ensure_ascii=False, indent=1) + "\n")

    def restore(self, folder: Path) -> None:
        """Take from a run folder what ``save`` stored: enough to use the model, without the images."""
        try:
            stored: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
            stored.setdefault("levels", WHOLE_RANGE)  # what runs before 0.2 took 16 bits for
            for name in ("classes", "mean", "std", "levels"):
                stored[name] = None if stored[name] is None else tuple(stored[name])
            self.format = Format(**stored)
            self.restored = True
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(f"{folder / FILE} cannot be read ({error}): the run folder is damaged") from error

    def evaluation(self, split: str) -> "_EvaluationBatches":
        """The images of the split in order."""
        return _EvaluationBatches(self.images[split], self.labels[split], self.format, self.eval_batch_size)

    def probes(self, count: int, length: int) -> list[Probe]:
        """``count`` fixed validation images, evenly spread. ``length`` is for texts: a picture is taken whole."""
        images, labels = self.images["validation"], self.labels["validation"]
        found = []
        for index in range(min(count, len(images))):
            at = index * len(images) // count
            found.append(self._probe(images[at], labels[at], f"validation image {at}"))
        return found

    def pictures(self, path: Path, setting: str) -> list[Probe]:
        """The pictures in a file or folder as the model sees them, without labels.

        Raises UserError naming ``setting``, or the file that is no picture.
        """
        form = self.format
        found = []
        for file in pictures.files(path, setting):
            seen = pictures.fit(pictures.read(file, form.levels), form.height, form.width, form.channels)
            found.append(self._probe(pixels.stack([seen], form.channels)[0], torch.tensor(-1), str(file)))
        return found

    def _probe(self, image: Tensor, label: Tensor, example: str) -> Probe:
        batch = ImageBatch(images=self.format.normalise(image[None]), labels=label[None])
        return Probe(example, batch, {"classes": list(self.format.classes)}, picture=image.movedim(0, -1))


class TrainingImages:
    """Shuffled, augmented batches; batch k of an epoch is a pure function of (seed, epoch, k), its changes too."""

    def __init__(
        self, images: Images, labels: Tensor, form: Format, changes: Augment, batch_size: int, seed: int
    ) -> None:
        self.images, self.labels, self.format, self.augment = images, labels, form, changes
        self.batch_size, self.seed = min(batch_size, len(images)), seed
        self.per_epoch = len(images) // self.batch_size
        self._order: tuple[int, Tensor] | None = None

    def batch(self, epoch: int, k: int) -> ImageBatch:
        """Batch k of the epoch: B images, and their labels or, when they were mixed, shares of the classes."""
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, permutation(len(self.images), self.seed, epoch))
        picked = self._order[1][k * self.batch_size : (k + 1) * self.batch_size]
        images, labels = self.images[picked], self.labels[picked]
        # The transforms draw from the global state, which dropout uses too: theirs is set, and dropout's put back.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(generator_for(self.seed, epoch, k, 1).initial_seed())
            images = self.format.normalise(self.augment.change(images))
            images, labels = self.augment.mix(images, labels)
        return ImageBatch(images=images, labels=labels)


class _EvaluationBatches(Dataset):
    """Every image of a split once, unchanged, in order."""

    def __init__(self, images: Images, labels: Tensor, form: Format, batch_size: int) -> None:
        self.images, self.labels, self.format, self.batch_size = images, labels, form, batch_size

    def __len__(self) -> int:
        return -(-len(self.images) // self.batch_size)

    def __getitem__(self, k: int) -> ImageBatch:
        if not 0 <= k < len(self):
            raise IndexError(k)
        part = slice(k * self.batch_size, (k + 1) * self.batch_size)
        return ImageBatch(images=self.format.normalise(self.images[part]), labels=self.labels[part])


def _class_names(rows: "Rows", origin: str) -> list[str]:
    """The classes: those that the data declare, else every different label of the training split, in order."""
    from datasets import ClassLabel

    feature = rows.features["label"]
    if isinstance(feature, ClassLabel):
        names = [str(name) for name in feature.names]
    else:
        values = set(rows["label"]) - {None}
        if not all(isinstance(value, int | str) for value in values):
            raise UserError("data.columns.label must be a column of whole numbers or names, one per image")
        texts = sorted(map(str, values))
        numbers = all(re.fullmatch(r"-?[0-9]+", text) for text in texts)
        names = sorted(texts, key=int) if numbers else texts
    if len(names) < 2:
        raise UserError(
            f"the images of {origin} have {len(names) or 'no'} class{'' if len(names) == 1 else 'es'}: at least two "
            "are needed"
        )
    return names


def _alike(names: Sequence[str]) -> list[str]:
    """The names of classes that look like the name of another one, those that look alike side by side."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(spaced(name), []).append(name)
    return [name for group in groups.values() if len(group) > 1 for name in group]


def _labels(rows: "Rows", names: list[str], split: str) -> Tensor:
    """Labels as places in ``names``."""
    from datasets import ClassLabel

    declared = isinstance(rows.features["label"], ClassLabel)
    places: dict[Any, int] = {}
    for place, name in enumerate(names):
        places[place if declared else name] = place
    found = []
    for row, value in enumerate(rows["label"]):
        known_as = value if declared or value is None else str(value)
        if known_as not in places:
            known = ", ".join(names[:12]) + (" ..." if len(names) > 12 else "")
            said = "no label" if value is None else f"the label {value}"
            way = ""
            if split != "train" and all(value in (None, -1, "-1") for value in rows["label"]):
                way = (
                    f"; the {split} split has no labels at all: data.splits.{split}=0.1 takes a share of train instead"
                )
            raise UserError(
                f"image {row} of {split} has {said}, which is none of the {len(names)} classes: {known}{way}"
            )
        found.append(places[known_as])
    if not found:
        raise UserError(f"the {split} split holds no images: give it some, or a share with data.splits.{split}")
    return torch.tensor(found)


def _per_channel(given: Sequence[float] | None, channels: int, name: str) -> tuple[float, ...] | None:
    if given is None:
        return None
    if len(given) != channels or (name == "std" and min(given) <= 0):
        raise UserError(
            f"data.{name}={list(given)}: the images have {channels} channel{'s' if channels > 1 else ''}, so give as "
            f"many numbers{' above 0' if name == 'std' else ''}, or null"
        )
    return tuple(float(number) for number in given)
