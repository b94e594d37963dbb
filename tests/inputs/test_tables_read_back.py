"""Whatever text is written into a table comes back cell by cell, from every format."""

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from triptych.data.local import tables, texts

ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
TRICKY = st.sampled_from(
    [
        "null",
        "NA",
        "00042",
        "1e5",
        "true",
        '"',
        '""',
        ",",
        "\n",
        "\r\n",
        "\r",
        "\u2028",
        "\x85",
        "\x1c",
        "\ufeff",
        " ",
        "'",
    ]
)
CELL = st.one_of(ANY, TRICKY, st.lists(TRICKY, max_size=3).map("".join))
LINE = CELL.filter(lambda text: not set(text) & set("\t\r\n"))
MISSING = st.one_of(st.none(), CELL)
COLUMNS = {"first": "a", "second": "b"}


def rows(cell: st.SearchStrategy) -> st.SearchStrategy[list[tuple]]:
    return st.lists(st.tuples(cell, cell), min_size=1, max_size=6)


def read(path: Path) -> list[tuple[str | None, str | None]]:
    table = tables.read(path, COLUMNS)
    return list(zip(table.column("first").to_pylist(), table.column("second").to_pylist(), strict=True))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


quickly = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quickly
@given(written=rows(MISSING))
def test_csv_with_every_text_quoted(place: Path, written: list[tuple[str | None, str | None]]) -> None:
    """Then an empty text and a missing cell differ."""

    def cell(text: str | None) -> str:
        return "" if text is None else '"' + text.replace('"', '""') + '"'

    lines = ["a,b", *(f"{cell(one)},{cell(other)}" for one, other in written)]
    (place / "quoted.csv").write_bytes("\n".join(lines).encode())
    assert read(place / "quoted.csv") == written


@quickly
@given(written=rows(CELL))
def test_csv_as_python_writes_it(place: Path, written: list[tuple[str, str]]) -> None:
    """It quotes where it must, and writes nothing for an empty text: that is a missing cell."""
    file = io.StringIO(newline="")
    csv.writer(file).writerows([("a", "b"), *written])
    (place / "written.csv").write_bytes(file.getvalue().encode())
    assert read(place / "written.csv") == [(one or None, other or None) for one, other in written]


@quickly
@given(written=rows(LINE))
def test_tsv(place: Path, written: list[tuple[str, str]]) -> None:
    """A row of two empty cells is a lone tabulator."""
    lines = ["a\tb", *("\t".join(row) for row in written)]
    (place / "t.tsv").write_bytes("\n".join(lines).encode())
    assert read(place / "t.tsv") == [(one or None, other or None) for one, other in written]


@quickly
@given(written=rows(MISSING), escaped=st.booleans())
def test_json_lines_and_json(place: Path, written: list[tuple[str | None, str | None]], escaped: bool) -> None:
    objects = [{"b": other, "a": one} for one, other in written]
    lines = [json.dumps(row, ensure_ascii=escaped) for row in objects]
    (place / "l.jsonl").write_bytes("\n".join(lines).encode())
    (place / "l.json").write_bytes(json.dumps(objects, ensure_ascii=escaped, indent=1).encode())
    (place / "c.json").write_bytes(json.dumps({name: [row[name] for row in objects] for name in "ab"}).encode())
    absent = all(one is None for one, _ in written), all(other is None for _, other in written)
    assert read(place / "l.jsonl") == read(place / "l.json") == read(place / "c.json") == written, absent


@quickly
@given(written=rows(MISSING))
def test_parquet(place: Path, written: list[tuple[str | None, str | None]]) -> None:
    columns = {"b": [other for _, other in written], "c": [0] * len(written), "a": [one for one, _ in written]}
    pa.parquet.write_table(pa.table(columns), place / "p.parquet")
    assert read(place / "p.parquet") == written


@quickly
@given(number=st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,12})?([eE][-+]?[0-9]{1,3})?", fullmatch=True))
def test_numbers_in_json_keep_their_spelling(place: Path, number: str) -> None:
    (place / "n.jsonl").write_text(f'{{"a": {number}, "b": [1][0]}}\n'.replace("[1][0]", "true"))
    assert read(place / "n.jsonl") == [(number, "true")]


@quickly
@given(text=CELL)
def test_a_text_file_is_its_text(place: Path, text: str) -> None:
    """Save for a mark at its head, which says that it is UTF-8."""
    (place / "t.txt").write_bytes(text.encode())
    assert texts.read_text(place / "t.txt") == text.removeprefix("\ufeff")
