"""Head importance by hand, and ablation: what a model answers without a head, compared with weights that remove it."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.attention import EVERYTHING, Attend
from triptych.data.batches import TextBatch
from triptych.errors import UserError
from triptych.explain.heads.importance import Head, ablate, ablations, contexts, importance, losses, normalised
from triptych.maps.capture import CaptureError, sites
from triptych.models.charlm import CharLM
from triptych.tasks.charlm import CharLMTask

STEP = 1e-3
TOKENS = torch.randint(0, 11, (6, 9), generator=torch.Generator().manual_seed(3))


def charlm() -> CharLM:
    torch.manual_seed(0)
    model = CharLM(
        vocab_size=11,
        context=16,
        depth=2,
        width=16,
        heads=4,
        kv_heads=2,
        feed_forward=24,
        activation="gelu",
        positions="rotary",
        qk_norm=False,
        tied=False,
        dropout=0.0,
        attention=partial(Attend, backend="flash"),
    )
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    return model.eval()


def task_of(model: CharLM) -> CharLMTask:
    return CharLMTask(model=model, optimizer=no_training, scheduler=no_training, compiled=False).eval()


def no_training(made_for: Any) -> Any:
    raise AssertionError("nothing is trained here")


class Weighed(nn.Module):
    """One head of size 1 whose one position sees itself: the context is the input, and the answer w times it."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = Attend(backend="naive")
        self.weight = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        value = x[:, None, None, None]
        return self.weight * self.attend(value, value, value, EVERYTHING)[:, 0, 0, 0]


# ---- importance ----


def test_the_absolute_value_is_of_an_example() -> None:
    """Token products (2, -1) and (-1, 0): |1| and |-1|. Per token it would be 4, over the batch 0."""
    context = torch.tensor([[2.0, -1.0], [-1.0, 0.0]]).view(2, 1, 2, 1)
    found = importance(context, torch.ones_like(context))
    assert found.mean(0).tolist() == [1.0]


def test_a_layer_is_brought_to_length_1() -> None:
    assert normalised(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).flatten().tolist() == pytest.approx([0.6, 0.8, 0, 0])


def test_the_gradient_is_of_what_the_output_projection_reads() -> None:
    """Context times gradient is, to first order, what scaling the head down changes: checked by scaling it."""
    model = charlm()
    site = sites(model)[1]
    with contexts(model) as made:
        loss = F.cross_entropy(model(TOKENS)[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten(), reduction="sum")
    (gradient,) = torch.autograd.grad(loss, [made[site.name]])
    product = (made[site.name] * gradient).sum((0, 2, 3))
    for head in range(4):

        def scaled(module: nn.Module, args: tuple, context: Tensor, head: int = head) -> Tensor:
            factors = torch.ones(4)
            factors[head] += STEP
            return context * factors[:, None, None]

        hook = site.module.register_forward_hook(scaled)
        more = F.cross_entropy(model(TOKENS)[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten(), reduction="sum")
        hook.remove()
        assert (more - loss).item() / STEP == pytest.approx(product[head].item(), rel=0.05, abs=0.05)


# ---- ablation ----


def test_zero_and_mean_by_hand() -> None:
    model, x = Weighed(), torch.tensor([1.0, 3.0])
    whole = model(x)
    with ablate(model, {"attend": [0]}, "zero"):
        assert (model(x) - whole).tolist() == [-1.0, -3.0]
    with ablate(model, {"attend": [0]}, "mean"):
        assert (model(x) - whole).tolist() == [1.0, -1.0]
    with ablate(model, {"attend": [0]}, "mean", {"attend": torch.tensor([[5.0]])}):
        assert (model(x) - whole).tolist() == [4.0, 2.0]
    assert torch.equal(model(x), whole), "nothing is left behind"


@torch.no_grad()
def test_a_head_set_to_zero_is_a_head_that_the_output_does_not_read() -> None:
    """The simple way: zero the columns of the output projection that belong to the head."""
    model, cut = charlm(), charlm()
    site = sites(model)[0]
    with ablate(model, {site.name: [1, 3]}):
        found = model(TOKENS)
    projection: Any = cut.get_submodule(sites(cut)[0].name.rpartition(".")[0]).output
    projection.weight.view(16, 4, 4)[:, [1, 3]] = 0
    assert torch.allclose(found, cut(TOKENS), atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("how", ["zero", "mean"])
def test_a_mask_leaves_out_another_head_of_each_example(how: Any) -> None:
    model = charlm()
    site = sites(model)[1].name
    means = {site: torch.full((4, 4), 0.5)}
    mask = torch.zeros(6, 4, dtype=torch.bool)
    mask[0, 2] = mask[3, 1] = True
    with ablate(model, {site: mask}, how, means):
        found = model(TOKENS)
    whole = model(TOKENS)
    for example, head in ((0, [2]), (3, [1]), (5, [])):
        with ablate(model, {site: head}, how, means):
            wanted = model(TOKENS[example : example + 1])
        assert torch.allclose(found[example], wanted[0], atol=1e-5)
        assert torch.allclose(found[example], whole[example], atol=1e-5) == (not head)


@pytest.mark.usefixtures("unchecked")
def test_what_does_not_exist_is_refused() -> None:
    model = charlm()
    name = sites(model)[0].name
    with pytest.raises(UserError, match=r"has no head 4; there are 0 to 3"), ablate(model, {name: [4]}):
        model(TOKENS)
    with pytest.raises(UserError, match="no layer nowhere"), ablate(model, {"nowhere": [0]}):
        model(TOKENS)
    with pytest.raises(UserError, match="mask of"), ablate(model, {name: torch.zeros(2, 4, dtype=torch.bool)}):
        model(TOKENS)
    with pytest.raises(UserError, match="by zero or mean, not by half"), ablate(model, {name: [0]}, how="half"):  # type: ignore[arg-type]
        model(TOKENS)
    with pytest.raises(CaptureError), ablate(model, {name: [0]}):
        pass


def test_losses_are_of_each_example() -> None:
    model = charlm()
    batches = [TextBatch(TOKENS[:4, :-1], TOKENS[:4, 1:]), TextBatch(TOKENS[4:, :-1], TOKENS[4:, 1:])]
    found = losses(task_of(model), batches)
    for row in range(6):
        wanted = F.cross_entropy(model(TOKENS[row : row + 1, :-1])[0], TOKENS[row, 1:])
        assert found[row].item() == pytest.approx(wanted.item(), abs=1e-5)


def test_a_head_that_matters_is_told_from_random_ones() -> None:
    """Only head 2 of the last layer is read: without it the loss changes, without another it does not."""
    model = charlm()
    with torch.no_grad():
        for site in sites(model):
            kept = [2] if site.layer == 1 else []
            projection: Any = model.get_submodule(site.name.rpartition(".")[0]).output
            weight = projection.weight.view(16, 4, 4)
            for head in range(4):
                weight[:, head] *= 3.0 if head in kept else 0.0
        # The text is what the model itself says, so that it is right about it.
        targets = model(TOKENS).argmax(-1)
    every = [Head(site.name, head, f"layer {site.layer} head {head}") for site in sites(model) for head in range(4)]
    means = {site.name: torch.zeros(4, 4) for site in sites(model)}
    batches = [TextBatch(TOKENS, targets)]
    found = ablations(task_of(model), batches, {every[6]: "the one that is read"}, every, means)
    assert [each.how for each in found] == ["zero", "mean"]
    for each in found:
        assert each.heads == "layer 1 head 2"
        assert each.difference.clear
        assert each.difference.mean == pytest.approx(each.loss_change.mean - each.random.mean)
        assert each.random.mean == pytest.approx(0.0, abs=1e-6)
        assert each.loss_change.n == 6
        assert "more than without random heads" in each.sentence
        assert each.to_json()["difference"]["low"] > 0
    unread = ablations(task_of(model), batches, {every[0]: "nothing reads it"}, every[:4], means)
    assert all("not clearly another change" in each.sentence for each in unread)


def test_one_example_has_no_interval_and_a_single_head_nothing_to_compare_with() -> None:
    model = charlm()
    every = [Head(site.name, head, "a head") for site in sites(model) for head in range(4)]
    means = {site.name: torch.zeros(4, 4) for site in sites(model)}
    one = [TextBatch(TOKENS[:1], TOKENS[:1])]
    found = ablations(task_of(model), one, {every[0]: "why"}, every, means)
    assert "one example: no interval" in found[0].sentence
    assert "not clearly another change" in found[0].sentence
    assert ablations(task_of(model), one, dict.fromkeys(every, "all"), every, means) == []
