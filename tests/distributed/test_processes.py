"""Two processes train what one would: the same losses, every example counted once, one folder, and nobody left over."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig

from conftest import SUMS_MODEL, Composed
from triptych.commands.cli import CONF
from triptych.commands.train import train
from triptych.data.batches import TextBatch, TranslationBatch, balanced
from triptych.distributed import collectives, launch
from triptych.errors import UserError
from triptych.runs import folder
from triptych.runs.metrics_rows import read

pytestmark = pytest.mark.usefixtures("one_thread")
TOGETHER = ("trainer=ddp", "trainer.devices=2", "trainer.accelerator=cpu")
# AdamW: Muon orthogonalises in bfloat16, where the order of a sum shows.
DIGITS = (
    "task=vit",
    "data=digits",
    "data.batch_size=31",  # 16 and 15: a mean of means would differ
    "optimizer=adamw",
    "model.depth=1",
    "model.width=32",
    "model.heads=2",
    "logger=[]",
    "compile=false",  # a long run would, before it is killed
    "maps.probes=1",
    "validations=3",
    "trainer.accelerator=cpu",
    "trainer.max_steps=20",
    "trainer.log_every_n_steps=5",
    "explain.examples=0",
)


def digits(runs: Path, *overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", overrides=[*DIGITS, f"runs={runs}", *overrides])


def losses(run: Path, split: str) -> list[tuple[int, float]]:
    rows = read(run / "metrics.csv")
    return [(int(row["step"]), row[f"{split}/loss"]) for row in rows if f"{split}/loss" in row]


def same(one: Path, two: Path, tolerance: float) -> None:
    for split in ("train", "val"):
        (steps, single), (others, double) = (zip(*losses(run, split), strict=True) for run in (one, two))
        assert steps == others
        assert double == pytest.approx(single, abs=tolerance)


def summary(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


# ---- which part of a batch is whose ----


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 5))
def test_parts_are_the_whole_and_cost_about_the_same(costs: list[int], parts: int) -> None:
    found = balanced(torch.tensor(costs), parts)
    assert sorted(row for rows in found for row in rows.tolist()) == list(range(len(costs)))
    totals = [sum(costs[row] for row in rows.tolist()) for rows in found]
    assert max(totals) - min(totals) <= max(costs)  # each went to the part that had least


def test_pairs_are_balanced_by_real_tokens_and_padded_no_further_than_needed() -> None:
    """Lengths 6, 1, 1, 4: 6 and 6, not 7 and 5 as halves of the batch would be."""
    source = torch.tensor([[5] * 3 + [0], [5, 0, 0, 0], [5, 0, 0, 0], [5, 5, 0, 0]])
    expected = torch.tensor([[7, 7, 2], [0, 0, 0], [0, 0, 0], [7, 2, 0]])
    batch = TranslationBatch(source, expected.roll(1, 1), expected, torch.arange(4))
    first, second = (batch.part(rank, 2) for rank in (0, 1))
    assert first.rows.tolist() == [0]
    assert second.rows.tolist() == [1, 2, 3]
    assert second.source.shape == (3, 2)
    assert second.expected.shape == (3, 2)
    assert (first.share, second.share) == (3 / 5 * 2, 2 / 5 * 2)
    assert first.whole == second.whole == 5


def test_a_process_without_an_example_computes_one_that_counts_nothing() -> None:
    batch = TextBatch(torch.tensor([[1, 2]]), torch.tensor([[2, 3]]))
    assert [batch.part(rank, 3).share for rank in range(3)] == [3.0, 0.0, 0.0]
    assert batch.part(2, 3).tokens.tolist() == [[1, 2]]
    assert batch.part(0, 1) is batch


# ---- two processes and one ----


def test_two_processes_train_as_one_does(tmp_path: Path) -> None:
    one = train(digits(tmp_path / "one")).path
    before = dict(os.environ)
    two = train(digits(tmp_path / "two", *TOGETHER)).path
    same(one, two, 2e-5)
    assert folder.all_runs(tmp_path / "two", "vit")[0].path == two
    assert len(folder.all_runs(tmp_path / "two", "vit")) == 1
    assert summary(two)["seen"] == summary(one)["seen"] == {"value": 620, "unit": "images"}
    first, second = (summary(run)["metrics"] for run in (one, two))
    assert second == pytest.approx(first, abs=1e-4)
    counts = json.loads((two / "val-confusion.json").read_text())["counts"]
    assert sum(map(sum, counts)) == 179  # every image of validation once
    # A sweep goes on in this process: nothing of the run may be left.
    assert collectives.size() == 1
    assert dict(os.environ) == before | {key: os.environ[key] for key in os.environ.keys() - before.keys()}
    assert not {"WORLD_SIZE", "MASTER_PORT", "LOCAL_RANK"} & os.environ.keys()


def test_translations_are_gathered_and_losses_weighted_by_tokens(compose_translation: Composed, tmp_path: Path) -> None:
    mine = (*SUMS_MODEL, "optimizer=adamw", "trainer.max_steps=20", "maps.every_n_steps=0", "logger=[]")
    one, two = (
        train(compose_translation(*mine, f"runs={tmp_path / name}", *more)).path
        for name, more in (("one", ()), ("two", TOGETHER))
    )
    same(one, two, 2e-4)
    first, second = (summary(run)["metrics"] for run in (one, two))
    for name in ("val/bleu", "val/chrf", "val/exact_match", "test/loss"):
        assert second[name] == pytest.approx(first[name], abs=1e-2)
    assert summary(one)["seen"] == summary(two)["seen"]


COMMAND = [sys.executable, "-m", "triptych.commands", "train", *DIGITS, "trainer.max_steps=100000"]


def others_of(pid: int) -> list[int]:
    """The ranks that a process has started."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()[1:]]
    return [int(row[0]) for row in rows if int(row[1]) == pid and "triptych.commands.rank" in row[2]]


def wait_for(condition: Any, seconds: float = 240) -> Any:
    ends = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.1)
    return found


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z" if Path("/proc").exists() else True


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_nobody_is_left_over(tmp_path: Path, how: str) -> None:
    """Asked to stop, both save and go; killed, the other goes too. Then the run goes on where it was."""
    command = [*COMMAND, *TOGETHER, f"runs={tmp_path}", "checkpoint_every=5"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for(lambda: list(tmp_path.glob("vit/*/checkpoints/last.ckpt")))
    (other,) = others_of(first.pid)
    first.send_signal(getattr(signal, how))
    said = first.communicate(timeout=240)[0]
    wait_for(lambda: not alive(other), 10)
    (run,) = folder.all_runs(tmp_path, "vit")
    if how == "SIGTERM":
        assert first.returncode == 130
        assert "to go on: make train task=vit" in said
        assert run.summary()["status"] == "interrupted"
    step = folder.checkpoint_contents(run.path / folder.LAST)["global_step"]
    states = folder.checkpoint_contents(run.path / folder.LAST)["random_state"]
    assert len(states["others"]) == 1
    assert not torch.equal(states["cpu"], states["others"][0]["cpu"])  # each has its own dropout
    again = train(
        digits(tmp_path, *TOGETHER, f"trainer.max_steps={step + 5}", f"resume={run.path}", "checkpoint_every=5")
    )
    assert again.path == run.path
    assert summary(run.path)["steps"] == step + 5


@pytest.mark.slow
def test_a_process_that_fails_ends_all_with_its_sentence(tmp_path: Path) -> None:
    first = subprocess.Popen(
        [*COMMAND, *TOGETHER, f"runs={tmp_path}", "checkpoint_every=5"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_for(lambda: list(tmp_path.glob("vit/*/metrics.csv")))
    (other,) = others_of(first.pid)
    os.kill(other, signal.SIGKILL)
    said = first.communicate(timeout=240)[0]
    assert first.returncode == 2, said
    assert said.splitlines()[-1] == "triptych: process 1 of 2 ended: ended by signal 9"
    (run,) = folder.all_runs(tmp_path, "vit")
    assert run.summary()["status"] == "failed"


@pytest.mark.slow
def test_torchrun_starts_them_too(tmp_path: Path) -> None:
    script = [*COMMAND[1:], *TOGETHER, f"runs={tmp_path}", "trainer.max_steps=20"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *script]
    done = subprocess.run(torchrun, capture_output=True, text=True, timeout=480)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = folder.all_runs(tmp_path, "vit")
    assert run.summary()["status"] == "finished"
    assert done.stdout.count("maps and curves") == 1  # one of them talks
    same(train(digits(tmp_path / "one")).path, run.path, 2e-5)


@pytest.mark.slow
def test_slurm_starts_them_too(tmp_path: Path) -> None:
    """As ``srun --ntasks=2`` would: the same command twice, told apart by Slurm's variables."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tasks = [
        subprocess.Popen(
            [*COMMAND, *TOGETHER, f"runs={tmp_path}", "trainer.max_steps=20"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                "SLURM_NTASKS": "2",
                "SLURM_NTASKS_PER_NODE": "2",
                "SLURM_PROCID": str(rank),
                "SLURM_LOCALID": str(rank),
                "SLURM_NODEID": "0",
                "SLURM_JOB_ID": "7",
                "SLURM_JOB_NAME": "train",
                "SLURM_NODELIST": "127.0.0.1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
        )
        for rank in (0, 1)
    ]
    said = [task.communicate(timeout=240)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], said
    assert len(folder.all_runs(tmp_path, "vit")) == 1


# ---- what cannot be ----


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["trainer=ddp", "trainer.devices=4096", "data.batch_size=5000"],
            r"trainer\.devices=4096: this machine has \d+ core",
        ),
        (["trainer=ddp", "data.batch_size=1"], r"data\.batch_size=1 is less than one example for each of 2 processes"),
        (["trainer=ddp", "trainer.devices=0"], r"trainer\.devices=0; it must be a number of processes"),
        (["trainer=ddp", "trainer.port=70000"], r"trainer\.port=70000; it must be a whole number from 1 to 65535"),
        (["trainer=ddp", "trainer.num_nodes=2"], r"trainer\.num_nodes=2: on several machines torchrun or Slurm starts"),
        (["trainer=fsdp"], "trainer=fsdp shares a model among GPUs, and this would run on cpu: use trainer=ddp"),
        (["trainer.devices=2"], r"trainer\.devices=2: one process trains; use 1, .* or trainer=ddp"),
    ],
)
def test_what_cannot_train_together_is_refused_before_anything_is_made(
    tmp_path: Path, overrides: list[str], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        train(digits(tmp_path, *overrides, "trainer.accelerator=cpu"))
    assert not list(tmp_path.iterdir())


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"trainer\.port={port} is in use by another program"):
            train(digits(tmp_path, *TOGETHER, f"trainer.port={port}"))


def test_a_launcher_that_started_another_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in {
        "RANK": 0,
        "LOCAL_RANK": 0,
        "WORLD_SIZE": 3,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": 1,
    }.items():
        monkeypatch.setenv(name, str(number))
    with pytest.raises(UserError, match=r"3 processes were started, and trainer\.devices=2 times trainer\.num_nodes=1"):
        launch.world(2, 1, None, torch.device("cpu"), entry="triptych.commands.rank")


def test_sharding_needs_matrices_in_one_piece(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from triptych.config import build

    monkeypatch.setattr(build, "_device", lambda accelerator: torch.device("cuda"))
    with pytest.raises(UserError, match="trainer=fsdp splits the matrices that optimizer=muon needs whole"):
        train(digits(tmp_path, "trainer=fsdp", "optimizer=muon"))
    with pytest.raises(UserError, match=r"ema=0\.9: trainer=fsdp keeps no average"):
        train(digits(tmp_path, "trainer=fsdp", "ema=0.9"))


def test_a_sharded_model_learns_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two CPU processes, which people are refused: the same code as on GPUs, whose kernels are all that differs."""
    from triptych.config import build

    one = train(digits(tmp_path / "one", "maps.every_n_steps=10", "ema=null")).path
    monkeypatch.setattr(build, "_check_processes", lambda config: None)
    mine = ("trainer=fsdp", "trainer.devices=2", "maps.every_n_steps=10", "ema=null")
    two = train(digits(tmp_path / "two", *mine)).path
    same(one, two, 2e-5)
    first, second = (summary(run)["metrics"] for run in (one, two))
    assert second == pytest.approx(first, abs=1e-4)
    assert len(list((two / "maps").glob("step-*.safetensors"))) == 2
