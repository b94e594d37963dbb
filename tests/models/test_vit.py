"""The vision transformer: sizes, patches in their order, positions in two dimensions, and what is refused."""

from functools import partial
from typing import Any

import pytest
import torch

from triptych.attention import Attend
from triptych.attention.rotary import Rotary2d
from triptych.errors import UserError
from triptych.maps.capture import capture
from triptych.models.blocks import StochasticDepth
from triptych.models.embeddings import PatchEmbedding, sinusoidal_2d
from triptych.models.vit import ViT

SIZES: dict[str, Any] = {
    "classes": 3,
    "channels": 1,
    "image_height": 8,
    "image_width": 12,
    "patch_size": 4,
    "stem": "linear",
    "pooling": "cls",
    "positions": "learned",
    "registers": 0,
    "depth": 2,
    "width": 16,
    "heads": 2,
    "kv_heads": None,
    "feed_forward": 32,
    "activation": "gelu",
    "qk_norm": False,
    "dropout": 0.0,
    "stochastic_depth": 0.0,
    "attention": partial(Attend, backend="naive"),
}


def vit(**changes: Any) -> ViT:
    torch.manual_seed(0)
    return ViT(**{**SIZES, **changes})


@pytest.mark.parametrize("stem", ["linear", "convolutional", "pooled"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
@pytest.mark.parametrize(("registers", "channels"), [(0, 1), (3, 3)])
def test_every_option_gives_logits_and_gradients(
    stem: str, pooling: str, positions: str, registers: int, channels: int
) -> None:
    model = vit(stem=stem, pooling=pooling, positions=positions, registers=registers, channels=channels).eval()
    torch.nn.init.normal_(model.predict.weight)
    for block in model.blocks:
        torch.nn.init.normal_(block.attention.output.weight)
    with capture(model) as maps:
        logits = model(torch.randn(2, channels, 8, 12))
    assert logits.shape == (2, 3)
    tokens = (pooling == "cls") + registers + 6
    assert model.context == len(model.labels) == tokens
    assert {each.weights.shape for each in maps.values()} == {(2, 2, tokens, tokens)}
    logits.square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


def test_patches_stand_row_by_row_and_hold_their_pixels() -> None:
    """With a map that picks one pixel of a patch, the embedding is the image sampled at that pixel."""
    embedding = PatchEmbedding(channels=2, patch_size=2, width=1)
    with torch.no_grad():
        embedding.linear.bias.zero_()
        embedding.linear.weight.zero_()
        embedding.linear.weight[0, 1 * 4 + 1 * 2 + 0] = 1.0  # channel 1, row 1, column 0 of the patch
    image = torch.arange(2 * 4 * 6, dtype=torch.float32).view(1, 2, 4, 6)
    assert torch.equal(embedding(image).flatten(), image[0, 1, 1::2, 0::2].flatten())


def test_labels_name_rows_then_columns_of_a_grid_that_is_not_square() -> None:
    model = vit(registers=1)
    assert model.grid == (2, 3)
    assert model.labels == ["CLS", "R1", "0,0", "0,1", "0,2", "1,0", "1,1", "1,2"]


def test_an_untrained_model_answers_evenly() -> None:
    """Zero prediction weights: the first loss is the logarithm of the number of classes."""
    assert torch.equal(vit()(torch.randn(2, 1, 8, 12)), torch.zeros(2, 3))


def test_without_positions_learned_apart_patches_could_be_exchanged() -> None:
    """Positions are what tells patches apart: each kind must break the symmetry, in rows and in columns."""
    for positions in ("learned", "sinusoidal", "rotary"):
        model = vit(positions=positions, pooling="mean")
        for parameter in (model.predict.weight, model.blocks[0].attention.output.weight):
            torch.nn.init.normal_(parameter)
        for block in model.blocks:
            torch.nn.init.normal_(block.feed_forward.contract.weight)
            torch.nn.init.normal_(block.attention.query.weight)
            torch.nn.init.normal_(block.attention.key.weight)
        image = torch.randn(1, 1, 8, 12)
        rows = torch.cat([image[:, :, 4:], image[:, :, :4]], dim=2)  # two rows of patches exchanged: same for rotary
        columns = torch.cat([image[..., 4:8], image[..., :4], image[..., 8:]], dim=3)
        assert not torch.allclose(model(image), model(columns), atol=1e-4), positions
        if positions != "rotary":
            assert not torch.allclose(model(image), model(rows), atol=1e-4), positions


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_training_computes_less_and_the_same(positions: str) -> None:
    """In training the last block answers CLS alone: the same logits and gradients as with every position."""
    model = vit(positions=positions, registers=2)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    found = []
    for training in (True, False):
        model.train(training)
        model.zero_grad()
        with capture(model, layers=[-1]) as maps:
            logits = model(torch.ones(2, 1, 8, 12) * torch.arange(12.0))
        logits.square().sum().backward()
        (last,) = maps.values()
        found.append((logits, [p.grad.clone() for p in model.parameters()], last.weights))
    (logits, gradients, weights), (expected, references, every) = found
    assert weights.shape[-2] == 1
    assert torch.allclose(weights, every[:, :, :1], atol=1e-6)
    assert torch.allclose(logits, expected, atol=1e-5)
    for gradient, reference in zip(gradients, references, strict=True):
        assert torch.allclose(gradient, reference, rtol=1e-4, atol=1e-4 * float(reference.abs().max()))


def test_rotary_scores_depend_on_distance_down_and_across_alone() -> None:
    torch.manual_seed(0)
    rotary = Rotary2d(head_size=8, grid=(3, 4), prefix=1)
    query, key = torch.randn(8), torch.randn(8)
    turned_query = rotary(query.expand(1, 1, 13, 8))[0, 0]
    turned_key = rotary(key.expand(1, 1, 13, 8))[0, 0]
    score = (turned_query @ turned_key.T)[1:, 1:].view(3, 4, 3, 4)
    assert torch.allclose(score[0, 0, 1, 2], score[1, 1, 2, 3], atol=1e-5)
    assert torch.allclose(score[2, 1, 0, 1], score[2, 3, 0, 3], atol=1e-5)
    assert not torch.allclose(score[0, 0, 1, 2], score[0, 0, 2, 1], atol=1e-3)  # down is not across
    assert torch.equal(turned_query[0], query)  # a prefix token has no place
    assert torch.allclose(turned_query.norm(dim=-1), query.norm().expand(13))


def test_sinusoidal_positions_differ_everywhere_and_match_the_formula() -> None:
    found = sinusoidal_2d((2, 3), 8)
    assert len(found.unique(dim=0)) == 6
    row, column, k = 1, 2, 1
    wave = 10_000.0 ** (-k / 2)
    here = found[row * 3 + column]
    expected = [torch.tensor(row * wave).sin(), torch.tensor(row * wave).cos(), torch.tensor(column * wave).sin()]
    assert torch.allclose(torch.stack([here[1], here[3], here[5]]), torch.stack(expected), atol=1e-6)


def test_stochastic_depth_skips_whole_examples_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    layer = StochasticDepth(0.25)
    kept = layer(torch.ones(4000, 2, 3)).flatten(1)
    assert set(kept.unique().tolist()) == {0.0, 1 / 0.75} or len(kept.unique()) == 2
    assert (kept == kept[:, :1]).all()
    assert kept.mean() == pytest.approx(1.0, abs=0.05)
    assert torch.equal(layer.eval()(torch.ones(2, 2, 3)), torch.ones(2, 2, 3))
    rates = [block.skip.rate for block in vit(depth=3, stochastic_depth=0.2).blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"patch_size": 5}, r"model.patch_size=5.*what works: 1, 2, 4"),
        ({"patch_size": 0}, r"what works: 1, 2, 4"),
        ({"stem": "convolutional", "patch_size": 1}, r"power of 2.*what works: 2, 4"),
        ({"stem": "convolutional", "image_height": 9, "image_width": 9, "patch_size": 3}, "none works"),
        ({"positions": "relative"}, "model.positions=relative is not known"),
        ({"pooling": "max"}, "model.pooling=max"),
        ({"stem": "fourier"}, "model.stem=fourier"),
        ({"depth": 0}, "model.depth=0"),
        ({"registers": -1}, "model.registers=-1"),
        ({"dropout": 1.0}, "model.dropout=1.0"),
        ({"stochastic_depth": 1.5}, "model.stochastic_depth=1.5"),
        ({"heads": 3}, "model.heads=3"),
        ({"width": 18, "positions": "sinusoidal"}, "model.width=18"),
        ({"width": 12, "positions": "rotary"}, "head size is 6"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, Any], said: str, unchecked: None) -> None:
    with pytest.raises(UserError, match=said):
        vit(**changes)


def test_an_image_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="the model is for"):
        vit()(torch.randn(1, 1, 12, 8))
