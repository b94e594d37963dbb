"""Inputs that no repository holds well, made on the spot: links, pipes, odd names, very long and very deep files."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from PIL import Image

from triptych.commands.cli import CONF
from triptych.config import build
from triptych.data.local import tables
from triptych.errors import UserError
from triptych.runs.folder import literal_text

ALONE = {"data.splits.validation": "train", "data.splits.test": "train"}  # nothing is cut off: all of train is seen


@cache
def composed(task: str) -> DictConfig:
    words = {"charlm": ["data=text", "model.context=1"], "vit": ["data=image_folder", "data.size=null"]}[task]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return OmegaConf.masked_copy(compose("train", overrides=[f"task={task}", *words]), ["data", "model", "seed"])


def opened(task: str, path: Path, **settings: Any) -> Any:
    """The data of a task, read by its configuration; ``splits__test="test"`` stands for data.splits.test=test."""
    config = composed(task).copy()
    config.data.path = literal_text(str(path))
    own = {f"data.{name.replace('__', '.')}": value for name, value in settings.items()}
    for name, value in {**ALONE, **own}.items():
        OmegaConf.update(config, name, value)
    data = build.build_data(config)
    data.open()
    return data


def text(data: Any) -> str:
    return data.tokenizer.decode(data.ids["train"].tolist())


def picture(path: Path, shade: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4), shade).save(path)


# ---- links ----


def test_a_folder_that_two_links_lead_to_is_read_for_both(tmp_path: Path) -> None:
    """Pictures that splits share through links belong to every one of them, whichever is met first."""
    for name, shade in (("cat", 10), ("dog", 200)):
        picture(tmp_path / "store" / name / "1.png", shade)
        for split in ("train", "test"):
            (tmp_path / "set" / split).mkdir(parents=True, exist_ok=True)
            (tmp_path / "set" / split / name).symlink_to(tmp_path / "store" / name)
    data = opened("vit", tmp_path / "set", splits__test="test")
    assert data.format.classes == ("cat", "dog")
    assert {split: data.images[split][:, 0, 0, 0].tolist() for split in ("train", "test")} == {
        "train": [10, 200],
        "test": [10, 200],
    }


def test_the_test_split_may_be_a_link_to_the_training_split(tmp_path: Path) -> None:
    for name, shade in (("cat", 10), ("dog", 200)):
        picture(tmp_path / "train" / name / "1.png", shade)
    (tmp_path / "test").symlink_to(tmp_path / "train")
    data = opened("vit", tmp_path, splits__test="test")
    assert [len(data.images[split]) for split in ("train", "test")] == [2, 2]


def test_links_that_lead_round_through_two_folders(tmp_path: Path) -> None:
    """Each file once on every way to it that passes no folder twice; where it would, that is said."""
    for own, other in (("a", "b"), ("b", "a")):
        (tmp_path / own).mkdir()
        (tmp_path / own / f"{own}.txt").write_text(own)
        (tmp_path / own / "on").symlink_to(tmp_path / other)
    data = opened("charlm", tmp_path)
    assert text(data) == "a\nb\nb\na"  # a/a, a/on/b, b/b, b/on/a
    assert "a/on/on, b/on/on (a link to a folder that it lies in)" in data.describe()


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    """Reading a named pipe would wait for ever."""
    (tmp_path / "a.txt").write_text("some text")
    os.mkfifo(tmp_path / "b.txt")
    data = opened("charlm", tmp_path)
    assert text(data) == "some text"
    assert "b.txt (no file)" in data.describe()


# ---- the account of what was read ----


def test_odd_names_stay_in_one_line(tmp_path: Path) -> None:
    """A line end or a terminal's command in a file's name neither breaks the line nor reaches the terminal."""
    (tmp_path / "a.txt").write_text("some text")
    (tmp_path / "two\nlines.pdf").write_text("x")
    (tmp_path / "\x1b[31mred.pdf").write_text("x")
    line = opened("charlm", tmp_path).describe()
    assert r"\x1b[31mred.pdf, two\nlines.pdf (no kind that is read)" in line
    assert line.isprintable()


def test_pictures_of_a_chosen_table_are_not_said_to_be_left_out(tmp_path: Path) -> None:
    for name in "123":
        picture(tmp_path / "images" / f"{name}.png", 50 * int(name))
    (tmp_path / "labels.csv").write_text("image,label\nimages/1.png,x\nimages/2.png,y\n")
    (tmp_path / "other.csv").write_text("image,label\nimages/3.png,x\n")
    data = opened("vit", tmp_path, files="labels.csv")
    assert len(data.images["train"]) == 2
    assert data.report.left_out == {"not data.files=labels.csv": ["images/3.png", "other.csv"]}


def test_a_long_list_of_names_is_cut_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    for number in range(300):
        (tmp_path / f"{number:03d}.pdf").write_text("x")
    report = opened("charlm", tmp_path).report
    assert "000.pdf, 001.pdf, 002.pdf, 003.pdf, 004.pdf and 295 more (no kind that is read)" in "; ".join(
        report.lines()
    )
    stored = json.loads(json.dumps(report.to_json()))["left_out"]["no kind that is read"]
    assert stored["count"] == 300
    assert len(stored["names"]) == 100


# ---- very long, very deep, very many ----


def test_a_cell_of_any_length(tmp_path: Path) -> None:
    """Python's own csv reader stops at 131,072 characters; it looks at the quotation marks here."""
    long = "x" * 200_000
    (tmp_path / "a.csv").write_text(f'text\n"{long}"\n{long}\n')
    assert text(opened("charlm", tmp_path / "a.csv")) == f"{long}\n{long}"
    (tmp_path / "b.csv").write_text(long)
    with pytest.raises(UserError, match=r"no such column; there are: x{60} \(in") as caught:
        opened("charlm", tmp_path / "b.csv")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_json_of_any_depth_is_one_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('{"text": ' + "[" * 200_000)
    with pytest.raises(UserError, match=r"no JSON \(nested too deeply\)"):
        opened("charlm", tmp_path / name)


def test_rows_of_a_thousand_columns(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(1000)]
    (tmp_path / "a.csv").write_text(",".join(names) + "\n" + ",".join(f"v{name}" for name in names) + "\n")
    assert tables.read(tmp_path / "a.csv", {"text": "c999"}).column("text").to_pylist() == ["vc999"]


# ---- the same content, another form ----


def test_texts_with_other_line_ends_and_marks_have_the_same_fingerprint(tmp_path: Path) -> None:
    forms = {
        "plain": "übrig\nzwei\n".encode(),
        "windows": "übrig\r\nzwei\r\n".encode(),
        "marked": "\ufeffu\u0308brig\nzwei\n".encode(),
    }
    for name, content in forms.items():
        (tmp_path / f"{name}.txt").write_bytes(content)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "1.txt").write_text("übrig", encoding="utf-8")
    (tmp_path / "parts" / "2.txt").write_text("zwei\n", encoding="utf-8")
    (tmp_path / "table.csv").write_text('text\nübrig\n"zwei\n"\n', encoding="utf-8")
    places = [*(f"{name}.txt" for name in forms), "parts", "table.csv"]
    assert len({opened("charlm", tmp_path / place).fingerprint for place in places}) == 1
    (tmp_path / "plain.txt").write_text("übrig\nZwei\n", encoding="utf-8")
    assert len({opened("charlm", tmp_path / place).fingerprint for place in places[:2]}) == 2


def test_a_picture_changed_in_place_is_seen(tmp_path: Path) -> None:
    """With the size and the time stamp of before."""
    for name, shade in (("cat", 10), ("dog", 200)):
        path = tmp_path / name / "1.bmp"
        path.parent.mkdir()
        Image.fromarray(np.full((4, 4), shade, np.uint8)).save(path)
    before, path = opened("vit", tmp_path), tmp_path / "dog" / "1.bmp"
    stamp = path.stat()
    Image.fromarray(np.full((4, 4), 100, np.uint8)).save(path)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    after = opened("vit", tmp_path)
    assert path.stat().st_size == stamp.st_size
    assert [int(data.images["train"].max()) for data in (before, after)] == [200, 100]
    assert before.fingerprint != after.fingerprint


# ---- settings ----


def test_a_layout_that_is_none_is_named(tmp_path: Path, unchecked: None) -> None:
    picture(tmp_path / "cat" / "1.png", 1)
    with pytest.raises(UserError, match=r"data\.layout=folders; it must be one of: auto, classes, splits, tables"):
        opened("vit", tmp_path, layout="folders")
