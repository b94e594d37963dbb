"""Text to ids and back, through the `tokenizers` library; a run folder stores the library's own JSON."""

import contextlib
import json
import logging
import os
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import TypeVar

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from triptych.errors import UserError
from triptych.files import written_whole

log = logging.getLogger(__name__)

UNKNOWN = "�"  # U+FFFD, what Unicode itself puts in place of a character that cannot be shown
UNKNOWN_ID = 0
PAD_ID, START_ID, END_ID, UNKNOWN_WORD_ID = 0, 1, 2, 3  # of SubwordTokenizer
SPECIAL = ("<pad>", "<s>", "</s>", UNKNOWN)  # their names, in the order of their ids
BLANK = "▁"  # U+2581 before a subword: a blank stands there
# Scripts that are written without blanks between words, by their Unicode names.
UNSPACED_SCRIPTS = (
    *("Han", "Hiragana", "Katakana", "Bopomofo", "Yi"),
    *("Thai", "Lao", "Khmer", "Myanmar", "Tai_Tham", "Tai_Le", "New_Tai_Lue", "Tai_Viet"),
)
# Their letters, with the marks of length and repetition and the closing mark that Unicode counts to no single script.
_LETTER = "[" + "".join(rf"\p{{{script}}}" for script in UNSPACED_SCRIPTS) + r"ーｰ〱-〵〆&&[^\p{M}\p{Nd}]]"
# What belongs to the letter before it: a letter stacked below it by a sign of Burmese, Khmer or Tai Tham; marks, also
# the two vowels of Thai and Lao and the two voicing marks of half-width kana that Unicode calls letters.
_ATTACHED = rf"[\u1039\u17d2\u1a60]{_LETTER}|[\p{{M}}ำຳﾞﾟ]"
# A letter of these scripts; a word of others, where an elided one keeps its apostrophe (t' aime); or a sign.
WORD = rf"{_LETTER}(?:{_ATTACHED})*|[\p{{L}}\p{{M}}\p{{N}}&&[^{_LETTER}]]+['’]?|[^\s\p{{L}}\p{{M}}\p{{N}}]"
CHUNK = 4096  # characters; the library's time per character grows with the length of one string
_SPLIT = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(WORD), "isolated")])
VISIBLE = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", "\N{NO-BREAK SPACE}": "⍽"}


_Kind = TypeVar("_Kind", bound="_LibraryTokenizer")  # the tests' type checker knows no Self


class _LibraryTokenizer:
    """What both tokenizers share: the file, and a warning about characters that training did not see."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._vocabulary: dict[str, int] = tokenizer.get_vocab()
        self._reported: set[str] = set()

    @classmethod
    def load(cls: type[_Kind], path: str | PathLike[str]) -> _Kind:
        """Read what `save` wrote.

        Raises:
            UserError: the file is missing or is no tokenizer.
        """
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises nothing narrower
            raise UserError(f"{path} is not a saved tokenizer ({error}): run must name a run folder.") from error

    def save(self, path: str | PathLike[str]) -> None:
        """Write the tokenizer as JSON."""
        with written_whole(Path(path)) as temporary:
            self.tokenizer.save(str(temporary))

    @property
    def size(self) -> int:
        """Number of ids, those for what is no text included."""
        return len(self._vocabulary)

    def unknown(self, text: str) -> Counter[str]:
        """How often each character of ``text`` occurs that `train` did not see; a loss counts it as unknown."""
        return Counter({c: n for c, n in Counter(unicodedata.normalize("NFC", text)).items() if not self._knows(c)})

    def _knows(self, character: str) -> bool:
        return character in self._vocabulary

    def _report(self, text: str) -> None:
        """Warn of the unknown characters of ``text`` that no earlier warning named."""
        unknown = self.unknown(text).keys() - self._reported
        if unknown:
            self._reported |= unknown
            shown = ", ".join(" ".join({_visible(c): 0, f"U+{ord(c):04X}": 0}) for c in sorted(unknown)[:5])
            more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
            log.warning("Not in the training text, so replaced by %s: %s%s.", UNKNOWN, shown, more)


class CharacterTokenizer(_LibraryTokenizer):
    """One id per character of the composed (NFC) text; id 0 stands for every character never trained on.

    Args:
        tokenizer: from `train` or `load`; after the replacement, its ids are the characters of the training
            text in code point order.
    """

    @classmethod
    def train(cls, text: str) -> "CharacterTokenizer":
        """Learn the alphabet of ``text``: the training split only."""
        normalizer = normalizers.NFC()
        alphabet = sorted(set(normalizer.normalize_str(text)) - {UNKNOWN})
        vocabulary = {character: index for index, character in enumerate([UNKNOWN, *alphabet])}
        # Byte pairs without a single merge are characters: the library's fastest exact way to them.
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN, fuse_unk=False))
        tokenizer.normalizer = normalizer
        tokenizer.decoder = decoders.Fuse()
        return cls(tokenizer)

    def encode(self, text: str) -> list[int]:
        """Ids of the characters; one that was never trained on becomes id 0, and a warning names it once."""
        self._report(text)
        text = composed(text)  # before chunks are cut: one may begin with an accent of the letter before it
        chunks = (text[start : start + CHUNK] for start in range(0, len(text), CHUNK))
        return [index for chunk in chunks for index in self.tokenizer.encode(chunk).ids]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids: for known characters exactly what `encode` was given, in its composed form."""
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def labels(self, ids: Sequence[int]) -> list[str]:
        """One visible label per id, for the axes of a map: ``␣ ⏎ ⇥`` for blanks, others as they are."""
        return [_visible(self.tokenizer.id_to_token(index) or UNKNOWN) for index in ids]


class SubwordTokenizer(_LibraryTokenizer):
    """Byte-pair subwords (Sennrich et al. 2016, arXiv 1508.07909) of one vocabulary for both languages.

    Ids 0 to 3 are padding, start, end and unknown; no text becomes one of the first three, whatever it looks like.
    A subword lies within one of `words`, and "▁" at its head marks a blank before it: "Je t'aime !" may be ▁Je ▁t'
    aime ▁!. A sentence always begins with one. Every run of whitespace, no-break spaces and line ends included,
    counts as one blank, and none stands at the ends: the text is read, and comes back, as `spaced` has it.

    Where a script has no blanks between words (``UNSPACED_SCRIPTS``), a word is a character, so no subword is longer
    than one: what BERT does with Han characters (Devlin et al., arXiv 1810.04805). A sentence then has about as many
    tokens as characters, which ``data.max_length`` and batches must have room for; such characters are never merged.
    Tokenizers that earlier versions stored keep their longer subwords.
    """

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "SubwordTokenizer":
        """Learn at most ``vocab_size`` subwords, the four special ones included: fewer where nothing occurs twice.

        Raises:
            UserError: there is no room for every character of the texts.
        """
        texts = [spaced(text) for text in texts]
        needed = len(SPECIAL) + len(set(BLANK).union(*texts) - {" ", UNKNOWN})
        if vocab_size < needed:
            raise UserError(
                f"data.vocab_size={vocab_size}; it must be at least {needed}: one for each of the "
                f"{needed - len(SPECIAL)} characters that the training text is made of, and four special ones"
            )
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size, min_frequency=2, show_progress=False, special_tokens=list(SPECIAL)
        )
        learner = _subwords(models.BPE())
        with _one_thread():
            learner.train_from_iterator(texts, trainer)
        # The library looks for its special tokens inside texts. Here they are entries that no merge leads to.
        learned = json.loads(learner.to_str())["model"]
        merges = [(left, right) for left, right in learned["merges"]]
        tokenizer = _subwords(models.BPE(learned["vocab"], merges, unk_token=UNKNOWN, fuse_unk=False))
        return cls(tokenizer)

    def encode(self, text: str) -> list[int]:
        """Ids of the subwords, without start or end; a warning names characters never trained on, once."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` for many texts."""
        self._report("\n".join(texts))
        with _one_thread():
            return [each.ids for each in self.tokenizer.encode_batch_fast([spaced(text) for text in texts])]

    def encode_words(self, text: str) -> tuple[list[int], list[int]]:
        """Ids as `encode` gives them, and for each which of ``words(text)`` it is a part of, counted from 0.

        A tokenizer that an earlier version stored may have subwords of several words, in scripts without blanks. Each
        counts as a part of the last of them, and the others have no subword: so the last word always has one, and
        the number of words can be read off. Where nobody's links say which word is meant, see `without_gaps`.
        """
        ids = self.encode(text)
        ends = [end for _, (_, end) in _SPLIT.pre_tokenize_str(spaced(text))]
        # What is read is the text behind one more blank, and no character of it is lost or added.
        last = accumulate(len(self.tokenizer.id_to_token(index) or UNKNOWN) for index in ids)
        return ids, [bisect_left(ends, position - 1) for position in last]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids, without padding, start and end; unknown ids show as "�"."""
        return self.tokenizer.decode([index for index in ids if index not in (PAD_ID, START_ID, END_ID)])

    def labels(self, ids: Iterable[int]) -> list[str]:
        """One visible label per id, for the axes of a map: "▁Je", "<s>"."""
        return [_visible_word(self.tokenizer.id_to_token(index) or UNKNOWN) for index in ids]

    def _knows(self, character: str) -> bool:
        return character.isspace() or (character in self._vocabulary and character != BLANK)


def composed(text: str) -> str:
    """The text in composed (NFC) form; half a surrogate pair (from a command line that was not UTF-8), which is no
    text to the library, becomes U+FFFD."""
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return unicodedata.normalize("NFC", whole)


def spaced(text: str) -> str:
    """The text composed, with one blank for every run of whitespace, and none at its ends."""
    return " ".join(composed(text).split())


def words(text: str) -> list[str]:
    """The words of a sentence, as alignments count them: "Je t'aime !" is Je, t', aime, !. See ``WORD``.

    Where a script has no blanks between words (``UNSPACED_SCRIPTS``), each character is one, together with the marks
    that follow it: 5月3日 is 5, 月, 3, 日; น้ำ is one. Its digits are words as those of other scripts are: ๑๒ is one.
    """
    return [word for word, _ in _SPLIT.pre_tokenize_str(spaced(text))]


def without_gaps(places: Sequence[int]) -> list[int]:
    """Words of subwords, as `encode_words` gives them, numbered anew so that each number has a subword."""
    numbers = {place: number for number, place in enumerate(sorted(set(places)))}
    return [numbers[place] for place in places]


def _subwords(model: models.Model) -> Tokenizer:
    """What `SubwordTokenizer` reads text with, around the model."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Strip(),
            normalizers.Replace(BLANK, UNKNOWN),  # as a character of the text it would come back as a blank
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(BLANK, prepend_scheme="always", split=False),
            pre_tokenizers.Split(Regex(f"{BLANK}?(?:{WORD})"), "isolated"),
        ]
    )
    tokenizer.decoder = decoders.Metaspace(BLANK, prepend_scheme="always", split=False)
    return tokenizer


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """The library warns of every process that is forked once it has used threads: loaders fork."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _visible_word(subword: str) -> str:
    """`_visible` for several characters: an accent inside a word has its letter, one at the head has none."""
    return "".join(c if at and unicodedata.category(c)[0] == "M" else _visible(c) for at, c in enumerate(subword))


def _visible(character: str) -> str:
    """The character, or something to see in its place when it has no width of its own."""
    kind = unicodedata.category(character)
    if character in VISIBLE:
        return VISIBLE[character]
    if kind.startswith("M"):  # an accent alone sits on a dotted circle
        return "◌" + character
    return f"U+{ord(character):04X}" if kind[0] in "CZ" else character
