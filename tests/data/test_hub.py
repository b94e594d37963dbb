"""The hub path for real: `sources.open` in child processes, against a loopback server in the hub's place."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
from fake_hub import FakeHub
from PIL import Image

from triptych.data import sources

CHILD = """
import io, json, time
from PIL import Image
start = time.monotonic()
from triptych.data import sources
from triptych.errors import UserError

def visit(**given):
    settings = dict(source="acme/pairs", path=None, config=None, revision=None, files=None,
        document=False, seed=1,
        columns={"en": "en", "de": "de"},
        splits={"train": "train", "validation": "validation or 0.25", "test": "test or 0.25"}) | given
    if "image" in settings["columns"]:
        settings["layout"] = "auto"
    try:
        data = sources.open(**settings)
    except UserError as error:
        return {"error": str(error)}
    first = {name: value if isinstance(value, (str, int)) else list(Image.open(io.BytesIO(value["bytes"])).tobytes())
             for name, value in data["train"][0].items()}
    return {"fingerprint": sources.fingerprint(data), "first": first,
            "rows": {name: len(rows) for name, rows in data.items()}}

asked = json.loads(ASKED)
answers = {name: visit(**given) for name, given in asked.items()}
print(json.dumps(answers | {"seconds": time.monotonic() - start}))
"""
WHOLE = {"train": "train", "validation": 0.2, "test": "validation"}
ASK: dict[str, dict[str, Any]] = {
    "jsonl": {},
    "tagged": {"revision": "v1"},
    "text": {"source": "acme/Poem", "columns": {"text": "text"}, "document": True, "splits": WHOLE},
    # Beside the whole text the repository has pieces of it as csv, which would win.
    "chosen file": {
        "source": "acme/pieces",
        "files": "input.txt",
        "columns": {"text": "text"},
        "document": True,
        "splits": WHOLE,
    },
    "images": {"source": "acme/digits", "columns": {"image": "img", "label": "label"}},
    "configured": {
        "source": "acme/books",
        "config": "en-fr",
        "columns": {"en": "translation.en", "fr": "translation.fr"},
    },
}
LATE = {"late": {"source": "acme/late"}}
POEM = "Two roads diverged\r\nin a yellow wood,\n\n" + "and sorry I could not travel both\n" * 3


def ask(hub: FakeHub, home: Path, asked: dict[str, dict[str, Any]], **environment: str) -> dict[str, Any]:
    return hub.run(CHILD.replace("ASKED", repr(json.dumps(asked))), home, **environment)


def jsonl(*rows: dict[str, Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def digits(folder: Path) -> bytes:
    """A parquet file of 8 images as the hub has them: encoded, with the Image feature in its metadata."""
    encoded = []
    for shade in range(8):
        file = io.BytesIO()
        Image.new("L", (2, 2), shade * 30).save(file, "PNG")
        encoded.append({"bytes": file.getvalue(), "path": None})
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(num_classes=8)})
    rows = datasets.Dataset.from_dict({"img": encoded, "label": list(range(8))}, features=features)
    rows.to_parquet(folder / "digits.parquet")
    return (folder / "digits.parquet").read_bytes()


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A user's story, a process each: first visit, failing hub, second visit, offline, silent hub, no hub."""
    place = tmp_path_factory.mktemp("hub")
    pairs = [{"en": f"word {n}", "de": f"Wort {n}"} for n in range(8)]
    books = [{"id": n, "translation": {"en": f"book {n}", "fr": f"livre {n}"}} for n in range(8)]
    card = b"---\nconfigs:\n- config_name: en-fr\n  data_files: en-fr/train.jsonl\n- config_name: en-it\n"
    card += b"  data_files: en-it/train.jsonl\n---\nBooks.\n"
    pair_files = {"train.jsonl": jsonl(*pairs), "test.jsonl": jsonl({"en": "last", "de": "letzt"})}
    with FakeHub() as hub:
        hub.repositories = {
            "acme/pairs": {"main": pair_files, "v1": {"train.jsonl": jsonl(*pairs[:4])}},
            "acme/Poem": {"main": {"README.md": b"A poem.\n", "input.txt": POEM.encode()}},
            "acme/pieces": {
                "main": {"input.txt": POEM.encode(), "train.csv": b"Text\nTwo\n", "test.csv": b"Text\nroads\n"}
            },
            "acme/digits": {"main": {"data/train-00000-of-00001.parquet": digits(place)}},
            "acme/books": {"main": {"README.md": card, "en-fr/train.jsonl": jsonl(*books), "en-it/train.jsonl": b""}},
            "acme/script": {"main": {"script.py": b"raise SystemExit('run!')", "README.md": b"old\n"}},
            "acme/gated": {"main": pair_files},
            "acme/late": {"main": pair_files},
        }
        hub.gated = {"acme/gated"}
        # What stands in the working directory under the name of the hub id must not be taken for it.
        (place / "acme/pairs").mkdir(parents=True)
        (place / "acme/pairs/train.jsonl").write_bytes(jsonl({"en": "not", "de": "this"}))
        seen = SimpleNamespace(hub=hub, place=place, pair_files=pair_files)
        wrong = {
            "missing": {"source": "acme/nothing"},
            "revision": {"revision": "v9"},
            "script": {"source": "acme/script"},
            "gated": {"source": "acme/gated"},
            "config": {**ASK["configured"], "config": "en-xx"},
            "column": {"columns": {"en": "en", "fr": "fr"}},
            "local": {"source": "./acme/pairs"},
        }
        home = place / "home"
        seen.first = ask(hub, home, ASK | wrong)
        hub.failing, hub.cutting = {"api/datasets/acme/pairs": 500}, {"train.jsonl"}
        seen.failing = ask(hub, home, {"jsonl": {}} | LATE)
        hub.failing, hub.cutting = {}, set()
        seen.before = list(hub.requests)
        seen.second = ask(hub, home, ASK | LATE)
        seen.again = hub.requests[len(seen.before) :]
        seen.offline = ask(hub, home, ASK | {"revision": {"revision": "v9"}, **GONE}, HF_HUB_OFFLINE="1")
        hub.hang = 60
        seen.hanging = ask(hub, home, {"jsonl": {}})
        hub.hang = 0
    seen.gone = ask(hub, home, {"jsonl": {}} | GONE)
    return seen


GONE = {"uncached": {"source": "acme/never"}}


@pytest.mark.parametrize("kind", ASK)
def test_first_visit_opens_and_second_comes_from_the_cache(visits: SimpleNamespace, kind: str) -> None:
    assert "error" not in visits.first[kind]
    assert visits.second[kind] == visits.first[kind]
    downloaded = [line for line in visits.again if line.startswith("GET ") and "/resolve/" in line]
    assert [line for line in downloaded if "late" not in line] == []


def test_content_of_each_layout(visits: SimpleNamespace) -> None:
    # Missing splits are cut from train, existing ones kept; text stays one text, with its newlines; a nested
    # column is reached; images decode; another revision is other data.
    first = visits.first
    assert first["jsonl"]["rows"] == {"train": 6, "validation": 2, "test": 1}
    assert first["tagged"]["rows"] == {"train": 2, "validation": 1, "test": 1}
    text = POEM.replace("\r\n", "\n")
    assert first["text"]["first"] == {"text": text[: int(len(text) * 0.8)]}
    assert first["images"]["first"] == {"image": [first["images"]["first"]["label"] * 30] * 4} | {
        "label": first["images"]["first"]["label"]
    }
    assert set(first["configured"]["first"]) == {"en", "fr"}
    assert first["configured"]["first"]["fr"].startswith("livre")


def test_hub_and_folder_with_the_same_content_have_one_fingerprint(
    visits: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "copy"
    folder.mkdir()
    for name, content in visits.pair_files.items():
        (folder / name).write_bytes(content)
    settings: dict[str, Any] = {"config": None, "revision": None, "files": None, "document": False, "seed": 1}
    data = sources.open(
        source="acme/pairs",
        path=str(folder),
        columns={"en": "en", "de": "de"},
        splits={"train": "train", "validation": 0.25, "test": "test or 0.25"},
        **settings,
    )
    assert sources.fingerprint(data) == visits.first["jsonl"]["fingerprint"]


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("missing", ["data.source=acme/nothing", "data.path"]),
        ("revision", ["data.revision=v9"]),
        ("script", ["loading script", "data.path", "refs/convert/parquet"]),
        ("gated", ["gated", "HF_TOKEN"]),
        ("config", ["data.config=en-xx", "en-fr", "en-it"]),
        ("column", ["data.columns.fr=fr", "there are: en, de"]),
        ("local", ["data.source=./acme/pairs", "data.path"]),
    ],
)
def test_what_the_hub_refuses_is_one_sentence(visits: SimpleNamespace, kind: str, parts: list[str]) -> None:
    message = visits.first[kind]["error"]
    assert all(part in message for part in parts), message
    assert "\n" not in message


def test_failing_hub_uses_the_cache_aloud_and_leaves_nothing_broken(visits: SimpleNamespace) -> None:
    assert visits.failing["jsonl"] == visits.first["jsonl"]
    assert "using acme/pairs from the cache" in visits.failing["stderr"]
    # The data file failed half-way: a sentence now, and the next visit opens it.
    assert "acme/late could not be opened" in visits.failing["late"]["error"]
    assert "data.path" in visits.failing["late"]["error"]
    assert visits.second["late"]["fingerprint"] == visits.first["jsonl"]["fingerprint"]


@pytest.mark.parametrize("kind", ASK)
def test_offline_gives_the_same_data(visits: SimpleNamespace, kind: str) -> None:
    assert visits.offline[kind] == visits.first[kind]


def test_offline_never_takes_another_revision_or_data_set(visits: SimpleNamespace) -> None:
    assert "data.revision=v9" in visits.offline["revision"]["error"]
    assert "acme/never" in visits.offline["uncached"]["error"]


def test_unreachable_hub_is_told_within_seconds(visits: SimpleNamespace) -> None:
    # Refused connections; the bound has room for a slow machine's imports.
    assert "could not be reached" in visits.gone["uncached"]["error"]
    assert "data.path" in visits.gone["uncached"]["error"]
    assert visits.gone["jsonl"] == visits.first["jsonl"]
    assert "from the cache" in visits.gone["stderr"]
    assert visits.gone["seconds"] < 15


def test_silent_hub_is_given_up_within_seconds(visits: SimpleNamespace) -> None:
    # A firewall that drops packets: no error ever comes by itself.
    assert visits.hanging["jsonl"] == visits.first["jsonl"]
    assert "no answer within" in visits.hanging["stderr"]
    assert visits.hanging["seconds"] < 20
