"""Random attention problems, and an answer to them that shares no code with the package: loops, in float64."""

import math
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from triptych.attention import Attend, AttentionMask

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Case:
    """One problem. Small numbers only, so that hypothesis shrinks a failure to something readable."""

    batch: int = 1
    kv_heads: int = 1
    group: int = 1
    queries: int = 3
    keys: int = 3
    head_size: int = 2
    causal: bool = False
    window: int | None = None
    offset: int = 0
    padding: tuple[tuple[bool, ...], ...] | None = None
    dtype: torch.dtype = torch.float32
    seed: int = 0

    def mask(self) -> AttentionMask:
        padding = None if self.padding is None else torch.tensor(self.padding)
        return AttentionMask(causal=self.causal, window=self.window, query_offset=self.offset, key_padding=padding)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, as leaves that ask for gradients."""
        generator = torch.Generator().manual_seed(self.seed)
        heads = self.kv_heads * self.group

        def draw(heads: int, length: int) -> Tensor:
            numbers = torch.randn(self.batch, heads, length, self.head_size, generator=generator)
            return numbers.to(self.dtype).requires_grad_()

        return (
            draw(heads, self.queries),
            draw(self.kv_heads, self.keys),
            draw(self.kv_heads, self.keys),
        )

    def sees(self, example: int, query: int, key: int) -> bool:
        """The mask's definition for one pair, in words."""
        position = self.offset + query
        if self.causal and key > position:
            return False
        if self.window is not None and abs(position - key) >= self.window:
            return False
        return self.padding is None or self.padding[example][key]

    def never_seen(self) -> Tensor:
        """B 1 S 1, True where no query sees the key."""
        unseen = [
            [not any(self.sees(b, i, j) for i in range(self.queries)) for j in range(self.keys)]
            for b in range(self.batch)
        ]
        return torch.tensor(unseen)[:, None, :, None]


@st.composite
def cases(draw: st.DrawFn, dtypes: tuple[torch.dtype, ...] = DTYPES) -> Case:
    batch, keys = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    row = st.lists(st.booleans(), min_size=keys, max_size=keys).map(tuple)
    padding = st.lists(row, min_size=batch, max_size=batch).map(tuple)
    return Case(
        batch=batch,
        kv_heads=draw(st.integers(1, 3)),
        group=draw(st.integers(1, 3)),
        queries=draw(st.integers(1, 7)),
        keys=keys,
        head_size=draw(st.integers(1, 9)),
        causal=draw(st.booleans()),
        window=draw(st.none() | st.integers(1, 5)),
        offset=draw(st.integers(0, 6)),
        padding=draw(st.none() | padding),
        dtype=draw(st.sampled_from(dtypes)),
        seed=draw(st.integers(0, 99)),
    )


def by_loops(case: Case, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Context, one query after another over the keys it sees; 0 where it sees none."""
    rows = []
    for b in range(case.batch):
        for h in range(case.kv_heads * case.group):
            g = h // case.group
            for i in range(case.queries):
                seen = [j for j in range(case.keys) if case.sees(b, i, j)]
                context = query[b, h, i] * 0
                if seen:
                    score = [query[b, h, i].dot(key[b, g, j]) / math.sqrt(case.head_size) for j in seen]
                    strength = [torch.exp(s - max(score).detach()) for s in score]
                    for j, strong in zip(seen, strength, strict=True):
                        context = context + strong / sum(strength) * value[b, g, j]
                rows.append(context)
    return torch.stack(rows).view(query.shape)


def solve(case: Case, backend: str, tensors: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Context, and the gradients of query, key and value for a fixed direction, from a backend or "loops"."""
    tensors = tuple(tensor.detach().clone().requires_grad_() for tensor in tensors)
    query, key, value = tensors
    if backend == "loops":
        context = by_loops(case, query, key, value)
    else:
        context = Attend(backend=backend)(query, key, value, case.mask())
    direction = torch.randn(context.shape, generator=torch.Generator().manual_seed(1)).to(context.dtype)
    return context.detach(), *torch.autograd.grad(context, tensors, direction, materialize_grads=True)
