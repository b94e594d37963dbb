"""A verdict on a method as data; its sentence, its short form and its tone are made from it, here and nowhere else."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from triptych.explain.evaluation.intervals import Interval

VERSION = 1  # of the stored form


class Outcome(StrEnum):
    """How a method compares with random orders, by deletion and insertion, over all examples."""

    BEATS = "beats"
    BEATS_BY_DELETION = "beats by deletion"
    BEATS_BY_INSERTION = "beats by insertion"
    DOES_NOT_BEAT = "does not beat"
    WORSE = "worse"
    ONE_EXAMPLE = "one example"  # no interval, so no verdict


class Control(StrEnum):
    """What the same method on re-initialised weights leaves of an advantage by deletion."""

    PASSED = "passed"
    FAILED = "failed"
    FAILED_IN_PART = "failed in part"
    UNDECIDED = "undecided"
    NOT_RUN = "not run"
    NO_ADVANTAGE = "no advantage"  # by deletion, so there is nothing to control


class Tone(StrEnum):
    """How a page may colour a verdict. Good is only what beats random order and has passed its control."""

    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    SOFT = "soft"


@dataclass(frozen=True)
class Verdict:
    """What deletion, insertion and the control say of one method.

    deletion, insertion: paired advantages over random orders, positive is better. reinitialised: the deletion advantage
    with every weight drawn anew; None where that was not run. constant: examples on which the map ranks nothing.
    """

    outcome: Outcome
    control: Control
    deletion: Interval
    insertion: Interval
    reinitialised: Interval | None
    constant: int

    @classmethod
    def of(
        cls, deletion: Interval, insertion: Interval, reinitialised: Interval | None = None, constant: int = 0
    ) -> "Verdict":
        """The verdict that the intervals allow."""
        return cls(
            _outcome(deletion, insertion),
            _control(deletion, reinitialised),
            deletion,
            insertion,
            reinitialised,
            constant,
        )

    @property
    def tone(self) -> Tone:
        """Good only where random order is beaten by both and the control was passed."""
        if self.outcome is Outcome.WORSE:
            return Tone.BAD
        if self.outcome in (Outcome.DOES_NOT_BEAT, Outcome.ONE_EXAMPLE):
            return Tone.SOFT
        return Tone.GOOD if self.outcome is Outcome.BEATS and self.control is Control.PASSED else Tone.WARN

    @property
    def short(self) -> str:
        """A few words: the outcome, and the control where it is not passed."""
        words = {
            Outcome.BEATS: "beats random order",
            Outcome.BEATS_BY_DELETION: "beats random order by deletion only",
            Outcome.BEATS_BY_INSERTION: "beats random order by insertion only",
            Outcome.DOES_NOT_BEAT: "does not beat random order",
            Outcome.WORSE: "worse than random order",
            Outcome.ONE_EXAMPLE: "no verdict",
        }[self.outcome]
        if self.control is Control.FAILED:
            return f"{words}; fails its control"
        if self.control is Control.FAILED_IN_PART:
            return f"{words}; fails its control in part"
        if self.control in (Control.UNDECIDED, Control.NOT_RUN) or self.outcome is Outcome.BEATS_BY_INSERTION:
            return f"{words}; not controlled"
        return words

    @property
    def sentence(self) -> str:
        """One plain sentence: does the method beat random order, on how many examples, and does it pass its control?"""
        said = _on_outcome(self)
        if self.control is not Control.NO_ADVANTAGE:
            said += f"; {_on_control(self)}"
        elif self.outcome is Outcome.BEATS_BY_INSERTION:
            said += "; not controlled: the control with re-initialised weights is for deletion"
        if self.constant:
            n = self.deletion.n
            of = f"{self.constant} of {n} {'example' if n == 1 else 'examples'}"
            said += f"; ranks nothing on {of}, where the map is constant"
        return said

    def to_json(self) -> dict[str, Any]:
        """As plain containers; the intervals stand beside it in a method's row."""
        return {"version": VERSION, "outcome": self.outcome.value, "control": self.control.value}


def _outcome(deletion: Interval, insertion: Interval) -> Outcome:
    if deletion.n == 1:
        return Outcome.ONE_EXAMPLE
    if deletion.low > 0 and insertion.low > 0:
        return Outcome.BEATS
    if deletion.low > 0:
        return Outcome.BEATS_BY_DELETION
    if insertion.low > 0:
        return Outcome.BEATS_BY_INSERTION
    return Outcome.WORSE if deletion.high < 0 or insertion.high < 0 else Outcome.DOES_NOT_BEAT


def _control(deletion: Interval, reinitialised: Interval | None) -> Control:
    if not deletion.low > 0:  # or there is no interval
        return Control.NO_ADVANTAGE
    if reinitialised is None:
        return Control.NOT_RUN
    if not reinitialised.known:
        return Control.UNDECIDED
    overlap = reinitialised.high >= deletion.low
    if reinitialised.low > 0:
        return Control.FAILED if overlap else Control.FAILED_IN_PART
    return Control.UNDECIDED if overlap else Control.PASSED


def _on_outcome(verdict: Verdict) -> str:
    deletion, insertion, n = verdict.deletion, verdict.insertion, verdict.deletion.n
    by_deletion = f"deletion area {_side(deletion, 'lower', 'higher')}"
    by_insertion = f"insertion area {_side(insertion, 'higher', 'lower')}"
    match verdict.outcome:
        case Outcome.ONE_EXAMPLE:
            why = "so there is no interval and no verdict"
            return f"tested on one example only, {why} ({by_deletion}, {by_insertion})"
        case Outcome.BEATS:
            return f"beats random order on {n} examples ({by_deletion}; {by_insertion})"
        case Outcome.BEATS_BY_DELETION:
            said = f"beats random order on {n} examples by deletion ({by_deletion}), but "
            return said + f"{_not_beating(insertion)} by insertion ({by_insertion})"
        case Outcome.BEATS_BY_INSERTION:
            said = f"beats random order on {n} examples by insertion ({by_insertion}), but "
            return said + f"{_not_beating(deletion)} by deletion ({by_deletion})"
        case Outcome.WORSE:
            return f"is worse than random order on {n} examples ({by_deletion}; {by_insertion})"
    return f"does not beat random order on {n} examples ({by_deletion}; {by_insertion})"


def _on_control(verdict: Verdict) -> str:
    """What re-initialised weights leave of an advantage that the trained ones have."""
    reinitialised = verdict.reinitialised
    if reinitialised is None:
        return "the control with re-initialised weights was not run"
    if not reinitialised.known:
        return "the control with re-initialised weights has one example only, so it decides nothing"
    match verdict.control:
        case Control.FAILED:
            return f"fails its control: re-initialised weights keep the advantage ({reinitialised.amount})"
        case Control.FAILED_IN_PART:
            share = f"{reinitialised.mean / verdict.deletion.mean:.0%} of the advantage ({reinitialised.amount})"
            return f"fails its control in part: re-initialised weights keep {share}"
        case Control.UNDECIDED:
            return f"the control decides nothing: with re-initialised weights {reinitialised.amount}, too wide to tell"
    return f"passes its control: with re-initialised weights the advantage is gone ({reinitialised.amount})"


def _not_beating(advantage: Interval) -> str:
    return "is worse than it" if advantage.high < 0 else "does not beat it"


def _side(advantage: Interval, better: str, worse: str) -> str:
    return f"{better if advantage.mean >= 0 else worse} by {advantage.size}"
