"""Augmentation: every policy keeps what an image is, small groups are drawn apart, and mixing shares the labels."""

import pytest
import torch

from triptych.data.augment import POLICIES, TOGETHER, Augment
from triptych.errors import UserError


def policy(name: str, **more: float) -> Augment:
    return Augment(policy=name, size=(12, 8), mixup=more.get("mixup", 0.0), cutmix=more.get("cutmix", 0.0), classes=3)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_policy_keeps_size_and_bytes(name: str, channels: int) -> None:
    torch.manual_seed(0)
    images = torch.randint(0, 256, (10, channels, 12, 8), dtype=torch.uint8)
    changed = policy(name).change(images)
    assert (changed.shape, changed.dtype) == (images.shape, torch.uint8)
    assert torch.equal(changed, images) == (name == "none")


def test_groups_are_changed_apart_and_alike_inside() -> None:
    torch.manual_seed(0)
    image = torch.randint(0, 256, (1, 1, 12, 8), dtype=torch.uint8)
    changed = policy("crop").change(image.expand(8 * TOGETHER, -1, -1, -1))
    groups = [group.unique(dim=0) for group in changed.split(TOGETHER)]
    assert all(len(group) == 1 for group in groups)
    assert len(torch.cat(groups).unique(dim=0)) > 3


def test_mixup_shares_labels_as_it_shares_pixels() -> None:
    torch.manual_seed(0)
    labels = torch.tensor([0, 1, 2])
    images = torch.eye(3)[:, :, None, None].expand(3, 3, 12, 8)  # each image holds its label as one-hot pixels
    mixed, shares = policy("none", mixup=1.0).mix(images, labels)
    assert torch.allclose(mixed[:, :, 0, 0], shares, atol=1e-6)
    assert torch.allclose(shares.sum(1), torch.ones(3))
    assert not torch.equal(shares, torch.eye(3))


def test_cutmix_shares_labels_by_area() -> None:
    torch.manual_seed(1)
    labels = torch.tensor([0, 1, 2])
    images = torch.eye(3)[:, :, None, None].expand(3, 3, 12, 8)
    mixed, shares = policy("none", cutmix=1.0).mix(images, labels)
    assert torch.allclose(mixed.mean((2, 3)), shares, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("flips", 0.0, 0.0), "data.augmentation=flips is not a policy"),
        (("none", -1.0, 0.0), "data.mixup=-1.0"),
        (("none", 0.0, float("nan")), "data.cutmix=nan"),
    ],
)
def test_wrong_options_are_refused(options: tuple[str, float, float], said: str) -> None:
    name, mixup, cutmix = options
    with pytest.raises(UserError, match=said):
        Augment(policy=name, size=(4, 4), mixup=mixup, cutmix=cutmix, classes=2)
