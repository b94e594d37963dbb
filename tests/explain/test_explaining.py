"""explain.json from a split, an input and a run's end: what it holds agrees with the methods, and it is whole JSON."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from subjects_of import subject_of, task_and_data

from triptych.callbacks.explanations import ExplanationsCallback
from triptych.commands.explain import explain
from triptych.errors import UserError
from triptych.explain import explaining
from triptych.explain.evidence import collect_evidence
from triptych.explain.explaining import Settings
from triptych.explain.methods.registry import METHODS
from triptych.explain.targets.images import class_tokens
from triptych.explain.targets.registry import examples
from triptych.loggers import publish
from triptych.maps import record
from triptych.pictures import explanations as drawn
from triptych.report import explanation_table
from triptych.runs import explanations

QUICK = ("attention", "relevance", "random")


def quickly(name: str, count: int, **options: Any) -> dict[str, Any]:
    task, data = task_and_data(name)
    settings = Settings(**{"methods": QUICK, "orders": 2, "points": 3, "control": False, **options})
    return explaining.explain(task, data, examples(task, data, "test", count), settings)


@pytest.mark.parametrize("name", ["vit", "charlm", "translation"])
def test_what_is_kept_agrees_with_the_methods_and_reads_back(name: str, tmp_path: Path) -> None:
    found = quickly(name, 3, shown=2)
    path = explanations.write(tmp_path, found, task=name, step=7)
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert stored["step"] == 7
    assert stored["examples"] == 3
    assert [row["name"] for row in stored["methods"]] == list(QUICK)
    assert all(
        {"title", "meaning", "verdict", "deletion", "seconds_per_example"} <= row.keys() for row in stored["methods"]
    )
    assert len({each["example"] for each in stored["results"]}) == 2
    subject, (task, _) = subject_of(name, 3), task_and_data(name)
    method = next(each for each in METHODS if each.name == "relevance")
    scores = method(collect_evidence(task.model, subject, gradients=True), subject)
    kept = next(
        each for each in stored["results"] if each["method"] == "relevance" and each["example"] == subject.examples[0]
    )
    assert kept["units"] == subject.units[0]
    assert kept["output"] == subject.outputs[0]
    assert kept["scores"] == pytest.approx(scores[0].tolist(), rel=1e-2, abs=1e-4)
    assert (kept["picture"] is not None) == (kept["grid"] is not None) == (name == "vit")
    assert {row["kind"] for row in stored["interventions"]} == {"key", "permuted", "uniform", "head"}


def test_the_same_seed_judges_the_same_again() -> None:
    one, two = (quickly("vit", 3) for _ in range(2))
    for found in (one, two):
        del found["seconds"]
        for row in found["methods"]:
            del row["seconds_per_example"]
    assert one == two


def test_when_time_is_up_no_more_examples_begin() -> None:
    found = quickly("vit", 6, seconds=0.0, together=2)
    assert (found["examples"], found["asked_for"]) == (2, 6)


def test_the_table_and_the_sentences_name_every_method() -> None:
    found = quickly("vit", 2)
    assert explanation_table.table(found).row_count == len(QUICK)
    titles = [row["title"] for row in found["methods"] if row["name"] != "random"]
    assert len(titles) == len(QUICK) - 1, "random order is what the others are compared with"
    assert [line.partition(":")[0] for line in explanation_table.sentences(found)[: len(titles)]] == titles


def test_a_pictures_word_on_a_method_keeps_a_failed_control() -> None:
    def row(mean: float, low: float, high: float) -> dict[str, Any]:
        return {"mean": mean, "low": low, "high": high, "n": 9}

    better, nothing = row(0.1, 0.05, 0.15), row(0.0, -0.1, 0.1)
    said = drawn._in_short({"deletion": better, "insertion": better, "control": better})
    assert said == "beats random order; fails its control"
    assert drawn._in_short({"deletion": better, "insertion": better, "control": nothing}).endswith("not controlled")
    assert drawn._in_short({"deletion": better, "insertion": better, "control": row(0, -0.01, 0.01)}) == (
        "beats random order"
    )
    assert drawn._in_short({"deletion": nothing, "insertion": nothing, "control": None}) == "does not beat random order"


def test_a_runs_end_leaves_verdicts_on_validation_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, data = task_and_data("charlm")
    shown: list[tuple[Any, ...]] = []
    monkeypatch.setattr(publish, "picture", lambda *what, caption: shown.append((*what, caption)))
    ExplanationsCallback(folder=tmp_path, examples=2, seconds=60).conclude(task, data, [], 5)
    stored = json.loads((tmp_path / "explain.json").read_text(encoding="utf-8"))
    assert (stored["task"], stored["step"], stored["split"], stored["examples"]) == ("charlm", 5, "validation", 2)
    assert "flow" not in [row["name"] for row in stored["methods"]]
    assert all(each["example"].startswith("validation characters") for each in stored["results"])
    ((_, name, picture, step, caption),) = shown
    assert (name, step, caption) == ("maps/explanations", 5, stored["results"][0]["example"])
    assert picture.ndim == 3
    empty = tmp_path / "none"
    empty.mkdir()
    ExplanationsCallback(folder=empty, examples=0, seconds=60).conclude(task, data, [], 5)
    assert not list(empty.iterdir())


# ---- the command ----


def config_for(**options: Any) -> DictConfig:
    from hydra import compose, initialize_config_dir

    from triptych.commands.cli import CONF

    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("explain")
    for key, option in {"orders": 2, "points": 3, "control": False, **options}.items():
        OmegaConf.update(config, key, option)
    return config


def test_an_input_gets_a_folder_with_records_pictures_and_a_page(trained: Path, tmp_path: Path) -> None:
    into = tmp_path / "here"
    given = "for <img src=x> $y$"
    found = explain(config_for(run=str(trained), input=given, output=str(into), methods=["attention", "cdam"]))
    assert found == into
    stored = json.loads((into / "explain.json").read_text(encoding="utf-8"))
    assert stored["task"] == "charlm"
    assert stored["split"] is None
    (example,) = {each["example"] for each in stored["results"]}
    assert example == given or len(example) == len(given)  # a character never seen shows as unknown
    assert "one example" in stored["methods"][0]["verdict"]
    (file,) = (into / "maps").glob("*.safetensors")
    assert record.load(file)[0].weights.shape[-1] == len(given)
    assert len(list(into.glob("*methods-0.png"))) == 1
    assert (into / "report.html").exists()
    assert "<img src=x>" not in (into / "report.html").read_text(encoding="utf-8")


def test_a_sentence_is_explained_word_by_word_with_the_runs_alignment(translator: Path, tmp_path: Path) -> None:
    into = explain(
        config_for(run=str(translator), input="two plus nine is big", output=str(tmp_path / "x"), control=True)
    )
    stored = json.loads((into / "explain.json").read_text(encoding="utf-8"))
    rows = {row["name"]: row for row in stored["methods"]}
    assert {"alignment", "rollout", "flow", "relevance", "attention"} <= rows.keys()
    assert stored["examples"] == 1
    assert rows["relevance"]["control"] is not None
    outputs = [each["output"] for each in stored["results"] if each["method"] == "alignment"]
    assert len(outputs) >= 4
    assert all(each["units"] == ["two", "plus", "nine", "is", "big"] for each in stored["results"])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, 'say what to explain: input="..."'),
        ({"input": "a", "split": "test"}, "say what to explain"),
        ({"split": "tset"}, "split=tset; it must be validation or test"),
        ({"split": "test", "n": 0}, "n=0; it must be a whole number of at least 1"),
        ({"split": "test", "orders": "many"}, "orders=many; it must be a whole number"),
        ({"input": "a" * 40}, "input= has 40 characters, and this model reads 32 at most"),
        ({"input": "a", "methods": ["concept_cdam"]}, "vision transformers with model.pooling=cls"),
        ({"input": "a", "reference": "b"}, "reference= says nothing to task=charlm"),
        ({"input": "a", "concept": "folder"}, "concept= takes pictures"),
        ({"input": "a", "checkpoint": "first"}, "checkpoint=first"),
    ],
)
def test_what_cannot_be_explained_is_told_in_one_sentence(trained: Path, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=re.escape(why)):
        explain(config_for(run=str(trained), **options))


def test_a_concept_is_pictures_and_its_map_a_method(tmp_path: Path) -> None:
    task, data = task_and_data("vit")
    probes = examples(task, data, "validation", 3)
    found = explaining.explain(
        task,
        data,
        probes[:2],
        Settings(methods=["concept_cdam"], orders=2, points=3, control=False, concept=probes),
    )
    assert [row["name"] for row in found["methods"]] == ["concept_cdam"]
    tokens = class_tokens(task, probes)
    assert tokens.shape == (3, 32)
    assert isinstance(tokens, torch.Tensor)
