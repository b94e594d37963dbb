"""The translator as a task: cross-entropy of every target token, and BLEU, chrF and exact matches of what it writes."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from triptych.data.batches import Probe, TranslationBatch
from triptych.data.tokenizers import PAD_ID
from triptych.data.translation import TranslationData
from triptych.distributed import collectives
from triptych.errors import UserError
from triptych.models.beam_search import Hypothesis, beam, check_options
from triptych.models.rnn_translator import RNNTranslator
from triptych.models.translator import Translator
from triptych.tasks.base import Task
from triptych.tasks.losses import cross_entropy
from triptych.tasks.translation_metrics import Scores, check_tokenizer, score, tokenizer_for

TOGETHER = 128  # sentences translated at once; which ones changes nothing about the outcome


class TranslationTask(Task):
    """Translate sentences. ``val/loss`` is cross-entropy in nats per real target token (the end token counts, padding
    does not), without smoothing; ``val/perplexity`` is its exponential.

    label_smoothing: share of each training label that is spread evenly over the vocabulary (Szegedy et al., arXiv
        1512.00567, section 7).
    beam: hypotheses kept while the test split is translated, 1 is greedy; validation is always translated greedily.
    length_penalty: exponent of the length that scores are divided by; see ``models.beam_search.beam``.
    bleu_tokenizer: what BLEU takes for a word: sacrebleu's name, or "auto"; see ``translation_metrics.tokenizer_for``.

    BLEU and chrF go from 0 to 100, exact matches are a share; see ``translation_metrics``. Raises UserError for
    options out of range.
    """

    name = "translation"
    metrics = ("val/loss", "val/perplexity", "val/bleu", "val/chrf", "val/exact_match")
    optional_modules = ("sacrebleu",)
    data_class, model_classes = TranslationData, (Translator, RNNTranslator)
    model: Translator | RNNTranslator

    def __init__(
        self, *, label_smoothing: float, beam: int, length_penalty: float, bleu_tokenizer: str, **more: Any
    ) -> None:
        super().__init__(**more)
        if not 0 <= label_smoothing < 1:
            raise UserError(f"task.label_smoothing={label_smoothing}; it must be in 0 <= label_smoothing < 1")
        try:
            check_options(size=beam, length_penalty=length_penalty, best=1, vocab_size=self.model.vocab_size)
        except UserError as error:
            raise UserError(f"task.{error}") from error
        check_tokenizer(bleu_tokenizer)
        self.label_smoothing, self.bleu_tokenizer = label_smoothing, bleu_tokenizer
        self.beam, self.length_penalty = beam, length_penalty
        self._written: dict[int, str] = {}  # row of the split that is being evaluated -> its translation
        self._seconds = 0.0  # that they took

    def logits(self, model: Callable[..., Tensor], batch: TranslationBatch) -> Tensor:
        """Logits B T V of every next target token, the reference being read."""
        return model(batch.source, batch.target)

    def loss(self, logits: Tensor, batch: TranslationBatch) -> tuple[Tensor, int]:
        """Mean cross-entropy in nats per real target token; smoothed in training only."""
        smoothing = self.label_smoothing if self.training else 0.0
        logits, expected = logits.flatten(0, 1), batch.expected.flatten()
        return cross_entropy(logits, expected, ignored=PAD_ID, label_smoothing=smoothing), batch.seen

    def evaluated(self, split: str, logits: Tensor, batch: TranslationBatch) -> None:
        data: TranslationData = self.trainer.datamodule  # type: ignore[attr-defined]
        size = self.beam if split == "test" else 1
        started = time.perf_counter()
        found = self._search(batch.source, size=size, length_penalty=self.length_penalty, best=1)
        self._seconds += time.perf_counter() - started
        for row, (best, *_) in zip(batch.rows.tolist(), found, strict=True):
            self._written[row] = data.tokenizer.decode(best.tokens)

    def log_split(self, split: str) -> None:
        data: TranslationData = self.trainer.datamodule  # type: ignore[attr-defined]
        self.log(f"{split}/perplexity", self.mean_loss(split).compute().exp())
        texts = data.texts("validation" if split == "val" else split)
        for written, seconds in collectives.gather((self._written, self._seconds)):
            self._written.update(written)
            self._seconds = max(self._seconds, seconds)
        rows = [(*texts[row], translation) for row, translation in sorted(self._written.items())]
        sources, references, translations = ([row[at] for row in rows] for at in range(3))
        tokenizer = tokenizer_for(self.bleu_tokenizer, data.target_language)
        scores: Scores = score(translations, sources, references, tokenizer=tokenizer)
        for name, number in scores.numbers.items():
            self.log(f"{split}/{name}", number)
        how = f"beam {self.beam}" if split == "test" else "greedy"
        self.notes.update(scores.signatures)
        self.notes[f"{split} decoding"] = f"{len(rows):,} sentences, {how}, in {self._seconds:.1f} s"
        if split == "test":
            self.answers = [dict(zip(("source", "reference", "translation"), row, strict=True)) for row in rows]
        self._written, self._seconds = {}, 0.0
        super().log_split(split)

    def streams(self, site: str, kind: Literal["self", "cross"]) -> tuple[str, str]:
        """The source in the encoder, what was read so far in the decoder; a cross-attention row is what it leads to."""
        if kind == "cross":
            return "output", "source"
        return ("source", "source") if site.startswith("encoder") else ("target", "target")

    def inputs(self, data: TranslationData, given: str, *, reference: str | None = None) -> list[Probe]:
        """The sentence, or every line of the file, that ``given`` names, with its translation, or ``reference``."""
        sentences = [line for line in lines_of(given) if line.strip()]
        if reference is not None and len(sentences) != 1:
            raise UserError("reference= goes with one sentence in input=, not with a file of several")
        if reference is not None:
            return [data.pair(sentences[0], reference)]
        found = self.translate(data, sentences, size=self.beam, length_penalty=self.length_penalty, best=1)
        return [data.pair(sentence, best[0][0]) for sentence, best in zip(sentences, found, strict=True)]

    def sample(self, data: TranslationData, *, sentences: int) -> tuple[str, str]:
        """A few fixed validation sentences: source, translation, reference."""
        texts = data.texts("validation")
        picked = [texts[index * len(texts) // sentences] for index in range(min(sentences, len(texts)))]
        found = self.translate(data, [source for source, _ in picked], size=1, length_penalty=0.0, best=1)
        lines = [
            f"{source}\n  → {best[0][0]}\n  reference: {reference}\n"
            for (source, reference), best in zip(picked, found, strict=True)
        ]
        return "", "".join(lines)

    def check_sample(self, *, sentences: int) -> None:  # type: ignore[override]
        """Raise UserError naming the option that is out of range."""
        if sentences < 1:
            raise UserError(f"sample.sentences={sentences}; it must be at least 1")

    def predict(
        self, data: TranslationData, given: str, *, beam: int, length_penalty: float, n_best: int
    ) -> Iterator[str]:
        """The translation of every line of ``given``, or of the file that it names; an empty line stays one.

        n_best: above 1, so many translations of each line, each with its score.
        """
        check_options(size=beam, length_penalty=length_penalty, best=n_best, vocab_size=self.model.vocab_size)
        lines = lines_of(given)
        for start in range(0, len(lines), TOGETHER):
            part = lines[start : start + TOGETHER]
            found = iter(
                self.translate(
                    data,
                    [line for line in part if line.strip()],
                    size=beam,
                    length_penalty=length_penalty,
                    best=n_best,
                )
            )
            for offset, line in enumerate(part):
                answers = next(found) if line.strip() else []
                if n_best > 1:
                    shown = "\n".join(f"{number:8.4f}  {text}" for text, number in answers)
                else:
                    shown = answers[0][0] if answers else ""
                yield ("\n" if start + offset else "") + shown

    def pieces(self, given: str) -> int | None:
        """How many pieces ``predict`` gives: lines."""
        return len(lines_of(given))

    @torch.inference_mode()
    def translate(
        self, data: TranslationData, sentences: Sequence[str], *, size: int, length_penalty: float, best: int
    ) -> list[list[tuple[str, float]]]:
        """The ``best`` translations of each sentence, the likeliest first, with their scores."""
        found: list[list[tuple[str, float]]] = []
        for start in range(0, len(sentences), TOGETHER):
            batch = data.batch_of(sentences[start : start + TOGETHER], None)
            source = batch.source.to(self.device)
            for hypotheses in self._search(source, size=size, length_penalty=length_penalty, best=best):
                found.append([(data.tokenizer.decode(each.tokens), each.score) for each in hypotheses])
        return found

    def _search(self, source: Tensor, *, size: int, length_penalty: float, best: int) -> list[list[Hypothesis]]:
        return beam(self.model, source, size=size, length_penalty=length_penalty, best=best)


def lines_of(given: str) -> list[str]:
    """The lines of the text, or of the file that it names; a line ends at "\\n" or "\\r\\n" and nowhere else.

    Raises UserError for a file that is no text.
    """
    path = Path(given).expanduser()
    try:
        is_file = "\n" not in given and path.is_file()
    except OSError:  # too long for a file's name
        is_file = False
    if not is_file:
        return _split(given)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            text = file.read()
    except UnicodeDecodeError as error:
        raise UserError(f"input={given} is not UTF-8 text (see byte {error.start}): save it as UTF-8") from error
    except OSError as error:
        raise UserError(f"input={given} could not be read: {error.strerror}") from error
    lines = _split(text)
    return lines[:-1] if len(lines) > 1 and not lines[-1] else lines


def _split(text: str) -> list[str]:
    return [line.removesuffix("\r") for line in text.split("\n")]
