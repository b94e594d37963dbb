"""The pictures of a data set as bytes: in memory where they fit, else decoded each time they are asked for."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from triptych.data import pictures
from triptych.data.pictures import Levels, Pixels
from triptych.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset as Rows

PATIENCE = 2.0  # seconds that looking at the pictures may take without a bar
WHOLE_RANGES = tuple(2.0**bits - 1 for bits in (8, 10, 12, 14, 16))  # highest values of the usual depths
FLAT = 1.5  # of 255: pixels that deviate less from their mean hold next to nothing
_TOGETHER = 256  # files taken from the table at once

Size = tuple[int, int]  # height, width in pixels


@runtime_checkable
class Images(Protocol):
    """The pictures of one split: a tensor of bytes N C H W, or what can be asked in the same way."""

    def __len__(self) -> int: ...

    def __getitem__(self, which: int | slice | Tensor, /) -> Tensor:
        """One picture C H W, or those of a slice or of a list of places, N C H W."""
        ...


@dataclass(frozen=True)
class Found:
    """What ``read`` found: the splits' pictures, their common shape, and the training pixels' statistics."""

    images: dict[str, Images]
    in_memory: bool
    channels: int  # 1 where no picture has a colour, else 3
    height: int
    width: int
    mean: tuple[float, ...]  # per channel, of pixels in 0 to 1
    std: tuple[float, ...]
    levels: Levels | None  # see `pictures.decode`; None where no picture has more than 8 bits per pixel
    notes: list[str]  # what a person should know about the pixels


class Encoded:
    """Pictures that are decoded whenever they are asked for, to the same bytes that ``read`` saw.

    rows: with a column "image". split: what to call it in a sentence. size: of every picture. channels: 1 or 3.
    levels: see `pictures.decode`.
    Raises UserError naming the file that cannot be read or decoded any more.
    """

    def __init__(self, rows: "Rows", split: str, size: Size, channels: int, levels: Levels | None) -> None:
        self.rows, self.split, self.size, self.channels = _undecoded(rows), split, size, channels
        self.levels = levels

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, which: int | slice | Tensor, /) -> Tensor:
        """One picture C H W, or those of a slice or of a list of places, N C H W; bytes."""
        one = isinstance(which, int)
        if isinstance(which, int):
            places = [range(len(self))[which]]
        elif isinstance(which, slice):
            places = list(range(len(self))[which])
        else:
            places = which.tolist()
        files = self.rows[places]["image"].to_pylist()
        found = []
        for place, file in zip(places, files, strict=True):
            picture = pictures.decode(*_content(file, place, self.split), levels=self.levels, quiet=True)
            found.append(_fit(picture, self.size))
        images = stack(found, self.channels)
        return images[0] if one else images


def read(dataset: "Mapping[str, Rows]", size: Size | None, memory: int, pixel_range: Levels | None = None) -> Found:
    """Look at every picture of every split once.

    Where pictures have more than 8 bits per pixel, the training pictures are looked at twice: first for the range of
    their values.

    size: that every picture is scaled and cut to; None where all have one size. memory: the most megabytes that decoded
    pictures may take; more than that are decoded again when they are asked for. pixel_range: the range of deep
    pictures, where a person says it.
    Raises UserError naming the picture that is none, or whose size is not that of the others.
    """
    own: dict[int, str] = {}  # split object -> its first name: two names may mean one split
    for split, rows in dataset.items():
        own.setdefault(id(rows), split)
    total = sum(len(dataset[split]) for split in own.values())
    held: dict[str, list[Pixels]] | None = {split: [] for split in own.values()}
    counts, frame, first, grey = _Counts(), size, "", True
    deep, levels = 0, None
    beyond: Counter[str] = Counter()
    with _bar(total) as advance:
        for split in own.values():
            for content, where in _files(dataset[split], split):
                try:
                    picture = pictures.decode(content, where, levels=levels)
                except pictures.TooDeep:
                    deep, levels = _levels(dataset["train"], pixel_range)
                    picture = pictures.decode(content, where, levels=levels)
                seen = picture.height, picture.width
                if frame is None:
                    frame, first = seen, where
                elif size is None and seen != frame:
                    raise UserError(
                        f"{where} is {seen[0]} x {seen[1]} pixels (height x width) and {first} is {frame[0]} x "
                        f"{frame[1]}: give the size that all are to have with data.size=[HEIGHT,WIDTH]"
                    )
                pixels = _fit(picture, frame)
                grey = grey and pixels.ndim == 2
                if split == "train":
                    counts.add(pixels)
                elif levels is not None and (seen_range := pictures.deep_range(content, where)) is not None:
                    beyond[split] += seen_range[0] < levels[0] or seen_range[1] > levels[1]
                if total * frame[0] * frame[1] * (1 if grey else 3) > memory * 1_000_000:
                    held = None
                if held is not None:
                    held[split].append(pixels)
                advance()
    assert frame is not None, "no pictures at all"
    channels = 1 if grey else 3
    ready: dict[str, Images] = {}
    for split in own.values():
        ready[split] = Encoded(dataset[split], split, frame, channels, levels)
        if held is not None:
            ready[split] = stack(held.pop(split), channels)
    mean, std = counts.statistics(channels)
    notes = _notes(deep, len(dataset["train"]), levels, std)
    if pixel_range is not None and levels is None:
        notes.append("data.pixel_range says nothing to these pictures: none has more than 8 bits per pixel")
    notes += [
        f"{count:,} {split} pictures have values beyond that range, which become 0 or 255"
        for split, count in beyond.items()
        if count
    ]
    std = tuple(one or 1.0 for one in std)  # where all pixels are alike
    images = {split: ready[own[id(rows)]] for split, rows in dataset.items()}
    return Found(images, held is not None, channels, *frame, mean, std, levels, notes)


def _levels(rows: "Rows", given: Levels | None) -> tuple[int, Levels | None]:
    """How many training pictures have more than 8 bits per pixel, and which of their values become 0 and 255."""
    ranges = [found for content, where in _files(rows, "train") if (found := pictures.deep_range(content, where))]
    if given or not ranges:  # none: such pictures stand in other splits only
        return len(ranges), given
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    if low > high:  # all of them are transparent everywhere: any range shows them white
        return len(ranges), (0.0, WHOLE_RANGES[-1])
    if len(ranges) < len(rows) and low >= 0 and high <= WHOLE_RANGES[-1]:
        # Beside pictures of 8 bits, whose 255 is white: the whole range of as many bits as theirs have.
        low, high = 0.0, next(most for most in WHOLE_RANGES if high <= most)
    return len(ranges), (low, high)


def _notes(deep: int, count: int, levels: Levels | None, std: Sequence[float]) -> list[str]:
    notes = []
    if deep and levels is not None:
        rest = "" if deep == count else f"; {count - deep:,} of the {count:,} have 8 bits and stay as they are"
        notes.append(
            f"training pictures with more than 8 bits per pixel: values {levels[0]:g} to {levels[1]:g} become 0 to "
            f"255{rest}"
        )
    if max(std) * 255 < FLAT:
        way = "say the range that matters with data.pixel_range=[LOW,HIGH]" if deep else "look at the pictures"
        notes.append(
            f"the training pixels are nearly all alike (standard deviation {max(std) * 255:.2g} of 255): {way}"
        )
    return notes


def stack(images: Sequence[Pixels], channels: int) -> Tensor:
    """Pictures H W, or H W 3 where ``channels`` is 3, as bytes N C H W."""
    if channels == 1:
        return torch.from_numpy(np.stack(images))[:, None]
    coloured = [image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2) for image in images]
    return torch.from_numpy(np.stack(coloured)).permute(0, 3, 1, 2).contiguous()


class _Counts:
    """How often each byte stands in the training pixels; mean and deviation from that are exact, in one pass."""

    def __init__(self) -> None:
        self.grey = np.zeros(256, np.int64)
        self.coloured = np.zeros((3, 256), np.int64)

    def add(self, pixels: Pixels) -> None:
        if pixels.ndim == 2:
            self.grey += np.bincount(pixels.ravel(), minlength=256)
            return
        for channel, counts in enumerate(self.coloured):
            counts += np.bincount(pixels[..., channel].ravel(), minlength=256)

    def statistics(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation per channel, of pixels in 0 to 1."""
        value = np.arange(256) / 255
        means, stds = [], []
        for counts in self.grey[None] if channels == 1 else self.coloured + self.grey:
            share = counts / counts.sum()
            mean = (share * value).sum()
            means.append(float(mean))
            stds.append(float(np.sqrt((share * (value - mean) ** 2).sum())))
        return tuple(means), tuple(stds)


def _fit(picture: Image.Image, size: Size) -> Pixels:
    """Bytes H W of a picture without colour, else H W 3, scaled and cut to ``size``."""
    return pictures.fit(picture, *size, channels=1 if pictures.is_grey(picture) else 3)


def _undecoded(rows: "Rows") -> "Rows":
    """Only the pictures' column, as Arrow, its files as they are."""
    from datasets import Image as Feature

    if isinstance(rows.features["image"], Feature):
        rows = rows.cast_column("image", Feature(decode=False))
    return rows.select_columns("image").with_format("arrow")


def _files(rows: "Rows", split: str) -> Iterator[tuple[bytes, str]]:
    """The bytes of every picture file, and what to call it."""
    row = 0
    for batch in _undecoded(rows).iter(batch_size=_TOGETHER):
        for file in batch["image"].to_pylist():
            yield _content(file, row, split)
            row += 1


def _content(file: object, row: int, split: str) -> tuple[bytes, str]:
    """The bytes of one picture file as the table has it, in itself or by its path, and what to call it."""
    where = f"image {row} of {split}"
    if file is None:
        raise UserError(f"{where} is missing")
    if not isinstance(file, dict) or not {"bytes", "path"} <= file.keys():
        raise UserError(f"data.columns.image must be a column of images, and {where} is none")
    if file["path"] is not None:
        where = f"{file['path']} ({where})"
    if file["bytes"] is not None:
        return file["bytes"], where
    if file["path"] is None:
        raise UserError(f"{where} is missing")
    try:
        return Path(file["path"]).read_bytes(), where
    except OSError as error:
        raise UserError(f"{where} could not be read: {error.strerror}") from error


@contextlib.contextmanager
def _bar(total: int) -> Iterator[Callable[[], None]]:
    """Counts up to ``total``; a bar shows it in a terminal when it takes longer than ``PATIENCE``."""
    console = Console(stderr=True)
    columns = (TextColumn("reading images"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task("", total=total)
    begun, done, shown = time.monotonic(), 0, False

    def advance() -> None:
        nonlocal done, shown
        done += 1
        if done % 20 or not console.is_terminal:  # telling the bar takes longer than decoding a small picture
            return
        if not shown and time.monotonic() - begun > PATIENCE:
            bar.start()
            shown = True
        bar.update(task, completed=done)

    try:
        yield advance
    finally:
        if shown:
            bar.stop()
