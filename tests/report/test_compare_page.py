"""compare.html: curves, table and maps of several runs on one page that opens offline, opened in a real browser."""

import re
from pathlib import Path

import pytest
import torch
from browser import Browser, needs_chromium
from omegaconf import OmegaConf
from test_run_page import HOSTILE, island, maps, numbers

from triptych.maps.record import MapRecord, save
from triptych.report import map_data
from triptych.report.compare import Comparison, write
from triptych.report.page import LIMIT, plotly
from triptych.runs.folder import RunFolder


def record_of(path: Path, number: int) -> list[MapRecord]:
    """Run number n gives all its weight to the key n positions back, or to the first."""
    records = maps(20 * number, layers=2, heads=2)
    for record in records:
        weights = torch.zeros_like(record.weights)
        for row in range(6):
            weights[:, row, max(0, row - number)] = 1.0
        object.__setattr__(record, "weights", weights)
    save(records, path / "maps" / f"step-{20 * number:08d}.safetensors")
    return records


def run(parent: Path, number: int, word: str = "muon") -> RunFolder:
    path = parent / f"20260301-10150{number}-aaaa0{number}"
    path.mkdir(parents=True)
    found = RunFolder(path)
    config = {"seed": 0, "task": {"name": "charlm"}, "optimizer": {"lr": 0.1 * (number + 1), "name": word}}
    found.write_config(OmegaConf.create(config))
    summary = {"task": "charlm", "status": "finished", "seed": 0, "steps": 20, "fit_seconds": 3.0}
    found.write_summary(summary | {"metrics": {"val/loss": 2.0 - 0.5 * number, "test/loss": 2.0}})
    rows = "".join(f"{step},{step / 10},{3 - number - step / 20}\n" for step in (0, 10, 20))
    (path / "metrics.csv").write_text("step,seconds,val/loss\n" + rows)
    (path / "report.html").touch()
    return found


@pytest.fixture
def compared(tmp_path: Path) -> Comparison:
    runs = [run(tmp_path / "runs", number) for number in range(3)]
    for number, each in enumerate(runs):
        record_of(each.path, number)
    return write(runs, tmp_path / "out", title="three runs", metric="val/loss", mode="min")


def test_the_page_is_one_file_with_the_curves_and_the_last_maps(compared: Comparison) -> None:
    page = compared.page.read_text(encoding="utf-8")
    assert compared.page.stat().st_size < LIMIT
    assert page.count("* plotly.js v") == 1
    without_plotly = page.replace(plotly(), "")
    assert not re.search(r"src\s*=|https?://|url\((?!#)|@import", without_plotly)
    assert 'href="../runs/20260301-101502-aaaa02/report.html"' in page  # relative: both may be moved together
    runs = island(page, "curve-data")["runs"]
    assert [each["name"] for each in runs] == ["lr 0.3", "lr 0.2", "lr 0.1"]  # best first
    assert runs[0]["curves"][0] == {
        "name": "val/loss",
        "steps": [0, 10, 20],
        "seconds": [0.0, 1.0, 2.0],
        "values": [1.0, 0.5, 0.0],
    }
    data = island(page, "map-data")
    assert [entry["run"] for entry in data["records"]] == [0, 0, 1, 1, 2, 2]
    assert numbers(data, data["records"][0], "weights")[0, 5, 3] == 1.0  # the best run looks two back
    assert len(data["labels"]) == len(data["masks"]) == 1  # what the runs share is stored once
    assert all(entry["scores"] is None for entry in data["records"])


def test_an_unreadable_last_moment_gives_way_to_the_one_before(compared: Comparison, tmp_path: Path) -> None:
    path = compared.runs.rows[0].run.path / "maps"
    (path / "step-00000900.safetensors").write_bytes(b"torn")
    notes: list[str] = []
    data = map_data.pack_runs([path], 100_000, notes)
    assert data is not None
    assert {entry["step"] for entry in data["records"]} == {40}
    assert "step-00000900.safetensors could not be read" in notes[0]


def test_without_room_the_best_runs_keep_their_maps(compared: Comparison) -> None:
    folders = [row.run.path / "maps" for row in compared.runs.rows]
    notes: list[str] = []
    whole = map_data.pack_runs(folders, 100_000, [])
    assert whole is not None
    size = len(str(whole))
    data = map_data.pack_runs(folders, size * 2 // 3, notes)
    assert data is not None
    assert sorted({entry["run"] for entry in data["records"]}) in ([0], [0, 1])
    assert "of 3 runs" in notes[0]
    assert map_data.pack_runs(folders, 100, []) is None


def test_text_of_configurations_and_failures_stays_text(tmp_path: Path) -> None:
    runs = [run(tmp_path, 0, HOSTILE), run(tmp_path, 1, "</script>")]
    failed = [{"number": 3, "overrides": [HOSTILE], "status": "failed", "why": HOSTILE}]
    found = write(
        runs,
        tmp_path,
        title=HOSTILE,
        metric="val/loss",
        mode="min",
        importance={HOSTILE: 0.5},
        best=HOSTILE,
        failed=failed,
    )
    page = found.page.read_text(encoding="utf-8")
    assert "<img" not in page.replace(plotly(), "")
    assert page.count("</script>") == 5  # the page's own: one with data, four with code
    assert HOSTILE in found.csv.read_text(encoding="utf-8").replace('""', '"')


def test_a_sweep_of_which_nothing_ran_still_has_its_page(tmp_path: Path) -> None:
    failed = [{"number": 0, "overrides": ["a=1"], "status": "failed", "why": "out of memory"}]
    found = write([], tmp_path, title="sweep", metric="val/loss", mode="min", failed=failed)
    assert "out of memory" in found.page.read_text(encoding="utf-8")
    assert len(found.csv.read_text(encoding="utf-8").splitlines()) == 1


@needs_chromium
def test_curves_and_maps_are_visible_and_answer_to_the_hand(compared: Comparison, tmp_path: Path) -> None:
    with Browser(compared.page, tmp_path / "profile") as browser:
        lines = "document.querySelectorAll('#curve .scatterlayer .trace').length"
        assert browser.value(lines) == 3
        assert browser.value("document.querySelector('#curve .xtitle').textContent") == "step"
        pick = "(() => { const s = document.getElementById('%s'); s.value = '%s'; "
        pick += "s.dispatchEvent(new Event('change', {bubbles: true})); })()"
        browser.value(pick % ("pick-axis", "seconds"))
        assert browser.value("document.querySelector('#curve .xtitle').textContent") == "wall time (s)"

        # the same cell, read in every run: query 5 gives all its weight to key 3, 4 and 5 in turn
        assert browser.value("document.querySelectorAll('#side-by-side canvas').length") == 3
        browser.value(pick % ("pick-head", "1"))
        browser.click("#side-by-side canvas", 3.5 / 6, 5.5 / 6)
        readings = browser.value("[...document.querySelectorAll('.reading')].map((each) => each.textContent)")
        assert readings == [f"query 5 “h”, key 3 “␣”: {weight}" for weight in (1, 0, 0)]
        assert "layer 0" in browser.text("#side-by-side .facts")
        painted = (
            "(() => { const c = document.querySelector('#side-by-side canvas'); const [x, y] = [c.width, c.height];"
            "const at = (j, i) => [...c.getContext('2d').getImageData((j + .5) * x / 6, (i + .5) * y / 6, 1, 1).data];"
            "return [at(0, 0), at(0, 5), at(5, 5)]; })()"
        )
        full, none, other = browser.value(painted)
        assert sum(full) < sum(none) == sum(other)  # a weight of 1 is dark, 0 white
        browser.value(pick % ("pick-head", "all"))
        assert browser.value("document.querySelectorAll('#side-by-side canvas').length") == 6

        # unticking the best run takes it out of both pictures
        browser.click("#runs tbody input")
        assert browser.value(lines) == 2
        assert browser.value("document.querySelectorAll('#side-by-side figure').length") == 2

        # sorting: lr stands second, behind the run's name
        order = "[...document.querySelectorAll('#runs tbody tr')].map((row) => row.dataset.run).join('')"
        assert browser.value(order) == "012"
        browser.click("#runs thead th:nth-of-type(2) button")
        assert browser.value(order) == "210"
        browser.click("#runs thead th:nth-of-type(2) button")
        assert browser.value(order) == "012"
        assert browser.value("document.querySelector('#runs [aria-sort]').getAttribute('aria-sort')") == "descending"


@needs_chromium
def test_negative_weights_get_a_scale_with_0_in_its_middle(compared: Comparison, tmp_path: Path) -> None:
    """Linear attention's delta rule has them; on the scale from 0 they would look like 0."""
    path = compared.runs.rows[0].run.path
    records = maps(40)
    records[0].weights[:] = torch.tensor([[-0.4, 0.3] * 3] * 6).tril()
    save(records, path / "maps" / "step-00000040.safetensors")
    page = write([row.run for row in compared.runs.rows], tmp_path, title="", metric="val/loss", mode="min").page
    with Browser(page, tmp_path / "profile") as browser:
        assert (browser.text("#scale-low"), browser.text("#scale-high")) == ("-1", "1")


@needs_chromium
def test_a_phone_sees_it_too(compared: Comparison, tmp_path: Path) -> None:
    with Browser(compared.page, tmp_path / "profile", size=(390, 800), touch=True, dark=True) as browser:
        assert browser.value("document.documentElement.scrollWidth") == 390
        assert browser.value("document.querySelectorAll('#curve .scatterlayer .trace').length") == 3
        browser.click("#side-by-side canvas", 0.5, 0.95, touch=True)
        browser.until("document.querySelector('.reading').textContent.startsWith('query 5')")
