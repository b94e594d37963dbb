"""Gradients are of the very weights that multiplied the values, under their layer's name; a control knows nothing."""

import pytest
import torch
from subjects_of import RECURRENT, subject_of, task_and_data

from triptych.errors import UserError
from triptych.explain.evidence import collect_evidence, last_norm, logit_of_tokens, reinitialised, stack_names
from triptych.explain.methods import class_maps
from triptych.explain.targets.subject import Subject
from triptych.maps.capture import intervene, probing

TASKS = ["vit", "charlm", "translation"]


@pytest.mark.parametrize("name", TASKS)
def test_gradients_are_what_changing_one_weight_does_to_the_logit(name: str) -> None:
    """Against finite differences in every site, at the cell where the gradient is largest."""
    subject, (task, _) = subject_of(name, 2), task_and_data(name)
    evidence = collect_evidence(task.model, subject, gradients=True)
    with probing(task.model) as model:
        for site, gradient in evidence.gradients.items():
            at = tuple(torch.unravel_index(gradient.abs().argmax(), gradient.shape))
            step = 1e-2
            found = []
            for sign in (1, -1):

                def nudged(weights: torch.Tensor, _: object, by: float = sign * step, at: tuple = at) -> torch.Tensor:
                    return weights.index_put(at, torch.tensor(by), accumulate=True)

                with intervene(model, nudged, layers=[site]):
                    found.append(subject.logit(model)[at[0]])
            slope = (found[0] - found[1]) / (2 * step)
            assert float(slope) == pytest.approx(float(gradient[at]), rel=0.02), site


def test_stacks_go_from_the_first_layer_to_the_last() -> None:
    model = task_and_data("translation")[0].model
    assert stack_names(model, "encoder") == [f"encoder.{n}.attention.attend" for n in (0, 1)]
    assert stack_names(model, "decoder") == [f"decoder.{n}.attention.attend" for n in (0, 1)]
    assert stack_names(model, "cross") == [f"decoder.{n}.cross.attend" for n in (0, 1)]
    assert stack_names(model, "blocks") == []
    subject = subject_of("translation")
    evidence = collect_evidence(model, subject, gradients=True)
    for stack in ("encoder", "decoder", "cross"):
        for weights, gradients in zip(evidence.stack(stack), evidence.gradient_stack(stack), strict=True):
            assert weights.shape == gradients.shape
            assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)


def test_patches_have_gradients_at_the_last_norm_and_none_behind_the_last_block() -> None:
    """The classic mistake measures where only CLS is read any more."""
    subject, (task, _) = subject_of("vit"), task_and_data("vit")
    evidence = collect_evidence(task.model, subject, gradients=True)
    assert evidence.token_gradients is not None
    assert evidence.token_gradients[:, 1:].abs().amax(-1).min() > 0
    kept: list[torch.Tensor] = []
    handle = task.model.blocks[-1].register_forward_hook(lambda module, args, output: kept.append(output))
    with probing(task.model, grad=True) as model:
        (behind,) = torch.autograd.grad(subject.logit(model).sum(), kept)
    handle.remove()
    assert not behind[:, 1:].any()
    assert behind[:, 0].any()


@pytest.mark.parametrize("name", ["vit", "charlm"])
def test_the_logit_as_a_function_of_the_tokens_is_the_models_own(name: str) -> None:
    subject, (task, _) = subject_of(name), task_and_data(name)
    evidence = collect_evidence(task.model, subject, gradients=True)
    assert evidence.tokens is not None
    assert evidence.token_gradients is not None
    function = logit_of_tokens(evidence)
    with probing(task.model) as model:
        assert torch.allclose(function(evidence.tokens), subject.logit(model), atol=1e-5)
    tokens = evidence.tokens.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(tokens).sum(), tokens)
    assert torch.allclose(gradient, evidence.token_gradients, atol=1e-5)
    total = function(tokens) - function(torch.zeros_like(tokens))
    assert torch.allclose(class_maps.integrated_cdam(function, evidence.tokens).sum(-1), total, atol=2e-3)


def test_looking_leaves_nothing_behind_in_a_model_in_training() -> None:
    task, _ = task_and_data("vit")
    task.model.train()
    subject = subject_of("vit")
    assert task.model.training
    collect_evidence(task.model, subject, gradients=True)
    assert task.model.training
    assert all(parameter.grad is None for parameter in task.model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in task.model.modules())
    task.model.eval()


def test_a_model_that_was_only_built_answers_a_constant_and_the_control_does_not() -> None:
    """Zeroed projections would make the control trivial: no map could be faithful to a constant."""
    task, _ = task_and_data("vit")
    subject = subject_of("vit")

    def spread(model: torch.nn.Module) -> float:
        with probing(model) as probed:
            return float(subject.logits(probed).std())

    before = {name: parameter.detach().clone() for name, parameter in task.model.named_parameters()}
    one, again, other = (reinitialised(task.model, seed) for seed in (3, 3, 4))
    assert spread(one) > 0.01
    pairs = [model.state_dict() for model in (one, again, other)]
    for name, trained in before.items():
        assert torch.equal(trained, task.model.state_dict()[name])
        assert torch.equal(pairs[0][name], pairs[1][name])
        if trained.dim() > 1:
            assert not torch.equal(pairs[0][name], pairs[2][name])
            if trained.numel() > 1000:
                assert float(pairs[0][name].std()) == pytest.approx(float(trained.std()), rel=0.1)
                assert float(torch.corrcoef(torch.stack([trained.flatten(), pairs[0][name].flatten()]))[0, 1]) < 0.15
        elif name.endswith("norm.weight"):
            assert torch.equal(pairs[0][name], torch.ones_like(trained))


def test_a_model_without_attention_is_refused() -> None:
    task, _ = task_and_data("translation", "model=seq2seq")
    subject: Subject = subject_of("translation", 1, RECURRENT)
    with pytest.raises(UserError, match="no attention to explain"):
        collect_evidence(task.model, subject, gradients=False)
    assert last_norm(task.model) is None
