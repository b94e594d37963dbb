"""Characters of one long text, as windows for a causal language model."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from triptych.data import sources
from triptych.data.batches import Probe, TextBatch, generator_for, permutation
from triptych.data.module import TaskData
from triptych.data.tokenizers import CharacterTokenizer
from triptych.errors import UserError

TOKENIZER_FILE = "tokenizer.json"


class CharacterData(TaskData):
    """A text as windows of ``context`` characters, each predicting the character after every position.

    source, path, config, revision, files, columns, splits, cast: see ``sources.open``. batch_size, eval_batch_size:
    windows. seed: decides the order of training. workers: processes that make batches (0 is fastest in memory).

    Training: each epoch cuts the text into windows at another phase and shuffles them. Evaluation: every character
    but the split's first is predicted exactly once, in non-overlapping windows of the context.

    ``open`` raises UserError when there is nothing to read or a split is not longer than the context.
    """

    unit = "characters"

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
        cast: bool,
        context: int,
        batch_size: int,
        eval_batch_size: int,
        seed: int,
        workers: int,
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
        for name, size in (("batch_size", batch_size), ("eval_batch_size", eval_batch_size)):
            if size < 1:
                raise UserError(f"data.{name}={size}; it must be at least 1")
        self.context, self.batch_size, self.eval_batch_size = context, batch_size, eval_batch_size
        self.cast = cast

    def open(self) -> None:
        """Read the text, learn the alphabet of its training split, and turn all splits into ids."""
        dataset = self._read(document=True, cast=self.cast)
        texts = {split: dataset[split][0]["text"] for split in sources.SPLITS}
        if not self.restored:
            self.tokenizer = CharacterTokenizer.train(texts["train"])
        self.ids = {split: torch.tensor(self.tokenizer.encode(text)) for split, text in texts.items()}
        for split, ids in self.ids.items():
            if len(ids) <= self.context:
                raise UserError(
                    f"the {split} text has {len(ids)} characters, and model.context={self.context} needs more than "
                    f"that: use a longer text (data.path), a larger share (data.splits.{split}), or a smaller context"
                )

        self.training = TrainingWindows(self.ids["train"], self.context, self.batch_size, self.seed)

    @property
    def sizes(self) -> dict[str, int]:
        """What the data decide about the model."""
        return {"vocab_size": self.tokenizer.size}

    def contents(self) -> str:
        """Characters of every split, and how many different ones."""
        counts = ", ".join(f"{len(ids):,} {split}" for split, ids in self.ids.items())
        return f"{counts} characters, {self.tokenizer.size} different"

    def save(self, folder: Path) -> None:
        """Store what a trained model needs to read and write text."""
        self.tokenizer.save(folder / TOKENIZER_FILE)

    def restore(self, folder: Path) -> None:
        """Take from a run folder what ``save`` stored: enough to use the model, without the text."""
        self.tokenizer = CharacterTokenizer.load(folder / TOKENIZER_FILE)
        self.restored = True

    def evaluation(self, split: str) -> list[TextBatch]:
        """Windows of the split in order: every character but its first is predicted exactly once."""
        return evaluation_batches(self.ids[split], self.context, self.eval_batch_size)

    def probes(self, count: int, length: int) -> list[Probe]:
        """``count`` fixed stretches of validation text, evenly spread, each beginning where a line does.

        Of the lines there, the first that shows something: a third of its characters differ (no row of asterisks).
        """
        ids = self.ids["validation"]
        length = min(length, self.context)
        newline = self.tokenizer.encode("\n")[0] if not self.tokenizer.unknown("\n") else -1
        found = []
        for index in range(count):
            start = index * (len(ids) - length) // max(count, 1)
            line_ends = (ids[start : len(ids) - length] == newline).nonzero().flatten().tolist()
            lines = [start + end + 1 for end in line_ends] or [start]
            telling = (line for line in lines if len(ids[line : line + length].unique()) * 3 >= length)
            start = next(telling, lines[0])
            tokens = ids[start : start + length]
            labels = {"text": self.tokenizer.labels(tokens.tolist())}
            batch = TextBatch(tokens=tokens[None], targets=ids[start + 1 : start + length + 1][None])
            found.append(Probe(f"validation characters {start} to {start + length - 1}", batch, labels))
        return found

    def written(self, text: str) -> Probe:
        """A person's text as a probe. Raises UserError when it is empty or longer than the model's context."""
        ids = self.tokenizer.encode(text)
        if not ids:
            raise UserError("input= is empty: give the text that the model is to read")
        if len(ids) > self.context:
            raise UserError(
                f"input= has {len(ids)} characters, and this model reads {self.context} at most (model.context)"
            )
        return self.stretch(torch.tensor(ids), self.tokenizer.decode(ids))

    def stretch(self, ids: Tensor, example: str) -> Probe:
        """Characters (T ids) as a probe; what follows them is not known, so its targets end with their beginning."""
        batch = TextBatch(tokens=ids[None], targets=ids[None].roll(-1, 1))
        return Probe(example, batch, {"text": self.tokenizer.labels(ids.tolist())})

    def prompt(self) -> str:
        """How sampled text begins: the first line of the validation text."""
        text = self.tokenizer.decode(self.ids["validation"][: self.context].tolist())
        return text.lstrip().split("\n")[0][:80] + "\n"


class TrainingWindows:
    """Windows of ``context`` characters in batches; batch k of an epoch is a pure function of (seed, epoch, k)."""

    def __init__(self, ids: Tensor, context: int, batch_size: int, seed: int) -> None:
        self.ids, self.context, self.batch_size, self.seed = ids, context, batch_size, seed
        self.windows = (len(ids) - 1 - (context - 1)) // context or 1  # as many as fit at every phase
        self.per_epoch = max(1, self.windows // batch_size)
        self._order: tuple[int, int, Tensor] | None = None

    def batch(self, epoch: int, k: int) -> TextBatch:
        """Batch k of the epoch: B windows of T characters, and their targets."""
        phase, order = self._plan(epoch)
        picked = torch.arange(k * self.batch_size, (k + 1) * self.batch_size) % self.windows
        starts = order[picked] * self.context + phase
        window = self.ids[starts[:, None] + torch.arange(self.context + 1)]
        return TextBatch(tokens=window[:, :-1], targets=window[:, 1:])

    def _plan(self, epoch: int) -> tuple[int, Tensor]:
        if self._order is None or self._order[0] != epoch:
            room = len(self.ids) - 1 - self.windows * self.context  # characters left over
            phase = int(torch.randint(room + 1, (), generator=generator_for(self.seed, epoch, 1)))
            self._order = (epoch, phase, permutation(self.windows, self.seed, epoch))
        return self._order[1], self._order[2]


def evaluation_batches(ids: Tensor, context: int, batch_size: int) -> list[TextBatch]:
    """Inputs s[kT : kT + T] and targets one later, for every k; the last window is as long as the text allows."""
    inputs, targets = ids[:-1], ids[1:]
    whole = len(inputs) // context * context
    batches = [
        TextBatch(tokens=tokens, targets=target)
        for tokens, target in zip(
            inputs[:whole].view(-1, context).split(batch_size),
            targets[:whole].view(-1, context).split(batch_size),
            strict=True,
        )
    ]
    if whole < len(inputs):
        batches.append(TextBatch(tokens=inputs[whole:][None], targets=targets[whole:][None]))
    return batches
