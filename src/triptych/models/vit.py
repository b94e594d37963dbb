"""The vision transformer: an image as a sequence of patches, all attending to all, and one answer for the whole."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import nn

from triptych.attention import EVERYTHING, Attend, MultiHeadAttention
from triptych.attention.multihead import check_heads
from triptych.attention.rotary import Rotary2d
from triptych.attention.shapes import Float, Tensor
from triptych.errors import UserError
from triptych.models.blocks import Activation, Block, FeedForward, initialise
from triptych.models.embeddings import AttendedStem, PatchEmbedding, PatchStem, PooledStem, sinusoidal_2d

STEMS = {"linear": PatchEmbedding, "convolutional": PatchStem, "pooled": PooledStem, "attended": AttendedStem}


class ViT(nn.Module):
    """Pre-norm encoder over patches (Dosovitskiy et al., arXiv 2010.11929).

    classes, channels, image_height, image_width: of the data, in pixels. patch_size: side of a patch in pixels.
    stem: how a patch becomes a vector: "linear" (one map of its pixels), "convolutional" (3 x 3 convolutions of stride
        2, Xiao et al., arXiv 2106.14881), "pooled" (3 x 3 convolutions, then maxima, arXiv 2104.05704), or "attended"
        (the same, then attention over channels and places, arXiv 1807.06521).
    pooling: "cls" reads the answer off a token of its own, "mean" off the mean of the patches.
    positions: "learned" or "sinusoidal" (2-D, fixed) are added to the patches, "rotary" (2-D) turns queries and keys.
    registers: tokens without a place in the image that patches may write to (Darcet et al., arXiv 2309.16588).
    feed_forward: width of the hidden layer of each block's feed-forward part.
    stochastic_depth: how often the last block is skipped for an image in training, earlier ones in proportion
        (Huang et al., arXiv 1603.09382).
    attention: makes each layer's Attend.

    The sequence is ``prefix`` tokens (CLS, registers), then the patches row by row. Raises UserError for sizes that do
    not fit together, naming the ones that would.
    """

    def __init__(
        self,
        *,
        classes: int,
        channels: int,
        image_height: int,
        image_width: int,
        patch_size: int,
        stem: Literal["linear", "convolutional", "pooled", "attended"],
        pooling: Literal["cls", "mean"],
        positions: Literal["learned", "sinusoidal", "rotary"],
        registers: int,
        depth: int,
        width: int,
        heads: int,
        kv_heads: int | None,
        feed_forward: int,
        activation: Activation,
        qk_norm: bool,
        dropout: float,
        stochastic_depth: float,
        attention: Callable[..., Attend],
    ) -> None:
        super().__init__()
        _check_options(stem=stem, pooling=pooling, positions=positions)
        _check_sizes(depth=depth, width=width, feed_forward=feed_forward)
        _check_rates(dropout=dropout, stochastic_depth=stochastic_depth)
        if registers < 0:
            raise UserError(f"model.registers={registers}; it must be at least 0")
        _check_patches(patch_size, image_height, image_width, powers=stem != "linear")
        check_heads(width, heads, heads if kv_heads is None else kv_heads)
        self.image_size = image_height, image_width
        self.channels = channels
        self.patch_size = patch_size
        self.grid = image_height // patch_size, image_width // patch_size  # rows and columns of patches
        patches = self.grid[0] * self.grid[1]
        self.prefix = (["CLS"] if pooling == "cls" else []) + [f"R{index}" for index in range(1, registers + 1)]
        self.embedding = STEMS[stem](channels=channels, patch_size=patch_size, width=width)
        self.tokens = nn.Parameter(torch.randn(len(self.prefix), width) * 0.02) if self.prefix else None
        rotary = None
        if positions == "learned":
            self.position = nn.Parameter(torch.randn(patches, width) * 0.02)
        elif positions == "sinusoidal":
            self.register_buffer("position", sinusoidal_2d(self.grid, width), persistent=False)
        else:
            rotary = Rotary2d(head_size=width // heads, grid=self.grid, prefix=len(self.prefix))
        self.has_positions = positions != "rotary"
        self.blocks = nn.ModuleList(
            Block(
                width=width,
                attention=MultiHeadAttention(
                    width=width,
                    heads=heads,
                    kv_heads=kv_heads,
                    attend=attention,
                    rotary=rotary,
                    qk_norm=qk_norm,
                ),
                feed_forward=FeedForward(width=width, hidden=feed_forward, activation=activation),
                dropout=dropout,
                stochastic_depth=stochastic_depth * index / max(1, depth - 1),
            )
            for index in range(depth)
        )
        self.norm = nn.LayerNorm(width, bias=False)
        self.predict = nn.Linear(width, classes)
        initialise(self)
        nn.init.zeros_(self.predict.weight)

    @property
    def context(self) -> int:
        """Positions of one image: prefix tokens and patches."""
        return len(self.prefix) + self.grid[0] * self.grid[1]

    @property
    def labels(self) -> list[str]:
        """A name per position: CLS, R1 ..., then each patch as "row,column" from 0,0 in the upper left corner."""
        rows, columns = self.grid
        return [*self.prefix, *(f"{row},{column}" for row in range(rows) for column in range(columns))]

    def forward(self, images: Float[Tensor, "B c h w"]) -> Float[Tensor, "B K"]:
        """Scores (logits) of the K classes. Raises ValueError for images of another size than the model's."""
        if images.shape[1:] != (self.channels, *self.image_size):
            raise ValueError(
                f"images are {tuple(images.shape[1:])} (channels, height, width), and the model is for "
                f"{(self.channels, *self.image_size)}"
            )
        x = self.embedding(images.to(self.predict.weight.dtype))
        if self.has_positions:
            x = x + self.position
        if self.tokens is not None:
            x = torch.cat([self.tokens.to(x.dtype).expand(len(x), -1, -1), x], dim=1)
        # Of the last block only CLS is read: in training the rest of it is not computed. Maps are taken in eval mode.
        read = 1 if self.training and "CLS" in self.prefix else None
        for index, block in enumerate(self.blocks):
            x = block(x, EVERYTHING, None, read if index == len(self.blocks) - 1 else None)
        pooled = x[:, 0] if "CLS" in self.prefix else x[:, len(self.prefix) :].mean(1)
        return self.predict(self.norm(pooled))


def _check_options(*, stem: str, pooling: str, positions: str) -> None:
    for name, chosen, known in (
        ("stem", stem, tuple(STEMS)),
        ("pooling", pooling, ("cls", "mean")),
        ("positions", positions, ("learned", "sinusoidal", "rotary")),
    ):
        if chosen not in known:
            raise UserError(f"model.{name}={chosen} is not known; use {', '.join(known[:-1])} or {known[-1]}")


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"model.{name}={size}; it must be at least 1")


def _check_rates(**rates: float) -> None:
    for name, rate in rates.items():
        if not 0 <= rate < 1:
            raise UserError(f"model.{name}={rate}; it must be in 0 <= {name} < 1")


def _check_patches(patch_size: int, height: int, width: int, *, powers: bool) -> None:
    """Raise UserError unless the image divides into patches, naming the sides that work."""
    fitting = [side for side in range(1, min(height, width) + 1) if height % side == 0 and width % side == 0]
    if powers:
        fitting = [side for side in fitting if side > 1 and side & (side - 1) == 0]
    if patch_size in fitting:
        return
    works = ", ".join(map(str, fitting))
    why = "a stem of convolutions needs a power of 2 that divides" if powers else "it does not divide"
    works = f"what works: {works}" if works else "none works: use model.stem=linear"
    raise UserError(f"model.patch_size={patch_size}: {why} images of {height} x {width} pixels; {works}")
