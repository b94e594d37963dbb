"""What a sweep varies: Hydra's own words for lists, ranges and intervals, read, checked and listed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException, OverrideParseException

from triptych.errors import UserError

# What makes runs comparable, and where they go: the same for all trials.
NOT_SWEPT = ("task", "trial", "sweep", "resume", "runs", "watch", "hydra", "hydra/")


@dataclass(frozen=True)
class Axis:
    """One option that a sweep varies. ``values``: the words to try, in order; None for an interval."""

    name: str
    override: Override
    values: tuple[str, ...] | None

    @property
    def interval(self) -> IntervalSweep | None:
        """Its ends and tags, when it is an interval."""
        value = self.override.value()
        return value if isinstance(value, IntervalSweep) else None

    @property
    def range(self) -> RangeSweep | None:
        """Its start, stop (not reached) and step, when it is a range: numbers whose order means something."""
        value = self.override.value()
        return value if isinstance(value, RangeSweep) else None

    @property
    def text(self) -> str:
        """The same for the same axis, however it was typed."""
        if (found := self.interval) is not None:
            log = "log, " if "log" in found.tags else ""
            return f"{log}{'int, ' if isinstance(found.start, int) else ''}{found.start} to {found.end}"
        return ",".join(self.values or ())

    def probes(self) -> tuple[str, ...]:
        """Words that between them show whether the configuration takes this axis."""
        return self.values if self.values is not None else (f"{self.interval.start}",)  # type: ignore[union-attr]


@dataclass(frozen=True)
class Space:
    """Axes by name, and the words of the command line that all trials share."""

    axes: Mapping[str, Axis]
    fixed: tuple[str, ...]

    def to_json(self) -> dict[str, str]:
        """Name to text, for ``sweep.json`` and for telling two spaces apart."""
        return {name: axis.text for name, axis in self.axes.items()}

    def combinations(self) -> list[list[str]]:
        """Every combination of the values, the last axis turning fastest. Raises UserError for an interval."""
        for axis in self.axes.values():
            if axis.values is None:
                raise UserError(
                    f"{axis.name}=interval(...) has no end of values for a grid: give a list, or search: sweep=search"
                )
        return BasicSweeper.split_arguments([axis.override for axis in self.axes.values()], None)[0]

    def probes(self) -> list[list[str]]:
        """Combinations in which every value appears once; as many as the longest axis has values."""
        columns = {name: axis.probes() for name, axis in self.axes.items()}
        longest = max(len(values) for values in columns.values())
        return [
            [f"{name}={values[min(n, len(values) - 1)]}" for name, values in columns.items()] for n in range(longest)
        ]


def read(
    configured: Mapping[str, Any], arguments: Sequence[str], parser: OverridesParser, swept: Sequence[str] = ()
) -> Space:
    """The space of a sweep.

    configured: option to Hydra's words for its values, as ``conf/sweep/`` has them: ``"tag(log, interval(1e-4, 1))"``.
    arguments: the words of the command line; they win. swept: more words, from an experiment.
    Raises UserError for a space that is empty, or an axis that nothing can be drawn from.
    """
    words = [*(f"{name}={_one_word(value)}" for name, value in configured.items()), *swept]
    axes: dict[str, Axis] = {}
    fixed: list[str] = []
    for word in [*words, *arguments]:
        try:
            override = parser.parse_override(word)
        except (OverrideParseException, HydraException) as error:
            raise UserError(_unreadable(word, error)) from error
        name = override.get_key_element()
        axes.pop(name.lstrip("+"), None)
        if override.is_sweep_override():
            axes[name.lstrip("+")] = _axis(name, override)
        elif word in arguments:
            fixed.append(word)
        else:  # a list of one in conf/sweep
            axes[name] = Axis(name, override, (override.get_value_element_as_str(),))
    if not axes:
        raise UserError(
            'the sweep has nothing to vary: give values, such as args="optimizer.lr=1e-3,3e-3", seeds=5, '
            "or a space of conf/sweep/, such as sweep=lr"
        )
    return Space(axes, tuple(fixed))


def _axis(name: str, override: Override) -> Axis:
    key = name.lstrip("+")
    if key.startswith("hydra") or key.split(".")[0] in NOT_SWEPT:
        raise UserError(f"{key}= cannot be swept: every trial of a sweep has the same")
    if override.is_discrete_sweep():
        values = tuple(dict.fromkeys(override.sweep_string_iterator()))
        if not values:
            raise UserError(f"{override.input_line}: there is no value in it; a range needs its low end first")
        return Axis(name, override, values)
    found = override.value()
    assert isinstance(found, IntervalSweep)
    assert found.start is not None
    assert found.end is not None
    if found.start >= found.end:
        raise UserError(f"{override.input_line}: its low end, {found.start:g}, must be below its high end")
    if "log" in found.tags and found.start <= 0:
        raise UserError(f"{override.input_line}: a logarithmic interval must begin above 0")
    if unknown := found.tags - {"log"}:
        raise UserError(f"{override.input_line}: tag {min(unknown)} is not known; there is: log")
    return Axis(name, override, None)


def _one_word(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return str(value)


def _unreadable(word: str, error: Exception) -> str:
    said = " ".join(str(error).split("\n")[0].split())
    return f"{word} cannot be read: {said}"
