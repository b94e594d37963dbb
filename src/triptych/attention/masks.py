"""AttentionMask: which key each query may see, as a description that every backend lowers to what it needs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from triptych.attention.shapes import Bool, Float, Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionMask:
    """Which positions may attend to which; True means "may attend", everywhere.

    The conditions add up: a key is seen when every condition that is set allows it. Query ``i`` stands at
    position ``query_offset + i`` among the keys, so a cached decoding step is causal without a special case.

    causal: a query sees keys at its own position and before.
    window: a query at position p sees keys less than ``window`` positions away (with ``causal``: p - window < j <= p).
    key_padding: B S, True where the key is real, False where it is padding.
    query_offset: position of the first query among the keys, in keys; 0 or more.

    Raises ValueError for a window below 1, a negative offset, or a padding mask that is not boolean B S.
    """

    causal: bool = False
    window: int | None = None
    key_padding: Bool[Tensor, "B S"] | None = None
    query_offset: int = 0
    # What backends built from this description. A mask lives for one forward pass, and its layers share this.
    _lowered: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"window is {self.window}; it counts visible positions, so it must be at least 1")
        if self.query_offset < 0:
            raise ValueError(f"query_offset is {self.query_offset}; it must be 0 or more")
        padding = self.key_padding
        if padding is not None and (padding.dtype != torch.bool or padding.dim() != 2):
            raise ValueError(
                f"key_padding must be a boolean B S tensor (True = real key), not {padding.dtype} with "
                f"{padding.dim()} dimensions"
            )

    def describe(self) -> str:
        """The mask in words, for captions: "causal, window 16, key padding"; "none" when every key is visible."""
        parts = ["causal"] if self.causal else []
        parts += [f"window {self.window}"] if self.window is not None else []
        parts += ["key padding"] if self.key_padding is not None else []
        return ", ".join(parts) or "none"

    @property
    def _hides_nothing(self) -> bool:
        return not self.causal and self.window is None and self.key_padding is None

    def lowered(self, name: Any, build: Callable[[], Any]) -> Any:
        """``build()``, made once and kept under ``name``: the layers of one forward pass share it."""
        if name not in self._lowered:
            self._lowered[name] = build()
        return self._lowered[name]

    def visible(self, queries: int, keys: int, device: torch.device) -> Bool[Tensor, "#B 1 T S"]:
        """The mask written out: True where query i may see key j."""
        if self._hides_nothing:  # not kept: EVERYTHING outlives a forward pass and would collect every shape
            return torch.ones(1, 1, queries, keys, dtype=torch.bool, device=device)
        return self.lowered(("visible", queries, keys, device), lambda: self._write_out(queries, keys, device))

    def _write_out(self, queries: int, keys: int, device: torch.device) -> Tensor:
        query = torch.arange(self.query_offset, self.query_offset + queries, device=device)[:, None]
        key = torch.arange(keys, device=device)[None, :]
        seen = torch.ones(queries, keys, dtype=torch.bool, device=device)
        if self.causal:
            seen &= key <= query
        if self.window is not None:
            seen &= (query - key).abs() < self.window
        seen = seen[None, None]
        if self.key_padding is not None:
            seen = seen & self.key_padding[:, None, None, :]
        return seen

    def hides_by_position(self, queries: int, keys: int) -> bool:
        """Whether position alone (causal, window) hides any of ``keys`` from any of ``queries``."""
        first, last = self.query_offset, self.query_offset + queries - 1
        if self.causal and keys - 1 > first:
            return True
        if self.window is None:
            return False
        return last >= self.window or (not self.causal and keys - 1 - first >= self.window)

    def zero_hidden(
        self, key: Float[Tensor, "B G S D"], value: Float[Tensor, "B G S D"], queries: int
    ) -> tuple[Float[Tensor, "B G S D"], Float[Tensor, "B G S D"]]:
        """Zero the keys and values that no query may see: a weight of 0 times NaN or inf there would be NaN."""
        if self._hides_nothing:
            return key, value
        unseen = self.lowered(
            ("unseen", queries, key.shape[2], key.device),
            lambda: self._unseen(queries, key.shape[2], key.device),
        )
        if unseen is None:
            return key, value
        return key.masked_fill(unseen, 0.0), value.masked_fill(unseen, 0.0)

    def _unseen(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """#B 1 S 1, True where no query may see the key; None when that cannot happen."""
        first, last = self.query_offset, self.query_offset + queries - 1
        beyond = self.causal and keys - 1 > last
        passed = self.window is not None and (first >= self.window or keys - 1 - last >= self.window)
        if beyond or passed:
            return ~self.visible(queries, keys, device).any(dim=2)[..., None]
        if self.key_padding is not None:
            return ~self.key_padding[:, None, :, None]
        return None


EVERYTHING = AttentionMask()
"""Every query sees every key."""
