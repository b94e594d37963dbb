"""Optimizers: AdamW, and Muon for the hidden matrices with AdamW for the rest, as one optimizer object."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw as adamw_update

from triptych.errors import UserError

QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of one Newton-Schulz iteration, singular value s -> a s + b s^3 + c s^5 (Jordan et al. 2024): steep
at 0, so that few iterations do; large values then wander between 0.7 and 1.2 instead of converging to 1."""


def adamw(model: nn.Module, *, lr: float, betas: Sequence[float], eps: float, weight_decay: float) -> torch.optim.AdamW:
    """Fused AdamW (Loshchilov and Hutter, arXiv 1711.05101) for every trainable parameter of ``model``.

    Weight decay acts on the matrices and kernels of linear, convolution and recurrent layers; not on embeddings,
    positions, gains and biases, which no other layer can scale back. Raises UserError for a number outside its range.
    """
    _check(lr=lr, eps=eps, weight_decay=weight_decay, fractions={"betas": betas})
    decayed, undecayed = _by_decay(model, [p for p in model.parameters() if p.requires_grad])
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": undecayed, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=lr,
        betas=_pair(betas),
        eps=eps,
        fused=True,
    )
    # Fused AdamW would undo the loss scale of mixed precision inside its step, where clipping comes too late:
    # Lightning then refuses to clip. This leaves it to the scaler.
    optimizer._step_supports_amp_scaling = False
    return optimizer


def muon(
    model: nn.Module,
    *,
    lr: float,
    momentum: float,
    nesterov: bool,
    steps: int,
    weight_decay: float,
    adamw_lr: float,
    betas: Sequence[float],
    eps: float,
) -> "MuonAdamW":
    """Muon for the hidden matrices of ``model`` (see ``hidden_matrices``), fused AdamW for the rest.

    The arguments are MuonAdamW's. Raises UserError for a number outside its range or a model without hidden
    matrices.
    """
    hidden = hidden_matrices(model)
    if not hidden:
        raise UserError("optimizer=muon finds no hidden matrices in this model; use optimizer=adamw")
    taken = set(hidden)
    decayed, undecayed = _by_decay(model, [p for p in model.parameters() if p.requires_grad and p not in taken])
    return MuonAdamW(
        hidden=hidden,
        decayed=decayed,
        undecayed=undecayed,
        lr=lr,
        momentum=momentum,
        nesterov=nesterov,
        steps=steps,
        weight_decay=weight_decay,
        adamw_lr=adamw_lr,
        betas=betas,
        eps=eps,
    )


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The trainable matrices that map features to features: weights of linear layers inside repeated blocks.

    Every model here keeps its blocks in an ``nn.ModuleList``, and what meets the data outside of it: embeddings,
    patch projection, prediction. Those rows belong to single tokens, pixels or classes, which see very different
    amounts of gradient, and an update with equal singular values would ignore that (Jordan et al. 2024). A weight
    that is shared with such a layer is not hidden either.
    """
    inside: dict[nn.Parameter, None] = {}
    within = {id(m) for blocks in model.modules() if isinstance(blocks, nn.ModuleList) for m in blocks.modules()}
    for module in model.modules():
        if isinstance(module, nn.Linear) and id(module) in within and module.weight.requires_grad:
            inside[cast(nn.Parameter, module.weight)] = None
    outside = {
        parameter
        for module in model.modules()
        if id(module) not in within or isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
    }
    return [weight for weight in inside if weight not in outside]


class MuonAdamW(torch.optim.Optimizer):
    """Muon for matrices and AdamW for everything else, in one object: one step, one state, one schedule.

    Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) follows the gradient's momentum with all its
    singular values moved to about 1. It updates as ``torch.optim.Muon`` does, but takes all matrices of one shape at
    once: at the size of a small model the loop over matrices costs more than the arithmetic.

    hidden: the matrices for Muon. Its learning rate is ``lr * sqrt(max(1, rows / columns))``; momentum, nesterov and
        steps (Newton-Schulz iterations) are its own.
    decayed, undecayed: the parameters for AdamW, with and without weight decay; adamw_lr, betas and eps are its own.
    weight_decay: times the group's learning rate, for hidden and decayed.

    Each group keeps its own learning rate, and a schedule (a factor) scales them alike. Raises UserError for a number
    outside its range, ValueError for a hidden parameter that is no matrix.
    """

    def __init__(
        self,
        *,
        hidden: Iterable[nn.Parameter],
        decayed: Iterable[nn.Parameter],
        undecayed: Iterable[nn.Parameter],
        lr: float,
        momentum: float,
        nesterov: bool,
        steps: int,
        weight_decay: float,
        adamw_lr: float,
        betas: Sequence[float],
        eps: float,
    ) -> None:
        _check(
            lr=lr,
            adamw_lr=adamw_lr,
            eps=eps,
            weight_decay=weight_decay,
            fractions={"momentum": [momentum], "betas": betas},
        )
        if not 1 <= steps <= 20:
            raise UserError(f"optimizer.steps={steps}; Newton-Schulz iterations must be 1 to 20 (5 is usual)")
        matrices = list(hidden)
        if any(matrix.dim() != 2 for matrix in matrices):
            raise ValueError("Muon orthogonalises matrices; parameters of other shapes belong to AdamW")
        rule_muon = {"rule": "muon", "momentum": momentum, "nesterov": nesterov, "steps": steps}
        # "fused" makes torch put AdamW's step counters on the parameters' device when a state is loaded.
        rule_adamw = {"rule": "adamw", "betas": _pair(betas), "eps": eps, "fused": True}
        groups: list[dict[str, Any]] = [
            {"params": matrices, "lr": lr, "weight_decay": weight_decay, **rule_muon},
            {"params": list(decayed), "lr": adamw_lr, "weight_decay": weight_decay, **rule_adamw},
            {"params": list(undecayed), "lr": adamw_lr, "weight_decay": 0.0, **rule_adamw},
        ]
        super().__init__([group for group in groups if group["params"]], {})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient. Returns the loss where ``closure`` computes it."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
                gradients = [cast(Tensor, parameter.grad) for parameter in parameters]
                if parameters:
                    update = self._muon if group["rule"] == "muon" else self._adamw
                    update(group, parameters, gradients)
        return loss

    def _muon(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        buffers = [self._state(parameter, "momentum_buffer")["momentum_buffer"] for parameter in parameters]
        torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
        directions: Sequence[Tensor] = buffers
        if group["nesterov"]:
            directions = torch._foreach_lerp(gradients, buffers, group["momentum"])
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        for members in _alike(parameters):
            rows, columns = parameters[members[0]].shape
            tall = rows > columns
            stack = torch.stack([directions[i].mT if tall else directions[i] for i in members])
            update = orthogonalise(stack, steps=group["steps"]).to(stack.dtype)
            update *= -group["lr"] * math.sqrt(max(1.0, rows / columns))
            torch._foreach_add_([parameters[i] for i in members], (update.mT if tall else update).unbind())

    def _adamw(self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        states = [self._state(parameter, "exp_avg", "exp_avg_sq", counted=True) for parameter in parameters]
        beta1, beta2 = group["betas"]
        adamw_update(
            parameters,
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _state(self, parameter: Tensor, *names: str, counted: bool = False) -> dict[str, Tensor]:
        """What is remembered about ``parameter``; zeros before its first update."""
        state = self.state[parameter]
        if not state:
            state.update({name: torch.zeros_like(parameter) for name in names})
            if counted:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        return state


def orthogonalise(matrices: Tensor, *, steps: int) -> Tensor:
    """B R C matrices, R <= C, with every singular value moved to about 1: Newton-Schulz on the whole stack.

    In bfloat16 where the device multiplies it natively, else in float32, and returned in that dtype: each iteration
    corrects the rounding of the one before.
    """
    a, b, c = QUINTIC
    # The Frobenius norm bounds the largest singular value.
    norm = torch.linalg.matrix_norm(matrices.float(), keepdim=True).clamp(min=1e-7)
    x = (matrices / norm).to(_dtype(matrices.device))
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _dtype(device: torch.device) -> torch.dtype:
    if device.type == "cpu":
        capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # older torch cannot tell
        native = any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))
    elif device.type == "cuda":
        native = torch.cuda.get_device_capability(device) >= (8, 0) or torch.version.hip is not None
    else:
        native = False
    return torch.bfloat16 if native else torch.float32


def _alike(matrices: list[Tensor]) -> list[list[int]]:
    """Indices of ``matrices``, in lists of one shape, dtype and device."""
    alike: dict[Any, list[int]] = defaultdict(list)
    for index, matrix in enumerate(matrices):
        alike[matrix.shape, matrix.dtype, matrix.device].append(index)
    return list(alike.values())


def _by_decay(model: nn.Module, parameters: list[nn.Parameter]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """``parameters`` that weight decay acts on, and the others."""
    layers = (nn.Linear, nn.modules.conv._ConvNd, nn.RNNBase)
    matrices, embeddings = (
        {p for m in model.modules() if isinstance(m, kind) for p in m.parameters(recurse=False) if p.dim() > 1}
        for kind in (layers, nn.Embedding)
    )
    decayed = matrices - embeddings  # a tied matrix is an embedding first
    return [p for p in parameters if p in decayed], [p for p in parameters if p not in decayed]


def _pair(betas: Sequence[float]) -> tuple[float, float]:
    # Plain numbers: a list from the configuration would make checkpoints that weights_only refuses.
    first, second = betas
    return float(first), float(second)


def _check(*, fractions: dict[str, Sequence[float]], **numbers: float) -> None:
    for name, number in numbers.items():
        if not 0 <= number < math.inf:
            raise UserError(f"optimizer.{name}={number}; it must be a number of at least 0")
    for name, values in fractions.items():
        if not all(0 <= value < 1 for value in values):
            shown = ", ".join(str(value) for value in values)
            raise UserError(f"optimizer.{name}={shown}; it must be in 0 <= {name} < 1")
    if "betas" in fractions and len(fractions["betas"]) != 2:
        raise UserError("optimizer.betas needs two numbers, such as [0.9, 0.95]")
