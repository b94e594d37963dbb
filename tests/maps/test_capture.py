"""Capture: the maps are the kernel's own, the model runs as before, and nothing asked for is missing in silence."""

import functools
import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.attention import BACKENDS, EVERYTHING, Attend, AttentionMask, MultiHeadAttention, naive, set_backend
from triptych.attention.score_mods import alibi
from triptych.errors import UserError
from triptych.maps.capture import CaptureError, Site, capture, intervene, probing, sites
from triptych.models.charlm import CharLM

TOKENS = torch.randint(0, 11, (2, 7), generator=torch.Generator().manual_seed(3))


def charlm(backend: str = "flash", **changes) -> CharLM:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 11,
        "context": 16,
        "depth": 3,
        "width": 16,
        "heads": 4,
        "kv_heads": 2,
        "feed_forward": 24,
        "activation": "gelu",
        "positions": "rotary",
        "qk_norm": False,
        "tied": False,
        "dropout": 0.0,
        "attention": functools.partial(Attend, backend=backend),
    }
    model = CharLM(**sizes | changes)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    return model.eval()


class Alone(nn.Module):
    """One Attend, called with whatever it is given."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.attend = Attend(**{"backend": "flash"} | options)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask) -> Tensor:
        return self.attend(query, key, value, mask)


def test_weights_by_hand() -> None:
    # Scores of the one query: 0 and 2 / sqrt(1); weights 1 : e^2.
    query, key = torch.tensor([[[[1.0]]]]), torch.tensor([[[[0.0], [2.0]]]])
    model = Alone()
    with capture(model, scores=True) as maps:
        model(query, key, key, EVERYTHING)
    (found,) = maps.values()
    assert found.scores.flatten().tolist() == [0, 2]
    low = 1 / (1 + math.e**2)
    assert found.weights.flatten().tolist() == pytest.approx([low, 1 - low], abs=1e-6)
    assert (found.site, found.layer, found.kind, found.heads) == ("attend", 0, "self", (0,))
    assert (found.backend, found.kernel) == ("flash", "flash_attention")


def test_the_mask_and_the_score_change_are_in_the_map() -> None:
    x = torch.zeros(1, 2, 4, 3)
    model = Alone(backend="naive", score_mod=alibi(heads=2))
    with capture(model) as maps:
        model(x, x, x, AttentionMask(causal=True, window=2))
    weights = maps["attend"].weights[0, 0]
    # Equal scores; a key one place back pays 2^-4, and farther ones are hidden.
    back = math.exp(-1 / 16) / (1 + math.exp(-1 / 16))
    assert torch.allclose(weights.diagonal(-1), torch.full((3,), back), atol=1e-6)
    assert torch.equal(weights.sum(-1), torch.ones(4))
    assert not weights.triu(1).any()
    assert not weights.tril(-2).any()
    assert maps["attend"].mask.describe() == "causal, window 2"


def test_maps_are_the_same_whichever_backend_runs_the_model() -> None:
    model, found = charlm(), {}
    for backend in ("naive", "flash"):
        set_backend(model, backend)
        with torch.no_grad(), capture(model, scores=True) as maps:
            model(TOKENS)
        assert maps.error <= 1e-5
        found[backend] = maps
    assert found["naive"].keys() == found["flash"].keys()
    assert len(found["naive"]) == 3
    for name, one in found["naive"].items():
        other = found["flash"][name]
        assert torch.allclose(one.weights, other.weights, atol=1e-5)
        assert torch.allclose(one.scores, other.scores, atol=1e-5)
        assert torch.allclose(one.weights.sum(-1), torch.ones(2, 4, 7))


def test_the_model_answers_as_before_and_hooks_go() -> None:
    model = charlm()
    before = model(TOKENS)
    with capture(model):
        inside = model(TOKENS)
    assert torch.equal(before, inside)
    assert inside.requires_grad
    with pytest.raises(ZeroDivisionError), capture(model):
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), intervene(model, lambda weights, site: weights):
        raise ZeroDivisionError
    assert not any(module._forward_hooks for module in model.modules())


def test_chosen_layers_and_heads() -> None:
    model = charlm()
    with torch.no_grad(), capture(model) as every:
        model(TOKENS)
    with torch.no_grad(), capture(model, layers=[-1, "blocks.0.attention.attend"], heads=[3, 1]) as maps:
        model(TOKENS)
    assert list(maps) == ["blocks.0.attention.attend", "blocks.2.attention.attend"]
    for name, found in maps.items():
        assert found.heads == (3, 1)
        assert torch.equal(found.weights, every[name].weights[:, [3, 1]])
    assert [site.layer for site in sites(model)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layers": [3]}, "no layer 3; there are 0 to 2"),
        ({"layers": [-4]}, "no layer -4"),
        ({"layers": ["blocks.9"]}, "no layer blocks.9; .*blocks.0.attention.attend"),
        ({"heads": [4]}, "no head 4; there are 0 to 3"),
        ({"heads": [-1]}, "no head -1"),
    ],
)
def test_what_does_not_exist_is_refused(options: dict, words: str) -> None:
    model = charlm()
    for context in (capture(model, **options), intervene(model, lambda weights, site: weights, **options)):
        with pytest.raises(UserError, match=words), context:
            model(TOKENS)


def test_layers_count_per_stack_and_kind() -> None:
    """A decoder layer has two attentions, self and cross: both are layer 0 of the decoder, as a reader counts."""

    def attention(kind: str) -> MultiHeadAttention:
        return MultiHeadAttention(
            width=4, heads=2, kv_heads=None, kind=kind, attend=functools.partial(Attend, backend="naive")
        )

    model = nn.ModuleDict(
        {
            "encoder": nn.ModuleList([attention("self"), attention("self")]),
            "decoder": nn.ModuleList([attention("self"), attention("cross"), attention("self")]),
        }
    )
    assert [(site.name, site.layer) for site in sites(model)] == [
        ("encoder.0.attend", 0),
        ("encoder.1.attend", 1),
        ("decoder.0.attend", 0),
        ("decoder.1.attend", 0),
        ("decoder.2.attend", 1),
    ]


def test_padding_is_cut_away() -> None:
    padding = torch.tensor([[True] * 5, [True, True, False, True, False]])
    x = torch.randn(2, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    model = Alone()
    with capture(model, scores=True) as maps:
        model(x, x.masked_fill(~padding[:, None, :, None], torch.nan), x, AttentionMask(key_padding=padding))
    weights, scores, visible = maps["attend"].example(0)
    assert weights.shape == scores.shape == (2, 5, 5)
    assert visible.shape == (5, 5)
    weights, scores, visible = maps["attend"].example(1)
    assert weights.shape == scores.shape == (2, 3, 3)
    assert visible.all()
    assert torch.allclose(weights.sum(-1), torch.ones(2, 3))
    # The same as if the example had never been padded.
    real = x[1:, :, padding[1]]
    with capture(model) as alone:
        model(real, real, real, EVERYTHING)
    assert torch.allclose(weights, alone["attend"].weights[0], atol=1e-6)
    cross = Alone(kind="cross")
    with capture(cross) as maps:
        cross(x, x, x, AttentionMask(key_padding=padding))
    assert maps["attend"].example(1)[0].shape == (2, 5, 3), "the padding is the memory's: every query stays"


def test_a_backend_that_computes_something_else_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(by: float):
        return lambda query, key, value, mask: naive.attend(query, key, value, mask) + by

    model, x = Alone(backend="naive"), torch.zeros(1, 1, 2, 2)
    monkeypatch.setitem(BACKENDS, "naive", wrong(5e-6))
    with capture(model) as maps:
        model(x, x, x, EVERYTHING)
    assert maps.error == pytest.approx(5e-6)
    for by in (2e-5, math.nan):
        monkeypatch.setitem(BACKENDS, "naive", wrong(by))
        with (
            pytest.raises(CaptureError, match="attend: weights times values differ from the naive context"),
            capture(model),
        ):
            model(x, x, x, EVERYTHING)


def test_a_capture_inside_an_intervention_does_not_pass_as_the_models_own() -> None:
    model = charlm()
    with (
        intervene(model, lambda weights, site: torch.full_like(weights, 1 / 7)),
        pytest.raises(CaptureError),
        capture(model),
    ):
        model(TOKENS)


def test_an_empty_capture_is_an_error() -> None:
    with pytest.raises(CaptureError, match="no attention ran inside"), capture(charlm()):
        pass
    with pytest.raises(CaptureError, match="no attention ran"), intervene(charlm(), lambda weights, site: weights):
        pass


def test_gradients_of_weights() -> None:
    """``weights.grad`` is the loss's slope along each weight: checked by moving weights by hand."""
    model = charlm(depth=1).double()
    set_backend(model, "flash")

    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), TOKENS.flatten())

    with capture(model, grad=True) as maps:
        found = loss(model(TOKENS))
        found.backward()
    (captured,) = maps.values()
    assert torch.allclose(found, loss(model(TOKENS)), rtol=0, atol=1e-12)
    for at in ((0, 0, 3, 1), (1, 3, 6, 0), (1, 2, 6, 6)):
        moved = []
        for step in (1e-5, -1e-5):

            def nudge(weights: Tensor, site: Site, at: tuple = at, step: float = step) -> Tensor:
                weights = weights.clone()
                weights[at] += step
                return weights

            with torch.no_grad(), intervene(model, nudge):
                moved.append(loss(model(TOKENS)).item())
        assert captured.weights.grad[at].item() == pytest.approx((moved[0] - moved[1]) / 2e-5, rel=1e-4, abs=1e-9)


def test_gradients_take_all_heads() -> None:
    with pytest.raises(UserError, match="takes all heads"), capture(charlm(), heads=[0], grad=True):
        pytest.fail("it is refused before the model runs")


def test_the_parameters_gradients_are_the_same_with_weights_in_the_graph() -> None:
    def gradients(context) -> list[Tensor]:
        with context:
            loss = model(TOKENS).square().mean()
        return list(torch.autograd.grad(loss, list(model.parameters())))

    model = charlm()
    plain, through = gradients(torch.enable_grad()), gradients(capture(model, grad=True))
    for one, other in zip(plain, through, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_intervening_with_the_same_weights_changes_nothing() -> None:
    model = charlm()
    with torch.no_grad():
        before = model(TOKENS)
        with intervene(model, lambda weights, site: weights):
            assert torch.allclose(model(TOKENS), before, atol=1e-5)


def test_uniform_weights_give_the_mean_of_the_values() -> None:
    model = Alone()
    query, value = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
    with intervene(model, lambda weights, site: torch.full_like(weights, 0.2), heads=[1]):
        context = model(query, value, value, EVERYTHING)
    assert torch.allclose(context[:, 1], value[:, 1].mean(1, keepdim=True).expand(1, 3, 4), atol=1e-6)
    assert torch.allclose(context[:, 0], model(query, value, value, EVERYTHING)[:, 0], atol=1e-6)


def test_an_edit_knows_its_site_and_keeps_the_shape() -> None:
    model, names = charlm(), []

    def edit(weights: Tensor, site: Site) -> Tensor:
        names.append((site.name, site.layer, weights.shape))
        return weights

    with intervene(model, edit, layers=[1], heads=[2, 0]):
        model(TOKENS)
    assert names == [("blocks.1.attention.attend", 1, (2, 2, 7, 7))]
    with (
        pytest.raises(ValueError, match=r"edit returned \(2, 4, 7, 6\)"),
        intervene(model, lambda weights, site: weights[..., 1:]),
    ):
        model(TOKENS)


def test_probing_leaves_no_trace() -> None:
    model = charlm(dropout=0.5)
    model.train()
    model.blocks[1].eval()
    before = {name: module.training for name, module in model.named_modules()}
    torch.manual_seed(5)
    state, precision = torch.get_rng_state(), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with torch.autocast("cpu", torch.bfloat16), probing(model) as probed:
            assert probed is model
            assert not any(module.training for module in model.modules())
            torch.rand(3)
            out = model(TOKENS)
            assert out.dtype == torch.float32
            assert not out.requires_grad
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(precision)
    assert torch.equal(torch.get_rng_state(), state)
    assert {name: module.training for name, module in model.named_modules()} == before
    with pytest.raises(ZeroDivisionError), probing(model):
        raise ZeroDivisionError
    assert {name: module.training for name, module in model.named_modules()} == before
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_in_half_precision_is_probed_in_float32() -> None:
    model = charlm().bfloat16().train()
    with probing(model) as probed, capture(probed) as maps:
        assert probed(TOKENS).dtype == torch.float32
    assert maps.error <= 1e-5
    assert all(captured.weights.dtype == torch.float32 for captured in maps.values())
    assert all(parameter.dtype == torch.bfloat16 for parameter in model.parameters())
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions_stay_within_their_own_tolerance(dtype: torch.dtype) -> None:
    x = torch.randn(2, 4, 40, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    model = Alone()
    with capture(model) as maps:
        model(x, x, x, AttentionMask(causal=True))
    # Weights are at least float32 whatever the model's dtype.
    assert maps["attend"].weights.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_a_cached_step_shows_one_row() -> None:
    model = charlm()
    with torch.no_grad():
        with capture(model) as whole:
            model(TOKENS)
        cache = model.new_cache()
        model(TOKENS[:, :6], cache)
        with capture(model) as step:
            model(TOKENS[:, 6:], cache)
    for name, found in step.items():
        assert torch.allclose(found.weights, whole[name].weights[:, :, 6:], atol=1e-5)


COMPILED = """
import functools, sys, torch
sys.path.insert(0, sys.argv[1])
from test_capture import TOKENS, CaptureError, capture, charlm, intervene

model = charlm()
compiled = torch.compile(model)
with torch.no_grad():
    expected = compiled(TOKENS)
    with capture(model) as maps:
        assert torch.allclose(model(TOKENS), expected, atol=1e-5)
    assert len(maps) == 3
    for context in (capture(model), intervene(model, lambda weights, site: weights)):
        try:
            with context:
                compiled(TOKENS)
        except CaptureError as error:
            assert "a compiled copy skips hooks" in str(error)
        else:
            raise AssertionError("the compiled copy was captured?")
    assert torch.equal(compiled(TOKENS), expected)
print("captured")
"""


@pytest.mark.slow
def test_the_original_is_captured_while_a_compiled_copy_exists() -> None:
    """Dynamo leaves hooks of a compiled copy out: asked of that, a map must be an error, not an empty answer."""
    from pathlib import Path

    command = [sys.executable, "-c", COMPILED, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.strip() == "captured", done.stderr[-2000:]
