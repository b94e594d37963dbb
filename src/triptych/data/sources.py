"""Open a data set by hub id, path on disk, or embedded: always train, validation and test, in our names."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych.data import embedded
from triptych.data.hub import CONVERTED, fetch
from triptych.data.local.layout import FOLDER_NAMES
from triptych.data.local.report import DataReport
from triptych.errors import UserError

if TYPE_CHECKING:  # `datasets` takes a second or two to import: only where data is opened
    from datasets import Dataset, DatasetDict

SPLITS = ("train", "validation", "test")
OR_SHARE = re.compile(r"(?P<split>.+?)\s+or\s+(?P<share>[0-9.eE+-]+)")


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
    layout: str | None = None,
    cast: bool = False,
    report: DataReport | None = None,
) -> "DatasetDict":
    """Open a data set as a `datasets.DatasetDict` with exactly the splits train, validation and test.

    Args:
        source: ``embedded:NAME``, or a hub id ``owner/name``. Always means that: never a local folder.
        path: a file (.txt .csv .tsv .jsonl .json .parquet) or a folder of such files or of pictures, read instead of
            ``source``; see `triptych.data.local` for the rules.
        config: configuration of a hub data set, folder or embedded set that has several.
        revision: branch, tag or commit of a hub data set; None is its main branch.
        files: only these files of a hub data set or a folder (a name or a pattern); None for all that are data.
        columns: our column name -> theirs; ``a.b`` is field b of a nested column a. The result has only
            these. Text files on disk have no columns: they are the first one asked for.
        splits: for each of train, validation and test: the name of a split of the original; a number, which is a share
            of train (between 0 and 1) to cut off; or "NAME or SHARE", the split if the original has it, else that
            share. A name that the original lacks may be that of another of our three: ``test: validation`` makes them
            the same.
        document: each split is ONE text (one row): rows are joined with newlines in their order, in composed
            (NFC) form with ``\\n`` line ends; shares are then characters, contiguous, in the order train,
            validation, test. Otherwise shares are rows, drawn with ``seed``.
        seed: decides which rows are drawn.
        stratify: one of our columns: a share takes the same part of the rows of each of its values, and train keeps at
            least one of each. None: of all rows alike.
        layout: what the folders of pictures are, see `local.pictures.LAYOUTS`; None where no pictures are wanted: then
            every column must be text.
        cast: take columns of numbers, dates and truth values in parquet files as text.
        report: is told what was read, what was left out and why.

    Raises:
        UserError: nothing to read there, or not what the settings say; the sentence names the setting.
    """
    import datasets

    from triptych.data.local.opening import Request, open_path

    report = DataReport() if report is None else report
    if set(splits) != set(SPLITS):
        raise UserError(f"data.splits must have exactly train, validation and test, not: {', '.join(splits)}.")
    if document and len(columns) != 1:
        raise UserError(f"data.columns must name one column for text, not: {', '.join(columns) or 'none'}.")
    if len(set(columns.values())) < len(columns):
        raise UserError(f"data.columns names one column twice: {', '.join(columns.values())}.")
    wanted = {ours: _Wanted.read(ours, value) for ours, value in splits.items()}
    if path is None and source.startswith("embedded:"):
        made = embedded.make(source.removeprefix("embedded:"), config)
        found = datasets.DatasetDict({name: datasets.Dataset.from_dict(rows) for name, rows in made.items()})
        found = datasets.DatasetDict({name: _select(rows, columns) for name, rows in found.items()})
        report.rows = {name: len(rows) for name, rows in found.items()}
    else:
        request = Request(
            columns=columns,
            document=document,
            pictured=layout is not None,
            layout=layout or "auto",
            cast=cast,
            config=None if path is None and revision == CONVERTED else config,
            files=files,
            splits=frozenset(each.split for each in wanted.values() if each.split is not None),
        )
        place = Path(path).expanduser() if path else fetch(source, config, revision, files, request.endings)
        try:
            found = open_path(place, request, report)
        except UserError as error:
            if path is not None:
                raise
            # It calls a folder of the hub's cache by its path, which says nothing to a person.
            said = str(error).replace(f"data.path={place}", f"data.source={source}").replace(f"{place}/", "")
            raise UserError(said) from error
    if document:
        found = datasets.DatasetDict({name: _join(rows, name, report) for name, rows in found.items()})
    return _split(found, wanted, _cut_text if document else partial(_cut_rows, by=stratify), seed, report)


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
    rows = rows.select_columns(list(columns.values()))
    return rows.rename_columns({theirs: ours for ours, theirs in columns.items() if ours != theirs})


def _join(rows: "Dataset", split: str, report: DataReport) -> "Dataset":
    """All rows as one text in one row."""
    from datasets import Dataset

    (column,) = rows.column_names
    values = rows.with_format("arrow")[:][column].to_pylist()
    texts = [value for value in values if value is not None]
    report.filter_out(split, "without a text", len(values) - len(texts))
    text = "\n".join(texts)
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    report.change("line ends (CR, CR LF) as LF", text.count("\r") and len(re.findall("\r\n?", text)))
    composed = unicodedata.normalize("NFC", plain)
    if composed != plain:
        lines = plain.split("\n")
        changed = sum(not unicodedata.is_normalized("NFC", line) for line in lines)
        report.change("lines in composed form (NFC)", changed)
    return Dataset.from_dict({column: [composed]})


@dataclass(frozen=True)
class _Wanted:
    """What a split of ours is to be: a split of the original, a share of train, or the one where there is no other."""

    split: str | None
    share: float | None

    @classmethod
    def read(cls, ours: str, value: Any) -> "_Wanted":
        if value is None or isinstance(value, bool):
            raise UserError(
                f"data.splits.{ours}={value}; it must be the name of a split, a share such as 0.05, or both: "
                "'test or 0.05'."
            )
        if not isinstance(value, str):
            return cls(None, float(value))
        either = OR_SHARE.fullmatch(value.strip())
        if either is None:
            return cls(value, None)
        try:
            return cls(either["split"], float(either["share"]))
        except ValueError:
            raise UserError(
                f"data.splits.{ours}={value}; it must be the name of a split, a share such as 0.05, or both: "
                "'test or 0.05'."
            ) from None


def _split(
    found: "DatasetDict",
    wanted: Mapping[str, _Wanted],
    cut: "Callable[[Dataset, dict[str, float], int], dict[str, Dataset]]",
    seed: int,
    report: DataReport,
) -> "DatasetDict":
    """Name, cut and copy splits until there are exactly our three."""
    from datasets import DatasetDict

    def known(name: str | None) -> str | None:
        """The original's own name of a split: it may stand there under another of its usual names."""
        if name is None or name in found:
            return name
        usual = FOLDER_NAMES.get(name.lower())
        return usual if usual in found else None

    there = ", ".join(found)
    train = known(wanted["train"].split)
    if train is None:
        asked = wanted["train"].split or wanted["train"].share
        raise UserError(f"data.splits.train={asked} must be a split of the data; there are: {there}.")
    ready: dict[str, Dataset] = {"train": found[train]}
    used = {train}
    shares: dict[str, float] = {}
    for name in SPLITS[1:]:
        own = known(wanted[name].split)
        if own is not None:
            ready[name] = found[own]
            used.add(own)
        elif (share := wanted[name].share) is not None:
            shares[name] = share
    if shares:
        if not all(0 < share < 1 for share in shares.values()) or sum(shares.values()) >= 1:
            named = ", ".join(f"data.splits.{name}={share}" for name, share in shares.items())
            raise UserError(f"Shares of train must lie between 0 and 1 and leave some of it: {named}.")
        ready |= cut(ready["train"], shares, seed)
    for name in SPLITS[1:]:
        if name not in ready:
            other = wanted[name].split
            if other not in ready:
                raise UserError(
                    f"data.splits.{name}={other}: there is no such split; use a share of train such as 0.05, "
                    f"or one of: {there}."
                )
            ready[name] = ready[str(other)]
    for name in found:
        if name not in used:
            instead = f": data.splits.{name} is a share of train" if name in shares else ""
            report.notes.append(f"the split {name} of the data is not used{instead}")
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
