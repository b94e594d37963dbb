"""For every test: shape annotations are checked on each call (production never pays for that), and small settings."""

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import jaxtyping
import pytest
import torch
from hypothesis import settings
from omegaconf import DictConfig

assert "triptych" not in sys.modules, "imported too early: its annotations would go unchecked"
# The numeric tower: an int is welcome where a float is asked for.
checker = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
jaxtyping.install_import_hook("triptych", checker)

settings.register_profile("quick", max_examples=60, deadline=None)
settings.load_profile("quick")

torch.set_num_threads(1)  # tensors here are tiny: a second thread costs more than it does


@pytest.fixture
def unchecked() -> Iterator[None]:
    """As in production: for arguments of a wrong type that the code itself must refuse."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


# Settings of a model that trains in a second. Small batches and a low dropout let it learn something in that time.
TINY = (
    "model.context=32",
    "model.depth=2",
    "model.width=32",
    "model.heads=2",
    "model.feed_forward=64",
    "model.positions=rotary",
    "model.qk_norm=false",
    "model.tied=false",
    "model.dropout=0.1",
    "data.batch_size=8",
    "data.eval_batch_size=64",
    "trainer.accelerator=cpu",
    "trainer.max_steps=40",
    "trainer.log_every_n_steps=5",
    "validations=4",
    "maps.every_n_steps=20",
    "maps.length=16",
    "sample.length=20",
    "explain.examples=0",
)

Composed = Callable[..., DictConfig]


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of 30,000 characters: the beginning of the embedded one."""
    from triptych.data.embedded import make

    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(make("python_reference")["train"]["text"][0][:30_000], encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def compose_in(text_file: Path) -> Callable[..., DictConfig]:
    """Compose conf/train.yaml for a tiny model on ``text_file``, with runs in a given folder."""
    from hydra import compose, initialize_config_dir

    from triptych.commands.cli import CONF

    def composed(runs: Path, *overrides: str) -> DictConfig:
        mine = ["task=charlm", "data=text", f"data.path={text_file}", *TINY, f"runs={runs}"]
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return compose("train", overrides=[*mine, *overrides])

    return composed


@pytest.fixture
def composed(compose_in: Callable[..., DictConfig], tmp_path: Path, one_thread: None) -> Composed:
    """``composed("seed=1")``: a tiny training configuration whose runs go to this test's own folder."""
    return partial(compose_in, tmp_path / "runs")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny tensors: a second thread only waits, most of all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def trained(compose_in: Callable[..., DictConfig], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, logged to TensorBoard and to W&B offline. Only to be read: copy it to change it."""
    torch.set_num_threads(1)
    from triptych.commands.train import train

    return train(compose_in(tmp_path_factory.mktemp("trained"), "logger=[tensorboard,wandb]")).path


# ---- a tiny translator: sums in English and German ----

SUMS = (
    "data=parallel",
    "data.vocab_size=120",
    "data.batch_tokens=256",
    "data.eval_batch_tokens=512",
    "model.width=32",
    "trainer.accelerator=cpu",
    "trainer.max_steps=60",
    "trainer.log_every_n_steps=5",
    "validations=2",
    "maps.every_n_steps=30",
    "task.beam=2",
    "sample.sentences=2",
    "explain.examples=0",
)
SUMS_MODEL = (
    "model.encoder_depth=1",
    "model.decoder_depth=2",
    "model.heads=2",
    "model.feed_forward=64",
    "model.dropout=0",
)
_NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_ZAHLEN = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]


@pytest.fixture(scope="session")
def pairs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sums in English and German with their alignments: "one plus two is big" / "eins und zwei ist viel"."""
    folder = tmp_path_factory.mktemp("pairs")
    every = [(a, b) for a in range(9) for b in range(9)]
    splits = {"validation": every[::8], "test": every[4::8]}
    splits["train"] = [pair for pair in every if pair not in splits["validation"] + splits["test"]] * 3
    for split, pairs in splits.items():
        rows = [
            {
                "source": f"{_NUMBERS[a]} plus {_NUMBERS[b]} is big",
                "target": f"{_ZAHLEN[a]} und {_ZAHLEN[b]} ist viel",
                "alignment": "0-0 1?1 2-2 3-3 4-4",
            }
            for a, b in pairs
        ]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def compose_translation(pairs_folder: Path) -> Composed:
    """conf/train.yaml for a tiny translator of sums."""

    def composed(*overrides: str) -> DictConfig:
        from hydra import compose, initialize_config_dir

        from triptych.commands.cli import CONF

        columns = "data.columns.alignment=alignment"
        mine = ["task=translation", *SUMS, f"data.path={pairs_folder}", columns]
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return compose("train", overrides=[*mine, *overrides])

    return composed


@pytest.fixture(scope="session")
def translator(compose_translation: Composed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run on sums. Only to be read."""
    from triptych.commands.train import train

    torch.set_num_threads(1)
    runs = tmp_path_factory.mktemp("translation")
    return train(compose_translation(*SUMS_MODEL, "trainer.max_steps=150", f"runs={runs}")).path
