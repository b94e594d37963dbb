"""Labelled images: what is read from folders and sets, batches as pure functions, and bad input named in a sentence."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from triptych.data.images import Format, ImageData
from triptych.errors import UserError

OPTIONS: dict[str, Any] = {
    "source": "embedded:digits",
    "path": None,
    "config": None,
    "revision": None,
    "files": None,
    "columns": {"image": "image", "label": "label"},
    "splits": {"train": "train", "validation": "validation or 0.2", "test": "test or 0.2"},
    "layout": "auto",
    "pixel_range": None,
    "size": None,
    "mean": None,
    "std": None,
    "augmentation": "none",
    "mixup": 0.0,
    "cutmix": 0.0,
    "batch_size": 8,
    "eval_batch_size": 5,
    "seed": 0,
    "workers": 0,
    "memory": 100,
}


def opened(**changes: Any) -> ImageData:
    data = ImageData(**{**OPTIONS, **changes})
    data.open()
    return data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten pictures of 6 x 9 pixels per class: reds and blues."""
    for name, colour in (("red", (200, 0, 0)), ("blue", (0, 0, 200))):
        (tmp_path / "set" / name).mkdir(parents=True)
        for index in range(10):
            Image.new("RGB", (9, 6), (*colour[:2], colour[2] + index)).save(tmp_path / "set" / name / f"{index}.png")
    return tmp_path / "set"


@pytest.fixture(scope="module")
def digits() -> ImageData:
    return opened()


def test_digits_by_hand(digits: ImageData) -> None:
    """scikit-learn's own numbers: 1,797 images of 8 x 8, a tenth of each digit in validation and in test."""
    assert digits.sizes == {"classes": 10, "channels": 1, "image_height": 8, "image_width": 8}
    assert sum(len(images) for images in digits.images.values()) == 1797
    for split in ("validation", "test"):
        counts = digits.labels[split].bincount()
        assert counts.min() >= 17
        assert counts.max() <= 19
    every = torch.cat(list(digits.images.values())).float().flatten(1)
    from sklearn.datasets import load_digits

    assert sorted(every.mean(1).tolist()) == pytest.approx(
        sorted((load_digits().images * 255 / 16).round().mean((1, 2)).tolist()), abs=1e-4
    )


def test_no_image_stands_in_two_splits(digits: ImageData) -> None:
    rows = {split: {bytes(image.numpy()) for image in images} for split, images in digits.images.items()}
    assert not rows["train"] & rows["test"]
    assert not rows["train"] & rows["validation"]


def test_training_pixels_have_mean_0_and_deviation_1(digits: ImageData) -> None:
    normal = digits.format.normalise(digits.images["train"])
    assert float(normal.mean()) == pytest.approx(0.0, abs=1e-4)
    assert float(normal.std(unbiased=False)) == pytest.approx(1.0, abs=1e-4)


def test_mean_and_deviation_follow_the_channels(folder: Path) -> None:
    form = opened(path=str(folder)).format
    assert len(form.mean) == len(form.std) == form.channels == 3
    assert form.std[1] == 1.0  # green is the same everywhere
    given = opened(path=str(folder), mean=[0.1, 0.2, 0.3], std=[1, 2, 3]).format
    assert (given.mean, given.std) == ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))


# ---- batches ----


@pytest.mark.parametrize(
    "options", [{}, {"augmentation": "affine"}, {"augmentation": "crop_flip_randaugment", "mixup": 0.2, "cutmix": 1.0}]
)
def test_a_batch_is_a_function_of_seed_epoch_and_number(options: dict[str, Any]) -> None:
    """Asked for in any order, by another module, in the middle of other draws: the same pixels and labels."""
    first, second = opened(**options), opened(**options)
    torch.manual_seed(1)
    wanted = [first.training.batch(epoch, k) for epoch, k in ((0, 0), (0, 1), (3, 2))]
    torch.manual_seed(2)
    for (epoch, k), batch in reversed(list(zip(((0, 0), (0, 1), (3, 2)), wanted, strict=True))):
        again = second.training.batch(epoch, k)
        assert torch.equal(again.images, batch.images)
        assert torch.equal(again.labels, batch.labels)
    other = opened(**options, seed=1).training.batch(0, 0)
    assert not torch.equal(other.images, wanted[0].images)


def test_making_a_batch_leaves_the_random_state_alone() -> None:
    data = opened(augmentation="crop_flip_randaugment", mixup=1.0)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    data.training.batch(0, 0)
    assert torch.equal(torch.rand(3), expected)


def test_an_epoch_shows_each_image_once(digits: ImageData) -> None:
    batches = [digits.training.batch(2, k) for k in range(digits.batches_per_epoch)]
    seen = torch.cat([batch.images for batch in batches]).flatten(1)
    assert len(seen) == len(digits.images["train"]) // 8 * 8
    everything = digits.format.normalise(digits.images["train"]).flatten(1)
    assert len(seen.unique(dim=0)) >= len(everything.unique(dim=0)) - 7
    assert sum(batch.seen for batch in batches) == len(seen)


def test_the_loader_starts_where_a_resumed_run_does(digits: ImageData) -> None:
    n = digits.batches_per_epoch + 3
    digits.start = n
    batch = next(iter(digits.train_dataloader()))
    digits.start = 0
    assert torch.equal(batch.images, digits.training.batch(1, 3).images)


def test_evaluation_shows_every_image_once_and_unchanged() -> None:
    data = opened(augmentation="affine")
    batches = list(data.val_dataloader())
    assert torch.equal(torch.cat([batch.labels for batch in batches]), data.labels["validation"])
    assert torch.equal(torch.cat([batch.images for batch in batches]), data.format.normalise(data.images["validation"]))
    assert [len(batch.images) for batch in batches[-2:]] == [5, len(data.labels["validation"]) % 5 or 5]


def test_a_set_smaller_than_a_batch_is_one_batch(folder: Path) -> None:
    data = opened(path=str(folder), batch_size=500)
    assert data.batches_per_epoch == 1
    assert data.training.batch(4, 0).seen == len(data.images["train"])


# ---- folders and files ----


def test_a_folder_of_classes(folder: Path) -> None:
    data = opened(path=str(folder))
    assert data.format.classes == ("blue", "red")
    assert data.sizes == {"classes": 2, "channels": 3, "image_height": 6, "image_width": 9}
    assert {split: len(images) for split, images in data.images.items()} == {"train": 12, "validation": 4, "test": 4}
    for images, labels in ((data.images[s], data.labels[s]) for s in data.images):
        red = images[:, 0].flatten(1).float().mean(1) > 100
        assert torch.equal(red, labels == 1)
    assert data.describe() == (
        f"{folder}: 12 train, 4 validation, 4 test images, 6 x 9 pixels, colour, 2 classes; nothing filtered; "
        "read 20 files, 20 rows"
    )


def test_a_folder_may_name_its_splits(folder: Path) -> None:
    for split, names in (("train", range(7)), ("test", range(7, 10))):
        for colour in ("red", "blue"):
            (folder / split / colour).mkdir(parents=True)
            for index in names:
                (folder / colour / f"{index}.png").rename(folder / split / colour / f"{index}.png")
    for colour in ("red", "blue"):
        (folder / colour).rmdir()
    data = opened(path=str(folder))
    assert {split: len(images) for split, images in data.images.items()} == {"train": 11, "validation": 3, "test": 6}


def test_class_folders_without_a_picture_are_counted_and_named(folder: Path) -> None:
    """A class that somebody made a folder for and never filled is no class of the model: they should know."""
    assert "no picture" not in opened(path=str(folder)).describe()
    (folder / "green" / "later").mkdir(parents=True)
    (folder / ".cache").mkdir()
    assert "1 folder holds no picture, where folders are classes: green" in opened(path=str(folder)).describe()
    (folder / "yellow").mkdir()
    (folder / "yellow" / "list.txt").write_text("none yet", encoding="utf-8")
    data = opened(path=str(folder))
    assert "2 folders hold no picture, where folders are classes: green, yellow" in data.describe()
    assert data.format.classes == ("blue", "red")
    (folder / "red" / "0.png").rename(folder / "green" / "later" / "0.png")  # deep in it is in it
    assert "1 folder holds no picture, where folders are classes: yellow" in opened(path=str(folder)).describe()


def test_class_folders_without_a_picture_in_a_split_are_named_with_it(folder: Path) -> None:
    (folder / "train").mkdir()
    for name in ("red", "blue"):
        (folder / name).rename(folder / "train" / name)
    (folder / "train" / "green").mkdir()
    (folder / "test").mkdir()
    assert "2 folders hold no picture, where folders are classes: test, train/green" in (
        opened(path=str(folder)).describe()
    )


def test_pictures_that_are_not_chosen_are_pictures_all_the_same(folder: Path) -> None:
    """A folder whose pictures ``data.files`` leaves out is not empty."""
    (folder / "green").mkdir()
    Image.new("RGB", (9, 6)).save(folder / "green" / "0.jpg")
    line = opened(path=str(folder), files="*.png").describe()
    assert "green/0.jpg (not data.files=*.png)" in line
    assert "no picture" not in line


def test_grey_pictures_saved_in_colour_have_one_channel(folder: Path) -> None:
    for file in folder.rglob("*.png"):
        Image.open(file).convert("L").convert("RGB").save(file)
    assert opened(path=str(folder)).sizes["channels"] == 1


def test_one_coloured_picture_makes_all_of_them_colour(folder: Path) -> None:
    for file in list(folder.rglob("*.png"))[1:]:
        Image.open(file).convert("L").save(file)
    data = opened(path=str(folder))
    assert data.images["train"].shape[1] == 3


def test_sizes_that_differ_need_a_size(folder: Path) -> None:
    Image.new("RGB", (7, 7)).save(folder / "red" / "0.png")
    with pytest.raises(UserError, match=r"7 x 7 pixels.*data\.size=\[HEIGHT,WIDTH\]"):
        opened(path=str(folder))
    assert opened(path=str(folder), size=[4, 8]).sizes["image_width"] == 8


def test_stored_and_restored(folder: Path, tmp_path: Path) -> None:
    data = opened(path=str(folder))
    data.save(tmp_path)
    restored = ImageData(**{**OPTIONS, "path": "/gone"})
    restored.restore(tmp_path)
    assert restored.format == data.format
    assert restored.sizes == data.sizes
    (tmp_path / "images.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"images\.json"):
        restored.restore(tmp_path)


def test_a_picture_of_any_size_and_mode_is_shown_as_the_model_wants_it(digits: ImageData, tmp_path: Path) -> None:
    for name, mode, size in (("a.png", "RGBA", (50, 20)), ("b.jpg", "CMYK", (9, 9)), ("c.gif", "P", (1, 1))):
        Image.new(mode, size).save(tmp_path / name)
    probes = digits.pictures(tmp_path, "input")
    assert [Path(probe.example).name for probe in probes] == ["a.png", "b.jpg", "c.gif"]
    assert {probe.batch.images.shape for probe in probes} == {(1, 1, 8, 8)}
    assert {probe.picture.shape for probe in probes} == {(8, 8, 1)}


def test_cut_splits_have_the_same_share_of_every_class(tmp_path: Path) -> None:
    """Classes of 40, 20 and 10 images, a fifth for validation and for test: 8, 4 and 2 of them each time."""
    path = table(tmp_path, ["a"] * 40 + ["b"] * 20 + ["c"] * 10)
    data = opened(path=str(path))
    counts = {split: labels.bincount().tolist() for split, labels in data.labels.items()}
    assert counts == {"train": [24, 12, 6], "validation": [8, 4, 2], "test": [8, 4, 2]}


# ---- bad input ----


def damage_text(folder: Path) -> None:
    (folder / "red" / "3.png").write_text("no picture")


def damage_cut(folder: Path) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (6, 9, 3), dtype=np.uint8))
    noise.save(folder / "red" / "3.png")
    content = (folder / "red" / "3.png").read_bytes()
    (folder / "red" / "3.png").write_bytes(content[:80])


def damage_one_class(folder: Path) -> None:
    for file in (folder / "red").iterdir():
        file.unlink()
    (folder / "red").rmdir()


def damage_no_class(folder: Path) -> None:
    for name in ("red", "blue"):
        for file in (folder / name).iterdir():
            file.rename(folder / f"{name}-{file.name}")
        (folder / name).rmdir()


def damage_one_class_empty(folder: Path) -> None:
    for file in (folder / "red").iterdir():
        file.unlink()


def damage_one_class_in_train(folder: Path) -> None:
    (folder / "train").mkdir()
    (folder / "test").mkdir()
    (folder / "red").rename(folder / "test" / "red")
    (folder / "blue").rename(folder / "train" / "blue")


def damage_cut_jpeg(folder: Path) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (6, 9, 3), dtype=np.uint8))
    noise.save(folder / "red" / "3.jpg")
    content = (folder / "red" / "3.jpg").read_bytes()
    (folder / "red" / "3.jpg").write_bytes(content[: len(content) - 40])


def damage_empty(folder: Path) -> None:
    for file in folder.rglob("*.png"):
        file.unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (damage_text, r"3\.png.*is not a picture"),
        (damage_cut, r"3\.png.*cut short"),
        (damage_cut_jpeg, r"3\.jpg.*cut short"),
        (damage_one_class, r"set has pictures in one folder \(blue\).*one folder per class, two or more"),
        (
            damage_one_class_empty,
            r"set has pictures in one folder \(blue\) and no picture in red: .*one folder per class, two or more",
        ),
        (damage_one_class_in_train, r"the training images of .*set are all of the class blue: at least two classes"),
        (damage_no_class, "set has no folder of pictures.*one folder per class, two or more"),
        (damage_empty, "data.path="),
    ],
)
def test_folders_that_cannot_be_learned_from(folder: Path, damage: Callable[[Path], None], said: str) -> None:
    damage(folder)
    with pytest.raises(UserError, match=said) as caught:
        opened(path=str(folder))
    assert "\n" not in str(caught.value)


def test_one_class_in_the_training_split_alone_is_not_enough(tmp_path: Path) -> None:
    from datasets import ClassLabel

    path = table(tmp_path, [1] * 10, ClassLabel(names=["cat", "dog"]))
    with pytest.raises(UserError, match=r"data\.parquet are all of the class dog: at least two classes"):
        opened(path=str(path))


def table(tmp_path: Path, labels: list[Any], feature: Any = None) -> Path:
    """A data set in a parquet file: one small picture per label."""
    from datasets import Dataset, Features
    from datasets import Image as ImageFeature

    buffer = io.BytesIO()
    Image.new("L", (4, 4)).save(buffer, format="PNG")
    content = {"bytes": buffer.getvalue(), "path": None}
    rows = Dataset.from_dict({"image": [content] * len(labels), "label": labels})
    if feature is not None:
        rows = rows.cast(Features({"image": ImageFeature(), "label": feature}))
    rows.to_parquet(tmp_path / "data.parquet")
    return tmp_path / "data.parquet"


def test_labels_may_be_numbers_with_gaps_or_names(tmp_path: Path) -> None:
    assert opened(path=str(table(tmp_path, [10, 2, 10, 2, 10, 2, 10, 2]))).format.classes == ("2", "10")
    data = opened(path=str(table(tmp_path, ["b", "a"] * 5)))
    assert data.format.classes == ("a", "b")
    assert "kept apart" not in data.describe()


def test_labels_that_look_alike_are_kept_apart_and_said_to_be(tmp_path: Path) -> None:
    """A blank too many in some rows of a table makes two classes of one: nobody sees that in their names."""
    data = opened(path=str(table(tmp_path, ["b", " a", "a", "Caf\u00e9", "Cafe\u0301"] * 5)))
    assert data.format.classes == (" a", "Cafe\u0301", "Caf\u00e9", "a", "b")
    assert (
        "4 of the 5 classes have a name that differs from another one only in blanks or in composed letters (NFC), and "
        'are kept apart: " a", "a", "Cafe\u0301", "Caf\u00e9"'
    ) in data.describe()


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([0, 1] * 10 + [None], "has no label|whole numbers"),
        ([0.5, 1.5] * 5, "whole numbers or names"),
        ([3] * 10, "1 class"),
    ],
)
def test_labels_that_are_none(tmp_path: Path, labels: list[Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        opened(path=str(table(tmp_path, labels)))


def test_a_label_outside_the_declared_range_is_named(tmp_path: Path) -> None:
    from datasets import ClassLabel

    path = table(tmp_path, [0, 1, -1] * 5, ClassLabel(names=["cat", "dog"]))
    with pytest.raises(UserError, match=r"the label -1, which is none of the 2 classes: cat, dog"):
        opened(path=str(path))


def test_a_test_label_that_training_lacks_is_named(tmp_path: Path) -> None:
    for split, labels in (("train", [0, 1] * 6), ("test", [0, 7])):
        (tmp_path / split).mkdir()
        table(tmp_path / split, labels).rename(tmp_path / f"{split}.parquet")
        (tmp_path / split).rmdir()
    with pytest.raises(UserError, match="image 1 of test has the label 7"):
        opened(path=str(tmp_path))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 0}, "data.batch_size=0"),
        ({"memory": 0}, "data.memory=0"),
        ({"workers": -1}, "data.workers=-1"),
        ({"size": [4]}, r"data\.size=\[4\]"),
        ({"columns": {"image": "image"}}, "data.columns must name image and label"),
        ({"augmentation": "everything"}, "data.augmentation=everything"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_read(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        ImageData(**{**OPTIONS, **options})


@pytest.mark.parametrize(("name", "numbers"), [("mean", [0.1, 0.2]), ("std", [0.0])])
def test_statistics_that_do_not_fit_the_channels(name: str, numbers: list[float]) -> None:
    with pytest.raises(UserError, match=f"data.{name}="):
        opened(**{name: numbers})


def test_normalise_by_hand() -> None:
    form = Format(classes=("a", "b"), channels=2, height=1, width=1, mean=(0.5, 0.0), std=(0.5, 0.25), levels=None)
    pixels = torch.tensor([255, 51], dtype=torch.uint8).view(1, 2, 1, 1)
    assert form.normalise(pixels).flatten().tolist() == pytest.approx([1.0, 0.8], abs=1e-6)
