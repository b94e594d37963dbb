"""Opening files, folders and embedded sources: the three splits, columns, the fingerprint, and bad input."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import given as any_of
from hypothesis import strategies as some

from triptych.data import sources
from triptych.errors import UserError

CUT: dict[str, str | float] = {"train": "train", "validation": 0.25, "test": 0.25}
PAIRS = [{"en": f"word {n}", "de": f"Wort {n}"} for n in range(8)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def rows(path: Path | str | None, **given: Any) -> datasets.DatasetDict:
    settings: dict[str, Any] = {
        "columns": {"en": "en", "de": "de"},
        "splits": CUT,
        "document": False,
        "seed": 1,
    }
    return sources.open(
        **{"source": "a/b", "path": path and str(path), "config": None, "revision": None, "files": None}
        | settings
        | given
    )


def text(path: Path | str, **given: Any) -> dict[str, str]:
    settings = {"columns": {"text": "text"}, "document": True} | given
    return {split: part["text"][0] for split, part in rows(path, **settings).items()}


def write_pairs(folder: Path, kind: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"pairs [1].{kind}"
    table = datasets.Dataset.from_list(PAIRS)
    if kind in ("json", "jsonl"):
        path.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
    elif kind == "parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, sep="\t" if kind == "tsv" else ",")
    return path


def test_shares_of_text_are_contiguous_characters(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(chr(97 + n % 26) for n in range(1000)))
    whole = (tmp_path / "a.txt").read_text()
    found = text(tmp_path / "a.txt", splits={"train": "train", "validation": 0.05, "test": 0.05})
    assert found == {"train": whole[:900], "validation": whole[900:950], "test": whole[950:]}


def test_first_ninety_percent_and_a_test_that_is_the_validation_text(tmp_path: Path) -> None:
    # The convention of tiny Shakespeare; published losses are comparable only with exactly this cut.
    (tmp_path / "a.txt").write_text("x" * 1_003_854 + "y" * 111_540)
    found = text(tmp_path / "a.txt", splits={"train": "train", "validation": 0.1, "test": "validation"})
    assert found == {"train": "x" * 1_003_854, "validation": "y" * 111_540, "test": "y" * 111_540}


def test_text_is_whole_composed_and_has_plain_newlines(tmp_path: Path) -> None:
    # Not one row per line, byte order mark off, CRLF as LF, u + U+0308 as ü: whatever editor saved the file.
    (tmp_path / "a.txt").write_bytes("\ufeffu\u0308ber\r\n\r\n  zwei\n".encode())
    found = text(tmp_path / "a.txt")
    assert "".join(found.values()) == "über\n\n  zwei\n"


def test_folder_of_texts_is_joined_in_order_of_name(tmp_path: Path) -> None:
    for name in ("2", "1", "3"):
        (tmp_path / f"{name}.txt").write_text(f"part {name}")
    assert "".join(text(tmp_path).values()) == "part 1\npart 2\npart 3"


def test_readme_of_a_folder_names_its_splits(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("to train on")
    (tmp_path / "held.txt").write_text("to test on")
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n"
        "  - {split: train, path: mine.txt}\n  - {split: test, path: held.txt}\n---\n"
    )
    found = text(tmp_path, columns={"text": "Text"}, splits={"train": "train", "validation": "test", "test": "test"})
    assert found == {"train": "to train on", "validation": "to test on", "test": "to test on"}


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "tsv", "parquet"])
def test_every_kind_of_file_has_the_same_content_and_fingerprint(tmp_path: Path, kind: str) -> None:
    # ... also in a path with signs that mean a pattern.
    found = rows(write_pairs(tmp_path / "a b", kind))
    assert {name: len(part) for name, part in found.items()} == {"train": 4, "validation": 2, "test": 2}
    assert sorted(row["en"] for part in found.values() for row in part) == [pair["en"] for pair in PAIRS]
    assert sources.fingerprint(found) == sources.fingerprint(rows(write_pairs(tmp_path / "b", "jsonl")))


@pytest.mark.parametrize("whole_folder", [False, True])
def test_a_quotation_mark_in_a_tsv_file_is_text(tmp_path: Path, whole_folder: bool) -> None:
    """Sites that distribute sentence pairs quote nothing: read as in csv, one mark swallows the rows after it."""
    path = tmp_path / "folder" / "train.tsv"
    path.parent.mkdir()
    lines = [
        ("en", "de"),
        ('"Hello," he said.', '"Hallo", sagte er.'),
        ('"Open', "Auf"),
        ("Next", "Weiter"),
        ("x", "y"),
    ]
    path.write_text("".join("\t".join(line) + "\n" for line in lines))
    found = rows(path.parent if whole_folder else path)
    assert {(row["en"], row["de"]) for part in found.values() for row in part} == set(lines[1:])


def test_row_shares_depend_on_the_seed_only(tmp_path: Path) -> None:
    path = write_pairs(tmp_path, "jsonl")
    once, again, other = rows(path), rows(path), rows(path, seed=2)
    assert all(once[name]["en"] == again[name]["en"] for name in once)
    assert once["test"]["en"] != other["test"]["en"]


def labelled(tmp_path: Path, sizes: dict[str, int], **given: Any) -> dict[str, list[dict[str, Any]]]:
    """Splits of a file with so many rows of every label, mixed."""
    written = [{"n": n, "label": label} for label, count in sizes.items() for n in range(count)]
    written.sort(key=lambda row: (row["n"], row["label"]))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written))
    columns = {"n": "n", "label": "label"}
    read = rows(tmp_path / "a.jsonl", columns=columns, **given)
    # Numbers come as they are spelled.
    found = {name: [{**row, "n": int(row["n"])} for row in part] for name, part in read.items()}
    assert sorted(map(str, written)) == sorted(str(row) for part in found.values() for row in part)
    order = {(row["n"], row["label"]): place for place, row in enumerate(written)}
    for part in found.values():  # each keeps the original order
        places = [order[row["n"], row["label"]] for row in part]
        assert places == sorted(places)
    return found


def test_stratified_shares_by_hand(tmp_path: Path) -> None:
    """A tenth of 100, 35, 15 and 1: 15 rows, 10 + 3 + 1 and one more where most is left over; the one stays."""
    cut: dict[str, Any] = {"splits": {"train": "train", "validation": 0.1, "test": 0.1}, "stratify": "label"}
    sizes = {"big": 100, "middle": 35, "small": 15, "single": 1}
    found = labelled(tmp_path, sizes, **cut)
    counts = {name: [sum(row["label"] == label for row in part) for label in sizes] for name, part in found.items()}
    assert counts == {"train": [80, 28, 12, 1], "validation": [10, 4, 1, 0], "test": [10, 3, 2, 0]}
    assert labelled(tmp_path, sizes, **cut) == found
    assert labelled(tmp_path, sizes, **cut, seed=2)["test"] != found["test"]


def test_rows_are_drawn_from_all_over_a_class(tmp_path: Path) -> None:
    found = labelled(tmp_path, {"a": 100, "b": 100}, splits=CUT, stratify="label")
    for label in "ab":
        numbers = [row["n"] for row in found["test"] if row["label"] == label]
        assert len(numbers) == 25
        assert 35 < sum(numbers) / 25 < 65


def test_too_few_of_every_class_to_cut_from(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"only 3 rows with 3 values of label: too few to cut data\.splits"):
        labelled(tmp_path, {"a": 1, "b": 1, "c": 1}, stratify="label")
    with pytest.raises(UserError, match=r"only 2 rows: too few to cut data\.splits"):
        labelled(tmp_path, {"a": 2}, splits=CUT)


@any_of(some.lists(some.integers(1, 60), min_size=1, max_size=12), some.floats(0.01, 0.9))
def test_counts_are_the_share_of_each_and_of_all(sizes: list[int], share: float) -> None:
    counts = sources._counts(sizes, share, [size - 1 for size in sizes])
    assert all(0 <= count < size for count, size in zip(counts, sizes, strict=True))
    assert sum(counts) == min(max(1, round(sum(sizes) * share)), sum(sizes) - len(sizes))
    free = sources._counts(sizes, share, sizes)
    assert all(abs(count - size * share) < 1 + 1e-6 for count, size in zip(free, sizes, strict=True))


def test_columns_are_chosen_renamed_and_reached_inside_others(tmp_path: Path) -> None:
    nested = [{"id": n, "translation": {"en": f"book {n}", "it": f"libro {n}"}} for n in range(8)]
    (tmp_path / "books.jsonl").write_text("".join(json.dumps(row) + "\n" for row in nested))
    found = rows(tmp_path / "books.jsonl", columns={"en": "translation.en", "it": "translation.it"})
    assert found["train"].column_names == ["en", "it"]
    assert found["train"][0]["it"].startswith("libro")
    swapped = rows(write_pairs(tmp_path / "b", "jsonl"), columns={"en": "de", "de": "en"})
    assert swapped["train"][0]["en"].startswith("Wort")


def test_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    # Same rows in another Arrow layout: the same; one letter, or the border between two values: another.
    def of(train: datasets.Dataset) -> str:
        return sources.fingerprint(datasets.DatasetDict(train=train))

    plain = datasets.Dataset.from_dict({"text": ["one", "two", "three"]})
    shuffled = datasets.Dataset.from_dict({"text": ["three", "two", "one"]}).select([2, 1, 0])
    assert of(plain) == of(shuffled) == of(datasets.concatenate_datasets([plain.select([0]), plain.select([1, 2])]))
    others = [["one", "two", "threE"], ["onet", "wo", "three"], ["two", "one", "three"]]
    assert len({of(plain), *(of(datasets.Dataset.from_dict({"text": other})) for other in others)}) == 4


def test_embedded_source_has_its_own_splits() -> None:
    found = sources.open(
        source="embedded:python_reference",
        path=None,
        config=None,
        revision=None,
        files=None,
        columns={"text": "text"},
        splits={"train": "train", "validation": "validation or 0.25", "test": "test or 0.25"},
        document=True,
        seed=1,
    )
    assert list(found) == ["train", "validation", "test"]
    assert len(found["train"]["text"][0]) > 10 * len(found["test"]["text"][0])


def test_import_stays_light() -> None:
    # `datasets` takes seconds: a program that only reads settings or prints an error must not wait for it.
    script = "import sys, triptych.data.sources; sys.exit('datasets' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


BAD_FILES = {
    "latin.txt": (b"caf\xe9", r"latin\.txt is not UTF-8 text \(see byte 3\)"),
    "empty.txt": (b"", r"data\.path=.*empty\.txt is empty"),
    "latin.csv": (b"en,de\ncaf\xe9,Kaffee\n", r"latin\.csv is not UTF-8 text \(see byte 9\)"),
    "latin.jsonl": (b'{"en": "caf\xe9", "de": "x"}\n', r"latin\.jsonl is not UTF-8 text \(see byte 11\)"),
    "broken.jsonl": (b'{"en": \n', r"data\.path=.*broken\.jsonl could not be read"),
    "empty.jsonl": (b"", r"data\.path=.*empty\.jsonl"),
    "broken.parquet": (b"PAR1 no", r"data\.path=.*broken\.parquet could not be read"),
    "data.docx": (b"PK", r"data\.path=.*data\.docx is none of: \.csv"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_file_is_one_sentence(tmp_path: Path, name: str) -> None:
    content, message = BAD_FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        text(tmp_path / name) if name.endswith(".txt") else rows(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"columns": {"en": "en", "fr": "fr"}}, r"data\.columns\.fr=fr.*there are: en, de"),
        ({"columns": {"a": "en", "b": "en"}}, r"data\.columns names one column twice"),
        ({"splits": CUT | {"train": "learn"}}, r"data\.splits\.train=learn.*there are: train"),
        ({"splits": CUT | {"test": "exam"}}, r"data\.splits\.test=exam.*no such split"),
        ({"splits": CUT | {"test": 1.5}}, r"data\.splits\.test=1\.5"),
        ({"splits": {"train": "train"}}, r"data\.splits must have exactly"),
        ({"path": None, "source": "embedded:nothing"}, r"embedded:nothing.*python_reference"),
        ({"path": None, "source": "folder"}, r"data\.source=folder must be.*data\.path"),
        ({"path": "not/there"}, r"data\.path=not/there does not exist"),
    ],
)
def test_bad_setting_is_named(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        rows(**({"path": write_pairs(tmp_path, "jsonl")} | given))


def test_bad_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.path=.*could not be read"):
        text(tmp_path)  # nothing in it
    (tmp_path / "odd [1]").mkdir()
    (tmp_path / "odd [1]" / "a*.txt").write_text("plain")  # no pattern is made of a name
    assert "".join(text(tmp_path / "odd [1]").values()) == "plain"


def test_text_too_short_to_cut(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ab")
    with pytest.raises(UserError, match="too short"):
        text(tmp_path / "a.txt", splits={"train": "train", "validation": 0.05, "test": 0.05})


def test_column_that_is_no_text(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"n": [1, 20, 300], "x": [[1], [2], [3]]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"data\.columns\.text=n must be a column of text.*int64.*data\.cast=true"):
        text(tmp_path / "a.parquet", columns={"text": "n"})
    assert "".join(text(tmp_path / "a.parquet", columns={"text": "n"}, cast=True).values()) == "1\n20\n300"
    with pytest.raises(UserError, match=r"data\.columns\.text=x must be a column of text"):
        text(tmp_path / "a.parquet", columns={"text": "x"}, cast=True)


def test_file_that_may_not_be_opened(tmp_path: Path) -> None:
    # A dangling link stands in for it: tests may run as root, who may open everything.
    os.symlink(tmp_path / "nowhere", tmp_path / "a.txt")
    with pytest.raises(UserError, match="does not exist"):
        text(tmp_path / "a.txt")


@pytest.mark.parametrize("value", [None, True, "test or much"])
def test_a_split_that_is_no_name_and_no_share(tmp_path: Path, value: object) -> None:
    with pytest.raises(UserError, match=r"data\.splits\.test=.*it must be the name of a split, a share|no such split"):
        rows(write_pairs(tmp_path, "jsonl"), splits={**CUT, "test": value})


def test_two_settings_that_say_which_files_to_read(tmp_path: Path) -> None:
    write_pairs(tmp_path, "jsonl")
    with pytest.raises(UserError, match=r"data\.config=a and data\.files=\*: .* leave one of them null"):
        rows(tmp_path, config="a", files="*")
