"""Pairs from the CLDR: hand-checked alignments, splits that share nothing, the same in every process, bad input."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime

import pytest
from babel import Locale

from triptych.data import embedded, sources
from triptych.data.cldr import pairs
from triptych.data.cldr.alignment import Row, align, field, literal
from triptych.data.cldr.locale import Patterns
from triptych.data.cldr.phrases import Phrases, _shared
from triptych.data.tokenizers import words
from triptych.errors import UserError

Splits = dict[str, dict[str, list[str]]]
SPLITS = ("train", "validation", "test")
MOMENT = datetime(2026, 3, 5, 15, 4)


def in_another_process(hash_seed: str) -> Splits:
    # Not here, where the types of millions of small calls would be checked: the tests by hand do that.
    script = "import json, triptych.data.embedded as e; print(json.dumps(e.make('cldr', 'en:fr')))"
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def made() -> Splits:
    return in_another_process("1")


def both(languages: str, make: Callable[[Patterns], list]) -> Row:
    row = align(*(make(Patterns(Locale.parse(code))) for code in languages.split(":")))
    assert row is not None
    return row


def when(languages: str, pattern: Callable[[Patterns], str | None]) -> Row:
    source, target = map(Locale.parse, languages.split(":"))
    (phrases,) = Phrases(source, target).when(pattern, [MOMENT])
    row = align(*phrases)
    assert row is not None
    return row


def links(row: Row) -> set[str]:
    """The links with the words themselves: March-marzo."""
    found = set()
    for link in row.alignment.split():
        kind = "-" if "-" in link else "?"
        i, j = map(int, link.split(kind))
        found.add(f"{words(row.source)[i]}{kind}{words(row.target)[j]}")
    return found


# Alignments by hand


def test_a_date_in_another_order() -> None:
    row = when("en:es", lambda side: side.date("long"))
    assert row[:2] == ("March 5, 2026", "5 de marzo de 2026")
    # words: 0 March 1 5 2 , 3 2026 / 0 5 1 de 2 marzo 3 de 4 2026. The comma is no "de": either may come from what
    # stands beside it, too.
    assert row.alignment == "0?1 0-2 0?3 1-0 1?1 2?1 2?3 3?3 3-4"
    french = when("en:fr", lambda side: side.date("long"))
    assert french[:3] == ("March 5, 2026", "5 mars 2026", "0-1 1-0 3-2")


def test_the_dot_of_an_abbreviation_leaves_its_word_sure() -> None:
    row = when("en:de", lambda side: side.skeleton("yMMMEd"))
    assert row[:2] == ("Thu, Mar 5, 2026", "Do., 5. März 2026")
    assert {"Thu-Do", "Thu?.", "Mar-März", "5-5", "2026-2026"} <= links(row)
    french = both("en:fr", lambda side: side.moment("MMM y", datetime(2026, 1, 5), "~date", {}))
    assert french[:3] == ("Jan 2026", "janv. 2026", "0-0 0?1 1-2")


def test_phrases_of_unequal_length() -> None:
    source, target = Locale("en"), Locale("fr")
    past, future = [align(*phrases) for phrases in sorted(Phrases(source, target).relative(["day"], [3]), key=len)][
        ::-1
    ]
    assert past is not None
    assert future is not None
    assert past[:2] == ("3 days ago", "il y a 3 jours")
    assert past.alignment == "0-3 1-4 2?0 2?1 2?2"  # "ago" is "il y a"
    assert future[:3] == ("in 3 days", "dans 3 jours", "0-0 1-1 2-2")
    ones = [align(*phrases) for phrases in Phrases(source, target).relative(["year"], [1])]
    assert [row and row.target for row in ones] == ["dans 1 an", "il y a 1 an"]


def test_without_blanks_between_words_characters_are_linked() -> None:
    """A field of one word is sure of each of its characters; its pattern, and fields of several words, are not."""
    japanese = when("en:ja", lambda side: side.skeleton("yMMMEd"))
    assert japanese[:2] == ("Thu, Mar 5, 2026", "2026年3月5日(木)")
    assert links(japanese) >= {"2026-2026", "Mar-3", "5-5", "Thu-木", "2026?年"}
    assert "Thu-日" not in links(japanese)
    thai = when("en:th", lambda side: side.skeleton("yMMMM"))
    assert thai.target == "มีนาคม 2026"
    assert links(thai) == {*(f"March-{letter}" for letter in ("มี", "น", "า", "ค", "ม")), "2026-2026"}
    chinese = both("en:zh", lambda side: side.unit("5", "duration-hour"))
    assert (chinese.target, links(chinese)) == ("5小时", {"5-5", "hours-小", "hours-时"})
    square = both("en:zh", lambda side: side.unit("5", "area-square-kilometer"))
    assert links(square) >= {"5-5", "square?平", "kilometers?里"}
    assert not {link for link in links(square) if link.startswith(("square-", "kilometers-"))}


def test_a_word_is_sure_of_no_single_character_that_it_comes_from() -> None:
    row = both("zh:en", lambda side: side.unit("5", "duration-hour"))
    assert (row.source, links(row)) == ("5小时", {"5-5", "小?hours", "时?hours"})


@pytest.mark.parametrize(
    ("languages", "unit", "expected"),
    [
        ("en:th", "hour", {"ago?ผ่", "hours?ชั่", "ago?น"}),  # น is also a letter of "in", which is no reason
        ("en:ja", "hour", {"ago-前", "hours?時", "hours?間"}),
        ("en:zh", "month", {"ago-前", "months?个", "months?月"}),
    ],
)
def test_what_past_and_future_share_is_a_stretch_where_there_are_no_blanks(
    languages: str, unit: str, expected: set[str]
) -> None:
    source, target = map(Locale.parse, languages.split(":"))
    rows = [align(*phrases) for phrases in Phrases(source, target).relative([unit], [5])]
    (past,) = [row for row in rows if row is not None and "ago" in row.source]
    assert links(past) >= expected
    assert f"{unit}s?น" not in links(past)


def test_only_words_that_touch_are_one_stretch() -> None:
    assert _shared(["cette semaine", "la semaine prochaine"]) == {("semaine",)}
    assert _shared(["l'an dernier", "l'an prochain"]) == {("l'",), ("an",)}
    assert _shared(["先週の日曜日", "来週の日曜日"]) == {("週", "の", "日", "曜", "日")}
    assert _shared(["下个月", "本月"]) == {("月",)}
    assert _shared(["今日", "tomorrow"]) == set()


def test_the_hour_of_a_12_hour_clock_is_two_words() -> None:
    row = when("en:fr", lambda side: side.time("short"))
    assert row[:2] == ("3:04 PM", "15:04")
    assert links(row) == {"3?15", "PM?15", ":?:", "04-04"}
    assert links(when("en:hi", lambda side: side.time("short"))) >= {"3-3", "04-04"}  # a 12-hour clock itself


def test_units_follow_the_plural() -> None:
    one = both("en:fr", lambda side: side.unit("1", "length-kilometer"))
    assert one[:3] == ("1 kilometer", "1 kilomètre", "0-0 1-1")
    assert both("en:fr", lambda side: side.unit("1.5", "length-kilometer"))[:2] == ("1.5 kilometers", "1,5 kilomètre")
    assert both("en:ru", lambda side: side.unit("3", "duration-day")).target == "3 дня"
    square = both("en:fr", lambda side: side.unit("5", "area-square-kilometer"))
    assert links(square) == {"5-5", "square?kilomètres", "square?carrés", "kilometers?kilomètres", "kilometers?carrés"}


def test_amounts() -> None:
    row = both("en:fr", lambda side: side.currency_amount("12500", "EUR"))
    assert row[:3] == ("12,500 euros", "12 500 euros", "0-0 2-1 3-2")  # the plain blank is no word
    assert both("en:fr", lambda side: side.money("12.50", "EUR"))[:2] == ("€12.50", "12,50 €")
    assert links(both("en:fr", lambda side: side.money("12.50", "EUR"))) == {"€-€", "12-12", ".-,", "50-50"}
    assert both("en:fr", lambda side: side.money("12", "CHF")).source == "CHF 12"  # a letter touches no digit
    assert both("en:fr", lambda side: side.percent("5"))[:3] == ("5%", "5 %", "0-0 1-1")


def test_lists() -> None:
    def listed(*items: tuple[str, str], style: str = "standard", languages: str = "en:es") -> Row | None:
        sides = [Patterns(Locale.parse(code)) for code in languages.split(":")]
        phrases = [
            side.listed([[field(item[at], f"item{place}")] for place, item in enumerate(items)], style)
            for at, side in enumerate(sides)
        ]
        return align(phrases[0], phrases[1]) if phrases[0] is not None and phrases[1] is not None else None

    row = listed(("France", "Francia"), ("Spain", "España"), ("Mali", "Malí"))
    assert row is not None
    assert row[:2] == ("France, Spain, and Mali", "Francia, España y Malí")
    assert links(row) == {"France-Francia", ",?,", "Spain-España", ",?y", "and?y", "Mali-Malí"}
    assert listed(("France", "Francia"), ("India", "India")) is None  # it would have to be "e India"
    assert listed(("France", "Francia"), ("Oman", "Omán"), style="or") is None  # and "u Omán"
    assert listed(("France", "Francia"), ("Germany", "Alemania"), style="or") is not None


def test_an_interval_has_ends() -> None:
    source, target = Locale("en"), Locale("fr")
    rows = [align(*phrases) for phrases in Phrases(source, target)._intervals("times", ["hm", "Hm"], [(5, 100)], 40)]
    shared = next(row for row in rows if row and row.source.count("PM") == 1 and "AM" not in row.source)
    # 6:08 – 10:58 PM / 18:08 – 22:58: PM belongs to both hours.
    at = words(shared.source).index("PM")
    hours = [
        words(shared.target)[int(link.split("?")[1])] for link in shared.alignment.split() if link.startswith(f"{at}?")
    ]
    assert len(hours) == 2
    assert all(12 <= int(hour) <= 23 for hour in hours)


# The rules of alignment, on phrases made up for them


def test_a_word_across_pieces_is_only_possible() -> None:
    five = [field("5", "n"), literal("h", "~t"), field(" 04", "m")]
    row = align(five, [field("5", "n"), literal(" h ", "~t"), field("04", "m")])
    assert row is not None
    assert row.alignment == "0?0 0?1 1-2"  # "5h" is one word: the number and the letter


def test_a_field_that_the_source_leaves_out_comes_from_its_neighbours() -> None:
    source = [field("a", "x"), literal(" ", "~p"), field("b", "y")]
    target = [field("A", "x"), literal(" ", "~p"), field("N", "new"), literal(" ", "~p"), field("B", "y")]
    row = align(source, target)
    assert row is not None
    assert row.alignment == "0-0 0?1 1?1 1-2"


def test_a_neighbour_is_of_the_same_pattern() -> None:
    source = [field("a", "x"), literal(" at ", "~at"), field("b", "y")]
    target = [field("A", "x"), literal(" г", "~date"), literal(" в ", "~at"), field("B", "y")]
    row = align(source, target)
    assert row is not None
    assert links(row) == {"a-A", "a?г", "at?в", "b-B"}


def test_letters_that_would_compose_across_pieces_give_no_pair() -> None:
    assert align([field("e", "x"), field("\u0301", "y")], [field("e", "x")]) is None


def test_blanks_are_plain() -> None:
    row = align([field("5\u202f%", "x")], [field("\u200f5\u00a0%", "x")])
    assert row is not None
    assert row[:2] == ("5 %", "5 %")


# The data set


def test_sizes_and_columns(made: Splits) -> None:
    assert list(made) == list(SPLITS)
    assert all(list(columns) == ["source", "target", "alignment"] for columns in made.values())
    assert len(made["test"]["source"]) == len(made["validation"]["source"]) == 2000
    assert 30_000 <= len(made["train"]["source"]) <= 60_000


def test_every_source_once_over_all_splits(made: Splits) -> None:
    every = [source for columns in made.values() for source in columns["source"]]
    assert len(set(every)) == len(every)


def test_new_combinations_of_known_words(made: Splits) -> None:
    for column in ("source", "target"):
        known = {word for text in made["train"][column] for word in words(text)}
        for split in ("validation", "test"):
            assert not {word for text in made[split][column] for word in words(text)} - known
    train = dict(zip(made["train"]["source"], made["train"]["target"], strict=True))
    assert train["Germany"] == "Allemagne"
    assert train["Welsh"] == "gallois"
    assert (train["March"], train["Thursday"], train["Thu"]) == ("mars", "jeudi", "jeu.")
    assert (train["yesterday"], train["next week"]) == ("hier", "la semaine prochaine")
    assert train["seven"] == "sept"
    for split in ("validation", "test"):
        assert not {"Germany", "Welsh", "March", "yesterday", "seven"} & set(made[split]["source"])


def test_links_name_words_and_half_of_the_test_words_are_sure(made: Splits) -> None:
    for columns in made.values():
        sure = total = 0
        for source, target, alignment in zip(*columns.values(), strict=True):
            sizes = (len(words(source)), len(words(target)))
            pairs = [tuple(map(int, link.replace("?", "-").split("-"))) for link in alignment.split()]
            assert len(set(pairs)) == len(pairs)
            assert all(0 <= i < sizes[0] and 0 <= j < sizes[1] for i, j in pairs)
            assert {j for _, j in pairs} == set(range(sizes[1]))  # no target word is left without a link
            certain = [pair for pair, link in zip(pairs, alignment.split(), strict=True) if "-" in link]
            assert len({i for i, _ in certain}) == len({j for _, j in certain}) == len(certain)  # one for one
            sure += len(certain)
            total += sizes[1]
        assert sure / total > 0.55


def test_text_is_clean(made: Splits) -> None:
    for columns in made.values():
        for text in (*columns["source"], *columns["target"]):
            assert text == " ".join(text.split())  # single blanks, plain ones
            assert text.isprintable()


def test_numbers_agree(made: Splits) -> None:
    train = dict(zip(made["train"]["source"], made["train"]["target"], strict=True))
    assert train["1 kilometer"] == "1 kilomètre"
    assert (train["1 euro"], train["2 euros"]) == ("1 euro", "2 euros")
    assert not {"1 kilometers", "1 euros", "in 1 days"} & train.keys()


def test_the_same_whatever_the_hash_seed(made: Splits) -> None:
    assert in_another_process("2") == made


def test_the_configuration_reaches_the_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_pair(config: str) -> Splits:
        return {split: {"source": [config], "target": ["b"], "alignment": ["0-0"]} for split in SPLITS}

    monkeypatch.setitem(embedded.CONFIGURED, "cldr", one_pair)
    found = sources.open(
        source="embedded:cldr",
        path=None,
        config="en:fr",
        revision=None,
        files=None,
        columns={"source": "source", "target": "target", "alignment": "alignment"},
        splits={split: split for split in SPLITS},
        document=False,
        seed=0,
    )
    assert {split: rows.to_dict() for split, rows in found.items()} == one_pair("en:fr")


# Bad input


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("en:frr2", r"data\.target_locale=frr2: .*did you mean frr "),
        ("xx_YY:fr", r"data\.source_locale=xx_YY: .*use a code such as en, fr"),
        ("german:fr", r"data\.source_locale=german: .*did you mean de "),
        ("root:fr", r"data\.source_locale=root: "),
        ("12:fr", r"data\.source_locale=12: "),
        ("en:en_GB", r"data\.source_locale=en and data\.target_locale=en_GB are the same language"),
        ("fr:fr", "are the same language"),
        ("en:io", r"data\.target_locale=io: the CLDR has no text"),
        ("en", r"data\.source_locale and data\.target_locale .*they are en\."),
        (":fr", r"data\.source_locale and data\.target_locale"),
        ("en:fr:de", r"data\.source_locale and data\.target_locale"),
    ],
)
def test_bad_locales_are_named(config: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        embedded.make("cldr", config)


@pytest.mark.parametrize("package", ["babel", "num2words"])
def test_a_missing_package_names_the_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=r"triptych\[translation\]"):
        pairs.cldr("en:fr")


def test_configurations_are_for_sets_that_have_some() -> None:
    with pytest.raises(UserError, match=r"embedded:cldr needs data\.config"):
        embedded.make("cldr")
    with pytest.raises(UserError, match=r"data\.config=en:fr: embedded:digits has no configurations"):
        embedded.make("digits", "en:fr")
