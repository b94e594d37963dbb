"""Attention as word alignment: links and their error rate, soft measures, and which layer, row and head align best.

Rows are target positions, columns source positions; a link is (source word, target word), both counted from 0 as
``triptych.data.tokenizers.words`` counts them. Word lists say which word each token belongs to, and -1 marks a special
token (start, end, padding); tokens behind the end of a list are special too, so what ``encode_words`` returns can be
given as it is.

Which row: the decoder's row r reads in_r (in_0 is the start token) and predicts y_r. "output" takes row i for the
target token y_i, "shifted" takes row i + 1, which reads y_i. Neither is right for every model, so both are offered.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from triptych.attention.shapes import Bool, Float, Int
from triptych.errors import UserError
from triptych.explain.evaluation.measures import Measures, checked, measures

Link = tuple[int, int]
Words = Sequence[int]  # the word of each token, -1 for a special one
Row = Literal["output", "shifted"]
Fusion = int | Literal["mean", "max"]  # a number is that head alone

ROWS: tuple[Row, ...] = ("output", "shifted")
_LINK = re.compile(r"([0-9]+)([-?])([0-9]+)")
_CHUNK = 4_000_000  # numbers worked on at once


@dataclass(frozen=True)
class Links:
    """The gold alignment of one pair. Every sure link is possible too, and is added there if it is missing."""

    sure: frozenset[Link]
    possible: frozenset[Link]

    def __post_init__(self) -> None:
        object.__setattr__(self, "possible", self.possible | self.sure)


def read_links(text: str) -> Links:
    """Read "0-0 1?2": "i-j" is a sure link, "i?j" one that is possible and not sure.

    Raises:
        UserError: something between the blanks is no link.
    """
    found: dict[str, set[Link]] = {"-": set(), "?": set()}
    for part in text.split():
        match = _LINK.fullmatch(part)
        if match is None:
            raise UserError(
                f'The column alignment has "{part}", which is no link: write "3-4" for a sure link and "3?4" for a '
                "possible one, words counted from 0 and source before target."
            )
        found[match[2]].add((int(match[1]), int(match[3])))
    return Links(frozenset(found["-"]), frozenset(found["?"]))


@dataclass(frozen=True)
class AlignmentCounts:
    """Predicted links A against sure links S and possible links P, pooled by adding (Och & Ney 2003, J03-1002).

    The figures are NaN where they divide by nothing: precision without a predicted link, recall without a sure one,
    the error rate without either.
    """

    predicted: int = 0  # |A|
    sure: int = 0  # |S|
    hit_sure: int = 0  # |A & S|
    hit_possible: int = 0  # |A & P|

    @classmethod
    def of(cls, predicted: Collection[Link], gold: Links) -> "AlignmentCounts":
        """The counts of one pair."""
        found = frozenset(predicted)
        return cls(len(found), len(gold.sure), len(found & gold.sure), len(found & gold.possible))

    def __add__(self, other: "AlignmentCounts") -> "AlignmentCounts":
        return AlignmentCounts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    @property
    def aer(self) -> float:
        """Alignment error rate, 1 - (|A & S| + |A & P|) / (|A| + |S|): 0 where S <= A <= P."""
        links = self.predicted + self.sure
        return 1 - (self.hit_sure + self.hit_possible) / links if links else math.nan

    @property
    def precision(self) -> float:
        """Share of the predicted links that are possible."""
        return self.hit_possible / self.predicted if self.predicted else math.nan

    @property
    def recall(self) -> float:
        """Share of the sure links that were predicted."""
        return self.hit_sure / self.sure if self.sure else math.nan


@dataclass(frozen=True)
class Choice:
    """Where in a model an alignment is read."""

    layer: int
    row: Row
    fusion: Fusion

    def __str__(self) -> str:
        heads = f"head {self.fusion}" if isinstance(self.fusion, int) else f"{self.fusion} over heads"
        return f"layer {self.layer}, {self.row} row, {heads}"


def fuse(weights: Float[Tensor, "*N H T S"], fusion: Fusion) -> Float[Tensor, "*N T S"]:
    """One matrix of all heads: their mean, their largest weight per cell, or one head alone.

    Raises:
        UserError: there is no such head.
    """
    if fusion == "mean":
        return weights.mean(-3)
    if fusion == "max":
        return weights.amax(-3)
    heads = weights.shape[-3]
    if not isinstance(fusion, int) or not 0 <= fusion < heads:
        raise UserError(f"There is no head fusion {fusion}: choose mean, max, or one head from 0 to {heads - 1}.")
    return weights[..., fusion, :, :]


def rows_for(weights: Float[Tensor, "*N R S"], row: Row) -> Float[Tensor, "*N T S"]:
    """The rows that stand for y_0, y_1, ...: all but the last ("output") or all but the first ("shifted")."""
    return weights[..., :-1, :] if row == "output" else weights[..., 1:, :]


def merge_words(
    weights: Float[Tensor, "*N T S"], source_words: Words, target_words: Words
) -> Float[Tensor, "*N targets sources"]:
    """From tokens to words: the sum over the tokens of a source word, the mean over those of a target word.

    Special tokens are left out and nothing is brought back to 1: where a row sums to less, the rest lies on special
    source tokens. A word without a token gets zeros.
    """
    T, S = weights.shape[-2:]
    merged = _merged(weights.cpu().double(), _padded([source_words], S)[0], _padded([target_words], T)[0])
    return merged.to(weights)


def soft(
    weights: Float[Tensor, "H R S"], source_words: Words, target_words: Words, *, row: Row, fusion: Fusion
) -> Float[Tensor, "targets sources"]:
    """The alignment matrix of one pair at word level, from the cross-attention of one layer. See ``merge_words``."""
    return merge_words(rows_for(fuse(weights, fusion), row), source_words, target_words)


def hard(
    weights: Float[Tensor, "H R S"], source_words: Words, target_words: Words, *, row: Row, fusion: Fusion
) -> set[Link]:
    """Links of one pair: each target token goes to the source token with the largest weight, then tokens to words.

    Special source tokens take no part; the first of equal weights wins; a target token that has no weight at all on
    the source's words gets no link. A target word of several tokens may so be linked to several source words.
    """
    fused = rows_for(fuse(weights, fusion), row)[None, None]
    sources, targets = _padded([source_words], fused.shape[3]), _padded([target_words], fused.shape[2])
    found = _linked(checked(fused), sources, targets)[0, 0]
    return {(int(source), int(target)) for target, source in found.nonzero().tolist()}


def masking_links(masked: Float[Tensor, "S T"], base: Float[Tensor, " T"]) -> Links:
    """For each target word the source word whose masking lowers its log-probability most: an alignment by intervention.

    masked: log-probability of each target word with one source word masked. base: with none masked. A target word
    whose probability no masking lowers has no link. All links are sure; the first of equal ones wins.

    Raises:
        ValueError: a number that is NaN.
    """
    lowered = base - masked
    if lowered.isnan().any():
        raise ValueError("log-probabilities must be numbers; one is NaN")
    if not lowered.numel():
        return Links(frozenset(), frozenset())
    most, source = lowered.max(0)
    pairs = enumerate(zip(source.tolist(), most.tolist(), strict=True))
    sure = frozenset((i, j) for j, (i, fall) in pairs if fall > 0)
    return Links(sure, sure)


@dataclass(frozen=True)
class TableRow:
    """What one choice came to over all pairs that were added."""

    choice: Choice
    counts: AlignmentCounts  # over the pairs with gold links
    measures: dict[str, float]  # mean over the pairs for which each measure says something; NaN if none

    @property
    def figures(self) -> dict[str, float]:
        """Everything by name: aer, precision, recall, entropy, ..."""
        counts = self.counts
        return {"aer": counts.aer, "precision": counts.precision, "recall": counts.recall, **self.measures}


class AlignmentTable:
    """Every choice of layer, row and head fusion against the same links. Keeps sums only, so any number of pairs fits.

    Fill it batch by batch with ``add``; ``best`` chooses, ``rows`` shows all, ``table[choice]`` gives one: choose on
    validation pairs and read the figures of that choice from a second table, filled with test pairs.
    """

    def __init__(self) -> None:
        self._sure = 0
        # Per layer: C 3, predicted links with sure and possible hits; C 5, each measure's sum and over how many pairs
        self._kept: tuple[dict[int, Tensor], ...] = ({}, {}, {})

    def add(
        self,
        weights: Mapping[int, Float[Tensor, "B _ R S"]],
        source_words: Sequence[Words],
        target_words: Sequence[Words],
        links: Sequence[Links | None] | None = None,
    ) -> None:
        """Count one batch: the cross-attention of each layer, with the reference as the decoder's input.

        source_words, target_words: per pair, see the head of this file. links: per pair; None for a pair that nobody
        annotated, which then counts in the soft measures alone (empty links count: nothing may be linked).

        Raises:
            UserError: a link names a word that its sentence does not have.
            ValueError: lengths that do not fit, other layers than before, or weights that are negative or not finite.
        """
        B = len(source_words)
        links = [None] * B if links is None else links
        if {B} != {len(target_words), len(links), *(len(each) for each in weights.values())}:
            raise ValueError("weights, words and links are of different numbers of pairs")
        if self._kept[0] and self._kept[0].keys() != weights.keys():
            raise ValueError(f"layers {sorted(weights)} are added to a table of layers {sorted(self._kept[0])}")
        for layer, each in weights.items():
            heads, R, S = each.shape[1:]
            sources, targets = _padded(source_words, S), _padded(target_words, R - 1)
            step = max(1, _CHUNK // max(1, 2 * (heads + 2) * R * S))
            for start in range(0, B, step):
                part = slice(start, start + step)
                self._count(layer, checked(each[part]), sources[part], targets[part], links[part])
        self._sure += sum(len(each.sure) for each in links if each is not None)

    def rows(self) -> list[TableRow]:
        """All choices, layer by layer; the simplest of each layer first."""
        return [self[choice] for choice in self._choices()]

    def best(self) -> TableRow | None:
        """The row with the lowest error rate; None where no pair with links was added.

        Of equal ones the simplest: mean before max before a single head, then output before shifted, then the lower
        layer.
        """
        found = [row for row in self.rows() if not math.isnan(row.counts.aer)]
        return min(found, key=lambda row: (row.counts.aer, _complexity(row.choice)), default=None)

    def __getitem__(self, choice: Choice) -> TableRow:
        """One choice's row. Raises KeyError for a choice that was never counted."""
        if choice not in self._choices():
            raise KeyError(f"{choice} was never counted")
        hits, sums, said = (kept[choice.layer] for kept in self._kept)
        at = ROWS.index(choice.row) * (len(hits) // 2) + _complexity(choice)[0]
        predicted, sure, possible = hits[at].tolist()
        means = dict(zip(Measures._fields, (sums[at] / said[at]).tolist(), strict=True))
        return TableRow(choice, AlignmentCounts(predicted, self._sure, sure, possible), means)

    def _choices(self) -> Iterator[Choice]:
        for layer, hits in sorted(self._kept[0].items()):
            fusions: list[Fusion] = ["mean", "max", *range(len(hits) // 2 - 2)]
            yield from (Choice(layer, row, fusion) for row in ROWS for fusion in fusions)

    def _count(
        self,
        layer: int,
        weights: Float[Tensor, "B H R S"],
        sources: Int[Tensor, "B S"],
        targets: Int[Tensor, "B T"],
        links: Sequence[Links | None],
    ) -> None:
        fused = torch.cat([weights.mean(1, keepdim=True), weights.amax(1, keepdim=True), weights], 1)
        every = torch.cat([rows_for(fused, row) for row in ROWS], 1)  # B C T S
        found = _linked(every, sources, targets)
        sure, possible = _gold(links, sources, targets)
        annotated = torch.tensor([each is not None for each in links])
        counted = [found[annotated], found & sure[:, None], found & possible[:, None]]
        hits = torch.stack([each.sum((0, 2, 3)) for each in counted], 1)

        words = _merged(every, sources[:, None], targets[:, None])
        said = torch.stack(measures(words, _counts(sources)[:, None], _counts(targets)[:, None]), -1)
        for kept, new in zip(self._kept, (hits, said.nansum(0), (~said.isnan()).sum(0)), strict=True):
            kept[layer] = kept[layer] + new if layer in kept else new


def _complexity(choice: Choice) -> tuple[int, int, int]:
    place = choice.fusion + 2 if isinstance(choice.fusion, int) else ("mean", "max").index(choice.fusion)
    return place, ROWS.index(choice.row), choice.layer


def _padded(words: Sequence[Sequence[int]], length: int) -> Int[Tensor, "B length"]:
    """Word lists as one tensor, special tokens (-1) behind their ends."""
    longest = max(map(len, words), default=0)
    if longest > length:
        raise ValueError(f"a sentence of {longest} tokens does not fit weights for {length}")
    padded = [[*each, *[-1] * (length - len(each))] for each in words]
    return torch.tensor(padded).long().view(len(words), length).clamp(min=-1)


def _counts(words: Int[Tensor, "*B N"]) -> Int[Tensor, "*B"]:
    """How many words there are."""
    return F.pad(words + 1, (0, 1)).amax(-1)


def _merged(
    weights: Float[Tensor, "*N T S"], sources: Int[Tensor, "*M S"], targets: Int[Tensor, "*M T"]
) -> Float[Tensor, "*N targets sources"]:
    """See ``merge_words``."""
    source, target = (F.one_hot(each + 1, _most(each) + 1)[..., 1:].double() for each in (sources, targets))
    share = target / target.sum(-2, keepdim=True).clamp(min=1)
    return share.transpose(-1, -2) @ weights @ source


def _most(words: Tensor) -> int:
    """The largest number of words in a batch."""
    return int(words.max()) + 1 if words.numel() else 0


def _linked(
    weights: Float[Tensor, "B C T S"], sources: Int[Tensor, "B S"], targets: Int[Tensor, "B T"]
) -> Bool[Tensor, "B C targets sources"]:
    """Which words the argmax of each target token links."""
    B, C, _, S = weights.shape
    height, width = _most(targets), _most(sources)
    best, at = weights.masked_fill((sources < 0)[:, None, None], -1).max(-1)
    word = sources[:, None].expand(B, C, S).gather(-1, at)
    linked = (best > 0) & (targets >= 0)[:, None]
    cell = (targets[:, None] * width + word).where(linked, height * width)  # the last cell takes what is no link
    found = torch.zeros(B, C, height * width + 1, dtype=torch.bool).scatter_(-1, cell, True)
    return found[..., :-1].view(B, C, height, width)


def _gold(
    links: Sequence[Links | None], sources: Int[Tensor, "B S"], targets: Int[Tensor, "B T"]
) -> tuple[Bool[Tensor, "B targets sources"], Bool[Tensor, "B targets sources"]]:
    """Sure and possible links as matrices."""
    sure, possible = torch.zeros(2, len(links), _most(targets), _most(sources), dtype=torch.bool)
    counts = zip(_counts(sources).tolist(), _counts(targets).tolist(), strict=True)
    for pair, (gold, (width, height)) in enumerate(zip(links, counts, strict=True)):
        for source, target in sorted(gold.possible) if gold is not None else ():
            if source >= width or target >= height:
                raise UserError(
                    f"The alignment links source word {source} to target word {target}, counted from 0, but its pair "
                    f"has {width} source and {height} target words: put the column alignment right."
                )
            possible[pair, target, source] = True
            sure[pair, target, source] = gold is not None and (source, target) in gold.sure
    return sure, possible
