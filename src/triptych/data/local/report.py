"""What was read from where, what was left out, and what was changed: for the run's first lines, and its report."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

SHOWN = 5  # names in a sentence


@dataclass
class DataReport:
    """An account of a data set as it was read.

    files: split of the original -> how many files it was read from; empty where it did not come from files.
    rows: split of the original -> rows that were read from them.
    left_out: reason -> names of files that are not part of the data.
    filtered: split -> reason -> rows that were read and are not part of the data.
    changed: what was changed in texts after reading -> how often.
    notes: sentences about the data that a person should see.
    """

    files: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    filtered: dict[str, Counter[str]] = field(default_factory=dict)
    changed: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def leave_out(self, name: str, reason: str) -> None:
        """Note a file that is not part of the data."""
        self.left_out.setdefault(reason, []).append(name)

    def filter_out(self, split: str, reason: str, rows: int = 1) -> None:
        """Note rows that are not part of the data."""
        if rows:
            self.filtered.setdefault(split, Counter())[reason] += rows

    def change(self, what: str, times: int) -> None:
        """Note what was changed in texts after reading."""
        if times:
            self.changed[what] += times

    def lines(self) -> list[str]:
        """The account in words, one subject each."""
        parts = [f"{reasons_in_words(reasons)} from {split}" for split, reasons in self.filtered.items()]
        found = [f"filtered {' and '.join(parts)}" if parts else "nothing filtered"]
        read = []
        if self.files:
            total = sum(self.files.values())
            read.append(f"{total:,} file{'s' if total != 1 else ''}{_by_split(self.files)}")
        if self.rows:
            total = sum(self.rows.values())
            read.append(f"{total:,} row{'s' if total != 1 else ''}{_by_split(self.rows)}")
        if read:
            found.append(f"read {', '.join(read)}")
        if self.left_out:
            named = [f"{some(names)} ({reason})" for reason, names in self.left_out.items()]
            found.append(f"files left out: {', '.join(named)}")
        if self.changed:
            found.append(f"read {reasons_in_words(self.changed)}")
        return [*found, *self.notes]

    def to_json(self) -> dict[str, Any]:
        """As plain containers, for `summary.json`; long lists of names are cut, their number stays."""
        return {
            "lines": self.lines(),
            "files": dict(self.files),
            "rows": dict(self.rows),
            "left_out": {
                reason: {"count": len(names), "names": names[:100]} for reason, names in self.left_out.items()
            },
            "filtered": {split: dict(reasons) for split, reasons in self.filtered.items()},
            "changed": dict(self.changed),
            "notes": list(self.notes),
        }


def reasons_in_words(counts: Counter[str]) -> str:
    """ "3 empty, 1 over-long"."""
    return ", ".join(f"{count:,} {reason}" for reason, count in counts.items())


def _by_split(counts: dict[str, int]) -> str:
    """How many of each split; nothing where all are train."""
    if counts.keys() == {"train"}:
        return ""
    return f" ({', '.join(f'{split} {count:,}' for split, count in counts.items())})"


def some(names: list[str]) -> str:
    """The first few of many names, in one line."""
    more = len(names) - SHOWN
    shown = ("".join(c if c.isprintable() else ascii(c)[1:-1] for c in name) for name in names[:SHOWN])
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")
