"""MapRecord -> static picture: a sheet (all heads of one layer) or an overview (all layers of one moment)."""

import math
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from triptych.files import written_whole
from triptych.maps.labels import label, shortened
from triptych.maps.record import MapRecord
from triptych.pictures import fonts
from triptych.pictures.layout import Cell, Picture, Room, Scale, by_head, grid, in_lines

_Floats = npt.NDArray[np.float32]
_Bools = npt.NDArray[np.bool_]

# From weight 0 to the top of the scale, early stops close together: a weight of 0.05 must not look like 0.
# 0 is white; the last two colours, hatched grey, are kept for "the mask forbade it".
_STOPS = {0.0: "#ffffff", 0.06: "#d9ecef", 0.2: "#93c9d6", 0.45: "#3f93b8", 0.72: "#235c96", 1.0: "#141d4d"}
_HATCH = ("#e2e2de", "#c4c4be")
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
    top = ceiling(weights)
    maps = [paint(weights[i], masked[i], block, cell, top) for i in range(heads)]
    height, width = maps[0].shape[:2]

    pitch = cell / block  # px from one label to the next
    font = min(max(pitch, _SMALLEST_TEXT), 12.0)
    rows, columns = [written(t) for t in record.query_labels], [written(t) for t in record.key_labels]
    upright = max(map(len, columns)) == 1  # single characters need no rotation
    left = round(max(map(fonts.width, rows)) * font * 0.64) + 8
    below = round(font * 1.2 if upright else max(map(fonts.width, columns)) * font * 0.64) + 8

    note = f" Each cell shows the largest weight of {block} x {block}." if block > 1 else ""
    page, places = grid(
        in_lines(
            [Cell(picture, f"head {head}") for picture, head in zip(maps, record.heads, strict=True)],
            widest=_WIDEST - left,
            shape=1.5,
        ),
        heading=f"{record.task} · layer {record.layer} · {record.operation} · step {record.step:,}",
        caption=f"{record.caption()}.{note} {_legend(masked)}",
        room=Room(left=left, below=below),
        scale=scale(top),
    )
    x0, y0 = places[0][0]
    for j, text in thinned(rows, pitch):
        page.text(x0 - 5, y0 + (j + 0.5) * pitch + 0.35 * font, text, size=font, align="right")
    for j, text in thinned(columns, pitch):
        centre = x0 + (j + 0.5) * pitch
        if upright:
            page.text(centre, y0 + height + font + 2, text, size=font, align="center")
        else:
            page.text(centre + 0.35 * font, y0 + height + 5, text, size=font, align="right", rotation=90)
    for line, row in enumerate(places):  # the other maps have the same labels
        for x, y in row[line == 0 :]:
            page.copy((x0 - 8, y0 + height + 2, width + 16, below), (x - 8, y + height + 2))
        if line > 0:
            page.copy((page.edge, y0 - 6, left - 2, height + 12), (page.edge, row[0][1] - 6))
    return page.render()


def overview(records: list[MapRecord]) -> Picture:
    """One moment of one example as a mosaic (uint8, height width 3): layers are rows, heads are columns."""
    if not records:
        raise ValueError("an overview needs at least one record")
    if len({(record.example, record.step) for record in records}) > 1:
        raise ValueError("an overview shows one example at one step")
    numbers = [_numbers(record) for record in records]
    top = max(ceiling(weights) for weights, _ in numbers)
    painted: list[list[Picture]] = []
    blocks = set()
    for weights, masked in numbers:
        block, cell = _scale(max(weights.shape[1:]), _OVERVIEW)
        blocks.add(block)
        painted.append([paint(w, m, block, cell, top) for w, m in zip(weights, masked, strict=True)])
    first = records[0]
    error = max(record.capture_error for record in records)
    note = " Large maps: each cell shows the largest weight of its block." if max(blocks) > 1 else ""
    page, _ = grid(
        by_head([record.heads for record in records], painted),
        heading=f"{first.task} · {shortened(first.example)} · step {first.step:,}",
        caption=f"{first.stage.capitalize()} ({first.score}); rows are queries, columns keys; data {first.data[:12]}, "
        f"backend {first.backend} ({first.kernel}), {first.dtype}, largest capture error {error:.1e}.{note} "
        + _legend(np.concatenate([masked.ravel() for _, masked in numbers])),
        labels=[[f"layer {record.layer}", *record.operation.split()] for record in records],
        gap=10,
        scale=scale(top),
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


def ceiling(weights: _Floats) -> float:
    """A round number at or above every weight, so that the heads of a picture share one scale."""
    finite = weights[np.isfinite(weights)]
    largest = float(finite.max()) if finite.size else 0.0
    return next((top for top in (0.05, 0.1, 0.2, 0.5) if largest <= top), max(1.0, largest))


def _scale(cells: int, side: int) -> tuple[int, int]:
    """(block, cell): ``block`` x ``block`` numbers make a square of ``cell`` px; about ``side`` px in all."""
    block = math.ceil(cells / (1.5 * side))
    return block, min(max(1, side // math.ceil(cells / block)), 24)


def paint(weights: _Floats, masked: _Bools, block: int, cell: int, top: float) -> Picture:
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


def scale(top: float) -> Scale:
    """The colours of weights from 0 to ``top``."""
    return Scale(_colours()[:256], top)


@cache
def _colours() -> Picture:
    """258 colours (258 3): weights from 0 to the top of the scale, then the two of the hatching."""
    stops = np.array([_rgb(stop) for stop in _STOPS.values()], dtype=np.float64)
    at, places = np.linspace(0, 1, 256), list(_STOPS)
    ramp = np.stack([np.interp(at, places, stops[:, i]) for i in range(3)], axis=1)
    return np.concatenate([ramp, [_rgb(colour) for colour in _HATCH]]).round().astype(np.uint8)


def _rgb(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def thinned(labels: list[str], pitch: float) -> list[tuple[int, str]]:
    """Every label where they fit, every second, third, ... where they would touch."""
    every = max(1, math.ceil((_SMALLEST_TEXT - 0.5) / pitch))
    return [(i, labels[i]) for i in range(0, len(labels), every)]


def written(token: str, longest: int = 16) -> str:
    """``labels.label`` for pictures, in characters that can be drawn."""
    return shortened(fonts.drawable(label(token, longest)), longest)
