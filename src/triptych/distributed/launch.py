"""Starting the processes that train one model together, joining those that torchrun or Slurm started, ending them.

The process that a person started is rank 0. It starts the others itself, or finds that a launcher has done so. Rank 0
prepares the run and says in which folder; the others join it there.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import torch
import torch.distributed as dist
from lightning_fabric.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)

from triptych.errors import UserError

HERE = "127.0.0.1"
PATIENCE = timedelta(minutes=60)  # for one another: rank 0 draws maps while the others wait
ENDING = 60.0  # seconds that the others have to end by themselves after the last update
LOOPBACK = {"linux": "lo", "darwin": "lo0"}
VARIABLES = (
    *("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME"),
    *("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("PL_GLOBAL_SEED", "PL_SEED_WORKERS"),
)
"""Environment variables that a group, or Lightning for it, sets: the next run in this process must not see them.

They are put back one by one. The rest of the environment is not ours, and other threads read it meanwhile.
"""


class ProcessGroup:
    """The processes that train one model. This class: one process, which needs nobody; see `world`.

    rank: of this process, 0 prepares and writes. local_rank: its place on its machine, which decides its device.
    """

    rank, local_rank, size, local_size, node = 0, 0, 1, 1, 0

    def share(self, folder: Path | None) -> Path:
        """The run's folder: rank 0 gives it, everybody gets it."""
        assert folder is not None
        return folder

    def connect(self, device: torch.device) -> None:
        """Wait for everybody; from here on they compute together."""

    def disconnect(self) -> None:
        """The end of computing together: rank 0 goes on alone, the others are done."""

    def close(self, error: BaseException | None) -> None:
        """End whatever is left. Raises UserError where another process's failure is the cause of ``error``."""

    @property
    def environment(self) -> ClusterEnvironment:
        """The same, as Lightning asks for it."""
        return _Environment(self)

    def __enter__(self) -> "ProcessGroup":
        self._threads = torch.get_num_threads()
        self._variables = {name: os.environ.get(name) for name in VARIABLES}
        if self.local_size > 1:
            torch.set_num_threads(max(1, self._threads // self.local_size))
            # Lightning would choose another number, and leave it to whatever this process does afterwards.
            os.environ["OMP_NUM_THREADS"] = str(torch.get_num_threads())
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close(error)
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            torch.set_num_threads(self._threads)
            for name, value in self._variables.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


class _Environment(LightningEnvironment):
    """A `ProcessGroup` as Lightning asks for it: every process is there, and nobody else's variables are read."""

    def __init__(self, world: ProcessGroup) -> None:
        super().__init__()
        self.world = world

    @property
    def creates_processes_externally(self) -> bool:
        return True

    def world_size(self) -> int:
        return self.world.size

    def global_rank(self) -> int:
        return self.world.rank

    def local_rank(self) -> int:
        return self.world.local_rank

    def node_rank(self) -> int:
        return self.world.node

    def teardown(self) -> None:
        """Nothing: a run asks more than once."""


class _Group(ProcessGroup):
    """What processes on one machine share that triptych started: a store that rank 0 holds, and a way to compute."""

    def __init__(self, rank: int, size: int, port: int) -> None:
        self.rank = self.local_rank = rank
        self.size = self.local_size = size
        try:
            self.store = dist.TCPStore(HERE, port, None, rank == 0, PATIENCE, wait_for_workers=False)
        except dist.DistNetworkError as error:
            raise UserError(
                f"trainer.port={port} is in use by another program: give another, or null for a free one"
            ) from error

    def connect(self, device: torch.device) -> None:
        if sys.platform in LOOPBACK:  # a machine's own name may lead nowhere
            os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK[sys.platform])
        store = dist.PrefixStore("group", self.store)
        _join(device, self.local_rank, store=store, rank=self.rank, world_size=self.size)

    def disconnect(self) -> None:
        dist.barrier()
        dist.destroy_process_group()


class Started(_Group):
    """Rank 0, and the others that it starts on this machine.

    They end when this process does, however it ends: each holds the reading end of a pipe, and notices.

    Args:
        size: how many processes there are, this one counted.
        port: where they meet; 0 for a free one.
        entry: the module that each of the others runs, as ``python -m ENTRY RANK SIZE PORT``. It makes a `Joined` of
            the three numbers. A mistake of the user it writes to stderr as ``triptych: SENTENCE``, and exits with 2.

    Raises:
        UserError: the port is taken.
    """

    def __init__(self, size: int, port: int, entry: str) -> None:
        super().__init__(0, size, port)
        self._entry = entry
        self._others: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
        self._over = threading.Event()

    def __enter__(self) -> "ProcessGroup":
        super().__enter__()
        for rank in range(1, self.size):
            said = tempfile.TemporaryFile()
            words = [sys.executable, "-m", self._entry, str(rank), str(self.size), str(self.store.port)]
            # In a session of their own: a Ctrl-C reaches rank 0 alone, which tells the others.
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
            )
            self._others.append((process, said))
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def share(self, folder: Path | None) -> Path:
        folder = super().share(folder)
        for process, _ in self._others:
            assert process.stdin is not None
            try:
                process.stdin.write(f"{folder.absolute()}\n".encode())
                process.stdin.flush()
            except BrokenPipeError:
                self._blame()
        return folder

    def connect(self, device: torch.device) -> None:
        # In torch's own wait nobody would notice that one of them is gone.
        while self.store.add("ready", 0) < self.size - 1:
            if self._failed():
                self._blame()
            time.sleep(0.02)
        super().connect(device)

    def disconnect(self) -> None:
        super().disconnect()
        self._over.set()
        for process, _ in self._others:
            try:
                process.wait(ENDING)
            except subprocess.TimeoutExpired:
                process.kill()

    def close(self, error: BaseException | None) -> None:
        """Raises UserError with the sentence of the process that failed first, where that is why this one fails."""
        try:
            # A lost connection is how the end of another process shows here; give it a moment to have ended.
            if isinstance(error, RuntimeError) and not isinstance(error, UserError):
                patience = time.monotonic() + 5
                while not self._failed() and time.monotonic() < patience and dist.is_initialized():
                    time.sleep(0.05)
                if self._failed():
                    self._blame(error)
        finally:
            self._over.set()
            for process, said in self._others:
                process.kill()
                process.wait()
                assert process.stdin is not None
                process.stdin.close()
                said.close()

    def _failed(self) -> tuple[int, str] | None:
        """Rank and last words of a process that ended badly."""
        for rank, (process, said) in enumerate(self._others, 1):
            if process.poll() not in (None, 0, 130):
                said.seek(0)
                words = said.read().decode(errors="replace").strip()
                return rank, words or f"ended by signal {-process.returncode}"
        return None

    def _blame(self, error: BaseException | None = None) -> None:
        rank, words = self._failed() or (1, "ended")
        last = words.split("\n")[-1]
        if not last.startswith("triptych: "):
            print(words, file=sys.stderr)  # a traceback: a fault of ours
        raise UserError(f"process {rank} of {self.size} ended: {last.removeprefix('triptych: ')}") from error

    def _watch(self) -> None:
        """A connection of GPUs does not notice the end of a process: cut it then, so that this one goes on to fail."""
        while not self._over.wait(1.0):
            if self._failed() and dist.is_initialized() and "nccl" in dist.get_backend():
                dist.distributed_c10d._abort_process_group()
                return


class Joined(_Group):
    """One of the others: it reads the folder from rank 0, and is gone as soon as rank 0 is."""

    def share(self, folder: Path | None) -> Path:
        line = sys.stdin.buffer.readline()
        if not line:
            sys.exit(0)  # rank 0 refused to go on, and has said why
        threading.Thread(target=self._leave_with_rank_0, daemon=True).start()
        return Path(line.decode().removesuffix("\n"))

    def connect(self, device: torch.device) -> None:
        self.store.add("ready", 1)
        super().connect(device)

    @staticmethod
    def _leave_with_rank_0() -> None:
        os.read(sys.stdin.fileno(), 1)  # nothing more is said: this returns when rank 0 is gone
        os._exit(1)


class External(ProcessGroup):
    """Processes that torchrun or Slurm started; each runs the same command."""

    def __init__(self, found: ClusterEnvironment, local_size: int, device: torch.device) -> None:
        self.found, self.local_size, self.device = found, local_size, device
        self.rank, self.size = found.global_rank(), found.world_size()
        self.local_rank, self.node = found.local_rank(), found.node_rank()
        self._told = False

    def share(self, folder: Path | None) -> Path:
        return Path(self._tell(None if folder is None else ("folder", str(folder.absolute()))))

    def _tell(self, what: tuple[str, str] | None) -> str:
        self.connect(self.device)
        said: list[Any] = [what]
        dist.broadcast_object_list(said, src=0, device=torch.device("cpu"))
        self._told = True
        kind, text = said[0]
        if kind == "failed" and self.rank > 0:
            raise UserError(f"process 0 of {self.size} ended: {text}")
        return text

    def connect(self, device: torch.device) -> None:
        if not dist.is_initialized():
            method = f"tcp://{self.found.main_address}:{self.found.main_port}"
            _join(device, self.local_rank, init_method=method, rank=self.rank, world_size=self.size)

    def disconnect(self) -> None:
        dist.barrier()
        dist.destroy_process_group()

    def close(self, error: BaseException | None) -> None:
        if error is not None and self.rank == 0 and not self._told:
            self._tell(("failed", str(error)))


def world(processes: int, nodes: int, port: int | None, device: torch.device, *, entry: str) -> ProcessGroup:
    """The world of ``trainer.devices`` times ``trainer.num_nodes`` processes, whoever starts them.

    entry: the module that the others run where this process starts them; see `Started`.
    Raises UserError when a launcher has started another number, or a CPU has fewer cores than it is to run processes.
    """
    found = _found()
    if found is not None and found.world_size() > 1:
        if found.world_size() != processes * nodes:
            raise UserError(
                f"{found.world_size()} processes were started, and trainer.devices={processes} times "
                f"trainer.num_nodes={nodes} are {processes * nodes}: give the launcher the same numbers"
            )
        answer: ProcessGroup = External(found, processes, device)
    elif nodes > 1:
        raise UserError(
            f"trainer.num_nodes={nodes}: on several machines torchrun or Slurm starts the processes; see the README"
        )
    elif processes > 1:
        _check_cores(processes, device)
        return Started(processes, port or 0, entry)
    else:
        return ProcessGroup()
    _check_cores(processes, device)
    return answer


def _found() -> ClusterEnvironment | None:
    """What torchrun or Slurm says about the processes that they started; None where nobody did."""
    for kind in (TorchElasticEnvironment, SLURMEnvironment):
        if kind.detect():
            try:
                return kind()
            except RuntimeError as error:  # it insists on --ntasks-per-node
                raise UserError(f"Slurm: {' '.join(str(error).split())}") from error
    if {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        return TorchElasticEnvironment()  # the same variables, set by hand
    return None


def _check_cores(processes: int, device: torch.device) -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if device.type == "cpu" and processes > cores:
        raise UserError(f"trainer.devices={processes}: this machine has {cores} cores; use at most {cores}")


def _join(device: torch.device, local_rank: int, **how: Any) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(local_rank if device.index is None else device.index)
        dist.init_process_group("cpu:gloo,cuda:nccl", timeout=PATIENCE, **how)
    else:
        dist.init_process_group("gloo", timeout=PATIENCE, **how)
