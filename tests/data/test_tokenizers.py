"""The character tokenizer: exact there and back, loud about what it does not know, the same after saving."""

import logging
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.data.tokenizers import CHUNK, UNKNOWN, CharacterTokenizer
from triptych.errors import UserError

ODD = "Tabs\tand\r\nlines\n\n  ‘quotes’ é ß 日本 😀👩‍🔬 \x00 \u2028 end "


def test_known_text_comes_back_exactly() -> None:
    # Newlines, CRLF, tabs, joined emoji and control characters are characters like any other.
    tokenizer = CharacterTokenizer.train(ODD)
    assert tokenizer.decode(tokenizer.encode(ODD)) == ODD
    assert tokenizer.size == len(set(ODD)) + 1


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(max_size=20))
def test_any_text_there_and_back(trained: str, other: str) -> None:
    # Whatever the training text: it returns composed, and any other text has ids that the model knows.
    tokenizer = CharacterTokenizer.train(trained)
    composed = unicodedata.normalize("NFC", trained)
    assert tokenizer.decode(tokenizer.encode(trained)) == composed
    assert all(0 <= index < tokenizer.size for index in tokenizer.encode(other))


def test_alphabet_is_sorted_after_the_replacement() -> None:
    # Ids depend on the characters only, not on order or counts: the same alphabet, the same model input.
    tokenizer = CharacterTokenizer.train("banana")
    assert tokenizer.tokenizer.get_vocab() == {UNKNOWN: 0, "a": 1, "b": 2, "n": 3}
    assert CharacterTokenizer.train("nab").encode("ban") == tokenizer.encode("ban")


def test_decomposed_text_is_the_composed_text_even_where_chunks_meet() -> None:
    # u + U+0308 is ü; an accent that falls on the first place of a chunk still belongs to its letter.
    tokenizer = CharacterTokenizer.train("xü")
    assert tokenizer.encode("u\u0308") == tokenizer.encode("ü")
    text = "x" * (CHUNK - 1) + "u\u0308" + "x"
    assert tokenizer.decode(tokenizer.encode(text)) == "x" * (CHUNK - 1) + "ü" + "x"


def test_unseen_characters_show_and_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = CharacterTokenizer.train("abc")
    with caplog.at_level(logging.WARNING):
        assert tokenizer.decode(tokenizer.encode("a日b\udce9")) == "a�b�"  # the last: half a surrogate pair
        tokenizer.encode("日")
    (record,) = caplog.records
    assert "日 U+65E5" in record.getMessage()
    assert "U+DCE9" in record.getMessage()


def test_unknown_counts_occurrences() -> None:
    assert CharacterTokenizer.train("abc").unknown("axyxc") == {"x": 2, "y": 1}


def test_saved_tokenizer_is_the_same(tmp_path: Path) -> None:
    tokenizer = CharacterTokenizer.train(ODD)
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = CharacterTokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.encode(ODD) == tokenizer.encode(ODD)
    assert loaded.decode(loaded.encode(ODD)) == ODD
    assert loaded.size == tokenizer.size


@pytest.mark.parametrize("content", [None, "", '{"half'])
def test_no_tokenizer_to_load_is_a_sentence(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match="is not a saved tokenizer"):
        CharacterTokenizer.load(path)


def test_labels_can_be_seen() -> None:
    tokenizer = CharacterTokenizer.train("a \n\t\r\u0301\x07")
    ids = [*tokenizer.encode("a \n\t\r\u0301\x07"), 0]
    assert tokenizer.labels(ids) == ["a", "␣", "⏎", "⇥", "␍", "◌\u0301", "U+0007", "�"]


def test_a_megabyte_is_quick_also_without_line_breaks() -> None:
    # The library alone takes a time that grows with the square of the length of one string.
    text = "To be, or not to be: that is the question. " * 25_000
    tokenizer = CharacterTokenizer.train(text)
    start = time.process_time()
    ids = tokenizer.encode(text)
    assert len(ids) == len(text)
    assert time.process_time() - start < 2  # 0.3 s here; room for a busy machine
