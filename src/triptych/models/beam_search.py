"""Beam search over a translator's cached steps; a beam of 1 is greedy decoding."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from triptych.attention.shapes import Bool, Float, Int, Tensor
from triptych.errors import UserError
from triptych.models.translator import END, PAD, START, UNKNOWN

NEVER = -torch.inf


class Hypothesis(NamedTuple):
    """A finished translation, without its start and end tokens, and its log probability over its length penalty."""

    tokens: list[int]
    score: float


@runtime_checkable
class Steps(Protocol):
    """What beam search needs of a model; see ``translator.Translator``. A state has ``select(rows)``."""

    positions: int

    def start(self, source: Tensor) -> Any: ...

    def step(self, tokens: Tensor, state: Any) -> Tensor: ...


def twice_as_long(source: int) -> int:
    """The usual limit: twice the source and ten tokens more."""
    return 2 * source + 10


def length_factor(length: int | Tensor, penalty: float) -> Any:
    """What a hypothesis of so many tokens, its end token included, has its log probability divided by.

    ((5 + length) / 6) ^ penalty (Wu et al. 2016, arXiv 1609.08144, equation 14): 1 for a penalty of 0; a higher one
    favours longer translations.
    """
    return ((5 + length) / 6) ** penalty


@torch.inference_mode()
def beam(
    model: Steps,
    source: Int[Tensor, "B S"],
    *,
    size: int,
    length_penalty: float,
    best: int,
    max_length: int | Callable[[int], int] = twice_as_long,
) -> list[list[Hypothesis]]:
    """The ``best`` translations found of each source, the likeliest first.

    source: sentences with their end tokens, padding (0) behind. size: hypotheses kept per sentence.
    length_penalty: see ``length_factor``. longest: tokens of a translation, its end token not counted, at most; a
        number, or a function of the source's length in tokens. Never more than the model's positions.

    Of all one-token continuations of a sentence's hypotheses the ``size`` likeliest are kept. One that ends is
    finished and gives its place up (Sutskever et al. 2014, arXiv 1409.3215, section 3.2); one that no continuation
    could bring among the ``best`` finished is dropped; a sentence without hypotheses is done and leaves the batch. At
    the limit only the end token is left to choose. Padding, start and unknown tokens are never written. Nothing
    depends on which sentences are translated together. Fewer than ``best`` come back where fewer exist.

    The model should be in eval mode. Raises UserError for options out of range, ValueError when a model's numbers
    leave a source without any translation.
    """
    check_options(size=size, length_penalty=length_penalty, best=best)
    lengths = (source != PAD).sum(1).tolist()
    limits = [max_length if isinstance(max_length, int) else max_length(length) for length in lengths]
    if min(limits, default=1) < 1:
        raise UserError(f"max_length={min(limits)}; a translation must be allowed at least 1 token")
    limit = torch.tensor(limits, device=source.device).clamp(max=model.positions - 1)  # START is read too
    pool = _Pool(len(source), size, int(limit.max()) if len(source) else 0, source.device)
    if not len(source):
        return []
    state = model.start(source)
    live = _Live.first(len(source), source.device)
    while len(live.sentence):
        logits = model.step(live.tokens[:, -1], state)
        _check_vocabulary(size, logits.shape[1])
        live, parent = _advance(live, logits, pool, limit, length_penalty, best)
        if not torch.equal(parent, torch.arange(len(logits), device=parent.device)):
            state.select(parent)
    return pool.best(best)


@dataclass
class _Live:
    """Unfinished hypotheses, those of a sentence next to each other."""

    sentence: Int[Tensor, " R"]
    place: Int[Tensor, " R"]  # which of its sentence's places it has
    score: Float[Tensor, " R"]  # log probability so far
    tokens: Int[Tensor, "R L"]  # the start token and what was written

    @classmethod
    def first(cls, sentences: int, device: torch.device) -> "_Live":
        sentence = torch.arange(sentences, device=device)
        start = torch.full((sentences, 1), START, device=device)
        return cls(sentence, torch.zeros_like(sentence), torch.zeros(sentences, device=device), start)


class _Pool:
    """Finished hypotheses of every sentence: ``size`` places, filled from the left."""

    def __init__(self, sentences: int, size: int, max_length: int, device: torch.device) -> None:
        self.count = torch.zeros(sentences, dtype=torch.long, device=device)
        self.score = torch.full((sentences, size), NEVER, device=device, dtype=torch.float64)
        self.length = torch.zeros(sentences, size, dtype=torch.long, device=device)
        self.tokens = torch.zeros(sentences, size, max_length, dtype=torch.long, device=device)

    def add(self, ending: Bool[Tensor, "N K"], score: Float[Tensor, "N K"], tokens: Int[Tensor, "E t"]) -> None:
        """Take those that end, with their final scores; ``tokens`` are theirs, in the order of ``nonzero``."""
        sentence, rank = ending.nonzero(as_tuple=True)
        place = self.count[sentence] + ending.cumsum(1)[sentence, rank] - 1
        self.score[sentence, place] = score[sentence, rank].double()
        self.length[sentence, place] = tokens.shape[1]
        self.tokens[sentence, place, : tokens.shape[1]] = tokens
        self.count += ending.sum(1)

    def worst(self, best: int) -> Float[Tensor, " N"]:
        """The score that a hypothesis must beat to come among the ``best``."""
        return self.score.topk(best, dim=1).values[:, -1]

    def best(self, best: int) -> list[list[Hypothesis]]:
        if not self.count.all():
            raise ValueError("no translation has a finite probability: the model's scores are not numbers")
        score, order = self.score.topk(best, dim=1)
        length = self.length.gather(1, order).tolist()
        tokens = self.tokens.gather(1, order[..., None].expand(-1, -1, self.tokens.shape[2])).tolist()
        return [
            [Hypothesis(ids[:end], number) for number, end, ids in zip(*row, strict=True) if number > NEVER]
            for row in zip(score.tolist(), length, tokens, strict=True)
        ]


def _advance(
    live: _Live, logits: Float[Tensor, "R V"], pool: _Pool, limit: Int[Tensor, " N"], penalty: float, best: int
) -> tuple[_Live, Int[Tensor, " M"]]:
    """Finish what ends, and return what lives on with the row that each came from."""
    N, size = pool.score.shape
    written = live.tokens.shape[1] - 1
    candidates, ids = _continuations(live, logits, size, written >= limit[live.sentence])
    width = ids.shape[1]
    # One table row per sentence; places whose hypothesis has finished stay empty.
    table = candidates.new_full((N, size, width), NEVER)
    table[live.sentence, live.place] = candidates
    row_at = torch.zeros(N, size, dtype=torch.long, device=ids.device)
    row_at[live.sentence, live.place] = torch.arange(len(ids), device=ids.device)
    score, chosen = table.flatten(1).topk(size, dim=1)
    parent = row_at.gather(1, chosen // width)
    token = ids[parent, chosen % width]
    free = torch.arange(size, device=ids.device) < (size - pool.count)[:, None]
    valid = free & (score > NEVER)
    ending = valid & (token == END)
    pool.add(ending, score / length_factor(written + 1, penalty), live.tokens[parent[ending], 1:])
    # A log probability only falls and the length only grows, up to the end token behind the limit.
    reachable = score.double() / length_factor(limit[:, None] + 1, penalty)
    going = valid & ~ending & (reachable > pool.worst(best)[:, None])
    sentence, place = going.nonzero(as_tuple=True)
    parent = parent[going]
    tokens = torch.cat([live.tokens[parent], token[going][:, None]], dim=1)
    return _Live(sentence, place, score[going], tokens), parent


def _continuations(
    live: _Live, logits: Float[Tensor, "R V"], size: int, at_limit: Bool[Tensor, " R"]
) -> tuple[Float[Tensor, "R K"], Int[Tensor, "R K"]]:
    """Log probabilities and ids of each hypothesis with its likeliest next tokens: no others can be among the best."""
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    total = logits.logsumexp(1, keepdim=True)
    logits[:, [PAD, START, UNKNOWN]] = NEVER
    end = logits[:, END].clone()
    logits, ids = logits.topk(size, dim=1)
    if at_limit.any():
        logits = logits.masked_fill(at_limit[:, None], NEVER)
        logits[:, 0] = torch.where(at_limit, end, logits[:, 0])
        ids = ids.clone()
        ids[:, 0] = ids[:, 0].masked_fill(at_limit, END)
    return live.score[:, None] + (logits - total), ids


def check_options(*, size: int, length_penalty: float, best: int, vocab_size: int | None = None) -> None:
    """Raise UserError naming the option that is out of range, and what would work."""
    if size < 1:
        raise UserError(f"beam={size}; it must be at least 1, which is greedy")
    if vocab_size is not None:
        _check_vocabulary(size, vocab_size)
    if not 0 <= length_penalty < torch.inf:
        raise UserError(f"length_penalty={length_penalty}; it must be at least 0, which is none")
    if not 1 <= best <= size:
        raise UserError(f"n_best={best}; it must be at least 1 and at most the beam, which is {size}")


def _check_vocabulary(size: int, vocab_size: int) -> None:
    if size > vocab_size:
        raise UserError(f"beam={size} is larger than the vocabulary of {vocab_size} tokens; use at most {vocab_size}")
