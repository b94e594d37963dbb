"""Callbacks of a run: what conf/callbacks lists becomes what hangs on the trainer, checked before any work."""

import inspect
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from triptych.config import validate
from triptych.errors import UserError
from triptych.tasks.base import Task

OF_THE_RUN = ("folder", "fingerprint", "resumed_at")
"""Arguments that a callback may take without a setting: the run's folder, its data's fingerprint, and the step it was
resumed at (None for a new run)."""


def check_callbacks(config: DictConfig, task: type[Task]) -> None:
    """Refuse callbacks that cannot be built, or are for another task.

    A callback may have two class attributes: ``for_task``, the class of the only task that it serves, and ``metrics``,
    the names of what it logs at validation, which a run may then watch.

    Args:
        config: The run's configuration; ``callbacks`` holds the settings of each under a name of its own, null for one
            that is switched off.
        task: The class of the run's task.

    Raises:
        UserError: A callback has no ``_target_``, or one that cannot be imported or is no Lightning callback; an
            option is unknown, missing or of another type; or it is for another task.
    """
    for name, settings in _chosen(config):
        where = f"callbacks.{name}"
        made = _class(settings, where)
        validate.check(settings, made, where)
        for argument, parameter in inspect.signature(made).parameters.items():
            named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            filled = argument in settings or argument in OF_THE_RUN or parameter.default is not parameter.empty
            if named and not filled:
                raise UserError(f"{where}.{argument} is missing: {made.__name__} needs it")
        served: type[Task] | None = getattr(made, "for_task", None)
        if served is not None and not issubclass(task, served):
            raise UserError(
                f"{where} is for task={served.name}, not task={task.name}: leave it out, or say {where}=null"
            )


def watchable(config: DictConfig, task: type[Task]) -> list[str]:
    """Every metric that validation logs: the task's, and those that the configured callbacks name."""
    more = [getattr(_class(settings, f"callbacks.{name}"), "metrics", ()) for name, settings in _chosen(config)]
    return [*task.metrics, *(metric for metrics in more for metric in metrics)]


def build_callbacks(
    config: DictConfig, *, folder: Path, fingerprint: str, resumed_at: int | None
) -> dict[str, pl.Callback]:
    """The configured callbacks by name, in the order of the configuration.

    Args:
        config: The run's configuration.
        folder: The run's.
        fingerprint: Of the data.
        resumed_at: The step that the run goes on from; None for a new run.
    """
    run = {"folder": folder, "fingerprint": fingerprint, "resumed_at": resumed_at}
    built: dict[str, pl.Callback] = {}
    for name, settings in _chosen(config):
        takes = inspect.signature(_class(settings, f"callbacks.{name}")).parameters
        make: partial[pl.Callback] = instantiate(settings, _partial_=True)
        built[name] = make(**{argument: value for argument, value in run.items() if argument in takes})
    return built


def _chosen(config: DictConfig) -> Iterator[tuple[str, DictConfig]]:
    """Names and settings of the callbacks that are not switched off."""
    for name, settings in (config.get("callbacks") or {}).items():
        if settings is None:
            continue
        if not OmegaConf.is_dict(settings) or "_target_" not in settings:
            raise UserError(
                f"callbacks.{name} must hold the _target_ of a Lightning callback, or be null to switch it off"
            )
        yield str(name), settings


def _class(settings: DictConfig, where: str) -> type[pl.Callback]:
    target = settings._target_
    try:
        found: Any = get_object(target)
    except Exception as error:
        raise UserError(f"{where}._target_={target} cannot be imported: {error.__cause__ or error}") from error
    if not (isinstance(found, type) and issubclass(found, pl.Callback)):
        raise UserError(f"{where}._target_={target} is no Lightning callback (a class derived from Callback)")
    return found
