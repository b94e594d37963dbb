"""What is explained: examples of one shape, one output of each, and the input units that can be taken away."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from itertools import groupby
from typing import Any, Literal

import torch
from torch import nn
from torchvision.transforms.v2.functional import gaussian_blur

from triptych.attention.shapes import Bool, Float, Int, Tensor
from triptych.data.batches import Probe
from triptych.data.tokenizers import BLANK, PAD_ID, UNKNOWN_ID
from triptych.errors import UserError
from triptych.explain.alignment.alignment import Choice
from triptych.maps.capture import probing
from triptych.maps.labels import shortened
from triptych.models.charlm import CharLM
from triptych.models.rnn_translator import RNNTranslator
from triptych.models.vit import ViT
from triptych.tasks.base import Task

Start = Literal["deletion", "insertion"]
CHUNK = 512  # changed inputs that a model answers at once: more of them leave the cache, fewer wait for Python


class Subject(ABC):
    """B examples of one shape, U units and one output each; ``target`` is the output's place among the logits.

    probes: the examples as maps are taken of them. examples: what they are. units: a name per unit, B U. outputs: what
    is asked about, in words. grid: rows and columns of the units where they are patches.
    """

    def __init__(self, probes: Sequence[Probe], units: Sequence[Sequence[str]]) -> None:
        self.probes, self.units = list(probes), [list(names) for names in units]
        self.examples = [probe.example for probe in probes]
        self.grid: tuple[int, int] | None = None
        self.concept: Float[Tensor, "N C"] | None = None  # class tokens of pictures that show a concept
        self.outputs: list[str] = []
        self.target: Int[Tensor, " B"] = torch.zeros(len(self.probes), dtype=torch.long)

    def __len__(self) -> int:
        return len(self.probes)

    @property
    def size(self) -> int:
        """U, the units of each example."""
        return len(self.units[0])

    def asking(self, target: Int[Tensor, " B"]) -> "Subject":
        """The same examples, asked about other outputs."""
        other = copy(self)  # of the examples nothing changes
        other.target, other.outputs = target, [self.in_words(index) for index in target.tolist()]
        return other

    @abstractmethod
    def logits(self, model: nn.Module) -> Float[Tensor, "B V"]:
        """The logits that the asked output is one of, of the inputs as they are."""

    @abstractmethod
    def changed(
        self, model: nn.Module, removed: Bool[Tensor, "N U"], rows: Int[Tensor, " N"], start: Start
    ) -> Float[Tensor, "N V"]:
        """The same logits of the examples ``rows``, without the units that are True in ``removed``."""

    @abstractmethod
    def read(self, matrix: Float[Tensor, "B T S"]) -> Float[Tensor, "B S"]:
        """What stands in a matrix of queries and keys for the position(s) that the output is read from."""

    @property
    @abstractmethod
    def query_rows(self) -> list[int]:
        """The queries that ``read`` takes into account, of any example."""

    @abstractmethod
    def at_units(self, positions: Float[Tensor, "B S"]) -> Float[Tensor, "B U"]:
        """A number per input position as one per unit: a unit of several positions gets their sum."""

    @abstractmethod
    def in_words(self, target: int) -> str:
        """An output as a person reads it."""

    def logit(self, model: nn.Module) -> Float[Tensor, " B"]:
        """The asked output's logit, before softmax."""
        return self.logits(model).gather(1, self.target[:, None])[:, 0]

    def runner_up(self, model: nn.Module) -> Int[Tensor, " B"]:
        """The likeliest output besides the asked one: what a class-sensitive map should tell apart from it."""
        return self.logits(model).scatter(1, self.target[:, None], -torch.inf).argmax(-1)

    @torch.no_grad()
    def probability(self, model: nn.Module, removed: Bool[Tensor, "B N U"], start: Start) -> Float[Tensor, "B N"]:
        """Softmax probability of the asked output, N times without some units.

        start: "deletion" for what stands in for a removed unit when the whole input is the beginning, "insertion" for
        what does when nothing is; they differ for images only.
        """
        device = self.target.device
        rows = torch.arange(len(removed), device=device).repeat_interleave(removed.shape[1])
        found = []
        for part, of in zip(removed.to(device).flatten(0, 1).split(CHUNK), rows.split(CHUNK), strict=True):
            shares = self.changed(model, part, of, start).float().softmax(-1)
            found.append(shares.gather(1, self.target[of][:, None])[:, 0])
        return torch.cat(found).view(removed.shape[:2]).to(removed.device)


class ImageSubject(Subject):
    """Images and a class; units are patches. A removed patch is the mean pixel of the training images, 0 after
    normalisation; insertion starts from the image blurred over two patches instead (RISE, arXiv 1806.07421)."""

    def __init__(self, task: Task, probes: Sequence[Probe]) -> None:
        model = task.model
        assert isinstance(model, ViT)
        super().__init__(probes, [model.labels[len(model.prefix) :]] * len(probes))
        self.images = torch.cat([probe.batch.images for probe in probes]).to(task.device)
        self.grid, self.patch_size, self.prefix = model.grid, model.patch_size, len(model.prefix)
        self.has_cls = "CLS" in model.prefix
        self.classes: list[str] = probes[0].labels["classes"]
        radius = min(2 * self.patch_size, min(self.images.shape[2:]) - 1)
        self.blurred = gaussian_blur(self.images, [2 * radius + 1] * 2, [float(self.patch_size)] * 2)

    def logits(self, model: nn.Module) -> Float[Tensor, "B V"]:
        return model(self.images)

    def changed(
        self, model: nn.Module, removed: Bool[Tensor, "N U"], rows: Int[Tensor, " N"], start: Start
    ) -> Float[Tensor, "N V"]:
        assert self.grid is not None
        gone = removed.view(-1, 1, *self.grid)
        for axis in (2, 3):
            gone = gone.repeat_interleave(self.patch_size, axis)
        images = self.images[rows]
        return model(
            images.masked_fill(gone, 0.0) if start == "deletion" else torch.where(gone, self.blurred[rows], images)
        )

    def read(self, matrix: Float[Tensor, "B T S"]) -> Float[Tensor, "B S"]:
        """CLS's row; without CLS the mean over the rows of the patches, which is what the answer is read off."""
        return matrix[:, 0] if self.has_cls else matrix[:, self.prefix :].mean(1)

    @property
    def query_rows(self) -> list[int]:
        return [0] if self.has_cls else list(range(self.prefix, self.prefix + self.size))

    def at_units(self, positions: Float[Tensor, "B S"]) -> Float[Tensor, "B U"]:
        return positions[:, self.prefix :]

    def in_words(self, target: int) -> str:
        return self.classes[target]


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


class PairSubject(Subject):
    """Sentences with their translations so far, and the token that row ``rows`` emits; units are source words.

    A removed word's tokens are padding: no query sees them. A recurrent model cannot skip a place, so there they are
    taken out. The end token of the source always stays.
    """

    def __init__(self, task: Task, probes: Sequence[Probe], rows: Sequence[int], tokenizer: Any) -> None:
        super().__init__(probes, [source_words(probe) for probe in probes])
        self.source = torch.cat([probe.batch.source for probe in probes]).to(task.device)
        self.targets = torch.cat([probe.batch.target for probe in probes]).to(task.device)
        self.rows = torch.tensor(rows, device=task.device)
        self.words = torch.tensor([probe.words["source"] for probe in probes if probe.words], device=task.device)
        self.tokenizer = tokenizer
        self.choice: Choice | None = None  # where the run chose to read alignments

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


def subjects(
    task: Task,
    data: Any,
    probes: Sequence[Probe],
    *,
    about: str | None = None,
    seed: int | None = None,
    together: int = 32,
) -> list[Subject]:
    """The examples, those of one shape together, each asked about the model's own likeliest answer.

    about: this output instead: a class (or its number), a character, a target word (or its number, from 0).
    seed: for translations, draw one word of each with it; None for every word of each, an example per word.
    together: examples of a subject, at most.

    Raises UserError for an output that does not exist, or an input longer than the context.
    """
    made: list[Subject] = []
    model = task.model
    if isinstance(model, ViT):
        made = [ImageSubject(task, part) for part in _parts(probes, together)]
    elif isinstance(model, CharLM):
        for length, same in groupby(sorted(probes, key=_length), key=_length):
            if length > model.context:
                raise UserError(f"input= has {length} characters, and this model takes {model.context} at most")
            made += [TextSubject(task, part, data.tokenizer) for part in _parts(list(same), together)]
    else:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        asked = [(probe, row) for probe in probes for row in _rows(probe, about, generator)]
        for _, group in groupby(sorted(asked, key=_shape), key=_shape):
            for part in _parts(list(group), together):
                pairs, rows = [probe for probe, _ in part], [row for _, row in part]
                made.append(PairSubject(task, pairs, rows, data.tokenizer))
        if generator is not None:  # where time runs out, it must not be the long sentences that go unseen
            made = [made[at] for at in torch.randperm(len(made), generator=generator).tolist()]
    with probing(model) as probed:
        answered = [subject.asking(subject.logits(probed).argmax(-1)) for subject in made]
    if about is None or not isinstance(model, ViT | CharLM):
        return answered
    index = _class(data, about) if isinstance(model, ViT) else _character(data, about)
    return [subject.asking(torch.full_like(subject.target, index)) for subject in answered]


def _parts(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[at : at + size] for at in range(0, len(items), size)]


def _length(probe: Probe) -> int:
    return probe.batch.tokens.shape[1]


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


def _class(data: Any, about: str) -> int:
    classes = list(data.format.classes)
    if about in classes:
        return classes.index(about)
    if about.isdecimal() and int(about) < len(classes):
        return int(about)
    raise UserError(f"about={about} is no class; there are {len(classes)}, from 0: {', '.join(classes[:20])}")


def _character(data: Any, about: str) -> int:
    if len(about) != 1 or data.tokenizer.unknown(about):
        raise UserError(f"about={about} must be one character that the training text has")
    return data.tokenizer.encode(about)[0]
