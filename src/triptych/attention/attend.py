"""Attend: the one door to attention. It checks, then hands over to a backend; it is also where maps hook in."""

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from torch import nn

from triptych.attention import flash, flex, naive
from triptych.attention.masks import AttentionMask
from triptych.attention.naive import ScoreMod
from triptych.attention.scores import Score
from triptych.attention.shapes import Float, Tensor
from triptych.errors import UserError

BACKENDS: dict[str, Callable[..., Tensor]] = {
    "naive": naive.attend,
    "flash": flash.attend,
    "flex": flex.attend,
}


class Attend(nn.Module):
    """Context from queries, keys and values: ``softmax(query key^T / sqrt(D) under the mask) value``.

    score: how a query meets a key instead; see ``scores``. None for the scaled dot product.

    backend: "naive" (the equation), "flash" (fused kernels) or "flex" (FlexAttention); switch a built model with
        ``set_backend``.
    score_mod: a change to the scores before softmax, in naive and flex; see ``naive.ScoreMod``.
    implementation: a newer flash kernel for GPUs ("FA3", "FA4"), for the whole process; None is torch's own.
    kind: "self" when queries and keys come from one sequence, "cross" when from two; maps carry it.

    Weights are never returned: ``triptych.maps.capture`` recomputes them, exactly, from what this module was given.
    Attention-weight dropout does not exist. Raises UserError for a combination that no backend can do.
    """

    signed: ClassVar[bool] = False  # whether weights may be negative

    def __init__(
        self,
        *,
        backend: str,
        score_mod: ScoreMod | None = None,
        implementation: str | None = None,
        kind: Literal["self", "cross"] = "self",
        score: Score | None = None,
    ) -> None:
        super().__init__()
        self.score = score
        self.score_mod = score_mod
        self.implementation = implementation
        self.kind = kind
        self.backend = backend
        check_backend(backend, score_mod, implementation, score)
        if implementation is not None:
            flash.use_implementation(implementation)

    def forward(
        self,
        query: Float[Tensor, "B H T D"],
        key: Float[Tensor, "B G S D"],
        value: Float[Tensor, "B G S D"],
        mask: AttentionMask,
    ) -> Float[Tensor, "B H T D"]:
        """Context for every query; 0 for a query that may see no key. Called positionally: maps read the inputs."""
        check_shapes(query, key, value, mask)
        key, value = mask.zero_hidden(key, value, query.shape[2])
        attend = BACKENDS[self.backend]
        if self.score is not None:
            if self.backend == "naive":
                return attend(query, key, value, mask, self.score_mod, self.score)
            query = self.score.query_for_dot_product(query)
        if self.score_mod is None:
            return attend(query, key, value, mask)
        return attend(query, key, value, mask, self.score_mod)

    def weights_and_scores(
        self, query: Float[Tensor, "B H T D"], key: Float[Tensor, "B G S D"], mask: AttentionMask
    ) -> tuple[Float[Tensor, "B H T S"], Float[Tensor, "B H T S"] | None]:
        """What multiplies the values, and the scores before softmax where there are such: computed anew, for maps."""
        score = naive.scores(query, key, mask, self.score_mod, self.score)
        return naive.softmax(score), score

    def describe(self) -> str:
        """How weights come about, in words, for maps."""
        score = "scaled dot product" if self.score is None else self.score.description
        return score + (f", then {getattr(self.score_mod, '__name__', self.score_mod)}" if self.score_mod else "")

    def check_switch(self, backend: str) -> None:
        """Raise UserError unless ``backend`` can compute this attention."""
        check_backend(backend, self.score_mod, score=self.score)

    def kernel(self, query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask) -> str:
        """Name of what computes these inputs, for the record: the fused kernel's under flash, else the backend's."""
        return flash.kernel(query, key, value, mask) if self.backend == "flash" else self.backend

    def extra_repr(self) -> str:
        return f"backend={self.backend!r}, kind={self.kind!r}"


def check_backend(
    backend: str, score_mod: ScoreMod | None = None, implementation: str | None = None, score: Score | None = None
) -> None:
    """Raise UserError unless ``backend`` exists and can do what is asked of it."""
    if backend not in BACKENDS:
        raise UserError(f"attention={backend} is not a backend; there are: {', '.join(BACKENDS)}")
    if backend == "flash" and score_mod is not None:
        raise UserError("attention=flash cannot change scores (score_mod): use attention=naive, or flex on a GPU")
    if backend != "naive" and score is not None and not score.as_dot_product:
        raise UserError(
            f"attention={backend} computes scaled dot products, and the score here is {score.description}: use "
            "attention=naive"
        )
    if backend != "flash" and implementation is not None:
        raise UserError(f"attention.implementation={implementation} belongs to attention=flash, not {backend}")


def set_backend(model: nn.Module, backend: str) -> None:
    """Switch every Attend of a built or loaded model. All or none: raises UserError before any is changed."""
    sites = [module for module in model.modules() if isinstance(module, Attend)]
    for site in sites:
        site.check_switch(backend)
    for site in sites:
        site.backend = backend
        site.implementation = None if backend != "flash" else site.implementation


def check_device(
    site: Attend,
    heads: int,
    kv_heads: int,
    head_size: int,
    device: torch.device,
    dtype: torch.dtype,
    *,
    training: bool,
) -> None:
    """Raise UserError now if this site could not run, or train, on that device: better than in the first step."""
    if site.backend == "flex" and training and device.type == "cpu":
        raise UserError(flex.CPU_TRAINING)
    if site.backend == "flash":
        query = torch.zeros(1, heads, 8, head_size, device=device, dtype=dtype, requires_grad=training)
        key = torch.zeros(1, kv_heads, 8, head_size, device=device, dtype=dtype)
        flash.kernel(query, key, key, AttentionMask(causal=True))


def check_shapes(query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask) -> None:
    """Raise ValueError for inputs that do not fit together, a key padding of another batch included."""
    B, H, _, D = query.shape
    if key.shape != value.shape or key.shape[0] != B or key.shape[3] != D or H % key.shape[1]:
        raise ValueError(
            f"query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)} do not fit: expected "
            "B H T D, B G S D and B G S D with H a multiple of G"
        )
    if mask.key_padding is not None and mask.key_padding.shape != (B, key.shape[2]):
        raise ValueError(
            f"key_padding {tuple(mask.key_padding.shape)} does not fit the keys' B S = {(B, key.shape[2])}"
        )
