"""When maps are taken, that taking them changes nothing, and that they do not depend on the kernel that ran."""

from pathlib import Path

import pytest
import torch

from conftest import Composed
from test_run import rows_of, summary_of
from triptych.attention import set_backend
from triptych.commands.train import train
from triptych.inference.loading import load
from triptych.maps import record
from triptych.maps.record import MapRecord
from triptych.maps.taking import take_maps


def moments(run: Path) -> list[int]:
    return sorted({int(file.name[5:13]) for file in (run / "maps").glob("step-*.safetensors")})


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (("maps.every_n_steps=4", "trainer.max_steps=10"), [4, 8, 10]),
        (("maps.every_n_steps=5", "trainer.max_steps=10"), [5, 10]),  # the end is no second moment
        (("maps.every_n_steps=0", "trainer.max_steps=10"), [10]),
        (("maps.every_n_steps=4", "trainer.max_steps=6", "trainer.accumulate_grad_batches=3"), [4, 6]),
        (("maps=none", "maps.every_n_steps=0"), []),
    ],
)
def test_maps_are_taken_at_the_wanted_updates_and_at_the_end(
    composed: Composed, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], wanted: list[int]
) -> None:
    """Once each: not for every batch that an update accumulates, nor before the first."""
    written: list[str] = []
    save = record.save
    monkeypatch.setattr(record, "save", lambda records, path: (written.append(path.name), save(records, path))[1])
    run = train(composed("trainer.max_steps=10", "maps.probes=1", *options, *(["maps.probes=0"] if not wanted else [])))
    assert moments(run.path) == wanted
    assert written == [f"step-{step:08d}.safetensors" for step in wanted]


def test_training_is_the_same_to_the_bit_with_and_without_maps(composed: Composed) -> None:
    """With dropout: a map that drew a number, or left the model in eval mode, would show."""
    runs = [
        train(composed("trainer.max_steps=20", *options)).path
        for options in (("maps.every_n_steps=3",), ("maps=none", "maps.every_n_steps=0"))
    ]
    assert rows_of(runs[0]) == rows_of(runs[1])
    assert summary_of(runs[0])["metrics"] == summary_of(runs[1])["metrics"]


def test_chosen_layers_and_heads(composed: Composed) -> None:
    run = train(composed("trainer.max_steps=2", "maps.layers=[-1]", "maps.heads=[1]", "maps.scores=false"))
    records = record.load(run.path / "maps" / "step-00000002.safetensors")
    assert [(each.layer, each.heads, each.scores) for each in records] == [(1, (1,), None)] * 2


def maps_of(run: Path, backend: str) -> list[MapRecord]:
    trained = load(run)
    trained.data.open()
    set_backend(trained.model, backend)
    return [
        each
        for probe in trained.data.probes(2, 16)
        for each in take_maps(
            trained.task, probe, layers=None, heads=None, scores=True, step=40, checkpoint="best", fingerprint="f"
        )
    ]


def worst_difference(one: list[MapRecord], other: list[MapRecord]) -> float:
    pairs = list(zip(one, other, strict=True))
    assert all(a.site == b.site and a.example == b.example and a.query_labels == b.query_labels for a, b in pairs)
    return max(float((a.weights - b.weights).abs().max()) for a, b in pairs)


def test_one_checkpoint_has_the_same_maps_under_flash_and_naive(trained: Path, one_thread: None) -> None:
    flash, naive = maps_of(trained, "flash"), maps_of(trained, "naive")
    assert worst_difference(flash, naive) <= 1e-5
    assert {each.backend for each in flash} == {"flash"}
    assert max(each.capture_error for each in flash) <= 1e-5
    assert float(flash[0].weights.std()) > 0.01  # maps of something


def test_a_map_of_the_last_step_is_the_last_checkpoints(trained: Path, one_thread: None) -> None:
    """What the callback wrote while training, in train mode on the live model, anyone can take again."""
    again = maps_of(trained, "flash")  # best is last here: step 40 of 40
    assert summary_of(trained)["best_step"] == 40
    written = record.load(trained / "maps" / "step-00000040.safetensors")
    assert worst_difference(written, again) == 0


@pytest.mark.slow
def test_300_steps_of_training_under_either_backend_give_the_same_maps(composed: Composed, tmp_path: Path) -> None:
    """float32, one seed: the kernels differ in rounding only, and that does not grow into another model.

    With AdamW: Muon makes every direction of a gradient equally long, those too that are nothing but rounding.
    """
    options = ("trainer.max_steps=300", "trainer.precision=32-true", "optimizer=adamw", "maps.every_n_steps=0")
    runs = [train(composed(*options, f"attention={backend}")) for backend in ("flash", "naive")]
    last = [record.load(run.path / "maps" / "step-00000300.safetensors") for run in runs]
    assert worst_difference(*last) <= 1e-4
    assert torch.isfinite(last[0][0].weights).all()
