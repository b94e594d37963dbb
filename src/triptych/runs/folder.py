"""The run folder: made so that no two runs share it, locked while a process works in it, read by everyone else."""

import json
import platform
import re
import secrets
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from omegaconf import DictConfig, OmegaConf

from triptych.errors import UserError
from triptych.files import write_text, written_whole
from triptych.runs import jsonlines, stored

CONFIG, SUMMARY, LAST, BEST = "config.yaml", "summary.json", "checkpoints/last.ckpt", "checkpoints/best.ckpt"
ANSWERS = "test-answers.jsonl"
RECORDED = ("triptych", "torch", "pytorch-lightning", "datasets", "tokenizers")


class RunFolder:
    """One run's folder. ``lock`` it before writing; the lock goes when the process does, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path / ".lock")

    @property
    def checkpoint(self) -> Path | None:
        """The checkpoint a resumed run starts from, if there is one."""
        last = self.path / LAST
        return last if last.exists() else None

    def lock(self) -> bool:
        """Take the folder for this process; False when a living process holds it."""
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            return False
        return True

    def release(self) -> None:
        """Give the folder back."""
        self._lock.release()

    @property
    def held(self) -> bool:
        """Whether a living process holds the run; looking takes the lock for a moment where none does."""
        if not (self.path / ".lock").exists():
            return False
        try:
            taken = self.lock()
        except OSError:  # not ours to look into
            return True
        if taken:
            self.release()
        return not taken

    def config(self, setting: str = "run") -> DictConfig:
        """The configuration of the run. Raises UserError naming ``setting`` when the folder is no run."""
        file = self.path / CONFIG
        if not file.is_file():
            raise UserError(f"{setting}={self.path} is no run folder: it has no {CONFIG}; runs are under runs/TASK/")
        try:
            config = OmegaConf.load(file)
        except Exception as error:
            raise UserError(f"{file} cannot be read ({type(error).__name__}): the run folder is damaged") from error
        if not isinstance(config, DictConfig) or "task" not in config:
            raise UserError(f"{file} is no configuration of a run: choose another folder under runs/TASK/")
        return stored.upgrade(config)

    def write_config(self, config: DictConfig) -> None:
        """Store the configuration, resolved: it says by itself what ran."""
        versioned = OmegaConf.merge(escaped(config), {stored.KEY: stored.version()})
        write_text(self.path / CONFIG, OmegaConf.to_yaml(versioned, resolve=False))

    def summary(self) -> dict[str, Any]:
        """What ``summary.json`` says; empty when it is missing or damaged."""
        try:
            summary = json.loads((self.path / SUMMARY).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return summary if isinstance(summary, dict) else {}

    def write_answers(self, answers: list[dict[str, str]]) -> None:
        """Keep what the model answered to the test split, a JSON object a line."""
        write_text(self.path / ANSWERS, jsonlines.dumps(answers))

    def answers(self) -> list[dict[str, str]]:
        """What ``write_answers`` kept; nothing for a task that keeps none. Raises UserError for a damaged file."""
        file = self.path / ANSWERS
        if not file.exists():
            return []
        answers = jsonlines.read(file)
        if answers.damaged:
            raise UserError(f"{file}: {answers.damaged} of its lines cannot be read: the run folder is damaged")
        return answers.values

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Store the summary, whole or not at all."""
        write_text(self.path / SUMMARY, json.dumps(summary, indent=1, ensure_ascii=False) + "\n")


def create(runs: Path, task: str) -> RunFolder:
    """A new, locked folder ``runs/task/<date>-<time>-<id>``, and ``latest`` linking to it.

    Raises UserError when nothing can be written there.
    """
    parent = runs / task
    name = f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        path = parent / name
        path.mkdir()
        (path / "checkpoints").mkdir()
        folder = RunFolder(path)
        folder.lock()
    except OSError as error:
        raise UserError(
            f"runs={runs}: the run folder {parent / name} cannot be made ({error.strerror}); choose another with runs="
        ) from error
    with written_whole(parent / "latest") as link:
        link.symlink_to(name)
    return folder


def existing(path: str | Path, setting: str) -> RunFolder:
    """The run folder at ``path``. Raises UserError naming ``setting`` when there is none."""
    if not str(path):
        raise UserError(f"{setting}= is not set: give a run folder, e.g. {setting}=runs/charlm/latest")
    found = Path(str(path)).expanduser()
    if not found.is_dir():
        raise UserError(f"{setting}={path} does not exist; runs are under runs/TASK/, the newest is runs/TASK/latest")
    folder = RunFolder(found.resolve())
    folder.config(setting)
    return folder


def all_runs(runs: Path, task: str) -> list[RunFolder]:
    """Runs of a task, newest first; links are skipped."""
    parent = runs / task
    if not parent.is_dir():
        return []
    folders = [path for path in parent.iterdir() if path.is_dir() and not path.is_symlink()]
    return [RunFolder(path) for path in sorted(folders, key=lambda path: path.name, reverse=True)]


def checkpoint_contents(path: Path) -> dict[str, Any]:
    """A checkpoint as plain tensors and containers. Raises UserError when the file is damaged."""
    import torch

    try:
        contents = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises RuntimeError, EOFError, UnpicklingError, ValueError ... for bad files
        raise UserError(
            f"{path} cannot be read ({type(error).__name__}): it is truncated or no checkpoint; use another run or "
            "checkpoint, or start a new run"
        ) from error
    if not isinstance(contents, dict) or not {"state_dict", "global_step"} <= contents.keys():
        raise UserError(f"{path} is no checkpoint of a run: use another run or checkpoint, or start a new run")
    return contents


def differing(one: DictConfig, other: DictConfig, ignored: tuple[str, ...]) -> list[str]:
    """Dotted keys whose values differ between two configurations, without those at or below ``ignored``."""
    flat_one, flat_other = flat(one), flat(other)
    missing = object()
    return [
        key
        for key in sorted(flat_one.keys() | flat_other.keys())
        if not any(key == prefix or key.startswith(prefix + ".") for prefix in ignored)
        and flat_one.get(key, missing) != flat_other.get(key, missing)
    ]


def versions() -> dict[str, str]:
    """Versions that decide results."""
    found = {"python": platform.python_version()}
    for package in RECORDED:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def escaped(config: DictConfig) -> DictConfig:
    """The configuration with values filled in, and a ``${`` that stands in a value (a path, say) kept literal."""

    def literal(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: literal(item) for key, item in value.items()}
        if isinstance(value, list):
            return [literal(item) for item in value]
        return literal_text(value) if isinstance(value, str) else value

    return OmegaConf.create(literal(OmegaConf.to_container(config, resolve=True)))


def literal_text(text: str) -> str:
    """``text`` so that OmegaConf reads it as itself, not as an interpolation."""
    # Backslashes before it must be doubled, or they would escape the escape.
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


def flat(config: DictConfig) -> dict[str, Any]:
    """Dotted keys and values of a configuration, filled in; a list, and an empty part, is one value."""
    found: dict[str, Any] = {}

    def walk(value: Any, prefix: str) -> None:
        if isinstance(value, dict) and value:
            for key, item in value.items():
                walk(item, f"{prefix}.{key}" if prefix else str(key))
        else:
            found[prefix] = value

    walk(OmegaConf.to_container(config, resolve=True), "")
    return found
