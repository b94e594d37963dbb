"""The rows of ``metrics.csv`` as numbers, for whoever reads a run: needs no Lightning, which is slow to import."""

import csv
import io
from pathlib import Path


def read(path: Path) -> list[dict[str, float]]:
    """Rows of a metrics file as numbers, empty cells left out; a last line cut short by a kill is dropped."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            text = file.read()
    except OSError:
        return []
    whole = text[: text.rfind("\n") + 1]
    table = csv.DictReader(io.StringIO(whole, newline=""))
    rows = []
    for row in table:
        try:
            numbers = {name: float(cell) for name, cell in row.items() if cell not in ("", None)}
        except (TypeError, ValueError):
            continue
        if "step" in numbers:
            rows.append({**numbers, "step": int(numbers["step"])})
    return rows
