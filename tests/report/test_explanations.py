"""What explain.json and heads.json say reaches the page: the numbers, the verdict beside each map, and no markup."""

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser import Browser, needs_chromium
from hypothesis import given
from hypothesis import strategies as st
from test_run_page import HOSTILE, dom, inside, island, maps, run

from triptych.explain.evaluation.intervals import Interval
from triptych.maps.record import save
from triptych.pictures import rankings
from triptych.report import explanations, run_page
from triptych.report.whiskers import on_one_scale, read_interval, sentence

__all__ = ["run"]  # a fixture of the other file

PIXEL = (  # 4 x 4, grey
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAQAAAAECAAAAAC"
    "MmsGiAAAAEElEQVR4nGNsYGBgYGJAIQAJ5ACIUhZOXwAAAABJRU5ErkJggg=="
)


def interval(mean: float, low: float | None, high: float | None, n: int = 64) -> dict[str, Any]:
    return {"mean": mean, "low": low, "high": high, "n": n}


def method(name: str, title: str, deletion: tuple[float, float, float], **changes: Any) -> dict[str, Any]:
    given = {
        "name": name,
        "title": title,
        "meaning": f"What {title} means.",
        "deletion": interval(*deletion),
        "insertion": interval(0.05, 0.02, 0.08),
        "deletion_area": interval(0.21, 0.19, 0.23),
        "insertion_area": interval(0.6, 0.57, 0.63),
        "comprehensiveness": interval(0.33, 0.3, 0.36),
        "sufficiency": interval(0.41, 0.39, 0.43),
        "class_sensitivity": None,
        "compactness": interval(0.1, 0.05, 0.15),
        "seconds_per_example": 0.00321,
        "control": None,
        "constant": 0,
        "verdict": f"the verdict on {title}",
    }
    return given | changes


def explained(**changes: Any) -> dict[str, Any]:
    units = [f"{row},{column}" for row in range(2) for column in range(2)]
    places = {"grid": [2, 2], "picture": PIXEL, "units": units, "example": "validation 3", "output": "class 7"}
    given = {
        "task": "vit",
        "step": 4000,
        "checkpoint": "checkpoints/best.ckpt",
        "split": "validation",
        "examples": 64,
        "orders": 10,
        "control": "every weight drawn anew",
        "comparison": "cdam beats both",
        "methods": [
            method("attention", "attention, last layer", (0.02, -0.01, 0.05)),
            method("cdam", "CDAM", (0.12, 0.08, 0.16), control=interval(0.01, -0.01, 0.03)),
        ],
        "interventions": [
            {"kind": "key", "name": "cdam", "effect": interval(0.2, 0.1, 0.3), "sentence": "taking it away hurts"},
            {"kind": "head", "name": "0", "effect": interval(0.01, None, None, 1), "sentence": "head 0 left out"},
        ],
        "results": [
            {"method": "attention", "scores": [0.1, 0.2, 0.3, 0.4], **places},
            {"method": "cdam", "scores": [-2.0, 0.0, 1.0, 0.5], **places},
        ],
    }
    return given | changes


def heads() -> dict[str, Any]:
    def rows(value: float) -> list[dict[str, Any]]:
        places = [(layer, head) for layer in range(2) for head in range(2)]
        return [
            {"site": f"blocks.{layer}.attention.attend", "layer": layer, "kind": "self", "head": head}
            | {"previous_token": value + 0.1 * head, "entropy": None if head else 2.0}
            for layer, head in places
        ]

    return {
        "examples": 32,
        "statistics": {"previous_token": "mean weight on the position just before", "entropy": "in nats"},
        "moments": [
            {"step": 0, "name": "start", "rows": rows(0.1)},
            {"step": 4000, "name": "trained", "rows": rows(0.8)},
        ],
        "chance": {"blocks.0.attention.attend": {"previous_token": 0.0594}},
        "stability": {"previous_token": interval(0.9, 0.85, 0.95, 32)},
        "ablations": [
            {
                "heads": "layer 1 head 1",
                "why": "strongest previous-token",
                "how": "zero",
                "loss_change": interval(0.3, 0.2, 0.4),
                "random": interval(0.05, 0.01, 0.09),
                "difference": interval(0.25, 0.15, 0.35),
                "sentence": "layer 1 head 1 set to 0: the loss changes by 0.30",
            }
        ],
    }


def put(folder: Path, name: str, content: Any) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def shown(run: Path) -> tuple[str, str]:
    """The page, and its text before the scripts' data."""
    page = run_page.write(run).read_text(encoding="utf-8")
    return page, page[page.index('id="explained"') : page.index('<script type="application/json"')]


def test_each_method_stands_beside_its_verdict(run: Path) -> None:
    put(run, "explain.json", explained())
    page, text = shown(run)
    assert "64 validation examples; step 4,000; checkpoint best.ckpt; 10 random orders per example" in text
    for part in ("The verdict on CDAM.", "0.12 [0.08, 0.16]", "beats random order", "Cdam beats both."):
        assert part in text
    assert "0.01 [-0.01, 0.03]" in text  # the control
    assert "3.21 ms" in text
    assert text.index("Taking it away hurts.") < text.index("Head 0 left out.")
    assert "No such test is on this page" not in page


def test_the_pages_scores_are_the_files(run: Path) -> None:
    put(run, "explain.json", explained())
    data = island(shown(run)[0], "explained-data")
    (example,) = data["examples"]
    assert example["scores"] == {"attention": [0.1, 0.2, 0.3, 0.4], "cdam": [-2.0, 0.0, 1.0, 0.5]}
    assert (example["units"], example["grid"]) == (["0,0", "0,1", "1,0", "1,1"], [2, 2])
    assert data["pictures"] == [PIXEL]  # once, for both methods
    assert data["methods"]["cdam"]["tone"] == "good"


def test_heads_at_moments_of_training_and_what_leaving_one_out_does(run: Path) -> None:
    put(run, "heads.json", heads())
    page, text = shown(run)
    data = island(page, "heads-data")
    assert [each["step"] for each in data["moments"]] == [0, 4000]
    numbers = [row["numbers"] for row in data["moments"][1]["rows"][:2]]
    assert numbers == [{"previous_token": 0.8, "entropy": 2.0}, {"previous_token": 0.9}]  # null is left out
    assert list(data["statistics"]) == ["previous_token", "entropy"]
    assert data["stability"] == {"previous_token": "0.90 [0.85, 0.95], n=32"}
    assert "Layer 1 head 1 set to 0: the loss changes by 0.30." in text
    assert text.count("0.05 [0.01, 0.09]") == 2  # random heads: seen, and read aloud


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("finished", "make explain run=runs/charlm/"),
        ("running", "tested when the run ends"),
        ("prediction", "make explain run=RUN input="),
    ],
)
def test_a_run_of_an_older_version_is_told_how_to_test_its_maps(run: Path, status: str, said: str) -> None:
    summary = json.loads((run / "summary.json").read_text())
    put(run, "summary.json", summary | {"status": status})
    page, text = shown(run)
    assert said in text
    assert "No such test is on this page" in page
    assert island(page, "explained-data") is None


def test_an_explanation_of_one_input_has_its_own_page(run: Path) -> None:
    """Its folder holds no summary: the run's is two levels up. Without its own, the run's page shows the newest."""
    for age, step in enumerate((7, 8)):
        put(run, f"explanations/at-{step}/explain.json", explained(step=step))
        os.utime(run / f"explanations/at-{step}/explain.json", (1000 + age, 1000 + age))
    _, text = shown(run / "explanations" / "at-7")
    assert "step 7;" in text
    page = (run / "explanations" / "at-7" / "report.html").read_text(encoding="utf-8")
    assert "python_reference" in page
    assert "explanation at-7" in page
    assert 'id="curves"' not in page
    assert "has no" not in page[: page.index("<main>")]  # nothing is said to be missing
    assert "step 8;" in shown(run)[1]
    assert "from explanations/at-8/explain.json" in shown(run)[1]


@pytest.mark.parametrize(
    ("name", "content", "note"),
    [
        ("explain.json", '{"methods": [', "explain.json could not be read"),
        ("explain.json", "[]", "explain.json could not be read"),
        ("explain.json", {"methods": [1], "results": 3}, "some of its methods could not be read"),
        ("explain.json", {"results": [{"units": ["a"], "scores": [1, 2]}]}, "1 results could not be read"),
        ("heads.json", '{"moments": [{"step": 1}]}', "heads.json could not be read"),
        ("heads.json", "{", "heads.json could not be read"),
        ("seeds.json", "[1]", "seeds.json could not be read"),
    ],
)
def test_a_torn_file_costs_its_section_and_not_the_page(run: Path, name: str, content: Any, note: str) -> None:
    put(run, name, content)
    page = run_page.write(run).read_text(encoding="utf-8")
    assert note in page
    assert 'id="guide"' in page
    assert island(page, "map-data") is not None


def test_a_large_explanation_is_cut_and_says_so(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row | {"example": f"validation {at}"} for at in range(40) for row in explained()["results"]]
    put(run, "explain.json", explained(results=rows))
    monkeypatch.setattr(run_page, "_EXPLAINED", 3000)
    page, _ = shown(run)
    kept = island(page, "explained-data")["examples"]
    assert 0 < len(kept) < 40
    assert f"it holds {len(kept)} of 40 explained outputs" in page


def hostile() -> dict[str, Any]:
    """Markup wherever text of the data or of a method can stand."""
    results = [
        {"method": HOSTILE, "example": HOSTILE, "output": HOSTILE, "grid": None, "picture": None}
        | {"units": [HOSTILE, "</script>", "a b"], "scores": [1.0, -1.0, 0.5]},
        explained()["results"][0] | {"picture": f'{PIXEL}" onload="x'},
    ]
    changes = [{"kind": HOSTILE, "effect": interval(0.1, 0.0, 0.2), "sentence": HOSTILE}]
    methods = [method(HOSTILE, HOSTILE, (0.1, 0.05, 0.2), meaning=HOSTILE, verdict=HOSTILE)]
    texts = dict.fromkeys(("split", "checkpoint", "control", "comparison"), HOSTILE)
    return explained(methods=methods, interventions=changes, results=results, **texts)


def hostile_heads() -> dict[str, Any]:
    found = heads()
    for moment in found["moments"]:
        moment["name"] = HOSTILE
        for row in moment["rows"]:
            row |= {"site": HOSTILE, HOSTILE: 0.5}
    found["ablations"][0]["sentence"] = HOSTILE
    return found | {"statistics": {HOSTILE: HOSTILE}, "chance": {HOSTILE: {HOSTILE: 0.1}}}


def test_markup_in_explanations_stays_text(run: Path) -> None:
    put(run, "explain.json", hostile())
    put(run, "heads.json", hostile_heads())
    page, _ = shown(run)
    assert "<img" not in page
    assert page.count("</script>") == 4 + 1 + len(run_page.SCRIPTS)
    assert "1 results could not be read" in page  # the picture that is none


@needs_chromium
def test_markup_in_explanations_stays_text_in_a_browser(run: Path, tmp_path: Path) -> None:
    put(run, "explain.json", hostile())
    put(run, "heads.json", hostile_heads())
    text = dom(run_page.write(run), "", tmp_path / "profile")
    assert "<img" not in text
    assert "<title>Character language model" in text
    assert inside(text, "explained-title") == f"{HOSTILE}: {HOSTILE}"
    assert HOSTILE in inside(text, "statistic-meaning") or HOSTILE[1:] in inside(text, "statistic-meaning")
    assert "<img src=x onerror=" in inside(text, "explained-maps")  # the token itself, cut at 24 letters


@needs_chromium
@pytest.mark.parametrize("phone", [False, True], ids=["window", "phone"])
def test_methods_are_picked_and_seen_over_the_picture(run: Path, tmp_path: Path, phone: bool) -> None:
    put(run, "explain.json", explained())
    put(run, "heads.json", heads())
    width = 390 if phone else 1200
    with Browser(run_page.write(run), tmp_path / "profile", size=(width, 844), touch=phone, dark=phone) as browser:
        browser.until("document.querySelectorAll('#explained-maps canvas').length === 3")  # the picture, two methods
        assert "beats random order" in browser.text("#explained-maps figure:last-child figcaption")
        colours = browser.value(
            "(() => { const all = document.querySelectorAll('#explained-maps canvas'); const canvas = all[2];"
            "const pen = canvas.getContext('2d'); const [w, h] = [canvas.width / 2, canvas.height / 2];"
            "return [0, 1, 2, 3].map((i) => [...pen.getImageData((i % 2 + .5) * w, (Math.floor(i / 2) + .5) * h, 1, 1)"
            ".data].slice(0, 3)); })()"
        )
        (red, _, blue), nothing, warm, _ = colours  # scores -2, 0, 1, 0.5
        assert blue > red  # below 0 is cold
        assert warm[0] > warm[2]  # above 0 is warm
        assert sum(nothing) < min(red + blue, sum(warm))
        browser.value(
            "(() => { const pick = document.querySelector('#pick-method'); pick.value = 'cdam';"
            "pick.dispatchEvent(new Event('change')); })()"
        )
        browser.until("document.querySelectorAll('#explained-maps canvas').length === 2")
        assert "The verdict on CDAM." in browser.text("#explained-maps")
        assert browser.text("#heads-grids figure:last-child tbody tr:first-child") == "layer 0 0.80 0.90"
        assert browser.value("document.documentElement.scrollWidth") <= width


def test_metrics_of_other_splits_are_folded_and_seeds_have_intervals(run: Path) -> None:
    row = {"mean": 1.271, "sd": 0.0031, "low": 1.2672, "high": 1.2748, "n": 5}
    put(run, "seeds.json", {"metrics": {"test/loss": row, "val/loss": row | {"low": None}}})
    page = run_page.write(run).read_text(encoding="utf-8")
    head = page[page.index("Final metrics") : page.index("Learning curves")]
    assert head.index("test/loss") < head.index("<details>") < head.index("val/loss")
    assert "5 seeds: 1.2710 [1.2672, 1.2748], SD 0.0031" in head
    assert head.count("seeds: ") == 1  # no interval, nothing said


@pytest.mark.parametrize(
    ("deletion", "insertion", "control", "word"),
    [
        ((0.1, 0.05, 0.2), (0.1, 0.05, 0.2), None, "beats random order; not controlled"),
        ((0.1, 0.05, 0.2), (0.1, -0.05, 0.2), None, "beats random order by deletion only; not controlled"),
        ((0.1, 0.05, 0.2), (0.1, 0.05, 0.2), (0.1, 0.02, 0.2), "beats random order; fails its control"),
        ((0.1, 0.05, 0.2), (0.1, 0.05, 0.2), (0.0, -0.02, 0.02), "beats random order"),
        ((0.0, -0.1, 0.1), (0.1, 0.05, 0.2), None, "beats random order by insertion only; not controlled"),
        ((0.0, -0.1, 0.1), (0.0, -0.1, 0.1), None, "does not beat random order"),
        ((-0.2, -0.3, -0.1), (0.0, -0.1, 0.1), None, "worse than random order"),
        ((0.1, math.nan, math.nan), (0.1, math.nan, math.nan), None, "no verdict"),
    ],
)
def test_the_verdict_in_a_word_agrees_with_the_sentence(
    deletion: tuple[float, float, float],
    insertion: tuple[float, float, float],
    control: tuple[float, float, float] | None,
    word: str,
) -> None:
    n = 1 if math.isnan(deletion[1]) else 64
    given = [None if each is None else Interval(*each, n) for each in (deletion, insertion, control)]
    names = ("deletion", "insertion", "control")
    row = {name: each and each.to_json() for name, each in zip(names, given, strict=True)}
    found = explanations.judged(row)
    assert found is not None
    assert found.short == word
    assert word.removesuffix("; not controlled").removesuffix(" only").split(" by ")[0].split(";")[0] in found.sentence
    assert (found.tone == "good") == (word == "beats random order")


@given(st.lists(st.tuples(*[st.floats(-5, 5)] * 3).map(sorted), min_size=1, max_size=6))
def test_whiskers_share_a_scale_on_which_order_and_sign_hold(ends: list[list[float]]) -> None:
    found = on_one_scale([Interval(mean, low, high, 9) for low, mean, high in ends])
    for each, (_, mean, high) in zip(found, ends, strict=True):
        assert each is not None
        places = [float(text.rstrip("%")) for text in (each.low, each.mean, each.width, each.zero)]
        assert 0 <= places[0] <= places[1] + 0.011
        assert places[0] + places[2] <= 100
        if mean > 1e-3 * max(abs(end) for row in ends for end in row):
            assert places[1] >= places[3]
        if high < 0:
            assert places[0] + places[2] <= places[3] + 0.011


def test_an_interval_that_is_none_is_read_as_none() -> None:
    assert read_interval(None) is None
    assert read_interval({"mean": None, "n": 3}) is None
    alone = read_interval({"mean": 0.25, "low": None, "high": None, "n": 1})
    assert alone is not None
    assert not alone.known
    (drawn,) = on_one_scale([alone])
    assert drawn is not None
    assert (drawn.text, drawn.width, drawn.known) == ("0.25", "0.00%", False)


def test_a_clause_becomes_a_sentence() -> None:
    assert sentence("beats it") == "Beats it."
    assert sentence("Done.") == "Done."
    assert sentence(None) == ""


def test_a_static_picture_shows_each_method_and_refuses_what_does_not_fit() -> None:
    picture = torch.full((4, 4, 1), 128, dtype=torch.uint8)
    scores = {"one": [1.0, 0.0, 0.0, -1.0]}
    drawn = rankings.ranking_picture(list("abcd"), scores, (2, 2), picture, title="validation 3: class 7")
    flat = drawn.reshape(-1, 3).astype(int)
    warm, cold = flat[:, 0] - flat[:, 2], flat[:, 2] - flat[:, 0]
    quarter = (rankings._SIDE // 2) ** 2
    assert (warm > 40).sum() == pytest.approx(quarter, rel=0.1)  # one patch of each
    assert (cold > 40).sum() == pytest.approx(quarter, rel=0.1)
    words = rankings.ranking_picture(["<b>", "$x$", " "], {"one": [0.0, 1.0, math.nan]}, title="$ {} <i>")
    assert np.any(words != 255)
    with pytest.raises(ValueError, match="3 scores for 4 units"):
        rankings.ranking_picture(list("abcd"), {"one": [1.0, 2.0, 3.0]}, title="")
    with pytest.raises(ValueError, match="2 x 3 patches are not 4 units"):
        rankings.ranking_picture(list("abcd"), scores, (2, 3), picture, title="")


def test_a_terminal_gets_units_in_colour_and_patches_as_squares() -> None:
    text = rankings.ranking_text(["je", "[red]t'[/red]"], [0.0, 2.0])
    assert text.plain == "je [red]t'[/red] "  # markup of the terminal stays text too
    assert text.spans[1].style.bgcolor.triplet == (214, 96, 32)  # type: ignore[union-attr]
    assert rankings.ranking_text(list("abcdef"), [0.0] * 6, (2, 3)).plain == "      \n      \n"


def test_a_run_without_maps_has_no_word_on_their_test(run: Path) -> None:
    shutil.rmtree(run / "maps")
    assert 'id="explained"' not in run_page.write(run).read_text(encoding="utf-8")
    save(maps(5), run / "maps" / "step-00000005.safetensors")
    assert 'id="explained"' in run_page.write(run).read_text(encoding="utf-8")
