"""The layout of all pictures: cells stand where it says, pixel for pixel, and nothing runs into its neighbour."""

import numpy as np
import pytest

from triptych.pictures.layout import Cell, Page, Picture, Room, Scale, by_head, grid, in_lines

WHITE, FRAME = 255, 150
RAMP = np.linspace(255, 0, 256).astype(np.uint8)[:, None].repeat(3, axis=1)


def solid(height: int, width: int, level: int = 40) -> Picture:
    return np.full((height, width, 3), level, np.uint8)


def drawn(page: Page) -> Picture:
    picture = page.render()
    assert picture.shape == (page.bottom, page.width, 3)
    return picture


def test_cells_are_pasted_pixel_for_pixel_where_the_grid_says() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    page, places = grid([[Cell(noise, "a"), Cell(solid(40, 60))], [None, Cell(noise)]], heading="h", caption="c")
    picture = drawn(page)
    for x, y in (places[0][0], places[1][1]):
        assert np.array_equal(picture[y : y + 40, x : x + 60], noise)
        assert (picture[y - 1, x - 1 : x + 61] == FRAME).all()
    x, y = places[1][0]
    assert (picture[y : y + 40, x : x + 60] == WHITE).all()  # a place without a cell
    assert places[1][1][0] == places[0][1][0]


@pytest.mark.parametrize("width", [803, 804, 812])
def test_a_page_has_exactly_its_pixels(width: int) -> None:
    """803 / 100 * 100 is a little less than 803: a page of inches would lose its last column."""
    page = Page(width)
    page.grow(803)
    drawn(page)


def test_columns_are_as_wide_as_their_titles() -> None:
    long = "a method with a rather long name"
    page, places = grid([[Cell(solid(9, 9), long), Cell(solid(9, 9), long)]], heading="h", caption="c")
    first, second = places[0]
    picture = drawn(page)
    title = picture[first[1] - 18 : first[1] - 3, first[0] : second[0]].min(axis=(0, 2)) < 200
    assert title.any()
    assert not title[-10:].any()  # a gap before the next title


def test_room_for_labels_stays_free_and_titles_go_under_cells_whose_labels_stand_over_them() -> None:
    room = Room(left=70, above=50, below=30)
    page, places = grid([[Cell(solid(40, 90), "step 1")]], heading="h", caption="c", room=room)
    ((x, y),) = places[0]
    picture = drawn(page)
    assert (picture[y - 50 : y - 1] == WHITE).all()
    assert (picture[y - 1 : y + 41, : x - 1] == WHITE).all()
    assert x == page.edge + 70
    assert (picture[y + 41 : y + 70] == WHITE).all()
    assert (picture[y + 70 : y + 94, x : x + 90] < 200).any()


def test_notes_are_wrapped_below_their_own_cells() -> None:
    note = "beats random order in deletion, and is not told apart from it in insertion"
    cells = [Cell(solid(40, 60), "a", note), Cell(solid(40, 60), "b")]
    page, places = grid([cells, cells], heading="h", caption="c")
    first, second = places[0]
    picture = drawn(page)
    below = slice(first[1] + 42, places[1][0][1] - 20)
    assert (picture[below, first[0] : second[0] - 8] < 200).any()
    assert (picture[below, second[0] :] == WHITE).all()


def test_labels_of_lines_have_their_room_and_low_cells_do_not_push_them_together() -> None:
    labels = [["layer 0", "causal", "self-attention"], ["layer 1", "causal", "self-attention"]]
    page, places = grid([[Cell(solid(4, 90))]] * 2, heading="h", caption="c", labels=labels)
    assert places[1][0][1] - places[0][0][1] >= 40
    picture = drawn(page)
    x, y = places[0][0]
    dark = (picture[y : y + 40, page.edge : x - 2] < 200).any(axis=(0, 2))
    assert dark.any()
    assert not dark[-4:].any()


def test_the_scale_stands_beside_the_cells_and_runs_from_the_top_down() -> None:
    page, places = grid([[Cell(solid(120, 90))]], heading="h", caption="c", scale=Scale(RAMP, 0.5))
    x, y = places[0][0][0] + 90 + 22, places[0][0][1]
    bar = drawn(page)[y : y + 120, x + 7, 0].astype(int)
    assert bar[0] == 0
    assert bar[-1] == 255
    assert (np.diff(bar) >= 0).all()


def test_text_and_boxes_lie_over_cells() -> None:
    page, places = grid([[Cell(solid(60, 60, 255))]], heading="h", caption="c")
    x, y = places[0][0]
    page.text(x + 30, y + 40, "5", size=20, align="center")
    page.box(x + 5, y + 5, 50, line=2, colour="#e0540a", dashed=False)
    cell = drawn(page)[y : y + 60, x : x + 60]
    assert (cell[20:45, 20:45].min(-1) < 90).any()
    assert tuple(cell[5, 30]) == (224, 84, 10)


def test_a_copy_repeats_text_elsewhere() -> None:
    page = Page(620)
    page.grow(100)
    page.text(20, 40, "the same", size=12)
    page.copy((15, 25, 100, 20), (215, 65))
    picture = drawn(page)
    assert (picture[25:45, 15:115] < 200).any()
    assert np.array_equal(picture[25:45, 15:115], picture[65:85, 215:315])


@pytest.mark.parametrize(
    ("count", "widest", "shape", "lengths"),
    [
        (1, 1000, None, [1]),
        (4, 1000, None, [4]),
        (7, 600, None, [4, 3]),  # five fit: evenly, not five and two
        (6, 1000, 1.5, [3, 3]),
        (16, 1000, 1.5, [4, 4, 4, 4]),
        (3, 10, None, [1, 1, 1]),
    ],
)
def test_lines_are_about_as_long_as_one_another(
    count: int, widest: int, shape: float | None, lengths: list[int]
) -> None:
    cells = [Cell(solid(10, 100, level)) for level in range(count)]
    lines = in_lines(cells, widest=widest, shape=shape)
    assert [len(line) for line in lines] == lengths
    assert [cell.picture[0, 0, 0] for line in lines for cell in line] == list(range(count))


def test_a_head_has_one_column_and_its_name_over_its_first_picture() -> None:
    a, b, c = (solid(5, 5, level) for level in (1, 2, 3))
    lines = by_head([[0, 2], [1]], [[a, b], [c]])
    assert [[cell and (cell.title, int(cell.picture[0, 0, 0])) for cell in line] for line in lines] == [
        [("head 0", 1), None, ("head 2", 2)],
        [None, ("head 1", 3), None],
    ]
