"""One example's explanations as a picture: every method's scores over the image, or under the text."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from triptych.maps import images
from triptych.maps.labels import label
from triptych.maps.render import Page, Picture

_SIDE = 132  # px of an image
_GAP = 14
_ACROSS = 5  # images in a row
_CELL, _LINE = 26, 30  # px of a unit's cell, of a line of them
_WIDE = 900


def methods_picture(results: Sequence[dict[str, Any]], titles: dict[str, str], picture: Tensor | None) -> Picture:
    """One output of one example, as explain.json's ``results`` have it. picture: H W 1 or 3, bytes, of an image.

    Each map has a scale of its own, up to its largest |score|: methods count in different units. Warm is above 0.
    """
    first = results[0]
    page = Page(_ACROSS * (_SIDE + _GAP) + 2 * Page.edge if picture is not None else _WIDE)
    page.line(f"{first['example']} · output {first['output']}", size=17)
    page.grow(8)
    if picture is not None:
        _images(page, results, titles, picture)
    else:
        _texts(page, results, titles)
    page.caption(
        "Each map up to its own largest score; below 0 is cold. A map is data from inside the model: whether what it "
        "points at matters is what deletion and insertion test, beside it in explain.json and on the page."
    )
    return page.render()


def _images(page: Page, results: Sequence[dict[str, Any]], titles: dict[str, str], picture: Tensor) -> None:
    rows, columns = results[0]["grid"]
    for start in range(0, len(results), _ACROSS):
        page.grow(16)
        tallest = 0
        for at, each in enumerate(results[start : start + _ACROSS]):
            scores = torch.tensor(each["scores"]).view(rows, columns)
            painted = images.overlay(picture, scores, _SIDE, float(scores.abs().max()) or 1.0)
            x = Page.edge + at * (_SIDE + _GAP)
            page.text(x, page.bottom - 4, titles[each["method"]], size=10)
            page.paste(painted, x, page.bottom)
            tallest = max(tallest, painted.shape[0])
        page.grow(tallest + _GAP)


def _texts(page: Page, results: Sequence[dict[str, Any]], titles: dict[str, str]) -> None:
    for each in results:
        page.grow(16)
        page.text(Page.edge, page.bottom - 4, titles[each["method"]], size=11)
        scores = torch.tensor(each["scores"])
        shares = scores / (float(scores.abs().max()) or 1.0)
        x = Page.edge
        for unit, share in zip(each["units"], shares.tolist(), strict=True):
            name = label(unit)
            width = max(_CELL // 2, 9 * len(name) + 6)
            if x + width > page.width - Page.edge:
                x = Page.edge
                page.grow(_LINE)
            colour = torch.tensor(_WARM if share > 0 else _COLD)
            cell = (255 - abs(share) * (255 - colour)).byte().expand(10, width, 3)
            page.text(x + width / 2, page.bottom + 12, name, size=12, align="center")
            page.paste(cell.numpy(), x, page.bottom + 15)
            x += width + 2
        page.grow(_LINE + 4)


_WARM, _COLD = (214.0, 84.0, 20.0), (44.0, 96.0, 180.0)
