"""Phrases made of pieces, and the word alignment that follows from the pieces that two phrases have in common."""

import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from triptych.data.tokenizers import words

# A plain blank for those that must not break or are thin: a user types plain ones. Without the marks of direction.
_PLAIN = str.maketrans(dict.fromkeys("\u00a0\u2009\u202f", " ") | dict.fromkeys("\u061c\u200b\u200e\u200f", ""))


class Piece(NamedTuple):
    """A stretch of a phrase. Pieces of two phrases that share a key say the same."""

    text: str  # composed characters (NFC), plain blanks
    keys: tuple[str, ...]
    literal: bool  # it stands in the pattern itself, and no value was put there


Phrase = list[Piece]


def field(text: str, *keys: str) -> Piece:
    """What became of a value that the other phrase has too, under these keys."""
    return Piece(_bare(text), keys, False)


def literal(text: str, scope: str) -> Piece:
    """What stands in a pattern; ``scope`` is the key of all that stands in the same pattern."""
    return Piece(_bare(text), (scope,), True)


class Row(NamedTuple):
    """A pair of sentences with their alignment: "i-j" a sure link, "i?j" a possible one, from source word i to
    target word j, both counted from 0 as `triptych.data.tokenizers.words` does."""

    source: str
    target: str
    alignment: str
    source_words: list[str]
    target_words: list[str]


class _Word(NamedTuple):
    text: str
    keys: tuple[str, ...]
    literal: bool
    piece: str | None  # the text of the piece that it lies in; None where it lies in several
    spoken: bool  # more than a sign such as the dot of an abbreviation


def align(source: Phrase, target: Phrase) -> Row | None:
    """The two sentences and the links between their words; None for a phrase that composition (NFC) would change.

    - A field that is one word on both sides is a sure link. Signs do not count: in Jan / janv. the link between the
      two words is sure, the one to the dot is possible.
    - In a script without blanks between words each character is a word. A field that is one source word and a stretch
      of such characters has a sure link to each of them: Germany / 德国 says "0-0 0-1". The other way round they are
      possible: a word comes from its characters together, and no single one of them need be what it is read from.
    - The words of a field of several words are all possible links of each other; so are the words that stand in
      the same pattern. A word that only partly lies in a piece (5h) has possible links for every piece it touches.
    - Where a target word has no counterpart (de in "marzo de 2026"; a field that the source leaves out; a word
      where the source's pattern has only a comma), it may come from what its neighbours come from: annotators
      link such function words to their phrase (Och and Ney 2003, possible links).
    """
    source_text = "".join([piece.text for piece in source])
    target_text = "".join([piece.text for piece in target])
    if not (unicodedata.is_normalized("NFC", source_text) and unicodedata.is_normalized("NFC", target_text)):
        return None
    heard, said = _words(source, source_text), _words(target, target_text)
    sources, targets = _by_key(heard), _by_key(said)
    links: dict[tuple[int, int], str] = {}
    for key, ours in sources.items():
        theirs = targets.get(key, [])
        for i in ours:
            for j in theirs:
                links.setdefault((i, j), "?")
        if (only := _single(ours, heard)) is not None:
            other = _single(theirs, said)
            for j in _characters(theirs, said) if other is None else [other]:
                links[only, j] = "-"
    for j, word in enumerate(said):
        if not _answered(word, heard, sources):
            for i in _nearest(said, range(j, -1, -1), sources) + _nearest(said, range(j, len(said)), sources):
                links.setdefault((i, j), "?")
    return Row(
        source_text.strip(),
        target_text.strip(),
        " ".join(f"{i}{links[i, j]}{j}" for i, j in sorted(links)),
        [word.text for word in heard],
        [word.text for word in said],
    )


@cache
def _bare(text: str) -> str:
    return unicodedata.normalize("NFC", text).translate(_PLAIN)


def _words(phrase: Phrase, text: str) -> list[_Word]:
    """The words of the text, each with the keys of the pieces that it overlaps."""
    found: list[_Word] = []
    pieces = iter(phrase)
    piece, end, position = Piece("", (), True), 0, 0
    for word in words(text):
        start = text.index(word, position)  # only blanks lie between words, so it is the next one
        position = start + len(word)
        spoken = len(word) > 1 or word.isalnum()
        while end <= start:
            piece = next(pieces)
            end += len(piece.text)
        if position <= end:
            found.append(_Word(word, piece.keys, piece.literal, piece.text, spoken))
            continue
        keys = dict.fromkeys(piece.keys)
        while end < position:
            piece = next(pieces)
            end += len(piece.text)
            keys |= dict.fromkeys(piece.keys if piece.text else ())
        found.append(_Word(word, tuple(keys), False, None, spoken))
    return found


def _by_key(side: Sequence[_Word]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for index, word in enumerate(side):
        for key in word.keys:
            found.setdefault(key, []).append(index)
    return found


def _single(indices: list[int], side: Sequence[_Word]) -> int | None:
    """The one word of a field: signs do not count beside words, and no part of it lies in anything else."""
    if len(indices) > 1:
        indices = [index for index in indices if side[index].spoken]
    if len(indices) != 1:
        return None
    word = side[indices[0]]
    return None if word.literal or word.piece is None else indices[0]


def _characters(indices: list[int], side: Sequence[_Word]) -> list[int]:
    """All words of a field where they are characters that make up its one piece, without blanks; else none of them."""
    found = [side[index] for index in indices]
    whole = "".join(word.text for word in found)
    if not found or found[0].literal or found[0].piece is None or found[0].piece.strip() != whole:
        return []
    return indices if all(joins(word.text) for word in found) else []


def joins(word: str) -> bool:
    """Whether a word may touch the next one: true of the characters of a script without blanks between words."""
    return word[0].isalpha() and word[-1] not in "'’"


def _answered(word: _Word, heard: Sequence[_Word], sources: dict[str, list[int]]) -> bool:
    """The source has something for the word: for one of a pattern, a word for a word, and a sign for a sign."""
    if not word.literal:
        return any(key in sources for key in word.keys)
    return any(heard[i].spoken == word.spoken for key in word.keys for i in sources.get(key, ()))


def _nearest(said: Sequence[_Word], order: range, sources: dict[str, list[int]]) -> list[int]:
    """Source words of the first field in ``order`` that has any, on this side of another pattern's words."""
    scope: tuple[str, ...] | None = None
    for j in order:
        word = said[j]
        if word.literal:
            if scope is not None and word.keys != scope:
                break
            scope = word.keys
            continue
        found = [i for key in word.keys for i in sources.get(key, ())]
        if found:
            return found
    return []
