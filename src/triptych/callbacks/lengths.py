"""How good translations are by the length of their source: what a model without attention loses first."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from triptych.data.tokenizers import words
from triptych.runs.folder import RunFolder
from triptych.tasks.translation_metrics import score, tokenizer_for

GROUPS = 4  # of lengths, with about as many sentences in each
console = Console(highlight=False, markup=False)


class Quality(NamedTuple):
    """Over the sentences whose source has ``shortest`` to ``longest`` words."""

    shortest: int
    longest: int
    sentences: int
    bleu: float
    exact_match: float


def by_length(answers: Sequence[dict[str, str]], groups: int = GROUPS, *, tokenizer: str = "13a") -> list[Quality]:
    """Quality in up to ``groups`` ranges of source lengths, a length never standing in two of them.

    answers: rows with "source", "reference" and "translation". Lengths are in words as ``tokenizers.words`` counts
    them: in characters where a script has no blanks. tokenizer: BLEU's, of ``translation_metrics.score``.
    """
    lengths = [len(words(row["source"])) for row in answers]
    found: list[Quality] = []
    shortest = 0
    for longest in _bounds(lengths, groups):
        rows = [row for row, length in zip(answers, lengths, strict=True) if shortest <= length <= longest]
        columns = ([row[key] for row in rows] for key in ("translation", "source", "reference"))
        numbers = score(*columns, tokenizer=tokenizer).numbers
        first = min(length for length in lengths if length >= shortest)
        found.append(Quality(first, longest, len(rows), numbers["bleu"], numbers["exact_match"]))
        shortest = longest + 1
    return found


def _bounds(lengths: Sequence[int], groups: int) -> list[int]:
    """The longest length of each range."""
    ordered = sorted(lengths)
    ends = {ordered[min(len(ordered) - 1, round(len(ordered) * (n + 1) / groups) - 1)] for n in range(groups)}
    return sorted(ends | {ordered[-1]}) if ordered else []


class LengthTable(Callback):
    """After several runs of the translator: one row each, its test quality by the length of the source."""

    def __init__(self) -> None:
        self._runs: list[tuple[str, RunFolder]] = []

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        run = job_return._return_value
        if isinstance(run, RunFolder):
            choice = job_return.hydra_cfg.hydra.runtime.choices.model if job_return.hydra_cfg else "model"
            self._runs.append((str(choice), run))

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        if self._runs:
            console.print(table(self._runs))


def table(runs: Sequence[tuple[str, RunFolder]]) -> Table:
    """Names and finished runs as a table: BLEU and the share of exact matches on test, by length and in all."""
    shown = Table(title="test BLEU (exact matches) by words of the source", show_lines=True)
    shown.add_column("model, parameters, fit")
    measured = [(name, run, by_length(run.answers(), tokenizer=_tokenizer(run))) for name, run in runs]
    for group in measured[0][2]:
        several = f"{group.shortest} to {group.longest}" if group.shortest < group.longest else f"{group.longest}"
        shown.add_column(f"{several}\n{group.sentences:,} pairs", justify="right")
    shown.add_column("all", justify="right")
    for name, run, groups in measured:
        summary = run.summary()
        metrics = summary["metrics"]
        cells = [f"{group.bleu:.1f}\n({group.exact_match:.1%})" for group in groups]
        whole = f"{metrics['test/bleu']:.1f}\n({metrics['test/exact_match']:.1%})"
        costs = f"{summary['parameters'] / 1e6:.1f} M, {summary['fit_seconds']:.0f} s"
        shown.add_row(f"{name}\n{costs}", *cells, whole)
    return shown


def _tokenizer(run: RunFolder) -> str:
    config = run.config()
    return tokenizer_for(config.task.bleu_tokenizer, config.data.target_locale)
