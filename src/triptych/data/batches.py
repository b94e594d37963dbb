"""Batches: typed, and each a pure function of (seed, epoch, k), so that resuming or splitting needs no replay."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler


class Batch(ABC):
    """A batch, or one process's part of it.

    share: what this part's mean loss counts in the mean over processes; 1 where all parts are alike.
    whole: ``seen`` of the whole batch, where this is a part of it.
    """

    share: ClassVar[float] = 1.0  # no fields: a part differs in them from its batch
    whole: ClassVar[int | None] = None

    @property
    @abstractmethod
    def seen(self) -> int:
        """How much of its task's unit is in it."""

    @property
    def seen_by_all(self) -> int:
        """``seen`` of the whole batch, of which this may be one process's part."""
        return self.seen if self.whole is None else self.whole

    @property
    @abstractmethod
    def costs(self) -> Tensor:
        """N whole numbers: what each example costs to compute."""

    def pin_memory(self) -> "Batch":
        """The same in page-locked memory, from which a GPU copies while it computes; the loader asks for it."""
        pinned = {name: value.pin_memory() for name, value in vars(self).items() if isinstance(value, Tensor)}
        mine = copy(self)  # with what is known of it: its share, the whole, the count
        vars(mine).update(pinned)
        return mine

    @abstractmethod
    def take(self, rows: Tensor) -> "Batch":
        """The examples ``rows``."""

    def part(self, rank: int, processes: int) -> "Batch":
        """What process ``rank`` computes of this batch, the cost being balanced; all parts together are the batch.

        Where there are fewer examples than processes, some compute one that counts nothing.
        """
        if processes == 1:
            return self
        rows = balanced(self.costs, processes)[rank]
        mine = self.take(rows if len(rows) else torch.tensor([0]))
        share = mine.seen / self.seen * processes if len(rows) else 0.0
        vars(mine).update(share=share, whole=self.seen)
        return mine


@dataclass
class TextBatch(Batch):
    """Windows of text for a language model: ``targets`` are ``tokens`` one position later."""

    tokens: Tensor  # B T
    targets: Tensor  # B T

    @property
    def seen(self) -> int:
        """Characters that this batch predicts."""
        return self.targets.numel()

    @property
    def costs(self) -> Tensor:
        """N ones: windows are alike."""
        return torch.ones(len(self.tokens), dtype=torch.long)

    def take(self, rows: Tensor) -> "TextBatch":
        """The windows ``rows``."""
        return replace(self, tokens=self.tokens[rows], targets=self.targets[rows])


@dataclass
class TranslationBatch(Batch):
    """Sentence pairs, padded with id 0 behind their ends. ``target`` is what the decoder reads, ``expected`` what it
    should answer at the same positions: one token later, up to the end token.

    The real target tokens are counted when the batch is made, while its tensors are still in the CPU's memory: counting
    them on a GPU would make the CPU wait for it. So ``expected`` is not changed afterwards; ``replace`` counts anew.
    """

    source: Tensor  # B S: the sentence and its end token
    target: Tensor  # B T: the start token and the sentence
    expected: Tensor  # B T: the sentence and its end token
    rows: Tensor  # B: which rows of the split these are

    def __post_init__(self) -> None:
        self._target_tokens = int((self.expected != 0).sum())  # no field: all of them are tensors

    @property
    def seen(self) -> int:
        """Real target tokens: end tokens count, padding does not."""
        return self._target_tokens

    @property
    def costs(self) -> Tensor:
        """N: real tokens of both sides."""
        return (self.source != 0).sum(1) + (self.expected != 0).sum(1)

    def take(self, rows: Tensor) -> "TranslationBatch":
        """The pairs ``rows``, padded no further than the longest of them."""
        source, expected = self.source[rows], self.expected[rows]
        read, written = int((source != 0).sum(1).max()), int((expected != 0).sum(1).max())
        return replace(
            self,
            source=source[:, :read],
            target=self.target[rows, :written],
            expected=expected[:, :written],
            rows=self.rows[rows],
        )


@dataclass
class ImageBatch(Batch):
    """Normalised images; ``labels`` are classes, or shares of all classes where images were mixed."""

    images: Tensor  # B C H W
    labels: Tensor  # B, whole numbers; or B K

    @property
    def seen(self) -> int:
        """Images in this batch."""
        return len(self.images)

    @property
    def costs(self) -> Tensor:
        """N ones: images have one size."""
        return torch.ones(len(self.images), dtype=torch.long)

    def take(self, rows: Tensor) -> "ImageBatch":
        """The images ``rows``."""
        return replace(self, images=self.images[rows], labels=self.labels[rows])


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
    """Adapter: DataLoader asks for the n-th batch of the whole run, and gets this process's part of it."""

    def __init__(self, batches: TrainingBatches, rank: int, processes: int) -> None:
        self.batches, self.rank, self.processes = batches, rank, processes

    def __getitem__(self, n: int) -> Any:
        epoch, k = divmod(n, self.batches.per_epoch)
        batch = self.batches.batch(epoch, k)
        return batch if self.processes == 1 else batch.part(self.rank, self.processes)


class _From(Sampler[int]):
    """start, start + 1, start + 2, ... without end: the number of updates ends a run, not the data."""

    def __init__(self, start: int) -> None:
        self.start = start

    def __iter__(self) -> Iterator[int]:
        n = self.start
        while True:
            yield n
            n += 1


class Parts(Dataset):
    """One process's parts of the batches of an evaluation: together, the processes see every example once."""

    def __init__(self, batches: Any, rank: int, processes: int) -> None:
        self.batches, self.rank, self.processes = batches, rank, processes

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, k: int) -> Any:
        if not 0 <= k < len(self):
            raise IndexError(k)
        batch = self.batches[k]
        return batch if self.processes == 1 else batch.part(self.rank, self.processes)


def training_loader(
    batches: TrainingBatches, *, start: int, workers: int, pin_memory: bool, rank: int = 0, processes: int = 1
) -> DataLoader:
    """An endless loader whose first batch is number ``start`` of the run (0 unless it resumes).

    Each of several processes gets its part of every batch; see ``Batch.part``.
    """
    return DataLoader(
        _OnDemand(batches, rank, processes),
        batch_size=None,
        sampler=_From(start),
        num_workers=workers,
        pin_memory=pin_memory,
        # Without its own generator a loader draws from the global one, which dropout uses: resuming would differ.
        generator=torch.Generator().manual_seed(0),
    )


def balanced(costs: Tensor, parts: int) -> list[Tensor]:
    """Rows 0 to N - 1 in ``parts`` parts of about the same cost, each in ascending order.

    The costliest first, each to the part that has least so far; equally long parts where all cost the same.
    """
    found: list[list[int]] = [[] for _ in range(parts)]
    totals = [0] * parts
    for row in costs.argsort(descending=True, stable=True).tolist():
        part = min(range(parts), key=totals.__getitem__)
        found[part].append(row)
        totals[part] += int(costs[row])
    return [torch.tensor(sorted(rows), dtype=torch.long) for rows in found]


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
