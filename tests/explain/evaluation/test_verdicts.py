"""Protects what is said beside every map: chance is never called a finding, nor a test claimed that was not run."""

import json
import math

import pytest
import torch
from torch import Tensor

from triptych.explain.evaluation.faithfulness import Faithfulness
from triptych.explain.evaluation.intervals import Interval, bootstrap, t_interval
from triptych.explain.evaluation.verdict import Control, Outcome, Tone, Verdict
from triptych.explain.evaluation.verdicts import (
    Judged,
    Measured,
    chance,
    compared,
    deletion_advantage,
    effect_verdict,
    judge,
    measured,
    over_examples,
)

BETTER, LESS, WORSE = Interval(0.12, 0.08, 0.16, 64), Interval(0.01, -0.02, 0.04, 64), Interval(-0.1, -0.2, -0.05, 64)
ONE = Interval(0.3, math.nan, math.nan, 1)
NONE = Interval(0.001, -0.01, 0.012, 64)

# A model whose answer is the share of what its units contribute, most of it in one unit per example.
PARTS = torch.stack([torch.full((8,), 0.05).index_fill(0, torch.tensor([at % 8]), 0.65) for at in range(12)])


def answer(removed: Tensor, start: str) -> Tensor:
    return (PARTS[:, None] * ~removed).sum(-1)


@pytest.mark.parametrize(
    ("deletion", "insertion", "control", "sentence"),
    [
        (
            BETTER,
            BETTER,
            NONE,
            "beats random order on 64 examples (deletion area lower by 0.12 [0.08, 0.16]; insertion area higher by "
            "0.12 [0.08, 0.16]); passes its control: with re-initialised weights the advantage is gone "
            "(0.00 [-0.01, 0.01])",
        ),
        (
            BETTER,
            BETTER,
            Interval(0.11, 0.07, 0.15, 64),
            "beats random order on 64 examples (deletion area lower by 0.12 [0.08, 0.16]; insertion area higher by "
            "0.12 [0.08, 0.16]); fails its control: re-initialised weights keep the advantage (0.11 [0.07, 0.15])",
        ),
        (
            BETTER,
            LESS,
            None,
            "beats random order on 64 examples by deletion (deletion area lower by 0.12 [0.08, 0.16]), but does not "
            "beat it by insertion (insertion area higher by 0.01 [-0.02, 0.04]); the control with re-initialised "
            "weights was not run",
        ),
        (
            WORSE,
            BETTER,
            None,
            "beats random order on 64 examples by insertion (insertion area higher by 0.12 [0.08, 0.16]), but is "
            "worse than it by deletion (deletion area higher by 0.10 [0.05, 0.20]); not controlled: the control with "
            "re-initialised weights is for deletion",
        ),
        (
            LESS,
            LESS,
            None,
            "does not beat random order on 64 examples (deletion area lower by 0.01 [-0.02, 0.04]; insertion area "
            "higher by 0.01 [-0.02, 0.04])",
        ),
        (
            WORSE,
            LESS,
            BETTER,
            "is worse than random order on 64 examples (deletion area higher by 0.10 [0.05, 0.20]; insertion area "
            "higher by 0.01 [-0.02, 0.04])",
        ),
        (
            ONE,
            ONE,
            None,
            "tested on one example only, so there is no interval and no verdict (deletion area lower by 0.30, "
            "insertion area higher by 0.30)",
        ),
    ],
)
def test_the_sentence(deletion: Interval, insertion: Interval, control: Interval | None, sentence: str) -> None:
    assert Verdict.of(deletion, insertion, control).sentence == sentence


def test_an_interval_that_touches_zero_beats_nothing() -> None:
    touching = Interval(0.1, 0.0, 0.2, 5)
    assert Verdict.of(touching, touching).sentence.startswith("does not beat random order on 5 examples")


@pytest.mark.parametrize(
    ("control", "said"),
    [
        (Interval(0.03, 0.02, 0.04, 64), "fails its control in part: re-initialised weights keep 25% of the advantage"),
        (Interval(0.05, -0.1, 0.2, 64), "the control decides nothing: with re-initialised weights 0.05 [-0.10, 0.20]"),
        (Interval(0.05, math.nan, math.nan, 1), "has one example only, so it decides nothing"),
        (Interval(-0.1, -0.2, -0.05, 64), "passes its control"),
    ],
)
def test_a_control_is_passed_only_when_the_advantage_is_shown_to_be_gone(control: Interval, said: str) -> None:
    assert said in Verdict.of(BETTER, BETTER, control).sentence


def test_constant_maps_are_counted() -> None:
    assert Verdict.of(LESS, LESS, constant=3).sentence.endswith(
        "; ranks nothing on 3 of 64 examples, where the map is constant"
    )


def test_effects_in_words() -> None:
    masking = "masking the aligned word"
    assert effect_verdict(masking, WORSE, "the probability") == (
        "masking the aligned word lowers the probability by 0.10 [0.05, 0.20] on 64 examples"
    )
    # Both lower it: a difference says how the two ends compare, not that either raises anything.
    assert effect_verdict(masking, BETTER, "the probability", than="masking a random one") == (
        "masking the aligned word leaves the probability 0.12 [0.08, 0.16] higher than masking a random one, on 64 "
        "examples"
    )
    assert effect_verdict(masking, LESS, "the loss", than="masking a random one") == (
        "masking the aligned word does not clearly change the loss differently from masking a random one on 64 "
        "examples (difference 0.01 [-0.02, 0.04])"
    )
    assert effect_verdict(masking, ONE, "the loss") == (
        "masking the aligned word raises the loss by 0.30 on one example: with no interval, this may well be chance"
    )


def test_the_true_contributions_beat_random_order_and_the_reverse_is_worse() -> None:
    by = chance(answer, 12, 8, seed=3, orders=40)
    # Random orders meet the big unit half-way: both areas are 1/2. The best order loses .65 at once.
    assert by.figures.deletion.mean().item() == pytest.approx(0.5, abs=0.02)
    best = judge(PARTS, answer, by)
    assert best.figures.deletion.tolist() == pytest.approx([0.5 - 0.65 * 3.5 / 8 + 0.05 * 3.5 / 8] * 12)
    assert (best.advantage.deletion > 0.1).all()
    assert (best.advantage.insertion > 0.1).all()
    assert (best.advantage.comprehensiveness > 0.1).all()
    assert (best.advantage.sufficiency > 0.1).all()
    worst = judge(-PARTS, answer, by)
    assert all((each < -0.05).all() for each in worst.advantage)
    torch.testing.assert_close(deletion_advantage(PARTS, answer, by), best.advantage.deletion)


def test_a_constant_map_ranks_nothing_and_does_not_beat_random_order() -> None:
    """The big unit lies first in every example: breaking ties by index would look like an explanation."""
    first = torch.full((40, 8), 0.05).index_fill(1, torch.tensor([0]), 0.65)

    def answer_first(removed: Tensor, start: str) -> Tensor:
        return (first[:, None] * ~removed).sum(-1)

    by = chance(answer_first, 40, 8, seed=0)
    judged = judge(torch.full((40, 8), 0.125), answer_first, by)
    row = measured("constant", [judged], seconds_per_example=0.0, compactness=[math.nan] * 40)
    assert row.verdict.sentence.startswith("does not beat random order on 40 examples")
    assert row.verdict.sentence.endswith("ranks nothing on 40 of 40 examples, where the map is constant")
    assert row.constant == 40
    assert row.compactness is None


def test_batches_are_pooled_example_by_example() -> None:
    by = chance(answer, 12, 8, seed=0)
    judged = judge(PARTS, answer, by)

    def part(where: slice) -> Judged:
        return Judged(
            Faithfulness(*(each[where] for each in judged.figures)),
            Faithfulness(*(each[where] for each in judged.advantage)),
            judged.constant[where],
        )

    whole = measured("sum", [judged], seconds_per_example=0.1, control=judged.advantage.deletion.tolist())
    parts = measured(
        "sum", [part(slice(5)), part(slice(5, 12))], seconds_per_example=0.1, control=judged.advantage.deletion.tolist()
    )
    assert parts == whole
    assert whole.deletion == t_interval(judged.advantage.deletion.tolist())
    assert whole.deletion.n == 12
    assert "fails its control: re-initialised weights keep the advantage" in whole.verdict.sentence


def test_few_examples_get_students_interval_and_many_the_bootstrap() -> None:
    few, many = [0.1, 0.2, 0.3, 0.4], torch.linspace(0, 1, 30).tolist()
    assert over_examples(few) == t_interval(few)
    assert over_examples(many) == bootstrap(many)


def _row(name: str, deletion: Interval) -> Measured:
    rest = [LESS] * 7
    names = ("insertion", "comprehensiveness_advantage", "sufficiency_advantage", "deletion_area", "insertion_area")
    more = dict(zip((*names, "comprehensiveness", "sufficiency"), rest, strict=True))
    return Measured(
        method=name,
        deletion=deletion,
        class_sensitivity=None,
        compactness=ONE,
        seconds_per_example=0.5,
        control=None,
        stability=None,
        constant=0,
        verdict=Verdict.of(deletion, LESS),
        **more,
    )


def test_a_row_is_json_with_null_where_nothing_is_known() -> None:
    row = json.loads(json.dumps(_row("rollout", BETTER).to_json(), allow_nan=False))
    assert row["name"] == "rollout"
    assert row["deletion"] == {"mean": 0.12, "low": 0.08, "high": 0.16, "n": 64}
    assert row["compactness"] == {"mean": 0.3, "low": None, "high": None, "n": 1}
    assert row["class_sensitivity"] is None
    assert row["control"] is None
    assert row["verdict"].startswith("beats random order on 64 examples by deletion")
    assert row["judgement"] == {"version": 1, "outcome": "beats by deletion", "control": "not run"}


def test_beating_the_baseline_needs_intervals_clear_of_each_other() -> None:
    raw, near = _row("raw", Interval(0.05, 0.02, 0.08, 64)), _row("near", Interval(0.1, 0.07, 0.13, 64))
    far = _row("far", Interval(0.12, 0.09, 0.15, 64))
    assert compared([raw, near, far], "raw", ["near", "far"]) == (
        "far (0.12 [0.09, 0.15]) beats both random order and raw (0.05 [0.02, 0.08]) by deletion area on 64 examples, "
        "with intervals clear of each other"
    )
    assert compared([raw, near], "raw", ["near"]).startswith("none of near beats both random order and raw")
    # Better than a baseline that is worse than chance is not yet better than chance.
    assert compared([_row("raw", WORSE), _row("flat", LESS)], "raw", ["flat"]).startswith("none of flat")
    assert "cannot be said" in compared([_row("raw", ONE), _row("one", ONE)], "raw", ["one"])
    with pytest.raises(ValueError, match="no row for raw"):
        compared([near], "raw", ["near"])


ADVANTAGES = [BETTER, LESS, WORSE, ONE]


@pytest.mark.parametrize("deletion", ADVANTAGES)
@pytest.mark.parametrize("insertion", ADVANTAGES)
@pytest.mark.parametrize("control", [None, *ADVANTAGES, NONE])
def test_no_colour_and_no_word_contradicts_the_sentence(
    deletion: Interval, insertion: Interval, control: Interval | None
) -> None:
    """Green is only what beats random order by both and has passed its control; the short form names any other."""
    found = Verdict.of(deletion, insertion, control)
    assert (found.tone is Tone.GOOD) == (found.outcome is Outcome.BEATS and "passes its control" in found.sentence)
    assert ("fails its control" in found.short) == ("fails its control" in found.sentence)
    assert ("worse than random order" in found.short) == ("is worse than random order" in found.sentence)
    if found.short.startswith("beats") and found.control is not Control.PASSED:
        assert "control" in found.short
    assert json.loads(json.dumps(found.to_json()))["outcome"] == found.outcome
