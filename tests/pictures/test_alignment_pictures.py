"""Pictures of alignments: weights, numbers and gold boxes stand in the right cells, and no words break them."""

import gc
import warnings

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from triptych.explain.alignment.alignment import Choice, Links, read_links
from triptych.pictures.alignments import alignment, over_time

CHOICE = Choice(1, "shifted", "mean")
WHITE, DARKEST, GOLD = (255, 255, 255), (20, 29, 77), (224, 84, 10)
CELL = 60  # px of a cell in a small matrix


def is_colour(picture: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    return (picture == np.array(colour, np.uint8)).all(-1)


def corner(picture: np.ndarray) -> tuple[int, int]:
    """The upper left corner inside the frame (grey 150) of the first matrix."""
    y, x = np.argwhere(is_colour(picture, (150, 150, 150)))[0]
    return int(y) + 1, int(x) + 1


def cell(picture: np.ndarray, row: int, column: int, left: int = 0) -> np.ndarray:
    """The pixels of one cell of the matrix that begins ``left`` px to the right of the first."""
    y, x = corner(picture)
    return picture[y + row * CELL :, x + left + column * CELL :][:CELL, :CELL]


def words(count: int) -> list[str]:
    return [f"w{i}" for i in range(count)]


def test_rows_are_target_words_and_columns_source_words() -> None:
    weights = torch.zeros(2, 4)
    weights[0, 3] = weights[1, 0] = 1.0
    picture = alignment(weights, words(4), words(2), choice=CHOICE, step=7)
    assert picture.dtype == np.uint8
    for row, column in np.ndindex(2, 4):
        edge = cell(picture, row, column)[3, 3]
        assert tuple(edge) == (DARKEST if weights[row, column] == 1 else WHITE)


def test_numbers_stand_in_their_cells_and_small_weights_have_none() -> None:
    weights = torch.tensor([[0.004, 0.31], [1.0, 0.0]])
    picture = alignment(weights, words(2), words(2), choice=CHOICE, step=7)
    written = [[len(np.unique(cell(picture, i, j).reshape(-1, 3), axis=0)) > 1 for j in range(2)] for i in range(2)]
    assert written == [[False, True], [True, False]]
    assert cell(picture, 1, 0).max() > 200  # white on dark
    assert cell(picture, 0, 1).min() < 60  # dark on light


@pytest.mark.parametrize("position", [(0, 0), (1, 2)])
def test_sure_links_have_solid_boxes_and_possible_ones_dashed(position: tuple[int, int]) -> None:
    row, column = position

    def box(text: str) -> int:
        picture = alignment(torch.zeros(2, 3), words(3), words(2), choice=CHOICE, step=7, links=read_links(text))
        inside = is_colour(cell(picture, row, column), GOLD)
        assert is_colour(picture, GOLD).sum() == inside.sum() > 0  # nowhere else
        return int(inside.sum())

    solid, dashed = box(f"{column}-{row}"), box(f"{column}?{row}")
    assert 0.3 * solid < dashed < 0.9 * solid
    assert solid >= 4 * (CELL - 8)


def test_moments_stand_side_by_side_on_one_scale() -> None:
    late = torch.eye(2)
    picture = over_time([(10, torch.full((2, 2), 0.5)), (2000, late)], words(2), words(2), choice=CHOICE)
    step = 2 * CELL + 28
    assert [tuple(cell(picture, 0, j, step)[3, 3]) for j in range(2)] == [DARKEST, WHITE]
    early = cell(picture, 0, 0)[3, 3]
    assert tuple(early) not in (DARKEST, WHITE)  # half of the common scale
    one = over_time([(2000, late)], words(2), words(2), choice=CHOICE)
    assert np.array_equal(one, alignment(late, words(2), words(2), choice=CHOICE, step=2000))


def test_every_moment_has_its_boxes_and_many_moments_wrap() -> None:
    moments = [(step, torch.zeros(3, 12)) for step in range(7)]
    boxed = over_time(moments, words(12), words(3), choice=CHOICE, links=read_links("0-0"))
    plain = over_time(moments, words(12), words(3), choice=CHOICE)
    assert boxed.shape[1] <= 2600
    gold = is_colour(boxed, GOLD)
    assert not is_colour(plain, GOLD).any()
    first = gold[:, : boxed.shape[1] // 6]
    assert gold.sum() % 7 == 0
    assert first.sum() == 2 * gold.sum() // 7  # the first column of panels has two rows


@pytest.mark.parametrize(("targets", "sources"), [(1, 1), (1, 9), (9, 1), (25, 27), (150, 90), (1300, 5)])
def test_any_number_of_words(targets: int, sources: int) -> None:
    weights = torch.rand(targets, sources).softmax(-1)
    links = Links(frozenset({(sources - 1, targets - 1)}), frozenset({(0, 0)}))
    several = over_time([(0, weights), (1, weights)], words(sources), words(targets), choice=CHOICE, links=links)
    alone = alignment(weights, words(sources), words(targets), choice=CHOICE, step=1, links=links)
    for picture in (several, alone):
        assert 150 < picture.shape[0] < 1600
        assert 600 < picture.shape[1] < 2600
    if max(targets, sources) < 30:
        assert is_colour(alone, GOLD).any()


def test_hostile_and_repeated_words_keep_their_cells() -> None:
    hostile = ["$x^2$", "$", "\\frac{", "<b>", "\x07", "😀", "", "the", "the", "a" * 300, "你好", "سلام"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a missing glyph would warn
        picture = alignment(torch.eye(12), hostile, hostile, choice=CHOICE, step=1)
    y, x = corner(picture)
    shown = is_colour(picture[y + 3 : y + 12 * CELL : CELL, x + 3 : x + 12 * CELL : CELL], DARKEST)
    assert np.array_equal(shown, np.eye(12, dtype=bool))


def test_labels_are_not_cut_at_the_edges() -> None:
    for count in (2, 12, 30):
        long = ["i" * 40] * count
        picture = alignment(torch.zeros(count, count), long, long, choice=CHOICE, step=1)
        border = np.concatenate(
            [picture[:4].reshape(-1, 3), picture[:, :4].reshape(-1, 3), picture[:, -4:].reshape(-1, 3)]
        )
        assert (border == 255).all()


def test_weights_that_are_not_numbers_do_not_stop_a_picture() -> None:
    alignment(torch.full((2, 2), float("nan")), words(2), words(2), choice=CHOICE, step=1, links=read_links("0-0"))


def test_what_does_not_fit_is_refused() -> None:
    weights = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="2 target and 2 source words"):
        alignment(weights, words(2), words(2), choice=CHOICE, step=1)
    with pytest.raises(ValueError, match="no link 0-2 among 3 source and 2 target words"):
        alignment(weights, words(3), words(2), choice=CHOICE, step=1, links=read_links("0?2"))
    with pytest.raises(ValueError, match="at least one word"):
        alignment(torch.zeros(0, 3), words(3), [], choice=CHOICE, step=1)
    with pytest.raises(ValueError, match="at least one moment"):
        over_time([], words(3), words(2), choice=CHOICE)


def test_no_figure_is_left_behind() -> None:
    for _ in range(3):
        alignment(torch.eye(3), words(3), words(3), choice=CHOICE, step=1, links=read_links("0-0"))
    gc.collect()
    assert not [thing for thing in gc.get_objects() if isinstance(thing, Figure)]
