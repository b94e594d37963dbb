"""The confusion matrix in the report: from the run folder alone, the right numbers at the right places, as text."""

import html
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from browser import Browser, needs_chromium
from test_run_page import HOSTILE, island, run

from triptych.callbacks.tables import TablesCallback, write_counts
from triptych.report import run_page
from triptych.report.count_tables import prepare
from triptych.runs.readers import Counts, read_tables
from triptych.tasks.base import Table

__all__ = ["run"]  # a fixture of the other file

SMALL = [[8, 2, 0], [0, 5, 0], [1, 0, 3]]
NAMES = ["cat", "dog", HOSTILE]


def store(folder: Path, counts: list[list[int]], names: list[str], split: str = "test", step: int = 400) -> None:
    table = Table(names, torch.tensor(counts), rows="true", columns="predicted")
    write_counts(table, folder / f"{split}-confusion.json", name="confusion", split=split, step=step)


def counts(table: list[list[int]], names: list[str]) -> Counts:
    return Counts("confusion", "test", 1200, "true", "predicted", names, table)


def large(size: int) -> tuple[list[list[int]], list[str]]:
    """All right but for one: three of the last class taken for the first."""
    table = (9 * torch.eye(size, dtype=torch.long)).tolist()
    table[-1][0] = 3
    return table, [f"class <b>{index}</b>" for index in range(size)]


def test_shades_and_sentences_by_hand() -> None:
    shown = prepare(counts(SMALL, ["cat", "dog", "owl"]))
    assert shown.caption == "Test split, step 1,200: 16 of 19 right (84.2\N{NO-BREAK SPACE}%)"
    assert [mistake.replace("\N{NO-BREAK SPACE}", " ") for mistake in shown.mistakes] == [
        "cat as dog: 2 of 10 (20.0 %)",
        "owl as cat: 1 of 4 (25.0 %)",
    ]
    assert [name for name, _ in shown.cells] == ["cat", "dog", "owl"]
    assert [[cell.count for cell in cells] for _, cells in shown.cells] == SMALL
    assert [[cell.right for cell in cells] for _, cells in shown.cells] == torch.eye(3).bool().tolist()
    assert [cell.shade for cell in shown.cells[2][1]] == ["0.500", "0.000", "0.866"]  # roots of 1/4, 0, 3/4
    assert shown.cells[0][1][1].title.startswith("true cat, predicted dog: 2 of 10")
    assert (shown.drawn, shown.accuracies, shown.upright) == (None, [], False)


def test_a_class_without_images_and_a_table_without_any() -> None:
    assert prepare(counts([[3, 1], [0, 0]], ["a", "b"])).cells[1][1][1].shade == "0.000"
    assert prepare(counts([[0, 0], [0, 0]], ["a", "b"])).caption.endswith(": 0 of 0 right")


def test_more_rows_than_can_be_read_are_drawn() -> None:
    table, names = large(26)
    shown = prepare(counts(table, names))
    assert shown.cells == []
    assert shown.drawn is not None
    assert shown.drawn["filled"] == [(index, index, 9) for index in range(25)] + [(25, 0, 3), (25, 25, 9)]
    assert shown.accuracies[0] == ("class <b>25</b>", "75.0\N{NO-BREAK SPACE}%")
    assert shown.accuracies[1][1] == "100.0\N{NO-BREAK SPACE}%"
    assert prepare(counts(*large(25))).drawn is None


def test_the_callback_stores_what_the_page_shows(run: Path, unchecked: None) -> None:
    table = Table(("a", "b"), torch.tensor([[7, 1], [2, 5]]), rows="true", columns="predicted")
    task: Any = SimpleNamespace(tables=lambda data: {"confusion": table})
    TablesCallback(folder=run).conclude(task, None, [], 30)
    assert read_tables(run, []) == [Counts("confusion", "test", 30, "true", "predicted", ["a", "b"], [[7, 1], [2, 5]])]
    assert (run / "test-confusion.png").stat().st_size > 1000
    assert "Test split, step 30: 12 of 15 right" in run_page.write(run).read_text(encoding="utf-8")
    assert [file.name for file in run.iterdir() if "partial" in file.name] == []


def test_the_page_has_the_counts_and_names_as_text(run: Path) -> None:
    store(run, SMALL, [*NAMES[:2], HOSTILE + "\ud800</td>"])
    store(run, [[1, 0, 0]] * 3, NAMES, split="val")
    page = run_page.write(run).read_text(encoding="utf-8")
    found = re.findall(r'<section class="counts">.*?</section>', page, re.S)
    assert [re.search(r"(Test|Validation) split", part).group(1) for part in found] == ["Test", "Validation"]  # type: ignore[union-attr]
    cells = [int(cell or 0) for cell in re.findall(r"<td title[^>]*>(\d*)</td>", found[0])]
    assert cells == [count for row in SMALL for count in row]
    assert "<img" not in found[0]
    assert HOSTILE in html.unescape(found[0])
    assert (found[0].count("<details open>"), found[1].count("<details open>")) == (1, 0)
    assert island(page, "table-data") is None


def test_a_page_without_tables_has_no_such_section(run: Path) -> None:
    assert 'class="counts"' not in run_page.write(run).read_text(encoding="utf-8")


SAID = '"name": "c", "split": "test", "step": 1, "rows": "r", "columns": "c"'


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        f'{{{SAID}, "names": ["a"], "counts": [[1, 2]]}}',
        f'{{{SAID}, "names": ["a"], "counts": [[-1]]}}',
        f'{{{SAID}, "names": ["a"], "counts": [[Infinity]]}}',
        f'{{{SAID}, "names": [], "counts": []}}',
    ],
)
def test_a_damaged_table_costs_a_note_and_not_the_page(run: Path, content: str) -> None:
    (run / "test-confusion.json").write_text(content)
    store(run, SMALL, NAMES, split="val")
    page = run_page.write(run).read_text(encoding="utf-8")
    assert "test-confusion.json could not be read" in page
    assert page.count('class="counts"') == 1


def test_a_class_that_is_called_like_a_metric_gets_no_meaning(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text()) | {"metrics": {"test/accuracy/loss": 0.5, "test/loss": 1}}
    (run / "summary.json").write_text(json.dumps(summary))
    assert run_page.write(run).read_text(encoding="utf-8").count("cross-entropy in nats") == 1


# ---- in a browser ----


@needs_chromium
@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_ten_classes_without_scrolling(run: Path, tmp_path: Path, dark: bool) -> None:
    names = ["T - shirt / top", *(f"a class {index}" for index in range(9))]
    store(run, [[905 if row == column else 11 for column in range(10)] for row in range(10)], names)
    with Browser(run_page.write(run), tmp_path / "profile", size=(390, 844), touch=True, dark=dark) as browser:
        assert browser.value("document.documentElement.scrollWidth") == 390
        inside = "document.querySelector('.counts .scroll')"
        assert browser.value(f"{inside}.scrollWidth <= {inside}.clientWidth")
        tall = "[...document.querySelectorAll('.counts tbody tr')].map((row) => row.getBoundingClientRect().height)"
        assert max(browser.value(tall)) < 40  # no name is broken into letters
        colours = [
            browser.value(f"getComputedStyle(document.querySelector('.counts td.{kind}')).backgroundColor")
            for kind in ("right", "wrong")
        ]
        assert colours[0] != colours[1]
        ink, ground = (
            sum(map(int, re.findall(r"\d+", browser.value(f"getComputedStyle(document.body).{name}"))[:3]))
            for name in ("color", "backgroundColor")
        )
        assert (ink > ground + 300) if dark else (ground > ink + 300)


@needs_chromium
def test_a_large_table_is_drawn_and_says_what_is_pointed_at(run: Path, tmp_path: Path) -> None:
    table, names = large(40)
    store(run, table, names)
    store(run, table, names, split="val")
    with Browser(run_page.write(run), tmp_path / "profile") as browser:
        browser.until("document.querySelectorAll('#counts-test-confusion .nsewdrag').length === 1")
        browser.click("#counts-test-confusion .nsewdrag", 0.5 / 40, 39.5 / 40)
        browser.until("document.querySelectorAll('#counts-test-confusion .hovertext').length === 1")
        said = browser.value("document.querySelector('#counts-test-confusion .hovertext').textContent")
        assert said == "true class <b>39</b>, predicted class <b>0</b>: 3 of 12"
        assert browser.value("document.querySelectorAll('#counts-val-confusion .nsewdrag').length") == 0  # folded
        browser.click(".counts + .counts summary")
        browser.until("document.querySelectorAll('#counts-val-confusion .nsewdrag').length === 1")
