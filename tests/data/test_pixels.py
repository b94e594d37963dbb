"""Pictures that do not fit into the memory are decoded as they come: the same pixels, batches and statistics."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from test_images import OPTIONS, folder, opened
from test_pictures import png16

from triptych.data import pixels
from triptych.data.images import ImageData
from triptych.errors import UserError

__all__ = ["folder"]  # a fixture of the other file

BIG = [300, 300]  # twenty pictures of this size are 5.4 megabytes


def mixed(folder: Path) -> Path:
    """The folder's pictures, some of them made grey, large, or an animation."""
    Image.new("L", (90, 40), 130).save(folder / "blue" / "2.png")
    noise = Image.fromarray(np.random.default_rng(3).integers(0, 255, (500, 400, 3), dtype=np.uint8))
    noise.save(folder / "red" / "4.png")
    noise.save(folder / "red" / "5.gif", save_all=True, append_images=[Image.new("RGB", (400, 500))])
    return folder


def pair(folder: Path, **changes: Any) -> tuple[ImageData, ImageData]:
    """The same pictures held in memory, and decoded as they come."""
    options = {"path": str(folder), "size": BIG, **changes}
    held, coming = opened(**options), opened(**options, memory=1)
    assert (held.in_memory, coming.in_memory) == (True, False)
    return held, coming


@pytest.mark.parametrize("workers", [0, 2])
def test_images_that_are_decoded_as_they_come_make_the_same_batches(folder: Path, workers: int) -> None:
    held, coming = pair(mixed(folder), augmentation="crop_flip_randaugment", mixup=0.2, workers=workers)
    assert coming.format == held.format
    assert coming.fingerprint == held.fingerprint
    held.start = coming.start = 1
    n = held.batches_per_epoch + 1  # into the next epoch
    for _, first, second in zip(range(n), held.train_dataloader(), coming.train_dataloader(), strict=False):
        assert torch.equal(first.images, second.images)
        assert torch.equal(first.labels, second.labels)
    for split in ("validation", "test"):
        pairs = list(zip(held.evaluation(split), coming.evaluation(split), strict=True))
        assert all(torch.equal(first.images, second.images) for first, second in pairs)
        assert sum(len(second.labels) for _, second in pairs) == len(held.images[split])
    for first, second in zip(held.probes(3, 0), coming.probes(3, 0), strict=True):
        assert torch.equal(first.picture, second.picture)


def test_any_of_the_images_can_be_asked_for(folder: Path) -> None:
    held, coming = pair(mixed(folder))
    tensor, encoded = held.images["train"], coming.images["train"]
    assert len(encoded) == len(tensor) == 13
    for which in (0, 5, -1, slice(3, 7), slice(10, 20), torch.tensor([4, 0, 4])):
        assert torch.equal(encoded[which], tensor[which])
    with pytest.raises(IndexError):
        encoded[13]


def test_one_line_says_that_images_are_decoded_as_they_come(folder: Path) -> None:
    held, coming = (data.contents() for data in pair(folder))
    assert "decoded" not in held
    assert coming == f"{held}; decoded as they come, being more than data.memory=1 megabytes: data.workers helps"


def test_grey_images_count_one_channel_against_the_memory(folder: Path) -> None:
    for file in folder.rglob("*.png"):
        Image.new("L", (9, 6), 9).save(file)
    assert opened(path=str(folder), size=[200, 200], memory=1).in_memory  # 20 x 40,000 bytes
    assert not opened(path=str(mixed(folder)), size=[200, 200], memory=1).in_memory


def test_further_frames_are_mentioned_once_only(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, coming = pair(mixed(folder))
    assert caplog.text.count("has 2 frames") == 2  # once in each of the two sets
    coming.training.batch(0, 0)
    assert caplog.text.count("has 2 frames") == 2


def test_a_file_that_goes_away_while_training_is_named(folder: Path) -> None:
    _, coming = pair(folder)
    for file in folder.rglob("*.png"):
        file.unlink()
    with pytest.raises(UserError, match=r"\d\.png .* could not be read: No such file"):
        coming.training.batch(0, 0)


def test_statistics_over_grey_and_coloured_images_by_hand(tmp_path: Path) -> None:
    """Three training images of one size: red, black, and a grey of 51 = 0.2."""
    for name in ("a", "b"):
        (tmp_path / "set" / "train" / name).mkdir(parents=True)
        (tmp_path / "set" / "test" / name).mkdir(parents=True)
        Image.new("RGB", (4, 4), (255, 255, 255)).save(tmp_path / "set" / "test" / name / "0.png")
    Image.new("RGB", (4, 4), (255, 0, 0)).save(tmp_path / "set" / "train" / "a" / "0.png")
    Image.new("RGB", (4, 4), (0, 0, 0)).save(tmp_path / "set" / "train" / "b" / "1.png")
    Image.new("L", (4, 4), 51).save(tmp_path / "set" / "train" / "b" / "2.png")
    form = opened(path=str(tmp_path / "set"), splits={"train": "train", "validation": "test", "test": "test"}).format
    assert form.mean == pytest.approx((1.2 / 3, 0.2 / 3, 0.2 / 3))
    assert form.std == pytest.approx((np.std([1, 0, 0.2]), np.std([0, 0, 0.2]), np.std([0, 0, 0.2])))


@pytest.mark.parametrize(
    ("terminal", "patience", "shown"), [(True, 0.0, True), (True, 60.0, False), (False, 0.0, False)]
)
def test_a_bar_for_what_takes_long(
    folder: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool, patience: float, shown: bool
) -> None:
    written = io.StringIO()
    monkeypatch.setattr(pixels, "PATIENCE", patience)
    monkeypatch.setattr(pixels, "Console", lambda stderr: Console(file=written, force_terminal=terminal, width=80))
    opened(path=str(folder))
    assert ("20/20" in written.getvalue()) == ("reading images" in written.getvalue()) == shown
    assert bool(written.getvalue()) == shown


def test_pictures_of_every_kind_are_learned_from(folder: Path) -> None:
    """CMYK, palette, 16 bits, transparent, 1 x 1 and animated, side by side in one folder."""
    red = folder / "red"
    Image.new("CMYK", (9, 6), (0, 255, 255, 0)).save(red / "a.jpg")
    Image.new("RGB", (9, 6), (200, 0, 0)).convert("P").save(red / "b.png")
    Image.fromarray(np.full((6, 9), 257 * 100, np.uint16)).save(red / "c.png")
    Image.new("RGBA", (9, 6), (200, 0, 0, 0)).save(red / "d.png")
    Image.new("RGB", (1, 1), (200, 0, 0)).save(red / "e.png")
    frames = [Image.new("RGB", (9, 6), colour) for colour in ("red", "blue")]
    frames[0].save(red / "f.gif", save_all=True, append_images=frames[1:])
    data = opened(path=str(folder), size=[6, 9], splits={"train": "train", "validation": 0.01, "test": "validation"})
    means = torch.cat([data.images[split][:] for split in ("train", "validation")]).float().mean((2, 3))
    wanted = {"c": (100, 100, 100), "d": (255, 255, 255), "f": (254, 0, 0)}
    for colour in wanted.values():
        assert (means - torch.tensor(colour)).abs().amax(1).min() < 2
    assert len(means) == 26
    assert int((means[:, 0] > means[:, 2] + 100).sum()) == 10 + 4  # all of the red ones but the grey and the white


def deep_folder(tmp_path: Path, low: int, high: int, dtype: type = np.uint16) -> Path:
    """Two classes of pictures with more than 8 bits: the values ``low`` to the middle, and from there to ``high``."""
    middle = (low + high) // 2
    random = np.random.default_rng(0)
    for name, (start, end) in {"near": (low, middle), "far": (middle, high)}.items():
        (tmp_path / "set" / name).mkdir(parents=True)
        for index in range(10):
            values = random.integers(start, end, (6, 9), endpoint=True).astype(dtype)
            values[0, :2] = start, end
            Image.fromarray(values).save(tmp_path / "set" / name / f"{index}.{'tif' if dtype != np.uint16 else 'png'}")
    return tmp_path / "set"


@pytest.mark.parametrize(
    ("low", "high", "dtype"), [(10, 120, np.uint16), (0, 255, np.uint16), (0, 4095, np.uint16), (-5, 90_000, np.int32)]
)
def test_deep_pictures_keep_their_range(tmp_path: Path, low: int, high: int, dtype: type) -> None:
    """Brought to 8 bits by their type's range, pictures of 10 to 120 in 16 bits are all 0."""
    data = opened(path=str(deep_folder(tmp_path, low, high, dtype)))
    assert data.format.levels == (low, high)
    every = torch.cat([images[:] for images in data.images.values()])
    assert (int(every.min()), int(every.max())) == (0, 255)
    assert len(every.unique()) > 50
    assert f"values {low} to {high} become 0 to 255" in data.describe()
    restored = ImageData(**{**OPTIONS, "path": "/gone"})
    data.save(tmp_path)
    restored.restore(tmp_path)
    file = next((tmp_path / "set" / "far").iterdir())
    (seen,) = restored.pictures(file, "input")  # prediction sees what training saw
    assert seen.picture is not None
    assert any(torch.equal(seen.picture.movedim(-1, 0), image) for image in every)


def with_alpha(file: Path, transparent: bool) -> None:
    """The picture in the file with opacity: of all its pixels, or of all but the first."""
    values = np.asarray(Image.open(file)).astype(int)[..., None]
    alpha = np.full_like(values, 65535)
    alpha[0, 0] = 0
    file.write_bytes(png16(np.concatenate([values, alpha * (not transparent)], axis=2)))


@pytest.mark.parametrize("whole", [False, True], ids=["a pixel", "a picture"])
def test_transparent_pixels_do_not_widen_the_range(tmp_path: Path, whole: bool) -> None:
    """One transparent pixel, put on white, made the range 65,535: of 10 to 120 all would be black."""
    folder = deep_folder(tmp_path, 10, 120)
    for name in ("near", "far"):
        with_alpha(folder / name / "3.png", transparent=whole)
    data = opened(path=str(folder))
    assert data.format.levels == (10, 120)
    assert "values 10 to 120 become 0 to 255" in data.describe()


def test_pictures_that_are_transparent_everywhere_are_white(tmp_path: Path) -> None:
    folder = deep_folder(tmp_path, 10, 120)
    for file in folder.rglob("*.png"):
        with_alpha(file, transparent=True)
    data = opened(path=str(folder))
    assert all((images[:] == 255).all() for images in data.images.values())
    assert "nearly all alike" in data.describe()


def test_the_range_of_deep_pictures_can_be_said(tmp_path: Path) -> None:
    """One pixel that is far off would leave next to nothing for all others: that is said, and what to do."""
    folder = deep_folder(tmp_path, 10, 120)
    values = np.full((6, 9), 50, np.uint16)
    values[0, 0] = 65535
    for name in ("near", "far"):
        for index in range(3):
            Image.fromarray(values).save(folder / name / f"hot{index}.png")
    assert "nearly all alike" not in opened(path=str(folder), pixel_range=[10, 120]).describe()
    data = opened(path=str(folder), pixel_range=[10, 20_000_000])
    assert "nearly all alike" in data.describe()
    assert "data.pixel_range=[LOW,HIGH]" in data.describe()
    with pytest.raises(UserError, match=r"data\.pixel_range=\[5, 5\]; it must be"):
        opened(path=str(folder), pixel_range=[5, 5])


def test_deep_pictures_beside_others_have_the_range_of_their_bits(tmp_path: Path) -> None:
    """Of 255 in 8 bits and 4,095 in 12, both are white."""
    folder = deep_folder(tmp_path, 100, 4000)
    for name in ("near", "far"):
        for index in range(3):
            Image.new("L", (9, 6), 255 - index).save(folder / name / f"plain{index}.png")
    data = opened(path=str(folder))
    assert data.format.levels == (0, 4095)
    assert "have 8 bits and stay as they are" in data.describe()


def test_deep_pictures_in_the_test_split_alone_are_refused(tmp_path: Path) -> None:
    folder = deep_folder(tmp_path / "deep", 10, 120)
    for name in ("near", "far"):
        (tmp_path / "set" / "train" / name).mkdir(parents=True)
        (tmp_path / "set" / "test").mkdir(exist_ok=True)
        (folder / name).rename(tmp_path / "set" / "test" / name)
        for index in range(10):
            Image.new("L", (9, 6), index).save(tmp_path / "set" / "train" / name / f"{index}.png")
    with pytest.raises(UserError, match="has more than 8 bits per pixel, and the training pictures have not"):
        opened(path=str(tmp_path / "set"))


def test_constant_pictures_are_said_to_be_so(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for index in range(10):
            Image.new("L", (9, 6), 3).save(tmp_path / "set" / name / f"{index}.png")
    assert (
        "the training pixels are nearly all alike (standard deviation 0 of 255)"
        in opened(path=str(tmp_path / "set")).describe()
    )


def test_what_lies_beyond_the_training_range_is_counted(tmp_path: Path) -> None:
    for split, high in (("train", 100), ("test", 4000)):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
            for index in range(4):
                values = np.full((4, 4), high if index else 50, np.uint16)
                values[0, 0] = 10
                Image.fromarray(values).save(tmp_path / split / name / f"{index}.png")
    data = opened(path=str(tmp_path), splits={"train": "train", "validation": "train", "test": "test"})
    assert "6 test pictures have values beyond that range" in data.describe()


def test_a_range_for_pictures_of_8_bits_is_said_to_be_idle(folder: Path) -> None:
    assert "data.pixel_range says nothing to these pictures" in opened(path=str(folder), pixel_range=[0, 9]).describe()
