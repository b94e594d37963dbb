"""The launcher runs the module that it is told to, passes it the folder, and tells any rank's mistake in a sentence."""

from pathlib import Path

import pytest
import torch

from triptych.distributed import launch
from triptych.errors import UserError

pytestmark = pytest.mark.usefixtures("one_thread")
ENTRY = """
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from triptych.distributed.launch import Joined

if __name__ == "__main__":
    with Joined(*map(int, sys.argv[1:])) as group:
        folder = group.share(None)
        {then}
        group.connect(torch.device("cpu"))
        numbers = torch.tensor([float(group.rank)])
        dist.all_reduce(numbers)
        (folder / "sum").write_text(str(numbers.item()))
        group.disconnect()
"""


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that another project might have: nothing of triptych's commands is in it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    return "an_entry_of_their_own"


def world(entry: str) -> launch.ProcessGroup:
    group = launch.world(2, 1, None, torch.device("cpu"), entry=entry)
    assert isinstance(group, launch.Started)
    return group


def test_two_processes_compute_together_in_the_module_that_is_named(tmp_path: Path, entry: str) -> None:
    (tmp_path / f"{entry}.py").write_text(ENTRY.format(then="pass"))
    with world(entry) as group:
        assert group.share(tmp_path) == tmp_path
        group.connect(torch.device("cpu"))
        numbers = torch.tensor([5.0])
        torch.distributed.all_reduce(numbers)
        group.disconnect()
    assert numbers.item() == 6
    assert (tmp_path / "sum").read_text() == "6.0"


def meet(entry: str, folder: Path) -> None:
    """What rank 0 does before it trains."""
    with world(entry) as group:
        group.share(folder)
        group.connect(torch.device("cpu"))


def test_a_mistake_of_another_rank_is_told_in_its_sentence(tmp_path: Path, entry: str) -> None:
    then = "print('triptych: data.path=x does not exist', file=sys.stderr); sys.exit(2)"
    (tmp_path / f"{entry}.py").write_text(ENTRY.format(then=then))
    with pytest.raises(UserError, match=r"^process 1 of 2 ended: data\.path=x does not exist$"):
        meet(entry, tmp_path)


def test_a_module_that_does_not_exist_is_told_too(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^process 1 of 2 ended: .*No module named no_such_entry"):
        meet("no_such_entry", tmp_path)
