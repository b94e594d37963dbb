"""How much a head matters: by its gradient, and by what happens to the loss without it (Michel et al. 1905.10650)."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from triptych.attention import Attend
from triptych.attention.shapes import Bool, Float, Tensor
from triptych.data.batches import generator_for
from triptych.errors import UserError
from triptych.explain.evaluation.intervals import Interval, bootstrap
from triptych.maps.capture import NOTHING_RAN, CaptureError, choose_sites, probing
from triptych.tasks.base import Task

DRAWS = 2  # random heads per example that an ablation is compared with

How = Literal["zero", "mean"]


def importance(context: Float[Tensor, "B H T D"], gradient: Float[Tensor, "B H T D"]) -> Float[Tensor, "B H"]:
    """``|sum_td context * gradient|`` of every example and head; a head's importance is its mean over examples.

    context: the head's output before the output projection. gradient: of the loss of each example. The absolute value
    is taken per example: per token, what cancels out would count; per batch, examples would cancel out.
    """
    return (context * gradient).sum((-1, -2)).abs()


def normalised(importance: Float[Tensor, "*N H"]) -> Float[Tensor, "*N H"]:
    """Of length 1 over the heads of a layer, as Michel et al. compare them; zeros where all are 0."""
    return torch.nn.functional.normalize(importance, dim=-1)


@contextmanager
def contexts(model: torch.nn.Module) -> Iterator[dict[str, Tensor]]:
    """Every Attend's context (B H T D) by the module's name, filled while the model runs inside.

    They are what the model goes on with: ``torch.autograd.grad`` of a loss with respect to them works where gradients
    are on. Raises CaptureError when no attention ran inside.
    """
    seen: dict[str, Tensor] = {}

    def observe(name: str) -> Callable[[Attend, tuple, Tensor], None]:
        def hook(module: Attend, args: tuple, context: Tensor) -> None:
            seen[name] = context

        return hook

    with ExitStack() as stack:
        for site in choose_sites(model, None):
            stack.callback(site.module.register_forward_hook(observe(site.name)).remove)
        yield seen
    if not seen:
        raise CaptureError(NOTHING_RAN)


@contextmanager
def ablate(
    model: torch.nn.Module,
    heads: Mapping[str, Sequence[int] | Bool[Tensor, "B H"]],
    how: How = "zero",
    means: Mapping[str, Float[Tensor, "H D"]] | None = None,
) -> Iterator[None]:
    """Run the model without some heads: inside, the context of each is 0, or its mean.

    heads: by the Attend's name, which; or per example, a mask over all heads.
    means: what "mean" puts there; None for the mean over examples and positions of the batch that runs. Padding is in
        that one, so give means where there is any.

    Raises UserError for a site or a head that does not exist, and CaptureError when none of the sites ran inside.
    """
    if how not in ("zero", "mean"):
        raise UserError(f"heads are ablated by zero or mean, not by {how}")
    ran = False

    def hook_for(name: str) -> Callable[[Attend, tuple, Tensor], Tensor]:
        def hook(module: Attend, args: tuple, context: Tensor) -> Tensor:
            nonlocal ran
            ran = True
            without = _mask(heads[name], context, name)[:, :, None, None]
            if how == "zero":
                return context.masked_fill(without, 0.0)
            mean = context.mean((0, 2)) if means is None else means[name].to(context)
            return torch.where(without, mean[:, None], context)

        return hook

    with ExitStack() as stack:
        for site in choose_sites(model, list(heads)):
            stack.callback(site.module.register_forward_hook(hook_for(site.name)).remove)
        yield
    if not ran:
        raise CaptureError(NOTHING_RAN)


def _mask(chosen: Sequence[int] | Tensor, context: Tensor, name: str) -> Bool[Tensor, "B H"]:
    B, H = context.shape[:2]
    if isinstance(chosen, Tensor):
        if chosen.shape != (B, H):
            raise UserError(f"{name} was given a mask of {tuple(chosen.shape)} for {B} examples and {H} heads")
        return chosen.to(context.device)
    mask = torch.zeros(B, H, dtype=torch.bool, device=context.device)
    for head in chosen:
        if not 0 <= head < H:
            raise UserError(f"{name} has no head {head}; there are 0 to {H - 1}")
        mask[:, head] = True
    return mask


@dataclass(frozen=True)
class Head:
    """One head of a model, and how it is called."""

    site: str
    head: int
    name: str  # "layer 1 head 2"


@torch.no_grad()
def losses(
    task: Task,
    batches: Sequence[Any],
    without: Sequence[Mapping[str, Any]] | None = None,
    how: How = "zero",
    means: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """The loss of every example (N, nats per prediction), without the heads that ``without`` names for each batch."""
    found = []
    with probing(task.model) as model, evaluating(task):
        for index, batch in enumerate(batches):
            here = task.transfer_batch_to_device(batch, task.device, 0)
            if without is None:
                logits = task.logits(model, here)
            else:
                with ablate(model, without[index], how, means):
                    logits = task.logits(model, here)
            for at in range(len(logits)):
                found.append(float(task.loss(logits[at : at + 1], _only(here, at))[0]))
    return torch.tensor(found, dtype=torch.float64)


@dataclass(frozen=True)
class Ablation:
    """What leaving one head out does to the loss, and leaving out random other ones: differences over examples."""

    heads: str
    why: str
    how: How
    loss_change: Interval
    random: Interval
    difference: Interval  # paired: the one less the other, example by example

    @property
    def sentence(self) -> str:
        """The finding in plain words."""
        where = "0" if self.how == "zero" else "its mean"
        n, more = self.loss_change.n, "more" if self.difference.mean > 0 else "less"
        verdict = f"{more} than without random heads" if self.difference.clear else "not clearly another change"
        return (
            f"without {self.heads} ({self.why}), its output set to {where}, the loss changes by "
            f"{_said(self.loss_change)} nats over {n} example{'s' * (n != 1)}, {_said(self.random)} without random "
            f"heads: {verdict} (difference {_said(self.difference)})"
        )

    def to_json(self) -> dict[str, Any]:
        """As ``heads.json`` keeps it."""
        numbers = {name: getattr(self, name).to_json() for name in ("loss_change", "random", "difference")}
        return {"heads": self.heads, "why": self.why, "how": self.how, **numbers, "sentence": self.sentence}


def _said(found: Interval) -> str:
    ends = f"[{found.low:+.3f}, {found.high:+.3f}]" if found.known else "(one example: no interval)"
    return f"{found.mean:+.3f} {ends}"


def ablations(
    task: Task,
    batches: Sequence[Any],
    chosen: Mapping[Head, str],
    every: Sequence[Head],
    means: Mapping[str, Tensor],
) -> list[Ablation]:
    """Leave out each of the ``chosen`` heads (and why it is one), one at a time, by zero and by mean.

    batches: other examples than those that the choice was made on, or the heads would be measured on what they were
    chosen by. every: the model's heads; random ones are drawn anew for each example, ``DRAWS`` times, from those that
    are not chosen. means: see ``ablate``. Nothing where no head is left to draw.
    """
    others = [head for head in every if head not in chosen]
    if not others or not batches:
        return []
    draws = [
        _drawn(others, {head.site: len(means[head.site]) for head in every}, batches, draw) for draw in range(DRAWS)
    ]
    whole = losses(task, batches)
    found = []
    for how in ("zero", "mean"):
        random = torch.stack([losses(task, batches, draw, how, means) for draw in draws]).mean(0) - whole
        for head, why in chosen.items():
            change = losses(task, batches, [{head.site: [head.head]}] * len(batches), how, means) - whole
            intervals = [bootstrap(each.tolist()) for each in (change, random, change - random)]
            found.append(Ablation(head.name, why, how, *intervals))
    return found


def _drawn(
    others: Sequence[Head], sizes: Mapping[str, int], batches: Sequence[Any], draw: int
) -> list[dict[str, Tensor]]:
    """For each batch, one of ``others`` per example, as masks B H by site."""
    generator = generator_for(len(others), draw)
    found = []
    for batch in batches:
        count = len(getattr(batch, dataclasses.fields(batch)[0].name))
        masks = {site: torch.zeros(count, size, dtype=torch.bool) for site, size in sizes.items()}
        for row, at in enumerate(torch.randint(len(others), (count,), generator=generator).tolist()):
            masks[others[at].site][row, others[at].head] = True
        found.append(masks)
    return found


@contextmanager
def evaluating(task: Task) -> Iterator[None]:
    """The loss as evaluation has it, without smoothing; ``probing`` does the same for the model."""
    training = task.training
    task.training = False
    try:
        yield
    finally:
        task.training = training


def _only(batch: Any, at: int) -> Any:
    """One example of a batch, as a batch."""
    return type(batch)(**{each.name: getattr(batch, each.name)[at : at + 1] for each in dataclasses.fields(batch)})
