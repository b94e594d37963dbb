"""Optimizers: Muon and AdamW against torch's own, which parameters go where, saving, and refusals."""

import copy
import io
import math
from functools import partial

import pytest
import torch
from torch import nn

from triptych.attention import Attend
from triptych.errors import UserError
from triptych.models.charlm import CharLM
from triptych.training import optimizers
from triptych.training.optimizers import MuonAdamW, adamw, hidden_matrices, muon, orthogonalise
from triptych.training.schedules import warmup_stable_decay

MUON = {
    "lr": 0.02,
    "momentum": 0.95,
    "nesterov": True,
    "steps": 5,
    "weight_decay": 0.1,
    "adamw_lr": 0.004,
    "betas": [0.9, 0.95],
    "eps": 1e-8,
}
ADAMW = {"lr": 0.004, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}


def charlm(*, tied: bool = False) -> CharLM:
    torch.manual_seed(0)
    return CharLM(
        vocab_size=11,
        context=8,
        depth=2,
        width=16,
        heads=2,
        kv_heads=1,
        feed_forward=32,
        activation="gelu",
        positions="learned",
        qk_norm=True,
        tied=tied,
        dropout=0.0,
        attention=partial(Attend, backend="flash"),
    )


def names(model: nn.Module, parameters: list[nn.Parameter]) -> set[str]:
    wanted = {id(parameter) for parameter in parameters}
    return {name for name, parameter in model.named_parameters() if id(parameter) in wanted}


def matrices(shapes: list[tuple[int, int]], seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def set_gradients(parameters: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def train(model: CharLM, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    """Losses of ``steps``, each on its own random batch."""
    losses = []
    for step in steps:
        tokens = torch.randint(11, (4, 9), generator=torch.Generator().manual_seed(step))

        def closure(tokens: torch.Tensor = tokens) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    return losses


# --- the updates are those of torch ---


@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_updates_as_torch_does(nesterov: bool) -> None:
    shapes = [(24, 24), (48, 24), (24, 48), (24, 24), (48, 24), (7, 5)]
    ours, theirs = matrices(shapes), matrices(shapes)
    before = [parameter.detach().clone() for parameter in ours]
    options = {**MUON, "nesterov": nesterov}
    one = MuonAdamW(hidden=ours, decayed=[], undecayed=[], **options)
    other = torch.optim.Muon(
        theirs, lr=0.02, momentum=0.95, nesterov=nesterov, weight_decay=0.1, ns_steps=5, adjust_lr_fn="original"
    )
    for step in range(4):
        set_gradients(ours, step)
        set_gradients(theirs, step)
        one.step()
        other.step()
    for a, b, start in zip(ours, theirs, before, strict=True):
        # torch iterates in bfloat16, whose rounding Newton-Schulz leaves in the singular values.
        assert (a - b).norm() <= 0.02 * (b - start).norm()


def test_muon_equals_torch_s_arithmetic_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizers, "_dtype", lambda device: torch.float32)
    gradient = torch.randn(16, 40, generator=torch.Generator().manual_seed(1))
    x = gradient / gradient.norm()
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    ours = orthogonalise(torch.stack([gradient, 3 * gradient]), steps=5)
    torch.testing.assert_close(ours[0], x, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours[1], x, rtol=1e-4, atol=1e-5)


def test_orthogonalise_moves_singular_values_to_about_one() -> None:
    stack = torch.randn(3, 16, 64, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(stack, steps=5).float())
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_a_gradient_of_zero_changes_nothing() -> None:
    (matrix,) = matrices([(8, 8)])
    start = matrix.detach().clone()
    optimizer = MuonAdamW(hidden=[matrix], decayed=[], undecayed=[], **{**MUON, "weight_decay": 0.0})
    matrix.grad = torch.zeros(8, 8)
    optimizer.step()
    assert torch.equal(matrix, start)


def test_the_rest_updates_as_torch_s_adamw() -> None:
    ours, theirs = charlm(), charlm()
    one, other = muon(ours, **MUON), adamw(theirs, **ADAMW)
    hidden = names(ours, hidden_matrices(ours))
    theirs_by_name = dict(theirs.named_parameters())
    for step in range(3):
        set_gradients(list(ours.parameters()), step)
        set_gradients(list(theirs.parameters()), step)
        one.step()
        other.step()
    for name, parameter in ours.named_parameters():
        assert torch.equal(parameter, theirs_by_name[name]) == (name not in hidden), name


# --- which parameters go where ---


def test_hidden_matrices_of_a_charlm() -> None:
    model = charlm()
    hidden = names(model, hidden_matrices(model))
    per_block = ["attention.query", "attention.key", "attention.value", "attention.output"]
    per_block += ["feed_forward.expand", "feed_forward.contract"]
    assert hidden == {f"blocks.{i}.{part}.weight" for i in range(2) for part in per_block}


def test_what_meets_the_data_is_not_hidden() -> None:
    class Vision(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(5, 8)
            self.patches = nn.Conv2d(3, 8, 4)
            self.position = nn.Parameter(torch.zeros(4, 8))
            self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)) for _ in range(2)])
            self.blocks.append(nn.Linear(8, 5, bias=False))
            self.blocks[-1].weight = self.words.weight
            self.predict = nn.Linear(8, 10)
            self.frozen = nn.ModuleList([nn.Linear(8, 8).requires_grad_(False)])

    model = Vision()
    assert names(model, hidden_matrices(model)) == {"blocks.0.0.weight", "blocks.1.0.weight"}
    hidden, decayed, undecayed = (names(model, group["params"]) for group in muon(model, **MUON).param_groups)
    assert hidden == {"blocks.0.0.weight", "blocks.1.0.weight"}
    assert decayed == {"patches.weight", "predict.weight"}
    assert undecayed | hidden | decayed == {n for n, p in model.named_parameters() if p.requires_grad}
    assert "words.weight" in undecayed
    assert "position" in undecayed


@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_stands_in_one_group(tied: bool) -> None:
    for build, options in ((muon, MUON), (adamw, ADAMW)):
        model = charlm(tied=tied)
        optimizer = build(model, **options)
        grouped = [id(p) for group in optimizer.param_groups for p in group["params"]]
        assert sorted(grouped) == sorted(id(p) for p in model.parameters())
        for group in optimizer.param_groups:
            shared = {"embedding.token.weight"} & names(model, group["params"])
            assert not shared or group["weight_decay"] == 0.0


def test_a_model_without_hidden_matrices_is_told_to_use_adamw() -> None:
    with pytest.raises(UserError, match="use optimizer=adamw"):
        muon(nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 3)), **MUON)


# --- one object: closure, missing gradients, schedules, saving ---


def test_parameters_without_a_gradient_stay() -> None:
    model = charlm()
    optimizer = muon(model, **MUON)
    before = copy.deepcopy(model.state_dict())
    optimizer.step()
    chosen = model.blocks[0].attention.query.weight
    chosen.grad = torch.ones_like(chosen)
    optimizer.step()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"blocks.0.attention.query.weight"}


@pytest.mark.parametrize(("build", "options"), [(muon, MUON), (adamw, ADAMW)])
def test_a_saved_state_continues_to_the_bit(build: partial, options: dict) -> None:
    def start() -> tuple[CharLM, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        model = charlm()
        optimizer = build(model, **options)
        schedule = warmup_stable_decay(
            optimizer, total_steps=8, warmup_steps=2, decay_fraction=0.5, final_fraction=0.0, shape="linear"
        )
        return model, optimizer, schedule

    def go(parts: tuple, steps: range) -> list[float]:
        losses = []
        for step in steps:
            losses += train(parts[0], parts[1], range(step, step + 1))
            parts[2].step()
        return losses

    whole = start()
    losses = go(whole, range(8))
    first = start()
    go(first, range(4))
    file = io.BytesIO()
    torch.save([part.state_dict() for part in first], file)
    file.seek(0)
    second = start()
    for part, state in zip(second, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    assert go(second, range(4, 8)) == losses[4:]
    for name, value in whole[0].state_dict().items():
        assert torch.equal(value, second[0].state_dict()[name]), name


def test_it_learns() -> None:
    model = charlm()
    optimizer = muon(model, **{**MUON, "weight_decay": 0.0})
    losses = [train(model, optimizer, range(1))[0] for _ in range(80)]  # the same batch again and again
    assert losses[0] == pytest.approx(math.log(11))
    assert losses[-1] < 0.5


def test_clipping_under_mixed_precision_stays_possible() -> None:
    # Lightning refuses to clip when the optimizer says that it undoes the loss scale itself.
    for optimizer in (adamw(charlm(), **ADAMW), muon(charlm(), **MUON)):
        assert not getattr(optimizer, "_step_supports_amp_scaling", False)


# --- refusals ---


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"lr": -1.0}, "optimizer.lr=-1.0"),
        ({"adamw_lr": math.nan}, "optimizer.adamw_lr=nan"),
        ({"momentum": 1.0}, "optimizer.momentum=1.0"),
        ({"betas": [0.9, 1.0]}, "optimizer.betas=0.9, 1.0"),
        ({"betas": [0.9]}, "two numbers"),
        ({"steps": 0}, "optimizer.steps=0"),
        ({"weight_decay": -0.1}, "optimizer.weight_decay=-0.1"),
    ],
)
def test_numbers_out_of_range_are_refused(wrong: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        muon(charlm(), **{**MUON, **wrong})


def test_only_matrices_can_be_orthogonalised() -> None:
    with pytest.raises(ValueError, match="matrices"):
        MuonAdamW(hidden=[nn.Parameter(torch.zeros(3))], decayed=[], undecayed=[], **MUON)
