"""Tables in files, cell by cell as they are written: .csv, .tsv, .jsonl, .json and .parquet to Arrow tables.

Only an empty cell, or a JSON null, is missing (null); every other cell is its text. Cells are never taken for numbers,
dates or words that mean "missing". Parquet has types of its own: they are kept.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from triptych.data.local.texts import read_text_bytes
from triptych.errors import UserError

csv.field_size_limit((1 << 31) - 1)  # a cell of any length; Python's own limit is 131,072 characters

NAME_SHOWN = 60  # characters of a column's name, in a sentence

Columns = Mapping[str, str]  # our name -> the name in the file; ``a.b`` is field b of a column a


def read(path: Path, columns: Columns) -> pa.Table:
    """The table in a file with an ending of `READERS`: the columns that are asked for, under our names, in their order.

    Raises:
        UserError: the file cannot be read, is no such table, or lacks a column; the sentence names the file and,
            where there is one, the row.
    """
    return READERS[path.suffix.lower()](path, columns)


def _no_column(path: Path, columns: Columns, name: str, there: Sequence[str]) -> UserError:
    """The sentence for a column ``name`` that a file does not have."""
    ours = next(ours for ours, theirs in columns.items() if theirs == name)
    hint = ""
    alike = next((one for one in there if one.strip().strip('"').strip() == name), None)
    if len(there) == 1 and (other := next((mark for mark in ";\t|" if mark in there[0]), None)):
        shown = "a tabulator" if other == "\t" else other
        better = "call it .tsv" if other == "\t" else "save it with commas, or with tabulators as .tsv"
        hint = f" Its cells seem to be separated by {shown}: {better}."
    elif alike is not None and '"' in alike:
        hint = " In a .tsv file a quotation mark is text: save the table as .csv, or without them."
    elif alike is not None:
        hint = f" A blank stands beside {alike.strip()} in the header: remove it there."
    known = ", ".join(one[:NAME_SHOWN] for one in there[:20]) + (" ..." if len(there) > 20 else "")
    return UserError(f"data.columns.{ours}={name}: no such column; there are: {known or 'none'} (in {path}).{hint}")


def _several(path: Path, name: str) -> UserError:
    return UserError(f"data.path: {path} has several columns called {name}: rename all but one.")


# Cells with separators


def _read_csv(path: Path, columns: Columns) -> pa.Table:
    """Cells separated by commas; a cell in quotation marks may hold commas, line ends, and doubled quotation marks."""
    return _separated(path, columns, ",", quoted=True)


def _read_tsv(path: Path, columns: Columns) -> pa.Table:
    """Cells separated by tabulators. There is no quoting: a quotation mark is a character like any other."""
    return _separated(path, columns, "\t", quoted=False)


def _separated(path: Path, columns: Columns, separator: str, *, quoted: bool) -> pa.Table:
    content = read_text_bytes(path).lstrip(b"\r\n")
    if not content.strip():
        raise UserError(f"data.path={path} is empty: it holds no rows.")
    if not content.endswith((b"\n", b"\r")):
        content += b"\n"  # Arrow takes an empty cell at the very end for a quoted one, if the row has one
    if quoted and b'"' in content:
        _check_quotation(path, content, separator)
    header = next(_python_reader(content, separator, quoted))
    for name in columns.values():
        if name not in header:
            raise _no_column(path, columns, name, header)
        if header.count(name) > 1:
            raise _several(path, name)
    try:
        table = pa.csv.read_csv(
            pa.BufferReader(content),
            # One thread: only then are wrong rows called by their number. One block holds the longest row.
            pa.csv.ReadOptions(use_threads=False, block_size=min(max(len(content), 1 << 20), (1 << 31) - 1)),
            pa.csv.ParseOptions(
                delimiter=separator,
                quote_char='"' if quoted else False,
                double_quote=quoted,
                escape_char=False,
                newlines_in_values=quoted,
                ignore_empty_lines=len(header) > 1,
            ),
            pa.csv.ConvertOptions(
                column_types={name: pa.large_string() for name in header},
                include_columns=list(columns.values()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                check_utf8=False,  # it was
            ),
        )
    except pa.ArrowInvalid as error:
        what = str(error).strip().split("\n")[0].removeprefix("CSV parse error: ")
        raise UserError(
            f"data.path={path} could not be read: {what[:160]} (row 1 is the header). A cell that holds the separator "
            f"{'stands in quotation marks' if quoted else 'is not possible here: save the table as .csv'}."
        ) from error
    return table.rename_columns(list(columns))


def _python_reader(content: bytes, separator: str, quoted: bool) -> Any:
    """Python's own reader of the same cells; it knows its ``line_num``."""
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", newline="")
    if quoted:
        return csv.reader(text, delimiter=separator, strict=True)
    return csv.reader(text, delimiter=separator, quoting=csv.QUOTE_NONE, strict=True)


def _check_quotation(path: Path, content: bytes, separator: str) -> None:
    """Raise UserError where quotation marks do not stand around whole cells: Arrow would drop them without a word."""
    reader = _python_reader(content, separator, quoted=True)
    begins = 1  # line where a row does
    try:
        for _ in reader:
            begins = reader.line_num + 1
    except csv.Error as error:
        if "unexpected end of data" in str(error):
            what = f"a quotation mark opens a cell in line {begins} or after it, and none closes it"
        else:
            what = f"in the row of line {begins} a quotation mark closes a cell, and more text follows in the cell"
        raise UserError(
            f'data.path={path} could not be read: {what}. A mark that is text is written "" in a cell that itself '
            "stands in quotation marks; in a .tsv file it needs nothing."
        ) from error


# JSON


class _Spelled(str):
    """A number, true or false, as it is spelled in a file."""


def _read_json_lines(path: Path, columns: Columns) -> pa.Table:
    """One JSON object per line. Lines end at line feeds only; empty ones are passed over."""
    rows: list[Any] = []
    for number, line in enumerate(read_text_bytes(path).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = _parse(str(line, "utf-8"))
        except (ValueError, RecursionError) as error:
            raise UserError(f"data.path={path} could not be read: line {number} is no JSON ({_why(error)}).") from error
        if not isinstance(row, dict):
            raise UserError(
                f'data.path={path} could not be read: line {number} is no object such as {{"text": "..."}}.'
            )
        rows.append(row)
    return _from_rows(path, rows, columns)


def _read_json(path: Path, columns: Columns) -> pa.Table:
    """A list of objects, an object of equally long lists, or one object per line."""
    text = str(read_text_bytes(path), "utf-8")
    try:
        contents = _parse(text)
    except (ValueError, RecursionError) as error:
        if _begins_with_an_object(text):
            return _read_json_lines(path, columns)
        place = f"line {error.lineno}, " if isinstance(error, json.JSONDecodeError) else ""
        raise UserError(f"data.path={path} could not be read: it is no JSON ({place}{_why(error)}).") from error
    if isinstance(contents, dict) and contents and all(isinstance(one, list) for one in contents.values()):
        if len({len(one) for one in contents.values()}) > 1:
            raise UserError(f"data.path={path} could not be read: its lists are not equally long.")
        contents = [dict(zip(contents, row, strict=True)) for row in zip(*contents.values(), strict=True)]
    if isinstance(contents, dict):
        contents = [contents]
    if not isinstance(contents, list) or not all(isinstance(row, dict) for row in contents):
        raise UserError(f"data.path={path} could not be read: it must be a list of objects, or one object per line.")
    return _from_rows(path, contents, columns)


def _begins_with_an_object(text: str) -> bool:
    """Whether the first line with anything in it is a JSON object by itself."""
    first = next((line for line in text.split("\n") if line.strip()), "{}")
    try:
        return isinstance(_parse(first), dict)
    except (ValueError, RecursionError):
        return False


def _why(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"column {error.colno}: {error.msg}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _parse(text: str) -> Any:
    return json.loads(
        text, parse_int=_Spelled, parse_float=_Spelled, parse_constant=_Spelled, object_pairs_hook=_object
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f'an object has "{twice[:NAME_SHOWN]}" twice')
    return found


def _from_rows(path: Path, rows: list[Any], columns: Columns) -> pa.Table:
    if not rows:
        raise UserError(f"data.path={path} is empty: it holds no rows.")
    found = []
    for ours, name in columns.items():
        cells = [_cell(row, name) for row in rows]
        if all(cell is _ABSENT for cell in cells):
            there = dict.fromkeys(key for row in rows for key in _keys(row))
            raise _no_column(path, columns, name, list(there))
        found.append(_column(cells, f"data.columns.{ours}={name} must be a column of text: row {{}} of {path} has"))
    return pa.table(found, names=list(columns))


_ABSENT = object()


def _cell(row: Any, name: str) -> Any:
    """What an object holds under a name, or under ``a.b`` inside another object."""
    if name in row:
        return row[name]
    first, _, rest = name.partition(".")
    while rest and isinstance(row, dict) and isinstance(row.get(first), dict):
        row = row[first]
        if rest in row:
            return row[rest]
        first, _, rest = rest.partition(".")
    return _ABSENT


def _keys(row: dict[str, Any]) -> Iterator[str]:
    for key, value in row.items():
        if isinstance(value, dict):
            yield from (f"{key}.{inner}" for inner in value)
        else:
            yield key


def _column(cells: list[Any], what: str) -> pa.Array:
    """Cells as texts; ``what`` begins the sentence about one that is none, with a place for its row's number."""
    texts: list[str | None] = []
    for number, cell in enumerate(cells, 1):
        if cell is None or cell is _ABSENT:
            texts.append(None)
        elif isinstance(cell, bool):
            texts.append("true" if cell else "false")
        elif isinstance(cell, str):
            texts.append(cell)
        else:
            kind = "a list" if isinstance(cell, list) else "an object"
            raise UserError(f"{what.format(number)} {kind}.")
    try:
        return pa.array(texts, type=pa.large_string())
    except (UnicodeEncodeError, pa.ArrowInvalid) as error:
        bad = next(number for number, text in enumerate(texts, 1) if text is not None and _is_broken(text))
        raise UserError(f"{what.format(bad)} half of a surrogate pair, which is no character.") from error


def _is_broken(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


# Parquet


def _read_parquet(path: Path, columns: Columns) -> pa.Table:
    """Columns with the types that the file gives them."""
    try:
        file = pa.parquet.ParquetFile(path)
        schema = file.schema_arrow
        firsts = {name: name if name in schema.names else name.partition(".")[0] for name in columns.values()}
        table = file.read(columns=[first for first in dict.fromkeys(firsts.values()) if first in schema.names])
    except (OSError, pa.ArrowException) as error:
        what = " ".join(str(error).split())[:160]
        raise UserError(f"data.path={path} could not be read: {what}.") from error
    picked = []
    for name, first in firsts.items():
        if schema.names.count(first) > 1:
            raise _several(path, first)
        column = table.column(first) if first in schema.names else None
        for step in name.removeprefix(first).split(".")[1:]:
            inside = column is not None and pa.types.is_struct(column.type) and column.type.get_field_index(step) >= 0
            column = pa.compute.struct_field(column, step) if inside else None
        if column is None:
            raise _no_column(path, columns, name, _names(schema))
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise UserError(
                f"data.path={path} could not be read: its column {name} holds bytes that are not UTF-8 text."
            ) from error
        picked.append(column)
    return pa.table(picked, names=list(columns))


def _names(schema: pa.Schema) -> list[str]:
    """Names of columns, and of the fields inside them."""
    found = []
    for field in schema:
        inside = pa.types.is_struct(field.type)
        found += [f"{field.name}.{one.name}" for one in field.type] if inside else [field.name]
    return found


READERS: dict[str, Callable[[Path, Columns], pa.Table]] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".json": _read_json,
    ".parquet": _read_parquet,
}
"""Ending of a file, in lower case -> what reads it."""
