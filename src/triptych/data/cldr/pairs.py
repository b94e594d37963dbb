"""Pairs of phrases that mean the same, in any two locales, from the Unicode CLDR that the Babel package carries."""

import difflib
import hashlib
from collections import Counter
from typing import TYPE_CHECKING

from triptych.data.cldr.alignment import Row, align
from triptych.environment import needs, require
from triptych.errors import UserError

if TYPE_CHECKING:
    from babel import Locale

HELD_OUT = 2000  # pairs, for validation and for test each
HELD_OUT_SHARE = 0.05  # ... and no more than this share of the pairs


def cldr(config: str) -> dict[str, dict[str, list[str]]]:
    """Phrases of two locales with their word alignment (columns ``source``, ``target`` and ``alignment``).

    Dates, times, units, currencies, names of territories and languages, lists and more, as the Unicode Common
    Locale Data Repository writes them in either language; numbers in words come from num2words. A phrase is a
    pattern with fields put in, so which words became of which field is known: see
    `triptych.data.cldr.alignment.align` for the links. They are written as "i-j" (sure) and "i?j" (possible).

    Every source has one target, that of the first kind of phrase that has it, and stands in one split. A hash of
    the source decides which. Names alone are always trained on, and so is a pair with the last occurrence of a
    word: validation and test hold new combinations of known words. Some phrases are the same in both languages
    (5 volts). Blanks are plain ones, where the CLDR has some that must not break. The same version of Babel always
    gives the same pairs.

    Args:
        config: source and target locale with a colon between: ``en:fr``.

    Raises:
        UserError: that is no pair of locales which Babel knows, with different languages; or a package is missing.
    """
    require("data=cldr", "babel", "num2words")
    names, combinations = ([row for _, row in rows] for rows in pairs(*_locales(config)))
    test, validation = _held_out(names + combinations, combinations)
    held = {row.source for row in test + validation}
    train = [row for row in names + combinations if row.source not in held]
    return {
        split: {
            "source": [row.source for row in rows],
            "target": [row.target for row in rows],
            "alignment": [row.alignment for row in rows],
        }
        for split, rows in (("train", sorted(train, key=_hash)), ("validation", validation), ("test", test))
    }


def pairs(source: "Locale", target: "Locale") -> tuple[list[tuple[str, Row]], list[tuple[str, Row]]]:
    """All names, and all combinations, each with its kind."""
    from triptych.data.cldr.phrases import Phrases

    seen: set[str] = set()
    found: tuple[list[tuple[str, Row]], list[tuple[str, Row]]] = ([], [])
    phrases = Phrases(source, target)
    for rows, kinds in zip(found, (phrases.names(), phrases.combinations()), strict=True):
        for kind, made in kinds:
            for ours, theirs in made:
                row = align(ours, theirs)
                if row is not None and row.source not in seen:
                    seen.add(row.source)
                    rows.append((kind, row))
    return found


def _held_out(rows: list[Row], combinations: list[Row]) -> tuple[list[Row], list[Row]]:
    """Test and validation, in the order of the hash; every word of theirs also occurs in the rows that remain."""
    count = min(HELD_OUT, int(HELD_OUT_SHARE * len(combinations)))
    left = Counter(word for row in rows for word in _vocabulary(row))
    chosen: list[Row] = []
    for row in sorted(combinations, key=_hash):
        if len(chosen) == 2 * count:
            break
        found = _vocabulary(row)
        if all(left[word] > 1 for word in found):
            left.subtract(found)
            chosen.append(row)
    return chosen[: len(chosen) // 2], chosen[len(chosen) // 2 :]


def _vocabulary(row: Row) -> set[tuple[str, str]]:
    return {("source", word) for word in row.source_words} | {("target", word) for word in row.target_words}


def _hash(row: Row) -> bytes:
    return hashlib.sha256(row.source.encode()).digest()


def _locales(config: str) -> "tuple[Locale, Locale]":
    """Read SOURCE:TARGET."""
    given = config.split(":")
    if len(given) != 2 or not all(given):
        raise UserError(
            "data.source_locale and data.target_locale must name a locale each, such as en and fr; "
            f"together they are {config}."
        )
    source, target = _locale("source", given[0]), _locale("target", given[1])
    if source.language == target.language:
        raise UserError(
            f"data.source_locale={given[0]} and data.target_locale={given[1]} are the same language: "
            "choose two different ones, such as en and fr."
        )
    return source, target


def _locale(side: str, name: str) -> "Locale":
    with needs("data=cldr", "babel"):
        from babel import Locale, UnknownLocaleError

    from triptych.data.cldr.locale import Patterns

    try:
        if name.lower() in ("root", "und"):  # data of no language in particular
            raise UnknownLocaleError(name)
        locale = Locale.parse(name, sep="-" if "-" in name else "_")
    except (UnknownLocaleError, ValueError) as error:
        raise UserError(f"data.{side}_locale={name}: Babel knows no such locale; {_near(name)}") from error
    if Patterns(locale).empty:
        raise UserError(
            f"data.{side}_locale={name}: the CLDR has no text in that language; use a locale such as en, fr, de or es."
        )
    return locale


def _near(name: str) -> str:
    """What may have been meant: a locale with a code, or a language with an English name, that is nearly the same."""
    with needs("data=cldr", "babel"):
        from babel import Locale
        from babel.localedata import locale_identifiers

    known = {code.lower(): code for code in sorted(locale_identifiers()) if code != "root"}
    languages = {english.lower(): code for code, english in Locale("en").languages.items() if code.lower() in known}
    codes = languages | known
    near = difflib.get_close_matches(name.lower().replace("-", "_"), codes, n=3)
    if not near:
        return "use a code such as en, fr, de, es or it."
    return f"did you mean {' or '.join(dict.fromkeys(codes[found] for found in near))}?"
