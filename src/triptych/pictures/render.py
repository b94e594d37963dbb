"""MapRecord -> static picture: a sheet (all heads of one layer) or an overview (all layers of one moment).

A picture is an RGB array, which TensorBoard's ``add_image(..., dataformats="HWC")`` and ``wandb.Image`` both
take. Cells are painted as whole pixels, matplotlib writes the text; without pyplot, no figure can leak.
"""

import math
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import IdentityTransform
from PIL import Image

from triptych.files import written_whole
from triptych.maps.labels import label, shortened
from triptych.maps.record import MapRecord
from triptych.pictures import fonts

Picture = npt.NDArray[np.uint8]  # height, width, 3
_Floats = npt.NDArray[np.float32]
_Bools = npt.NDArray[np.bool_]
_Pixels = int | float

# From weight 0 to the top of the scale, early stops close together: a weight of 0.05 must not look like 0.
# 0 is white; the last two colours, hatched grey, are kept for "the mask forbade it".
_STOPS = {0.0: "#ffffff", 0.06: "#d9ecef", 0.2: "#93c9d6", 0.45: "#3f93b8", 0.72: "#235c96", 1.0: "#141d4d"}
_HATCH = ("#e2e2de", "#c4c4be")
_INK, _FAINT = "#1c2430", "#5b6572"
_DPI = 100
_EDGE = 18  # px around the picture
_SHEET = 480  # px, about how long the longer side of a map is in a sheet
_OVERVIEW = 150  # the same in an overview
_WIDEST = 2500  # px; more heads than fit go into a further row
_SMALLEST_TEXT = 9.0  # px; denser labels are thinned


def sheet(record: MapRecord) -> Picture:
    """All heads of one layer in one picture (uint8, height width 3): rows are queries, columns are keys."""
    weights, masked = _numbers(record)
    heads, queries, keys = weights.shape
    longer = max(queries, keys)
    # up to 64 tokens every cell is high enough for its label
    block, cell = _scale(longer, max(_SHEET, 9 * longer) if longer <= 64 else _SHEET)
    top = _ceiling(weights)
    maps = [_paint(weights[i], masked[i], block, cell, top) for i in range(heads)]
    height, width = maps[0].shape[:2]

    pitch = cell / block  # px from one label to the next
    font = min(max(pitch, _SMALLEST_TEXT), 12.0)
    rows, columns = [written(t) for t in record.query_labels], [written(t) for t in record.key_labels]
    upright = max(map(len, columns)) == 1  # single characters need no rotation
    left = round(max(map(fonts.width, rows)) * font * 0.64) + 8
    below = round(font * 1.2 if upright else max(map(fonts.width, columns)) * font * 0.64) + 8

    lines = math.ceil(heads / min(math.ceil((1.5 * heads) ** 0.5), max(1, _WIDEST // (width + 16))))
    per_row = math.ceil(heads / lines)
    step_x, step_y = max(width + 16, 64), height + below + 26
    maps_width = left + per_row * step_x
    page = Page(max(maps_width + 106, 560))
    page.line(f"{record.task} · layer {record.layer} · {record.operation} · step {record.step:,}", size=17)
    x0, first = _EDGE + left, page.bottom + 24  # where the first map begins
    page.grow(lines * step_y + 4)
    for i, picture in enumerate(maps):
        x = x0 + (i % per_row) * step_x
        y = first + (i // per_row) * step_y
        page.paste(picture, x, y)
        page.text(x, y - 6, f"head {record.heads[i]}", size=12)
        if i > 0:  # the same labels again: copying pixels is far cheaper than writing text
            page.copy((x0 - 8, first + height + 2, width + 16, below), (x - 8, y + height + 2))
            if i % per_row == 0:
                page.copy((_EDGE, first - 6, left - 2, height + 12), (_EDGE, y - 6))
            continue
        for j, shown in _thinned(rows, pitch):
            page.text(x - 5, y + (j + 0.5) * pitch + 0.35 * font, shown, size=font, align="right")
        for j, shown in _thinned(columns, pitch):
            centre = x + (j + 0.5) * pitch
            if upright:
                page.text(centre, y + height + font + 2, shown, size=font, align="center")
            else:
                page.text(centre + 0.35 * font, y + height + 5, shown, size=font, align="right", rotation=90)
    page.bar(_EDGE + maps_width + 6, first, min(max(height, 90), 240), top)
    note = f" Each cell shows the largest weight of {block} x {block}." if block > 1 else ""
    page.caption(f"{record.caption()}.{note} {_legend(masked)}")
    return page.render()


def overview(records: list[MapRecord]) -> Picture:
    """One moment of one example as a mosaic (uint8, height width 3): layers are rows, heads are columns."""
    if not records:
        raise ValueError("an overview needs at least one record")
    if len({(record.example, record.step) for record in records}) > 1:
        raise ValueError("an overview shows one example at one step")
    numbers = [_numbers(record) for record in records]
    top = max(_ceiling(weights) for weights, _ in numbers)
    heads = sorted({head for record in records for head in record.heads})
    rows: list[list[Picture]] = []
    blocks = set()
    for weights, masked in numbers:
        block, cell = _scale(max(weights.shape[1:]), _OVERVIEW)
        blocks.add(block)
        rows.append([_paint(w, m, block, cell, top) for w, m in zip(weights, masked, strict=True)])
    width = max(max(picture.shape[1] for row in rows for picture in row), 56)
    left, gap = 96, 10
    maps_width = left + len(heads) * (width + gap)
    page = Page(max(maps_width + 106, 560))
    first = records[0]
    page.line(f"{first.task} · {shortened(first.example)} · step {first.step:,}", size=17)
    for i, head in enumerate(heads):
        page.text(_EDGE + left + i * (width + gap), page.bottom + 16, f"head {head}", size=12)
    start = page.bottom + 22
    page.grow(22)
    for record, row in zip(records, rows, strict=True):
        height = max(row[0].shape[0], 34)
        page.text(_EDGE, page.bottom + 12, f"layer {record.layer}", size=12)
        for i, word in enumerate(record.operation.split()):
            page.text(_EDGE, page.bottom + 26 + 12 * i, word, size=10, colour=_FAINT)
        for head, picture in zip(record.heads, row, strict=True):
            page.paste(picture, _EDGE + left + heads.index(head) * (width + gap), page.bottom)
        page.grow(height + gap)
    page.bar(_EDGE + maps_width + 6, start, min(max(page.bottom - start - gap, 90), 240), top)
    error = max(record.capture_error for record in records)
    note = " Large maps: each cell shows the largest weight of its block." if max(blocks) > 1 else ""
    page.caption(
        f"{first.stage.capitalize()} ({first.score}); rows are queries, columns keys; data {first.data[:12]}, "
        f"backend {first.backend} ({first.kernel}), {first.dtype}, largest capture error {error:.1e}.{note} "
        + _legend(np.concatenate([masked.ravel() for _, masked in numbers]))
    )
    return page.render()


def write_png(picture: Picture, path: Path | str) -> Path:
    """Write a picture (uint8, height width 3) as PNG, whole or not at all. Returns the path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as temporary:
        Image.fromarray(picture).save(temporary, format="PNG", compress_level=4)
    return path


def _numbers(record: MapRecord) -> tuple[_Floats, _Bools]:
    return record.weights.detach().float().cpu().numpy(), record.masked.cpu().numpy()


def _legend(masked: _Bools) -> str:
    return "Hatched: hidden by the mask, which is not a weight of 0." if masked.any() else ""


def _ceiling(weights: _Floats) -> float:
    """A round number at or above every weight, so that the heads of a picture share one scale."""
    finite = weights[np.isfinite(weights)]
    largest = float(finite.max()) if finite.size else 0.0
    return next((top for top in (0.05, 0.1, 0.2, 0.5) if largest <= top), max(1.0, largest))


def _scale(cells: int, side: int) -> tuple[int, int]:
    """(block, cell): ``block`` x ``block`` numbers make a square of ``cell`` px; about ``side`` px in all."""
    block = math.ceil(cells / (1.5 * side))
    return block, min(max(1, side // math.ceil(cells / block)), 24)


def _paint(weights: _Floats, masked: _Bools, block: int, cell: int, top: float) -> Picture:
    """One map (T S) as pixels."""
    shown = np.where(masked | ~np.isfinite(weights), -1.0, weights).astype(np.float32)
    if block > 1:  # the largest of each block: a lone strong weight must not vanish
        down, across = -shown.shape[0] % block, -shown.shape[1] % block
        shown = np.pad(shown, ((0, down), (0, across)), constant_values=-1.0)
        shown = shown.reshape(shown.shape[0] // block, block, shown.shape[1] // block, block).max(axis=(1, 3))
    codes = np.clip(shown / top * 255, 0, 255).astype(np.uint16)
    codes[shown < 0] = 256
    codes = codes.repeat(cell, axis=0).repeat(cell, axis=1)
    y, x = np.indices(codes.shape, sparse=True)
    codes += (codes == 256) & ((x + y) % 6 == 0)  # the stripes of the hatching
    return _colours()[codes]


@cache
def _colours() -> Picture:
    """258 colours (258 3): weights from 0 to the top of the scale, then the two of the hatching."""
    stops = np.array([_rgb(stop) for stop in _STOPS.values()], dtype=np.float64)
    at, places = np.linspace(0, 1, 256), list(_STOPS)
    ramp = np.stack([np.interp(at, places, stops[:, i]) for i in range(3)], axis=1)
    return np.concatenate([ramp, [_rgb(colour) for colour in _HATCH]]).round().astype(np.uint8)


def _rgb(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def _thinned(labels: list[str], pitch: float) -> list[tuple[int, str]]:
    """Every label where they fit, every second, third, ... where they would touch."""
    every = max(1, math.ceil((_SMALLEST_TEXT - 0.5) / pitch))
    return [(i, labels[i]) for i in range(0, len(labels), every)]


def written(token: str, longest: int = 16) -> str:
    """``labels.label`` for pictures, in characters that can be drawn."""
    return shortened(fonts.drawable(label(token, longest)), longest)


class Page:
    """A white page that grows downwards; y runs down from the upper edge. Maps and text do not overlap."""

    edge = _EDGE  # px that stay free on every side

    def __init__(self, width: int) -> None:
        self.width = width
        self.bottom = _EDGE
        self._pictures: list[tuple[Picture, int, int]] = []
        self._copies: list[tuple[tuple[int, int, int, int], tuple[int, int]]] = []
        self._texts: list[tuple[_Pixels, _Pixels, str, _Pixels, str, int, str]] = []

    def grow(self, pixels: int) -> None:
        self.bottom += pixels

    def paste(self, picture: Picture, x: int, y: int) -> None:
        framed = np.full((picture.shape[0] + 2, picture.shape[1] + 2, 3), 150, np.uint8)
        framed[1:-1, 1:-1] = picture
        self._pictures.append((framed, x - 1, y - 1))

    def copy(self, region: tuple[int, int, int, int], to: tuple[int, int]) -> None:
        """Repeat the text inside ``region`` (x, y, width, height) with its corner at ``to`` (x, y)."""
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
        colour: str = _INK,
    ) -> None:
        """``x``, ``y``: the anchor on the baseline; ``size`` in px."""
        self._texts.append((x, y, fonts.drawable(text), size, align, rotation, colour))

    def line(self, text: str, *, size: _Pixels, colour: str = _INK) -> None:
        """Running text, wrapped to the page."""
        letters = int((self.width - 2 * _EDGE) / (size * 0.56))
        for part in fonts.wrapped(fonts.drawable(text), letters):
            self.grow(round(size * 1.35))
            self.text(_EDGE, self.bottom - round(size * 0.3), part, size=size, colour=colour)

    def caption(self, text: str) -> None:
        self.grow(6)
        self.line(text, size=12, colour=_FAINT)
        self.grow(_EDGE - 4)

    def bar(self, x: int, y: int, height: int, top: float) -> None:
        """The colour scale, with its numbers and its name."""
        picture = _colours()[np.linspace(255, 0, height).round().astype(int)][:, None].repeat(14, axis=1)
        self.paste(picture, x, y)
        self.bottom = max(self.bottom, y + height + 6)  # next to a low map the scale is what needs the room
        for share in (0.0, 0.5, 1.0):
            self.text(x + 19, y + (1 - share) * (height - 1) + 4, f"{share * top:.3g}", size=11, colour=_FAINT)
        self.text(x + 62, y + height, "weight", size=12, rotation=90, colour=_FAINT)

    def render(self) -> Picture:
        figure = Figure(figsize=(self.width / _DPI, self.bottom / _DPI), dpi=_DPI, facecolor="white")
        agg = FigureCanvasAgg(figure)
        texts: dict[_Pixels, list[str]] = {}
        for _, _, text, size, *_ in self._texts:
            texts.setdefault(size, []).append(text)
        found = {size: fonts.properties(texts[size], size * 72 / _DPI) for size in texts}
        pixels = IdentityTransform()
        for x, y, text, size, align, rotation, colour in self._texts:
            figure.text(
                x,
                self.bottom - y,
                text,
                transform=pixels,
                fontproperties=found[size],
                ha=align,
                va="baseline",
                rotation=rotation,
                rotation_mode="anchor",
                color=colour,
                parse_math=False,  # "$" is a character here
                usetex=False,
            )
        agg.draw()
        canvas = np.asarray(agg.buffer_rgba())[..., :3].copy()
        for (x0, y0, width, height), (x1, y1) in self._copies:
            canvas[y1 : y1 + height, x1 : x1 + width] = canvas[y0 : y0 + height, x0 : x0 + width]
        for picture, x0, y0 in self._pictures:
            canvas[y0 : y0 + picture.shape[0], x0 : x0 + picture.shape[1]] = picture
        return canvas
