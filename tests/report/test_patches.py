"""The report's patches: the picture and its grid reach the page, and the page shows the row that is asked for."""

import base64
import io
from pathlib import Path
from urllib.parse import parse_qs

import numpy as np
import pytest
import torch
from browser import Browser, needs_chromium
from PIL import Image
from test_run_page import dom, inside, island, run

from triptych.maps.record import MapRecord, save
from triptych.report import run_page

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
    data = island(run_page.write(seen).read_text(encoding="utf-8"), "map-data")
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
    text = dom(run_page.write(seen), f"head=0&{row}", tmp_path / "profile")
    title = " ".join(inside(text, "patches-title").split())
    assert title.startswith("label <b>7</b>, predicted 1 (0.900). What")
    assert place in title
    assert f"the brightest patch has {1 if row else 0}." in title  # CLS looks at R1, which is no patch
    assert text.count("<canvas") == 2  # the picture, and one head
    assert 'width="339" height="226"' in text  # 3 x 2 patches of one size


def lights(browser: Browser, canvas: int) -> np.ndarray:
    """How bright the middle of every patch of a canvas is, 2 x 3."""
    found = browser.value(
        f"(() => {{ const canvas = document.querySelectorAll('#overlays canvas')[{canvas}];"
        "const [w, h] = [canvas.width / 3, canvas.height / 2]; const pen = canvas.getContext('2d');"
        "return [0, 1].map((y) => [0, 1, 2].map((x) => { const [r, g, b] = pen.getImageData((x + 0.5) * w,"
        "(y + 0.5) * h, 1, 1).data; return r + g + b; })); })()"
    )
    return np.array(found)


@needs_chromium
@pytest.mark.parametrize("phone", [False, True], ids=["mouse", "finger"])
def test_a_click_on_a_patch_shows_what_it_attends_to(seen: Path, tmp_path: Path, phone: bool) -> None:
    """On the picture and on a head, in a wide window and on a phone; then CLS by its button, which is no patch."""
    size = (390, 844) if phone else (1200, 900)
    with Browser(run_page.write(seen), tmp_path / "profile", address="head=0", size=size, touch=phone) as browser:
        browser.until("document.querySelectorAll('#overlays canvas').length === 2")
        assert "“CLS”" in browser.text("#patches-title")
        for which, row, column, label, lit in [
            ("first", 0, 1, "0,1", (0, 2)),
            ("last", 0, 2, "0,2", (1, 0)),
            ("last", 1, 0, "1,0", (1, 1)),
            ("first", 1, 2, "1,2", None),  # looks at CLS: no patch is lit
        ]:
            place = (column + 0.8) / 3, (row + 0.2) / 2  # not in the middle of the patch
            browser.click(f"#overlays figure:{which}-child canvas", *place, touch=phone)
            browser.until(f"document.querySelector('#patches-title').innerText.includes('“{label}”')")
            browser.until("document.querySelectorAll('#overlays canvas').length === 2")
            light = lights(browser, 1)
            if lit is None:
                assert light.max() < 350
            else:
                assert np.unravel_index(light.argmax(), (2, 3)) == lit
                assert light[lit] > 2 * np.sort(light.ravel())[-2]
            assert f"query {2 + 3 * row + column} “{label}”" in browser.text("#row-title")
            assert parse_qs(browser.value("location.hash").lstrip("#"))["row"] == [str(2 + 3 * row + column)]
        browser.click("#prefix button", touch=phone)
        browser.until("document.querySelector('#patches-title').innerText.includes('“CLS”')")
        assert browser.value("document.documentElement.scrollWidth") <= size[0]


@needs_chromium
def test_a_click_on_a_cell_of_the_map_keeps_its_row(seen: Path, tmp_path: Path) -> None:
    with Browser(run_page.write(seen), tmp_path / "profile", address="head=0") as browser:
        browser.until("document.querySelectorAll('#map .nsewdrag').length === 1")
        browser.click("#map .nsewdrag", 0.5 / 8, 4.5 / 8)  # the fifth query, the first key
        browser.until("document.querySelector('#patches-title').innerText.includes('“0,2”')")
        assert "query 4 “0,2”" in browser.text("#row-title")
