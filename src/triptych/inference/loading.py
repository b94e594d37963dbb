"""A trained model from its run's folder, with all that is needed to use it."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import nn

from triptych.config import build
from triptych.config.registers import refuse_strangers
from triptych.errors import UserError
from triptych.runs import folder
from triptych.runs.folder import RunFolder
from triptych.tasks.base import Task


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


def load(run: str | Path, *, checkpoint: str = "best", allow: Collection[str] = ()) -> Trained:
    """The model of a run folder, in eval mode on the CPU, with its tokenizer.

    checkpoint: "best" or "last". allow: modules of yours that the run's configuration may name; what is neither
    triptych's nor among them is refused before it is imported.

    Raises UserError when the folder or the checkpoint is none, or damaged, or names what is not allowed.
    """
    found = folder.existing(run, "run")
    config = found.config()
    refuse_strangers(config, found.path / folder.CONFIG, allow)
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
