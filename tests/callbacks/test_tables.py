"""Tables of counts as pictures: any size and any names come out, and the diagonal is where it belongs."""

import numpy as np
import pytest
import torch

from triptych.callbacks.tables import draw
from triptych.tasks.base import Table


@pytest.mark.parametrize("size", [2, 10, 40])
def test_a_table_comes_out(size: int) -> None:
    names = ["$x_1$", "", "a name that is far too long for any axis", *map(str, range(40))][:size]
    picture = draw(Table(names, torch.randint(0, 9, (size, size)), rows="true", columns="predicted"), "confusion, $")
    assert picture.dtype == np.uint8
    assert picture.shape[2] == 3
    assert 300 < picture.shape[0] < 1300


def test_a_class_without_images_leaves_its_row_white() -> None:
    draw(Table(["a", "b"], torch.tensor([[3, 1], [0, 0]]), rows="true", columns="predicted"), "confusion")


def test_rows_are_true_and_columns_are_predicted() -> None:
    """One dark cell, in the upper right: true a, predicted b."""
    picture = draw(Table(["a", "b"], torch.tensor([[0, 9], [0, 0]]), rows="true", columns="predicted"), "t")
    height, width = picture.shape[:2]
    left = picture[:, : int(width * 0.75)]  # without the colour scale
    rows, columns = np.nonzero((left[..., 2] > 80) & (left[..., 0] < 40))
    assert rows.max() < 0.55 * height
    assert columns.min() > 0.3 * width
