"""The kinds of phrases that two locales are asked for: dates, times, amounts, names, lists and more."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from triptych.data.cldr.alignment import Phrase, field, joins
from triptych.data.cldr.locale import Patterns, fill, shows, value_of
from triptych.data.tokenizers import words
from triptych.environment import needs

with needs("data=cldr", "babel"):
    from babel import Locale
    from babel.core import get_global
    from babel.numbers import get_currency_precision, get_currency_symbol

Both = tuple[Phrase, Phrase]

NO_NAMES = {"ZZ", "XA", "XB", "und", "zxx", "mul"}  # codes for what is unknown, made up, or several things
NO_UNITS = {  # parts of a name, and a kilocalorie by another name
    "concentr-ofglucose", "pressure-ofhg", "pressure-gasoline-energy-density", "temperature-generic",
    "energy-foodcalorie",
}  # fmt: skip
UNITS_OF_TIME = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DURATIONS = {  # units said together, with the largest number of each
    ("duration-hour", "duration-minute"): (23, 59),
    ("duration-minute", "duration-second"): (59, 59),
    ("duration-day", "duration-hour"): (30, 23),
    ("duration-year", "duration-month"): (80, 11),
    ("duration-week", "duration-day"): (12, 6),
    ("duration-hour", "duration-minute", "duration-second"): (23, 59, 59),
}
FIRST = datetime(1900, 1, 1)
LAST = datetime(2099, 12, 31)


class Phrases:
    """Every kind of phrase in two locales; a kind that one of them has no pattern for gives no phrases.

    What is drawn depends on the kind alone: not on the languages, nor on other kinds.
    """

    def __init__(self, source: Locale, target: Locale) -> None:
        self.sides = (Patterns(source), Patterns(target))

    def names(self) -> Iterator[tuple[str, Iterable[Both]]]:
        """Kind and phrases, of the names that the combinations are made of."""
        source, target = self.sides
        yield "territory", map(_named, self._names("territories"))
        yield "language", map(_named, self._names("languages"))
        for width in ("wide", "abbreviated"):  # wide ones first: May is both
            yield "month", map(_named, self._calendar("months", width))
            yield "weekday", map(_named, self._calendar("days", width))
        yield "quarter", map(_named, self._calendar("quarters", "wide"))
        yield "unit name", (_named((source.units[unit], target.units[unit])) for unit in self._units())
        yield "currency name", (_named((source.currency(c, None), target.currency(c, None))) for c in self._tender())
        yield "relative name", self._relative_names()
        yield "number name", self._spelled([*range(21), *range(30, 100, 10), 100, 1000])

    def combinations(self) -> Iterator[tuple[str, Iterable[Both]]]:
        """Kind and phrases, of names and numbers put together; of like forms, the longest first."""
        yield "date", self._dates("date", lambda side: side.date("long"), 5000)
        yield "date with weekday", self._dates("date with weekday", lambda side: side.date("full"), 5000)
        yield "short date", self._dates("short date", lambda side: side.skeleton("yMMMd"), 2500)
        yield "short date with weekday", self._dates("short weekday", lambda side: side.skeleton("yMMMEd"), 1500)
        yield "date in figures", self._dates("date in figures", lambda side: side.skeleton("yMd"), 2000)
        days = [datetime(2024, 1, 1) + timedelta(day) for day in range(366)]
        yield "day and month", self.when(lambda side: side.skeleton("MMMMd"), days)
        months = [datetime(year, month, 1) for year in range(1900, 2100) for month in range(1, 13)]
        months = random.Random("cldr month").sample(months, 2000)
        yield "month and year", self.when(lambda side: side.skeleton("yMMMM"), months[:1500])
        yield "short month and year", self.when(lambda side: side.skeleton("yMMM"), months[1000:])
        yield "quarter and year", self.when(lambda side: side.skeleton("yQQQQ"), months[:500])
        yield "week and year", self._dates("week and year", lambda side: side.skeleton("yw"), 700)
        yield "time", self._dates("time", lambda side: side.time("short"), 900)
        yield "time with seconds", self._dates("time with seconds", lambda side: side.time("medium"), 1500)
        yield "date and time", self._dates_at_times("long", "short", 3000)
        yield "date with weekday and time", self._dates_at_times("full", "short", 1500)
        yield "short date and time", self._dates_at_times("medium", "medium", 1500)
        yield "relative day and time", self._days_at_times(1200)
        yield "relative", self.relative(UNITS_OF_TIME, range(1, 100))
        yield "relative weekday", self.relative(WEEKDAYS, range(1, 13))
        yield "unit", self._amounts_of_units()
        yield "duration", self._durations(2200)
        yield "currency", self._currencies()
        yield "currency sign", self._money(2000)
        yield "percent", self._percent()
        yield "list of territories", self._lists("territories", self._countries(), 3500)
        yield "list of languages", self._lists("languages", self._names("languages"), 2000)
        yield "list of months", self._lists("months", self._calendar("months", "wide"), 500)
        yield "list of weekdays", self._lists("weekdays", self._calendar("days", "wide"), 300)
        yield "language and territory", self._languages_in_territories()
        yield "interval of dates", self._intervals("dates", ["yMMMd"], [(24 * 60, 20), (31 * 24 * 60, 10)], 2000)
        yield "interval of months", self._intervals("months", ["yMMMM"], [(31 * 24 * 60, 20)], 700)
        yield "interval of years", self._intervals("years", ["y"], [(366 * 24 * 60, 30)], 700)
        yield "interval of times", self._intervals("times", ["hm", "Hm"], [(5, 100)], 1200)
        yield "number", self._spelled(random.Random("cldr number").sample(range(21, 1000), 600))
        yield "large number", self._spelled(random.Random("cldr large number").sample(range(1001, 100_000), 400))

    # Names

    def _names(self, kind: str) -> list[tuple[str, str]]:
        ours, theirs = (side.names(kind) for side in self.sides)
        return [(ours[code], theirs[code]) for code in sorted(ours.keys() & theirs.keys() - NO_NAMES)]

    def _countries(self) -> list[tuple[str, str]]:
        """Territories without the world and its regions, which have numbers as codes and would list oddly."""
        ours, theirs = (side.names("territories") for side in self.sides)
        codes = sorted(code for code in ours.keys() & theirs.keys() - NO_NAMES if code.isalpha())
        return [(ours[code], theirs[code]) for code in codes]

    def _calendar(self, kind: str, width: str) -> list[tuple[str, str]]:
        ours, theirs = (side.calendar(kind, width) for side in self.sides)
        return [(ours[number], theirs[number]) for number in sorted(ours.keys() & theirs.keys())]

    def _units(self) -> list[str]:
        ours, theirs = (side.units for side in self.sides)
        return [
            unit
            for unit in sorted(ours.keys() & theirs.keys() - NO_UNITS)
            # No doubles (a year of a person's age), none that needs an explanation in brackets.
            if not unit.endswith("-person") and "[" not in ours[unit] + theirs[unit]
        ]

    def _tender(self) -> list[str]:
        """Currencies that are legal tender somewhere, as far as both locales name them."""
        codes = {
            code
            for entries in get_global("territory_currencies").values()
            for code, _, end, tender in entries
            if end is None and tender
        }
        return sorted(code for code in codes if all(code in side.locale.currencies for side in self.sides))

    def _relative_names(self) -> Iterator[Both]:
        for unit in (*UNITS_OF_TIME, *WEEKDAYS):
            ours, theirs = (side.relative_names(unit) for side in self.sides)
            # last week, this week, next week: what all of them have is the week.
            shared = [_shared(list(found.values())) if len(found) > 1 else set() for found in (ours, theirs)]
            for offset in sorted(ours.keys() & theirs.keys()):
                pair = (ours[offset], theirs[offset])
                yield _cut(pair[0], shared[0], all(shared)), _cut(pair[1], shared[1], all(shared))

    def _spelled(self, numbers: Iterable[int]) -> Iterator[Both]:
        for number in numbers:
            source, target = (side.spelled(number) for side in self.sides)
            if source is not None and target is not None:
                yield _named((source, target))

    # Dates and times

    def _dates(self, kind: str, pattern: Callable[[Patterns], str | None], count: int) -> Iterator[Both]:
        return self.when(pattern, _moments(kind, count))

    def when(self, pattern: Callable[[Patterns], str | None], moments: Iterable[datetime]) -> Iterator[Both]:
        """Dates or times in either locale's ``pattern``, if both have one."""
        ours, theirs = (pattern(side) for side in self.sides)
        if ours is not None and theirs is not None:
            for moment in moments:
                yield self._at(ours, theirs, moment, "~date")

    def _at(self, ours: str, theirs: str, moment: datetime, scope: str) -> Both:
        source, target = self.sides
        keys: Mapping[str, tuple[str, ...]] = {}
        if ("period" in shows(ours)) != ("period" in shows(theirs)):
            keys = {"period": ("hour",)}  # 3 and PM together are 15
        return source.moment(ours, moment, scope, keys), target.moment(theirs, moment, scope, keys)

    def _dates_at_times(self, date: str, time: str, count: int) -> Iterator[Both]:
        dates = [side.date(date) for side in self.sides]
        times = [side.time(time) for side in self.sides]
        joined = [side.joined(date, relative=date != "medium") for side in self.sides]
        if dates[0] and dates[1] and times[0] and times[1]:
            for moment in _moments(f"{date} date and {time} time", count):
                days = self._at(dates[0], dates[1], moment, "~date")
                hours = self._at(times[0], times[1], moment, "~time")
                yield fill(joined[0], [hours[0], days[0]], "~at"), fill(joined[1], [hours[1], days[1]], "~at")

    def _days_at_times(self, count: int) -> Iterator[Both]:
        days = [side.relative_names("day") for side in self.sides]
        times = [side.time("short") for side in self.sides]
        joined = [side.joined("long", relative=True) for side in self.sides]
        offsets = [offset for offset in range(-2, 3) if all(offset in side for side in days)]
        if offsets and times[0] and times[1]:
            for index, moment in enumerate(_moments("relative day and time", count)):
                offset = offsets[index % len(offsets)]
                day = _named((days[0][offset], days[1][offset]))
                hours = self._at(times[0], times[1], moment, "~time")
                yield fill(joined[0], [hours[0], day[0]], "~at"), fill(joined[1], [hours[1], day[1]], "~at")

    def relative(self, units: Sequence[str], numbers: Iterable[int]) -> Iterator[Both]:
        """3 days ago, in 3 days: units of time, or days of the week, before and after now."""
        for unit in units:
            for value in map(str, numbers):
                ours, theirs = (side.relative(value, unit) for side in self.sides)
                if ours is None or theirs is None:
                    continue
                # What past and future share beside the number is the name of the unit.
                shared = [_shared([pattern.replace("{0}", " ") for pattern in side]) for side in (ours, theirs)]
                for pair in zip(ours, theirs, strict=True):
                    source, target = (
                        [
                            part
                            for piece in fill(pattern, [side.number(value)], "")
                            for part in (_cut(piece.text, names, all(shared)) if piece.literal else [piece])
                        ]
                        for side, pattern, names in zip(self.sides, pair, shared, strict=True)
                    )
                    yield source, target

    def _intervals(self, kind: str, names: list[str], steps: list[tuple[int, int]], count: int) -> Iterator[Both]:
        """Beginning and end, with a number of steps of so many minutes between."""
        draw = random.Random(f"cldr interval of {kind}")
        for index, start in enumerate(_moments(f"interval of {kind}", count)):
            minutes, most = steps[index % len(steps)]
            end = start + timedelta(minutes=minutes * draw.randint(1, most))
            if (kind == "times" and end.date() != start.date()) or end > LAST:
                continue
            ours, theirs = (side.interval(names, start, end) for side in self.sides)
            if ours is not None and theirs is not None:
                shown = [[shows(pattern) for pattern in patterns] for patterns in (ours, theirs)]
                twelve = ["period" in side[0] | side[1] for side in shown]
                twice = shown[0][0] & shown[0][1] & shown[1][0] & shown[1][1]
                source, target = self.sides
                rest = ((start, end), twice, twelve[0] != twelve[1])
                yield _interval(source, ours, *rest), _interval(target, theirs, *rest)

    # Amounts

    def _amounts_of_units(self) -> Iterator[Both]:
        source, target = self.sides
        for unit in self._units():
            draw = random.Random(f"cldr {unit}")
            whole = [1, 2, *draw.sample(range(3, 100), 12), *draw.sample(range(100, 1000), 5)]
            for value in [*map(str, whole), *(f"{draw.randrange(1, 100)}.{draw.randrange(1, 10)}" for _ in range(3))]:
                yield source.unit(value, unit), target.unit(value, unit)

    def _durations(self, count: int) -> Iterator[Both]:
        draw = random.Random("cldr duration")
        kinds = [kind for kind in DURATIONS if all(unit in side.units for unit in kind for side in self.sides)]
        for index in range(count if kinds else 0):
            units = kinds[index % len(kinds)]
            values = [str(draw.randint(1, most)) for most in DURATIONS[units]]
            ours, theirs = (
                side.listed([side.unit(values[at], unit, str(at)) for at, unit in enumerate(units)], "unit")
                for side in self.sides
            )
            if ours is not None and theirs is not None:
                yield ours, theirs

    def _currencies(self) -> Iterator[Both]:
        source, target = self.sides
        for code in self._tender():
            draw = random.Random(f"cldr {code}")
            values = [1, 2, *draw.sample(range(3, 1000), 8), *(500 * draw.randint(20, 199) for _ in range(4))]
            for value in map(str, values):
                yield source.currency_amount(value, code), target.currency_amount(value, code)

    def _money(self, count: int) -> Iterator[Both]:
        source, target = self.sides
        codes = [c for c in self._tender() if any(get_currency_symbol(c, side.locale) != c for side in self.sides)]
        draw = random.Random("cldr money")
        for index in range(count if codes else 0):
            code = codes[index % len(codes)]
            value = str(draw.randrange(1, 1000) if index % 8 else draw.randrange(10_000, 100_000))
            digits = get_currency_precision(code)
            if digits:
                value += f".{draw.randrange(10**digits):0{digits}d}"
            yield source.money(value, code), target.money(value, code)

    def _percent(self) -> Iterator[Both]:
        source, target = self.sides
        draw = random.Random("cldr percent")
        for value in [
            *map(str, range(1, 201)),
            *(f"{draw.randrange(100)}.{draw.randrange(1, 10)}" for _ in range(500)),
        ]:
            yield source.percent(value), target.percent(value)

    # Names together

    def _lists(self, kind: str, names: list[tuple[str, str]], count: int) -> Iterator[Both]:
        draw = random.Random(f"cldr list of {kind}")
        names = [pair for pair in names if not any(sign in pair[0] + pair[1] for sign in ",&()")]
        for index in range(count if len(names) > 4 else 0):
            chosen = draw.sample(names, (2, 3, 2, 3, 4)[index % 5])
            style = "or" if draw.random() < 0.25 else "standard"
            ours, theirs = (
                side.listed([[field(pair[at], f"item{place}")] for place, pair in enumerate(chosen)], style)
                for at, side in enumerate(self.sides)
            )
            if ours is not None and theirs is not None:
                yield ours, theirs

    def _languages_in_territories(self) -> Iterator[Both]:
        """French (Canada): languages that are spoken there."""
        languages, territories = ([side.names(kind) for side in self.sides] for kind in ("languages", "territories"))
        for territory, spoken in sorted(get_global("territory_languages").items()):
            for language in sorted(spoken):
                phrases = [
                    fill(
                        "{0} ({1})",
                        [[field(names[language], "language")], [field(places[territory], "territory")]],
                        "~brackets",
                    )
                    for names, places in zip(languages, territories, strict=True)
                    if language in names and territory in places and "(" not in names[language] + places[territory]
                ]
                if len(phrases) == 2:
                    yield phrases[0], phrases[1]


def _named(pair: tuple[str, str]) -> Both:
    return [field(pair[0], "name")], [field(pair[1], "name")]


def _shared(phrases: Sequence[str]) -> set[tuple[str, ...]]:
    """What all of the phrases have: words, and where a script has no blanks between words, the longest stretch."""
    runs = [_runs(phrase) for phrase in phrases]
    alone = set.intersection(*({run for run in each if len(run) == 1} for each in runs))
    parts = [
        {run[start:end] for run in each for start in range(len(run)) for end in range(start + 1, len(run) + 1)}
        for each in runs
    ]
    stretches = set.intersection(*parts) - alone
    return alone | set(sorted(stretches, key=lambda stretch: (-len(stretch), stretch))[:1])


def _runs(text: str) -> list[tuple[str, ...]]:
    """The words of the text, those that touch each other together."""
    runs: list[tuple[str, ...]] = []
    position = 0
    before = False  # the word before may touch this one
    for word in words(text):
        start = text.index(word, position)
        if before and start == position and joins(word):
            runs[-1] = (*runs[-1], word)
        else:
            runs.append((word,))
        position, before = start + len(word), joins(word)
    return runs


def _cut(text: str, names: set[tuple[str, ...]], apart: bool) -> Phrase:
    """Word by word: those in ``names`` are one field, the others another one; all are the same if not ``apart``."""
    pieces: Phrase = []
    position = 0
    said = tuple(words(text))
    named = {
        at
        for name in names
        for start in range(len(said) - len(name) + 1)
        if said[start : start + len(name)] == name
        for at in range(start, start + len(name))
    }
    for at, word in enumerate(said):
        end = text.index(word, position) + len(word)
        pieces.append(field(text[position:end], "unit" if at in named or not apart else "when"))
        position = end
    return [*pieces, field(text[position:])]


def _moments(kind: str, count: int) -> list[datetime]:
    draw = random.Random(f"cldr moments {kind}")
    seconds = int((LAST - FIRST).total_seconds())
    return [FIRST + timedelta(seconds=draw.randrange(seconds)) for _ in range(count)]


def _interval(
    side: Patterns, patterns: list[str], ends: tuple[datetime, datetime], twice: frozenset[str], with_hour: bool
) -> Phrase:
    """What both languages show ``twice``, or what differs, has a key for the beginning and another one for the end.

    With ``with_hour``, AM or PM says something about every hour that it belongs to: the other side has 24 hours.
    """

    def keys(name: str, part: int) -> tuple[str, ...]:
        if name == "period" and with_hour:
            own = all("period" in shows(pattern) for pattern in patterns)
            return tuple(dict.fromkeys(key for at in ([part] if own else [0, 1]) for key in keys("hour", at)))
        apart = name in twice or value_of(name, ends[0]) != value_of(name, ends[1])
        return (f"{name}{part}",) if apart else (name,)

    return [
        piece
        for part, pattern in enumerate(patterns)
        for piece in side.moment(pattern, ends[part], "~interval", {name: keys(name, part) for name in shows(pattern)})
    ]
