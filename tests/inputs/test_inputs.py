"""Files of every kind that people have: what is in them is what comes out, or one sentence says why not.

One folder per kind holds small real files, and ``expected.yaml`` says of each what must come out, for every task that
it concerns: ``text`` (language model), ``pairs`` (translation), ``images`` (vision), ``splits`` (texts by split), or
``error``, a pattern of the sentence for each task. What git or another system cannot hold (names, links) is made here.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from PIL import Image

from triptych.commands.cli import CONF
from triptych.config import build
from triptych.errors import UserError
from triptych.runs.folder import literal_text

HERE = Path(__file__).parent
WHOLE = {"train": "train", "validation": "validation", "test": "test"}
SETTINGS: dict[str, list[str]] = {
    "charlm": ["data=text", "model.context=1"],
    "translation": ["data=parallel", "data.vocab_size=400", "data.identical=keep"],
    "vit": ["data=image_folder", "data.size=null"],
}
Opened = Callable[..., Any]


def cases() -> Iterator[Any]:
    for file in sorted(HERE.glob("*/expected.yaml")):
        for case in yaml.safe_load(file.read_text(encoding="utf-8")):
            tasks = set(case.get("error", ()))
            tasks |= {"charlm"} if "text" in case or "splits" in case else set()
            tasks |= {"translation"} if "pairs" in case else set()
            tasks |= {"vit"} if "images" in case else set()
            for task in sorted(tasks):
                place = file.parent / case["given"]
                yield pytest.param(task, place, case, id=f"{file.parent.name}: {case['name']}, {task}")


@pytest.fixture(scope="module")
def composed() -> dict[str, DictConfig]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return {
            task: OmegaConf.masked_copy(
                compose("train", overrides=[f"task={task}", "data.path=nowhere", *words]), ["data", "model", "seed"]
            )
            for task, words in SETTINGS.items()
        }


@pytest.fixture
def opened(composed: dict[str, DictConfig]) -> Opened:
    """``opened("charlm", path, {"data.cast": True})``: the data of a task, as a command would read them."""

    def open_as(task: str, path: Path, settings: dict[str, Any] | None = None) -> Any:
        config = composed[task].copy()
        config.data.path = literal_text(str(path))
        for name, value in (settings or {}).items():
            OmegaConf.update(config, name, value, force_add=False)
        data = build.build_data(config)
        data.open()
        return data

    return open_as


def in_whole(settings: dict[str, Any]) -> dict[str, Any]:
    """All of train, and train again where there is no other split: nothing is cut, so that all of it is seen."""
    return {"data.splits.validation": "train", "data.splits.test": "train", **settings}


def only(path: Path, expected: dict[str, Any]) -> dict[str, str]:
    """Settings that take the splits that are expected, and no others."""
    return {f"data.splits.{ours}": ours if ours in expected else "train" for ours in ("validation", "test")}


def texts_of(data: Any) -> dict[str, str]:
    return {split: data.tokenizer.decode(ids.tolist()) for split, ids in data.ids.items()}


@pytest.mark.parametrize(("task", "path", "case"), cases())
def test_what_is_there_is_what_comes_out(task: str, path: Path, case: dict[str, Any], opened: Opened) -> None:
    settings = case.get("settings", {})
    if task in case.get("error", ()):
        with pytest.raises(UserError, match=case["error"][task]) as caught:
            opened(task, path, in_whole(settings))
        assert "\n" not in str(caught.value), "one sentence"
        return
    if "splits" in case:
        data = opened(task, path, {**only(path, case["splits"]), **settings})
        read = data._read(document=True)  # the tokenizer knows the training text's characters only
        assert {split: read[split]["text"][0] for split in case["splits"]} == case["splits"]
    elif "text" in case:
        data = opened(task, path, in_whole(settings))
        assert texts_of(data)["train"] == case["text"]
    elif "pairs" in case:
        data = opened(task, path, in_whole(settings))
        assert [list(pair) for pair in data.texts("train")] == case["pairs"]
    else:
        data = _images(opened, path, case["images"], settings)
    line = data.describe()
    for part in case.get("report", ()):
        assert part in line
    assert "\n" not in line


def _images(opened: Opened, path: Path, expected: dict[str, Any], settings: dict[str, Any]) -> Any:
    data = opened("vit", path, {**only(path, expected["counts"]), **settings})
    assert list(data.format.classes) == expected["classes"]
    assert {split: len(data.images[split]) for split in expected["counts"]} == expected["counts"]
    if isinstance(expected.get("labels"), dict):
        assert {split: data.labels[split].tolist() for split in expected["labels"]} == expected["labels"]
    elif "labels" in expected:
        assert data.labels["train"].tolist() == expected["labels"]
    if "channels" in expected:
        assert data.format.channels == expected["channels"]
    if "values" in expected:
        pixels = torch.cat([data.images[split][:] for split in expected["counts"]])
        assert [int(pixels.min()), int(pixels.max())] == expected["values"]
    return data


def test_there_are_enough_kinds() -> None:
    found = list(cases())
    assert len(found) >= 80
    assert {parameters.values[0] for parameters in found} == set(SETTINGS)


# ---- what a repository cannot hold ----

NAMES = [
    "with blanks.txt",
    "a=b, [1] {2}.txt",
    "100 % 'quoted' \"twice\".txt",
    "${x}.txt",
    "*?.txt",
    "日本 é.txt",
    "-x.txt",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_files_mean_nothing(name: str, tmp_path: Path, opened: Opened) -> None:
    (tmp_path / name).write_text("some text", encoding="utf-8")
    assert texts_of(opened("charlm", tmp_path / name, in_whole({})))["train"] == "some text"
    assert texts_of(opened("charlm", tmp_path, in_whole({})))["train"] == "some text"


@pytest.mark.parametrize("name", ["set [1]", "a*b", "train", "test"])
def test_names_of_the_folder_itself_mean_nothing(name: str, tmp_path: Path, opened: Opened) -> None:
    folder = tmp_path / name
    for label, shade in (("cat", 10), ("dog", 200)):
        (folder / label).mkdir(parents=True)
        Image.new("L", (4, 4), shade).save(folder / label / "1.png")
    data = opened("vit", folder, in_whole({}))
    assert data.format.classes == ("cat", "dog")


def test_links_are_followed_and_loops_are_not(tmp_path: Path, opened: Opened) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "a.txt").write_text("far ")
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "b.txt").write_text("near ")
    (folder / "c.txt").symlink_to(tmp_path / "far" / "a.txt")
    (folder / "deep").symlink_to(tmp_path / "far")
    (folder / "round").symlink_to(folder)
    (folder / "z.txt").symlink_to(tmp_path / "nowhere")
    data = opened("charlm", folder, in_whole({}))
    assert texts_of(data)["train"] == "near \nfar \nfar "
    assert "z.txt (a link that leads nowhere)" in data.describe()


def test_a_file_that_may_not_be_read(tmp_path: Path, opened: Opened) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "b.txt").mkdir()  # root may read everything: a folder stands in for what cannot be opened
    (tmp_path / "b.txt" / "c.txt").write_text("y")
    assert texts_of(opened("charlm", tmp_path, in_whole({})))["train"] == "x\ny"
    if os.getuid() != 0:
        (tmp_path / "a.txt").chmod(0)
        with pytest.raises(UserError, match=r"a\.txt could not be read: Permission denied"):
            opened("charlm", tmp_path)


def test_a_name_that_is_no_text(tmp_path: Path, opened: Opened) -> None:
    try:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")).write_text("x")
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    with pytest.raises(UserError, match=r"the name of caf\?\.txt is not UTF-8: rename it"):
        opened("charlm", tmp_path)


def test_absolute_paths_in_a_table(tmp_path: Path, opened: Opened) -> None:
    for name in "ab":
        Image.new("L", (4, 4)).save(tmp_path / f"{name}.png")
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "t.csv").write_text(f"image,label\n{tmp_path}/a.png,x\n{tmp_path}/b.png,y\n")
    assert len(opened("vit", tmp_path / "table", in_whole({})).images["train"]) == 2


def test_a_file_changed_in_place_is_read_anew(tmp_path: Path, opened: Opened) -> None:
    """With the size and the time stamp of before: rsync -t, unzip and cp -p do that."""
    file = tmp_path / "a.txt"
    file.write_text("first text")
    stamp = file.stat()
    before = opened("charlm", file, in_whole({}))
    file.write_text("other text")
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    after = opened("charlm", file, in_whole({}))
    assert (texts_of(before)["train"], texts_of(after)["train"]) == ("first text", "other text")
    assert before.fingerprint != after.fingerprint
    file.write_text("first text")
    assert opened("charlm", file, in_whole({})).fingerprint == before.fingerprint


def test_equal_content_has_an_equal_fingerprint(tmp_path: Path, opened: Opened) -> None:
    rows = [("null", "00042"), ("a, b", 'c "d"'), ("x", "1e5")]
    (tmp_path / "a.csv").write_text('source,target\nnull,00042\n"a, b","c ""d"""\nx,1e5\n')
    (tmp_path / "a.tsv").write_text('source\ttarget\r\nnull\t00042\r\na, b\tc "d"\r\nx\t1e5\r\n')
    lines = ['{"source": "null", "target": "00042"}', '{"target": "c \\"d\\"", "source": "a, b"}']
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, '{"source": "x", "target": 1e5}']))
    table = pa.table({"target": [target for _, target in rows], "source": [source for source, _ in rows]})
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    prints = {
        kind: opened("translation", tmp_path / f"a.{kind}", in_whole({})).fingerprint
        for kind in ("csv", "tsv", "jsonl", "parquet")
    }
    assert len(set(prints.values())) == 1, prints


def test_ten_thousand_words_and_then_numbers(tmp_path: Path, opened: Opened) -> None:
    """A reader that takes the first block for the whole would read 42, 0.7, 100000 and True."""
    words = [f"word{n % 7}" for n in range(10_000)] + ["00042", "0.70", "1e5", "true"] * 500
    (tmp_path / "a.csv").write_text("text\n" + "\n".join(words) + "\n")
    assert texts_of(opened("charlm", tmp_path / "a.csv", in_whole({})))["train"].split("\n") == words


def test_many_files(tmp_path: Path, opened: Opened) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("L", (2, 2), len(name)).save(tmp_path / name / "0.png")
        content = (tmp_path / name / "0.png").read_bytes()
        for index in range(1, 500):
            (tmp_path / name / f"{index}.png").write_bytes(content)
    (tmp_path / "thumbs.db").write_text("")
    line = opened("vit", tmp_path, in_whole({})).describe()
    assert "read 1,000 files, 1,000 rows" in line
    assert "thumbs.db (no kind that is read)" in line


HOMELESS = """
from pathlib import Path
from triptych.data import sources
data = sources.open(source="x", path=PATH, config=None, revision=None, files=None, columns={"text": "text"},
    splits={"train": "train", "validation": "train", "test": "train"}, document=True, seed=0)
print(data["train"]["text"][0], sources.fingerprint(data)[:8])
"""


@pytest.mark.parametrize("home", [None, "/dev/null", "/nonexistent/home", "empty"])
def test_no_home_is_needed_and_nothing_is_written_there(home: str | None, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\nnull\n")
    (tmp_path / "home").mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "HF_HOME")}
    if home is not None:
        environment["HOME"] = str(tmp_path / "home") if home == "empty" else home
    script = HOMELESS.replace("PATH", repr(str(tmp_path / "a.csv")))
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"null [0-9a-f]{8}\n", done.stdout)
    assert not list((tmp_path / "home").rglob("*"))


def test_a_thousand_deep_pictures_are_scanned_once_for_their_range(tmp_path: Path, opened: Opened) -> None:
    """The range is that of all training pictures, not of the first."""
    for name, high in (("a", 50), ("b", 4000)):
        (tmp_path / name).mkdir()
        for index in range(5):
            values = np.full((4, 4), high * index // 4, np.uint16)
            Image.fromarray(values).save(tmp_path / name / f"{index}.png")
    assert opened("vit", tmp_path, in_whole({})).format.levels == (0, 4000)
