"""Decoding: one token after another, with the cache or by recomputing."""

import math
from collections.abc import Collection, Iterator, Sequence

import torch

from triptych.attention import KeyValueCache
from triptych.attention.shapes import Float, Int, Tensor
from triptych.errors import UserError
from triptych.models.charlm import CharLM


def window_start(length: int, context: int) -> int:
    """Where the model's window begins when ``length`` tokens stand: 0 until they pass the context.

    Then the last half is kept and its positions count from 0 again, so that the cache can be refilled once per
    half context instead of for every token.
    """
    step = context - context // 2
    return 0 if length <= context else -(-(length - context) // step) * step


def generate(
    model: CharLM,
    prompt: Sequence[int],
    *,
    length: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
    forbidden: Collection[int] = (),
    cached: bool = True,
) -> Iterator[int]:
    """Yield ``length`` token ids that continue ``prompt``, one at a time.

    temperature: 0 takes the best token (greedy); otherwise scores are divided by it before softmax.
    top_k, top_p: draw only from the k best tokens, or from the fewest whose probabilities reach p (nucleus,
        Holtzman et al., arXiv 1904.09751).
    generator: source of the draws; it lives on the CPU. forbidden: ids never to emit.
    cached: False recomputes every position each time; the tokens are the same.

    Raises UserError for options out of range or an empty prompt.
    """
    check_options(length=length, temperature=temperature, top_k=top_k, top_p=top_p)
    if not prompt:
        raise UserError("the prompt is empty: give at least one character in input=")
    device = next(model.parameters()).device
    tokens = list(prompt)
    cache = model.new_cache() if cached else None
    start = -1
    for _ in range(length):
        begin = window_start(len(tokens), model.context)
        if cache is None or begin != start:
            fresh = tokens[begin:]
            if cache is not None:
                cache.reset()
        else:
            fresh = tokens[-1:]
        start = begin
        token = draw(
            _next_scores(model, torch.tensor([fresh], device=device), cache),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            generator=generator,
            forbidden=forbidden,
        )
        tokens.append(token)
        yield token


@torch.inference_mode()
def _next_scores(model: CharLM, tokens: Int[Tensor, "B T"], cache: KeyValueCache | None) -> Float[Tensor, " V"]:
    return model(tokens, cache)[0, -1].float().cpu()


def draw(
    logits: Float[Tensor, " V"],
    *,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: torch.Generator | None,
    forbidden: Collection[int] = (),
) -> int:
    """One token id from the scores of all."""
    if forbidden:
        logits = logits.index_fill(0, torch.tensor(list(forbidden)), -torch.inf)
    if temperature == 0:
        return int(logits.argmax())
    logits = (logits - logits.max()) / temperature  # the best at 0: a tiny temperature must not overflow
    if top_k is not None and top_k < logits.numel():
        kept = logits.topk(top_k)
        logits = torch.full_like(logits, -torch.inf).scatter(0, kept.indices, kept.values)
    if top_p is not None:
        ordered = logits.softmax(0).sort(descending=True)
        # Keep a token while the ones before it have not reached p: always at least the best.
        beyond = ordered.values.cumsum(0) - ordered.values >= top_p
        logits = logits.index_fill(0, ordered.indices[beyond], -torch.inf)
    return int(torch.multinomial(logits.softmax(0), 1, generator=generator))


def check_options(*, length: int, temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Raise UserError naming the option that is out of range."""
    if length < 1:
        raise UserError(f"length={length}; it must be at least 1")
    if not 0 <= temperature < math.inf:
        raise UserError(f"temperature={temperature}; it must be 0 (greedy) or a positive number")
    if top_k is not None and top_k < 1:
        raise UserError(f"top_k={top_k}; it must be at least 1, or null for no limit")
    if top_p is not None and not 0 < top_p <= 1:
        raise UserError(f"top_p={top_p}; it must be in 0 < top_p <= 1, or null for no limit")
