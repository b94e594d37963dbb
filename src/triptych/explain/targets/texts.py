"""Language models explained: the character that follows a stretch of text, by the characters before it."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import nn

from triptych.attention.shapes import Bool, Float, Int, Tensor
from triptych.data.batches import Probe, TextBatch, generator_for
from triptych.data.tokenizers import UNKNOWN_ID
from triptych.errors import UserError
from triptych.explain.targets.registry import (
    ExplanationTarget,
    HeadExamples,
    Question,
    asked_or_likeliest,
    explains,
    parts,
    spread,
)
from triptych.explain.targets.subject import Start, Subject
from triptych.tasks.base import Task
from triptych.tasks.charlm import CharLMTask

BLOCK = 64  # tokens of the random block that is said twice, at most
BLOCKS = 16  # such blocks


@explains(CharLMTask)
class TextTarget(ExplanationTarget):
    """The character after a stretch of text, by default the likeliest; units are characters."""

    def examples(self, task: Task, data: Any, split: str, count: int, max_length: int) -> list[Probe]:
        length = min(data.context, max_length)
        ids = data.ids[split]
        return [
            data.stretch(ids[at : at + length], f"{split} characters {at} to {at + length - 1}")
            for at in spread(len(ids) - length, count)
        ]

    def subjects(self, task: Task, data: Any, probes: Sequence[Probe], question: Question) -> list[Subject]:
        context = int(task.model.context)  # type: ignore[arg-type]
        made: list[Subject] = []
        for length, same in groupby(sorted(probes, key=_length), key=_length):
            if length > context:
                raise UserError(f"input= has {length} characters, and this model takes {context} at most")
            made += [TextSubject(task, part, data.tokenizer) for part in parts(list(same), question.together)]
        index = None if question.about is None else _character(data, question.about)
        return asked_or_likeliest(task.model, made, index)

    def head_examples(self, task: Task, data: Any, count: int, max_length: int) -> HeadExamples:
        """Windows of text, each with what follows every position."""
        windows = [batch for batch in data.evaluation("validation") if batch.tokens.shape[1] == data.context]
        tokens, targets = (torch.cat([getattr(batch, name) for batch in windows]) for name in ("tokens", "targets"))
        chosen = sorted({index * len(tokens) // count for index in range(count)})
        cut = slice(None, max_length)
        return HeadExamples([TextBatch(tokens[at : at + 1, cut], targets[at : at + 1, cut]) for at in chosen])

    def repeated(self, task: Task, data: Any) -> Int[Tensor, "B T"] | None:
        block = min(BLOCK, int(task.model.context) // 2)  # type: ignore[arg-type]
        return repeated(data.tokenizer.size, block) if block > 1 else None


def repeated(vocab_size: int, block: int, count: int = BLOCKS) -> Int[Tensor, "B T"]:
    """``count`` random blocks of tokens, each said twice: B 2L, always the same ones; without id 0, the unknown."""
    once = torch.randint(1, vocab_size, (count, block), generator=generator_for(block, count))
    return once.repeat(1, 2)


class TextSubject(Subject):
    """Stretches of text and the character that follows; units are characters. A removed one becomes the tokenizer's
    unknown id, so that the others keep their places."""

    def __init__(self, task: Task, probes: Sequence[Probe], tokenizer: Any) -> None:
        super().__init__(probes, [probe.labels["text"] for probe in probes])
        self.tokens = torch.cat([probe.batch.tokens for probe in probes]).to(task.device)
        self.tokenizer = tokenizer

    def logits(self, model: nn.Module) -> Float[Tensor, "B V"]:
        return model(self.tokens)[:, -1]

    def changed(
        self, model: nn.Module, removed: Bool[Tensor, "N U"], rows: Int[Tensor, " N"], start: Start
    ) -> Float[Tensor, "N V"]:
        return model(self.tokens[rows].masked_fill(removed, UNKNOWN_ID))[:, -1]

    def read(self, matrix: Float[Tensor, "B T S"]) -> Float[Tensor, "B S"]:
        """The last row: it predicts the character that follows."""
        return matrix[:, -1]

    @property
    def query_rows(self) -> list[int]:
        return [self.size - 1]

    def at_units(self, positions: Float[Tensor, "B S"]) -> Float[Tensor, "B U"]:
        return positions

    def in_words(self, target: int) -> str:
        return self.tokenizer.labels([target])[0]


def _length(probe: Probe) -> int:
    return probe.batch.tokens.shape[1]


def _character(data: Any, about: str) -> int:
    if len(about) != 1 or data.tokenizer.unknown(about):
        raise UserError(f"about={about} must be one character that the training text has")
    return data.tokenizer.encode(about)[0]
