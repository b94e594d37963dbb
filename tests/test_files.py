"""Files are whole or not there: while several write at once, when the disk is full, and wherever triptych writes."""

import ast
import multiprocessing
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from triptych.data.tokenizers import CharacterTokenizer
from triptych.files import remove_leftovers, write_text, written_whole
from triptych.maps.record import MapRecord
from triptych.maps.record import save as save_records
from triptych.pictures.render import write_png
from triptych.report.page import write_whole
from triptych.runs.folder import RunFolder
from triptych.training.checkpoints import AtomicCheckpointIO

SOURCE = Path(__file__).parent.parent / "src" / "triptych"
FORK = multiprocessing.get_context("fork")
LENGTH, ROUNDS = 200_000, 60  # longer than any buffer: half a file would be seen


def write_again_and_again(path: Path, letter: str, ready: Any) -> None:
    ready.wait(60)
    for _ in range(ROUNDS):
        write_text(path, letter * LENGTH)


def check_while(path: Path, alive: Callable[[], bool]) -> None:
    """Read the file until nobody writes any more: it holds what one of the writers wrote, all of it."""
    reads = 0
    while alive() or not reads:
        text = path.read_text(encoding="utf-8")
        assert len(text) == LENGTH
        assert text in ("a" * LENGTH, "b" * LENGTH)
        reads += 1


def test_two_threads_write_one_file(tmp_path: Path) -> None:
    path, ready = tmp_path / "summary.json", threading.Barrier(2)
    write_text(path, "a" * LENGTH)
    failed: list[BaseException] = []

    def write(letter: str) -> None:
        try:
            write_again_and_again(path, letter, ready)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "ab"]
    for thread in threads:
        thread.start()
    check_while(path, lambda: any(thread.is_alive() for thread in threads))
    for thread in threads:
        thread.join()
    assert failed == []
    assert list(tmp_path.iterdir()) == [path]


def test_two_processes_write_one_file(tmp_path: Path) -> None:
    path, ready = tmp_path / "summary.json", FORK.Barrier(2)
    write_text(path, "a" * LENGTH)
    processes = [FORK.Process(target=write_again_and_again, args=(path, letter, ready)) for letter in "ab"]
    for process in processes:
        process.start()
    check_while(path, lambda: any(process.is_alive() for process in processes))
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert list(tmp_path.iterdir()) == [path]


# ---- a full disk ----


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """Writing past ``size`` bytes of a file fails, in the middle of it, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def maps_of(size: int) -> list[Any]:
    described: dict[str, Any] = {"task": "charlm", "site": "attend", "layer": 0, "heads": (0, 1), "kind": "self"}
    described |= {"causal": True, "mask": "causal", "score": "dot", "example": "probe 0", "step": 1, "checkpoint": None}
    described |= {"data": "0123", "backend": "flash", "kernel": "flash", "dtype": "float32", "capture_error": 0.0}
    labels = ("a",) * size
    return [MapRecord(weights=torch.ones(2, size, size), query_labels=labels, key_labels=labels, **described)]


# What writes into a run folder: how, and how much; the second argument decides the size.
WRITERS: dict[str, Callable[[Path, int], Any]] = {
    "text": lambda path, size: write_text(path, "é" * size),
    "summary": lambda path, size: RunFolder(path.parent).write_summary({"notes": "x" * size}),
    "answers": lambda path, size: RunFolder(path.parent).write_answers([{"text": "x"}] * size),
    "checkpoint": lambda path, size: AtomicCheckpointIO().save_checkpoint({"weights": torch.zeros(size)}, path),
    "tokenizer": lambda path, size: CharacterTokenizer.train("".join(chr(0x4E00 + n) for n in range(size))).save(path),
    "page": lambda path, size: write_whole(path, b"x" * size, "The report"),
    "picture": lambda path, size: write_png(torch.rand(size, 16, 3).mul(255).byte().numpy(), path),
    "maps": lambda path, size: save_records(maps_of(size), path.with_suffix(".safetensors")),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_file_that_was_there(tmp_path: Path, name: str) -> None:
    write, path = WRITERS[name], tmp_path / "file"
    write(path, 1)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert before
    with files_end_at(5000), pytest.raises(Exception, match=r"(?i)too large|could not be written"):
        write(path, 10_000 if name != "maps" else 100)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    write(path, 2)
    assert {file.name for file in tmp_path.iterdir()} == set(before)


def test_what_fails_while_writing_leaves_nothing(tmp_path: Path) -> None:
    def fail(error: BaseException) -> None:
        with written_whole(tmp_path / "new") as temporary:
            temporary.write_text("half")
            raise error

    for error in (OSError("no space"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            fail(error)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    kept = tmp_path / "last.ckpt"

    def body() -> None:
        with written_whole(kept) as temporary:
            temporary.write_text("half")
            os._exit(9)

    process = FORK.Process(target=body)
    process.start()
    process.join(60)
    assert process.exitcode == 9
    assert len(list(tmp_path.iterdir())) == 1
    write_text(kept, "whole")
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == [kept]
    assert kept.read_text() == "whole"
    remove_leftovers(tmp_path / "not made yet")


# ---- everywhere ----

# Calls that write a file in another way, and why they may.
OTHERWISE = {
    ("files.py", "os.replace"),  # the writer itself
    ("runs/metrics_file.py", "path.open"),  # appends rows, all or none
    ("sweeps/search.py", "open"),  # cuts a torn last line off Optuna's journal, under its lock
    ("training/checkpoints.py", "torch.save"),  # into memory
}
ALWAYS_WRITE = ("write_text", "write_bytes", "save_file", "to_csv", "to_json", "savefig", "symlink_to", "touch")


def is_write(call: ast.Call, name: str) -> bool:
    last = name.rpartition(".")[2]
    if last == "open":
        words = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
        modes = [word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]
        return any(set(mode) <= set("rwxabt+") and set(mode) & set("wxa+") for mode in modes)
    if name in ("os.replace", "os.rename", "torch.save", "json.dump", "yaml.dump", "OmegaConf.save", "shutil.move"):
        return True
    # ``write_text(path, ...)`` of files.py is a name; ``path.write_text(...)`` is a method. ``x.to_json()`` is ours.
    return "." in name and last in ALWAYS_WRITE and (last != "to_json" or bool(call.args))


def writes(path: Path) -> Iterator[tuple[str, str]]:
    """Calls in a file of the package that write a file and stand in no ``with written_whole(...)``."""

    def walk(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.With) and any("written_whole(" in ast.unparse(item) for item in node.items):
            return
        if isinstance(node, ast.Call) and is_write(node, ast.unparse(node.func)):
            yield ast.unparse(node.func)
        for child in ast.iter_child_nodes(node):
            yield from walk(child)

    for name in walk(ast.parse(path.read_text(encoding="utf-8"))):
        yield path.relative_to(SOURCE).as_posix(), name


def test_every_file_is_written_whole() -> None:
    assert {found for path in SOURCE.rglob("*.py") for found in writes(path)} == OTHERWISE


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("path.write_text('a')", True),
        ("open(path, 'w')", True),
        ("path.open(mode='ab')", True),
        ("path.open(encoding='utf-8')", False),
        ("write_text(path, 'a')", False),
        ("with written_whole(path) as temporary, temporary.open('w') as file:\n    file.write('a')", False),
        ("torch.save(state, path)", True),
    ],
)
def test_such_writes_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, seen: bool) -> None:
    monkeypatch.setattr("test_files.SOURCE", tmp_path)
    (tmp_path / "module.py").write_text(code)
    assert bool(list(writes(tmp_path / "module.py"))) == seen
