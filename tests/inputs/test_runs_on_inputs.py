"""Models trained from files of each kind are evaluated and used, in process; one of each kind through the commands."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from PIL import Image

from conftest import SUMS_MODEL, TINY
from triptych.commands.cli import CONF
from triptych.commands.evaluate import evaluate
from triptych.commands.predict import predict
from triptych.commands.train import train

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SHORT = (
    "trainer.accelerator=cpu",
    "trainer.max_steps=2",
    "trainer.log_every_n_steps=1",
    "validations=1",
    "explain.examples=0",
    "maps=none",
    "logger=[]",
)
SMALL = {
    "charlm": (*TINY, "data=text", "model.context=4", "sample.length=5", *SHORT),
    "translation": (
        "data=parallel",
        *SUMS_MODEL,
        "model.width=16",
        "data.vocab_size=300",
        "data.max_length=32",
        "data.batch_tokens=64",
        "data.eval_batch_tokens=64",
        "data.identical=keep",
        "task.beam=1",
        "sample.sentences=1",
        *SHORT,
    ),
    "vit": ("data=image_folder", "data.size=[8,8]", "model.depth=1", "model.width=16", "model.heads=2", *SHORT),
}
SAME = ("data.splits.validation=train", "data.splits.test=train")


def words(file: Path) -> str:
    file.write_text("text\n" + "null\nNA\n00042\n1e5\n\u2028\x85\n" * 5, encoding="utf-8")
    return str(file)


def lines(file: Path) -> str:
    rows = [{"text": f"2020-01-0{n % 9 + 1} \u2028 {n}"} for n in range(9)] + [{"text": None}]
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def folder_of_texts(folder: Path) -> str:
    folder.mkdir()
    for name in ("the last train.txt", "a.txt", "b, [1] = 2.txt"):
        (folder / name).write_text(f"This is {name}. " * 3, encoding="utf-8")
    return str(folder)


def quoted_pairs(file: Path) -> str:
    file.write_text('source,target\n"one, ""two""","eins\nzwei"\nnull,NA\nx,00042\n', encoding="utf-8")
    return str(file)


def tabbed_pairs(file: Path) -> str:
    file.write_text('source\ttarget\n"open\tauf\nnone\tnull\n2020-01-02\ttrue\n', encoding="utf-8")
    return str(file)


def deep_pictures(folder: Path) -> str:
    import numpy as np

    for label, high in (("bus", 60), ("train", 120)):
        (folder / label / "2020").mkdir(parents=True)
        for index in range(4):
            values = np.full((8, 8), high - index, np.uint16)
            Image.fromarray(values).save(folder / label / "2020" / f"test {index}.png")
    return str(folder)


def table_of_pictures(folder: Path) -> str:
    (folder / "images").mkdir(parents=True)
    rows = ["image,label"]
    for index in range(8):
        Image.new("RGB", (8, 8), (index * 30, 0, 0)).save(folder / "images" / f"{index}.png")
        rows.append(f"images/{index}.png,{index % 2 + 9}")
    (folder / "labels.csv").write_text("\n".join(rows), encoding="utf-8")
    return str(folder)


KINDS: dict[str, tuple[str, Callable[[Path], str], str]] = {  # name -> task, what makes it, what to ask
    "words.csv": ("charlm", words, "null"),
    "lines.jsonl": ("charlm", lines, "2020"),
    "texts": ("charlm", folder_of_texts, "This"),
    "quoted.csv": ("translation", quoted_pairs, "null"),
    "tabbed.tsv": ("translation", tabbed_pairs, "none"),
    "deep": ("vit", deep_pictures, "bus/2020/test 1.png"),
    "table": ("vit", table_of_pictures, "images/3.png"),
}


def overridden(name: str, *overrides: str) -> Any:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(name, overrides=list(overrides))


@pytest.mark.parametrize("name", KINDS)
def test_a_run_from_each_kind_is_evaluated_and_used(
    name: str, tmp_path: Path, one_thread: None, capsys: pytest.CaptureFixture[str]
) -> None:
    task, make, asked = KINDS[name]
    path = make(tmp_path / name)
    given = overridden("train", f"task={task}", *SMALL[task], *SAME, f"runs={tmp_path / 'runs'}", "data.path=x")
    given.data.path = path
    run = train(given).path
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert summary["status"] == "finished"
    assert any("read 1 file" in line or "files" in line for line in summary["data"]["read"]["lines"])
    assert summary["data"]["read"]["lines"][0] in (run / "report.html").read_text(encoding="utf-8")
    measured = evaluate(overridden("evaluate", f"run={run}"))
    assert measured == pytest.approx(summary["metrics"], abs=1e-6)
    question = str(Path(path) / asked) if task == "vit" else asked
    asking = overridden("predict", f"run={run}", "input=x", *(["length=3"] if task == "charlm" else []))
    asking.input = question
    capsys.readouterr()
    predict(asking)
    if task != "translation":  # two updates teach a translator no more than to end a sentence
        assert capsys.readouterr().out.strip()


COMMANDS = sorted({file.parent.name: file for file in HERE.glob("*/expected.yaml")}.items())


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "file"), COMMANDS, ids=[kind for kind, _ in COMMANDS])
def test_one_of_each_kind_through_the_command(kind: str, file: Path, tmp_path: Path) -> None:
    """Its first line says what the case says, or its last one is the sentence."""
    listed = yaml.safe_load(file.read_text(encoding="utf-8"))
    chosen = (
        [next(case for case in listed if "error" not in case)] if any("error" not in case for case in listed) else []
    )
    chosen += [case for case in listed if "error" in case][:1]
    for case in chosen:
        task = (
            next(iter(case.get("error", ())))
            if "error" in case
            else "vit"
            if "images" in case
            else ("translation" if "pairs" in case else "charlm")
        )
        settings = {"data.splits.validation": "train", "data.splits.test": "train", **case.get("settings", {})}
        given = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
        small = [word for word in SMALL[task] if not word.startswith("model.context")]
        words = [f"task={task}", *small, *(["model.context=1"] if task == "charlm" else []), f"runs={tmp_path}"]
        done = subprocess.run(
            [
                sys.executable,
                *("-m", "triptych.commands", "train"),
                *words,
                *given,
                f"data.path={json.dumps(str(file.parent / case['given']))}",
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert "Traceback" not in done.stderr, done.stderr
        if "error" in case:
            assert done.returncode == 2
            assert re.search(case["error"][task], done.stderr)
        else:
            assert done.returncode == 0, done.stderr
            for part in case.get("report", ()):
                assert part in done.stdout
