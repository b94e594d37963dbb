"""Multi-head attention: project, split into heads, attend, merge (Vaswani et al. 2017, section 3.2.2)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from triptych.attention.attend import Attend, check_device
from triptych.attention.cache import LayerCache
from triptych.attention.masks import AttentionMask
from triptych.attention.shapes import Float, Tensor
from triptych.errors import UserError

MANY = 1024  # positions from which on joining the projections of one input pays for joining their weights


class MultiHeadAttention(nn.Module):
    """H heads in parallel, each with its own projections; ``kv_heads`` of keys and values may be shared by groups.

    attend: makes the Attend of this layer (called with ``kind``); a configured ``functools.partial`` of Attend.
    kind: "self" takes keys and values from the input, "cross" from ``memory``.
    rotary: turns queries and keys by position (self-attention only); None for models that add positions themselves.
    qk_norm: layer-normalise each query and key before scoring, with a learned gain
        (Henry et al., arXiv 2010.04245; Dehghani et al., arXiv 2302.05442).

    Raises UserError when the width does not divide into heads, or heads into key/value heads.
    """

    def __init__(
        self,
        *,
        width: int,
        heads: int,
        kv_heads: int | None,
        attend: Callable[..., Attend],
        kind: str = "self",
        bias: bool = False,
        rotary: Callable[..., Tensor] | None = None,
        qk_norm: bool = False,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        check_heads(width, heads, kv_heads)
        if rotary is not None and kind != "self":
            raise ValueError("rotary positions compare places in one sequence, and cross-attention has two")
        self.heads, self.kv_heads, self.head_size = heads, kv_heads, width // heads
        self.query = nn.Linear(width, heads * self.head_size, bias=bias)
        self.key = nn.Linear(width, kv_heads * self.head_size, bias=bias)
        self.value = nn.Linear(width, kv_heads * self.head_size, bias=bias)
        self.output = nn.Linear(heads * self.head_size, width, bias=bias)
        self.query_norm = nn.LayerNorm(self.head_size, bias=False) if qk_norm else nn.Identity()
        self.key_norm = nn.LayerNorm(self.head_size, bias=False) if qk_norm else nn.Identity()
        self.rotary = rotary
        self.attend = attend(kind=kind)

    def forward(
        self,
        x: Float[Tensor, "B T C"],
        mask: AttentionMask,
        memory: Float[Tensor, "B S C"] | None = None,
        cache: LayerCache | None = None,
        first: int | None = None,
    ) -> Float[Tensor, "B t C"]:
        """The attended input. With ``cache``, ``x`` holds only the new positions and earlier ones come from it.

        In cross-attention the cache is what ``remember`` filled, and there is no ``memory``.
        first: answer only so many positions from the first on, each seeing what it would see anyway; None for all.
        """
        if self.attend.kind == "cross" and cache is not None:
            if memory is not None:
                raise ValueError("cross-attention was called with memory and a cache that holds it")
            query, (key, value) = self.query(x[:, :first]), cache.kept()
        elif (memory is None) != (self.attend.kind == "self"):
            raise ValueError(
                f"{self.attend.kind}-attention was called {'without' if memory is None else 'with'} memory"
            )
        elif memory is None and cache is None and first is None:
            query, key, value = _project(x, self.query, self.key, self.value)
            key, value = self._heads(key, value, mask.query_offset)
        else:
            query = self.query(x[:, :first])
            key, value = self._key_and_value(x if memory is None else memory, mask.query_offset)
            if cache is not None:
                key, value = cache.extend(key, value)
        # Under autocast a norm may answer in float32; a kernel wants one dtype.
        query = self.query_norm(self._split(query)).to(value.dtype)
        if self.rotary is not None:
            query = self.rotary(query, mask.query_offset)
        context = self.attend(query, key, value, mask)
        return self.output(context.transpose(1, 2).flatten(2))

    def remember(self, memory: Float[Tensor, "B S C"]) -> LayerCache:
        """Keys and values of a memory that many decoding steps will ask, computed once."""
        cache = LayerCache(memory.shape[1])
        cache.extend(*self._key_and_value(memory, 0))
        return cache

    def _key_and_value(
        self, source: Float[Tensor, "B S C"], offset: int
    ) -> tuple[Float[Tensor, "B G S D"], Float[Tensor, "B G S D"]]:
        key, value = _project(source, self.key, self.value)
        return self._heads(key, value, offset)

    def _heads(
        self, key: Float[Tensor, "B S _"], value: Float[Tensor, "B S _"], offset: int
    ) -> tuple[Float[Tensor, "B G S D"], Float[Tensor, "B G S D"]]:
        value = self._split(value)
        key = self.key_norm(self._split(key)).to(value.dtype)
        return key if self.rotary is None else self.rotary(key, offset), value

    def _split(self, x: Float[Tensor, "B T C"]) -> Float[Tensor, "B N T D"]:
        return x.unflatten(-1, (-1, self.head_size)).transpose(1, 2)

    def check_device(self, device: torch.device, dtype: torch.dtype, *, training: bool) -> None:
        """Raise UserError if this layer's backend cannot run, or train, there."""
        check_device(self.attend, self.heads, self.kv_heads, self.head_size, device, dtype, training=training)


def _project(x: Float[Tensor, "B T C"], *layers: nn.Linear) -> tuple[Tensor, ...]:
    """What each layer makes of the same input. Many positions share one product; few would only wait for the copy."""
    if x.shape[0] * x.shape[1] < MANY:
        return tuple(layer(x) for layer in layers)
    weight = torch.cat([layer.weight for layer in layers])
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    return F.linear(x, weight, bias).split([layer.out_features for layer in layers], dim=-1)


def check_heads(
    width: int, heads: int, kv_heads: int, *, even: bool = False, rotary: str = "model.positions=rotary"
) -> None:
    """Raise UserError unless the width divides into heads (of ``even`` size), and heads into key/value heads.

    rotary: the setting that wants an even size.
    """
    fitting = [n for n in range(1, min(width, 64) + 1) if width % n == 0 and not (even and width // n % 2)]
    if heads < 1 or width % heads:
        raise UserError(f"model.width={width} does not divide into model.heads={heads}; {_listed(fitting)}")
    if even and width // heads % 2:
        raise UserError(
            f"{rotary} turns pairs of channels, and width {width} / {heads} heads is odd; {_listed(fitting)}"
        )
    if kv_heads < 1 or heads % kv_heads:
        fitting = [n for n in range(1, heads + 1) if heads % n == 0]
        raise UserError(f"model.heads={heads} is no multiple of model.kv_heads={kv_heads}; {_listed(fitting)}")


def _listed(numbers: list[int]) -> str:
    return f"what works: {', '.join(map(str, numbers)) or 'no number, so change the width'}"
