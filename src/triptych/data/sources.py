"""Open a data set by hub id, path on disk, or embedded: always train, validation and test, in our names."""

import contextlib
import csv
import glob
import hashlib
import json
import logging
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych.data import embedded
from triptych.data.hub import open_hub, reason, with_settings
from triptych.errors import UserError

if TYPE_CHECKING:  # `datasets` takes a second or two to import: only where data is opened
    from datasets import Dataset, DatasetDict

log = logging.getLogger(__name__)

SPLITS = ("train", "validation", "test")
READERS: dict[str, tuple[str, dict[str, Any]]] = {  # ending of a file -> its builder in `datasets`, and options
    ".json": ("json", {}),
    ".jsonl": ("json", {}),
    ".csv": ("csv", {}),
    ".tsv": ("csv", {"sep": "\t", "quoting": csv.QUOTE_NONE}),  # a quotation mark is text there
    ".parquet": ("parquet", {}),
}
TEXT_FILES = {".txt", *READERS} - {".parquet"}


def open(
    *,
    source: str,
    path: str | None,
    config: str | None,
    revision: str | None,
    files: str | None,
    columns: Mapping[str, str],
    splits: Mapping[str, str | float],
    document: bool,
    seed: int,
    stratify: str | None = None,
) -> "DatasetDict":
    """Open a data set as a `datasets.DatasetDict` with exactly the splits train, validation and test.

    Args:
        source: ``embedded:NAME``, or a hub id ``owner/name``. Always means that: never a local folder.
        path: a file (.txt .json .jsonl .csv .tsv .parquet) or a folder of such files, read instead of
            ``source``; a folder may name configurations and splits in the head of a README.md, as on the hub.
        config: configuration of a hub data set, folder or embedded set that has several.
        revision: branch, tag or commit of a hub data set; None is its main branch.
        files: only these files of a hub data set (a name or a pattern), as its ``train``; None for what it declares.
        columns: our column name -> theirs; ``a.b`` is field b of a nested column a. The result has only
            these. Text files on disk have no columns: they are the first one asked for.
        splits: for each of train, validation and test, either the name of a split of the original, or a
            share of train (between 0 and 1) to cut off where the original has no such split. A name that the
            original lacks may be that of another of our three: ``test: validation`` makes them the same.
        document: each split is ONE text (one row): rows are joined with newlines in their order, in composed
            (NFC) form with ``\\n`` line ends; shares are then characters, contiguous, in the order train,
            validation, test. Otherwise shares are rows, drawn with ``seed``.
        seed: decides which rows are drawn.
        stratify: one of our columns: a share takes the same part of the rows of each of its values, and train keeps at
            least one of each. None: of all rows alike.

    Raises:
        UserError: nothing to read there, or not what the settings say; the sentence names the setting.
    """
    import datasets

    if set(splits) != set(SPLITS):
        raise UserError(f"data.splits must have exactly train, validation and test, not: {', '.join(splits)}.")
    if document and len(columns) != 1:
        raise UserError(f"data.columns must name one column for text, not: {', '.join(columns) or 'none'}.")
    if path is not None:
        found = _from_path(Path(path).expanduser(), config, column=next(iter(columns.values()), "text"))
    elif source.startswith("embedded:"):
        made = embedded.make(source.removeprefix("embedded:"), config)
        found = datasets.DatasetDict({name: datasets.Dataset.from_dict(rows) for name, rows in made.items()})
    else:
        found = open_hub(source, config, revision, files)
    found = datasets.DatasetDict({name: _select(rows, columns) for name, rows in found.items()})
    if document:
        found = datasets.DatasetDict({name: _join(rows, columns) for name, rows in found.items()})
    return _split(found, splits, _cut_text if document else partial(_cut_rows, by=stratify), seed)


def fingerprint(dataset: "DatasetDict") -> str:
    """SHA-256 (hex) over what the splits hold: column names, values, their order; images by encoded bytes.

    How and from where it was read does not matter: a hub id, a folder and a file with the same content have
    the same fingerprint.
    """
    from datasets import Image

    digest = hashlib.sha256()
    for split, rows in dataset.items():
        for column in sorted(rows.column_names):
            digest.update(f"{split} {column} {len(rows)}\n".encode())
            values = rows.select_columns(column)
            if isinstance(values.features[column], Image):
                values = values.cast_column(column, Image(decode=False))
            for batch in values.with_format("arrow").iter(batch_size=1000):
                for value in batch[column].to_pylist():
                    content = _bytes_of(value)
                    digest.update(b"%d:" % len(content))
                    digest.update(content)
    return digest.hexdigest()


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, dict) and value.keys() == {"bytes", "path"}:  # an image; its path is not content
        return value["bytes"] if value["bytes"] is not None else Path(value["path"]).read_bytes()
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str).encode()


# Columns and splits


def _select(rows: "Dataset", columns: Mapping[str, str]) -> "Dataset":
    """Only the wanted columns, under our names."""
    if any("." in theirs and theirs not in rows.column_names for theirs in columns.values()):
        rows = rows.flatten()
    for ours, theirs in columns.items():
        if theirs not in rows.column_names:
            raise UserError(f"data.columns.{ours}={theirs}: no such column; there are: {', '.join(rows.column_names)}.")
    if len(set(columns.values())) < len(columns):
        raise UserError(f"data.columns names one column twice: {', '.join(columns.values())}.")
    rows = rows.select_columns(list(columns.values()))
    return rows.rename_columns({theirs: ours for ours, theirs in columns.items() if ours != theirs})


def _join(rows: "Dataset", columns: Mapping[str, str]) -> "Dataset":
    """All rows as one text in one row."""
    from datasets import Dataset

    (ours,) = columns
    values = [value for value in rows[ours] if value is not None]
    if not all(isinstance(value, str) for value in values):
        raise UserError(f"data.columns.{ours}={columns[ours]} must be a column of text.")
    text = "\n".join(values).replace("\r\n", "\n").replace("\r", "\n")
    return Dataset.from_dict({ours: [unicodedata.normalize("NFC", text)]})


def _split(
    found: "DatasetDict",
    wanted: Mapping[str, str | float],
    cut: "Callable[[Dataset, dict[str, float], int], dict[str, Dataset]]",
    seed: int,
) -> "DatasetDict":
    """Name, cut and copy splits until there are exactly our three."""
    from datasets import DatasetDict

    there = ", ".join(found)
    if wanted["train"] not in found:
        raise UserError(f"data.splits.train={wanted['train']} must be a split of the data; there are: {there}.")
    ready: dict[str, Dataset] = {"train": found[wanted["train"]]}
    shares: dict[str, float] = {}
    for name in SPLITS[1:]:
        value = wanted[name]
        if not isinstance(value, str):
            if name in found:
                ready[name] = found[name]
            else:
                shares[name] = float(value)
        elif value in found:
            ready[name] = found[value]
    if shares:
        if not all(0 < share < 1 for share in shares.values()) or sum(shares.values()) >= 1:
            named = ", ".join(f"data.splits.{name}={share}" for name, share in shares.items())
            raise UserError(f"Shares of train must lie between 0 and 1 and leave some of it: {named}.")
        ready |= cut(ready["train"], shares, seed)
    for name in SPLITS[1:]:
        if name not in ready:
            other = wanted[name]
            if other not in ready:
                raise UserError(
                    f"data.splits.{name}={other}: there is no such split; use a share of train such as 0.05, "
                    f"or one of: {there}."
                )
            ready[name] = ready[str(other)]
    return DatasetDict({name: ready[name] for name in SPLITS})


def _cut_text(rows: "Dataset", shares: dict[str, float], seed: int) -> "dict[str, Dataset]":
    """Contiguous parts of one text: train first, then the shares in their order."""
    from datasets import Dataset

    (column,) = rows.column_names
    text = rows[column][0]
    if len(text) * min(shares.values()) < 1:
        raise UserError(f"The text has only {len(text)} characters: too short to cut data.splits from; give more.")
    parts: dict[str, Dataset] = {}
    end = len(text)
    rest = 1.0
    for name, share in reversed(shares.items()):
        rest = round(rest - share, 9)  # 1 - 0.05 - 0.05 is to be 0.9, not a hair less
        start = int(len(text) * rest)
        parts[name] = Dataset.from_dict({column: [text[start:end]]})
        end = start
    return parts | {"train": Dataset.from_dict({column: [text[:end]]})}


def _cut_rows(rows: "Dataset", shares: dict[str, float], seed: int, by: str | None = None) -> "dict[str, Dataset]":
    """Rows drawn at random for each share, alike from every value of ``by``; every part keeps the original order."""
    import numpy

    order = numpy.random.default_rng(seed).permutation(len(rows))
    kinds = numpy.zeros(len(rows), dtype=int)
    if by is not None:
        known: dict[str, int] = {}
        values = rows.select_columns(by).with_format("arrow")[:][by].to_pylist()
        kinds = numpy.array([known.setdefault(str(value), len(known)) for value in values], dtype=int)
    sizes = numpy.bincount(kinds)
    members = numpy.split(order[numpy.argsort(kinds[order], kind="stable")], numpy.cumsum(sizes)[:-1])
    parts: dict[str, Dataset] = {}
    for name, share in shares.items():
        counts = _counts(sizes.tolist(), share, [len(each) - 1 for each in members])
        if not sum(counts):
            of_each = f" with {len(members)} values of {by}" if by and len(members) > 1 else ""
            raise UserError(f"The data has only {len(rows)} rows{of_each}: too few to cut data.splits from; give more.")
        drawn = [each[:count] for each, count in zip(members, counts, strict=True)]
        members = [each[count:] for each, count in zip(members, counts, strict=True)]
        parts[name] = rows.select(numpy.sort(numpy.concatenate(drawn)))
    return parts | {"train": rows.select(numpy.sort(numpy.concatenate(members)))}


def _counts(sizes: list[int], share: float, room: list[int]) -> list[int]:
    """How many of each kind make up ``share`` of ``sizes``, none more than its ``room``.

    Together they are that share of all, rounded: what rounding down leaves over goes to the largest remainders, among
    equal ones to the kinds that have given least so far.
    """
    exact = [size * share for size in sizes]
    counts = [min(int(part + 1e-9), most) for part, most in zip(exact, room, strict=True)]
    missing = min(max(1, round(sum(sizes) * share)), sum(room)) - sum(counts)
    remainder = [round(part - int(part + 1e-9), 9) for part in exact]
    kinds = sorted(range(len(sizes)), key=lambda kind: (-remainder[kind], -room[kind] / sizes[kind]))
    while missing > 0:
        for kind in kinds:
            if missing > 0 and counts[kind] < room[kind]:
                counts[kind] += 1
                missing -= 1
    return counts


# Files and folders


def _from_path(path: Path, config: str | None, column: str) -> "DatasetDict":
    """Read one file, or a folder of files."""
    if not path.exists():
        raise UserError(f"data.path={path} does not exist: give the path of a file or folder of data.")
    if path.is_file() and path.suffix.lower() == ".txt":
        return _from_texts({"train": [path]}, column)
    if path.is_file() and path.suffix.lower() not in READERS:
        raise UserError(f"data.path={path} is none of: .txt, {', '.join(READERS)}.")
    if path.is_dir() and glob.has_magic(str(path.resolve())):
        raise UserError(f"data.path={path} has one of * ? [ in its name, which means a pattern: rename the folder.")
    import datasets

    with _quiet():
        try:
            if path.is_file():
                name, options = READERS[path.suffix.lower()]
                builder = datasets.load_dataset_builder(name, data_files=glob.escape(str(path)), **options)
            else:
                builder = datasets.load_dataset_builder(str(path.resolve()), config)
            named = {str(split): list(map(Path, given)) for split, given in builder.config.data_files.items()}
            files = [file for given in named.values() for file in given]
            if files and all(file.suffix.lower() == ".txt" for file in files):
                return _from_texts(named, column)
            _check_utf8(files)
            if path.is_dir() and files and all(file.suffix.lower() == ".tsv" for file in files):
                reader, options = READERS[".tsv"]  # as one such file is read
                escaped = {split: [glob.escape(str(file)) for file in given] for split, given in named.items()}
                builder = datasets.load_dataset_builder(reader, data_files=escaped, **options)
            builder.download_and_prepare()
            found = builder.as_dataset()
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"data.path={path}{with_settings(config, None)} could not be read: {reason(error)}."
            ) from error
    if not any(len(rows) for rows in found.values()):
        raise UserError(f"data.path={path} is empty: it holds no rows.")
    return found


def _from_texts(files: Mapping[str, list[Path]], column: str) -> "DatasetDict":
    """Whole text files, one row each, as ``column``."""
    from datasets import Dataset, DatasetDict

    _check_utf8([file for given in files.values() for file in given])
    texts = {split: [file.read_text(encoding="utf-8-sig") for file in given] for split, given in files.items()}
    for split, given in files.items():
        if not any(texts[split]):
            raise UserError(f"data.path={', '.join(map(str, given))} is empty: it holds no text.")
    return DatasetDict({split: Dataset.from_dict({column: rows}) for split, rows in texts.items()})


def _check_utf8(files: Iterable[Path]) -> None:
    """Name the first text file, and its byte, that is not UTF-8; the JSON reader would guess an encoding."""
    for path in files:
        if path.suffix.lower() not in TEXT_FILES:
            continue
        start = 0
        try:
            with path.open("rb") as file:
                for line in file:  # a newline is never part of another character in UTF-8
                    line.decode()
                    start += len(line)
        except UnicodeDecodeError as error:
            raise UserError(
                f"data.path: {path} is not UTF-8 text (see byte {start + error.start}): save it as UTF-8."
            ) from error
        except OSError as error:
            raise UserError(f"data.path: {path} could not be read: {error.strerror}.") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars for what is read from disk in a moment."""
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
