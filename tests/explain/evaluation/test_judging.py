"""A ranking that knows what removal does beats random order, its reverse loses, and examples are counted once."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from subjects_of import subject_of, task_and_data

from triptych.explain.evaluation import interventions, judging, verdicts
from triptych.explain.evaluation.intervals import Interval
from triptych.explain.evaluation.interventions import InterventionEffect
from triptych.explain.evaluation.judging import Judging
from triptych.explain.methods.registry import METHODS, Method
from triptych.explain.targets.subject import Subject
from triptych.maps.capture import intervene, probing, sites


def knowing(model: torch.nn.Module, name: str, sign: float) -> Method:
    """Ranks units by what removing each alone does to the probability."""

    def scores(evidence: Any, subject: Subject) -> torch.Tensor:
        alone = torch.eye(subject.size, dtype=torch.bool).expand(len(subject), -1, -1)
        return -sign * subject.probability(model, alone, "deletion")

    return Method(name, name, name, "nothing", scores, lambda model, subject: None)


def judged(
    subjects: Sequence[Subject], monkeypatch: pytest.MonkeyPatch, methods: Sequence[Method], **options: Any
) -> Judging:
    task, _ = task_and_data("vit")
    monkeypatch.setattr(judging, "chosen", lambda *args, **more: list(methods))
    settings = {"names": None, "slow": False, "orders": 3, "points": 4, "seed": 0, "control": False, **options}
    with probing(task.model) as model:
        found = Judging(model, **settings)
        for subject in subjects:
            found.add(subject)
    return found


def test_a_ranking_that_knows_beats_random_order_and_its_reverse_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    model = task_and_data("vit")[0].model
    found = judged([subject_of("vit", 8)], monkeypatch, [knowing(model, "best", 1.0), knowing(model, "worst", -1.0)])
    best, worst = found.measured()
    assert best.deletion.low > 0
    assert worst.deletion.high < 0
    assert best.verdict.sentence.startswith("beats random order on 8 examples")
    assert worst.verdict.sentence.startswith("is worse than random order on 8 examples")
    knocks = {row["name"]: row for row in found.interventions() if row["kind"] == "key"}
    assert knocks["best"]["effect"]["low"] > 0
    assert knocks["worst"]["effect"]["mean"] < 0


def test_outputs_of_one_example_are_one_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three words of a sentence are no sample of three: their mean counts, and has no interval."""
    subject = subject_of("vit", 3)
    subject.examples = ["the same"] * 3
    found = judged([subject], monkeypatch, [knowing(task_and_data("vit")[0].model, "best", 1.0)])
    (row,) = found.measured()
    assert found.seen == 1
    assert row.deletion.n == 1
    assert not row.deletion.known
    assert "one example" in row.verdict.sentence
    apart = judged([subject_of("vit", 3)], monkeypatch, [knowing(task_and_data("vit")[0].model, "best", 1.0)])
    assert row.deletion.mean == pytest.approx(apart.measured()[0].deletion.mean, abs=1e-6)


def test_batches_are_pooled_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = [each for each in METHODS if each.name in ("attention", "cdam", "random")]
    parts = [subject_of("vit", 3), subject_of("vit", 2)]
    found = judged(parts, monkeypatch, methods, control=True)
    attention, cdam, random = found.measured()
    assert attention.deletion.n == 4  # of 3 and 2 test images, one is in both
    assert attention.class_sensitivity == Interval(0, 0, 0, attention.deletion.n)  # the same weights for every class
    assert cdam.class_sensitivity is not None
    assert cdam.class_sensitivity.mean > 0.01
    assert random.class_sensitivity is None
    assert random.control is None
    assert cdam.control is not None
    assert found.capture_error < 1e-5


def test_the_fall_of_a_silenced_head_and_a_changed_layer_is_by_intervention() -> None:
    subject, (task, _) = subject_of("vit", 3), task_and_data("vit")
    rows = torch.arange(3)
    with probing(task.model) as model:
        clean = subject.logits(model).softmax(-1)
        heads = {each.name: each for each in interventions.ablate_heads(model, subject)}
        layers = {(each.kind, each.name): each for each in interventions.layers_changed(model, subject, seed=0)}
        site = sites(model)[1].name
        with intervene(model, lambda weights, _: weights * 0, layers=[site], heads=[1]):
            silenced = subject.logits(model).softmax(-1)
        with intervene(model, lambda weights, _: torch.full_like(weights, 1 / 17), layers=[site]):
            even = subject.logits(model).softmax(-1)
    fall = (clean - silenced)[rows, subject.target]
    assert len(heads) == 4
    assert torch.allclose(heads["layer 1, head 1"].fall, fall, atol=1e-6)
    fall = (clean - even)[rows, subject.target]
    found = layers["uniform", "layer 1"]
    assert torch.allclose(found.fall, fall, atol=1e-6)
    assert found.moved is not None
    assert torch.allclose(found.moved, (clean - even).abs().sum(-1) / 2, atol=1e-6)


def test_an_intervention_is_told_in_one_sentence() -> None:
    own, others = torch.tensor([0.3, 0.4, 0.5]), torch.tensor([0.1, 0.1, 0.1])
    row = InterventionEffect.of_unit("cdam", "CDAM", own, others).row(
        lambda values: verdicts.over_examples(values.tolist())
    )
    assert row["effect"]["mean"] == pytest.approx(0.3)
    assert row["effect"]["n"] == 3
    assert "taking away the input ranked first by CDAM" in row["sentence"]
    assert "lower" in row["sentence"]
    parts = [InterventionEffect.of_unit("cdam", "CDAM", own[at : at + 1], others[at : at + 1]) for at in range(3)]
    assert InterventionEffect.joined(parts).row(lambda values: verdicts.over_examples(values.tolist())) == row
