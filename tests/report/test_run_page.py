"""The run's page: built from the folder alone, its data equal to the records, no text taken for markup."""

import base64
import html
import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser import CHROMIUM, needs_chromium

from triptych.errors import UserError
from triptych.maps.labels import label
from triptych.maps.record import MapRecord, save
from triptych.report import map_data, run_page
from triptych.report.page import plotly

SUMMARY = {
    "task": "charlm",
    "status": "finished",
    "data": {"source": "python_reference", "fingerprint": "0123456789abcdef"},
    "seed": 3,
    "versions": {"torch": "2.14.0"},
    "parameters": 804096,
    "steps": 400,
    "seen": {"value": 307200, "unit": "characters"},
    "fit_seconds": 173.2,
    "seen_per_second": 18250.4,
    "metrics": {"val/loss": 1.25, "test/loss": 1.27},
    "maps": {"capture_error": 3e-7},
    "paths": {},
}
METRICS = """epoch,step,seconds,train/loss,val/loss,test/loss
0,0,0.0,4.5,,
0,10,1.0,3.5,,
0,19,,,3.0,
0,20,2.0,2.5,,2.9
"""


def maps(
    step: int,
    *,
    heads: int = 2,
    length: int = 6,
    layers: int = 2,
    tokens: str = "the th",
    scores: bool = True,
    **changes: Any,
) -> list[MapRecord]:
    generator = torch.Generator().manual_seed(step)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    found = []
    for layer in range(layers):
        raw = torch.randn(heads, length, length, generator=generator).mul(3).masked_fill(future, -math.inf)
        given: dict[str, Any] = {
            "task": "charlm",
            "site": f"blocks.{layer}.attention.attend",
            "layer": layer,
            "heads": tuple(range(heads)),
            "kind": "self",
            "causal": True,
            "mask": "causal",
            "score": "scaled dot product",
            "query_labels": tuple(tokens),
            "key_labels": tuple(tokens),
            "example": "validation 0",
            "step": step,
            "checkpoint": None,
            "data": "0123456789abcdef",
            "backend": "flash",
            "kernel": "flash_attention",
            "dtype": "float32",
            "capture_error": 3e-7,
        }
        found.append(MapRecord(weights=raw.softmax(-1), scores=raw if scores else None, **given | changes))
    return found


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "20260301-101500-ab12"
    for step in (0, 400):
        save(maps(step), folder / "maps" / f"step-{step:08d}.safetensors")
    (folder / "summary.json").write_text(json.dumps(SUMMARY))
    (folder / "metrics.csv").write_text(METRICS)
    (folder / "config.yaml").write_text("seed: 3\n")
    (folder / "samples.jsonl").write_text(
        "".join(json.dumps({"step": s, "prompt": "The", "text": f"The text of {s}"}) + "\n" for s in (0, 400))
    )
    return folder


def island(page: str, name: str) -> Any:
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.S)
    return json.loads(found.group(1)) if found else None


def numbers(data: dict[str, Any], entry: dict[str, Any], view: str) -> np.ndarray:
    """What the page holds for one record, unpacked by the rule that map_data.py states; NaN where hidden."""
    size = math.prod(entry["shape"])
    bits = np.frombuffer(base64.b64decode(data["masks"][entry["visible"]]), np.uint8)
    visible = np.unpackbits(bits)[:size].astype(bool)
    values = np.full(size, np.nan)
    values[visible] = np.frombuffer(base64.b64decode(entry[view]), "<f2")
    return values.reshape(entry["shape"])


def test_the_page_holds_the_numbers_of_the_records(run: Path) -> None:
    page = run_page.write(run).read_text(encoding="utf-8")
    data = island(page, "map-data")
    records = [record for step in (0, 400) for record in maps(step)]
    assert len(data["records"]) == len(records) == 4
    for entry, record in zip(data["records"], records, strict=True):
        future = np.triu(np.ones((6, 6), dtype=bool), 1)
        for view in ("weights", "scores"):
            shown = numbers(data, entry, view)
            assert np.array_equal(np.isnan(shown), np.broadcast_to(future, shown.shape))
            true = getattr(record, view).numpy()[:, ~future]
            assert np.allclose(shown[:, ~future], true, rtol=5e-4, atol=1e-7)
        for name in ("step", "layer", "site", "operation", "mask", "example", "data", "backend", "kernel"):
            assert entry[name] == getattr(record, name)
        assert data["labels"][entry["queries"]] == [label(token) for token in record.query_labels]
    assert len(data["labels"]) == len(data["masks"]) == 1  # what repeats is stored once


def test_the_page_says_what_was_trained_on_what(run: Path) -> None:
    page = run_page.write(run).read_text(encoding="utf-8")
    head = page[: page.index('<script type="application/json"')]
    for part in ("Character language model", "finished", "python_reference", "0123456789abcdef", "804,096"):
        assert part in head
    for part in ("307,200", "2 min 53 s", "val/loss", "1.250", "torch 2.14.0", "seed: 3"):
        assert part in head
    assert head.index("text of 400") < head.index("text of 0")  # latest first
    assert "<b>The</b> text of 400" in head


def test_curves_are_sparse_columns_with_a_time_for_every_step(run: Path) -> None:
    curves = {curve["name"]: curve for curve in island(run_page.write(run).read_text("utf-8"), "curve-data")}
    assert set(curves) == {"train/loss", "val/loss"}
    assert curves["train/loss"]["steps"] == [0, 10, 20]
    assert curves["train/loss"]["values"] == [4.5, 3.5, 2.5]
    assert curves["val/loss"]["values"] == [3.0]
    assert curves["val/loss"]["seconds"] == [1.9]  # read off the training rows around it


def test_the_page_is_one_file_of_bounded_size_that_asks_for_nothing(run: Path) -> None:
    path = run_page.write(run)
    page = path.read_text(encoding="utf-8")
    assert path.stat().st_size < run_page.LIMIT
    assert [file.name for file in run.iterdir() if "partial" in file.name] == []
    assert page.count("* plotly.js v") == 1
    without_plotly = page.replace(plotly(), "")
    assert not re.search(r"(src|href)\s*=|https?://|url\((?!#)|@import", without_plotly)
    assert "default-src 'none'" in page


def test_a_page_that_would_be_too_large_keeps_the_first_and_the_last_moment(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(100, 400, 50):
        save(maps(step), run / "maps" / f"step-{step:08d}.safetensors")
    size = run_page.write(run).stat().st_size
    monkeypatch.setattr(run_page, "LIMIT", size - 2500)
    path = run_page.write(run)
    page = path.read_text(encoding="utf-8")
    steps = sorted({entry["step"] for entry in island(page, "map-data")["records"]})
    assert path.stat().st_size <= run_page.LIMIT
    assert (steps[0], steps[-1]) == (0, 400)
    assert 2 <= len(steps) < 8
    assert f"it holds {len(steps)} of 8 moments" in page


@pytest.mark.parametrize(
    ("budget", "left", "scores", "note"),
    [
        (99_999, 4, True, None),
        (9_600, 4, False, "Scores before softmax were left out"),
        (3_200, 1, False, "1 of the last moment's 2 maps"),
        (800, 0, False, "0 of the last moment's 2 maps"),
    ],
)
def test_what_goes_first_when_room_is_short(run: Path, budget: int, left: int, scores: bool, note: str | None) -> None:
    for step in (0, 400):
        save(maps(step, length=24, tokens="x" * 24), run / "maps" / f"step-{step:08d}.safetensors")
    notes: list[str] = []
    data = map_data.pack(run / "maps", budget, notes)
    entries = data["records"] if data else []
    assert len(json.dumps(data)) <= budget
    assert len(entries) == left
    assert all((entry["scores"] is not None) == scores for entry in entries)
    assert (note is None) == (not notes)
    assert note is None or note in " ".join(notes)


HOSTILE = "<img src=x onerror=\"document.title='taken'\">"


@pytest.fixture
def hostile(run: Path) -> Path:
    tokens = ["<b>", "</script>", "&amp;", "%{x}", "$", "\u2028"]
    shutil.rmtree(run / "maps")
    for step in (0, 400):
        records = maps(step, tokens=tokens, example=HOSTILE, kernel=HOSTILE)  # type: ignore[arg-type]
        save(records, run / "maps" / f"step-{step:08d}.safetensors")
    summary = SUMMARY | {"data": {"source": HOSTILE}, "metrics": {HOSTILE: HOSTILE}, "status": HOSTILE}
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "metrics.csv").write_text(f'step,"{HOSTILE.replace(chr(34), chr(34) * 2)}"\n1,2.0\n')
    (run / "samples.jsonl").write_text(json.dumps({"step": 1, "text": HOSTILE + "</pre>\x00\ud800", "prompt": ""}))
    (run / "config.yaml").write_text(HOSTILE)
    return run


def test_markup_in_data_stays_text(hostile: Path) -> None:
    page = run_page.write(hostile).read_text(encoding="utf-8")
    assert "<img" not in page.replace(plotly(), "")
    assert page.count("</script>") == 2 + 1 + len(run_page.SCRIPTS)  # the page's own: two with data, the rest code
    assert html.escape(HOSTILE) in page.replace("&#34;", "&quot;").replace("&#39;", "&#x27;")
    data = island(page, "map-data")
    assert data["records"][0]["example"] == HOSTILE
    assert data["labels"][0] == ["<b>", "</script>", "&amp;", "%{x}", "$", "�"]


@pytest.mark.parametrize("broken", ["nothing", "no maps", "metrics", "summary", "maps", "all"])
def test_a_partial_run_folder_still_gets_its_page(run: Path, broken: str) -> None:
    if broken == "nothing":
        shutil.rmtree(run)
        run.mkdir()
    if broken == "no maps":
        shutil.rmtree(run / "maps")
    if broken in ("metrics", "all"):
        (run / "metrics.csv").write_bytes(b'epoch,step,train/loss\n0,1,2.0\n\xff\x00,"\n,,,,,\n0,nan,1\n0,5,nan\n0,6')
    if broken in ("summary", "all"):
        (run / "summary.json").write_text('{"task": "char')
    if broken in ("maps", "all"):
        (run / "maps" / "step-00000400.safetensors").write_bytes(b"torn")
    if broken == "all":
        (run / "samples.jsonl").write_text('{"step": 1, "text": "fine"}\n[]\n{"step": 2, "te')
    page = run_page.write(run).read_text(encoding="utf-8")
    assert 'id="guide"' in page
    if broken in ("maps", "all"):
        assert {entry["step"] for entry in island(page, "map-data")["records"]} == {0}
        assert "maps/step-00000400.safetensors could not be read" in page
    if broken in ("nothing", "no maps"):
        assert island(page, "map-data") is None
    if broken == "metrics":
        (curve,) = island(page, "curve-data")
        assert (curve["steps"][0], curve["values"][0]) == (1, 2.0)
    if broken == "all":
        assert "fine" in page
        assert "samples.jsonl: 2 lines could not be read" in page


def test_numbers_that_are_none_do_not_cost_the_page(run: Path) -> None:
    records = maps(500)
    records[0].weights[0, 2] = math.nan
    object.__setattr__(records[1], "capture_error", math.nan)
    save(records, run / "maps" / "step-00000500.safetensors")
    (run / "summary.json").write_text(json.dumps(SUMMARY | {"fit_seconds": None, "metrics": {"val/loss": math.nan}}))
    data = island(run_page.write(run).read_text(encoding="utf-8"), "map-data")
    assert data["records"][-1]["capture_error"] is None


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run folder"):
        run_page.write(tmp_path / "nowhere")


def test_an_unwritable_page_keeps_the_old_one(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run_page.write(run).read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(UserError, match="No space left"):
        run_page.write(run)
    assert (run / "report.html").read_bytes() == before
    assert [file.name for file in run.iterdir() if "partial" in file.name] == []


def dom(page: Path, address: str, profile: Path) -> str:
    """The page's elements after its scripts ran in headless Chromium."""
    quiet = ("dev-shm-usage", "gpu", "quic", "background-networking", "component-update", "sync")
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--no-first-run",
        *(f"--disable-{x}" for x in quiet),
    ]
    command += [
        f"--user-data-dir={profile}",
        "--virtual-time-budget=8000",
        "--window-size=1200,900",
        "--dump-dom",
    ]
    done = subprocess.run([*command, f"{page.as_uri()}#{address}"], capture_output=True, timeout=120, check=True)
    text = done.stdout.decode("utf-8")
    # without the scripts' own text, which holds every string there is
    return re.sub(r"<script.*?</script>", "", text, flags=re.S)


def inside(text: str, name: str) -> str:
    found = re.search(rf'<(\w+)[^>]* id="{name}"[^>]*>(.*?)</\1>', text, re.S)
    return html.unescape(re.sub("<[^>]+>", " ", found.group(2))) if found else ""


def query_ticks(text: str) -> list[str]:
    drawn = text[text.index('id="map"') :]
    return [html.unescape(tick) for tick in re.findall(r'class="ytick"[^>]*><text[^>]*>(.*?)</text>', drawn)]


@needs_chromium
def test_the_viewer_opens_on_the_map_that_the_address_names(run: Path, tmp_path: Path) -> None:
    address = "site=blocks.1.attention.attend&head=1&step=0&view=scores"
    text = dom(run_page.write(run), address, tmp_path / "profile")
    assert inside(text, "map-title") == "Causal self-attention, layer 1, head 1: scores before softmax, step 0"
    caption = inside(text, "caption")
    for part in (
        "causal self-attention",
        "blocks.1.attention.attend",
        "validation 0",
        "flash_attention",
        "3.0e-7",
    ):
        assert part in caption
    assert text.count('class="heatmaplayer') >= 1
    assert query_ticks(text) == list("the␣th")  # none fell together
    weights = maps(0)[1].weights[1, 5]
    best = int(weights.argmax())
    assert f"{weights[best]:.3g}"[:4] in inside(text, "row-title")
    assert f"({best})" in inside(text, "row-title")


@needs_chromium
def test_markup_in_data_stays_text_in_a_browser(hostile: Path, tmp_path: Path) -> None:
    text = dom(run_page.write(hostile), "head=0", tmp_path / "profile")
    assert "<img" not in text
    assert "<title>Character language model" in text
    assert inside(text, "map-title").startswith("Causal self-attention")
    assert query_ticks(text) == ["<b>", "</script>", "&amp;", "%{x}", "$", "�"]
    assert HOSTILE in inside(text, "caption")


def test_a_long_input_is_shortened_in_lists_and_kept_whole_as_provenance(run: Path) -> None:
    shutil.rmtree(run / "maps")
    save(maps(400, example="x" * 1000), run / "maps" / "step-00000400.safetensors")
    records = island(run_page.write(run).read_text(encoding="utf-8"), "map-data")["records"]
    assert {(entry["example"], entry["title"]) for entry in records} == {("x" * 1000, "x" * 79 + "…")}
