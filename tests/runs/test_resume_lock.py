"""Which run is resumed is decided under its lock: two processes never go on with one run, nor with one that is over."""

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from triptych.errors import UserError
from triptych.runs import folder, resume
from triptych.runs.folder import RunFolder

FORK = multiprocessing.get_context("fork")
PATIENCE = 60.0  # seconds for one another


@pytest.fixture
def config(tmp_path: Path) -> DictConfig:
    return OmegaConf.create(
        {
            "task": {"name": "charlm"},
            "data": {"path": None},
            "trainer": {"precision": "32-true", "max_steps": 0},
            "compile": False,
            "resume": "auto",
            "runs": str(tmp_path / "runs"),
        }
    )


def stored_run(config: DictConfig, **summary: Any) -> RunFolder:
    """A run folder without a checkpoint, held by nobody."""
    run = folder.create(Path(config.runs), "charlm")
    run.write_config(config)
    run.write_summary({"status": "interrupted", "data": {"fingerprint": "same"}, **summary})
    run.release()
    return run


Choice = Callable[[], resume.Resumed | None]


def forked(body: Callable[[], None]) -> Any:
    """A process that does ``body``; its exit code is 1 where that raises."""

    def run() -> None:
        code = 1
        try:
            body()
            code = 0
        finally:
            os._exit(code)

    process = FORK.Process(target=run)
    process.start()
    return process


def test_of_two_processes_at_once_one_gets_the_run(config: DictConfig) -> None:
    """Each holds what it got until both have chosen, as a training would."""
    run, rounds = stored_run(config), 20
    chosen: Any = FORK.Queue()
    ready: Barrier = FORK.Barrier(2)

    def choose() -> None:
        for _ in range(rounds):
            ready.wait(PATIENCE)
            resumed = resume.newest(config, "charlm", "same")
            chosen.put(None if resumed is None else resumed.folder.path.name)
            ready.wait(PATIENCE)
            if resumed is not None:
                resumed.folder.release()

    processes = [forked(choose), forked(choose)]
    answers = [chosen.get(timeout=PATIENCE) for _ in range(2 * rounds)]
    for process in processes:
        process.join(PATIENCE)
        assert process.exitcode == 0
    assert answers.count(None) == answers.count(run.path.name) == rounds


def after_another_has_ended_it(run: RunFolder, choose: Choice, status: str) -> tuple[str, str]:
    """What ``choose`` comes to in a process that had looked at ``run`` while this one still trained it.

    This process holds the lock. The other one is let go as far as its own lock; only then is the run ended here.
    """
    answer: Any = FORK.Queue()
    asks: Event = FORK.Event()
    ended: Event = FORK.Event()
    lock = RunFolder.lock

    def locking(self: RunFolder) -> bool:
        asks.set()
        assert ended.wait(PATIENCE)
        return lock(self)

    def body() -> None:
        RunFolder.lock = locking  # type: ignore[method-assign]
        try:
            resumed = choose()
            answer.put(("got", "nothing" if resumed is None else resumed.folder.path.name))
        except UserError as error:
            answer.put(("refused", str(error)))
        answer.close()
        answer.join_thread()

    assert run.lock()
    process = forked(body)
    assert asks.wait(PATIENCE), "a run that is not over yet is asked for"
    run.write_summary({**run.summary(), "status": status})
    run.release()
    ended.set()
    said = answer.get(timeout=PATIENCE)
    process.join(PATIENCE)
    assert process.exitcode == 0
    assert run.lock(), "the refusal did not keep the run"
    run.release()
    return said


@pytest.mark.parametrize("status", ["finished", "pruned"])
def test_auto_does_not_go_on_with_a_run_that_ended_while_it_looked(config: DictConfig, status: str) -> None:
    run = stored_run(config, status="running")
    said = after_another_has_ended_it(run, lambda: resume.newest(config, "charlm", "same"), status)
    assert said == ("got", "nothing")


def test_auto_goes_on_with_a_run_that_was_interrupted_while_it_looked(config: DictConfig) -> None:
    run = stored_run(config, status="running")
    said = after_another_has_ended_it(run, lambda: resume.newest(config, "charlm", "same"), "interrupted")
    assert said == ("got", run.path.name)


def test_a_named_run_that_ended_while_it_was_asked_for_is_refused(config: DictConfig) -> None:
    run = stored_run(config, status="running")
    config.resume = str(run.path)
    kind, said = after_another_has_ended_it(run, lambda: resume.named(config, "charlm"), "finished")
    assert kind == "refused"
    assert "has made its 0 updates" in said


def test_a_named_run_is_read_as_it_stands_under_the_lock(config: DictConfig) -> None:
    """Whoever held the lock may have gone on with the run under a new configuration."""
    run = stored_run(config)
    config.resume = str(run.path)
    lock = RunFolder.lock

    def locking(self: RunFolder) -> bool:
        longer = OmegaConf.merge(run.config(), {"trainer": {"max_steps": 7}})
        assert isinstance(longer, DictConfig)
        run.write_config(longer)
        return lock(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "lock", locking)
        resumed = resume.named(config, "charlm")
    assert resumed is not None
    assert resumed.config.trainer.max_steps == 7
    resumed.folder.release()


def test_only_a_candidate_is_locked(config: DictConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock held for a moment on a run that is not taken would make another process pass over it."""
    stored_run(config, status="finished")
    other = OmegaConf.merge(config, {"trainer": {"precision": "bf16-mixed"}})
    assert isinstance(other, DictConfig)
    stored_run(other)
    stored_run(config, data={"fingerprint": "another"})
    (Path(config.runs) / "charlm" / "20990101-000000-abcdef").mkdir()
    wanted = stored_run(config)
    locked: list[Path] = []
    lock = RunFolder.lock
    monkeypatch.setattr(RunFolder, "lock", lambda self: locked.append(self.path) or lock(self))
    resumed = resume.newest(config, "charlm", "same")
    assert resumed is not None
    assert locked == [wanted.path]
    resumed.folder.release()


@pytest.mark.parametrize("by_name", [True, False])
def test_what_kills_left_beside_the_checkpoints_goes(config: DictConfig, by_name: bool) -> None:
    run = stored_run(config)
    left = run.path / "checkpoints" / ".0123456789abcdef.partial"
    left.write_bytes(b"half a checkpoint")
    elsewhere = run.path / ".0123456789abcdef.partial"  # a report that another process is writing, perhaps
    elsewhere.write_bytes(b"half a page")
    config.resume = str(run.path) if by_name else "auto"
    resumed = resume.named(config, "charlm") or resume.newest(config, "charlm", "same")
    assert resumed is not None
    resumed.folder.release()
    assert not left.exists()
    assert elsewhere.exists()
