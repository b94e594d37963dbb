"""Translators explained: a word of the translation, by the words of the source."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import nn

from triptych.attention.shapes import Bool, Float, Int, Tensor
from triptych.data.batches import Probe
from triptych.data.tokenizers import BLANK, PAD_ID
from triptych.errors import UserError
from triptych.explain.alignment.alignment import Choice
from triptych.explain.targets.registry import ExplanationTarget, Question, asked_or_likeliest, explains, parts, spread
from triptych.explain.targets.subject import Start, Subject
from triptych.maps.labels import shortened
from triptych.models.rnn_translator import RNNTranslator
from triptych.tasks.base import Task
from triptych.tasks.translation import TranslationTask


@explains(TranslationTask)
class PairTarget(ExplanationTarget):
    """The first token of a word of the translation, by default what the model writes there; units are source words."""

    def examples(self, task: Task, data: Any, split: str, count: int, max_length: int) -> list[Probe]:
        texts = data.texts(split)
        fitting = [pair for pair in texts if all(len(data.tokenizer.encode(side)) < data.positions for side in pair)]
        return [data.pair(*fitting[at]) for at in spread(len(fitting), count)]

    def subjects(self, task: Task, data: Any, probes: Sequence[Probe], question: Question) -> list[Subject]:
        made: list[Subject] = []
        generator = None if question.seed is None else torch.Generator().manual_seed(question.seed)
        asked = [(probe, row) for probe in probes for row in _rows(probe, question.about, generator)]
        for _, group in groupby(sorted(asked, key=_shape), key=_shape):
            for part in parts(list(group), question.together):
                pairs, rows = [probe for probe, _ in part], [row for _, row in part]
                made.append(PairSubject(task, pairs, rows, data.tokenizer, question.choice))
        if generator is not None:  # where time runs out, it must not be the long sentences that go unseen
            made = [made[at] for at in torch.randperm(len(made), generator=generator).tolist()]
        return asked_or_likeliest(task.model, made, None)


class PairSubject(Subject):
    """Sentences with their translations so far, and the token that row ``rows`` emits; units are source words.

    A removed word's tokens are padding: no query sees them. A recurrent model cannot skip a place, so there they are
    taken out. The end token of the source always stays.
    """

    def __init__(
        self, task: Task, probes: Sequence[Probe], rows: Sequence[int], tokenizer: Any, choice: Choice | None
    ) -> None:
        super().__init__(probes, [source_words(probe) for probe in probes])
        self.source = torch.cat([probe.batch.source for probe in probes]).to(task.device)
        self.targets = torch.cat([probe.batch.target for probe in probes]).to(task.device)
        self.rows = torch.tensor(rows, device=task.device)
        self.words = torch.tensor([probe.words["source"] for probe in probes if probe.words], device=task.device)
        self.tokenizer = tokenizer
        self.choice = choice

    def logits(self, model: nn.Module) -> Float[Tensor, "B V"]:
        return self._say(model, self.source, torch.arange(len(self), device=self.source.device))

    def changed(
        self, model: nn.Module, removed: Bool[Tensor, "N U"], rows: Int[Tensor, " N"], start: Start
    ) -> Float[Tensor, "N V"]:
        words = self.words[rows]
        gone = removed.gather(1, words.clamp(min=0)) & (words >= 0)
        source = self.source[rows].masked_fill(gone, PAD_ID)
        if isinstance(model, RNNTranslator):
            source = source.gather(1, (source == PAD_ID).to(torch.uint8).argsort(dim=1, stable=True))
        return self._say(model, source, rows)

    def _say(self, model: nn.Module, source: Int[Tensor, "N S"], rows: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        hidden = model.hidden(source, self.targets[rows])  # type: ignore[operator]
        return model.predict(hidden[torch.arange(len(rows)), self.rows[rows]])  # type: ignore[operator]

    def read(self, matrix: Float[Tensor, "B T S"]) -> Float[Tensor, "B S"]:
        """The row that emits the token."""
        return self.read_row(matrix, 0)

    @property
    def query_rows(self) -> list[int]:
        return sorted(set(self.rows.tolist()))

    def read_row(self, matrix: Float[Tensor, "B T S"], later: int) -> Float[Tensor, "B S"]:
        """The row ``later`` rows behind the one that emits the token; the last where there are no more."""
        rows = (self.rows + later).clamp(max=matrix.shape[1] - 1)
        return matrix[torch.arange(len(matrix), device=matrix.device), rows]

    def at_units(self, positions: Float[Tensor, "B S"]) -> Float[Tensor, "B U"]:
        real = self.words >= 0
        found = positions.new_zeros(len(self), self.size)
        return found.scatter_add(1, self.words.clamp(min=0), positions * real)

    def in_words(self, target: int) -> str:
        return self.tokenizer.labels([target])[0]


def source_words(probe: Probe) -> list[str]:
    """The source's words, put together from their subwords."""
    return _words(probe, "source")


def _words(probe: Probe, stream: str) -> list[str]:
    assert probe.words is not None
    places = probe.words[stream]
    merged = [""] * (max(places, default=-1) + 1)
    for place, token in zip(places, probe.labels[stream], strict=False):
        if place >= 0:
            merged[place] += token.removeprefix(BLANK)
    return merged


def _shape(asked: tuple[Probe, int]) -> tuple[int, int, int]:
    probe = asked[0]
    assert probe.words is not None
    return probe.batch.source.shape[1], probe.batch.target.shape[1], max(probe.words["source"], default=-1) + 1


def _rows(probe: Probe, about: str | None, generator: torch.Generator | None) -> list[int]:
    """The rows that emit the first token of each asked word."""
    assert probe.words is not None
    places = probe.words["output"]
    firsts = [row for row, word in enumerate(places) if word >= 0 and word not in places[:row]]
    if not firsts or not source_words(probe):
        said = shortened(probe.example)
        raise UserError(f'"{said}" has no word to explain: give a sentence, and a translation with words')
    if about is not None:
        words = _words(probe, "output")
        fitting = [firsts[at] for at, word in enumerate(words) if word == about]
        if not fitting and about.isdecimal() and int(about) < len(firsts):
            fitting = [firsts[int(about)]]
        if not fitting:
            raise UserError(f"about={about} is no word of the translation; it has, from 0: {', '.join(words)}")
        return fitting
    if generator is None:
        return firsts
    return [firsts[int(torch.randint(len(firsts), (), generator=generator))]]
