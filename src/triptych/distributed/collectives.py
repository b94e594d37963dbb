"""Several processes that train one model: where this one stands among them, and what they tell one another.

Every function here says the same with one process as with many, and must be called by all of them at once.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is; 0 writes files and talks."""
    return dist.get_rank() if size() > 1 else 0


def gather(mine: Any) -> list[Any]:
    """What every process says, in the order of their ranks."""
    if size() == 1:
        return [mine]
    every: list[Any] = [None] * size()
    dist.all_gather_object(every, mine)
    return every


def mean(number: Tensor) -> Tensor:
    """The mean of every process's number."""
    if size() == 1:
        return number
    total = number.detach().clone()
    dist.all_reduce(total)
    return total / size()


def any_says(*claims: bool) -> tuple[bool, ...]:
    """Of each claim, whether any process makes it. All of them travel together: the processes wait only once."""
    if size() == 1:
        return claims
    votes = torch.tensor(claims, dtype=torch.uint8)
    dist.all_reduce(votes, op=dist.ReduceOp.MAX)
    return tuple(bool(vote) for vote in votes)
