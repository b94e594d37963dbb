"""Static pictures: the right cell has the right colour, the mask shows, no token or size breaks them."""

import gc
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from test_record import causal_weights, record

from triptych.maps.labels import label, shortened
from triptych.maps.record import MapRecord
from triptych.pictures.render import overview, sheet, write_png

DARKEST, HATCH = (20, 29, 77), ((226, 226, 222), (196, 196, 190))
CELL = 24  # px of a cell in a small map


def is_colour(picture: np.ndarray, *colours: tuple[int, int, int]) -> np.ndarray:
    return np.any([(picture == np.array(colour, np.uint8)).all(-1) for colour in colours], axis=0)


def cells(picture: np.ndarray, first: tuple[int, int], queries: int, keys: int) -> np.ndarray:
    """The colours in the middle of each cell (queries keys 3) of the map that begins at ``first``."""
    y, x = first
    return picture[y + CELL // 2 :: CELL, x + CELL // 2 :: CELL][:queries, :keys]


def corner(picture: np.ndarray) -> tuple[int, int]:
    """The first pixel in reading order of the darkest cell."""
    y, x = np.argwhere(is_colour(picture, DARKEST))[0]
    return int(y), int(x)


def test_the_diagonal_lands_on_the_diagonal() -> None:
    picture = sheet(record(torch.eye(8)[None], causal=False, mask="none"))
    assert picture.dtype == np.uint8
    assert picture.shape[2] == 3
    y, x = corner(picture)
    dark = is_colour(picture[y : y + 8 * CELL, x : x + 8 * CELL], DARKEST)
    assert np.array_equal(dark, np.kron(np.eye(8, dtype=bool), np.ones((CELL, CELL), dtype=bool)))


def test_rows_are_queries_and_columns_are_keys() -> None:
    weights = torch.zeros(2, 3, 6)
    weights[0, 0, 0] = weights[0, 2, 4] = weights[1, 1, 5] = 1.0
    picture = sheet(record(weights, kind="cross", causal=False, mask="none"))
    y, x = corner(picture)
    first = cells(picture, (y, x), 3, 6)
    assert np.argwhere(is_colour(first, DARKEST)).tolist() == [[0, 0], [2, 4]]
    second = cells(picture, (y, x + 6 * CELL + 16), 3, 6)
    assert np.argwhere(is_colour(second, DARKEST)).tolist() == [[1, 5]]


def test_masked_cells_are_hatched_and_a_weight_of_zero_is_white() -> None:
    weights = torch.eye(6)[None]  # below the diagonal: visible, weight 0
    picture = sheet(record(weights))
    shown = cells(picture, corner(picture), 6, 6)
    assert np.array_equal(is_colour(shown, *HATCH), np.triu(np.ones((6, 6), dtype=bool), 1))
    assert np.array_equal(is_colour(shown, (255, 255, 255)), np.tril(np.ones((6, 6), dtype=bool), -1))


def test_heads_share_one_scale() -> None:
    weights = torch.stack([torch.eye(4), torch.full((4, 4), 0.25)])
    picture = sheet(record(weights, causal=False, mask="none"))
    y, x = corner(picture)
    assert not is_colour(picture[y : y + 4 * CELL, x + 4 * CELL + 16 : x + 8 * CELL + 16], DARKEST).any()


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 12, 16])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 9), (9, 1), (12, 5)])
def test_any_number_of_heads_and_positions(heads: int, queries: int, keys: int) -> None:
    found = record(torch.rand(heads, queries, keys).softmax(-1), kind="cross", causal=False)
    for picture in (sheet(found), overview([found])):
        assert 100 < picture.shape[0] < 3000
        assert 500 < picture.shape[1] < 3000


def test_a_long_text_stays_a_picture_of_bounded_size_and_keeps_a_lone_weight() -> None:
    weights = torch.zeros(1, 1500, 1500)
    weights[0, 700, 41] = 1.0
    labels = tuple("x" for _ in range(1500))
    picture = sheet(record(weights, query_labels=labels, key_labels=labels, causal=False))
    assert max(picture.shape) < 1200
    assert is_colour(picture[:, :500], DARKEST).any()


def test_hostile_tokens_are_drawn_as_they_are() -> None:
    tokens = ("$x^2$", "$", "\\frac{", "<b>", "\x07", "\n", "😀", "", "the", "the", "\ud800", "a" * 300)
    weights = torch.full((2, 12, 12), 1 / 12)
    found = record(weights, query_labels=tokens, key_labels=tokens, example="$\x00{} \n😀", causal=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a missing glyph would warn
        sheet(found)
        overview([found])


def test_repeated_tokens_keep_their_own_column() -> None:
    weights = torch.eye(3)[None]
    picture = sheet(record(weights, query_labels=("the",) * 3, key_labels=("the",) * 3, causal=False))
    shown = cells(picture, corner(picture), 3, 3)
    assert np.array_equal(is_colour(shown, DARKEST), np.eye(3, dtype=bool))


def test_weights_that_are_not_numbers_do_not_stop_a_picture() -> None:
    weights, scores = causal_weights(1, 4)
    weights[0, 1] = float("nan")
    sheet(record(weights, scores=scores))
    sheet(record(torch.full((1, 4, 4), float("nan"))))


def test_overview_has_layers_as_rows_and_heads_as_columns() -> None:
    def one(layer: int, head: int) -> MapRecord:
        weights = torch.zeros(3, 6, 6)
        weights[head] = torch.eye(6)
        return record(weights, layer=layer, causal=False)

    picture = overview([one(0, 0), one(1, 2)])
    ys, xs = np.nonzero(is_colour(picture[:, :570], DARKEST))
    upper = ys < (ys.min() + ys.max()) / 2
    assert xs[upper].max() < xs[~upper].min() - 150  # head 0 stands two columns left of head 2
    with pytest.raises(ValueError, match="one example"):
        overview([one(0, 0), record(torch.rand(1, 2, 2), example="probe 1")])
    with pytest.raises(ValueError, match="at least one"):
        overview([])


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    weights, _ = causal_weights(4, 12)
    for _ in range(3):
        path = write_png(sheet(record(weights)), tmp_path / "maps" / "a.png")
    gc.collect()
    assert not [thing for thing in gc.get_objects() if isinstance(thing, Figure)]
    assert [file.name for file in path.parent.iterdir()] == ["a.png"]
    with Image.open(path) as image:
        assert np.array_equal(np.asarray(image), sheet(record(weights)))


def test_labels_show_what_cannot_be_seen() -> None:
    assert [label(token) for token in (" ", "\n", "\t", "", "\x00", "\u202e", "é")] == list("␣⏎⇥∅␀�é")
    assert label("a" * 40) == "a" * 15 + "…"


def test_captions_and_titles_do_not_repeat_a_long_input() -> None:
    assert shortened("a\n b\u2028c") == "a b c"
    assert shortened("word " * 200, 12) == "word word w…"
    assert len(shortened("x" * 1000)) == 80
    assert shortened(" \n") == "∅"
    long = record(torch.eye(4)[None], example="x" * 1000)
    assert "x" * 1000 not in long.caption()
    assert "x" * 79 + "…" in long.caption()
    short = record(torch.eye(4)[None], example="x" * 80)
    assert sheet(long).shape == sheet(short).shape
    assert overview([long]).shape == overview([short]).shape
