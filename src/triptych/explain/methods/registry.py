"""Every method that ranks the inputs of a model: what its numbers are, which models it is defined for, how it is read.

The mathematics is in rollout.py, relevance.py and class_maps.py, and how it meets the three tasks in readings.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from triptych.attention.shapes import Float, Tensor
from triptych.errors import UserError
from triptych.explain import readings
from triptych.explain.evidence import Evidence, last_norm, stack_names
from triptych.explain.targets.subject import Subject
from triptych.maps.capture import signed


@dataclass(frozen=True)
class Method:
    """A ranking of input units. ``scores``: B U, what is to matter most highest.

    needs: "weights" of a forward pass, "gradients" of a backward pass too, or "nothing". refusal: why a model does not
    have it, None where it does. slow: left out unless it is asked for, where there are many examples.
    """

    name: str
    title: str
    meaning: str
    needs: Literal["nothing", "weights", "gradients"]
    scores: Callable[[Evidence, Subject], Tensor]
    refusal: Callable[[nn.Module, Subject], str | None]
    slow: bool = False

    def __call__(self, evidence: Evidence, subject: Subject) -> Float[Tensor, "B U"]:
        """The scores. Raises UserError with the reason where the method is not defined."""
        reason = self.refusal(evidence.model, subject)
        if reason is not None:
            raise UserError(f"methods={self.name}: {reason}")
        return self.scores(evidence, subject).cpu()


def chosen(names: Sequence[str] | None, model: nn.Module, subject: Subject, *, slow: bool) -> list[Method]:
    """The methods of these names, or all that are defined for the model (slow ones only if ``slow``).

    Raises UserError for a name that does not exist, or a method that is not defined, with the reason.
    """
    if names is None:
        return [each for each in METHODS if each.refusal(model, subject) is None and (slow or not each.slow)]
    known = {each.name: each for each in METHODS}
    for name in names:
        if name not in known:
            raise UserError(f"methods={name} is not known; there are: {', '.join(known)}")
        reason = known[name].refusal(model, subject)
        if reason is not None:
            raise UserError(f"methods={name}: {reason}")
    return [each for each in METHODS if each.name in names]


# ---- which models ----


def _always(model: nn.Module, subject: Subject) -> str | None:
    return None


def _needs_layers(model: nn.Module, subject: Subject) -> str | None:
    if stack_names(model, "blocks") or stack_names(model, "encoder"):
        return None
    return "recurrent layers mix positions without weights, so there is nothing to multiply from layer to layer"


def _needs_shares(model: nn.Module, subject: Subject) -> str | None:
    if signed(model):
        return "weights of this attention may be negative, and it multiplies shares"
    return _needs_layers(model, subject)


def _needs_norm(model: nn.Module, subject: Subject) -> str | None:
    if last_norm(model) is not None:
        return None
    return "it reads the first layer norm of a last block that holds the whole input, and this model has no such norm"


def _needs_row(model: nn.Module, subject: Subject) -> str | None:
    if stack_names(model, "blocks"):
        return None
    return "it averages gradients over patches or characters of one sequence, and here a unit is a word of several"


def _needs_concept(model: nn.Module, subject: Subject) -> str | None:
    if not subject.has_class_token:
        return "a concept is a direction of the class token, which vision transformers with model.pooling=cls have"
    return None if subject.concept is not None else "give concept=FOLDER, pictures that show the concept"


def _needs_choice(model: nn.Module, subject: Subject) -> str | None:
    if subject.choice is not None:
        return None
    return "only a finished run of a translator with cross-attention has chosen where to read an alignment"


METHODS = (
    Method(
        "attention",
        "attention, last layer",
        "Weights after softmax of the last layer, mean over heads, in the row the output is read from: how much each "
        "value entered that context. Not what the output depends on, and the same for every class.",
        "weights",
        readings.attention,
        _always,
    ),
    Method(
        "alignment",
        "chosen alignment",
        "Cross-attention weights where the run chose to read alignments: how much each source word's value entered "
        "the context of that row. Not the probability that one word translates the other.",
        "weights",
        readings.alignment,
        _needs_choice,
    ),
    Method(
        "rollout",
        "attention rollout",
        "Weights of all layers multiplied, half of each position passing on unchanged: how much of an input position "
        "reaches the row through averaging. Knows no values and no class; in causal models it leans to early tokens.",
        "weights",
        readings.rollout,
        _needs_shares,
    ),
    Method(
        "flow",
        "attention flow",
        "The largest flow through the same graph, weights being capacities. Knows no values and no class; in causal "
        "models it leans to early tokens.",
        "weights",
        readings.flow,
        _needs_shares,
        slow=True,
    ),
    Method(
        "gradient_rollout",
        "gradient rollout",
        "Rollout of weights times the gradient of the asked logit, what is above 0 of the mean over heads: where "
        "paths of attention lead whose increase would raise this output.",
        "gradients",
        readings.gradient_rollout,
        _needs_layers,
    ),
    Method(
        "relevance",
        "relevance propagation",
        "Weights times the gradient of the asked logit, above 0 in each head, added up over the layers (Chefer et al. "
        "2021). First-order: the effect of small changes of weights, not of taking an input away.",
        "gradients",
        readings.relevance,
        _needs_layers,
    ),
    Method(
        "attention_gradient",
        "attention × gradient",
        "Last layer's weights times the gradient of the asked logit, above 0 in each head.",
        "gradients",
        readings.attention_gradient,
        _always,
    ),
    Method(
        "signed_attention_gradient",
        "attention × gradient, signed",
        "The same with its sign: below 0 where more attention would lower the asked logit.",
        "gradients",
        readings.signed_attention_gradient,
        _always,
    ),
    Method(
        "attention_grad_cam",
        "attention Grad-CAM",
        "Last layer's weights, each head weighted by its mean gradient of the asked logit, above 0, from 0 to 1.",
        "gradients",
        readings.attention_grad_cam,
        _needs_row,
    ),
    Method(
        "grad_cam",
        "Grad-CAM",
        "Tokens at the last block's first layer norm, each feature weighted by its mean gradient, above 0, from 0 to "
        "1: where features are active that speak for this output on the whole.",
        "gradients",
        readings.grad_cam,
        _needs_norm,
    ),
    Method(
        "cdam",
        "CDAM",
        "Tokens at the last block's first layer norm times the gradient of the asked logit, with sign: what each adds "
        "to or takes from this output through the last attention, to first order.",
        "gradients",
        readings.cdam,
        _needs_norm,
    ),
    Method(
        "smooth_cdam",
        "smooth CDAM",
        "CDAM averaged over 50 noisy copies of the tokens.",
        "gradients",
        readings.smooth_cdam,
        _needs_norm,
    ),
    Method(
        "integrated_cdam",
        "integrated CDAM",
        "Integrated gradients of the same tokens from 0: what each adds to the logit on the way from nothing.",
        "gradients",
        readings.integrated_cdam,
        _needs_norm,
    ),
    Method(
        "concept_cdam",
        "concept CDAM",
        "CDAM of the class token's similarity to the mean class token of pictures that show a concept, not of a class.",
        "gradients",
        readings.concept_cdam,
        _needs_concept,
    ),
    Method(
        "random",
        "random order",
        "Numbers drawn at random: what a method must beat.",
        "nothing",
        readings.random,
        _always,
    ),
)
"""In the order in which they are shown."""
