"""A table of counts as the report shows it: a table of numbers where they can be read, else a picture to point at."""

from dataclasses import dataclass
from typing import Any

from triptych.runs.readers import Counts

NUMBERS = 25  # rows up to which every cell shows its number
MISTAKES = 8  # of the most frequent ones, in words

_TITLES = {"confusion": "Confusion matrix"}
_SPLITS = {"test": "Test split", "val": "Validation split"}


@dataclass(frozen=True)
class Cell:
    """One cell. ``shade`` in 0 to 1 is the root of its share of the row, so that rare mistakes show as well."""

    count: int
    shade: str
    right: bool
    title: str


@dataclass(frozen=True)
class Shown:
    """What the template needs of one table."""

    title: str
    caption: str
    rows: str
    columns: str
    names: list[str]
    upright: bool  # whether the names over the columns are short enough to stand upright
    cells: list[tuple[str, list[Cell]]]  # row by row with its name; none where there are more than ``NUMBERS``
    drawn: dict[str, Any] | None  # instead of them, for the page's script: id, names, [row, column, count] ...
    mistakes: list[str]  # "4 as 9: 3 of 50 (6.0\N{NO-BREAK SPACE}%)"
    accuracies: list[tuple[str, str]]  # of each class, the lowest first; where no cell says it


def prepare(table: Counts) -> Shown:
    """Cells, shades and sentences of a table."""
    sums = [sum(row) for row in table.counts]
    total, right = sum(sums), sum(row[index] for index, row in enumerate(table.counts))
    small = len(table.names) <= NUMBERS
    cells = [
        (
            table.names[row],
            [
                Cell(
                    count, f"{(count / max(sums[row], 1)) ** 0.5:.3f}", row == column, _words(table, row, column, sums)
                )
                for column, count in enumerate(counts)
            ],
        )
        for row, counts in enumerate(table.counts)
        if small
    ]
    filled = [(r, c, count) for r, row in enumerate(table.counts) for c, count in enumerate(row) if count]
    wrong = sorted((cell for cell in filled if cell[0] != cell[1]), key=lambda cell: (-cell[2], cell[:2]))
    shares = sorted((table.counts[row][row] / sums[row], row) for row in range(len(sums)) if sums[row])
    named = {"rows": table.rows, "columns": table.columns, "names": table.names}
    return Shown(
        title=_TITLES.get(table.name, table.name),
        caption=f"{_SPLITS.get(table.split, table.split)}, step {table.step:,}: {right:,} of {total:,} right"
        + (f" ({right / total:.1%})".replace("%", "\N{NO-BREAK SPACE}%") if total else ""),
        upright=max(map(len, table.names)) <= 2,
        cells=cells,
        drawn=None if small else {"id": f"counts-{table.split}-{table.name}", **named, "filled": filled},
        mistakes=[
            f"{table.names[row]} as {table.names[column]}: {_part(count, sums[row])}"
            for row, column, count in wrong[:MISTAKES]
        ],
        accuracies=[]
        if small
        else [(table.names[row], f"{100 * share:.1f}\N{NO-BREAK SPACE}%") for share, row in shares],
        rows=table.rows,
        columns=table.columns,
        names=table.names,
    )


def _words(table: Counts, row: int, column: int, sums: list[int]) -> str:
    said = f"{table.rows} {table.names[row]}, {table.columns} {table.names[column]}"
    return f"{said}: {_part(table.counts[row][column], sums[row])}"


def _part(count: int, total: int) -> str:
    return f"{count:,} of {total:,} ({100 * count / max(total, 1):.1f}\N{NO-BREAK SPACE}%)"
