"""See what a model attends to, or change it: contexts over forward hooks of ``Attend``. The core knows nothing of them.

The fast kernel never stores its weights, so they are recomputed from the very queries and keys it was given, and
every capture checks itself: weights times values must equal the context that the kernel returned.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from triptych.attention import Attend, AttentionMask, naive
from triptych.attention.shapes import Bool, Float
from triptych.errors import UserError

# How far weights @ value may be from the kernel's own context, relative to the largest context (or 1).
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


NOTHING_RAN = "no attention ran inside: run the model there, and the original, since a compiled copy skips hooks"


class CaptureError(RuntimeError):
    """The recomputed weights do not reproduce what the kernel returned: such a map would be wrong."""


@dataclass(frozen=True)
class Captured:
    """One attention operation as it ran on one batch.

    ``weights`` are after softmax, ``scores`` before it (None unless asked for, and where the attention has none), both
    for the chosen heads, in the order of ``heads``. Padding is still there: ``example`` cuts it away.
    """

    site: str
    layer: int
    kind: str
    heads: tuple[int, ...]
    weights: Float[Tensor, "B N T S"]
    scores: Float[Tensor, "B N T S"] | None
    mask: AttentionMask
    backend: str
    kernel: str
    score: str  # how a query meets a key, in words
    error: float

    def example(self, index: int) -> tuple[Float[Tensor, "N t s"], Float[Tensor, "N t s"] | None, Bool[Tensor, "t s"]]:
        """Weights, scores and what the mask let be seen, of one example without its padding.

        Padded keys go, and in self-attention the queries at the same positions.
        """
        T, S = self.weights.shape[-2:]
        visible = self.mask.visible(T, S, self.weights.device).expand(self.weights.shape[0], 1, T, S)[index]
        maps = [self.weights[index], visible] + ([] if self.scores is None else [self.scores[index]])
        if self.mask.key_padding is not None:
            real = self.mask.key_padding[index]
            maps = [each[..., real] for each in maps]
            if self.kind == "self" and T == S:
                maps = [each[:, real] for each in maps]
        return maps[0], maps[2] if self.scores is not None else None, maps[1][0]


class Captures(dict[str, Captured]):
    """What a capture saw, by the name of the Attend module. Filled while the model runs inside the context."""

    @property
    def error(self) -> float:
        """The worst difference between weights times values and the kernels' contexts."""
        return max((captured.error for captured in self.values()), default=0.0)


@dataclass(frozen=True)
class Site:
    """An Attend module and its place: ``layer`` counts the sites of the same stack and kind from 0."""

    name: str
    layer: int
    module: Attend


def sites(model: nn.Module) -> list[Site]:
    """Every Attend of the model in the order it was built."""
    found: list[Site] = []
    counts: dict[tuple[str, str], int] = {}
    for name, module in model.named_modules():
        if isinstance(module, Attend):
            stack = (name.split(".")[0], module.kind)
            found.append(Site(name, counts.get(stack, 0), module))
            counts[stack] = counts.get(stack, 0) + 1
    return found


def backends(model: nn.Module) -> str:
    """What computes the model's attention, in words: "flash"; "none" for a model that has none."""
    return ", ".join(sorted({site.module.backend for site in sites(model)})) or "none"


def signed(model: nn.Module) -> bool:
    """Whether some of the model's weights may be negative, so that shares, entropies and rollout do not apply."""
    return any(site.module.signed for site in sites(model))


def choose_sites(model: nn.Module, layers: Sequence[int | str] | None) -> list[Site]:
    """The sites that ``layers`` names, by depth (negative counts from the end) or by module name; None for all.

    Raises UserError for a layer that does not exist.
    """
    every = sites(model)
    if layers is None:
        return every
    depth = 1 + max((site.layer for site in every), default=-1)
    chosen: list[Site] = []
    for layer in layers:
        if isinstance(layer, int):
            matching = [site for site in every if site.layer == (layer + depth if layer < 0 else layer)]
        else:
            matching = [site for site in every if site.name == layer]
        if not matching:
            names = ", ".join(site.name for site in every)
            raise UserError(f"maps.layers: there is no layer {layer}; there are 0 to {depth - 1}, or by name: {names}")
        chosen += [site for site in matching if site not in chosen]
    return chosen


def choose_heads(count: int, heads: Sequence[int] | None) -> tuple[int, ...]:
    """The heads asked for (None for all). Raises UserError for one that does not exist."""
    if heads is None:
        return tuple(range(count))
    for head in heads:
        if not 0 <= head < count:
            raise UserError(f"maps.heads: there is no head {head}; there are 0 to {count - 1}")
    return tuple(heads)


@contextmanager
def capture(
    model: nn.Module,
    layers: Sequence[int | str] | None = None,
    heads: Sequence[int] | None = None,
    *,
    scores: bool = False,
    grad: bool = False,
) -> Iterator[Captures]:
    """Observe attention while the model runs: ``with capture(model) as maps: model(x)``.

    layers, heads: what to observe; None for all. scores: keep the scores before softmax too.
    grad: put the weights into the graph, so that ``weights.grad`` holds the gradient with respect to the very tensor
        that multiplies the values. The context is then the recomputed one, which was checked against the kernel's.

    Works on the original module, also while a compiled copy of it trains. A site that runs again overwrites what it
    left before. Raises UserError for layers or heads that do not exist, and CaptureError when weights times values
    are not the kernel's context, or when no attention ran inside at all.
    """
    if grad and heads is not None:
        raise UserError("capture(grad=True) keeps the very tensor that multiplies the values: it takes all heads")
    seen = Captures()
    with ExitStack() as stack:
        for site in choose_sites(model, layers):
            hook = _observe(site, heads, seen, scores=scores, grad=grad)
            stack.callback(site.module.register_forward_hook(hook).remove)
        yield seen
    if not seen:
        raise CaptureError(NOTHING_RAN)


@contextmanager
def intervene(
    model: nn.Module,
    edit: Callable[[Tensor, Site], Tensor],
    layers: Sequence[int | str] | None = None,
    heads: Sequence[int] | None = None,
) -> Iterator[None]:
    """Run the model with other weights: inside, each context is ``edit(weights, site) @ value``.

    ``edit`` takes the weights of the chosen heads (B N T S) and returns as many. Other heads keep theirs.
    Raises UserError for layers or heads that do not exist, ValueError when ``edit`` changes the shape, and
    CaptureError when no attention ran inside.
    """
    ran = False

    def hook_for(site: Site) -> Callable:
        def hook(module: Attend, args: tuple, context: Tensor) -> Tensor:
            nonlocal ran
            ran = True
            query, key, value, mask = _inputs(args)
            weights, _ = module.weights_and_scores(query, key, mask)
            chosen = list(choose_heads(weights.shape[1], heads))
            edited = edit(weights[:, chosen], site)
            if edited.shape != weights[:, chosen].shape:
                raise ValueError(f"edit returned {tuple(edited.shape)} for {tuple(weights[:, chosen].shape)}")
            if len(chosen) < weights.shape[1]:
                edited = weights.index_copy(1, torch.tensor(chosen, device=weights.device), edited)
            return naive.weighted_sum(edited, value).to(context.dtype)

        return hook

    with ExitStack() as stack:
        for site in choose_sites(model, layers):
            stack.callback(site.module.register_forward_hook(hook_for(site)).remove)
        yield
    if not ran:
        raise CaptureError(NOTHING_RAN)


@contextmanager
def probing(model: nn.Module, *, grad: bool = False) -> Iterator[nn.Module]:
    """The model as maps are taken from it: eval mode, float32, outside autocast, without touching random state.

    Yields the model itself, or a float32 copy where its parameters are of another precision.
    """
    other = any(parameter.dtype != torch.float32 for parameter in model.parameters())
    probed = deepcopy(model).float() if other else model
    device = next(model.parameters()).device
    training = {name: module.training for name, module in model.named_modules()}
    precision = torch.get_float32_matmul_precision()
    model.eval()
    probed.eval()
    torch.set_float32_matmul_precision("highest")
    try:
        with (
            torch.autocast(device.type, enabled=False),
            torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
            torch.set_grad_enabled(grad),
        ):
            yield probed
    finally:
        torch.set_float32_matmul_precision(precision)
        for name, module in model.named_modules():
            module.training = training[name]


def _observe(
    site: Site, heads: Sequence[int] | None, seen: Captures, *, scores: bool, grad: bool
) -> Callable[[nn.Module, tuple, Tensor], Tensor | None]:
    def hook(module: nn.Module, args: tuple, context: Tensor) -> Tensor | None:
        assert isinstance(module, Attend)
        query, key, value, mask = _inputs(args)
        chosen = choose_heads(query.shape[1], heads)
        with torch.set_grad_enabled(grad):
            weights, score = module.weights_and_scores(query, key, mask)
            if grad and weights.requires_grad:
                weights.retain_grad()
            recomputed = naive.weighted_sum(weights, value)
        error = _difference(recomputed, context, site)
        seen[site.name] = Captured(
            site=site.name,
            layer=site.layer,
            kind=module.kind,
            heads=chosen,
            weights=weights if grad else weights[:, list(chosen)],
            scores=score[:, list(chosen)] if scores and score is not None else None,
            mask=mask,
            backend=module.backend,
            kernel=module.kernel(query, key, value, mask),
            score=module.describe(),
            error=error,
        )
        return recomputed.to(context.dtype) if grad else None

    return hook


def _inputs(args: tuple) -> tuple[Tensor, Tensor, Tensor, AttentionMask]:
    query, key, value, mask = args
    key, value = mask.zero_hidden(key, value, query.shape[2])
    return query, key, value, mask


def _difference(recomputed: Tensor, context: Tensor, site: Site) -> float:
    wanted = context.detach().to(recomputed.dtype)
    error = (recomputed.detach() - wanted).abs().max().item()
    allowed = TOLERANCE[context.dtype] * max(1.0, wanted.abs().max().item())
    if not error <= allowed:
        raise CaptureError(
            f"{site.name}: weights times values differ from the {site.module.backend} context by {error:.2e} "
            f"(at most {allowed:.2e} in {context.dtype})"
        )
    return error
