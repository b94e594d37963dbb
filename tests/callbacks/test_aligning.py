"""Alignments: what masking a word does, where alignments are chosen, and that figures and pictures come from there."""

import csv
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from triptych.data.batches import TranslationBatch
from triptych.data.tokenizers import PAD_ID

Composed = Callable[..., DictConfig]


class Copier(nn.Module):
    """Says about position t of the target what ``order[t]`` of the source holds, or nothing where that is padding."""

    def __init__(self, order: list[int]) -> None:
        super().__init__()
        self.order = order
        self.anything = nn.Parameter(torch.zeros(1))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        logits = torch.zeros(*target.shape, 12)
        for place, at in enumerate(self.order):
            real = source[:, at] != PAD_ID
            logits[real, place, source[real, at]] = 5.0
        return logits


@pytest.mark.usefixtures("unchecked")
def test_masking_finds_the_word_that_a_target_word_is_copied_from() -> None:
    """Source words 0 (tokens 4 5), 1 (6), 2 (7); the target is words 2, 0, 1: crossed, and of unequal length."""
    from triptych.callbacks.aligning import masked_links

    order = [3, 0, 1, 2]
    batch = TranslationBatch(
        source=torch.tensor([[4, 5, 6, 7, 2]]),
        target=torch.tensor([[1, 7, 4, 5, 6]]),
        expected=torch.tensor([[7, 4, 5, 6, 2]]),
        rows=torch.tensor([0]),
    )
    task: Any = SimpleNamespace(model=Copier(order), device=torch.device("cpu"))
    found = masked_links(task, batch, [0, 0, 1, 2], [0, 1, 1, 2])
    assert found.sure == {(2, 0), (0, 1), (1, 2)}


def loaded(run: Path) -> Any:
    from triptych.inference.loading import load

    trained = load(run)
    trained.data.open()
    return trained


def test_the_choice_is_made_on_validation_and_read_on_test(translator: Path) -> None:
    from triptych.callbacks.aligning import choose, table_of
    from triptych.explain.alignment.alignment import Choice

    trained = loaded(translator)
    metrics = json.loads((translator / "summary.json").read_text(encoding="utf-8"))["metrics"]
    kept = Choice(**json.loads((translator / "alignment.json").read_text(encoding="utf-8")))
    found = choose(trained.task, trained.data)
    assert found is not None
    assert found[0] == kept
    assert "lowest error rate" in found[1]
    table = table_of(trained.task, trained.data, "validation")
    assert min(row.counts.aer for row in table.rows()) == table[kept].counts.aer == pytest.approx(metrics["val/aer"])
    test = table_of(trained.task, trained.data, "test")
    assert test[kept].counts.aer == pytest.approx(metrics["test/aer"])
    assert len(table.rows()) == 2 * 2 * (2 + 2), "two layers, two rows, mean, max and two heads"


def test_the_run_keeps_every_layer_row_and_head(translator: Path) -> None:
    """A line for each choice, whose figures are those of the summary where it is the one that was chosen."""
    with (translator / "alignment.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    chosen = json.loads((translator / "alignment.json").read_text(encoding="utf-8"))
    (line,) = [
        each
        for each in lines
        if (int(each["layer"]), each["row"], each["heads"]) == (chosen["layer"], chosen["row"], str(chosen["fusion"]))
    ]
    metrics = json.loads((translator / "summary.json").read_text(encoding="utf-8"))["metrics"]
    assert float(line["test/aer"]) == pytest.approx(metrics["test/aer"], abs=1e-4)
    assert float(line["val/aer"]) == min(float(each["val/aer"]) for each in lines)
    assert {each["row"] for each in lines} == {"output", "shifted"}
    page = (translator / "report.html").read_text(encoding="utf-8")
    assert page.count(f'<td class="number">{line["test/aer"]}</td>')


def test_where_no_alignment_is_known_masking_decides(translator: Path) -> None:
    from triptych.callbacks.aligning import AlignmentCallback, choose

    trained = loaded(translator)
    trained.data.pairs = {split: dataclasses.replace(pairs, gold=None) for split, pairs in trained.data.pairs.items()}
    found = choose(trained.task, trained.data)
    assert found is not None
    assert "whose masking lowers" in found[1]
    numbers, notes = AlignmentCallback(folder=translator).measure(trained.task, trained.data)
    assert "test/aer" not in numbers, "there is nothing to be wrong about"
    assert 0 <= numbers["test/relative_entropy"] <= 1
    assert notes["alignment"].startswith(str(found[0]))


def test_fewer_pairs_are_evenly_spread(translator: Path) -> None:
    from triptych.callbacks.aligning import table_of

    trained = loaded(translator)
    whole = table_of(trained.task, trained.data, "validation")
    part = table_of(trained.task, trained.data, "validation", 5)
    counts = [table.rows()[0].counts for table in (whole, part)]
    assert 0 < counts[1].sure < counts[0].sure


def test_words_are_put_together_from_their_subwords(translator: Path) -> None:
    from triptych.callbacks.aligning import _word_labels

    trained = loaded(translator)
    probe = trained.data.pair("seven plus eight is big", "sieben und acht ist viel")
    assert max(map(len, probe.labels.values())) > 5, "some word is more than one subword"
    assert _word_labels(probe) == (
        ["seven", "plus", "eight", "is", "big"],
        ["sieben", "und", "acht", "ist", "viel"],
    )


def test_a_model_without_attention_trains_and_has_nothing_to_align(
    compose_translation: Composed, tmp_path: Path, one_thread: None
) -> None:
    from triptych.commands.train import train

    run = train(compose_translation("model=seq2seq", "trainer.max_steps=10", f"runs={tmp_path}"))
    summary = run.summary()
    assert summary["status"] == "finished"
    assert "test/bleu" in summary["metrics"]
    assert not {name for name in summary["metrics"] if "aer" in name or "entropy" in name}
    assert not list(run.path.glob("**/*.safetensors"))
    assert not (run.path / "alignment.png").exists()


def test_a_recurrent_model_with_attention_is_aligned(
    compose_translation: Composed, tmp_path: Path, one_thread: None
) -> None:
    from triptych.commands.train import train

    run = train(compose_translation("model=bahdanau", "trainer.max_steps=10", f"runs={tmp_path}"))
    assert run.summary()["metrics"]["test/aer"] <= 1
    assert (run.path / "alignment.png").exists()
    trained = loaded(run.path)
    trained.data.pairs = {split: dataclasses.replace(pairs, gold=None) for split, pairs in trained.data.pairs.items()}
    from triptych.callbacks.aligning import choose

    found = choose(trained.task, trained.data)
    assert found is not None
    assert found[0].layer == 0
