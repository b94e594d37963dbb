"""The delta rule: keys write values into a matrix and correct what was written there; queries read it."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.attention import naive
from triptych.attention.masks import AttentionMask
from triptych.attention.operators.base import AttentionOperator
from triptych.attention.shapes import Float
from triptych.errors import UserError


class DeltaAttend(AttentionOperator):
    """``W += beta (value - W phi(key)) phi(key)^T``, read as ``W phi(query)``; phi is elu + 1, scaled to length 1.

    Schlag et al. 2021, arXiv 2102.11174, section 4.2 (who scale phi to sum to 1, and let each position choose its
    beta: here beta is one learned number between 0 and 1 per layer, ``strength`` at the start). What it reads is a
    weighted sum of the values after all, so there is a map; its weights may be negative and need not sum to 1:
    entropy and rollout do not apply. Raises UserError without a causal mask: writing has an order.
    """

    name, signed = "delta", True
    description = "delta rule on elu + 1 scaled to length 1"

    def __init__(self, *, strength: float, kind: Literal["self", "cross"] = "self") -> None:
        super().__init__(kind=kind)
        if not 0 < strength < 1:
            raise UserError(f"attention.strength={strength}; it must be in 0 < strength < 1")
        self.strength = nn.Parameter(torch.logit(torch.tensor(strength)))

    def weights_and_scores(
        self, query: Float[Tensor, "B H T D"], key: Float[Tensor, "B G S D"], mask: AttentionMask
    ) -> tuple[Float[Tensor, "B H T S"], None]:
        """The effective weights: what each value adds to what each query reads."""
        read, correcting, beta = self._system(query, key, mask)
        return beta * torch.linalg.solve_triangular(correcting.mT, read.mT, upper=True, unitriangular=True).mT, None

    def attend(
        self,
        query: Float[Tensor, "B H T D"],
        key: Float[Tensor, "B G S D"],
        value: Float[Tensor, "B G S D"],
        mask: AttentionMask,
    ) -> Float[Tensor, "B H T D"]:
        read, correcting, beta = self._system(query, key, mask)
        value = naive.repeat_kv(naive.upcast(value), query.shape[1])
        # Row by row: what position j really writes is beta (value_j - what its key read before it).
        written = torch.linalg.solve_triangular(correcting, beta * value, upper=False, unitriangular=True)
        return read @ written

    def _system(self, query: Tensor, key: Tensor, mask: AttentionMask) -> tuple[Tensor, Tensor, Tensor]:
        """B H T S: what each query reads of what each key wrote; B H S S: by how much writings correct each other."""
        T, S = query.shape[2], key.shape[2]
        if not mask.causal or mask.window is not None:
            raise UserError(
                "attention=delta writes position after position: it needs a causal mask without a window, as in "
                "task=charlm; use attention=linear here"
            )
        query, key = _unit(query), naive.repeat_kv(_unit(key), query.shape[1])
        if mask.key_padding is not None:
            key = key.masked_fill(~mask.key_padding[:, None, :, None], 0.0)
        beta = self.strength.to(query.dtype).sigmoid()
        read = (query @ key.mT).masked_fill(~mask.visible(T, S, query.device), 0.0)
        before = (beta * key @ key.mT).tril(-1)
        return read, before + torch.eye(S, dtype=before.dtype, device=before.device), beta


def _unit(x: Tensor) -> Tensor:
    return F.normalize(F.elu(naive.upcast(x)) + 1, dim=-1)
