"""Each method reads the right rows of the right layers, and is refused with the reason where it is not defined."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from subjects_of import RECURRENT, subject_of, task_and_data

from triptych.errors import UserError
from triptych.explain.alignment.alignment import Choice
from triptych.explain.evidence import collect_evidence
from triptych.explain.methods.registry import METHODS, Method, chosen
from triptych.explain.targets.pairs import PairSubject
from triptych.explain.targets.subject import Subject

BY_NAME = {method.name: method for method in METHODS}
TASKS = ["vit", "charlm", "translation"]


def defined(name: str, *more: str) -> tuple[Any, Subject, Sequence[Method]]:
    subject, (task, _) = subject_of(name, 3, *more), task_and_data(name, *more)
    return task.model, subject, chosen(None, task.model, subject, slow=True)


@pytest.mark.parametrize("name", TASKS)
def test_every_method_gives_each_unit_a_finite_score_and_never_looks_at_the_neighbours(name: str) -> None:
    """An example's scores are the same alone as in a batch (random order aside)."""
    model, subject, methods = defined(name)
    evidence = collect_evidence(model, subject, gradients=True)
    last = len(subject) - 1
    alone = subject_alone(subject, last)
    beside = collect_evidence(model, alone, gradients=True)
    for method in methods:
        scores = method(evidence, subject)
        assert scores.shape == (len(subject), subject.size), method.name
        assert scores.isfinite().all(), method.name
        if method.name != "random":
            torch.testing.assert_close(method(beside, alone)[0], scores[last], rtol=2e-3, atol=2e-4, msg=method.name)


def subject_alone(subject: Subject, at: int) -> Subject:
    """One example of a subject, asked about the same output."""
    from copy import copy

    one = copy(subject)
    for name, value in vars(subject).items():
        if isinstance(value, torch.Tensor | list) and len(value) == len(subject):
            setattr(one, name, value[at : at + 1])
    return one


@pytest.mark.parametrize("name", TASKS)
def test_maps_of_weights_are_the_same_for_every_output_and_maps_with_gradients_are_not(name: str) -> None:
    model, subject, methods = defined(name)
    other = subject.asking(subject.runner_up(model))
    one, two = (collect_evidence(model, each, gradients=True) for each in (subject, other))
    for method in methods:
        if method.needs != "nothing":
            same = torch.equal(method(one, subject), method(two, other))
            assert same == (method.needs == "weights"), method.name


def test_rollout_of_an_image_is_the_class_tokens_row_of_the_product() -> None:
    model, subject, _ = defined("vit")
    evidence = collect_evidence(model, subject, gradients=False)
    first, second = ((w.mean(1) + torch.eye(17)) / 2 for w in evidence.stack("blocks"))
    assert torch.allclose(BY_NAME["rollout"](evidence, subject), (second @ first)[:, 0, 1:], atol=1e-6)
    assert torch.allclose(
        BY_NAME["attention"](evidence, subject), evidence.stack("blocks")[1].mean(1)[:, 0, 1:], atol=1e-6
    )


def test_without_a_class_token_the_rows_of_the_patches_are_averaged() -> None:
    model, subject, _ = defined("vit", "model.pooling=mean", "model.registers=1")
    evidence = collect_evidence(model, subject, gradients=False)
    expected = evidence.stack("blocks")[1].mean(1)[:, 1:, 1:].mean(1)
    assert torch.allclose(BY_NAME["attention"](evidence, subject), expected, atol=1e-6)
    rows = BY_NAME["flow"](evidence, subject)
    assert rows.shape == (3, 16)
    assert (rows > 0).all()


def test_rollout_of_a_translation_goes_through_decoder_cross_and_encoder() -> None:
    """By hand: each decoder row keeps half, gives half to itself and its past; then the same to the memory."""
    model, subject, _ = defined("translation")
    assert isinstance(subject, PairSubject)
    evidence = collect_evidence(model, subject, gradients=False)
    S, T = subject.source.shape[1], subject.targets.shape[1]
    memory = torch.eye(S).expand(len(subject), S, S)
    for weights in evidence.stack("encoder"):
        memory = (weights.mean(1) + torch.eye(S)) / 2 @ memory
    across = torch.zeros(len(subject), T, S)
    for own, cross in zip(evidence.stack("decoder"), evidence.stack("cross"), strict=True):
        across = (own.mean(1) + torch.eye(T)) / 2 @ across
        across = (across + cross.mean(1) @ memory) / 2
    expected = subject.at_units(across[torch.arange(len(subject)), subject.rows])
    assert torch.allclose(BY_NAME["rollout"](evidence, subject), expected, atol=1e-6)


def test_the_chosen_alignment_is_read_where_the_run_chose() -> None:
    model, subject, _ = defined("translation")
    assert isinstance(subject, PairSubject)
    evidence = collect_evidence(model, subject, gradients=False)
    with pytest.raises(UserError, match="only a finished run"):
        BY_NAME["alignment"](evidence, subject)
    subject.choice = Choice(0, "shifted", 1)
    rows = (subject.rows + 1).clamp(max=subject.targets.shape[1] - 1)
    expected = subject.at_units(evidence.stack("cross")[0][torch.arange(len(subject)), 1, rows])
    assert torch.allclose(BY_NAME["alignment"](evidence, subject), expected)


def test_concept_cdam_explains_the_similarity_of_class_tokens() -> None:
    """To first order: scores of all tokens, CLS included, are the gradient of the similarity times the tokens."""
    model, subject, methods = defined("vit")
    assert "concept_cdam" not in [method.name for method in methods]
    concepts = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    subject.concept = concepts
    evidence = collect_evidence(model, subject, gradients=True)
    scores = BY_NAME["concept_cdam"](evidence, subject)
    subject.concept = concepts * 2
    assert torch.allclose(BY_NAME["concept_cdam"](evidence, subject), 2 * scores, rtol=1e-4, atol=1e-5)
    subject.concept = concepts.mean(0, keepdim=True)  # only the mean of the concept's examples counts
    assert torch.allclose(BY_NAME["concept_cdam"](evidence, subject), scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("task", "more", "method", "why"),
    [
        ("translation", (RECURRENT,), "rollout", "recurrent layers mix positions without weights"),
        ("translation", (RECURRENT,), "relevance", "recurrent layers"),
        ("translation", (), "cdam", "first layer norm of a last block that holds the whole input"),
        ("translation", (), "attention_grad_cam", "a unit is a word of several"),
        ("charlm", (), "concept_cdam", "vision transformers with model.pooling=cls"),
        ("vit", (), "concept_cdam", "give concept=FOLDER"),
        ("vit", (), "alignment", "only a finished run of a translator"),
        ("vit", (), "gradcam", "methods=gradcam is not known; there are: attention, "),
    ],
)
def test_what_is_not_defined_is_refused_with_the_reason(
    task: str, more: tuple[str, ...], method: str, why: str
) -> None:
    model, subject, _ = defined(task, *more)
    with pytest.raises(UserError, match=why):
        chosen([method], model, subject, slow=True)


def test_a_recurrent_translator_has_its_attention_and_the_gradients_of_it() -> None:
    _, _, methods = defined("translation", RECURRENT)
    assert [method.name for method in methods] == [
        "attention",
        "attention_gradient",
        "signed_attention_gradient",
        "random",
    ]
