"""What the other ways to attend share: Attend's interface around another rule than softmax of scores."""

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor

from triptych.attention.attend import Attend, check_shapes
from triptych.attention.masks import AttentionMask
from triptych.attention.shapes import Float
from triptych.errors import UserError


class AttentionOperator(Attend):
    """An attention with a rule of its own: it has no other backend, and maps recompute it by ``weights_and_scores``.

    Half-precision inputs are computed in float32, and the context is returned in the input's dtype.
    """

    name: ClassVar[str]
    description: ClassVar[str]

    def __init__(self, *, kind: Literal["self", "cross"] = "self") -> None:
        super().__init__(backend="naive", kind=kind)
        self.backend = self.name

    def forward(
        self,
        query: Float[Tensor, "B H T D"],
        key: Float[Tensor, "B G S D"],
        value: Float[Tensor, "B G S D"],
        mask: AttentionMask,
    ) -> Float[Tensor, "B H T D"]:
        """Context for every query; 0 for a query that may see no key."""
        check_shapes(query, key, value, mask)
        key, value = mask.zero_hidden(key, value, query.shape[2])
        with torch.autocast(query.device.type, enabled=False):
            return self.attend(query, key, value, mask).to(query.dtype)

    @abstractmethod
    def attend(
        self,
        query: Float[Tensor, "B H T D"],
        key: Float[Tensor, "B G S D"],
        value: Float[Tensor, "B G S D"],
        mask: AttentionMask,
    ) -> Float[Tensor, "B H T D"]:
        """The context, in at least float32."""

    def describe(self) -> str:
        return self.description

    def check_switch(self, backend: str) -> None:
        """Raise UserError: another backend would compute another attention."""
        raise UserError(
            f"attention={backend}: this model attends by attention={self.name}, which is another operation and not "
            "another way to compute the same; leave attention= out"
        )
