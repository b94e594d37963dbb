"""Attention through FlexAttention: a compiled kernel that also takes a change to the scores before softmax.

Dong et al. 2024, arXiv 2412.05496. Compiles on the first call of each shape (about 20 s on a CPU), has a backward
pass on GPUs only, and skips the blocks that the mask hides.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, no_type_check

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from triptych.attention.masks import AttentionMask
from triptych.attention.naive import ScoreMod
from triptych.attention.shapes import Float, Tensor
from triptych.errors import UserError

COMPILATIONS = 64  # kinds of call (shapes, masks, dtypes) in one process; torch's own limit of 8 is soon reached
CPU_TRAINING = (
    "attention=flex cannot train on a CPU (FlexAttention has no backward pass there): train with attention=flash "
    "(or attention=naive where a score_mod is set), or on a GPU; a trained model evaluates with flex on a CPU"
)


def attend(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B G S D"],
    value: Float[Tensor, "B G S D"],
    mask: AttentionMask,
    score_mod: ScoreMod | None = None,
) -> Float[Tensor, "B H T D"]:
    """Context from FlexAttention. On a CPU, raises UserError for float64 and when a gradient is asked for."""
    if query.device.type == "cpu" and query.dtype == torch.float64:
        raise UserError("attention=flex has no float64 on a CPU: use attention=naive or flash, or float32")
    needs_grad = any(tensor.requires_grad for tensor in (query, key, value))
    if query.device.type == "cpu" and torch.is_grad_enabled() and needs_grad:
        raise UserError(CPU_TRAINING)
    B, H, T, _ = query.shape
    S = key.shape[2]
    block_mask = None
    if mask.hides_by_position(T, S) or mask.key_padding is not None:
        block_mask = _block_mask(mask, B, T, S, query.device)
    # Inside the graph of a compiled model it is compiled with it.
    call: Callable[..., Any] = flex_attention
    if not torch.compiler.is_compiling():
        call = _compiled()
    return call(
        query,
        key,
        value,
        score_mod=_at_offset(score_mod, mask.query_offset, query.device),
        block_mask=block_mask,
        enable_gqa=key.shape[1] != H,
    )


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., Any]:
    # fullgraph: past the limit, an error instead of the plain computation. A step of cached decoding costs no
    # compilation: sizes become variables of the kernel at their second value, offsets are tensors. A number in a
    # score_mod stays a constant (specialize_float): as a variable the kernel cannot be built.
    compiled = torch.compile(flex_attention, fullgraph=True)

    def call(*args: Any, **options: Any) -> Any:
        with torch._dynamo.config.patch(recompile_limit=COMPILATIONS, specialize_float=True):
            try:
                return compiled(*args, **options)
            except torch._dynamo.exc.TorchDynamoException as error:
                reason = str(error).strip().splitlines()[0]
                raise UserError(
                    f"attention=flex could not be compiled here ({reason}): use attention=naive or flash"
                ) from error

    return call


@lru_cache(maxsize=64)
def _at_offset(score_mod: ScoreMod | None, offset: int, device: torch.device) -> ScoreMod | None:
    """FlexAttention counts queries from 0; ours stand at ``offset``."""
    if score_mod is None or offset == 0:
        return score_mod
    first = _number(offset, device)
    return lambda score, b, h, q, k: score_mod(score, b, h, q + first, k)


def _block_mask(mask: AttentionMask, batch: int, queries: int, keys: int, device: torch.device) -> BlockMask:
    """The description as a BlockMask: kept for ever where positions decide it, for one forward pass under padding."""
    if mask.key_padding is None:
        return _positional(mask.causal, mask.window, mask.query_offset, queries, keys, device)

    def build() -> BlockMask:
        assert mask.key_padding is not None
        padding = _of_fixed_size(mask.key_padding)
        by_position = _rule(mask.causal, mask.window, mask.query_offset, device)
        return create_block_mask(
            lambda b, h, q, k: by_position(b, h, q, k) & padding[b, k],
            batch,
            None,
            queries,
            keys,
            device=device,
        )

    return mask.lowered(("flex", queries, keys), build)


def _of_fixed_size(padding: Tensor) -> Tensor:
    """The same marks in a table whose sides are powers of two: each size of it is one kernel.

    With sizes that vary, the CPU kernel is sometimes generated with a name that does not exist (torch 2.14 replaces
    one size's name inside another's), and compiling it fails.
    """
    sides = [1 << (side - 1).bit_length() for side in padding.shape]
    table = padding.new_zeros(sides)
    table[: padding.shape[0], : padding.shape[1]] = padding
    torch._dynamo.mark_static(table)
    return table


@lru_cache(maxsize=64)
def _positional(
    causal: bool, window: int | None, offset: int, queries: int, keys: int, device: torch.device
) -> BlockMask:
    # Kept, so it must serve training too: what inference mode makes, backward refuses.
    with torch.inference_mode(False):
        rule = _rule(causal, window, offset, device)
        return create_block_mask(rule, None, None, queries, keys, device=device)


def _rule(
    causal: bool, window: int | None, offset: int, device: torch.device
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    first = _number(offset, device)
    width = None if window is None else _number(window, device)

    @no_type_check  # compiled: a run-time check inside would break the trace
    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = k >= 0
        if causal:
            seen = seen & (k <= q + first)
        if width is not None:
            seen = seen & (k > q + first - width) & (k < q + first + width)
        return seen

    return rule


def _number(value: int, device: torch.device) -> Tensor | int:
    """A number that changes between calls, as a tensor: the kernel reads it, so no new one is compiled."""
    if torch.compiler.is_compiling():  # a whole model: its graph has the number as a constant
        return value
    with torch.inference_mode(False):
        return torch.tensor(value, device=device)
