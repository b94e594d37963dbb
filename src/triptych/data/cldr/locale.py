"""One locale's patterns from the CLDR, filled in piece by piece, so that it stays known what became of each value."""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import cache, cached_property
from typing import Any

from triptych.data.cldr.alignment import Phrase, field, literal
from triptych.environment import needs

with needs("data=cldr", "babel", "num2words"):
    from babel import Locale, dates, numbers
    from num2words import CONVERTER_CLASSES, num2words

# Letter of a date pattern (Unicode TR 35) -> what it shows, and the value it shows of a moment.
_SHOWN: dict[str, tuple[str, Callable[[datetime], Any]]] = {
    "G": ("era", lambda moment: moment.year > 0),
    **dict.fromkeys("yu", ("year", lambda moment: moment.year)),
    **dict.fromkeys("Qq", ("quarter", lambda moment: (moment.month - 1) // 3)),
    **dict.fromkeys("ML", ("month", lambda moment: moment.month)),
    "d": ("day", lambda moment: moment.day),
    **dict.fromkeys("Ec", ("weekday", lambda moment: moment.weekday())),
    **dict.fromkeys("hHKk", ("hour", lambda moment: moment.hour)),
    "m": ("minute", lambda moment: moment.minute),
    "s": ("second", lambda moment: moment.second),
    "a": ("period", lambda moment: moment.hour // 12),
    **dict.fromkeys("bB", ("period", lambda moment: (moment.hour, moment.minute))),
    # Locales differ in the day that begins a week: with ISO's count the number is the same on both sides.
    "w": ("week", lambda moment: moment.isocalendar().week),
    "Y": ("year", lambda moment: moment.isocalendar().year),
}
# A conjunction is another word before some sounds; the CLDR's data has only the usual one.
_CLASHES = {"es": {"y": ("i", "hi"), "o": ("o", "ho")}}
_NUM2WORDS = {"nb": "no", "kk": "kz"}  # languages that num2words knows by another code


class Patterns:
    """The patterns and names of one locale. Whatever it lacks comes back as None, or is not among the names."""

    def __init__(self, locale: Locale) -> None:
        self.locale = locale
        self._shown: dict[tuple[str, int, Any], str] = {}
        # Babel formats with these patterns, but has no public door to the patterns themselves.
        self._data: Any = locale._data

    # Names

    def names(self, kind: str) -> dict[str, str]:
        """Code -> name, of ``territories`` or ``languages``."""
        found: Mapping[str, str] = getattr(self.locale, kind)
        return {code: name for code, name in found.items() if name != code}

    def calendar(self, kind: str, width: str) -> dict[int, str]:
        """The ``months``, ``days`` or ``quarters`` as they stand alone, ``wide`` or ``abbreviated``."""
        return dict(getattr(self.locale, kind)["stand-alone"][width].items())

    def currency(self, code: str, count: Decimal | None) -> str:
        """A currency's name, in the form that goes with a number."""
        return numbers.get_currency_name(code, count, self.locale)

    @cached_property
    def units(self) -> dict[str, str]:
        """Units of measurement that the locale has a word for -> their name, in the plural."""
        shown = self.locale.unit_display_names
        return {
            unit: str(shown[unit]["long"])
            for unit, patterns in self._data["unit_patterns"].items()
            if "long" in shown.get(unit, {})
            and "other" in patterns.get("long", {})
            and patterns["long"]["other"] != _untranslated().get(unit)
        }

    def spelled(self, number: int) -> str | None:
        """A number in words: five."""
        language = self.locale.language
        for code in (str(self.locale), _NUM2WORDS.get(language, language)):
            if code in CONVERTER_CLASSES:
                try:
                    return str(num2words(number, lang=code)).strip()
                except (TypeError, NotImplementedError):  # Amharic fails above some thousands
                    return None
        return None

    @property
    def empty(self) -> bool:
        """The CLDR has no more than a code of its own for the months: nothing to translate."""
        return self.calendar("months", "wide") == Patterns(Locale("root")).calendar("months", "wide")

    # Numbers

    def number(self, value: str, key: str = "number") -> Phrase:
        """A number written with a dot, such as 12500.50: groups of three digits from five digits on.

        The digits before and after a separator are fields of their own, and so is the separator.
        """
        whole, _, fraction = value.partition(".")
        pieces = [field(whole, f"{key}.0")]
        if len(whole) > 4:
            group = field(self._group, f"{key}.group")
            pieces = [field(whole[:-3], f"{key}.0"), group, field(whole[-3:], f"{key}.1")]
        if fraction:
            pieces += [field(self._point, f"{key}.point"), field(fraction, f"{key}.fraction")]
        return pieces

    def percent(self, value: str) -> Phrase:
        """15 %."""
        pattern = self.locale.percent_formats[None]
        return _around(self.number(value), pattern.prefix[0], pattern.suffix[0], "%")

    def money(self, value: str, code: str) -> Phrase:
        """An amount with the currency's sign: €12.50."""
        sign = numbers.get_currency_symbol(code, self.locale)
        pattern = self.locale.currency_formats["standard"]
        prefix, suffix = pattern.prefix[0], pattern.suffix[0]
        # That no letter may touch a digit (CHF 12) is a rule of its own in the CLDR, not part of its patterns.
        if prefix.endswith("¤") and unicodedata.category(sign[-1])[0] in "LNP":
            prefix += " "
        if suffix.startswith("¤") and unicodedata.category(sign[0])[0] in "LNP":
            suffix = " " + suffix
        return _around(self.number(value), prefix, suffix, sign)

    def currency_amount(self, value: str, code: str) -> Phrase:
        """An amount with the currency's name: 12 euros."""
        count = Decimal(value)
        pattern = numbers.get_currency_unit_pattern(code, count, self.locale)
        return fill(pattern, [self.number(value), [field(self.currency(code, count), "currency")]], "~currency")

    def unit(self, value: str, unit: str, tag: str = "") -> Phrase:
        """12 kilometers. All that stands beside the number is one field."""
        forms = self._data["unit_patterns"][unit]["long"]
        pattern = forms.get(self._plural(value)) or forms["other"]
        key = f"unit{tag}"
        return [piece._replace(literal=False) for piece in fill(pattern, [self.number(value, f"number{tag}")], key)]

    # Dates and times

    def skeleton(self, name: str) -> str | None:
        """The pattern for what the letters of ``name`` say, as yMMMM for month and year."""
        return self._supported(self.locale.datetime_skeletons.get(name))

    def date(self, width: str) -> str | None:
        """The pattern for a date: full, long, medium."""
        return self._supported(self.locale.date_formats.get(width))

    def time(self, width: str) -> str | None:
        """The pattern for a time: medium, short."""
        return self._supported(self.locale.time_formats.get(width))

    def joined(self, width: str, relative: bool) -> str:
        """The pattern that joins a date {1} and a time {0}; with a word such as "at" if relative and there is one."""
        found = self._data["datetime_formats_relative"].get(width) if relative else None
        pattern = str(found or self.locale.datetime_formats[width])
        return pattern.replace("''", "\0").replace("'", "").replace("\0", "'")  # quotes only protect letters

    def interval(self, skeletons: Sequence[str], start: datetime, end: datetime) -> list[str] | None:
        """The two patterns of an interval, for the first of ``skeletons`` that fits how the locale counts hours."""
        twelve = "period" in shows(self.time("short") or "")
        skeleton = next(name for name in skeletons if len(skeletons) == 1 or ("h" in name) == twelve)
        patterns = self.locale.interval_formats.get(skeleton, {})
        for letter in "yMdahHm":  # from the largest field to the smallest: the first that differs
            name, of = _SHOWN[letter]
            if of(start) == of(end):
                continue
            if letter in patterns:
                parts = [self._supported(part) for part in patterns[letter]]
                return [part for part in parts if part] if len(parts) == 2 and all(parts) else None
            if name in ("year", "month", "day") or (name == "period" and twelve):
                return None
        return None

    def moment(self, pattern: str, moment: datetime, scope: str, keys: Mapping[str, tuple[str, ...]]) -> Phrase:
        """A date or time. Its fields have their own keys (year, month, ...) where ``keys`` gives no others."""
        pieces: Phrase = []
        for kind, value in _tokens(pattern):
            if kind == "chars":
                pieces.append(literal(value, scope))
            else:
                letter, count = value
                name, of = _SHOWN[letter]
                pieces.append(field(self._field(letter, count, of(moment), moment), *keys.get(name, (name,))))
        return pieces

    def relative_names(self, unit: str) -> dict[int, str]:
        """-1, 0, 1 -> last week, this week, next week; for days also yesterday and such."""
        return dict(self._data["date_fields"].get(unit, {}).get("relative", {}))

    def relative(self, value: str, unit: str) -> tuple[str, str] | None:
        """The patterns for a number of units of time: in {0} days, {0} days ago."""
        found = self._data["date_fields"].get(unit, {})
        form = self._plural(value)
        future, past = (
            found.get(when, {}).get(form) or found.get(when, {}).get("other") for when in ("future", "past")
        )
        return (str(future), str(past)) if future and past else None

    # Lists

    def listed(self, items: Sequence[Phrase], style: str) -> Phrase | None:
        """A, B, and C; None where the language would put another word for "and" before that very item."""
        styles = self.locale.list_patterns
        patterns = styles[style] if style in styles else styles["standard"]

        def pattern(part: str) -> str:
            return str(patterns[part] if part in patterns else styles["standard"][part])

        last = len(items) - 1
        whole = items[last]
        for index in range(last - 1, -1, -1):
            part = "2" if last == 1 else "end" if index == last - 1 else "start" if index == 0 else "middle"
            if self._clash(pattern(part), whole[0].text):
                return None
            whole = fill(pattern(part), [items[index], whole], f"~list{index}")
        return whole

    def _clash(self, pattern: str, following: str) -> bool:
        before = pattern.split("{1}")[0].split()[-1:]
        beginnings = _CLASHES.get(self.locale.language, {}).get(before[0] if before else "", ())
        return following.lower().startswith(beginnings) if beginnings else False

    def _plural(self, value: str) -> str:
        return self.locale.plural_form(Decimal(value))

    @cached_property
    def _group(self) -> str:
        return numbers.get_group_symbol(self.locale)

    @cached_property
    def _point(self) -> str:
        return numbers.get_decimal_symbol(self.locale)

    def _supported(self, pattern: Any) -> str | None:
        if not pattern:
            return None
        text = str(pattern)
        letters = [value[0] for kind, value in _tokens(text) if kind == "field"]
        return text if letters and all(letter in _SHOWN for letter in letters) else None

    def _field(self, letter: str, count: int, value: Any, moment: datetime) -> str:
        key = (letter, count, value)
        if key not in self._shown:
            if letter in "wY":
                self._shown[key] = f"{value:0{count}d}"
            else:
                self._shown[key] = dates.DateTimeFormat(moment, self.locale)[letter * count]
        return self._shown[key]


@cache
def _untranslated() -> dict[str, str]:
    """Units -> the pattern with a sign or an English word that a locale falls back to."""
    patterns = Locale("root")._data["unit_patterns"]
    return {unit: found["long"]["other"] for unit, found in patterns.items() if "other" in found.get("long", {})}


@cache
def _tokens(pattern: str) -> list[tuple[str, Any]]:
    return dates.tokenize_pattern(pattern)


@cache
def shows(pattern: str) -> frozenset[str]:
    """What the fields of a date pattern show: year, month, ..."""
    return frozenset(_SHOWN[value[0]][0] for kind, value in _tokens(pattern) if kind == "field")


def value_of(name: str, moment: datetime) -> Any:
    """What a field of that name shows of a moment."""
    return next(of for found, of in _SHOWN.values() if found == name)(moment)


def _around(number: Phrase, prefix: str, suffix: str, sign: str) -> Phrase:
    """A number in a pattern that has ¤ or % where the sign stands."""
    before, behind = (
        [field(sign, "sign") if text in ("¤", "%") else literal(text, "~sign") for text in re.split("([¤%])", part)]
        for part in (prefix, suffix)
    )
    return before + number + behind


def fill(pattern: str, values: Sequence[Phrase], scope: str) -> Phrase:
    """Put ``values`` in the places {0}, {1} of a pattern; what stands around them gets the key ``scope``."""
    pieces: Phrase = []
    for index, text in enumerate(_places(pattern)):
        if index % 2:
            pieces += values[int(text)]
        elif text:
            pieces.append(literal(text, scope))
    return pieces


@cache
def _places(pattern: str) -> list[str]:
    return re.split(r"\{(\d)\}", pattern)
