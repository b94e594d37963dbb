"""What processes tell one another: every claim reaches all of them, and several together cost one wait."""

import subprocess
import sys
from pathlib import Path

import pytest

from triptych.distributed import collectives

# One of two processes: it prints what it hears, and how often it waited for the other.
PROCESS = """
import sys
import torch.distributed as dist
from triptych.distributed import collectives

rank, store, *claims = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
waits, reduce = [], dist.all_reduce
dist.all_reduce = lambda *args, **options: (waits.append(1), reduce(*args, **options))
print(*collectives.any_says(*(claim == "yes" for claim in claims)), len(waits))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("claims", [(), (True,), (False, True)])
def test_one_process_hears_what_it_says_itself(claims: tuple[bool, ...]) -> None:
    assert collectives.any_says(*claims) == claims


def test_two_processes_hear_every_claim_in_one_reduction(tmp_path: Path) -> None:
    """After every update a run asks whether to stop and whether to save: that must not wait twice."""
    claims = (("yes", "no", "no", "yes"), ("no", "no", "yes", "yes"))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(rank), str(tmp_path / "store"), *mine],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, mine in enumerate(claims)
    ]
    try:
        for process in processes:
            heard, errors = process.communicate(timeout=120)
            assert heard.split() == ["True", "False", "True", "True", "1"], errors
    finally:
        for process in processes:
            process.kill()
