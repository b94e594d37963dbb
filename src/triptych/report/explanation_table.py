"""What a terminal shows of an explanation: a table of the methods, and a sentence each."""

from typing import Any

from rich.table import Table


def table(explained: dict[str, Any]) -> Table:
    """What a terminal shows of the methods: advantages over random order with their 95 % intervals."""
    shown = Table(title=f"{explained['examples']} examples, advantage over {explained['orders']} random orders of each")
    columns = ("method", "deletion", "insertion", "class sensitivity", "compactness", "control", "ms per example")
    for column in columns:
        shown.add_column(column, justify="left" if column == "method" else "right")
    for row in explained["methods"]:
        shown.add_row(
            row["title"],
            *(_cell(row[name]) for name in ("deletion", "insertion", "class_sensitivity", "compactness", "control")),
            f"{row['seconds_per_example'] * 1000:.2f}",
        )
    return shown


def sentences(explained: dict[str, Any]) -> list[str]:
    """The verdict on each method, how they compare, and the interventions on inputs and layers."""
    lines = [f"{row['title']}: {row['verdict']}" for row in explained["methods"] if row["name"] != "random"]
    lines += [explained["comparison"]] if explained["comparison"] else []
    return lines + [row["sentence"] for row in explained["interventions"] if row["kind"] != "head"]


def _cell(interval: dict[str, Any] | None) -> str:
    if interval is None:
        return ""
    mean, low, high = (interval[name] for name in ("mean", "low", "high"))
    return f"{mean:.3f}" if low is None else f"{mean:.3f} [{low:.3f}, {high:.3f}]"
