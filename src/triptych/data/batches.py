"""Batches: typed, and each a pure function of (seed, epoch, k), so that resuming or splitting needs no replay."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler


@dataclass
class TextBatch:
    """Windows of text for a language model: ``targets`` are ``tokens`` one position later."""

    tokens: Tensor  # B T
    targets: Tensor  # B T

    @property
    def seen(self) -> int:
        """Characters that this batch predicts."""
        return self.targets.numel()


@dataclass
class TranslationBatch:
    """Sentence pairs, padded with id 0 behind their ends. ``target`` is what the decoder reads, ``expected`` what it
    should answer at the same positions: one token later, up to the end token."""

    source: Tensor  # B S: the sentence and its end token
    target: Tensor  # B T: the start token and the sentence
    expected: Tensor  # B T: the sentence and its end token
    rows: Tensor  # B: which rows of the split these are

    @property
    def seen(self) -> int:
        """Real target tokens: end tokens count, padding does not."""
        return int((self.expected != 0).sum())


@dataclass
class ImageBatch:
    """Normalised images; ``labels`` are classes, or shares of all classes where images were mixed."""

    images: Tensor  # B C H W
    labels: Tensor  # B, whole numbers; or B K

    @property
    def seen(self) -> int:
        """Images in this batch."""
        return len(self.images)


@dataclass
class Probe:
    """One fixed example to take maps of, with the visible labels of its streams ("text"; "source" and "target")."""

    example: str  # what it is, for the record
    batch: Any  # a batch of one
    labels: dict[str, list[str]]
    picture: Tensor | None = None  # H W 1 or H W 3, bytes: what the batch shows, where positions are patches of it
    grid: tuple[int, int] | None = None  # rows and columns of those patches; the last positions, row by row
    words: dict[str, list[int]] | None = None  # stream -> the word that each position is part of; -1 for none
    gold: str | None = None  # the known alignment of the words, as links; see `translation.TranslationData`


@runtime_checkable
class TrainingBatches(Protocol):
    """Training data as batches on demand."""

    per_epoch: int

    def batch(self, epoch: int, k: int) -> Any:
        """Batch ``k`` of ``epoch``, computed without touching any other."""
        ...


class _OnDemand(Dataset):
    """Adapter: DataLoader asks for the n-th batch of the whole run."""

    def __init__(self, batches: TrainingBatches) -> None:
        self.batches = batches

    def __getitem__(self, n: int) -> Any:
        epoch, k = divmod(n, self.batches.per_epoch)
        return self.batches.batch(epoch, k)


class _From(Sampler[int]):
    """start, start + 1, start + 2, ... without end: the number of updates ends a run, not the data."""

    def __init__(self, start: int) -> None:
        self.start = start

    def __iter__(self) -> Iterator[int]:
        n = self.start
        while True:
            yield n
            n += 1


def training_loader(batches: TrainingBatches, *, start: int, workers: int, pin_memory: bool) -> DataLoader:
    """An endless loader whose first batch is number ``start`` of the run (0 unless it resumes)."""
    return DataLoader(
        _OnDemand(batches),
        batch_size=None,
        sampler=_From(start),
        num_workers=workers,
        pin_memory=pin_memory,
        # Without its own generator a loader draws from the global one, which dropout uses: resuming would differ.
        generator=torch.Generator().manual_seed(0),
    )


def permutation(count: int, seed: int, epoch: int) -> Tensor:
    """A shuffle of ``range(count)`` that depends on seed and epoch alone."""
    return torch.randperm(count, generator=generator_for(seed, epoch))


def generator_for(*numbers: int) -> torch.Generator:
    """A generator seeded by several numbers, mixed so that neighbours (seed 1, epoch 2) and (2, 1) differ."""
    mixed = 0x9E3779B97F4A7C15
    for number in numbers:
        mixed = ((mixed ^ (number & 0xFFFFFFFFFFFFFFFF)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return torch.Generator().manual_seed(mixed >> 1)
