"""Sentence pairs in batches of similar lengths, so that little of a batch is padding."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from triptych.data.batches import TranslationBatch, generator_for, permutation
from triptych.data.tokenizers import END_ID, PAD_ID, START_ID

COARSE = 2  # lengths of the second side that count as one: wider mixes more and pads more


class Sentences:
    """Sentences as ids, each with its end token, all in one row: a batch is cut from it without a loop.

    ids: of each sentence, without special tokens. lengths: N, tokens of each, its end token counted.
    """

    def __init__(self, ids: Sequence[Sequence[int]]) -> None:
        self.lengths = torch.tensor([len(each) + 1 for each in ids])
        self._ids = torch.tensor([index for each in ids for index in (*each, END_ID)], dtype=torch.int32)
        self._starts = self.lengths.cumsum(0) - self.lengths

    def padded(self, rows: Tensor) -> Tensor:
        """The sentences ``rows`` (B) with their end tokens, padded behind: B L."""
        lengths = self.lengths[rows][:, None]
        place = torch.arange(int(lengths.max()))
        taken = self._ids[(self._starts[rows][:, None] + place).clamp_(max=len(self._ids) - 1)]
        return torch.where(place < lengths, taken, PAD_ID).long()


@dataclass
class Pairs:
    """The pairs of a split: their texts, ids, and known alignments."""

    texts: list[tuple[str, str]]  # source and target
    source: Sentences
    target: Sentences
    gold: list[str] | None  # links per pair

    def batch(self, rows: Tensor) -> TranslationBatch:
        """The pairs ``rows`` (B)."""
        expected = self.target.padded(rows)
        target = expected.roll(1, dims=1)
        target[target == END_ID] = PAD_ID
        target[:, 0] = START_ID
        return TranslationBatch(source=self.source.padded(rows), target=target, expected=expected, rows=rows)


class TrainingPairs:
    """Batches of at most ``tokens`` tokens per side, padding counted; a pure function of (seed, epoch, k).

    Every pair is in one batch of each epoch. Pairs are sorted by the length of one side, and among equals by a coarse
    length of the other, with chance among equals of both; even epochs sort by target first, odd ones by source, so that
    other sentences meet. Where batches begin and end depends on the sorted lengths only, not on chance: epochs have
    the same number of batches. Batches come in a shuffled order.
    """

    def __init__(self, pairs: Pairs, tokens: int, seed: int) -> None:
        self.pairs, self.seed = pairs, seed
        target, source = pairs.target.lengths, pairs.source.lengths
        self._keys = [_key(target, source), _key(source, target)]
        sizes = [_sizes(target, source, tokens), _sizes(source, target, tokens)]
        self.per_epoch = max(map(len, sizes))
        self._cuts = [torch.tensor([0, *_spread(each, self.per_epoch)]).cumsum(0).tolist() for each in sizes]
        self._order: tuple[int, Tensor, Tensor] | None = None

    def batch(self, epoch: int, k: int) -> TranslationBatch:
        """Batch k of the epoch."""
        if self._order is None or self._order[0] != epoch:
            chance = torch.randperm(len(self.pairs.texts), generator=generator_for(self.seed, epoch, 1))
            order = chance[self._keys[epoch % 2][chance].argsort(stable=True)]
            self._order = (epoch, order, permutation(self.per_epoch, self.seed, epoch))
        _, order, batches = self._order
        cuts, at = self._cuts[epoch % 2], int(batches[k])
        return self.pairs.batch(order[cuts[at] : cuts[at + 1]])


class EvaluationPairs(Sequence[TranslationBatch]):
    """Every pair once, sorted by source and then target length, in batches of at most ``tokens`` tokens per side.

    A sentence longer than that is a batch of its own.
    """

    def __init__(self, pairs: Pairs, tokens: int) -> None:
        self.pairs = pairs
        source, target = pairs.source.lengths, pairs.target.lengths
        self._order = (source * (int(target.max()) + 1) + target).argsort(stable=True)
        sizes = _cut(source[self._order].tolist(), target[self._order].tolist(), tokens)
        self._rows = self._order.split(sizes)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, k: int) -> TranslationBatch:  # type: ignore[override]
        return self.pairs.batch(self._rows[k])


def _key(first: Tensor, second: Tensor) -> Tensor:
    """N: to sort by ``first``, then by coarse ``second``, up and down in turn so that neighbours always are alike."""
    coarse = second // COARSE
    turned = torch.where(first % 2 == 0, coarse, -coarse)
    return first * (2 * int(coarse.max()) + 1) + turned


def _sizes(first: Tensor, second: Tensor, tokens: int) -> list[int]:
    """How many pairs each batch takes when sorted by `_key`, whichever of equal keys comes first."""
    order = _key(first, second).argsort(stable=True)
    most = (second // COARSE * COARSE + COARSE - 1).clamp(max=int(second.max()))  # of all with that coarse length
    return _cut(first[order].tolist(), most[order].tolist(), tokens)


def _cut(one: list[int], other: list[int], tokens: int) -> list[int]:
    """Sizes of batches, in order and as large as they can be while rows x longest <= tokens on both sides."""
    sizes, rows, longest = [], 0, 0
    for length in map(max, one, other):
        longest = max(longest, length)
        if rows and (rows + 1) * longest > tokens:
            sizes.append(rows)
            rows, longest = 0, length
        rows += 1
    return [*sizes, rows]


def _spread(sizes: list[int], count: int) -> list[int]:
    """The same rows in ``count`` batches: the largest are halved until there are so many."""
    sizes = list(sizes)
    while len(sizes) < count:
        at = max(range(len(sizes)), key=sizes.__getitem__)
        sizes[at : at + 1] = [sizes[at] - sizes[at] // 2, sizes[at] // 2]
    return sizes
