"""The folder of a sweep: ``sweep.json``, which processes work on it, and what became of every trial."""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from triptych.errors import UserError
from triptych.files import write_text
from triptych.runs.folder import RunFolder

RECORD = "sweep.json"
OVER = ("finished", "failed", "pruned")  # the other statuses, running and interrupted, can be gone on with
Record = dict[str, Any]


class SweepFolder:
    """``runs/sweeps/<id>``. Several processes may work on one sweep: every change is made under a lock.

    ``sweep.json``: {"id", "task", "metric", "mode", "space", "command", "settings", "trials": [{"number", "overrides",
    "status": "finished|failed|pruned|running|interrupted", "run" (from this folder; null before it has one), "value",
    "steps", "why", "worker"}]}. A trial belongs to a worker, a process with a lock file here that goes when it does.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def id(self) -> str:
        """Its name."""
        return self.path.name

    def read(self) -> Record:
        """What ``sweep.json`` says. Raises UserError when there is none, or it is damaged."""
        try:
            return json.loads((self.path / RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path} is no folder of a sweep: it has no readable {RECORD}") from error

    @contextmanager
    def editing(self) -> Iterator[Record]:
        """The record, to be changed by nobody else meanwhile; stored whole at the end, unless that is an error."""
        with FileLock(self.path / ".lock"):
            record = self.read()
            yield record
            write_text(self.path / RECORD, json.dumps(record, indent=1, ensure_ascii=False) + "\n")

    @contextmanager
    def concluding(self) -> Iterator[None]:
        """One process at a time draws the conclusion; not under the lock of the record, since it takes a while.

        What the record says must be read inside: the last process to conclude then sees what all of them did.
        """
        with FileLock(self.path / ".conclusion.lock"):
            yield

    def start(self, record: Record) -> Record:
        """Store ``record`` if the sweep is new; return the one that stands there."""
        self.path.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path / ".lock"):
            if not (self.path / RECORD).exists():
                write_text(self.path / RECORD, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
            return self.read()

    def trial(self, number: int) -> dict[str, Any]:
        """One trial's entry."""
        return of_number(self.read(), number)

    def update(self, number: int, **changes: Any) -> None:
        """Change one trial's entry."""
        with self.editing() as record:
            of_number(record, number).update(changes)

    def run(self, trial: dict[str, Any]) -> RunFolder | None:
        """The run folder of a trial that has one."""
        return None if trial["run"] is None else RunFolder(Path(os.path.normpath(self.path / trial["run"])))

    def join(self) -> "Worker":
        """Work on this sweep: trials may be claimed in the name of the worker returned."""
        return Worker(self.path)

    def alive(self, worker: str) -> bool:
        """Whether the process that goes by that name still lives."""
        file = self.path / f".worker-{worker}"
        if not file.exists():
            return False
        lock = FileLock(file)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return True
        file.unlink(missing_ok=True)
        lock.release()
        return False


class Worker:
    """A process that works on a sweep, known by a locked file: the lock goes when the process does."""

    def __init__(self, folder: Path) -> None:
        self.name = secrets.token_hex(4)
        self._file = folder / f".worker-{self.name}"
        self._lock = FileLock(self._file)
        self._lock.acquire()

    def leave(self) -> None:
        """No longer work on it."""
        self._file.unlink(missing_ok=True)
        self._lock.release()


def of_number(record: Record, number: int) -> dict[str, Any]:
    """The entry of trial ``number``."""
    return next(trial for trial in record["trials"] if trial["number"] == number)


def new_id() -> str:
    """A name that no other sweep has."""
    return f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def all_sweeps(runs: Path) -> list[SweepFolder]:
    """The sweeps recorded in a folder of runs, newest first."""
    found = [file for file in (runs / "sweeps").glob(f"*/{RECORD}") if not file.parent.is_symlink()]
    return [SweepFolder(file.parent) for file in sorted(found, key=lambda file: file.stat().st_mtime, reverse=True)]
