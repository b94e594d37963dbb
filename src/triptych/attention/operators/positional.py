"""Positional attention: who attends to whom is learned per place; no query meets a key."""

from typing import Literal

import torch
from torch import Tensor, nn

from triptych.attention import naive
from triptych.attention.masks import AttentionMask
from triptych.attention.operators.base import AttentionOperator
from triptych.attention.shapes import Float
from triptych.errors import UserError


class PositionalAttend(AttentionOperator):
    """Softmax of learned scores P, one matrix per head, the same for every input (arXiv 2407.02793).

    heads, positions: sizes of P, H L L. rank: P = F1 F2^T with factors H L rank instead (factorised); None for P
    itself. Raises UserError for sizes below 1, and for inputs with other heads or more positions.
    """

    name = "positional"
    description = "learned for each pair of positions"

    def __init__(
        self, *, heads: int, positions: int, rank: int | None, kind: Literal["self", "cross"] = "self"
    ) -> None:
        super().__init__(kind=kind)
        for setting, size in (("heads", heads), ("positions", positions), ("rank", rank)):
            if size is not None and size < 1:
                raise UserError(f"attention.{setting}={size}; it must be at least 1")
        if rank is None:
            self.factors = nn.ParameterList([nn.Parameter(torch.zeros(heads, positions, positions))])
        else:
            # A product of zeros would have no gradient; drawn so, P starts at about 0.02 in size.
            size = (0.02 / rank**0.5) ** 0.5
            self.factors = nn.ParameterList(nn.Parameter(torch.randn(heads, positions, rank) * size) for _ in range(2))

    def weights_and_scores(
        self, query: Float[Tensor, "B H T D"], key: Float[Tensor, "B G S D"], mask: AttentionMask
    ) -> tuple[Float[Tensor, "B H T S"], Float[Tensor, "B H T S"]]:
        """The same map for every example, and P."""
        B, H, T, _ = query.shape
        S, start = key.shape[2], mask.query_offset
        heads, positions = self.factors[0].shape[:2]
        if heads != H or max(start + T, S) > positions:
            raise UserError(
                f"attention=positional was made for {heads} heads and {positions} positions, and here are {H} and "
                f"{max(start + T, S)}: give attention.heads={H} attention.positions={max(start + T, S)}"
            )
        P = self.factors[0][:, start : start + T]
        P = P[..., :S] if len(self.factors) == 1 else P @ self.factors[1][:, :S].mT
        score = (
            P.to(naive.upcast(query).dtype)
            .expand(B, -1, -1, -1)
            .masked_fill(~mask.visible(T, S, query.device), -torch.inf)
        )
        return naive.softmax(score), score

    def attend(
        self,
        query: Float[Tensor, "B H T D"],
        key: Float[Tensor, "B G S D"],
        value: Float[Tensor, "B G S D"],
        mask: AttentionMask,
    ) -> Float[Tensor, "B H T D"]:
        return naive.weighted_sum(self.weights_and_scores(query, key, mask)[0], value)
