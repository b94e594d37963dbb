"""Change what a trained model attends to, or takes in, and see the asked output's probability change."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from triptych.attention.shapes import Float, Tensor
from triptych.explain.evaluation import faithfulness
from triptych.explain.evaluation.intervals import Interval
from triptych.explain.evaluation.verdicts import effect_verdict
from triptych.explain.targets.subject import Subject
from triptych.maps.capture import Site, intervene, sites

SHUFFLES = 5  # of each layer's weights
Kind = Literal["permuted", "uniform", "key", "head"]


@dataclass(frozen=True)
class InterventionEffect:
    """One intervention on some examples.

    fall: how much lower the asked output's probability is, per example. against: the same for what it is compared with
    (random units), where there is something. moved: how far all outputs' probabilities moved, total variation.
    """

    kind: Kind
    name: str
    what: str
    fall: Float[Tensor, " B"]
    against: Float[Tensor, " B"] | None = None
    moved: Float[Tensor, " B"] | None = None

    @classmethod
    def of_unit(
        cls, name: str, title: str, fall: Float[Tensor, " B"], against: Float[Tensor, " B"]
    ) -> "InterventionEffect":
        """Knock-out of the unit that a method ranks first, against units drawn at random."""
        what = f"taking away the input ranked first by {title}"
        return cls("key", name, what, fall, against)

    @staticmethod
    def joined(parts: Sequence["InterventionEffect"]) -> "InterventionEffect":
        """The same intervention on all examples."""

        def together(tensors: list[Tensor | None]) -> Tensor | None:
            found = [each for each in tensors if each is not None]
            return torch.cat(found) if found else None

        return replace(
            parts[0],
            fall=torch.cat([part.fall for part in parts]),
            against=together([part.against for part in parts]),
            moved=together([part.moved for part in parts]),
        )

    def row(self, interval: Callable[[Tensor], Interval]) -> dict[str, Any]:
        """As explain.json has it. ``effect`` is the fall, or by how much it is larger than that of random units."""
        effect = interval(self.fall if self.against is None else self.fall - self.against)
        return {
            "kind": self.kind,
            "name": self.name,
            "what": self.what,
            "effect": effect.to_json(),
            "sentence": self._sentence(effect, interval),
        }

    def _sentence(self, fell: Interval, interval: Callable[[Tensor], Interval]) -> str:
        change = Interval(-fell.mean, -fell.high, -fell.low, fell.n)
        than = None if self.against is None else "taking away a random one"
        sentence = effect_verdict(self.what, change, "the probability of the answer", than=than)
        if self.moved is not None:
            sentence += f"; all outputs move by {interval(self.moved).mean:.2f} (total variation)"
        return sentence


def layers_changed(model: nn.Module, subject: Subject, *, seed: int) -> list[InterventionEffect]:
    """Each layer's weights shuffled among the keys that a row sees (mean of ``SHUFFLES``), and made uniform.

    The layer's input stays as it was (Jain & Wallace, arXiv 1902.10186; Wiegreffe & Pinter, arXiv 1908.04626).
    """
    generator = torch.Generator().manual_seed(seed)
    clean = _shares(model, subject)
    found = []
    for site in sites(model):
        shuffled = []
        for _ in range(SHUFFLES):
            with intervene(model, lambda weights, _: faithfulness.permuted(weights, generator), layers=[site.name]):
                shuffled.append(_shares(model, subject))
        with intervene(model, lambda weights, _: faithfulness.uniform(weights), layers=[site.name]):
            flat = _shares(model, subject)
        name, every = place(site), torch.stack(shuffled, dim=1)
        moved = faithfulness.median_change(clean, every)
        fall = _asked(subject, clean) - torch.stack([_asked(subject, each) for each in shuffled]).mean(0)
        found.append(InterventionEffect("permuted", name, f"shuffling the weights of {name}", fall, moved=moved))
        fall = _asked(subject, clean) - _asked(subject, flat)
        moved = faithfulness.total_variation(clean, flat)
        found.append(InterventionEffect("uniform", name, f"making the weights of {name} uniform", fall, moved=moved))
    return found


def ablate_heads(model: nn.Module, subject: Subject) -> list[InterventionEffect]:
    """Each head alone silenced: its context is 0."""
    clean = _shares(model, subject)
    found = []
    for site in sites(model):
        parent = model.get_submodule(site.name.rpartition(".")[0])
        for head in range(getattr(parent, "heads", 1)):
            with intervene(model, lambda weights, _: torch.zeros_like(weights), layers=[site.name], heads=[head]):
                changed = _shares(model, subject)
            fall = _asked(subject, clean) - _asked(subject, changed)
            moved = faithfulness.total_variation(clean, changed)
            name = f"{place(site)}, head {head}"
            found.append(InterventionEffect("head", name, f"silencing {name}", fall, moved=moved))
    return found


def place(site: Site) -> str:
    """An attention site in words: "layer 2", "encoder layer 0", "decoder layer 1, cross-attention"."""
    stack = site.name.split(".")[0]
    named = f"{stack} layer {site.layer}" if stack in ("encoder", "decoder") else f"layer {site.layer}"
    return f"{named}, cross-attention" if site.module.kind == "cross" else named


@torch.no_grad()
def _shares(model: nn.Module, subject: Subject) -> Float[Tensor, "B V"]:
    return subject.logits(model).float().softmax(-1).cpu()


def _asked(subject: Subject, shares: Float[Tensor, "B V"]) -> Float[Tensor, " B"]:
    return shares.gather(1, subject.target[:, None].cpu())[:, 0]
