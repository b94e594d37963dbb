"""Text in pictures: fonts of the machine where they have the glyphs, code points where none has, never boxes."""

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from test_record import record

from triptych.callbacks import tables
from triptych.explain.alignment.alignment import Choice
from triptych.pictures import fonts
from triptych.pictures.alignments import alignment
from triptych.pictures.rankings import ranking_picture
from triptych.pictures.render import overview, sheet, written
from triptych.tasks.base import Table

NOBODYS = "\U0010fffc\U0010fffd"  # private use, of the last plane: no font gives them a meaning
CACHES = (fonts._family, fonts._families, fonts._glyphs, fonts._width)


@pytest.fixture
def no_other_fonts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine that has matplotlib's own fonts only."""
    for cache in CACHES:
        cache.cache_clear()
    monkeypatch.setattr(fonts, "_families", lambda: [])
    monkeypatch.setattr(fonts, "_warned", set())
    yield
    fonts._family.cache_clear()
    fonts._width.cache_clear()


@pytest.mark.usefixtures("no_other_fonts")
def test_what_no_font_has_is_a_code_point_and_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert fonts.drawable("abc é ▁ ␣ ⏎") == "abc é ▁ ␣ ⏎"
        assert not caplog.records
        assert fonts.drawable("a你好!") == "aU+4F60 U+597D!"
        assert fonts.drawable("你" * 9) == "U+4F60 U+4F60 U+4F60 U+4F60…"
        assert fonts.drawable("a\n\x07" + NOBODYS) == "a U+0007 U+10FFFC U+10FFFD"
    (warning,) = caplog.records
    assert "U+4F60" in warning.getMessage()
    assert "Noto Sans CJK" in warning.getMessage()


@pytest.mark.usefixtures("no_other_fonts")
@pytest.mark.parametrize(("text", "said"), [("ก", "Noto Sans Thai"), (NOBODYS, "install one that has it")])
def test_the_warning_names_what_to_install(text: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    fonts.drawable(text)
    assert said in caplog.text


@pytest.mark.usefixtures("no_other_fonts")
def test_labels_are_cut_as_they_are_drawn() -> None:
    assert written("你好") == "U+4F60 U+597D"
    assert written("你好吗你好吗") == "U+4F60 U+597D U…"
    assert len(written("x" * 40)) == 16
    assert written("") == "∅"


def test_private_use_is_a_code_point_whatever_fonts_there_are() -> None:
    assert fonts.drawable(NOBODYS[0]) == "U+10FFFC"


def test_a_font_of_the_machine_draws_what_the_base_lacks() -> None:
    """Where the machine has one: the character stays, and the fonts that a text is drawn with include it."""
    if fonts._family("好") is None:
        assert fonts.drawable("好") == "U+597D"
        pytest.skip("no font here has Chinese characters")
    assert fonts.drawable("好") == "好"
    base, other = fonts.properties(["a好"], 9).get_family()
    assert (base, other) == ("triptych", fonts._family("好"))
    assert 1.5 < fonts.width("好") < 2.2
    assert fonts.properties(["a"], 9).get_file() == str(fonts.BASE)


def test_text_is_as_wide_as_it_is_said_to_be() -> None:
    assert fonts.width("") == 0
    assert fonts.width("é") == pytest.approx(fonts.width("e\u0301"))
    assert fonts.width("WW") == 2 * fonts.width("W") > 2 * fonts.width("i")


def test_lines_are_broken_at_blanks_and_long_words_anywhere() -> None:
    assert fonts.wrapped("", 10) == fonts.wrapped("  ", 10) == []
    text = "rows are queries, columns are keys " + "x" * 60 + " end"
    lines = fonts.wrapped(text, 20)
    assert all(fonts.width(line) <= 20 for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert lines[0] == "rows are queries,"
    assert fonts.wrapped("WW", 1) == ["W", "W"], "one character stands in a line, even if it does not fit"


@pytest.mark.parametrize("fallback", [False, True])
def test_every_picture_is_drawn_without_a_missing_glyph(fallback: bool, request: pytest.FixtureRequest) -> None:
    """Chinese, Japanese, Thai and what no font has, in labels, titles and names; matplotlib warns of no glyph."""
    if fallback:
        request.getfixturevalue("no_other_fonts")
    words = ["▁你好", "で", "น้ำ", NOBODYS, "a", "한국"]
    weights = torch.eye(len(words))[None]
    labels = {"query_labels": tuple(words), "key_labels": tuple(words), "example": "これは例文です。" * 100}
    mine = record(weights, causal=False, mask="none", **labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pictures = [
            sheet(mine),
            overview([mine]),
            alignment(weights[0], words, words, choice=Choice(0, "output", "mean"), step=1),
            ranking_picture(words, {"attention": [0.1] * len(words)}, title="你好" * 30),
            tables.draw(Table(words, torch.eye(len(words)), "true", "predicted"), "confusion"),
        ]
    assert all(picture.dtype == np.uint8 and picture.std() > 0 for picture in pictures)


def test_fonts_installed_since_matplotlib_looked_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """matplotlib keeps its list of fonts between processes, and does not look for new ones by itself."""
    copy = tmp_path / "New.ttf"
    copy.write_bytes(fonts.BASE.read_bytes())
    damaged = tmp_path / "Damaged.ttf"
    damaged.write_bytes(b"none")
    monkeypatch.setattr(fonts, "findSystemFonts", lambda: [str(damaged), str(copy)])
    monkeypatch.setattr(fonts.fontManager, "ttflist", [])
    fonts._families.cache_clear()
    try:
        ((name, path),) = fonts._families()
        assert (name, str(path)) == ("triptych DejaVu Sans", str(copy))
    finally:
        for cache in CACHES:
            cache.cache_clear()
