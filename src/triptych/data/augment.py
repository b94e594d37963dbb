"""Named augmentation policies for images: torchvision's transforms v2, drawn anew for every few images of a batch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from triptych.environment import needs
from triptych.errors import UserError

TOGETHER = 4  # images that share one draw: a call costs about as much for four small images as for one

Size = tuple[int, int]  # height, width in pixels


def _v2() -> Any:
    """torchvision's module of transforms, which is imported when a policy is made, since it is an extra."""
    with needs("data.augmentation", "torchvision"):
        from torchvision.transforms import v2
    return v2


def _none(size: Size) -> list[nn.Module]:
    return []


def _affine(size: Size) -> list[nn.Module]:
    """Small turns, shifts, scalings and slants, for figures whose left and right matter: digits, letters."""
    v2 = _v2()
    return [
        v2.RandomAffine(
            degrees=12, translate=(0.1, 0.1), scale=(0.9, 1.1), shear=8, interpolation=v2.InterpolationMode.BILINEAR
        )
    ]


def _crop(size: Size) -> list[nn.Module]:
    """Shifts by up to an eighth of the longer side, what comes in being black (He et al., arXiv 1512.03385, 4.2)."""
    return [_v2().RandomCrop(size, padding=max(1, max(size) // 8))]


def _crop_flip(size: Size) -> list[nn.Module]:
    """Crops, and left and right exchanged half of the time."""
    return [*_crop(size), _v2().RandomHorizontalFlip()]


def _crop_flip_erase(size: Size) -> list[nn.Module]:
    """Crops, flips, and a rectangle blacked out a quarter of the time (Zhong et al., arXiv 1708.04896)."""
    return [*_crop_flip(size), _v2().RandomErasing(p=0.25, scale=(0.02, 0.25))]


def _crop_flip_randaugment(size: Size) -> list[nn.Module]:
    """The former with two of RandAugment's 14 changes of shape and colour (Cubuk et al., arXiv 1909.13719)."""
    v2 = _v2()
    return [*_crop_flip(size), v2.RandAugment(num_ops=2, magnitude=9), v2.RandomErasing(p=0.25, scale=(0.02, 0.25))]


POLICIES: dict[str, Callable[[Size], list[nn.Module]]] = {
    "none": _none,
    "affine": _affine,
    "crop": _crop,
    "crop_flip": _crop_flip,
    "crop_flip_erase": _crop_flip_erase,
    "crop_flip_randaugment": _crop_flip_randaugment,
}


class Augment:
    """One policy on a batch of bytes, and its mixing on the normalised batch. Draws from torch's global state.

    policy: a name in ``POLICIES``. size: height and width of the images.
    mixup, cutmix: the alpha of their Beta distribution, 0 for none (Zhang et al., arXiv 1710.09412; Yun et al.,
        arXiv 1905.04899); with both, each batch takes one of them, drawn evenly.
    classes: how many there are.

    Raises UserError for a policy that does not exist or an alpha below 0.
    """

    def __init__(self, *, policy: str, size: Size, mixup: float, cutmix: float, classes: int) -> None:
        check(policy, mixup, cutmix)
        transforms = POLICIES[policy](size)
        self._change = _v2().Compose(transforms) if transforms else None
        mixing: list[nn.Module] = []
        if mixup > 0:
            mixing.append(_v2().MixUp(alpha=mixup, num_classes=classes))
        if cutmix > 0:
            mixing.append(_v2().CutMix(alpha=cutmix, num_classes=classes))
        self._mix = _v2().RandomChoice(mixing) if mixing else None

    def change(self, images: Tensor) -> Tensor:
        """Images B C H W of uint8, each group of ``TOGETHER`` changed by a draw of its own."""
        if self._change is None:
            return images
        return torch.cat([self._change(part) for part in images.split(TOGETHER)])

    def mix(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Images B C H W and labels B, mixed pairwise: labels are then shares B K of the K classes."""
        return (images, labels) if self._mix is None else self._mix(images, labels)


def check(policy: str, mixup: float, cutmix: float) -> None:
    """Raise UserError for a policy that does not exist or an alpha below 0."""
    if policy not in POLICIES:
        raise UserError(f"data.augmentation={policy} is not a policy; there are: {', '.join(POLICIES)}")
    for name, alpha in (("mixup", mixup), ("cutmix", cutmix)):
        if not 0 <= alpha < float("inf"):
            raise UserError(f"data.{name}={alpha}; it must be at least 0, and 0 is none")
