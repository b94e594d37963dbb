"""The environment of the process: a group puts back what it set, one variable at a time, and touches nothing else."""

import os
from pathlib import Path

import pytest
import torch

from triptych.distributed.launch import VARIABLES, ProcessGroup

SOURCE = Path(__file__).parent.parent.parent / "src" / "triptych"


class Pair(ProcessGroup):
    """One of two processes on this machine, as far as the environment is concerned."""

    size = local_size = 2


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("fails", [False, True])
def test_the_environment_is_put_back_and_never_empty(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("OF_ANOTHER_THREAD", "before")
    for name in set(VARIABLES) - {"OMP_NUM_THREADS"}:
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    removed: list[str] = []
    unset = os.unsetenv

    def unsetting(name: bytes) -> None:
        removed.append(os.fsdecode(name))
        unset(name)

    def run() -> None:
        with Pair():
            assert os.environ["OMP_NUM_THREADS"] == str(torch.get_num_threads())
            os.environ["WORLD_SIZE"] = "2"  # as Lightning might
            os.environ["OF_ANOTHER_THREAD"] = "meanwhile"
            os.environ["OF_A_LIBRARY"] = "loaded meanwhile"
            if fails:
                raise ZeroDivisionError

    monkeypatch.setenv("OF_A_LIBRARY", "")  # so that it goes after the test
    monkeypatch.setattr(os, "unsetenv", unsetting)
    if fails:
        with pytest.raises(ZeroDivisionError):
            run()
    else:
        run()
    assert removed == ["WORLD_SIZE"], "nothing that was there before is gone even for a moment"
    others = {"OF_ANOTHER_THREAD": "meanwhile", "OF_A_LIBRARY": "loaded meanwhile"}
    assert dict(os.environ) == before | others


def test_no_other_part_empties_it() -> None:
    ways = ("environ.clear(", "environ.popitem(", "environ = ", "clearenv", "clear=True")
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not [way for way in ways if way in text], path
