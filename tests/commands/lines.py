"""What the tests of the command line share: a line run in this process, and one run in a process of its own."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from hydra.core.global_hydra import GlobalHydra

from triptych.commands.cli import main

SOURCE = Path(__file__).parents[2] / "src"


class Ended(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> Ended:
    """``triptych WORDS`` in this process."""
    GlobalHydra.instance().clear()
    monkeypatch.setattr(sys, "argv", ["triptych", *words])
    capfd.readouterr()
    code = 0
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:  # Hydra adds a handler that writes to what capfd closes after this test
        root.handlers[:] = handlers
        root.setLevel(level)
    return Ended(code, *capfd.readouterr())


def run_alone(folder: Path, *words: str | bytes, **environment: str) -> Ended:
    """``triptych WORDS`` in a process of its own, started in ``folder``."""
    done = subprocess.run(
        [sys.executable, "-m", "triptych.commands", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=600,
    )
    return Ended(done.returncode, done.stdout, done.stderr)
