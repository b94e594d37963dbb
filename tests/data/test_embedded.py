"""The embedded sets: always the same, clean, and nothing of what is tested stands in what is trained on."""

import hashlib
import subprocess
import sys
import unicodedata
from collections import Counter

import pytest

from triptych.data import embedded
from triptych.errors import UserError


def texts() -> dict[str, str]:
    return {split: columns["text"][0] for split, columns in embedded.python_reference().items()}


def test_size_and_shares() -> None:
    # Enough to train on, and splits as the default recipe expects them.
    sizes = {split: len(text) for split, text in texts().items()}
    assert list(sizes) == ["train", "validation", "test"]
    assert sum(sizes.values()) > 250_000
    for split in ("validation", "test"):
        assert 0.03 < sizes[split] / sum(sizes.values()) <= 0.05


def test_same_in_another_process() -> None:
    # Nothing may depend on the order of sets or on Python's own, salted, hash.
    script = "import triptych.data.embedded as e, sys; sys.stdout.write(repr(e.python_reference()))"
    command = [sys.executable, "-X", "utf8", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True)
    assert done.stdout == repr(embedded.python_reference())


def test_no_passage_of_validation_or_test_stands_in_train() -> None:
    # The topics repeat each other word for word; what a model has read must not count as prediction.
    found = texts()
    train = found["train"]
    known = {train[start : start + 100] for start in range(len(train) - 100)}
    for split in ("validation", "test"):
        text = found[split]
        windows = [text[start : start + 100] in known for start in range(len(text) - 100)]
        assert sum(windows) / len(windows) < 0.01


def test_splits_are_alike() -> None:
    # Every character that is tested occurs in training, and no split is a stretch of the alphabet.
    found = texts()
    for split in ("validation", "test"):
        assert not set(found[split]) - set(found["train"])


def test_clean_text() -> None:
    for text in texts().values():
        assert unicodedata.is_normalized("NFC", text)
        assert "\r" not in text
        assert "\n\n\n" not in text
        assert not any(line != line.rstrip() for line in text.split("\n"))


def test_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(UserError, match=r"embedded:nothing.*python_reference"):
        embedded.make("nothing")


@pytest.mark.parametrize(("name", "images"), [("mnist_5k", 5000), ("digits", 1797)])
def test_embedded_images_are_split_evenly_by_class(name: str, images: int) -> None:
    made = embedded.make(name)
    counts = {split: Counter(columns["label"]) for split, columns in made.items()}
    assert sum(sum(count.values()) for count in counts.values()) == images
    for digit in range(10):
        every = sum(count[digit] for count in counts.values())
        assert counts["test"][digit] == counts["validation"][digit] == round(every / 10)
    files = [[image["bytes"] for image in columns["image"]] for columns in made.values()]
    assert not set(files[0]) & (set(files[1]) | set(files[2]))  # no image of training is tested


def test_embedded_images_are_the_same_bytes_every_time() -> None:
    """Their fingerprint must not follow a library's version: a hash of the files as they are now."""
    digest = hashlib.sha256()
    for columns in embedded.make("digits").values():
        for image, label in zip(columns["image"], columns["label"], strict=True):
            digest.update(image["bytes"] + bytes([label]))
    assert digest.hexdigest() == "0afdbe7fd1068cd9447ce041bc068d8a18a0adcc51b1bed09e2f82650ebae3a4"
