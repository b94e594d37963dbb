"""Small models of the three tasks whose every part matters, and subjects of them; nothing is trained."""

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from triptych.explain.evidence import reinitialised
from triptych.explain.targets.registry import Question, examples, subjects
from triptych.explain.targets.subject import Subject

OVERRIDES = {
    "vit": ("data=digits", "model.patch_size=2", "model.depth=2", "model.width=32", "model.heads=2"),
    "charlm": ("data=python_reference", "model.depth=2", "model.width=32", "model.heads=2", "model.context=12"),
    "translation": ("model.encoder_depth=2", "model.decoder_depth=2", "model.width=32", "model.heads=2"),
}
RECURRENT = "model=bahdanau"


def config_of(name: str, *more: str) -> Any:
    from hydra import compose, initialize_config_dir

    from triptych.commands.cli import CONF

    sizes = () if any(word.startswith("model=") for word in more) else OVERRIDES[name]
    words = [*sizes, *more]
    if name == "translation":
        words += ["data=parallel", f"data.path={sums()}", "data.vocab_size=120", "data.batch_tokens=256"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", overrides=[f"task={name}", *words])


@cache
def sums() -> Path:
    """A folder of sums in English and German: "one plus two is big" / "eins und zwei ist viel"."""
    english, german = ["one", "two", "three", "four", "five", "six"], ["eins", "zwei", "drei", "vier", "fünf", "sechs"]
    rows = [
        json.dumps(
            {
                "source": f"{english[a]} plus {english[b]} is big",
                "target": f"{german[a]} und {german[b]} ist viel",
            },
            ensure_ascii=False,
        )
        for a in range(6)
        for b in range(6)
    ]
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    for split, part in {"train": rows[:24], "validation": rows[24:30], "test": rows[30:]}.items():
        (folder / f"{split}.jsonl").write_text("\n".join(part) + "\n", encoding="utf-8")
    return folder


@cache
def data_of(name: str) -> Any:
    """Opened data; a test reads them and changes nothing."""
    from triptych.config import build

    data = build.build_data(config_of(name))
    data.open()
    return data


@cache
def task_and_data(name: str, *more: str) -> tuple[Any, Any]:
    """A task of re-initialised weights in eval mode, and opened data."""
    from triptych.config import build

    config, data = config_of(name, *more), data_of(name)
    model = reinitialised(build.build_model(config, data.sizes), 1)
    if name != "translation":  # drawn at the scale of zeros, they would still be zeros
        torch.nn.init.normal_(model.predict.weight, std=0.3)  # type: ignore[union-attr, arg-type]
    generator = torch.Generator().manual_seed(2)
    for part, parameter in model.named_parameters():
        if part.endswith(("output.weight", "contract.weight")):
            torch.nn.init.normal_(parameter, std=0.2, generator=generator)
    return build.build_task(config, model, compiled=False).eval(), data


def subject_of(name: str, count: int = 3, *more: str, **options: Any) -> Subject:
    """The first subject of ``count`` test examples."""
    task, data = task_and_data(name, *more)
    options = {"seed": 0, **options} if name == "translation" else options
    return subjects(task, data, examples(task, data, "test", count), Question(**options))[0]
