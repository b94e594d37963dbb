"""Sentence pairs of two languages, filtered and counted, as subwords of one vocabulary for a translator."""

import json
import operator
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from triptych.data import sources
from triptych.data.batches import Probe, TranslationBatch
from triptych.data.local.report import reasons_in_words
from triptych.data.module import TaskData
from triptych.data.pairs import EvaluationPairs, Pairs, Sentences, TrainingPairs
from triptych.data.tokenizers import SubwordTokenizer, composed, spaced, without_gaps, words
from triptych.errors import UserError
from triptych.files import write_text

if TYPE_CHECKING:
    from datasets import Dataset as Rows

TOKENIZER_FILE, FILE = "tokenizer.json", "translation.json"
UNEQUAL_SLACK = 5  # tokens that a side may be longer than ``max_length_ratio`` allows: "No!" has long translations
TELLING_WORDS = 4  # a map of fewer words shows little
# Why a training pair is left out -> the setting that decides it.
FILTERS = {"identical": "data.identical", "over-long": "data.max_length", "unequal": "data.max_length_ratio"}
LINK = re.compile(r"(\d+)[-?](\d+)")

Row = tuple[str, str, str]  # source, target, alignment


class TranslationData(TaskData):
    """Pairs of a sentence and its translation, with one joint byte-pair vocabulary of the training split.

    source, path, config, revision, files, splits, cast: see ``sources.open``. columns: ``source`` and ``target``,
    texts; and, where the words' true alignment is known, ``alignment`` (else null): links with blanks between, "0-2"
    sure and "1?3" possible only, of words of the source to words of the target, both counted from 0 as
    ``tokenizers.words`` counts.
    source_locale, target_locale: what the languages are called ("en", "pt_BR"); columns or config may refer to them.
    vocab_size: subwords at most, for both languages together.
    max_length: tokens of the longest sentence to train on, its end token included.
    max_length_ratio: a training pair may have this many times as many tokens (plus 5) on one side as on the other.
    identical: "drop" training pairs whose sides are the same text (mostly left untranslated), or "keep" them.
    batch_tokens, eval_batch_tokens: the most tokens per side in a batch, padding counted.
    seed: decides the order of training. workers: processes that make batches (0 is fastest for text in memory).

    Texts are read as ``tokenizers.spaced`` has them: composed (NFC), with single blanks. Validation and test lose only
    pairs with an empty side, and nothing is cut: ``positions`` of ``sizes`` makes room for their longest sentence.

    ``open`` raises UserError when there is nothing to read or to train on, and for a row that holds no text or no
    alignment, naming it.
    """

    unit = "tokens"

    def __init__(
        self,
        *,
        source: str,
        path: str | None,
        config: str | None,
        revision: str | None,
        files: str | None,
        columns: Mapping[str, str | None],
        splits: Mapping[str, str | float],
        cast: bool,
        source_locale: str,
        target_locale: str,
        vocab_size: int,
        max_length: int,
        max_length_ratio: float,
        identical: Literal["drop", "keep"],
        batch_tokens: int,
        eval_batch_tokens: int,
        seed: int,
        workers: int,
    ) -> None:
        named = {ours: theirs for ours, theirs in columns.items() if theirs is not None}
        super().__init__(
            source=source,
            path=path,
            config=config,
            revision=revision,
            files=files,
            columns=named,
            splits=splits,
            seed=seed,
            workers=workers,
        )
        if set(named) - {"alignment"} != {"source", "target"}:
            raise UserError(
                f"data.columns must name source and target, and may name alignment, not: {', '.join(named) or 'none'}"
            )
        if max_length < 2:
            raise UserError(f"data.max_length={max_length}; it must be at least 2: a token and the end token")
        if max_length_ratio < 1:
            raise UserError(f"data.max_length_ratio={max_length_ratio}; it must be at least 1")
        for name, tokens in (("batch_tokens", batch_tokens), ("eval_batch_tokens", eval_batch_tokens)):
            if tokens < max_length:
                raise UserError(
                    f"data.{name}={tokens}; it must be at least data.max_length={max_length}, for one sentence"
                )
        self.source_language, self.target_language = source_locale, target_locale
        self.vocab_size, self.identical = vocab_size, identical
        self.max_length, self.max_length_ratio = max_length, max_length_ratio
        self.batch_tokens, self.eval_batch_tokens = batch_tokens, eval_batch_tokens
        self.cast = cast

    def open(self) -> None:
        """Read the pairs, filter them, learn the vocabulary of the training split, and turn all texts into ids."""
        dataset = self._read(document=False, cast=self.cast)
        rows = {split: self._rows(dataset[split], split) for split in sources.SPLITS}
        self._check_any(rows)
        if not self.restored:
            texts = (text for row in rows["train"] for text in row[:2])
            self.tokenizer = SubwordTokenizer.train(texts, self.vocab_size)
        self.pairs = {split: self._encode(rows[split], split) for split in sources.SPLITS}
        self._check_any({split: pairs.texts for split, pairs in self.pairs.items()})
        sides = [side for pairs in self.pairs.values() for side in (pairs.source, pairs.target)]
        self.positions = max(self.max_length, *(int(side.lengths.max()) for side in sides))
        self.training = TrainingPairs(self.pairs["train"], self.batch_tokens, self.seed)

    def _rows(self, rows: "Rows", split: str) -> list[Row]:
        """The pairs of a split as texts, without those that have an empty side or, in training, two equal ones."""
        columns = {name: _texts(rows, name) for name in self.columns}
        links = columns.get("alignment", [""] * len(rows))
        found = []
        texts = (self._as_read(columns[side]) for side in ("source", "target"))
        for at, row in enumerate(zip(*texts, links, strict=True)):
            if not row[0] or not row[1]:
                self.report.filter_out(split, "empty")
            elif split == "train" and self.identical == "drop" and row[0] == row[1]:
                self.report.filter_out(split, "identical")
            else:
                if split != "train":  # only there they are counted
                    _check_links(row, f"row {at} of {split} has data.columns.alignment={self.columns.get('alignment')}")
                found.append(row)
        return found

    def _as_read(self, texts: list[str]) -> list[str]:
        """The texts as ``tokenizers.spaced`` has them; the report says how many that changed."""
        whole = list(map(composed, texts))
        found = list(map(spaced, whole))
        self.report.change("texts in composed form (NFC)", sum(map(operator.ne, texts, whole)))
        self.report.change("texts with single blanks", sum(map(operator.ne, whole, found)))
        return found

    def _encode(self, rows: list[Row], split: str) -> Pairs:
        """Rows as ids; in training without over-long and absurdly unequal ones."""
        encoded = [self.tokenizer.encode_all([row[side] for row in rows]) for side in (0, 1)]
        kept = []
        for at, lengths in enumerate(zip(*(map(len, side) for side in encoded), strict=True)):
            if split == "train" and max(lengths) + 1 > self.max_length:
                self.report.filter_out(split, "over-long")
            elif split == "train" and max(lengths) > self.max_length_ratio * min(lengths) + UNEQUAL_SLACK:
                self.report.filter_out(split, "unequal")
            else:
                kept.append(at)
        source, target = (Sentences([side[at] for at in kept]) for side in encoded)
        gold = [rows[at][2] for at in kept] if "alignment" in self.columns else None
        return Pairs([rows[at][:2] for at in kept], source, target, gold)

    def _check_any(self, rows: Mapping[str, Sequence[object]]) -> None:
        for split in sources.SPLITS:
            if not rows[split]:
                left_out = reasons_in_words(self.report.filtered.get(split, Counter()))
                reasons = self.report.filtered.get(split, Counter())
                settings = ", ".join(setting for reason, setting in FILTERS.items() if reason in reasons)
                why = f": {left_out} were filtered{f', by {settings}' if settings else ''}" if left_out else ""
                raise UserError(f"the {split} split holds no pairs{why}")

    @property
    def sizes(self) -> dict[str, int]:
        """What the data decide about the model: ``positions`` is the longest sentence, its end token included."""
        return {"vocab_size": self.tokenizer.size, "positions": self.positions}

    def positions_per_batch(self, context: int) -> int:
        """Both sides' token budgets; how long one pair may be says nothing about it."""
        return 2 * self.batch_tokens

    def contents(self) -> str:
        """Languages, pairs of every split, and what they have in common."""
        counts = ", ".join(f"{len(pairs.texts):,} {split}" for split, pairs in self.pairs.items())
        parts = [f"{self.source_language} to {self.target_language}, {counts} pairs, {self.tokenizer.size:,} subwords"]
        trained_on = {source for source, _ in self.pairs["train"].texts}
        for split in sources.SPLITS[1:]:
            known = sum(source in trained_on for source, _ in self.texts(split))
            parts += [f"of the {split} sources, {known:,} also in train"] if known else []
        if (gold := self.gold("test")) is not None:
            parts.append(f"{_sure_share(self.texts('test'), gold):.0%} of the test's target words have a sure link")
        return "; ".join(parts)

    def save(self, folder: Path) -> None:
        """Store what a trained model needs to read and write text."""
        self.tokenizer.save(folder / TOKENIZER_FILE)
        stored = json.dumps({"positions": self.positions}) + "\n"
        write_text(folder / FILE, stored)

    def restore(self, folder: Path) -> None:
        """Take from a run folder what ``save`` stored: enough to use the model, without the pairs."""
        self.tokenizer = SubwordTokenizer.load(folder / TOKENIZER_FILE)
        self.restored = True
        try:
            self.positions = int(json.loads((folder / FILE).read_text(encoding="utf-8"))["positions"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(f"{folder / FILE} cannot be read ({error}): the run folder is damaged") from error

    def texts(self, split: str) -> list[tuple[str, str]]:
        """Source and target of every pair of a split, in order; ``rows`` of a batch are places in this list."""
        return self.pairs[split].texts

    def gold(self, split: str) -> list[str] | None:
        """The known alignment of every pair of `texts`, as links; None where the data have none."""
        return self.pairs[split].gold

    def evaluation(self, split: str) -> EvaluationPairs:
        """Every pair of the split once, in batches of similar source lengths, the shortest first."""
        return EvaluationPairs(self.pairs[split], self.eval_batch_tokens)

    def batch_of(self, sources: Sequence[str], targets: Sequence[str] | None) -> TranslationBatch:
        """Sentences as a batch, in their order; without ``targets`` the decoder has only the start token to read.

        Raises UserError for a sentence that is longer than the model's positions.
        """
        sides = []
        for texts in (sources, [""] * len(sources) if targets is None else targets):
            encoded = self.tokenizer.encode_all(texts)
            for text, ids in zip(texts, encoded, strict=True):
                if len(ids) >= self.positions:
                    raise UserError(
                        f"a sentence has {len(ids)} tokens, and this model takes {self.positions - 1} at most: split "
                        f'the one that begins with "{text[:40]}"'
                    )
            sides.append(Sentences(encoded))
        pairs = Pairs(list(zip(sources, targets or sources, strict=True)), sides[0], sides[1], gold=None)
        batch = pairs.batch(torch.arange(len(sources)))
        return batch if targets is not None else replace(batch, expected=torch.zeros_like(batch.expected))

    def probes(self, count: int, length: int) -> list[Probe]:
        """``count`` fixed validation pairs, evenly spread, whose sides have at most ``length`` tokens each.

        Pairs with a known alignment come before others, then pairs of a few words before shorter ones. Where none fits,
        the shortest.
        """
        pairs = self.pairs["validation"]
        sizes = torch.maximum(pairs.source.lengths, pairs.target.lengths)
        fitting = (sizes <= length).nonzero().flatten().tolist() or sizes.argsort(stable=True)[:count].tolist()
        aligned = [row for row in fitting if pairs.gold is not None and pairs.gold[row]] or fitting
        telling = [row for row in aligned if min(len(words(text)) for text in pairs.texts[row]) >= TELLING_WORDS]
        chosen = telling if len(telling) >= count else aligned
        found = []
        count = min(count, len(chosen))
        for row in (chosen[index * len(chosen) // count] for index in range(count)):
            source, target = pairs.texts[row]
            gold = pairs.gold[row] if pairs.gold is not None else None
            found.append(self._probe(source, target, pairs.batch(torch.tensor([row])), f"validation pair {row}", gold))
        return found

    def pair(self, source: str, target: str | None) -> Probe:
        """A person's sentence, and a translation of it for the decoder to read. Raises UserError as `batch_of` does."""
        batch = self.batch_of([source], None if target is None else [target])
        return self._probe(source, target or "", batch, spaced(source))

    def _probe(self, source: str, target: str, batch: TranslationBatch, example: str, gold: str | None = None) -> Probe:
        """Labels of what the encoder reads ("source"), the decoder reads ("target"), and should answer ("output")."""
        read, written = (self.tokenizer.encode_words(text)[1] for text in (source, target))
        if gold is None:
            read, written = without_gaps(read), without_gaps(written)
        ids = {"source": batch.source, "target": batch.target, "output": batch.expected}
        labels = {stream: self.tokenizer.labels(tokens[0].tolist()) for stream, tokens in ids.items()}
        places = {"source": [*read, -1], "target": [-1, *written], "output": [*written, -1]}
        return Probe(example, batch, labels, words=places, gold=gold)


def _texts(rows: "Rows", ours: str) -> list[str]:
    """A column of texts; a missing one (null) is empty."""
    return [value or "" for value in rows.with_format("arrow")[:][ours].to_pylist()]


def _check_links(row: Row, where: str) -> None:
    """Raise UserError for an alignment that is none, or leads out of the pair."""
    source, target, links = row
    if not links:
        return
    sizes = len(words(source)), len(words(target))
    for link in links.split():
        match = LINK.fullmatch(link)
        if match is None:
            raise UserError(f'{where}, and "{link}" is no link: "0-2" is a sure and "1?3" a possible one')
        if int(match[1]) >= sizes[0] or int(match[2]) >= sizes[1]:
            raise UserError(f"{where}, and {link} leads out of its {sizes[0]} source and {sizes[1]} target words")


def _sure_share(texts: Sequence[tuple[str, str]], gold: Sequence[str]) -> float:
    """Share of the target words that a sure link leads to."""
    linked = sum(len({link.partition("-")[2] for link in links.split() if "-" in link}) for links in gold)
    return linked / sum(len(words(target)) for _, target in texts)
