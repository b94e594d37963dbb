"""How well a translator's cross-attention aligns words: while it trains, and once it is trained."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor

from triptych.data.batches import Probe, TranslationBatch
from triptych.data.tokenizers import BLANK, PAD_ID, without_gaps
from triptych.data.translation import TranslationData
from triptych.explain.alignment.alignment import (
    AlignmentTable,
    Choice,
    Links,
    TableRow,
    masking_links,
    read_links,
    soft,
)
from triptych.files import write_text
from triptych.loggers import publish
from triptych.maps import record
from triptych.maps.capture import capture, probing, sites
from triptych.maps.labels import shortened
from triptych.models.rnn_translator import RNNTranslator
from triptych.pictures import render
from triptych.pictures.alignments import alignment, over_time
from triptych.pictures.render import Picture
from triptych.tasks.translation import TranslationTask

PAIRS = 500  # validation pairs that are aligned while training; all of them at the end
MASKED = 200  # validation pairs whose words are masked one by one, where no alignment is known
CHOICE_FILE, TABLE_FILE = "alignment.json", "alignment.csv"
_LENGTH = 48  # tokens of the pair that is drawn, at most
MOMENTS = 3  # of training, in the picture that shows an alignment sharpen
NAMES = {"precision": "alignment_precision", "recall": "alignment_recall", "entropy": "alignment_entropy"}


def table_of(
    task: TranslationTask,
    data: TranslationData,
    split: str,
    most: int | None = None,
    against: Callable[[TranslationBatch, list[int], list[int]], Links] | None = None,
) -> AlignmentTable:
    """Every layer, row and head fusion over the pairs of ``split``, the reference being what the decoder reads.

    most: at most about so many pairs, evenly spread over lengths; None for all. against: makes the links of a pair;
    None for the known ones. Empty for a model without cross-attention.
    """
    table = AlignmentTable()
    crossing = _cross_sites(task)
    if not crossing:
        return table
    texts, gold = data.texts(split), data.gold(split)
    batches: Sequence[TranslationBatch] = data.evaluation(split)
    step = 1 if most is None else max(1, round(len(texts) / most))
    with probing(task.model) as model:
        for batch in batches:
            thin = TranslationBatch(
                batch.source[::step], batch.target[::step], batch.expected[::step], batch.rows[::step]
            )
            with capture(model, layers=list(crossing)) as maps:
                task.logits(model, task.transfer_batch_to_device(thin, task.device, 0))
            rows = thin.rows.tolist()
            read, written = ([data.tokenizer.encode_words(texts[row][side])[1] for row in rows] for side in (0, 1))
            if gold is None:
                read, written = ([without_gaps(places) for places in side] for side in (read, written))
            links: list[Links] | None = None
            if against is not None:
                links = [against(_alone(thin, at), *pair) for at, pair in enumerate(zip(read, written, strict=True))]
            elif gold is not None:
                links = [read_links(gold[row]) for row in rows]
            table.add({crossing[name]: each.weights for name, each in maps.items()}, read, written, links)
    return table


def _alone(batch: TranslationBatch, at: int) -> TranslationBatch:
    """One pair of a batch, its padding cut away."""
    source, target = batch.source[at : at + 1], batch.target[at : at + 1]
    read, written = int((source != PAD_ID).sum()), int((target != PAD_ID).sum())
    expected, rows = batch.expected[at : at + 1, :written], batch.rows[at : at + 1]
    return TranslationBatch(source[:, :read], target[:, :written], expected, rows)


def best_of(table: AlignmentTable) -> TableRow | None:
    """The choice that aligns best; without known alignments the last layer's output row, all heads fused.

    None for a model without cross-attention.
    """
    rows = table.rows()
    if not rows:
        return None
    last = max(row.choice.layer for row in rows)
    return table.best() or table[Choice(last, "output", "mean")]


def choose(
    task: TranslationTask, data: TranslationData, validation: AlignmentTable | None = None
) -> tuple[Choice, str] | None:
    """Where to read alignments, and in words why there; None for a model without cross-attention.

    validation: the table of that split, where it has been made already.

    Against the known alignments of validation where there are some. Otherwise against what masking does: see
    ``masked_links``, of ``MASKED`` validation pairs.
    """
    table = table_of(task, data, "validation") if validation is None else validation
    if best := table.best():
        return best.choice, "lowest error rate on validation"
    table = table_of(task, data, "validation", MASKED, against=partial(masked_links, task))
    best = table.best()
    if best is None:
        return None
    return best.choice, (
        f"agrees most with the source word whose masking lowers a target word's probability most: "
        f"{best.counts.recall:.0%} of {best.counts.sure:,} words of {MASKED} validation pairs"
    )


@torch.inference_mode()
def masked_links(task: TranslationTask, batch: TranslationBatch, read: list[int], written: list[int]) -> Links:
    """Links of one pair by intervention: which source word's masking lowers each target word's probability most.

    batch: of one. read, written: the word that each source and target token is part of. A masked word's tokens are
    padding to the model: no query sees them. A recurrent model cannot skip a place, so there they are taken out.
    """
    sources, targets = torch.tensor(read), torch.tensor(written)
    variants = batch.source.repeat(int(sources.max()) + 2, 1)  # the sentence as it is, then each word masked
    for word in range(len(variants) - 1):
        variants[word + 1, : len(read)].masked_fill_(sources == word, PAD_ID)
    if isinstance(task.model, RNNTranslator):
        variants = variants.gather(1, (variants == PAD_ID).to(torch.uint8).argsort(dim=1, stable=True))
    count = len(variants)
    expected = batch.expected.repeat(count, 1)
    with probing(task.model) as model:
        logits = model(variants.to(task.device), batch.target.repeat(count, 1).to(task.device))
    spoken = logits.log_softmax(-1).cpu().gather(2, expected[..., None])[..., 0][:, : len(written)]
    by_word = torch.zeros(count, int(targets.max()) + 1).index_add_(1, targets, spoken)
    return masking_links(by_word[1:], by_word[0])


def figures(row: TableRow, split: str) -> dict[str, float]:
    """A row's figures under the names they are logged by: "val/aer", "val/alignment_recall", "val/diagonality"."""
    return {f"{split}/{NAMES.get(name, name)}": number for name, number in row.figures.items() if number == number}


class AlignmentCallback(pl.Callback):
    """Logs the figures after every validation, of at most ``PAIRS`` pairs, and draws the first probe's alignment.

    folder: the run's; pictures go beside its maps.
    """

    for_task = TranslationTask

    def __init__(self, *, folder: Path) -> None:
        self.folder = folder
        self._row: TableRow | None = None
        self._choice: Choice | None = None
        self._measured: list[tuple[str, list[TableRow]]] = []

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, TranslationTask)
        self._row = best_of(table_of(pl_module, _data(trainer), "validation", PAIRS))
        if self._row is not None:
            pl_module.log_dict(figures(self._row, "val"))

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._row is None or trainer.state.fn != TrainerFn.FITTING or not trainer.is_global_zero:
            return
        assert isinstance(pl_module, TranslationTask)
        step, choice = trainer.global_step, self._row.choice
        for probe in pl_module.probes(_data(trainer), 1, _LENGTH):
            picture = draw(pl_module, probe, choice, step)
            render.write_png(picture, self.folder / "maps" / f"step-{step:08d}-alignment.png")
            caption = f"{shortened(probe.example)}, {choice}"
            publish.picture(trainer.loggers, "maps/alignment", picture, step, caption=caption)

    def measure(self, task: TranslationTask, data: TranslationData) -> tuple[dict[str, float], dict[str, str]]:
        """Figures of validation and test, where the choice is made on validation; and that choice in words."""
        validation = table_of(task, data, "validation")
        found = choose(task, data, validation)
        if found is None:
            return {}, {}
        self._choice, how = found
        test = table_of(task, data, "test")
        self._measured = [(split, each.rows()) for split, each in (("val", validation), ("test", test))]
        numbers = {**figures(validation[self._choice], "val"), **figures(test[self._choice], "test")}
        return numbers, {"alignment": f"{self._choice} ({how})"}

    def conclude(
        self, task: TranslationTask, data: TranslationData, loggers: list[pl.loggers.Logger], step: int
    ) -> None:
        """Keep the choice with the run, and draw how the first probe's alignment sharpened from moment to moment."""
        choice = self._choice
        if choice is None:
            return
        write_text(self.folder / CHOICE_FILE, json.dumps(asdict(choice)) + "\n")
        write_text(self.folder / TABLE_FILE, as_csv(self._measured))
        files = sorted((self.folder / "maps").glob("step-*.safetensors"))
        places = sorted({round(index * (len(files) - 1) / (MOMENTS - 1)) for index in range(MOMENTS)}) if files else []
        picture = sharpening([files[place] for place in places], task.probes(data, 1, _LENGTH)[0], choice)
        if picture is not None:
            render.write_png(picture, self.folder / "alignment.png")
            publish.picture(loggers, "maps/alignment over time", picture, step, caption=str(choice))

    def pictures(self, task: TranslationTask, probe: Probe, step: int) -> dict[str, Picture]:
        """The alignment of a person's sentence, as the run chose to read it."""
        try:
            choice = Choice(**json.loads((self.folder / CHOICE_FILE).read_text(encoding="utf-8")))
        except FileNotFoundError:  # a model without cross-attention, or a run that has not ended
            return {}
        source, target = _word_labels(probe)
        if not source or not target:  # an empty translation has nothing to align
            return {}
        return {"alignment": draw(task, probe, choice, step)}


def as_csv(measured: Sequence[tuple[str, list[TableRow]]]) -> str:
    """Every layer, row and head fusion, a column for each figure of each split; a figure that says nothing is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [f"{split}/{NAMES.get(name, name)}" for split, rows in measured for name in rows[0].figures]
    writer.writerow(["layer", "row", "heads", *columns])
    for rows in zip(*(rows for _, rows in measured), strict=True):
        found: dict[str, float] = {}
        for (split, _), row in zip(measured, rows, strict=True):
            found.update(figures(row, split))
        choice = rows[0].choice
        cells = (f"{found[name]:.4f}" if name in found else "" for name in columns)
        writer.writerow([choice.layer, choice.row, choice.fusion, *cells])
    return text.getvalue()


def draw(task: TranslationTask, probe: Probe, choice: Choice, step: int) -> Picture:
    """One pair's alignment, words as rows and columns, as ``choice`` reads it."""
    crossing = [name for name, layer in _cross_sites(task).items() if layer == choice.layer]
    with probing(task.model) as model, capture(model, layers=crossing) as maps:
        task.logits(model, task.transfer_batch_to_device(probe.batch, task.device, 0))
    (captured,) = maps.values()
    weights = _at_words(captured.example(0)[0].cpu(), probe, choice)
    return alignment(weights, *_word_labels(probe), choice=choice, step=step, links=_links(probe))


def sharpening(files: Sequence[Path], probe: Probe, choice: Choice) -> Picture | None:
    """The same from saved records of several moments; None where they do not hold what ``choice`` reads."""
    moments = []
    for file in files:
        for saved in record.load(file):
            whole = saved.heads == tuple(range(len(saved.heads)))  # maps.heads may have left the chosen one out
            if whole and (saved.kind, saved.layer, saved.example) == ("cross", choice.layer, probe.example):
                moments.append((saved.step, _at_words(saved.weights, probe, choice)))
    return over_time(moments, *_word_labels(probe), choice=choice, links=_links(probe)) if moments else None


def _at_words(weights: Tensor, probe: Probe, choice: Choice) -> Tensor:
    read, written = _places(probe)
    return soft(weights, read, written, row=choice.row, fusion=choice.fusion)


def _places(probe: Probe) -> tuple[list[int], list[int]]:
    """Of source and target tokens, the words that they are part of; the end token of the target left out."""
    assert probe.words is not None
    return probe.words["source"], [word for word in probe.words["output"] if word >= 0]


def _word_labels(probe: Probe) -> tuple[list[str], list[str]]:
    """The words of source and target, put together from their subwords."""
    found: list[list[str]] = []
    for stream, places in zip(("source", "output"), _places(probe), strict=True):
        merged = [""] * (max(places, default=-1) + 1)
        for place, token in zip(places, probe.labels[stream], strict=False):
            if place >= 0:
                merged[place] += token.removeprefix(BLANK)
        found.append(merged)
    return found[0], found[1]


def _links(probe: Probe) -> Links | None:
    return None if probe.gold is None else read_links(probe.gold)


def _data(trainer: pl.Trainer) -> TranslationData:
    return trainer.datamodule  # type: ignore[attr-defined]


def _cross_sites(task: TranslationTask) -> dict[str, int]:
    """Names of the model's cross-attention sites, and their layers."""
    return {site.name: site.layer for site in sites(task.model) if site.module.kind == "cross"}
