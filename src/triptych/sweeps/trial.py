"""One trial, in whichever process a launcher starts it: whatever happens to it is noted, and the sweep goes on."""

import gc
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from triptych.config.messages import sentence
from triptych.errors import Requeued
from triptych.files import write_text
from triptych.runs.folder import RunFolder
from triptych.sweeps.plans import ending
from triptych.sweeps.pruning import Pruned
from triptych.sweeps.record import SweepFolder


@dataclass(frozen=True)
class Outcome:
    """How a trial ended; the rest is in ``sweep.json``."""

    number: int
    status: str


class RunTrial:
    """A task function for Hydra's launchers, around the one that trains. Picklable where that is."""

    def __init__(self, function: Callable[[DictConfig], Any]) -> None:
        self.function = function

    def __call__(self, config: DictConfig) -> Outcome:
        folder = SweepFolder(Path(config.runs) / "sweeps" / config.trial.sweep)
        number = config.trial.number
        folder.update(number, steps=0)  # it began
        changes: dict[str, Any]
        try:
            with stoppable():
                run = self.function(config)
            assert isinstance(run, RunFolder)
            changes = ending(run.summary(), folder.read()["metric"])
        except Requeued:
            raise  # still running, as far as the sweep is concerned
        except Pruned as error:
            changes = {"status": "pruned", "why": str(error)}
        except (KeyboardInterrupt, SystemExit):
            changes = {"status": "interrupted", "why": None}
        except Exception as error:
            said = sentence(error)
            if said is None:  # a bug: the sweep goes on, and the traceback is kept
                said = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                write_text(folder.path / f"trial-{number}.txt", traceback.format_exc())
            changes = {"status": "failed", "why": said}
        with folder.editing() as record:
            entry = next(trial for trial in record["trials"] if trial["number"] == number)
            entry.update(changes)
            if (made := folder.run(entry)) is not None:
                entry["steps"] = made.summary().get("steps", entry["steps"])
        _free(failed=changes["status"] == "failed")
        return Outcome(number, changes["status"])


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM as KeyboardInterrupt, where nobody else catches it: also between two runs a sweep ends in order."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # submitit has its own
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _free(*, failed: bool) -> None:
    """The memory of this trial, where the next may need it at once: on a GPU, and after one that ran out of it."""
    import torch

    if failed or torch.cuda.is_available():
        gc.collect()  # takes a good part of a second
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
