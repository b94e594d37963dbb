"""A model measured: every metric over the whole validation and test splits."""

from typing import Any

from omegaconf import DictConfig

from triptych import hardware
from triptych.config import build
from triptych.environment import require
from triptych.explain.analysis import Analysis
from triptych.tasks.base import Task


def measure(
    config: DictConfig, task: Task, data: Any, more: Analysis | None
) -> tuple[dict[str, float], dict[str, str]]:
    """Every metric over the whole validation and test splits, with the weights that ``task`` holds now; and notes."""
    require(f"task={task.name}", *task.optional_modules)
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
