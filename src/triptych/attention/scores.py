"""How a query meets a key, beside the scaled dot product: the scores of the recurrent translators.

    dot       query . key                            Luong et al. 2015, arXiv 1508.04025, equation 8
    general   query . W key                          the same
    additive  v . tanh(Wq query + Wk key)            Bahdanau et al. 2015, arXiv 1409.0473, appendix A.1.2

Each goes to ``Attend(score=...)``. The first two are scaled dot products of another query, so every backend can do
them; the third is not, so only ``naive`` can.
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from triptych.attention.shapes import Float, Tensor


class Score(nn.Module, ABC):
    """One number for each query and key; heads share what it learns.

    description: the score in words, for maps. as_dot_product: whether ``query_for_dot_product`` exists.
    """

    description: ClassVar[str]
    as_dot_product: ClassVar[bool]

    @abstractmethod
    def forward(self, query: Float[Tensor, "B H T D"], key: Float[Tensor, "B H S D"]) -> Float[Tensor, "B H T S"]:
        """Scores before softmax, before any mask."""

    def query_for_dot_product(self, query: Float[Tensor, "B H T D"]) -> Float[Tensor, "B H T D"]:
        """The query whose scaled dot products are this score of ``query``, for kernels that know only those.

        Raises ValueError for a score that is none.
        """
        raise ValueError(f"{self.description} is no dot product of another query")


class Dot(Score):
    """``query . key``, not divided by anything."""

    description = "dot product"
    as_dot_product = True

    def forward(self, query: Float[Tensor, "B H T D"], key: Float[Tensor, "B H S D"]) -> Float[Tensor, "B H T S"]:
        return query @ key.transpose(-2, -1)

    def query_for_dot_product(self, query: Float[Tensor, "B H T D"]) -> Float[Tensor, "B H T D"]:
        return query * math.sqrt(query.shape[-1])


class General(Score):
    """``query . W key``: a learned matrix says which channels of the two belong together. size: D."""

    description = "general (query W key)"
    as_dot_product = True

    def __init__(self, *, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, size))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, query: Float[Tensor, "B H T D"], key: Float[Tensor, "B H S D"]) -> Float[Tensor, "B H T S"]:
        return query @ self.weight.to(query.dtype) @ key.transpose(-2, -1)

    def query_for_dot_product(self, query: Float[Tensor, "B H T D"]) -> Float[Tensor, "B H T D"]:
        return query @ self.weight.to(query.dtype) * math.sqrt(query.shape[-1])


class Additive(Score):
    """``v . tanh(Wq query + Wk key)``: a small network between the two. size: D; hidden: its width."""

    description = "additive (v tanh(Wq query + Wk key))"
    as_dot_product = False

    def __init__(self, *, size: int, hidden: int) -> None:
        super().__init__()
        self.query_weight = nn.Parameter(torch.empty(hidden, size))
        self.key_weight = nn.Parameter(torch.empty(hidden, size))
        self.vector = nn.Parameter(torch.empty(hidden))
        nn.init.xavier_uniform_(self.query_weight)
        nn.init.xavier_uniform_(self.key_weight)
        nn.init.normal_(self.vector, std=hidden**-0.5)

    def forward(self, query: Float[Tensor, "B H T D"], key: Float[Tensor, "B H S D"]) -> Float[Tensor, "B H T S"]:
        asked = F.linear(query, self.query_weight.to(query.dtype))[..., :, None, :]  # B H T 1 hidden
        offered = F.linear(key, self.key_weight.to(key.dtype))[..., None, :, :]  # B H 1 S hidden
        return torch.tanh(asked + offered) @ self.vector.to(query.dtype)
