"""How a sweep is run: what ``sweep.*`` in the configuration says, checked."""

import re
from dataclasses import dataclass
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf

from triptych.config import validate
from triptych.errors import UserError

LEAST = {"trials": 1, "at_once": 1, "startup": 0, "seed": 0}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What ``conf/sweep/grid.yaml`` and ``search.yaml`` explain. With a sampler it is a search, without one a grid."""

    space: dict[str, Any]
    study: str | None
    metric: str | None
    mode: Literal["min", "max"] | None
    sampler: Literal["tpe", "random"] | None
    trials: int | None
    pruner: Literal["median", "quartile", "hyperband", "none"]
    startup: int
    seed: int
    at_once: int | None

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            number = getattr(self, name)
            if number is not None and number < least:
                raise UserError(f"sweep.{name}={number}; it must be a whole number of at least {least}")
        if self.study is not None and not re.fullmatch(r"\w[\w.-]*", self.study, re.ASCII):
            raise UserError(f"sweep.study={self.study}; a name of letters, digits, '-', '_' and '.' will do")
        if self.sampler and self.trials is None:
            raise UserError("sweep.trials is not set: say how many trials the search may make, such as sweep.trials=20")


def read(config: DictConfig) -> Settings:
    """Settings as configured, ``metric`` and ``mode`` filled in from ``watch``. Raises UserError for wrong ones."""
    validate.check(config.sweep, Settings, "sweep")
    given: dict[str, Any] = OmegaConf.to_container(config.sweep, resolve=True)  # type: ignore[assignment]
    if given["metric"] is None or given["metric"] == config.watch.metric:
        given["metric"], given["mode"] = config.watch.metric, given["mode"] or config.watch.mode
    elif given["mode"] is None:
        raise UserError(f"sweep.metric={given['metric']} needs sweep.mode: min or max")
    return Settings(**given)
