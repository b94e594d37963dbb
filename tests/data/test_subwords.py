"""Subwords: within words, exact there and back, no way from text to a special token, the same whenever trained."""

import logging
import os
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex
from tokenizers.pre_tokenizers import Sequence, Split, WhitespaceSplit

from triptych.data import tokenizers
from triptych.data.tokenizers import (
    BLANK,
    END_ID,
    PAD_ID,
    SPECIAL,
    START_ID,
    UNKNOWN_WORD_ID,
    SubwordTokenizer,
    composed,
    spaced,
    without_gaps,
    words,
)
from triptych.errors import UserError

OLD_WORD = r"[\p{L}\p{M}\p{N}]+['’]?|[^\s\p{L}\p{M}\p{N}]"  # of tokenizers that earlier versions stored
TEXTS = ["Je t'aime !", "I love you.", "J'aime les chats, et j'aime l'été.", "I love cats, and I love summer."] * 3
ANY = st.text(st.characters(exclude_characters=BLANK, exclude_categories=["Cs"]), max_size=40)


def trained(texts: list[str] = TEXTS, vocab_size: int = 200) -> SubwordTokenizer:
    return SubwordTokenizer.train(texts, vocab_size)


def test_a_vocabulary_by_hand() -> None:
    """▁ab three times, once with c behind: the pairs a b and ▁ a occur three times, b c once. Then ▁ and ab are one."""
    tokenizer = trained(["ab ab", "abc"])
    assert tokenizer.labels(range(tokenizer.size)) == [*SPECIAL, "a", "b", "c", "▁", "ab", "▁ab"]
    assert tokenizer.encode("ab cab") == [9, 7, 6, 8]
    assert tokenizer.size == 10  # not the 200 asked for: nothing else occurs twice


def test_the_special_tokens_have_the_first_ids() -> None:
    assert (PAD_ID, START_ID, END_ID, UNKNOWN_WORD_ID) == (0, 1, 2, 3)
    assert trained().labels([PAD_ID, START_ID, END_ID, UNKNOWN_WORD_ID]) == ["<pad>", "<s>", "</s>", "�"]


def test_a_blank_is_marked_and_an_elision_splits() -> None:
    tokenizer = trained(["Je t'aime !"] * 9)
    assert tokenizer.labels(tokenizer.encode("Je t'aime !")) == ["▁Je", "▁t'", "aime", "▁!"]
    assert tokenizer.encode_words("Je t'aime !") == (tokenizer.encode("Je t'aime !"), [0, 1, 2, 3])
    assert tokenizer.decode(tokenizer.encode("aime !")) == "aime !"


@given(ANY, ANY)
def test_any_text_there_and_back(text: str, other: str) -> None:
    """With single blanks exactly; and the subwords of each word spell that word, whether trained on or not."""
    tokenizer = trained([text, text, other], 1000)
    for read in (text, other, f"{text} {other}"):
        ids, places = tokenizer.encode_words(read)
        assert ids == tokenizer.encode(read)
        assert tokenizer.decode(ids) == spaced(read)
        spelled = ["" for _ in words(read)]
        for index, place in zip(ids, places, strict=True):
            spelled[place] += str(tokenizer.tokenizer.id_to_token(index))
        assert [word.removeprefix(BLANK) for word in spelled] == words(read)


@given(ANY)
def test_words_of_unknown_text_are_counted_alike(text: str) -> None:
    ids, places = trained().encode_words(text)
    assert len(ids) == len(places)
    assert sorted(set(places)) == list(range(len(words(text))))


@pytest.mark.parametrize("blank", ["  ", "\t", "\n", "\r\n", "\u00a0", "\u202f", "\u2009", "\u3000", "\x1f", "\x85"])
def test_every_run_of_whitespace_is_one_blank(blank: str) -> None:
    tokenizer = trained()
    assert tokenizer.encode(f"{blank}I{blank}love{blank}") == tokenizer.encode("I love")
    assert words(f"{blank}I{blank}love") == ["I", "love"]
    assert tokenizer.encode(blank) == tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""


def test_decomposed_text_is_the_composed_text() -> None:
    tokenizer = trained()
    assert "é" in TEXTS[2]
    assert tokenizer.encode(unicodedata.normalize("NFD", TEXTS[2])) == tokenizer.encode(TEXTS[2])
    assert SubwordTokenizer.train([unicodedata.normalize("NFD", text) for text in TEXTS], 200).size == tokenizer.size


def test_no_text_becomes_a_special_token() -> None:
    """Not even what looks like one, in training or later: it would end a sentence."""
    text = "</s> <s>and<pad> x</s>"
    tokenizer = trained([text] * 5)
    assert min(tokenizer.encode(text)) > UNKNOWN_WORD_ID
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert min(tokenizer.encode("</s>")) > UNKNOWN_WORD_ID


def test_special_ids_are_no_text_but_unknown_shows() -> None:
    tokenizer = trained()
    ids = tokenizer.encode("I love you.")
    assert tokenizer.decode([START_ID, *ids, END_ID, PAD_ID, PAD_ID]) == "I love you."
    assert tokenizer.decode([*ids, UNKNOWN_WORD_ID]) == "I love you.�"


def test_unseen_characters_show_and_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = trained()
    with caplog.at_level(logging.WARNING):
        assert tokenizer.decode(tokenizer.encode("I 日▁\udce9 love")) == "I ��� love"  # the last: half a surrogate pair
        tokenizer.encode_words("日")
        tokenizer.encode_all(["日", "▁"])
    (record,) = caplog.records
    for named in ("日 U+65E5", "U+2581", "U+DCE9"):
        assert named in record.getMessage()
    assert tokenizer.unknown("日 日 I") == {"日": 2}


def test_each_unknown_character_is_one_id() -> None:
    ids, places = trained().encode_words("日本 I 日")
    assert ids.count(UNKNOWN_WORD_ID) == 3
    assert places.count(1) == 1
    assert max(places) == 3, "日 and 本 are words of their own"


def test_labels_can_be_seen() -> None:
    """A character without width of its own shows what it is; an accent inside a subword has its letter to sit on."""
    text = "\u0301x\u0301 a\u200d"
    tokenizer = trained([text])  # nothing occurs twice: characters
    assert tokenizer.labels(tokenizer.encode(text)) == ["▁", "◌\u0301", "x", "◌\u0301", "▁", "a", "U+200D"]
    tokenizer = trained([text, text])
    assert tokenizer.labels(tokenizer.encode("x\u0301")) == ["▁", "x\u0301"]
    assert tokenizer.labels([10_000]) == ["�"]


def test_saved_tokenizer_is_the_same(tmp_path: Path) -> None:
    tokenizer = trained()
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = SubwordTokenizer.load(tmp_path / "tokenizer.json")
    text = "J'aime you </s> 日"
    assert loaded.encode_words(text) == tokenizer.encode_words(text)
    assert loaded.decode(loaded.encode(TEXTS[2])) == TEXTS[2]
    assert loaded.labels(range(loaded.size)) == tokenizer.labels(range(tokenizer.size))
    (tmp_path / "tokenizer.json").write_text('{"half')
    with pytest.raises(UserError, match="is not a saved tokenizer"):
        SubwordTokenizer.load(tmp_path / "tokenizer.json")


AGAIN = """
import sys
from pydoc_data.topics import topics
from triptych.data.tokenizers import SubwordTokenizer
texts = [line for name in sorted(topics)[:20] for line in topics[name].splitlines()]
SubwordTokenizer.train(texts if sys.argv[2] == "forward" else texts[::-1], 600).save(sys.argv[1])
"""


def test_training_is_the_same_in_every_process(tmp_path: Path) -> None:
    """Whatever the seeds of hashes, the threads, and the order of the texts."""
    for number, order in enumerate(("forward", "forward", "backward")):
        path = str(tmp_path / f"{number}.json")
        env = {**os.environ, "PYTHONHASHSEED": str(number), "TOKENIZERS_PARALLELISM": "true"}
        subprocess.run([sys.executable, "-c", AGAIN, path, order], check=True, env=env)
    first, *others = [(tmp_path / f"{number}.json").read_bytes() for number in range(3)]
    assert len(first) > 10_000
    assert others == [first, first]


def test_the_settings_of_the_library_stay_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    trained().encode_all(TEXTS)
    assert "TOKENIZERS_PARALLELISM" not in os.environ
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    trained()
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"


def test_a_vocabulary_without_room_for_the_characters_is_refused() -> None:
    # a, b, c, ▁ and four special ones
    assert trained(["abc abc"], 8).size == 8
    with pytest.raises(UserError, match=r"data\.vocab_size=7; it must be at least 8"):
        trained(["abc abc"], 7)


def test_a_corpus_is_quick() -> None:
    texts = [f"{TEXTS[index % 4]} {index % 977} times" for index in range(20_000)]
    start = time.process_time()
    tokenizer = trained(texts, 1000)
    assert len(tokenizer.encode_all(texts)) == 20_000
    assert time.process_time() - start < 8  # 1 s here; room for a busy machine


def test_half_a_surrogate_pair_is_replaced_and_a_whole_one_is_a_character() -> None:
    assert composed("a\udce9b") == "a�b"
    assert composed("\ud83d\ude00") == "😀"


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("2024年5月3日(金) センター12メートル", "2024 年 5 月 3 日 ( 金 ) セ ン タ ー 12 メ ー ト ル"),
        ("人々の〇三 コーヒー、ｶﾞｷﾞ ﾎﾟｰﾄ", "人 々 の 〇 三 コ ー ヒ ー 、 ｶﾞ ｷﾞ ﾎﾟ ｰ ﾄ"),
        ("我用iPhone写字。𠮷野家", "我 用 iPhone 写 字 。 𠮷 野 家"),
        ("น้ำเปล่า ๑๒ กิโลเมตร", "น้ำ เ ป ล่ า ๑๒ กิ โ ล เ ม ต ร"),
        ("ນ້ຳ ລາວ", "ນ້ຳ ລ າ ວ"),
        ("ខ្មែរ ក្រុម", "ខ្មែ រ ក្រុ ម"),
        ("မြန်မာ ၂၀၂၄ အင်္ဂါ", "မြ န် မာ ၂၀၂၄ အ င်္ဂါ"),
        ("ㄅㄆ ꆈꌠ 葛\U000e0100城", "ㄅ ㄆ ꆈ ꌠ 葛\U000e0100 城"),
        ("한국어 문장입니다.", "한국어 문장입니다 ."),
        ("Je t'aime 12e l’été", "Je t' aime 12e l’ été"),
        ("हिन्दी में עברית", "हिन्दी में עברית"),
    ],
)
def test_without_blanks_between_words_a_character_with_its_marks_is_one(text: str, split: str) -> None:
    assert words(text) == split.split()
    tokenizer = trained([text] * 3, 400)
    ids, places = tokenizer.encode_words(text)
    labels = [label.removeprefix(BLANK) for label in tokenizer.labels(ids)]
    assert max(places) + 1 == len(words(text))
    for place, word in enumerate(words(text)):
        assert "".join(label for label, at in zip(labels, places, strict=True) if at == place) == word


@given(st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0x0DFF), max_size=40))
def test_words_of_other_scripts_are_what_they_were(text: str) -> None:
    old = Sequence([WhitespaceSplit(), Split(Regex(OLD_WORD), "isolated")])
    assert words(text) == [word for word, _ in old.pre_tokenize_str(spaced(text))]


def stored_by_an_earlier_version(texts: list[str]) -> SubwordTokenizer:
    """A tokenizer as it was stored when a stretch of Chinese was one word."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizers, "WORD", OLD_WORD)
        return SubwordTokenizer.train(texts, 1000)


def test_a_subword_of_several_words_is_a_part_of_the_last(tmp_path: Path) -> None:
    stored_by_an_earlier_version(["你好 世界 ok"] * 9).save(tmp_path / "tokenizer.json")
    tokenizer = SubwordTokenizer.load(tmp_path / "tokenizer.json")
    ids, places = tokenizer.encode_words("世界 ok 你好")
    assert tokenizer.labels(ids) == ["▁世界", "▁ok", "▁你好"]
    assert words("世界 ok 你好") == ["世", "界", "ok", "你", "好"]
    assert places == [1, 2, 4]
    assert without_gaps(places) == [0, 1, 2]
    assert without_gaps([]) == []


@given(ANY.filter(bool), st.text("你好世界คำ่าabc é。'", max_size=20))
def test_words_are_counted_alike_by_an_old_tokenizer(text: str, other: str) -> None:
    tokenizer = stored_by_an_earlier_version([text, text, other, other])
    for read in (text, other, f"{other} {text}"):
        ids, places = tokenizer.encode_words(read)
        assert len(ids) == len(places)
        assert places == sorted(places)
        assert max(places, default=-1) + 1 == len(words(read))
