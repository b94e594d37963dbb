"""A number for each input unit (patch, character, word) as a static picture, and as coloured text for a terminal.

For dashboards that show pictures only, PNG files and terminals; the report draws the same from the numbers themselves.
Scores above 0 glow warm, scores below 0 cold, each method on its own scale: methods have different units.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from rich.color import Color
from rich.style import Style
from rich.text import Text
from torch import Tensor

from triptych.maps.labels import label
from triptych.pictures import fonts, layout
from triptych.pictures.images import enlarged, overlay
from triptych.pictures.layout import FAINT, Cell, Page, Picture
from triptych.pictures.render import written

_SIDE = 200  # px, about how long the longer side of an overlay is
_WIDEST, _GAP = 1100, 18  # px of a line of overlays, and between two of them
_FONT = 14  # px
_WARM = np.array([[255, 255, 255], [246, 196, 120], [214, 96, 32]], np.float64)
_COLD = np.array([[255, 255, 255], [146, 196, 230], [33, 102, 172]], np.float64)


def ranking_picture(
    units: Sequence[str],
    scores: Mapping[str, Sequence[float]],
    grid: tuple[int, int] | None = None,
    picture: Tensor | None = None,
    *,
    title: str,
    says: Mapping[str, str] | None = None,
    caption: str = "",
) -> Picture:
    """What methods say of one example and one of its outputs (uint8, height width 3).

    units: U names. scores: a method's title -> U numbers; what is no number is drawn as 0. grid, picture: rows and
    columns of patches, and the picture they are patches of (H W 1 or H W 3, bytes); without them the units are written
    as text, each over a bar of its colour. title: the example and the output. says: a method's title -> its verdict,
    written under its map: no map without its test. caption: where it comes from.

    Raises ValueError where the numbers of a method are not as many as the units, or the grid has another number.
    """
    for name, numbers in scores.items():
        if len(numbers) != len(units):
            raise ValueError(f"{name} has {len(numbers)} scores for {len(units)} units")
    if grid is not None and picture is not None:
        if grid[0] * grid[1] != len(units):
            raise ValueError(f"{grid[0]} x {grid[1]} patches are not {len(units)} units")
        return _over_picture(scores, grid, picture, title, says or {}, caption)
    return _as_text(units, scores, title, says or {}, caption)


def ranking_text(units: Sequence[str], scores: Sequence[float], grid: tuple[int, int] | None = None) -> Text:
    """One method's scores (U) as coloured text: the units, or, given the grid of patches, a square for each."""
    shares = _shares(scores)
    text = Text()
    for index, (unit, share) in enumerate(zip(units, shares, strict=True)):
        colour = _colour(share)
        style = Style(bgcolor=Color.from_rgb(*colour), color=Color.from_rgb(*_ink(colour)))
        if grid is not None:
            text.append("  ", style)
            text.append("\n" if index % grid[1] == grid[1] - 1 else "")
        else:
            text.append(label(unit), style)
            text.append(" " if max(map(len, units)) > 1 else "")
    return text


def _over_picture(
    scores: Mapping[str, Sequence[float]],
    grid: tuple[int, int],
    picture: Tensor,
    title: str,
    says: Mapping[str, str],
    caption: str,
) -> Picture:
    cells = [Cell(enlarged(picture, grid, _SIDE), "picture")]
    for name, numbers in scores.items():
        image = overlay(picture, torch.tensor(_shares(numbers)).view(grid), _SIDE, 1.0)
        cells.append(Cell(image, name, note=says.get(name, "")))
    page, _ = layout.grid(
        layout.in_lines(cells, widest=_WIDEST, gap=_GAP),
        heading=title,
        caption=f"{caption} {_legend(scores)} A patch border is not an object's border.".strip(),
        gap=_GAP,
    )
    return page.render()


def _as_text(
    units: Sequence[str], scores: Mapping[str, Sequence[float]], title: str, says: Mapping[str, str], caption: str
) -> Picture:
    page = Page(900)
    page.line(title, size=17)
    names = [written(unit, longest=24) for unit in units]
    gap = 6 if max(map(len, names), default=1) > 1 else 2
    for name, numbers in scores.items():
        page.grow(14)
        page.line(name, size=12)
        page.grow(6)
        x = page.edge
        for unit, share in zip(names, _shares(numbers), strict=True):
            width = math.ceil(fonts.width(unit) * _FONT * 0.66) + 4
            if x + width > page.width - page.edge:
                x = page.edge
                page.grow(34)
            page.text(x + width / 2, page.bottom + 14, unit, size=_FONT, align="center")
            page.paste(np.full((7, width, 3), _colour(share), np.uint8), x, page.bottom + 19)
            x += width + gap
        page.grow(34)
        if says.get(name):
            page.line(says[name], size=11, colour=FAINT)
    page.caption(f"{caption} {_legend(scores)}".strip())
    return page.render()


def _legend(scores: Mapping[str, Sequence[float]]) -> str:
    signed = any(number < 0 for numbers in scores.values() for number in numbers)
    below = ", cold below 0 (speaks against the output)" if signed else ""
    return f"Warm: scores above 0{below}; the strongest colour is the largest score of each method by itself."


def _shares(scores: Sequence[float]) -> list[float]:
    """Scores as parts of the largest, -1 to 1; zeros where all are 0."""
    numbers = np.nan_to_num(np.asarray(scores, np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    return (numbers / (np.abs(numbers).max(initial=0.0) or 1.0)).tolist()


def _colour(share: float) -> tuple[int, int, int]:
    ramp = _WARM if share >= 0 else _COLD
    red, green, blue = (round(float(np.interp(abs(share), (0, 0.5, 1), ramp[:, i]))) for i in range(3))
    return red, green, blue


def _ink(colour: tuple[int, int, int]) -> tuple[int, int, int]:
    dark = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] > 140
    return (28, 36, 48) if dark else (255, 255, 255)
