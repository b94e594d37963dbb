"""Two processes work on one study at once: each trial is run by one of them, and both end well, whoever ends first."""

import csv
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from test_sweep import FEW, blow_at, statuses

from conftest import TINY
from triptych.commands.cli import command
from triptych.commands.train import train
from triptych.report import compare
from triptych.runs.folder import RunFolder
from triptych.sweeps import results
from triptych.sweeps.plans import Grid, claim
from triptych.sweeps.record import SweepFolder
from triptych.sweeps.search import Search
from triptych.sweeps.settings import Settings
from triptych.sweeps.space import read

FORK = multiprocessing.get_context("fork")
PATIENCE = 120.0  # seconds for one another


class Study:
    """``start(words)``: a process of the study, forked. What it prints goes to a file of its own."""

    def __init__(self, place: Path, text: Path) -> None:
        self.place, self.text, self.folder = place, text, SweepFolder(place / "runs/sweeps/both")
        self.processes: list[Any] = []

    def start(self, *words: str) -> None:
        shared = ["task=charlm", "data=text", f"data.path={self.text}", *TINY, *FEW, f"runs={self.place / 'runs'}"]
        sys.argv = ["sweep", *shared, "sweep.study=both", *words]  # in the test, which puts it back
        said = self.place / f"said-{len(self.processes)}.txt"

        def body() -> None:
            code: Any = 1
            with open(said, "w", encoding="utf-8") as file:
                for stream in (1, 2):
                    os.dup2(file.fileno(), stream)
                sys.stdout = sys.stderr = results.console.file = file
                try:
                    command(train, "train", sweep=True)
                    code = 0
                except SystemExit as ended:
                    code = ended.code
                except BaseException:
                    traceback.print_exc()
            os._exit(int(code or 0))

        process = FORK.Process(target=body)
        process.start()
        self.processes.append(process)

    def said(self, number: int) -> str:
        return (self.place / f"said-{number}.txt").read_text(encoding="utf-8")

    def check_end(self, number: int) -> None:
        """This process ends well."""
        self.processes[number].join(PATIENCE)
        assert self.processes[number].exitcode == 0, self.said(number)

    def check_conclusion(self, trials: int) -> None:
        """Every trial was run once, and what is stored of the study says all that came out, and no less."""
        record = self.folder.read()
        assert statuses(record) == ["finished"] * trials
        runs = [path for path in (self.place / "runs/charlm").iterdir() if not path.is_symlink()]
        assert len(runs) == len({trial["run"] for trial in record["trials"]}) == trials
        winner = results.best(record)
        assert winner is not None
        assert all(word in record["best"] for word in winner[0])
        with open(self.folder.path / compare.CSV, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["status"] for row in rows] == ["finished"] * trials
        assert winner[0][0] in (self.folder.path / compare.PAGE).read_text(encoding="utf-8")
        assert not list(self.place.rglob("*.partial"))


@pytest.fixture
def study(tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Study:
    monkeypatch.setattr(sys, "argv", sys.argv)
    return Study(tmp_path, text_file)


def waiting(event: Event, first: Event | None = None) -> Callable[[Any], None]:
    def wait(*_: Any) -> None:
        if first is not None:
            first.set()
        assert event.wait(PATIENCE)

    return wait


def test_two_that_end_at_the_same_moment_both_end_well(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    together = FORK.Barrier(2)
    concluding = SweepFolder.concluding

    def both(self: SweepFolder) -> AbstractContextManager[None]:
        together.wait(PATIENCE)
        return concluding(self)

    monkeypatch.setattr(SweepFolder, "concluding", both)
    study.start("optimizer.lr=0.01,0.02", "seed=1,2")
    study.start("optimizer.lr=0.01,0.02", "seed=1,2")
    for number in (0, 1):
        study.check_end(number)
        assert "4 trials: 4 finished" in study.said(number)
        assert study.said(number).splitlines()[-1].startswith("make train task=charlm")
    study.check_conclusion(4)
    for trial in study.folder.read()["trials"]:
        run = study.folder.run(trial)
        assert run is not None
        assert "2 seeds: " in (run.path / "report.html").read_text(encoding="utf-8")


def test_the_conclusion_of_the_last_one_stands(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process has read its numbers and is about to write; the other's trial ends, and it concludes too."""
    other_began, about_to_write, other_over = FORK.Event(), FORK.Event(), FORK.Event()
    write = compare.write_text

    def slow(path: Path, text: str) -> None:
        if not about_to_write.is_set():
            about_to_write.set()
            other_over.wait(2.0)  # it must not be over so soon: it waits for this conclusion
        write(path, text)
        other_over.set()

    monkeypatch.setattr(compare, "write_text", slow)
    blow_at(monkeypatch, 1, 0.02, waiting(about_to_write, other_began))
    with monkeypatch.context() as patch:
        blow_at(patch, 1, 0.01, waiting(other_began))  # else one process might run both trials
        study.start("optimizer.lr=0.01,0.02")
        study.start("optimizer.lr=0.01,0.02")
    for number in (0, 1):
        study.check_end(number)
    study.check_conclusion(2)


def test_one_with_nothing_left_to_do_ends_well_before_any_trial_has(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = FORK.Event(), FORK.Event()
    blow_at(monkeypatch, 1, 0.01, waiting(go_on, began))
    study.start("optimizer.lr=choice(0.01)")
    assert began.wait(PATIENCE), study.said(0)
    study.start("optimizer.lr=choice(0.01)")
    study.check_end(1)
    assert "other processes still run 1 trials" in study.said(1)
    go_on.set()
    study.check_end(0)
    record = study.folder.read()
    assert statuses(record) == ["finished"]
    assert "optimizer.lr=0.01" in record["best"]


def test_no_two_draw_the_same_numbers(tmp_path: Path) -> None:
    """Two that begin a search at the same moment, and one that comes back, try what nobody has tried."""
    folder = SweepFolder(tmp_path / "runs/sweeps/both")
    chosen = {"space": {}, "study": "both", "metric": "val/loss", "mode": "min", "seed": 0, "at_once": None}
    chosen |= {"sampler": "random", "trials": 9, "pruner": "none", "startup": 1}
    kept = {"sampler": "random", "pruner": "none", "startup": 1, "trials": 9, "max_steps": 6, "first_validation": 2}
    folder.start({"id": "both", "metric": "val/loss", "mode": "min", "trials": [], "settings": kept})
    space = read({}, ["lr=interval(0.01,1)"], OverridesParser.create())
    settings = Settings(**chosen)  # type: ignore[arg-type]
    one, two = (Search(folder, settings, space, {}) for _ in range(2))
    worker = folder.join()
    back = None
    for number in range(9):
        plan = (one, two)[number % 2] if number < 6 else (back := back or Search(folder, settings, space, {}))
        assert claim(folder, plan, worker.name) is not None
    drawn = [trial["overrides"][0] for trial in folder.read()["trials"]]
    assert len(set(drawn)) == 9
    alone = SweepFolder(tmp_path / "runs/sweeps/alone")
    alone.start({"id": "alone", "metric": "val/loss", "mode": "min", "trials": [], "settings": kept})
    by_one, lonely = Search(alone, settings, space, {}), alone.join()
    for _ in range(9):
        claim(alone, by_one, lonely.name)
    assert [trial["overrides"][0] for trial in alone.read()["trials"]] == drawn, "however many take part"
    worker.leave()
    lonely.leave()


def test_a_run_is_asked_how_it_ended_while_it_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a look and a lock another process could end it."""
    folder = SweepFolder(tmp_path / "runs/sweeps/both")
    folder.start({"id": "both", "metric": "val/loss", "mode": "min", "trials": []})
    grid = Grid(read({}, ["lr=choice(1)"], OverridesParser.create()))
    dead = folder.join()
    claim(folder, grid, dead.name)
    run = tmp_path / "runs/charlm/a-run"
    run.mkdir(parents=True)
    folder.update(0, run="../../charlm/a-run")
    dead.leave()
    free: list[bool] = []
    summary = RunFolder.summary

    def asked(self: RunFolder) -> dict[str, Any]:
        other = RunFolder(self.path)
        free.append(other.lock())
        other.release()
        return summary(self)

    monkeypatch.setattr(RunFolder, "summary", asked)
    worker = folder.join()
    claim(folder, grid, worker.name)
    assert free == [False]
    worker.leave()
