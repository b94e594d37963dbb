"""Killed at any moment and resumed, a run ends as if nothing had happened; and its folder can be read all the while."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import DictConfig

from conftest import Composed
from triptych.commands.train import train
from triptych.report import run_page
from triptych.runs import folder
from triptych.runs.metrics_rows import read

KILLS = 20
SHORT = (
    "trainer.max_steps=120",
    "checkpoint_every=5",
    "maps.every_n_steps=50",
    "maps.probes=1",
    "logger=[]",
)


class Run:
    """A short charlm run with ``resume=auto``, each time in a process of its own, forked: nothing is imported again."""

    def __init__(self, config: DictConfig) -> None:
        self.config, self.runs = config, Path(config.runs)

    def start(self) -> multiprocessing.Process:
        def body() -> None:
            code = 1
            try:
                train(self.config)
                code = 0
            except SystemExit as error:
                code = int(error.code or 0)
            finally:
                os._exit(code)

        process = multiprocessing.get_context("fork").Process(target=body)
        process.start()
        return process

    @property
    def done(self) -> bool:
        """Whether it has finished: a blow may come after that, and starting it again would begin another run."""
        return any(found.summary().get("status") == "finished" for found in folder.all_runs(self.runs, "charlm"))

    def finish(self) -> Path:
        if not self.done:
            process = self.start()
            process.join(300)
            assert process.exitcode == 0
        return self.only

    @property
    def only(self) -> Path:
        (run,) = folder.all_runs(self.runs, "charlm")
        return run.path

    def steps(self) -> int:
        """How far it has come, as its files say; -1 before there is a folder."""
        found = folder.all_runs(self.runs, "charlm")
        if not found:
            return -1
        rows = read(found[0].path / "metrics.csv")
        return int(rows[-1]["step"]) if rows else 0


def ends(run: Path) -> dict[str, float]:
    """Every metric of a finished run."""
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "finished"
    return summary["metrics"]


def can_be_read(run: Path) -> None:
    """What `make compare` and the report take from it, whatever state it is in."""
    (found,) = folder.all_runs(run.parent.parent, "charlm")
    assert found.summary().get("status", "running") in ("running", "interrupted", "finished")
    if (run / folder.CONFIG).exists():
        found.config()
    read(run / "metrics.csv")
    run_page.write(run)
    if found.checkpoint:
        folder.checkpoint_contents(found.checkpoint)


def struck(run: Run, kills: int, seed: int) -> Iterator[str]:
    """Start it again and again, and strike each time at a random moment: while it prepares, trains, or tests."""
    chance = random.Random(seed)
    for _ in range(kills):
        number = chance.choice([signal.SIGKILL, signal.SIGTERM])
        process = run.start()
        process.join(chance.uniform(0.1, 4.0))
        if process.exitcode is None:
            os.kill(process.pid or 0, number)
        process.join(120)
        if process.exitcode == 0:
            return  # it was done before
        assert process.exitcode in (130, -signal.SIGKILL, -signal.SIGTERM)
        if folder.all_runs(run.runs, "charlm"):
            can_be_read(run.only)
        yield f"{signal.Signals(number).name} at step {run.steps()}"
        if run.done:
            return


@pytest.mark.slow
def test_twenty_kills_change_nothing(composed: Composed, tmp_path: Path) -> None:
    """kill -9 and SIGTERM, at random moments; more than one round where a run is done before twenty."""
    undisturbed = ends(train(composed(*SHORT, f"runs={tmp_path / 'undisturbed'}")).path)
    done = 0
    for round_ in range(KILLS):
        run = Run(composed(*SHORT, "resume=auto", f"runs={tmp_path / f'struck-{round_}'}"))
        moments = list(struck(run, min(KILLS - done, 5), seed=round_))
        done += len(moments)
        assert ends(run.finish()) == pytest.approx(undisturbed, abs=1e-6), moments
        can_be_read(run.only)
        print(f"round {round_}: {', '.join(moments)}")
        if done >= KILLS:
            break
    assert done == KILLS


def test_two_kills_change_nothing(composed: Composed, tmp_path: Path) -> None:
    undisturbed = ends(train(composed(*SHORT, f"runs={tmp_path / 'undisturbed'}")).path)
    run = Run(composed(*SHORT, "resume=auto", f"runs={tmp_path / 'struck'}"))
    for number, step in ((signal.SIGKILL, 20), (signal.SIGTERM, 60)):  # by its own count: machines differ in speed
        process = run.start()
        while process.exitcode is None and run.steps() < step:
            time.sleep(0.005)
        os.kill(process.pid or 0, number)
        process.join(120)
        assert process.exitcode in (130, -signal.SIGKILL, -signal.SIGTERM)
        can_be_read(run.only)
    assert ends(run.finish()) == pytest.approx(undisturbed, abs=1e-6)
    can_be_read(run.only)


def test_a_run_folder_can_be_moved_and_gone_on_with(composed: Composed, tmp_path: Path) -> None:
    """Nothing in it, its best checkpoint's score least of all, depends on where it was."""
    first = train(composed("trainer.max_steps=20")).path
    best = folder.checkpoint_contents(first / folder.BEST)
    moved = tmp_path / "elsewhere" / "charlm" / first.name
    moved.parent.mkdir(parents=True)
    shutil.move(first, moved)
    again = train(composed("trainer.max_steps=40", f"resume={moved}")).path
    assert again == moved
    assert not first.exists()
    assert ends(moved)["val/loss"] <= best["callbacks"]["CheckpointCallback"]["best_score"] + 1e-6


def test_runs_that_start_in_the_same_second_share_nothing(tmp_path: Path) -> None:
    """Forty at once: as many folders, each held by one of them, and ``latest`` leads to one."""
    made: list[folder.RunFolder] = []
    ready = threading.Barrier(40)

    def start() -> None:
        ready.wait()
        made.append(folder.create(tmp_path, "charlm"))

    threads = [threading.Thread(target=start) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({run.path for run in made}) == len(folder.all_runs(tmp_path, "charlm")) == 40
    assert os.readlink(tmp_path / "charlm" / "latest") in {run.path.name for run in made}
    assert not list((tmp_path / "charlm").glob("*.partial"))
    for run in made:
        assert not folder.RunFolder(run.path).lock()
        run.release()
