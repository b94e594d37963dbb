"""The report's patches: the picture and its grid reach the page, and the page shows the row that is asked for."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from test_report import dom, inside, island, needs_chromium, run

from triptych.dashboards import report
from triptych.maps.record import MapRecord, save

__all__ = ["run"]  # a fixture of the other file


@pytest.fixture
def seen(run: Path) -> Path:
    """A run whose one map is of a 2 x 3 grid behind CLS and a register: position i gives all its weight to i + 1."""
    for file in (run / "maps").iterdir():
        file.unlink()
    labels = ("CLS", "R1", "0,0", "0,1", "0,2", "1,0", "1,1", "1,2")
    record = MapRecord(
        weights=torch.eye(8).roll(1, dims=1)[None],
        task="vit",
        site="blocks.0.attention.attend",
        layer=0,
        heads=(0,),
        kind="self",
        causal=False,
        mask="none",
        score="scaled dot product",
        query_labels=labels,
        key_labels=labels,
        example="validation image 3",
        step=400,
        checkpoint=None,
        data="0123456789abcdef",
        backend="flash",
        kernel="flash_attention",
        dtype="float32",
        capture_error=1e-7,
        picture=torch.arange(8 * 12 * 3, dtype=torch.uint8).view(8, 12, 3),
        grid=(2, 3),
        outcome="label <b>7</b>, predicted 1 (0.900)",
    )
    save([record], run / "maps" / "step-00000400.safetensors")
    return run


def test_grid_picture_and_outcome_are_in_the_page(seen: Path) -> None:
    data = island(report.write(seen).read_text(encoding="utf-8"), "map-data")
    (record,) = data["records"]
    assert (record["grid"], record["outcome"]) == ([2, 3], "label <b>7</b>, predicted 1 (0.900)")
    kind, _, content = data["pictures"][record["picture"]].partition(",")
    assert kind == "data:image/png;base64"
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
    assert np.array_equal(pixels, np.arange(8 * 12 * 3, dtype=np.uint8).reshape(8, 12, 3))


@needs_chromium
@pytest.mark.parametrize(("row", "place"), [("", "“CLS” (a token without"), ("row=4", "“0,2” (row,column")])
def test_the_row_that_the_address_names_is_shown_over_the_picture(
    seen: Path, tmp_path: Path, row: str, place: str
) -> None:
    text = dom(report.write(seen), f"head=0&{row}", tmp_path / "profile")
    title = " ".join(inside(text, "patches-title").split())
    assert title.startswith("label <b>7</b>, predicted 1 (0.900). What")
    assert place in title
    assert f"the brightest patch has {1 if row else 0}." in title  # CLS looks at R1, which is no patch
    assert text.count("<canvas") == 2  # the picture, and one head
    assert 'width="339" height="226"' in text  # 3 x 2 patches of one size
