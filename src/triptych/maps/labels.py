"""How texts are written beside a map: white space and control characters made visible, what is long cut."""

import unicodedata

# Space, newline and tab are tokens of their own in a character model: an empty label would hide them.
_SHOWN = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", "\x7f": "␡", "\u00a0": "⍽"}


def _shown(character: str) -> str:
    if character in _SHOWN:
        return _SHOWN[character]
    if ord(character) < 0x20:
        return chr(0x2400 + ord(character))  # the block "Control Pictures" mirrors the control characters
    # Format and other control characters (zero width, right-to-left override), surrogates, line separators
    if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"}:
        return "�"
    return character


def label(token: str, longest: int = 16) -> str:
    """One token as one printable line of at most ``longest`` characters; the empty token becomes "∅"."""
    written = "".join(map(_shown, token))
    if len(written) > longest:
        written = written[: longest - 1] + "…"
    return written or "∅"


def shortened(text: str, longest: int = 80) -> str:
    """A text as one line of at most ``longest`` characters, for captions, titles and lists; "∅" where it is blank."""
    line = " ".join(text.split())
    if len(line) > longest:
        line = line[: longest - 1].rstrip() + "…"
    return line or "∅"
