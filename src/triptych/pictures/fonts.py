"""Text in pictures: which fonts it is drawn with, how wide it is, and what stands for what no font has.

The base is matplotlib's own DejaVu Sans, the same on every machine. A character that it lacks (Chinese, Japanese,
Thai, ...) is drawn with a font of this machine that has it; where there is none, its code point is written instead,
since a box says nothing, and a warning names what to install.
"""

import logging
import unicodedata
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path

import matplotlib
from matplotlib.font_manager import FontEntry, FontProperties, findSystemFonts, fontManager, get_font, ttfFontProperty
from matplotlib.ft2font import FT2Font, LoadFlags

log = logging.getLogger(__name__)

BASE = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
_LETTER = 0.55  # of the size of a font: the width of an average letter
_POINTS = 4  # code points in a row
_CJK = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO")  # how the names of their characters begin
_warned: set[str] = set()  # of what this process has warned: once is enough


def properties(texts: Iterable[str], size: float) -> FontProperties:
    """The fonts for some ``drawable`` texts, one behind the other; ``size`` in points."""
    families = {family: None for character in sorted(set().union(*texts)) if (family := _family(character))}
    if not families:
        return FontProperties(fname=str(BASE), size=size)
    base = _named(ttfFontProperty(FT2Font(str(BASE))), "triptych")
    return FontProperties(family=[base, *families], size=size)


def drawable(text: str) -> str:
    """The text, with "U+4F60" for a character that no font of this machine has; of many in a row, the first few."""
    written: list[str] = []
    for known, run in groupby(text, key=_known):
        characters = list(run)
        if known:
            written += [" " if character.isspace() else character for character in characters]
        else:
            _warn(characters[0])
            points = [f"U+{ord(character):04X}" for character in characters]
            written.append(" ".join(points[:_POINTS]) + ("…" if len(points) > _POINTS else ""))
    return "".join(written)


def width(text: str) -> float:
    """How wide a text is, in average letters: a sign of Chinese is about two, a mark on a letter nothing."""
    return sum(_width(character) for character in text)


def wrapped(text: str, letters: int) -> list[str]:
    """The text in lines of at most ``letters`` letters, broken at blanks; only what is longer is broken elsewhere."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        joined = f"{line} {word}" if line else word
        if line and width(joined) > letters >= width(word):
            lines.append(line)
            joined = word
        while width(joined) > letters:
            end = _fitting(joined, letters)
            lines.append(joined[:end].rstrip())
            joined = joined[end:].lstrip()
        line = joined
    return [*lines, line] if line else lines


@cache
def _width(character: str) -> float:
    family = _family(character)
    font: FT2Font = get_font(str(BASE) if family is None else dict(_families())[family])
    return font.load_char(ord(character), flags=LoadFlags.NO_SCALE).horiAdvance / font.units_per_EM / _LETTER


def _known(character: str) -> bool:
    return character.isspace() or ord(character) in _glyphs(BASE) or _family(character) is not None


def _fitting(text: str, letters: int) -> int:
    """How many characters of the text fit into a line; one at least."""
    end = 1
    while end < len(text) and width(text[: end + 1]) <= letters:
        end += 1
    return end


@cache
def _family(character: str) -> str | None:
    """The first family of fonts, besides the base, that can draw the character."""
    if ord(character) in _glyphs(BASE):
        return None
    return next((family for family, path in _families() if _draws(path, character)), None)


@cache
def _families() -> list[tuple[str, str]]:
    """The fonts of this machine by the names that ``_named`` gives them, with their files; sans-serif ones first."""
    known = {str(font.fname) for font in fontManager.ttflist}
    for path in findSystemFonts():
        if str(path) not in known:  # installed since matplotlib made its list, which it keeps between processes
            try:
                fontManager.addfont(path)
            except Exception as error:  # a damaged file: FreeType raises nothing narrower
                log.debug("%s: %s", path, error)
    ours = matplotlib.get_data_path()  # what else matplotlib brings is for mathematics
    regular: dict[str, FontEntry] = {}
    for font in sorted(fontManager.ttflist, key=_irregular):
        # A font of last resort has a box for everything.
        if not str(font.fname).startswith(ours) and "lastresort" not in "".join(filter(str.isalpha, font.name.lower())):
            regular.setdefault(font.name, font)
    ordered = sorted(regular.values(), key=_unlikely)
    names = [_named(font, f"triptych {font.name}") for font in ordered]
    return [(name, fontManager.findfont(FontProperties(family=name))) for name in names]


def _unlikely(font: FontEntry) -> tuple[bool, bool, int, str]:
    """Smallest for the family to try first: without serifs, and the first of several in one file."""
    return "Serif" in font.name, "Sans" not in font.name, getattr(font, "index", 0), font.name


def _irregular(font: FontEntry) -> tuple[bool, bool, int, str]:
    """Smallest for the regular font of a family."""
    weight = font.weight if isinstance(font.weight, int) else 400
    return font.style != "normal", font.stretch != "normal", abs(weight - 400), str(font.fname)


def _named(font: FontEntry, name: str) -> str:
    """Make matplotlib know the font by a family of its own, so that it takes this very file, whatever its weight."""
    if all(known.name != name for known in fontManager.ttflist):
        own = replace(font, name=name, style="normal", variant="normal", weight=400, stretch="normal")
        fontManager.ttflist.append(own)
    return name


def _draws(path: str | Path, character: str) -> bool:
    """Whether a font has more than an empty glyph for the character: a font of coloured pictures has no outlines."""
    if ord(character) not in _glyphs(path):
        return False
    try:
        font: FT2Font = get_font(path)
        font.load_char(ord(character), flags=LoadFlags.NO_HINTING)
        return len(font.get_path()[0]) > 0
    except Exception as error:  # FreeType's own, of a font that it cannot scale
        log.debug("%s: %s", path, error)
        return False


@cache
def _glyphs(path: str | Path) -> frozenset[int]:
    """The characters that a font has."""
    try:
        return frozenset(get_font(path).get_charmap())
    except Exception as error:  # a font of a kind that FreeType does not read
        log.debug("%s: %s", path, error)
        return frozenset()


def _warn(character: str) -> None:
    """Say once in a process that fonts are missing, and which."""
    if _warned:
        return
    _warned.add(character)
    script = unicodedata.name(character, "").partition(" ")[0].partition("-")[0]
    if script in _CJK:
        install = "install Noto Sans CJK (the package fonts-noto-cjk)"
    elif script and unicodedata.category(character)[0] in "LM":
        install = f"install Noto Sans {script.title()} (the package fonts-noto)"
    else:
        install = "install one that has it, such as those of the Noto family (the package fonts-noto)"
    log.warning(
        "No font of this machine has the character U+%04X, so pictures show code points in its place: %s; the report "
        "shows the characters themselves.",
        ord(character),
        install,
    )
