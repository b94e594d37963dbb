"""Quality by length: which sentences fall into which range, by hand."""

import sys
from pathlib import Path

import pytest

from triptych.callbacks.lengths import by_length


def rows(*lengths_and_right: tuple[int, bool]) -> list[dict[str, str]]:
    return [
        {"source": "a " * length, "reference": "b " * length, "translation": ("b " if right else "c ") * length}
        for length, right in lengths_and_right
    ]


def test_every_sentence_stands_in_one_range_and_equal_lengths_together() -> None:
    answers = rows((5, True), (5, True), (5, False), (5, True), (6, True), (9, False), (9, False), (12, True))
    found = by_length(answers, groups=4)
    assert [(each.shortest, each.longest, each.sentences) for each in found] == [(5, 5, 4), (6, 9, 3), (12, 12, 1)]
    assert [each.exact_match for each in found] == [0.75, 1 / 3, 1.0]
    assert found[2].bleu > 99.9 > found[0].bleu > found[1].bleu


def test_one_length_is_one_range() -> None:
    (only,) = by_length(rows((4, True), (4, False)))
    assert only.sentences == 2


@pytest.mark.slow
def test_the_history_trains_four_models_and_compares_them(
    pairs_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from triptych.commands.cli import command
    from triptych.commands.train import train

    small = ["data=parallel", f"data.path={pairs_folder}", "data.vocab_size=120", "model.width=32"]
    words = [
        "experiment=attention_history",
        *small,
        "trainer.max_steps=4",
        "trainer.accelerator=cpu",
        f"runs={tmp_path}",
    ]
    monkeypatch.setattr(sys, "argv", ["train", *words])
    command(train, "train")
    printed = capsys.readouterr().out
    table = printed[printed.index("test BLEU (exact matches) by words of the source") :]
    assert [name in table for name in ("seq2seq", "bahdanau", "luong", "translator")] == [True] * 4
    assert "5" in table, "every sum has five words"
    folders = [path for path in (tmp_path / "translation").iterdir() if not path.is_symlink()]
    assert len(folders) == 4, "each is a run of its own"
