"""A small character model that attends to something: as built, blocks start as the identity."""

import functools
from typing import Any

import torch

from triptych.attention import Attend
from triptych.models.charlm import CharLM

SIZES: dict[str, Any] = {
    "vocab_size": 11,
    "context": 16,
    "depth": 2,
    "width": 16,
    "heads": 4,
    "kv_heads": 2,
    "feed_forward": 24,
    "activation": "gelu",
    "positions": "rotary",
    "qk_norm": False,
    "tied": False,
    "dropout": 0.0,
}


def untouched(*, backend: str = "flash", **changes: Any) -> CharLM:
    """As built from seed 0."""
    torch.manual_seed(0)
    return CharLM(**{**SIZES, "attention": functools.partial(Attend, backend=backend)} | changes)


def stirred(**changes: Any) -> CharLM:
    """With weights large enough that every part of it matters, in eval mode."""
    model = untouched(**changes)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    return model.eval()
