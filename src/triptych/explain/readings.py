"""How each method is read off a model of each task: from evidence to a score per input unit (B U)."""

from collections.abc import Callable

import torch

from triptych.attention.shapes import Tensor
from triptych.explain.alignment import alignment as alignments
from triptych.explain.evidence import Evidence, Stack, logit_of_tokens
from triptych.explain.methods import class_maps
from triptych.explain.methods import relevance as relevances
from triptych.explain.methods import rollout as rollouts
from triptych.explain.targets.subject import Subject


def _main(evidence: Evidence) -> Stack:
    """The stack whose last layer the answer is read from: cross-attention where there is some."""
    return "cross" if evidence.stack("cross") else "blocks"


def _at_units(subject: Subject, matrix: Tensor) -> Tensor:
    return subject.at_units(subject.read(matrix))


def attention(evidence: Evidence, subject: Subject) -> Tensor:
    return _at_units(subject, evidence.stack(_main(evidence))[-1].mean(1))


def alignment(evidence: Evidence, subject: Subject) -> Tensor:
    from triptych.explain.targets.pairs import PairSubject  # here: what it imports is an extra

    assert isinstance(subject, PairSubject)
    assert subject.choice is not None
    choice = subject.choice
    matrix = alignments.fuse(evidence.stack("cross")[choice.layer], choice.fusion)
    return subject.at_units(subject.read_row(matrix, 1 if choice.row == "shifted" else 0))


def _layers(evidence: Evidence, take: Callable[[Stack], list[Tensor]]) -> list[Tensor]:
    """The whole model as one stack of square matrices; see ``rollouts.joined`` for encoder and decoder."""
    if not evidence.stack("cross"):
        return take("blocks")
    return rollouts.joined(take("encoder"), list(zip(take("decoder"), take("cross"), strict=True)))


def _to_input(evidence: Evidence, subject: Subject, whole: Tensor) -> Tensor:
    """The row that is read of a matrix over the whole model's positions."""
    if evidence.stack("cross"):
        source = evidence.stack("cross")[0].shape[-1]
        whole = whole[:, source:, :source]
    return _at_units(subject, whole)


def rollout(evidence: Evidence, subject: Subject) -> Tensor:
    return _to_input(evidence, subject, rollouts.rollout(_layers(evidence, evidence.stack)))


def flow(evidence: Evidence, subject: Subject) -> Tensor:
    layers = _layers(evidence, evidence.stack)
    before = evidence.stack("cross")[0].shape[-1] if evidence.stack("cross") else 0
    rows = [before + row for row in subject.query_rows]
    whole = torch.zeros_like(layers[0][:, 0])
    whole[:, rows] = rollouts.flow(layers, rows=rows).to(whole)
    return _to_input(evidence, subject, whole)


def gradient_rollout(evidence: Evidence, subject: Subject) -> Tensor:
    rolled = rollouts.gradient_rollout(_layers(evidence, evidence.stack), _layers(evidence, evidence.gradient_stack))
    return _to_input(evidence, subject, rolled)


def relevance(evidence: Evidence, subject: Subject) -> Tensor:
    def cams(of: Stack) -> list[Tensor]:
        return [
            relevances.positive(each, gradient)
            for each, gradient in zip(evidence.stack(of), evidence.gradient_stack(of), strict=True)
        ]

    if evidence.stack("cross"):
        decoder = list(zip(cams("decoder"), cams("cross"), strict=True))
        return _at_units(subject, relevances.cross_relevance(cams("encoder"), decoder)[1])
    return _at_units(subject, relevances.self_relevance(cams("blocks")))


def attention_gradient(evidence: Evidence, subject: Subject) -> Tensor:
    main = _main(evidence)
    matrix = class_maps.attention_gradient(evidence.stack(main)[-1], evidence.gradient_stack(main)[-1])
    return _at_units(subject, matrix)


def signed_attention_gradient(evidence: Evidence, subject: Subject) -> Tensor:
    main = _main(evidence)
    matrix = class_maps.attention_gradient(evidence.stack(main)[-1], evidence.gradient_stack(main)[-1], signed=True)
    return _at_units(subject, matrix)


def attention_grad_cam(evidence: Evidence, subject: Subject) -> Tensor:
    def per_head(whole: Tensor) -> Tensor:
        return torch.stack([_at_units(subject, head) for head in whole.unbind(1)], dim=1)

    return class_maps.attention_grad_cam(
        per_head(evidence.stack("blocks")[-1]), per_head(evidence.gradient_stack("blocks")[-1])
    )


def _tokens(evidence: Evidence) -> tuple[Tensor, Tensor]:
    assert evidence.tokens is not None
    assert evidence.token_gradients is not None
    return evidence.tokens, evidence.token_gradients


def grad_cam(evidence: Evidence, subject: Subject) -> Tensor:
    before = evidence.tokens.shape[1] - subject.size  # type: ignore[union-attr]  # CLS, registers
    tokens, gradients = (each[:, before:] for each in _tokens(evidence))
    return class_maps.grad_cam(tokens, gradients)


def cdam(evidence: Evidence, subject: Subject) -> Tensor:
    return subject.at_units(class_maps.cdam(*_tokens(evidence)))


def smooth_cdam(evidence: Evidence, subject: Subject) -> Tensor:
    function = logit_of_tokens(evidence)
    return subject.at_units(class_maps.smooth_cdam(function, _tokens(evidence)[0]))


def integrated_cdam(evidence: Evidence, subject: Subject) -> Tensor:
    function = logit_of_tokens(evidence)
    return subject.at_units(class_maps.integrated_cdam(function, _tokens(evidence)[0]))


def concept_cdam(evidence: Evidence, subject: Subject) -> Tensor:
    assert subject.concept is not None
    concept = subject.concept
    embedding = logit_of_tokens(evidence, evidence.model.norm)  # type: ignore[arg-type]
    tokens = _tokens(evidence)[0].requires_grad_()
    with torch.enable_grad():
        similar = class_maps.concept_similarity(embedding(tokens), concept)
        (gradients,) = torch.autograd.grad(similar.sum(), tokens)
    return subject.at_units(class_maps.cdam(tokens.detach(), gradients))


def random(evidence: Evidence, subject: Subject) -> Tensor:
    generator = torch.Generator().manual_seed(len(subject))
    return torch.rand(len(subject), subject.size, generator=generator)
