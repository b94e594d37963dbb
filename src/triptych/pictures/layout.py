"""The one layout of all pictures: a page of whole pixels with a heading, a grid of cells, a colour scale and a caption.

A picture is an RGB array, which TensorBoard's ``add_image(..., dataformats="HWC")`` and ``wandb.Image`` both
take. Cells are painted as whole pixels, matplotlib writes the text; without pyplot, no figure can leak.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.transforms import IdentityTransform

from triptych.pictures import fonts

Picture = npt.NDArray[np.uint8]  # height, width, 3
Place = tuple[int, int]  # x, y of a cell's upper left pixel
_Pixels = int | float

INK, FAINT = "#1c2430", "#5b6572"
_DPI = 100
_EDGE = 18  # px around the page
_NARROWEST = 620  # px of a page: a caption needs some room
_LETTER = 0.64  # width of a character, in font sizes
_TITLE, _NOTE = 12, 10  # px, sizes of what stands over and under a cell
_TITLE_ROOM, _NOTE_LINE = 20, 13  # px, heights of a line of them
_LINE_GAP = 10  # px between two lines of cells
_SCALE_ROOM = 98  # px at the right, for the colour scale and its numbers


class Cell(NamedTuple):
    """One picture of a grid, its title, and a note that is wrapped to the width of its column."""

    picture: Picture
    title: str = ""
    note: str = ""


class Room(NamedTuple):
    """Pixels that stay free for labels: left of the first column, above and below each cell, right of the last one."""

    left: int = 0
    above: int = 0
    below: int = 0
    right: int = 0


class Scale(NamedTuple):
    """A colour scale: its colours (N 3) from 0 to the number ``top``."""

    colours: Picture
    top: float


class Page:
    """A white page that grows downwards; y runs down from the upper edge. Text and boxes lie over pictures."""

    edge = _EDGE  # px that stay free on every side

    def __init__(self, width: int) -> None:
        self.width = width
        self.bottom = _EDGE
        self._pictures: list[tuple[Picture, int, int]] = []
        self._copies: list[tuple[tuple[int, int, int, int], Place]] = []
        self._texts: list[tuple[_Pixels, _Pixels, str, _Pixels, str, int, str]] = []
        self._boxes: list[tuple[float, float, float, float, str, bool]] = []

    def grow(self, pixels: int) -> None:
        self.bottom += pixels

    def paste(self, picture: Picture, x: int, y: int) -> None:
        """A picture with its upper left pixel at ``x``, ``y``, in a thin grey frame."""
        framed = np.full((picture.shape[0] + 2, picture.shape[1] + 2, 3), 150, np.uint8)
        framed[1:-1, 1:-1] = picture
        self._pictures.append((framed, x - 1, y - 1))

    def copy(self, region: tuple[int, int, int, int], to: Place) -> None:
        """Repeat what stands inside ``region`` (x, y, width, height) with its corner at ``to``.

        Copying pixels is far cheaper than writing the same text again.
        """
        self._copies.append((region, to))

    def text(
        self,
        x: _Pixels,
        y: _Pixels,
        text: str,
        *,
        size: _Pixels,
        align: str = "left",
        rotation: int = 0,
        colour: str = INK,
    ) -> None:
        """``x``, ``y``: the anchor on the baseline; ``size`` in px."""
        self._texts.append((x, y, fonts.drawable(text), size, align, rotation, colour))

    def box(self, x: float, y: float, side: float, *, line: float, colour: str, dashed: bool) -> None:
        """An empty square of ``side`` px from the upper left corner ``x``, ``y``, its edge ``line`` px wide."""
        self._boxes.append((x, y, side, line, colour, dashed))

    def line(self, text: str, *, size: _Pixels, colour: str = INK) -> None:
        """Running text, wrapped to the page."""
        letters = int((self.width - 2 * _EDGE) / (size * 0.56))
        for part in fonts.wrapped(fonts.drawable(text), letters):
            self.grow(round(size * 1.35))
            self.text(_EDGE, self.bottom - round(size * 0.3), part, size=size, colour=colour)

    def caption(self, text: str) -> None:
        self.grow(6)
        self.line(text, size=12, colour=FAINT)
        self.grow(_EDGE - 4)

    def scale(self, x: int, y: int, height: int, scale: Scale) -> None:
        """The colour scale, with its numbers and its name."""
        shares = np.linspace(len(scale.colours) - 1, 0, height).round().astype(int)
        self.paste(scale.colours[shares][:, None].repeat(14, axis=1), x, y)
        self.bottom = max(self.bottom, y + height + 6)  # next to a low map the scale is what needs the room
        for share in (0.0, 0.5, 1.0):
            self.text(x + 20, y + (1 - share) * (height - 1) + 4, f"{share * scale.top:.3g}", size=11, colour=FAINT)
        self.text(x + 72, y + height, "weight", size=12, rotation=90, colour=FAINT)

    def render(self) -> Picture:
        """The page (uint8, height width 3)."""
        background = np.full((self.bottom, self.width, 3), 255, np.uint8)
        for picture, x0, y0 in self._pictures:
            background[y0 : y0 + picture.shape[0], x0 : x0 + picture.shape[1]] = picture
        # A hundredth of a pixel more: 803 / 100 inches times 100 would be a little less than 803, and 802 pixels.
        size = (self.width + 0.01) / _DPI, (self.bottom + 0.01) / _DPI
        figure = Figure(figsize=size, dpi=_DPI, facecolor="white")
        agg = FigureCanvasAgg(figure)
        figure.figimage(background, origin="upper")
        self._draw_texts(figure)
        self._draw_boxes(figure)
        agg.draw()
        canvas = np.asarray(agg.buffer_rgba())[..., :3].copy()
        for (x0, y0, width, height), (x1, y1) in self._copies:
            canvas[y1 : y1 + height, x1 : x1 + width] = canvas[y0 : y0 + height, x0 : x0 + width]
        return canvas

    def _draw_texts(self, figure: Figure) -> None:
        texts: dict[_Pixels, list[str]] = {}
        for _, _, text, size, *_ in self._texts:
            texts.setdefault(size, []).append(text)
        properties = {size: fonts.properties(texts[size], size * 72 / _DPI) for size in texts}
        for x, y, text, size, align, rotation, colour in self._texts:
            figure.text(
                x,
                self.bottom - y,
                text,
                transform=IdentityTransform(),
                fontproperties=properties[size],
                ha=align,
                va="baseline",
                rotation=rotation,
                rotation_mode="anchor",
                color=colour,
                parse_math=False,  # "$" is a character here
                usetex=False,
            )

    def _draw_boxes(self, figure: Figure) -> None:
        for x, y, side, line, colour, dashed in self._boxes:
            figure.add_artist(
                Rectangle(
                    (x, self.bottom - y - side),
                    side,
                    side,
                    transform=IdentityTransform(),
                    fill=False,
                    edgecolor=colour,
                    linewidth=line * 72 / _DPI,
                    linestyle=(0, (3, 2)) if dashed else "solid",
                    joinstyle="miter",
                )
            )


def in_lines(cells: Sequence[Cell], *, widest: int, gap: int = 16, shape: float | None = None) -> list[list[Cell]]:
    """Cells in lines that are as long as one another, but for the last.

    widest: px that a line may take. shape: how many times as many cells stand beside one another as above one another;
    None for as many as fit.
    """
    fitting = max(1, widest // (_column(cells) + gap))
    wanted = len(cells) if shape is None else math.ceil((shape * len(cells)) ** 0.5)
    lines = math.ceil(len(cells) / min(fitting, wanted))
    per_line = math.ceil(len(cells) / lines)
    return [list(cells[start : start + per_line]) for start in range(0, len(cells), per_line)]


def by_head(heads: Sequence[Sequence[int]], pictures: Sequence[Sequence[Picture]]) -> list[list[Cell | None]]:
    """For each layer a line of its heads' pictures, with a column for every head that any layer has.

    The first picture of a column is titled with the head's number.
    """
    columns = sorted({head for line in heads for head in line})
    named: set[int] = set()
    lines: list[list[Cell | None]] = []
    for line, painted in zip(heads, pictures, strict=True):
        there = dict(zip(line, painted, strict=True))
        lines.append(
            [Cell(there[head], "" if head in named else f"head {head}") if head in there else None for head in columns]
        )
        named.update(line)
    return lines


def grid(
    lines: Sequence[Sequence[Cell | None]],
    *,
    heading: str,
    caption: str,
    remark: str = "",
    labels: Sequence[Sequence[str]] = (),
    room: Room | None = None,
    gap: int = 16,
    scale: Scale | None = None,
) -> tuple[Page, list[list[Place]]]:
    """A page with all of its parts, and where each cell begins; what belongs on or around cells comes on it afterwards.

    Args:
        lines: cells beside one another, line below line; None leaves a place empty.
        heading: what all cells have in common. remark: a second line under it.
        caption: how to read the picture and where it comes from.
        labels: of each line, in short lines of their own, left of its first cell.
        room: kept free for labels that the caller writes. Titles stand over cells, or under them if labels stand over.
        gap: px between two columns.
        scale: the colour scale right of the cells.
    """
    cells = [cell for line in lines for cell in line if cell is not None]
    room = room or Room()
    left = room.left + max((_width(text, size) + 12 for label in labels for text, size, _ in _sized(label)), default=0)
    column = _column(cells)
    right = left + max(map(len, lines)) * (column + gap) - gap
    page = Page(max(2 * _EDGE + right + max(room.right, _SCALE_ROOM if scale else 0), _NARROWEST))
    page.line(heading, size=17)
    if remark:
        page.line(remark, size=13)
    page.grow(4)
    places: list[list[Place]] = []
    for number, line in enumerate(lines):
        titled = any(cell is not None and cell.title for cell in line)
        page.grow(room.above + (_TITLE_ROOM if titled and not room.above else 0))
        top, height = page.bottom, max(cell.picture.shape[0] for cell in line if cell is not None)
        places.append([(_EDGE + left + index * (column + gap), top) for index in range(len(line))])
        if labels:
            height = max(height, _write_label(page, labels[number], top))
        under = height + room.below
        if titled and room.above:
            under += _TITLE_ROOM + 4
        for cell, (x, _) in zip(line, places[-1], strict=True):
            if cell is None:
                continue
            page.paste(cell.picture, x, top)
            if cell.title and room.above:
                page.text(x + cell.picture.shape[1] / 2, top + under - 4, cell.title, size=_TITLE + 1, align="center")
            elif cell.title:
                page.text(x, top - 6, cell.title, size=_TITLE)
        page.grow(under)
        page.grow(_write_notes(page, line, places[-1], column + gap))
        page.grow(_LINE_GAP)
    if scale is not None:
        first = places[0][0][1]
        page.scale(_EDGE + right + 22, first, min(max(page.bottom - _LINE_GAP - first, 90), 240), scale)
    page.caption(caption)
    return page, places


def _write_label(page: Page, label: Sequence[str], top: int) -> int:
    """Write what a line of cells is called; how many px high that is."""
    for index, (text, size, colour) in enumerate(_sized(label)):
        page.text(_EDGE, top + 12 + _NOTE_LINE * index, text, size=size, colour=colour)
    return 14 + _NOTE_LINE * (len(label) - 1)


def _sized(label: Sequence[str]) -> list[tuple[str, int, str]]:
    """The lines of a label with their sizes and colours: the first is its name, the others explain it."""
    return [(text, *((_TITLE, INK) if index == 0 else (_NOTE, FAINT))) for index, text in enumerate(label)]


def _write_notes(page: Page, line: Sequence[Cell | None], places: Sequence[Place], width: int) -> int:
    """Write the notes of a line of cells below them; how many px high the highest is."""
    notes = [fonts.wrapped(cell.note, int(width / (_NOTE * 0.56))) if cell and cell.note else [] for cell in line]
    for note, (x, _) in zip(notes, places, strict=True):
        for index, text in enumerate(note):
            page.text(x, page.bottom + 14 + _NOTE_LINE * index, text, size=_NOTE, colour=FAINT)
    return _NOTE_LINE * max(map(len, notes)) + (6 if any(notes) else 0)


def _column(cells: Sequence[Cell]) -> int:
    """Px of a column: no title runs into the next one, and a note has some words in a line."""
    return max(
        *(cell.picture.shape[1] for cell in cells),
        *(_width(cell.title, _TITLE) for cell in cells),
        190 if any(cell.note for cell in cells) else 48,
    )


def _width(text: str, size: int) -> int:
    return math.ceil(fonts.width(text) * size * _LETTER)
