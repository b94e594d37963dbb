"""How good translations are, against references: sacrebleu's BLEU and chrF on detokenized text, and exact matches."""

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from triptych.errors import UserError

try:
    from sacrebleu.metrics import BLEU, CHRF
except ImportError as error:
    raise UserError('task=translation needs the extra: pip install "triptych[translation]"') from error


class Scores(NamedTuple):
    """Numbers by name, and what sacrebleu says about how it came to each."""

    numbers: dict[str, float]
    signatures: dict[str, str]


def score(hypotheses: Sequence[str], sources: Sequence[str], references: Sequence[str]) -> Scores:
    """Score one hypothesis per source and reference; texts as a person reads them, not tokenized.

    ``bleu``, ``chrf``: corpus scores from 0 to 100, one reference each (Post 2018, arXiv 1804.08771; Popović 2015).
    ``bleu_lowercase``: the same BLEU on lower-cased words, for papers that report lower-cased tokenized BLEU.
    ``exact_match``: share of hypotheses that are their reference, blanks aside.
    ``bleu_all_references``: where a source occurs with several references, each distinct source once, against all of
    its references; its first hypothesis counts.

    Raises ValueError for nothing to score.
    """
    if not hypotheses:
        raise ValueError("there are no translations to score")
    bleu, lower, chrf = BLEU(), BLEU(lowercase=True), CHRF()
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
        several = BLEU()
        firsts = [first for first, _ in grouped.values()]
        numbers["bleu_all_references"] = several.corpus_score(firsts, streams).score  # type: ignore[arg-type]
        signatures["bleu_all_references"] = str(several.get_signature())
    return Scores(numbers, signatures)


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())
