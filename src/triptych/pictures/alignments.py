"""Alignments at word level as pictures: target words are rows, source words columns; of one moment, or of several.

Gold links are drawn as boxes: solid for a sure one, dashed for one that is only possible.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from triptych.attention.shapes import Float, Tensor
from triptych.explain.alignment.alignment import Choice, Links
from triptych.pictures import fonts, render
from triptych.pictures.layout import INK, Cell, Page, Picture, Place, Room, grid, in_lines

_ALONE, _BESIDE = 900, 420  # px, about how long the longer side of a matrix is, alone and beside others
_SMALLEST_CELL, _LARGEST_CELL = 2, 60  # px
_NUMBERED_CELL = 26  # px; in smaller ones a number would not fit
_GAP = 28  # px between two matrices, and between the last one and the scale
_WIDEST = 2400  # px; more moments than fit go into a further row
_LETTER = 0.64  # width of a character, in font sizes
_SLANT = math.sqrt(0.5)  # labels that would touch are turned by 45 degrees
_GOLD = "#e0540a"
_ROW_IN_WORDS = {
    "output": "the decoder's row that predicts the word",
    "shifted": "the decoder's row that reads the word",
}


def alignment(
    weights: Float[Tensor, "targets sources"],
    source: Sequence[str],
    target: Sequence[str],
    *,
    choice: Choice,
    step: int,
    links: Links | None = None,
) -> Picture:
    """One alignment (uint8, height width 3), with the weight in each cell where there is room.

    weights: from ``alignment.soft``. source, target: the words. choice: where in the model the weights
    were read. step: parameter updates before. links: the gold alignment, where there is one.

    Raises:
        ValueError: words or links that do not fit the weights.
    """
    return _draw([(step, weights)], source, target, choice, links, _ALONE)


def over_time(
    moments: Sequence[tuple[int, Float[Tensor, "targets sources"]]],
    source: Sequence[str],
    target: Sequence[str],
    *,
    choice: Choice,
    links: Links | None = None,
) -> Picture:
    """The same alignment at several moments of training, side by side on one scale (uint8, height width 3).

    moments: steps and weights, in the order in which they are shown. The rest is as for ``alignment``.

    Raises:
        ValueError: no moment; words or links that do not fit the weights.
    """
    if not moments:
        raise ValueError("an alignment over time needs at least one moment")
    return _draw(moments, source, target, choice, links, _ALONE if len(moments) == 1 else _BESIDE)


def _draw(
    moments: Sequence[tuple[int, Tensor]],
    source: Sequence[str],
    target: Sequence[str],
    choice: Choice,
    links: Links | None,
    side: int,
) -> Picture:
    T, S = _check(moments, source, target, links)
    numbers = [weights.detach().float().cpu().numpy() for _, weights in moments]
    top = render.ceiling(np.stack(numbers))
    block = math.ceil(max(T, S) * _SMALLEST_CELL / side)
    cell = min(_LARGEST_CELL, max(_SMALLEST_CELL, side // math.ceil(max(T, S) / block)))
    pitch = cell / block  # px from one word to the next
    width = math.ceil(S / block) * cell
    font = min(max(0.45 * pitch, 9.0), 14.0)
    rows, columns = [render.written(word) for word in target], [render.written(word) for word in source]
    lengths = [fonts.width(word) * _LETTER * font for word in columns]
    slanted = max(lengths) > pitch - 4
    left = round(max(map(fonts.width, rows)) * _LETTER * font) + 10
    above = round(max(lengths) * _SLANT + font if slanted else font) + 10
    # a slanted label reaches to the right of its column
    ends = max((j + 0.5) * pitch + length * _SLANT for j, length in enumerate(lengths)) if slanted else 0
    over = math.ceil(ends - width)

    several = len(moments) > 1
    numbered = pitch >= _NUMBERED_CELL
    cells = [
        Cell(
            render.paint(weights, np.zeros_like(weights, dtype=bool), block, cell, top),
            f"step {step:,}" if several else "",
        )
        for (step, _), weights in zip(moments, numbers, strict=True)
    ]
    page, places = grid(
        in_lines(cells, widest=_WIDEST - left, gap=_GAP),
        heading=f"alignment · {choice}" + ("" if several else f" · step {moments[0][0]:,}"),
        caption=_reading(choice, links, numbered, block),
        room=Room(left=left, above=above, right=over),
        gap=_GAP,
        scale=render.scale(top),
    )
    for line in places:
        for j, text in render.thinned(rows, pitch):
            page.text(line[0][0] - 7, line[0][1] + (j + 0.5) * pitch + 0.35 * font, text, size=font, align="right")
    for (x, y), weights in zip(itertools.chain(*places), numbers, strict=True):
        for j, text in render.thinned(columns, pitch * _SLANT if slanted else pitch):
            centre = x + (j + 0.5) * pitch
            if slanted:
                page.text(centre + 0.3 * font, y - 5, text, size=font, rotation=45)
            else:
                page.text(centre, y - 7, text, size=font, align="center")
        if numbered:
            _write_numbers(page, (x, y), weights, pitch, top)
        if links is not None:
            _frame(page, (x, y), pitch, links)
    return page.render()


def _check(
    moments: Sequence[tuple[int, Tensor]], source: Sequence[str], target: Sequence[str], links: Links | None
) -> tuple[int, int]:
    """How many target and source words there are."""
    size = len(target), len(source)
    if not all(size):
        raise ValueError("an alignment needs at least one word on both sides")
    for _, weights in moments:
        if weights.shape != size:
            raise ValueError(f"weights {tuple(weights.shape)} for {size[0]} target and {size[1]} source words")
    for i, j in sorted(links.possible) if links is not None else ():
        if i >= size[1] or j >= size[0]:
            raise ValueError(f"no link {i}-{j} among {size[1]} source and {size[0]} target words")
    return size


def _reading(choice: Choice, links: Links | None, numbered: bool, block: int) -> str:
    """What the picture shows, in sentences."""
    said = [
        f"Weights after softmax of cross-attention: {choice} ({_ROW_IN_WORDS[choice.row]}).",
        "Rows are target words, columns source words; weights are summed over the tokens of a source word and averaged "
        "over those of a target word, and what lies on the end of the sentence is left out.",
    ]
    if numbered:
        said.append("A cell without a number is below 0.005.")
    if block > 1:
        said.append(f"Each cell shows the largest weight of {block} x {block}.")
    if links is not None:
        said.append("Boxes are the gold alignment: solid a sure link, dashed one that is only possible.")
    return " ".join(said)


def _write_numbers(page: Page, place: Place, weights: npt.NDArray[np.float32], pitch: float, top: float) -> None:
    """The weights in the cells of the matrix that begins at ``place``."""
    size = min(0.34 * pitch, 14)
    for j, i in np.ndindex(weights.shape):
        across, down = place[0] + (i + 0.5) * pitch, place[1] + (j + 0.5) * pitch + 0.36 * size
        colour = "#ffffff" if weights[j, i] > 0.45 * top else INK
        page.text(across, down, _number(float(weights[j, i])), size=size, align="center", colour=colour)


def _frame(page: Page, place: Place, pitch: float, links: Links) -> None:
    """Boxes in the cells that the gold alignment links, of the matrix that begins at ``place``."""
    line = min(2.0, pitch / 6)
    for dashed, boxes in ((True, links.possible - links.sure), (False, links.sure)):
        for i, j in boxes:
            x, y = place[0] + i * pitch + line, place[1] + j * pitch + line
            page.box(x, y, pitch - 2 * line, line=line, colour=_GOLD, dashed=dashed)


def _number(weight: float) -> str:
    """.87, 1 where it rounds to it, and nothing for what rounds to 0 or is no number."""
    if not weight >= 0.005:
        return ""
    return f"{weight:.2f}".removeprefix("0") if weight < 0.995 else f"{weight:.2g}"
