"""Who runs which trial: never two processes the same, never none, whoever dies when."""

import json
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from triptych.errors import UserError
from triptych.sweeps.plans import Grid, claim
from triptych.sweeps.record import SweepFolder, all_sweeps
from triptych.sweeps.results import best, by_configuration, grid_importance
from triptych.sweeps.space import read

SPACE = read({}, ["lr=1,2", "seed=0,1"], OverridesParser.create())


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    made = SweepFolder(tmp_path / "runs/sweeps/one")
    made.start({"id": "one", "metric": "val/loss", "mode": "min", "trials": []})
    return made


def claimed(folder: SweepFolder, worker: str) -> int | None:
    found = claim(folder, Grid(SPACE), worker)
    return None if found is None else found["number"]


def finish(folder: SweepFolder, number: int, value: float, status: str = "finished") -> None:
    folder.update(number, status=status, value=value)


def test_two_workers_share_the_trials(folder: SweepFolder) -> None:
    one, two = folder.join(), folder.join()
    assert [claimed(folder, worker.name) for worker in (one, two, two, one, one)] == [0, 1, 2, 3, None]


def test_what_a_dead_worker_ran_is_taken_up_first(folder: SweepFolder) -> None:
    dead, living = folder.join(), folder.join()
    assert claimed(folder, dead.name) == 0
    finish(folder, 0, 1.0)
    assert claimed(folder, dead.name) == 1
    dead._lock.release()  # as the system does when a process is killed; its file stays
    assert claimed(folder, living.name) == 1, "and 0, which is over, is not run again"
    assert claimed(folder, living.name) == 2


def test_an_interrupted_trial_is_taken_up(folder: SweepFolder) -> None:
    worker = folder.join()
    claimed(folder, worker.name)
    folder.update(0, status="interrupted")
    assert claimed(folder, worker.name) == 0


def test_a_run_that_ended_just_before_the_kill_is_noted_not_repeated(folder: SweepFolder) -> None:
    dead, living = folder.join(), folder.join()
    claimed(folder, dead.name)
    run = folder.path.parents[1] / "vit/a-run"
    run.mkdir(parents=True)
    (run / "summary.json").write_text(json.dumps({"status": "finished", "steps": 7, "metrics": {"val/loss": 0.5}}))
    folder.update(0, run="../../vit/a-run")
    dead.leave()
    assert claimed(folder, living.name) == 1
    noted = folder.trial(0)
    assert (noted["status"], noted["value"], noted["steps"]) == ("finished", 0.5, 7)


def test_a_run_that_another_process_still_trains_is_left_to_it(folder: SweepFolder) -> None:
    dead, living = folder.join(), folder.join()
    claimed(folder, dead.name)
    (folder.path.parents[1] / "vit/a-run").mkdir(parents=True)
    folder.update(0, run="../../vit/a-run")
    dead.leave()
    run = folder.run(folder.trial(0))
    assert run is not None
    run.lock()
    assert claimed(folder, living.name) == 1
    run.release()
    assert claimed(folder, living.name) == 0


def test_a_change_that_fails_leaves_the_record_whole(folder: SweepFolder) -> None:
    with pytest.raises(ZeroDivisionError), folder.editing() as record:
        record["trials"].append(1 / 0)
    assert folder.read()["trials"] == []


def test_folders_that_are_no_sweeps_are_skipped_and_a_damaged_one_is_named(folder: SweepFolder) -> None:
    runs = folder.path.parents[1]
    (runs / "sweeps/attention_history-1").mkdir()
    assert [found.id for found in all_sweeps(runs)] == ["one"]
    (folder.path / "sweep.json").write_text('{"id"')
    with pytest.raises(UserError, match="no readable sweep"):
        folder.read()


def trials(*values: tuple[str, int, float | None]) -> dict[str, Any]:
    rows = [
        {"overrides": [f"lr={lr}", f"seed={seed}"], "status": "failed" if value is None else "finished", "value": value}
        for lr, seed, value in values
    ]
    return {"mode": "min", "trials": rows}


def test_the_best_configuration_is_so_over_its_seeds_not_by_one_lucky_run() -> None:
    record = trials(("1", 0, 0.1), ("1", 1, 0.9), ("2", 0, 0.4), ("2", 1, 0.4), ("3", 0, None))
    assert best(record) == (("lr=2",), 0.4)
    assert {words: len(found) for words, found in by_configuration(record).items()} == {("lr=1",): 2, ("lr=2",): 2}


def test_importance_in_a_grid_is_the_share_of_the_variance_of_means() -> None:
    """Means over lr: 1, 3 (variance 1); over seed: 1.5, 2.5 (variance 0.25): shares 0.8 and 0.2."""
    record = trials(("1", 0, 0.5), ("1", 1, 1.5), ("2", 0, 2.5), ("2", 1, 3.5))
    assert grid_importance(record, dict(SPACE.axes)) == pytest.approx({"lr": 0.8, "seed": 0.2})
    assert grid_importance(trials(("1", 0, 1.0), ("2", 0, 1.0)), dict(SPACE.axes)) == {}
