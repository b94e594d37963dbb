"""Characters: each is predicted once in evaluation, and training batches are a pure function of (seed, epoch, k)."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from triptych.data.characters import CharacterData, TrainingWindows, evaluation_batches
from triptych.errors import UserError


def data_on(path: Path, **options: object) -> CharacterData:
    fixed = {
        "source": "text",
        "path": str(path),
        "config": None,
        "revision": None,
        "columns": {"text": "text"},
        "splits": {"train": "train", "validation": 0.1, "test": 0.1},
        "context": 8,
        "batch_size": 4,
        "eval_batch_size": 3,
        "seed": 0,
        "workers": 0,
        "files": None,
        "cast": False,
    }
    return CharacterData(**{**fixed, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [2, 5, 6, 10, 11, 12, 31, 32, 33])
def test_evaluation_predicts_every_character_but_the_first_exactly_once(length: int) -> None:
    """Also where the last window is shorter, or the only one; each target stands right after its input."""
    ids = torch.arange(length)
    predicted: list[int] = []
    for batch in evaluation_batches(ids, context=5, batch_size=2):
        assert torch.equal(batch.targets, batch.tokens + 1)
        assert batch.tokens.shape[1] <= 5
        assert batch.tokens.shape[0] <= 2
        predicted += batch.targets.flatten().tolist()
    assert predicted == list(range(1, length))


def test_the_windows_of_a_small_text_by_hand() -> None:
    batches = evaluation_batches(torch.tensor([7, 1, 2, 3, 4, 5, 6]), context=2, batch_size=2)
    assert [batch.tokens.tolist() for batch in batches] == [[[7, 1], [2, 3]], [[4, 5]]]
    assert [batch.targets.tolist() for batch in batches] == [[[1, 2], [3, 4]], [[5, 6]]]
    batches = evaluation_batches(torch.tensor([7, 1, 2, 3]), context=2, batch_size=2)
    assert [batch.tokens.tolist() for batch in batches] == [[[7, 1]], [[2]]]


def windows(seed: int = 0, length: int = 103, batch_size: int = 3) -> TrainingWindows:
    return TrainingWindows(torch.arange(length), context=5, batch_size=batch_size, seed=seed)


def epoch_of(windows: TrainingWindows, epoch: int) -> list[Tensor]:
    return [windows.batch(epoch, k).tokens for k in range(windows.per_epoch)]


def test_a_batch_does_not_depend_on_what_was_asked_before() -> None:
    """Asked backwards, twice, or alone: what a resumed run relies on."""
    forward = windows()
    wanted = {(epoch, k): forward.batch(epoch, k) for epoch in range(3) for k in range(forward.per_epoch)}
    other = windows()
    for epoch, k in [*reversed(wanted), (1, 2), (0, 0), (1, 2)]:
        assert torch.equal(other.batch(epoch, k).tokens, wanted[epoch, k].tokens)
        assert torch.equal(windows().batch(epoch, k).targets, wanted[epoch, k].targets)


def test_an_epoch_sees_no_character_twice_and_leaves_out_only_a_remainder() -> None:
    for length in (103, 104, 58, 97):
        each = windows(length=length)
        for epoch in range(3):
            seen = torch.cat(epoch_of(each, epoch)).flatten().tolist()
            assert len(set(seen)) == len(seen)
            assert length - len(seen) < 5 * 3 + 2 * 5  # less than a batch, and less than a window at either end


def test_a_text_with_fewer_windows_than_a_batch_still_fills_it() -> None:
    each = windows(length=12, batch_size=7)
    assert each.per_epoch == 1
    assert each.batch(0, 0).tokens.shape == (7, 5)


def test_epochs_and_seeds_differ() -> None:
    """Another order and another cut: over epochs the model predicts every character from contexts of every length."""
    orders = [torch.cat(epoch_of(windows(seed), epoch)) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    assert not torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])
    phases = {int(torch.cat(epoch_of(windows(), epoch)).min()) for epoch in range(30)}
    assert len(phases) >= 5  # 98 characters of windows leave room to begin anywhere


def test_targets_are_one_later() -> None:
    batch = windows().batch(2, 1)
    assert torch.equal(batch.targets, batch.tokens + 1)
    assert batch.seen == 3 * 5


def test_a_text_is_cut_in_its_order_and_its_alphabet_is_the_training_splits(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("abcdefghij" * 8 + "X" * 10 + "Y" * 10, encoding="utf-8")
    data = data_on(path)
    data.open()
    assert {split: len(ids) for split, ids in data.ids.items()} == {"train": 80, "validation": 10, "test": 10}
    assert data.sizes == {"vocab_size": 11}
    assert data.ids["validation"].tolist() == [0] * 10  # never trained on: they count, as the replacement
    assert data.tokenizer.unknown("XXY") == {"X": 2, "Y": 1}
    assert [batch.tokens.shape for batch in data.val_dataloader()] == [(1, 8), (1, 1)]


def test_a_restored_tokenizer_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("Grüße,\n" * 30, encoding="utf-8")
    data = data_on(path)
    data.open()
    data.save(tmp_path)
    restored = data_on(tmp_path / "gone.txt")
    restored.restore(tmp_path)  # without the text
    assert restored.tokenizer.encode("Grüße\n") == data.tokenizer.encode("Grüße\n")


def test_the_loader_begins_where_a_run_resumes(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(chr(97 + n % 26) for n in range(400)), encoding="utf-8")

    def first(start: int, count: int) -> list[Tensor]:
        data = data_on(path)
        data.open()
        data.start = start
        batches = iter(data.train_dataloader())
        return [next(batches).tokens for _ in range(count)]

    whole = first(0, 25)  # over two ends of an epoch
    assert all(torch.equal(a, b) for a, b in zip(first(13, 12), whole[13:], strict=True))


def test_probes_are_fixed_and_begin_at_line_starts(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {n}\n" for n in range(300)), encoding="utf-8")
    data = data_on(path)
    data.open()
    probes, again = data.probes(3, 6), data.probes(3, 6)
    assert [probe.labels for probe in probes] == [probe.labels for probe in again]
    assert len({probe.example for probe in probes}) == 3
    for probe in probes:
        assert "".join(probe.labels["text"]).startswith("line")
        assert probe.batch.tokens.shape == (1, 6)
    assert len(data.probes(1, 50)[0].labels["text"]) == 8  # never longer than the context


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 0}, "data.batch_size=0"),
        ({"eval_batch_size": 0}, "data.eval_batch_size"),
        ({"workers": -1}, "-1"),
    ],
)
def test_sizes_that_cannot_be(tmp_path: Path, options: dict[str, int], said: str) -> None:
    with pytest.raises(UserError, match=said):
        data_on(tmp_path, **options)


def test_a_split_that_is_not_longer_than_the_context(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("ab" * 45, encoding="utf-8")
    with pytest.raises(UserError, match=r"text has 9 characters.*model\.context=9.*data\.splits"):
        data_on(path, context=9).open()
    data_on(path, context=8).open()
