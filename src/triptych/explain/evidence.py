"""What methods read: weights, their gradients and the last block's tokens, as one output of each example had them."""

import time
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import nn

from triptych.attention.shapes import Float, Tensor
from triptych.errors import UserError
from triptych.explain.methods.class_maps import Logit
from triptych.explain.targets.subject import Subject
from triptych.maps.capture import capture, probing, sites
from triptych.models.blocks import Block

Stack = Literal["blocks", "encoder", "decoder", "cross"]


@dataclass(frozen=True)
class Evidence:
    """One forward pass of a subject, and for gradients one backward pass of the asked logit before softmax.

    model: as maps are taken from it. weights: after softmax, B H T S, by the name of their attention module, first
    layer first. gradients: with respect to those very weights. tokens, token_gradients: B N d, the last block's first
    layer norm; entered: B N d, what that block was given. seconds: what it took. error: the worst capture error.
    """

    model: nn.Module
    subject: Subject
    weights: dict[str, Float[Tensor, "B H T S"]]
    gradients: dict[str, Float[Tensor, "B H T S"]]
    tokens: Float[Tensor, "B N d"] | None
    token_gradients: Float[Tensor, "B N d"] | None
    entered: Float[Tensor, "B N d"] | None
    seconds: float
    error: float

    def stack(self, of: Stack) -> list[Tensor]:
        """Weights of one stack of layers, first layer first."""
        return [self.weights[name] for name in stack_names(self.model, of)]

    def gradient_stack(self, of: Stack) -> list[Tensor]:
        """Gradients of the same weights, in the same order."""
        return [self.gradients[name] for name in stack_names(self.model, of)]


def stack_names(model: nn.Module, of: Stack) -> list[str]:
    """Names of the attention modules of one stack, in the order in which the model was built: first layer first."""
    found = [(site.name, site.module.kind, site.name.split(".")[0]) for site in sites(model)]
    if of == "cross":
        return [name for name, kind, _ in found if kind == "cross"]
    return [name for name, kind, stack in found if kind == "self" and stack == of]


def collect_evidence(model: nn.Module, subject: Subject, *, gradients: bool) -> Evidence:
    """Run the subject through the model and keep what methods read; see ``Evidence``.

    Raises UserError for a model that has no attention.
    """
    if not sites(model):
        raise UserError("this model has no attention to explain: choose another run")
    started = time.perf_counter()
    kept: list[Tensor] = []
    entered: list[Tensor] = []
    with probing(model, grad=gradients) as probed:
        handles = []
        norm = last_norm(probed)
        if gradients and norm is not None:
            handles = [
                norm.register_forward_hook(lambda module, args, output: kept.append(output)),
                norm.register_forward_pre_hook(lambda module, args: entered.append(args[0].detach())),
            ]
        try:
            with capture(probed, grad=gradients) as maps:
                logit = subject.logit(probed)
        finally:
            for handle in handles:
                handle.remove()
        weights = {name: maps[name].weights for name in (site.name for site in sites(probed)) if name in maps}
        found: list[Tensor] = []
        if gradients:
            # Of no parameter: nothing is left behind in a model that is still being trained.
            found = list(torch.autograd.grad(logit.sum(), [*weights.values(), *kept]))
    return Evidence(
        model=probed,
        subject=subject,
        weights={name: each.detach() for name, each in weights.items()},
        gradients=dict(zip(weights, found, strict=False)),
        tokens=kept[0].detach() if kept else None,
        token_gradients=found[-1] if kept else None,
        entered=entered[0] if entered else None,
        seconds=time.perf_counter() - started,
        error=maps.error,
    )


def last_norm(model: nn.Module) -> nn.Module | None:
    """The first layer norm of the last block, where every position is read once more; None without such a block."""
    block = _last_block(model)
    return None if block is None else block.attention_norm


def _last_block(model: nn.Module) -> Block | None:
    blocks = getattr(model, "blocks", None)
    return cast(Block, blocks[-1]) if isinstance(blocks, nn.ModuleList) and len(blocks) else None


def logit_of_tokens(evidence: Evidence, read: nn.Module | None = None) -> Logit:
    """The asked logit as a function of the last block's tokens (B N d), everything before them as it was.

    read: answer with what this module puts out (B d) instead, an embedding; None for the logit.
    """
    model, entered = evidence.model, evidence.entered
    assert entered is not None
    block = _last_block(model)
    assert block is not None
    tail = copy(model)  # the last block alone: the others have done their part, and need not run for each draw
    tail._modules = dict(model._modules)
    tail.blocks = nn.ModuleList([block])

    def function(tokens: Tensor) -> Tensor:
        seen: list[Tensor] = []
        handles = [
            block.register_forward_pre_hook(lambda module, args: (entered, *args[1:])),
            block.attention_norm.register_forward_hook(lambda module, args, output: tokens),
        ]
        if read is not None:
            handles.append(read.register_forward_hook(lambda module, args, output: seen.append(output)))
        try:
            with probing(tail, grad=True) as probed:
                logit = evidence.subject.logit(probed)
        finally:
            for handle in handles:
                handle.remove()
        return logit if read is None else seen[0]

    return function


def reinitialised(model: nn.Module, seed: int) -> nn.Module:
    """A copy with every weight drawn anew: normal, with the trained matrix's own standard deviation and mean 0.

    This project's initialisation sets output projections to 0, so that a fresh model answers a constant and has no
    gradients: a control that any method would pass. Drawn at the trained scale, all paths are open and nothing is
    learned. Gains of norms become 1, biases 0.
    """
    fresh = deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in fresh.named_parameters():
            if parameter.dim() > 1:
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(drawn * parameter.float().std().cpu())
            else:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
    return fresh
