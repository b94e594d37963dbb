"""What every explained example has: units that can be taken away, and one output that is asked about."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import Literal

import torch
from torch import nn

from triptych.attention.shapes import Bool, Float, Int, Tensor
from triptych.data.batches import Probe
from triptych.explain.alignment.alignment import Choice

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
        self.choice: Choice | None = None  # where the run chose to read alignments
        self.has_class_token = False  # whether there is one token that the answer is read from, and nothing else
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
