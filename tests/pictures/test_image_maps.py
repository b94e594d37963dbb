"""Overlays: a known attention pattern lands on the right pixels, on a 2 x 3 grid with tokens before the patches too."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from test_record import record

from triptych.attention import Attend
from triptych.maps.capture import capture
from triptych.maps.record import MapRecord, load, save
from triptych.models.vit import ViT
from triptych.pictures.images import attention_distance, distances, enlarged, overlay, overview, patch_weights, sheet

GRID = (2, 3)
PREFIX = ("CLS", "R1")


def patches(weights: torch.Tensor, channels: int = 1, prefix: tuple[str, ...] = PREFIX, **more: Any) -> MapRecord:
    """A record over a 2 x 3 grid of 4-pixel patches; the picture is middle grey."""
    labels = (*prefix, *(f"{y},{x}" for y in range(2) for x in range(3)))
    return record(
        weights,
        query_labels=labels,
        key_labels=labels,
        causal=False,
        mask="none",
        picture=torch.full((8, 12, channels), 128, dtype=torch.uint8),
        grid=GRID,
        **more,
    )


def bright(picture: np.ndarray) -> tuple[int, int, int, int]:
    """The box (first row, last row, first column, last column) of what is much brighter than the rest."""
    level = picture.astype(float).mean(-1)
    rows, columns = np.nonzero(level > (level.min() + level.max()) / 2)
    return rows.min(), rows.max(), columns.min(), columns.max()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("prefix", [(), ("CLS",), PREFIX])
def test_the_row_of_cls_lands_on_its_patch(channels: int, prefix: tuple[str, ...]) -> None:
    """All weight on the patch in row 1, column 2: the lower right third of the picture shines, and nothing else."""
    count = len(prefix) + 6
    weights = torch.zeros(1, count, count)
    weights[:, :, len(prefix) + 5] = 1.0
    found = patches(weights, channels, prefix)
    assert patch_weights(found)[0].tolist() == [[0, 0, 0], [0, 0, 1]]
    picture = overlay(found.picture, patch_weights(found)[0], 120, 1.0)
    assert picture.shape == (80, 120, 3)
    top, bottom, left, right = bright(picture)
    assert (top, bottom, left, right) == (40, 79, 80, 119)


def test_a_model_with_hand_made_weights_attends_to_the_lit_patch_and_the_overlay_shows_it() -> None:
    """Queries and keys are set by hand so that every query looks for brightness: the map follows the bright patch."""
    torch.manual_seed(0)
    model = ViT(
        classes=2,
        channels=1,
        image_height=8,
        image_width=12,
        patch_size=4,
        stem="linear",
        pooling="cls",
        positions="learned",
        registers=1,
        depth=1,
        width=8,
        heads=1,
        kv_heads=None,
        feed_forward=8,
        activation="gelu",
        qk_norm=False,
        dropout=0.0,
        stochastic_depth=0.0,
        attention=partial(Attend, backend="flash"),
    ).eval()
    block = model.blocks[0]
    with torch.no_grad():
        for parameter in (model.position, model.tokens, model.embedding.linear.weight, model.embedding.linear.bias):
            parameter.zero_()
        model.position[:, 0] = 1.0  # every patch and token has a constant part ...
        model.tokens[:, 0] = 1.0
        model.embedding.linear.weight[1] = 1 / 16  # ... and a patch its mean brightness in channel 1
        for matrix in (block.attention.query.weight, block.attention.key.weight):
            matrix.zero_()
        block.attention.query.weight[0] = 50.0 * torch.eye(8)[0]
        block.attention.key.weight[0] = 50.0 * torch.eye(8)[1]
    for lit in range(6):
        row, column = divmod(lit, 3)
        image = torch.zeros(1, 1, 8, 12)
        image[..., row * 4 : row * 4 + 4, column * 4 : column * 4 + 4] = 1.0
        with torch.inference_mode(), capture(model) as maps:
            model(image)
        (captured,) = maps.values()
        found = patches(captured.example(0)[0])
        assert patch_weights(found)[0].argmax() == lit
        assert bright(overlay(found.picture, patch_weights(found)[0], 120, 1.0)) == (
            row * 40,
            row * 40 + 39,
            column * 40,
            column * 40 + 39,
        )


def test_a_chosen_patch_gives_its_own_row() -> None:
    weights = torch.eye(8)[None]
    for position in range(2, 8):
        assert patch_weights(patches(weights), position)[0].flatten().argmax() == position - 2
    framed = overlay(patches(weights).picture, patch_weights(patches(weights), 3)[0], 120, 1.0, chosen=(0, 1))
    frame = (framed == np.array([64, 220, 255], np.uint8)).all(-1)
    assert (frame.nonzero()[0].min(), frame.nonzero()[0].max()) == (0, 39)
    assert (frame.nonzero()[1].min(), frame.nonzero()[1].max()) == (40, 79)
    with pytest.raises(IndexError):
        patch_weights(patches(weights), 8)


def test_without_cls_the_mean_over_patches_is_shown() -> None:
    weights = torch.rand(2, 7, 7).softmax(-1)
    found = patches(weights, prefix=("R1",))
    assert torch.allclose(patch_weights(found).flatten(1), weights[:, 1:, 1:].mean(1))


def test_attention_distance_by_hand() -> None:
    """Always the next patch to the right, or itself in the last column: 2 of 3 patches look one patch far."""
    weights = torch.zeros(2, 8, 8)
    for patch in range(6):
        weights[0, 2 + patch, 2 + (patch if patch % 3 == 2 else patch + 1)] = 0.5
        weights[0, 2 + patch, 0] = 0.5  # what goes to CLS has no distance
        weights[1, 2 + patch, 2 + patch] = 1.0
    assert attention_distance(patches(weights)).tolist() == pytest.approx([2 / 3, 0.0])
    even = torch.full((1, 8, 8), 1 / 8)
    mean = np.mean([np.hypot(a // 3 - b // 3, a % 3 - b % 3) for a in range(6) for b in range(6)])
    assert attention_distance(patches(even)).tolist() == pytest.approx([mean])


def test_an_enlarged_picture_keeps_its_shape_and_its_pixels() -> None:
    pixels = torch.arange(8 * 12 * 3, dtype=torch.uint8).view(8, 12, 3)
    large = enlarged(pixels, GRID, 120)
    assert large.shape == (80, 120, 3)
    assert np.array_equal(large[::10, ::10], pixels.numpy())
    assert enlarged(torch.zeros(300, 500, 1, dtype=torch.uint8), (3, 5), 100).shape == (60, 100, 3)
    assert enlarged(torch.zeros(1, 1, 1, dtype=torch.uint8), (1, 1), 20).shape == (20, 20, 3)


@pytest.mark.parametrize("heads", [1, 3, 12])
def test_sheets_overviews_and_the_figure_of_distances_come_out(heads: int) -> None:
    records = [
        patches(torch.rand(heads, 8, 8).softmax(-1), layer=layer, outcome="label 7, predicted $1_") for layer in (0, 1)
    ]
    for picture in (sheet(records[0]), sheet(records[0], 4), overview(records), distances(records)):
        assert picture.dtype == np.uint8
        assert 100 < picture.shape[0] < 3000
        assert 500 < picture.shape[1] < 3000


def test_weights_that_are_not_numbers_do_not_stop_a_picture() -> None:
    records = [patches(torch.full((1, 8, 8), float("nan")))]
    sheet(records[0])
    overview(records)
    distances(records)


def test_picture_grid_and_outcome_are_kept_on_disk(tmp_path: Any) -> None:
    (found,) = load(save([patches(torch.rand(1, 8, 8).softmax(-1), outcome="predicted 7")], tmp_path / "a.safetensors"))
    assert (found.grid, found.outcome) == (GRID, "predicted 7")
    assert torch.equal(found.picture, torch.full((8, 12, 1), 128, dtype=torch.uint8))
    Image.fromarray(sheet(found))


def test_a_grid_that_the_positions_do_not_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="grid"):
        record(torch.rand(1, 4, 4), picture=torch.zeros(8, 12, 1, dtype=torch.uint8), grid=(2, 3))
    with pytest.raises(ValueError, match="no grid"):
        patch_weights(record(torch.rand(1, 4, 4)))
