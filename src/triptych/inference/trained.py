"""A trained model put to use: load it, measure it again, let it answer, draw what it attends to."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from rich.console import Console
from torch import nn

from triptych import hardware
from triptych.config import build
from triptych.errors import UserError
from triptych.explain.analysis import Beside
from triptych.runs import folder
from triptych.runs.folder import RunFolder
from triptych.tasks.base import Task

console = Console(highlight=False)


@dataclass(frozen=True)
class Trained:
    """A trained model and what is needed to use it."""

    model: nn.Module
    task: Task
    data: Any
    config: DictConfig
    folder: RunFolder

    @property
    def tokenizer(self) -> Any:
        """Text to ids and back, for models of text."""
        return self.data.tokenizer


def load(run: str | Path, *, checkpoint: str = "best") -> Trained:
    """The model of a run folder, in eval mode on the CPU, with its tokenizer.

    checkpoint: "best" or "last". Raises UserError when the folder or the checkpoint is none, or damaged.
    """
    found = folder.existing(run, "run")
    config = found.config()
    path = found.path / "checkpoints" / f"{checkpoint}.ckpt"
    if not path.exists():
        raise UserError(f"checkpoint={checkpoint}: {path} does not exist; use best or last, of a run that got that far")
    data = build.build_data(config)
    data.restore(found.path)
    model = build.build_model(config, data.sizes)
    model.load_state_dict(weights(path))
    task = build.build_task(config, model, compiled=False)
    return Trained(model=model.eval(), task=task.eval(), data=data, config=config, folder=found)


def weights(path: Path) -> dict[str, torch.Tensor]:
    """The model's parameters in a checkpoint. Raises UserError when the file is damaged."""
    state = folder.checkpoint_contents(path)["state_dict"]
    return {name.removeprefix("model."): tensor for name, tensor in state.items() if name.startswith("model.")}


def measure(config: DictConfig, task: Task, data: Any, more: Beside | None) -> tuple[dict[str, float], dict[str, str]]:
    """Every metric over the whole validation and test splits, with the weights that ``task`` holds now; and notes."""
    alone, notes = build.alone(config), {}
    if alone.trainer.precision == "16-mixed" and hardware.accelerator().type == "cpu":
        alone.trainer.precision = "32-true"  # Lightning would take bf16-mixed, without a word
        notes["precision"] = "measured in 32-true, since the run's 16-mixed needs a GPU"
    trainer = build.build_trainer(alone, None, logger=False, callbacks=[], enable_checkpointing=False, max_epochs=-1)
    found: dict[str, float] = {}
    for run in (trainer.validate, trainer.test):
        found.update(run(task, datamodule=data, verbose=False)[0])
    notes.update(task.notes)
    if more is not None:
        figures, said = more.measure(task.eval(), data)
        found.update(figures)
        notes.update(said)
    return {name: float(number) for name, number in found.items() if "/" in name}, notes
