"""Pictures of classes in folders, and tables that name pictures: which file is of which class and split."""

import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from triptych.data.local import layout, tables
from triptych.data.local.report import DataReport, some
from triptych.data.pictures import FILES
from triptych.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset

TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
LAYOUTS = ("auto", "classes", "splits", "tables")


def from_folders(
    folder: Path, names: list[str], splits: dict[str, str] | None, how: str, report: DataReport
) -> "dict[str, Dataset]":
    """Pictures in class folders, as split -> rows with columns ``image`` and ``label``.

    The class is the folder directly under the split's folder or, where there are none of splits, directly under the
    top, whatever lies deeper. The top folders are classes unless all of them are called like splits. Names of pictures
    mean nothing.

    Args:
        folder: the top.
        names: paths of pictures below it.
        splits: the split of each name, where a README.md says so; None where the folders decide.
        how: "classes" or "splits" says what the top folders are; "auto" finds out.
        report: of what is left out.

    Raises:
        UserError: there are no classes, or folders that may be both; the sentence names ``data.layout``.
    """
    tops = sorted({PurePosixPath(name).parts[0] for name in names if "/" in name})
    by_split = _are_splits(folder, names, tops, how)
    found: dict[str, list[tuple[str, str]]] = {}
    for name in names:
        parts = PurePosixPath(name).parts
        if len(parts) < 2 + by_split:
            report.leave_out(name, "a picture in no class folder")
            continue
        own = layout.FOLDER_NAMES.get(parts[0].lower(), parts[0]) if by_split else "train"
        split = splits[name] if splits is not None else own
        found.setdefault(split, []).append((name, parts[by_split]))
    classes = sorted({label for rows in found.values() for _, label in rows})
    empty = _without_pictures(folder, tops if by_split else [], names)
    if len(classes) < 2:
        where = f"pictures in one folder ({classes[0]})" if classes else "no folder of pictures in it"
        where += f" and no picture in {some(empty)}" if empty else ""
        both = " Are the folders called train, test ... the classes? Then say data.layout=classes." if by_split else ""
        raise UserError(
            f"data.path={folder} has {where}: pictures to learn from stand in one folder per class, two or "
            f"more, directly under it or under train, validation and test.{both}"
        )
    untrained = sorted(set(classes) - {label for _, label in found.get("train", ())})
    if untrained and "train" in found:
        report.notes.append(
            f"no training picture is of {'the class' if len(untrained) == 1 else 'the classes'} {some(untrained)}"
        )
    if empty:
        count = "1 folder holds" if len(empty) == 1 else f"{len(empty):,} folders hold"
        report.notes.append(f"{count} no picture, where folders are classes: {some(empty)}")
    return {split: _labelled(folder, rows, classes) for split, rows in found.items()}


def _without_pictures(folder: Path, splits: Iterable[str], names: Iterable[str]) -> list[str]:
    """Folders directly under ``folder``, or under those of ``splits`` in it, that hold no picture at any depth.

    names: paths of pictures below ``folder`` that are known already; hidden folders are no classes and not looked into.
    """
    parts = [PurePosixPath(name).parts for name in names]
    filled = {part[:depth] for part in parts for depth in (1, 2) if len(part) > depth}
    places = [folder, *(folder / split for split in splits)]
    inside = [one for place in places for one in sorted(place.iterdir()) if one.is_dir()]
    return [
        one.relative_to(folder).as_posix()
        for one in inside
        if one.relative_to(folder).parts not in filled
        and not one.name.startswith(".")
        and one.name != "__MACOSX"
        and not any(is_picture(file) for _, _, files in os.walk(one) for file in files)
    ]


def _are_splits(folder: Path, names: list[str], tops: list[str], how: str) -> bool:
    """Whether the top folders are splits, not classes."""
    if how != "auto":
        return how == "splits"
    splits = [top for top in tops if top.lower() in layout.FOLDER_NAMES]
    if len(splits) == len(tops):
        return bool(tops)
    likely = [top for top in tops if layout.words_of(top) & set(layout.FOLDER_NAMES)]
    if len(likely) == len(tops) > 1 and all(PurePosixPath(name).parts[1:-1] for name in names if "/" in name):
        own: dict[str, str] = {}
        for top in tops:
            own.setdefault(
                next(ours for word, ours in layout.FOLDER_NAMES.items() if word in layout.words_of(top)), top
            )
        settings = " ".join(f"'data.splits.{ours}={top}'" for ours, top in own.items())
        raise UserError(
            f"data.path={folder}: the folders {some(tops)} may be splits, by their names and the folders in them, or "
            f"classes; rename them to train and test, or say data.layout=classes, or data.layout=splits {settings}."
        )
    # Below a split lie the classes, the same in all of them: folders that look so, beside others, may be either.
    inside = {top: _below(names, top) for top in tops}
    for split in splits:
        alike = [top for top in tops if top != split and len(inside[split] & inside[top]) > 1]
        direct = any(PurePosixPath(name).parts[:-1] == (split,) for name in names)
        if layout.FOLDER_NAMES[split.lower()] == "train" and (alike or (len(inside[split]) > 1 and not direct)):
            why = f"{split} and {alike[0]} hold folders of the same names" if alike else "it holds folders, no pictures"
            raise UserError(
                f"data.path={folder}: the folder {split} may be a class or the training split, since {why}; say "
                f"data.layout=classes, or data.layout=splits (then "
                f"{some([top for top in tops if top not in splits])} is not used)."
            )
    return False


def _below(names: Iterable[str], top: str) -> set[str]:
    """Folders directly under a top folder."""
    parts = (PurePosixPath(name).parts for name in names)
    return {one[1] for one in parts if one[0] == top and len(one) > 2}


def _labelled(folder: Path, rows: list[tuple[str, str]], classes: list[str]) -> "Dataset":
    from datasets import ClassLabel, Dataset, Features, Image

    place = {label: at for at, label in enumerate(classes)}
    return Dataset.from_dict(
        {
            "image": [{"bytes": None, "path": str(folder / name)} for name, _ in rows],
            "label": [place[label] for _, label in rows],
        },
        features=Features({"image": Image(decode=False), "label": ClassLabel(names=classes)}),
    )


def from_tables(files: list[layout.File], columns: tables.Columns, root: Path) -> "dict[str, Dataset]":
    """Tables with a column of pictures, split -> rows: the pictures' own bytes, or paths relative to the table.

    Raises:
        UserError: a column is none of pictures, or a path leads nowhere; the sentence names the file and the row.
    """
    from datasets import ClassLabel, Dataset, Features, Image, concatenate_datasets

    found: dict[str, list[Any]] = {}
    declared = {
        file.path: _class_names(file.path, columns["label"]) if file.ending == ".parquet" else None for file in files
    }
    parts = {file.path: tables.read(file.path, columns) for file in files}
    kinds = {(parts[path].schema.field("label").type, tuple(names or ())) for path, names in declared.items()}
    for file in files:
        table, names = parts.pop(file.path), declared[file.path]
        if len(kinds) > 1:  # numbers of classes mean one thing here and another there: their names
            at = table.column_names.index("label")
            table, names = table.set_column(at, "label", _named_labels(table.column("label"), names)), None
        at = table.column_names.index("image")
        table = table.set_column(at, "image", _as_pictures(file.path, table.column("image"), root))
        features = Features.from_arrow_schema(table.schema)
        features["image"] = Image(decode=False)
        if names is not None:
            features["label"] = ClassLabel(names=names)
        found.setdefault(file.split, []).append(Dataset(table.cast(features.arrow_schema)))
    return {split: parts[0] if len(parts) == 1 else concatenate_datasets(parts) for split, parts in found.items()}


def _named_labels(labels: pa.ChunkedArray, names: list[str] | None) -> pa.Array:
    """Labels as names: of classes by their number where ``names`` has them, else as they are written."""
    given = labels.to_pylist()
    if names is not None:
        given = [names[one] if one is not None and 0 <= one < len(names) else one for one in given]
    return pa.array([None if one is None else str(one) for one in given], pa.large_string())


def _class_names(path: Path, column: str) -> list[str] | None:
    """The names of the classes, where a parquet file from the hub carries them."""
    from datasets import ClassLabel, Features

    feature = Features.from_arrow_schema(pa.parquet.read_schema(path)).get(column)
    return feature.names if isinstance(feature, ClassLabel) else None


def _as_pictures(path: Path, column: pa.ChunkedArray, root: Path) -> pa.ChunkedArray:
    """A column of encoded pictures, or of their paths, as structs of bytes and path."""
    kind, binary, text = column.type, pa.binary(), pa.string()
    contents = paths = None
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        contents = pa.compute.struct_field(column, "bytes").cast(binary)
        if kind.get_field_index("path") >= 0:
            paths = pa.compute.struct_field(column, "path").cast(text)
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        contents = column.cast(binary)
    elif any(is_text(kind) for is_text in TEXTS):
        paths = column.cast(text)
    else:
        raise UserError(f"data.columns.image: {path} has neither pictures nor their paths there, but {kind}.")
    if contents is None or contents.null_count:
        none = [None] * len(column)
        rows = zip(contents.to_pylist() if contents else none, paths.to_pylist() if paths else none, strict=True)
        places = [
            _place(path, name, number, root) if held is None else name for number, (held, name) in enumerate(rows, 1)
        ]
        paths = pa.chunked_array([pa.array(places, text)])
    contents = pa.nulls(len(column), binary) if contents is None else contents.combine_chunks()
    paths = pa.nulls(len(column), text) if paths is None else paths.combine_chunks()
    return pa.chunked_array([pa.StructArray.from_arrays([contents, paths], names=["bytes", "path"])])


def _place(table: Path, name: str | None, number: int, root: Path) -> str:
    """Where the picture that a row of a table names is: its path is relative to the table, or to the data's folder."""
    if not name:
        raise UserError(f"data.columns.image: row {number} of {table} names no picture.")
    for place in (table.parent / name, root / name, table.parent / name.replace("\\", "/")):
        if place.is_file():
            return str(place)
    raise UserError(
        f"data.columns.image: row {number} of {table} names {name}, and there is no such file; paths are relative to "
        "the table."
    )


def is_picture(name: str) -> bool:
    """Whether a file's ending is that of a picture."""
    return PurePosixPath(name).suffix.lower() in FILES


def note_unnamed(names: Iterable[str], rows: "Iterable[Dataset]", folder: Path, report: DataReport) -> None:
    """Note the pictures ``names`` below ``folder`` that no row of a table names; no other picture is left out."""
    places = (
        place for part in rows for place in pa.compute.struct_field(part.data.column("image"), "path").to_pylist()
    )
    named = {os.path.realpath(place) for place in places if place}
    for name in names:
        if os.path.realpath(folder / name) not in named:
            report.leave_out(name, "a picture that no table names")
    for reason, out in list(report.left_out.items()):  # by data.files, which chose the table, not its pictures
        report.left_out[reason] = [name for name in out if os.path.realpath(folder / name) not in named]
        if not report.left_out[reason]:
            del report.left_out[reason]
