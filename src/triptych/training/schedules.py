"""Learning-rate schedules: a factor per step, the same for every parameter group, as a LambdaLR."""

import math
from functools import partial

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from triptych.errors import UserError


def warmup_cosine(
    optimizer: Optimizer, *, total_steps: int | float, warmup_steps: int, final_fraction: float
) -> LambdaLR:
    """Linear warm-up, then half a cosine from the full rate down (Loshchilov and Hutter, arXiv 1608.03983).

    total_steps, warmup_steps: in parameter updates; the warm-up may be 0.
    final_fraction: of the full rate, reached when the run ends and kept after it.

    Raises UserError for a run without a known end, a warm-up that does not end before the run, or a fraction
    outside 0..1.
    """
    _check(total_steps, warmup_steps, final_fraction)
    # A partial, not a closure: it can be pickled, and LambdaLR saves nothing of it, so that a run resumed with
    # another length follows the new length.
    factor = partial(_cosine, total=total_steps, warmup=warmup_steps, final=final_fraction)
    return LambdaLR(optimizer, factor)


def warmup_stable_decay(
    optimizer: Optimizer,
    *,
    total_steps: int | float,
    warmup_steps: int,
    decay_fraction: float,
    final_fraction: float,
    shape: str,
) -> LambdaLR:
    """Linear warm-up, the full rate, then a decay over the last part of the run (Hägele et al., arXiv 2405.18392).

    total_steps, warmup_steps: in parameter updates; the warm-up may be 0.
    decay_fraction: of the run, counted from its end; never longer than what the warm-up leaves. 1 decays all along.
    final_fraction: of the full rate, reached when the run ends and kept after it.
    shape: "linear", or "sqrt" (1 - sqrt(progress): fast at first).

    Raises UserError for a run without a known end, a warm-up that does not end before the run, a fraction outside
    0..1, or an unknown shape.
    """
    _check(total_steps, warmup_steps, final_fraction)
    if not 0 <= decay_fraction <= 1:
        raise UserError(f"scheduler.decay_fraction={decay_fraction}; it must be in 0 to 1")
    if shape not in ("linear", "sqrt"):
        raise UserError(f"scheduler.shape={shape} is not known; use linear or sqrt")
    decay_steps = min(round(decay_fraction * total_steps), total_steps - warmup_steps)
    factor = partial(
        _stable_decay,
        total=total_steps,
        warmup=warmup_steps,
        decay=decay_steps,
        final=final_fraction,
        shape=shape,
    )
    return LambdaLR(optimizer, factor)


def _cosine(step: int, *, total: float, warmup: int, final: float) -> float:
    """Factor of update ``step`` (0 is the first)."""
    if step < warmup:
        return _warming(step, warmup)
    progress = min((step - warmup) / (total - warmup), 1.0)
    return final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2


def _stable_decay(step: int, *, total: float, warmup: int, decay: float, final: float, shape: str) -> float:
    """Factor of update ``step`` (0 is the first)."""
    if step < warmup:
        return _warming(step, warmup)
    if step < total - decay:
        return 1.0
    progress = min((step - (total - decay)) / decay, 1.0) if decay else 1.0
    return final + (1 - final) * (1 - (math.sqrt(progress) if shape == "sqrt" else progress))


def _warming(step: int, warmup: int) -> float:
    # The first update already moves: a factor of 0 would waste it.
    return (step + 1) / warmup


def _check(total_steps: int | float, warmup_steps: int, final_fraction: float) -> None:
    if not 0 < total_steps < math.inf:
        raise UserError(
            "a learning-rate schedule needs a run with a known end: set trainer.max_steps or trainer.max_epochs"
        )
    if not 0 <= warmup_steps < total_steps:
        raise UserError(
            f"scheduler.warmup_steps={warmup_steps} does not fit a run of {total_steps} steps; "
            f"it must be 0 to {total_steps - 1}"
        )
    if not 0 <= final_fraction <= 1:
        raise UserError(f"scheduler.final_fraction={final_fraction}; it must be in 0 to 1")
