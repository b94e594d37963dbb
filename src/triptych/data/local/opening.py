"""A path becomes a data set: the one place where files on this machine turn into tables."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pyarrow as pa

from triptych.data.local import layout, pictures, tables, texts
from triptych.data.local.report import DataReport, some
from triptych.data.pictures import FILES
from triptych.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

METADATA = "metadata"  # stem of a table that describes the pictures beside it, as the hub has it
METADATA_IMAGE = "file_name"  # what the hub calls the column of their paths


@dataclass(frozen=True)
class Request:
    """What is wanted of a path.

    columns: our name -> name in tables. The result has exactly these, in our names.
    document: texts are wanted: .txt files are read whole, one row each.
    pictured: pictures and labels are wanted, not texts.
    layout: what the folders of pictures are; see `pictures.from_folders`.
    cast: take typed columns of parquet files as texts.
    config: which of the configurations in a folder's README.md.
    files: a name or pattern: only these files of a folder.
    splits: names that files may have to be a split, besides train, validation and test.
    """

    columns: tables.Columns
    document: bool
    pictured: bool
    layout: str
    cast: bool
    config: str | None
    files: str | None
    splits: frozenset[str]

    @property
    def endings(self) -> list[str]:
        """Endings of the files that are read, in lower case; those of pictures last."""
        return [*(texts.ENDINGS if self.document else ()), *tables.READERS, *(FILES if self.pictured else ())]


def open_path(path: Path, request: Request, report: DataReport) -> "DatasetDict":
    """Read a file, or a folder of files, as the splits that it has; tell ``report`` what was read and left out.

    Raises:
        UserError: nothing to read there, or not what the request says; the sentence names the file or setting.
    """
    from datasets import DatasetDict

    if request.layout not in pictures.LAYOUTS:
        raise UserError(f"data.layout={request.layout}; it must be one of: {', '.join(pictures.LAYOUTS)}.")
    if not path.exists():
        raise UserError(f"data.path={path} does not exist: give the path of a file or folder of data.")
    if path.is_dir():
        found = _folder(path, request, report)
    else:
        one = layout.File(path, path.name, "train")
        known = [ending for ending in request.endings if ending not in FILES]
        if one.ending not in known:
            raise UserError(f"data.path={path} is none of: {', '.join(known)}.")
        if request.config is not None:
            raise UserError(f"data.config={request.config}: one file has no configurations; leave data.config null.")
        found = _read([one], request, path.parent)
        report.files = {"train": 1}
    if not any(len(rows) for rows in found.values()):
        raise UserError(f"data.path={path} is empty: it holds no rows.")
    usual = list(dict.fromkeys(layout.SPLIT_NAMES.values()))
    order = sorted(found, key=lambda split: usual.index(split) if split in usual else len(usual))
    report.files = {split: report.files[split] for split in order}
    report.rows = {split: len(found[split]) for split in order}
    return DatasetDict({split: found[split] for split in order})


def _folder(path: Path, request: Request, report: DataReport) -> "dict[str, Dataset]":
    names, splits = _named(path, request, report)
    data, seen = [], []
    for name in names:
        ending = PurePosixPath(name).suffix.lower()
        if ending not in request.endings:
            text = ending in texts.ENDINGS and not request.pictured
            report.leave_out(name, "a text, where tables are read" if text else "no kind that is read")
        elif ending in FILES:
            seen.append(name)
        else:
            data.append(name)
    if request.pictured and not _by_tables(path, data, seen, request.layout):
        for name in data:
            report.leave_out(name, "a table, where folders are the classes")
        found = pictures.from_folders(path, seen, splits, request.layout, report)
        report.files = {split: len(rows) for split, rows in found.items()}
        return found
    if not data:
        kinds = ", ".join(ending for ending in request.endings if ending not in FILES)
        more = ", or pictures in one folder per class" if request.pictured else ""
        raise UserError(f"data.path={path} could not be read: it holds no file of a kind that is read ({kinds}{more}).")
    tabled = []
    for name in data:
        split = layout.split_of(name, request.splits) if splits is None else splits[name]
        tabled.append(layout.File(path / name, name, split))
    _check_one_kind(path, tabled)
    report.files = dict(Counter(file.split for file in tabled))
    found = _read(tabled, request, path)
    if request.pictured:
        pictures.note_unnamed(seen, found.values(), path, report)
    if splits is None:
        _note_likely_splits(tabled, report)
    for first, missing in layout.missing_shards(data).items():
        report.notes.append(f"beside {first} there is no {some(missing)}")
    return found


def _named(path: Path, request: Request, report: DataReport) -> tuple[list[str], dict[str, str] | None]:
    """The files that ``data.files`` or a README.md name, else all; and their splits, where a README.md says those."""
    names = layout.scan(path, report)
    if request.files is not None:
        if request.config is not None:
            raise UserError(
                f"data.config={request.config} and data.files={request.files}: each says which files to read; leave "
                "one of them null."
            )
        splits = None
        chosen, why = layout.chosen_by(request.files, names, f"data.path={path}"), f"not data.files={request.files}"
    else:
        splits = layout.named_by_readme(path / "README.md", names, request.config, f"data.path={path}", request.splits)
        chosen, why = names if splits is None else list(splits), "not in the README.md's configuration"
    kept = set(chosen)
    for name in names:
        if name not in kept:
            report.leave_out(name, why)
    return [name for name in names if name in kept], splits


def _by_tables(path: Path, data: list[str], seen: list[str], how: str) -> bool:
    """Whether tables, not folders, say which picture is of which class."""
    if how != "auto":
        return how == "tables"
    if not data or not seen or any(PurePosixPath(name).stem == METADATA for name in data):
        return bool(data)
    folders = [PurePosixPath(name).parts[:-1] for name in seen]
    tops = {parts[0] for parts in folders if parts}
    own = {top for top in tops if top.lower() not in layout.FOLDER_NAMES}
    classes = own or {parts[1] for parts in folders if len(parts) > 1}
    if len(classes) < 2:
        return True
    raise UserError(
        f"data.path={path} has tables ({data[0]}) and folders of pictures ({', '.join(sorted(classes)[:3])}): say "
        "data.layout=tables if the tables name pictures and labels, data.layout=classes if the folders are the classes."
    )


def _check_one_kind(path: Path, files: list[layout.File]) -> None:
    """Raise UserError where a split has files of several kinds: they may hold the same in two forms."""
    kinds: dict[str, dict[str, str]] = {}
    for file in files:
        kinds.setdefault(file.split, {}).setdefault(file.ending, file.name)
    for split, examples in kinds.items():
        if len(examples) > 1:
            raise UserError(
                f"data.path={path} has {split} files of several kinds ({', '.join(examples.values())}): say which to "
                f"read with data.files='*{next(iter(examples))}', or name them in the configs of a README.md."
            )


def _note_likely_splits(files: list[layout.File], report: DataReport) -> None:
    """Say which files count as train though a part of their name is that of a split."""
    names = [
        file.name
        for file in files
        if file.split == "train" and layout.words_of(PurePosixPath(file.name).stem) & layout.HELD_OUT
    ]
    if names:
        are = "is" if len(names) == 1 else "are"
        report.notes.append(f"{some(names)} {are} part of train: only a whole name, such as test, makes a split")


def _read(files: list[layout.File], request: Request, root: Path) -> "dict[str, Dataset]":
    from datasets import Dataset

    columns = request.columns
    if request.pictured:
        return pictures.from_tables(files, _hub_names(files, columns), root)
    found: dict[str, list[pa.Table]] = {}
    for file in files:
        if file.ending in texts.ENDINGS:
            table = pa.table({next(iter(columns)): pa.array([texts.read_text(file.path)], pa.large_string())})
        else:
            table = _as_texts(tables.read(file.path, columns), columns, request.cast, file.path)
        found.setdefault(file.split, []).append(table)
    for split, parts in found.items():
        if request.document and not any(text for part in parts for text in part.column(0).to_pylist()):
            names = [str(file.path) for file in files if file.split == split]
            raise UserError(f"data.path={', '.join(names[:3])} is empty: it holds no text.")
    return {split: Dataset(pa.concat_tables(parts)) for split, parts in found.items()}


def _hub_names(files: list[layout.File], columns: tables.Columns) -> tables.Columns:
    """The columns' names; tables called metadata name their pictures in a column file_name, as on the hub."""
    if columns["image"] == "image" and all(PurePosixPath(file.name).stem == METADATA for file in files):
        return {**columns, "image": METADATA_IMAGE}
    return columns


def _as_texts(table: pa.Table, columns: tables.Columns, cast: bool, path: Path) -> pa.Table:
    """The table with every column a text; typed ones only if they are to be ``cast``. Raises UserError otherwise."""
    for at, field in enumerate(table.schema):
        kind = field.type
        if pa.types.is_large_string(kind):
            continue
        plain = pa.types.is_string(kind) or pa.types.is_string_view(kind) or pa.types.is_null(kind)
        castable = not (pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
        if not plain and not (cast and castable):
            way = "; data.cast=true takes them as texts" if castable else ""
            raise UserError(
                f"data.columns.{field.name}={columns[field.name]} must be a column of text, and {path} has {kind} "
                f"there{way}."
            )
        table = table.set_column(at, field.name, table.column(at).cast(pa.large_string()))
    return table
