"""Text to ids and back, through the `tokenizers` library; a run folder stores the library's own JSON."""

import logging
import unicodedata
from collections import Counter
from collections.abc import Sequence
from os import PathLike

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from triptych.errors import UserError

log = logging.getLogger(__name__)

UNKNOWN = "�"  # U+FFFD, what Unicode itself puts in place of a character that cannot be shown
UNKNOWN_ID = 0
PAD_ID, START_ID, END_ID, UNKNOWN_WORD_ID = 0, 1, 2, 3  # of SubwordTokenizer
WORD = r"[\p{L}\p{M}\p{N}]+['’]?|[^\s\p{L}\p{M}\p{N}]"  # an elided word keeps its apostrophe: t' aime
CHUNK = 4096  # characters; the library's time per character grows with the length of one string
_SPLIT = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(WORD), "isolated")])
VISIBLE = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", "\N{NO-BREAK SPACE}": "⍽"}


class CharacterTokenizer:
    """One id per character of the composed (NFC) text; id 0 stands for every character never trained on.

    Args:
        tokenizer: from `train` or `load`; after the replacement, its ids are the characters of the training
            text in code point order.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._vocabulary: dict[str, int] = tokenizer.get_vocab()
        self._reported: set[str] = set()

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

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "CharacterTokenizer":
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
        self.tokenizer.save(str(path))

    @property
    def size(self) -> int:
        """Number of ids, the replacement included."""
        return len(self._vocabulary)

    def encode(self, text: str) -> list[int]:
        """Ids of the characters; one that was never trained on becomes id 0, and a warning names it once."""
        unknown = self.unknown(text).keys() - self._reported
        if unknown:
            self._reported |= unknown
            shown = ", ".join(" ".join({_visible(c): 0, f"U+{ord(c):04X}": 0}) for c in sorted(unknown)[:5])
            more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
            log.warning("Not in the training text, so replaced by %s: %s%s.", UNKNOWN, shown, more)
        text = self._normalize(text)
        chunks = (text[start : start + CHUNK] for start in range(0, len(text), CHUNK))
        return [index for chunk in chunks for index in self.tokenizer.encode(chunk).ids]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids: for known characters exactly what `encode` was given, in its composed form."""
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def labels(self, ids: Sequence[int]) -> list[str]:
        """One visible label per id, for the axes of a map: ``␣ ⏎ ⇥`` for blanks, others as they are."""
        return [_visible(self.tokenizer.id_to_token(index) or UNKNOWN) for index in ids]

    def unknown(self, text: str) -> Counter[str]:
        """How often each character of ``text`` occurs that `train` did not see; a loss counts it as id 0."""
        counts = Counter(unicodedata.normalize("NFC", text))
        return Counter({c: n for c, n in counts.items() if c not in self._vocabulary})

    def _normalize(self, text: str) -> str:
        # Before chunks are cut: one may begin with an accent that belongs to the letter before it. Half a
        # surrogate pair (a command line that was not UTF-8) is no text to the library: U+FFFD replaces it.
        whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return self.tokenizer.normalizer.normalize_str(whole)


def words(text: str) -> list[str]:
    """The words of a sentence, as alignments count them: "Je t'aime !" is Je, t', aime, !. See ``WORD``."""
    return [word for word, _ in _SPLIT.pre_tokenize_str(unicodedata.normalize("NFC", text))]


def _visible(character: str) -> str:
    """The character, or something to see in its place when it has no width of its own."""
    kind = unicodedata.category(character)
    if character in VISIBLE:
        return VISIBLE[character]
    if kind.startswith("M"):  # an accent alone sits on a dotted circle
        return "◌" + character
    return f"U+{ord(character):04X}" if kind[0] in "CZ" else character
