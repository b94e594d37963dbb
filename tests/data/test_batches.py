"""Seeds that are mixed from several numbers, and loaders that leave the global random state alone."""

from dataclasses import replace

import pytest
import torch
from pytorch_lightning.utilities import move_data_to_device

from triptych.data.batches import TextBatch, TranslationBatch, generator_for, permutation, training_loader
from triptych.data.characters import TrainingWindows


def test_neighbouring_numbers_do_not_meet() -> None:
    """seed + epoch would give seed 1's epoch 2 and seed 2's epoch 1 the same order."""
    drawn = {}
    for seed in range(20):
        for epoch in range(20):
            numbers = tuple(torch.randint(1 << 60, (2,), generator=generator_for(seed, epoch)).tolist())
            assert numbers not in drawn, (seed, epoch, drawn[numbers])
            drawn[numbers] = (seed, epoch)


def test_a_permutation_holds_everything_once_and_is_repeatable() -> None:
    order = permutation(50, seed=3, epoch=4)
    assert sorted(order.tolist()) == list(range(50))
    assert torch.equal(order, permutation(50, seed=3, epoch=4))
    assert not torch.equal(order, permutation(50, seed=4, epoch=3))


def test_loading_draws_nothing_from_the_global_generator() -> None:
    """Dropout uses that one: a loader that draws from it would make a resumed run differ."""
    windows = TrainingWindows(torch.arange(100), context=5, batch_size=2, seed=0)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    batches = iter(training_loader(windows, start=0, workers=0, pin_memory=False))
    for _ in range(30):  # past the end of an epoch
        next(batches)
    assert torch.equal(torch.get_rng_state(), before)


def test_worker_processes_deliver_the_same_batches_in_the_same_order() -> None:
    windows = TrainingWindows(torch.arange(200), context=5, batch_size=2, seed=0)
    one, two = (iter(training_loader(windows, start=7, workers=workers, pin_memory=False)) for workers in (0, 2))
    for _ in range(20):
        assert torch.equal(next(one).tokens, next(two).tokens)


def test_a_batch_is_pinned_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader pins what has such a method, and leaves anything else where it is."""
    pinned: list[int] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: (pinned.append(tensor.numel()), tensor)[1])
    whole = TextBatch(tokens=torch.zeros(4, 3, dtype=torch.long), targets=torch.ones(4, 3, dtype=torch.long))
    part = whole.part(0, 2)
    found = part.pin_memory()
    assert pinned == [6, 6]
    assert (found.share, found.whole, found.seen) == (part.share, 12, 6)
    assert torch.equal(found.targets, part.targets)  # type: ignore[attr-defined]


def test_a_translation_batch_counts_its_tokens_before_it_goes_to_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training reads the count several times a step, and each read from a GPU would wait for all that it has to do.

    The device "meta" holds no values at all: a count that is read from its tensors fails.
    """
    expected = torch.tensor([[5, 6, 7, 1], [8, 1, 0, 0], [9, 9, 1, 0]])
    whole = TranslationBatch(expected.clone(), expected.clone(), expected, torch.arange(3))
    assert whole.seen == whole.seen_by_all == 9
    part = whole.part(1, 2)
    assert isinstance(part, TranslationBatch)
    assert part.seen == int((part.expected != 0).sum()) < 9
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    there = move_data_to_device(part.pin_memory(), torch.device("meta"))
    assert there.expected.is_meta
    assert (there.seen, there.seen_by_all, there.share) == (part.seen, 9, part.share)
    assert replace(whole, expected=torch.zeros_like(expected)).seen == 0
