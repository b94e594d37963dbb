"""Records whose positions are patches of a picture: weights as overlays on it, and how far each head looks.

An overlay dims patches that get little weight and lights those that get much; lines keep the patch grid visible, since
a weight belongs to a whole patch and to nothing smaller.
"""

from functools import cache

import matplotlib
import numpy as np
import numpy.typing as npt
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from triptych.explain.heads.patterns import patch_distance
from triptych.maps.labels import shortened
from triptych.maps.record import MapRecord
from triptych.pictures.layout import Cell, Picture, Scale, by_head, grid, in_lines

_SHEET = 240  # px, about how long the longer side of a picture is in a sheet
_OVERVIEW = 112
_WIDEST = 2500  # px; more heads than fit go into a further row
_GRID = np.array([255, 255, 255], np.float32)
_CHOSEN = np.array([64, 220, 255], np.uint8)  # around the patch whose row is shown


def patch_weights(record: MapRecord, query: int | None = None) -> Tensor:
    """Weights H rows columns that go to the patches: of one query, or of the record's reader.

    query: a position, prefix tokens counted (0 is CLS where there is one). None is CLS, or without it the mean over
    all patches as queries. What goes to prefix tokens is not in it, so a map may sum to less than 1.

    Raises ValueError for a record without a picture, IndexError for a query that does not exist.
    """
    rows, columns = _grid(record)
    weights = record.weights.detach().float().cpu()
    prefix = _prefix(record)
    if query is not None:
        row = weights[:, query]
    elif "CLS" in record.query_labels[:prefix]:
        row = weights[:, record.query_labels.index("CLS")]
    else:
        row = weights[:, prefix:].mean(1)
    return row[:, prefix:].unflatten(1, (rows, columns))


def attention_distance(record: MapRecord) -> Tensor:
    """Mean distance of each head (H), in patches, from a patch to what it attends to: centre to centre, Euclidean.

    See ``heads.patch_distance``; prefix tokens have no place and are left out.
    """
    return patch_distance(record.weights.detach().double().cpu()[None], _grid(record))[0]


def overlay(picture: Tensor, weights: Tensor, side: int, top: float, chosen: tuple[int, int] | None = None) -> Picture:
    """One map over its picture (uint8, height width 3), about ``side`` px long.

    picture: H W 1 or H W 3, bytes. weights: rows columns. top: the weight that leaves a patch as bright as it is. What
    is below 0 (attributions, never weights) shines cold.
    chosen: row and column of a patch to frame.
    """
    rows, columns = weights.shape
    shown = enlarged(picture, (rows, columns), side).astype(np.float32)
    height, width = shown.shape[0] // rows, shown.shape[1] // columns
    share = _share(weights, top).repeat(height, axis=0).repeat(width, axis=1)
    painted = _shine(shown, share)
    for y in range(height, rows * height, height):
        painted[y] = 0.82 * painted[y] + 0.18 * _GRID
    for x in range(width, columns * width, width):
        painted[:, x] = 0.82 * painted[:, x] + 0.18 * _GRID
    found = painted.clip(0, 255).astype(np.uint8)
    if chosen is not None:
        y, x = chosen[0] * height, chosen[1] * width
        for line in range(2):
            found[y + line, x : x + width] = found[y + height - 1 - line, x : x + width] = _CHOSEN
            found[y : y + height, x + line] = found[y : y + height, x + width - 1 - line] = _CHOSEN
    return found


def enlarged(picture: Tensor, grid: tuple[int, int], side: int) -> Picture:
    """The picture in colour (uint8, height width 3), scaled so that every patch is a whole number of pixels."""
    high, wide = picture.shape[:2]
    rows, columns = grid
    scale = max(side / max(high, wide), 8 * max(rows / high, columns / wide))
    height, width = (max(1, round(length * scale / cells)) * cells for length, cells in ((high, rows), (wide, columns)))
    y = np.arange(height) * high // height
    x = np.arange(width) * wide // width
    pixels = picture.cpu().numpy()[y[:, None], x[None]]
    return np.ascontiguousarray(np.broadcast_to(pixels, (height, width, 3)))


def sheet(record: MapRecord, query: int | None = None) -> Picture:
    """The picture, and all heads of one layer over it (uint8, height width 3).

    query: whose row; see ``patch_weights``. A patch that is chosen so is framed.
    """
    maps, chosen = patch_weights(record, query), _chosen(record, query)
    top = _top(maps)
    pictures = [enlarged(_picture(record), _grid(record), _SHEET)]
    pictures += [overlay(_picture(record), weights, _SHEET, top, chosen) for weights in maps]
    titles = ["picture", *(f"head {head}" for head in record.heads)]
    cells = [Cell(picture, title) for picture, title in zip(pictures, titles, strict=True)]
    page, _ = grid(
        in_lines(cells, widest=_WIDEST, shape=1.5),
        heading=f"{record.task} · layer {record.layer} · {record.operation} · step {record.step:,}",
        remark=f"{shortened(record.example)}: {shortened(record.outcome, 160)}" if record.outcome else "",
        caption=f"{record.caption()}. {_reading(record, query, maps)}",
        scale=_scale(top),
    )
    return page.render()


def overview(records: list[MapRecord]) -> Picture:
    """One moment of one example as a mosaic (uint8, height width 3): layers are rows, heads are columns."""
    if not records:
        raise ValueError("an overview needs at least one record")
    first = records[0]
    maps = [patch_weights(record) for record in records]
    top = max(_top(weights) for weights in maps)
    painted = [
        [overlay(_picture(record), weights, _OVERVIEW, top) for weights in each]
        for record, each in zip(records, maps, strict=True)
    ]
    plain = Cell(enlarged(_picture(first), _grid(first), _OVERVIEW), "picture")
    lines = by_head([record.heads for record in records], painted)
    error = max(record.capture_error for record in records)
    page, _ = grid(
        [[plain if number == 0 else None, *line] for number, line in enumerate(lines)],
        heading=f"{first.task} · {shortened(first.example)} · step {first.step:,}",
        remark=shortened(first.outcome, 160) if first.outcome else "",
        caption=f"{_reading(first, None, torch.cat(maps))} {first.stage.capitalize()} ({first.score}; mask: "
        f"{first.mask}); data {first.data[:12]}, backend {first.backend} ({first.kernel}), {first.dtype}, largest "
        f"capture error {error:.1e}.",
        labels=[[f"layer {record.layer}"] for record in records],
        gap=10,
        scale=_scale(top),
    )
    return page.render()


def distances(records: list[MapRecord]) -> Picture:
    """Mean attention distance of every head by depth (uint8, height width 3), over the examples of one moment."""
    found: dict[tuple[int, int], list[float]] = {}
    for record in records:
        for head, distance in zip(record.heads, attention_distance(record).tolist(), strict=True):
            found.setdefault((record.layer, head), []).append(distance)
    figure = Figure(figsize=(6.4, 4.2), dpi=100, layout="constrained")
    agg = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    layers = np.array([layer for layer, _ in found])
    means = np.array([np.mean(values) for values in found.values()])
    axes.scatter(layers, means, s=28, color="#1f6f9c", alpha=0.8, label="a head")
    depth = sorted(set(layers.tolist()))
    axes.plot(depth, [means[layers == layer].mean() for layer in depth], color="#c2571a", label="mean of the layer")
    examples = len({record.example for record in records})
    rows, columns = _grid(records[0])
    place = torch.cartesian_prod(torch.arange(rows).float(), torch.arange(columns).float())
    axes.axhline(float(torch.cdist(place, place).mean()), color="#8a929b", linestyle=":", label="even weights")
    axes.set(xlabel="layer", ylabel="mean attention distance (patches)")
    axes.set_xticks(depth)
    axes.margins(y=0.08)
    axes.set_ylim(bottom=0)
    axes.set_title(
        f"{records[0].task} · step {records[0].step:,} · {examples} image{'s' if examples > 1 else ''}, "
        f"{rows} x {columns} patches",
        fontsize=10,
    )
    axes.legend(frameon=False, fontsize=9)
    agg.draw()
    return np.asarray(agg.buffer_rgba())[..., :3].copy()


def _grid(record: MapRecord) -> tuple[int, int]:
    if record.grid is None:
        raise ValueError("this record's positions are no patches: it has no grid")
    return record.grid


def _picture(record: MapRecord) -> Tensor:
    assert record.picture is not None  # a record with a grid has one
    return record.picture


def _prefix(record: MapRecord) -> int:
    rows, columns = _grid(record)
    return record.weights.shape[2] - rows * columns


def _chosen(record: MapRecord, query: int | None) -> tuple[int, int] | None:
    place = -1 if query is None else range(record.weights.shape[1])[query] - _prefix(record)
    return divmod(place, _grid(record)[1]) if place >= 0 else None


def _top(maps: Tensor) -> float:
    """The largest weight, so that the heads of a picture share one scale."""
    finite = maps[torch.isfinite(maps)]
    return max(float(finite.max()) if finite.numel() else 0.0, 1e-6)


def _reading(record: MapRecord, query: int | None, maps: Tensor) -> str:
    """What an overlay of this record shows, in a sentence."""
    if query is not None:
        whose = f"the row of {record.query_labels[query]}"
    elif "CLS" in record.query_labels[: _prefix(record)]:
        whose = "the row of CLS"
    else:
        whose = "the mean over all patches as queries"
    rows, columns = _grid(record)
    said = f"Overlays: {whose}, weights on the {rows} x {columns} patches"
    if _prefix(record):
        others = 1 - float(maps.sum((1, 2)).mean())
        tokens = ", ".join(record.key_labels[: _prefix(record)])
        said += f"; {100 * others:.0f} % of the weight, on the mean, goes to {tokens}"
    return said + "."


def _share(weights: Tensor, top: float) -> npt.NDArray[np.float32]:
    """Weights as shares of the top of the scale, -1 to 1; what is no number is 0."""
    finite = np.nan_to_num(weights.float().numpy(), nan=0.0, posinf=top, neginf=0.0)
    return np.clip(finite / top, -1, 1).astype(np.float32)


def _shine(pixels: npt.NDArray[np.float32], share: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Pixels H W 3 in the light of ``share`` (H W): dim where it is 0, bright and warm at 1, bright and cold at -1."""
    size = np.abs(share)
    light = _ramp()[(size * 255).astype(int)]
    light = np.where(share[..., None] < 0, light[..., ::-1], light)  # red and blue exchanged
    return pixels * (0.2 + 0.3 * size[..., None]) + 0.58 * light


@cache
def _ramp() -> npt.NDArray[np.float32]:
    """256 colours from black over purple and orange to pale yellow; evenly brighter, so it reads in grey as well."""
    return (matplotlib.colormaps["inferno"](np.arange(256))[:, :3] * 255).astype(np.float32)


def _scale(top: float) -> Scale:
    """How a middle grey looks from weight 0 to the top."""
    share = np.linspace(0, 1, 256, dtype=np.float32)[:, None]
    return Scale(_shine(np.full((256, 1, 3), 128, np.float32), share).clip(0, 255).astype(np.uint8)[:, 0], top)
