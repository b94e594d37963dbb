"""The head table of runs: which figures apply, when they are taken, that training is left alone, and what is kept."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from conftest import TINY
from triptych.callbacks.head_tables import LEFT_OUT_ON, LENGTH, LOOKED_AT, HeadTablesCallback
from triptych.explain.analysis import AnalysisGroup
from triptych.explain.evaluation.stability import over_runs
from triptych.explain.heads import patterns
from triptych.explain.heads.importance import importance
from triptych.explain.heads.table import table_of, telling, together
from triptych.explain.targets.registry import HeadExamples, target_of
from triptych.explain.targets.texts import repeated
from triptych.maps.capture import capture, sites

OF_TEXT = {"distance", "entropy", "relative_entropy", "previous_token", "sink", "induction", "importance"}
OF_IMAGES = {"distance", "entropy", "relative_entropy", "importance"}
PLACE = {"site", "layer", "kind", "head"}


def kept(run: Path) -> dict[str, Any]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON: a browser would not read it")

    return json.loads((run / "heads.json").read_text(encoding="utf-8"), parse_constant=refuse)


def loaded(run: Path) -> Any:
    from triptych.inference.loading import load

    found = load(run)
    found.data.open()
    return found


def examples(run: Any, count: int) -> HeadExamples:
    target = target_of(run.task)
    assert target is not None
    return target.head_examples(run.task, run.data, count, LENGTH)


def test_a_run_keeps_three_moments_and_the_ablations(trained: Path) -> None:
    found = kept(trained)
    run = loaded(trained)
    every = examples(run, LOOKED_AT + LEFT_OUT_ON).batches
    best = json.loads((trained / "summary.json").read_text(encoding="utf-8"))["best_step"]
    moments = [(each["name"], each["step"]) for each in found["moments"]]
    assert moments == [("start", 0), ("middle", 20), ("trained", best)]
    for moment in found["moments"]:
        assert {(row["layer"], row["head"]) for row in moment["rows"]} == {(0, 0), (0, 1), (1, 0), (1, 1)}
        assert all(set(row) == PLACE | OF_TEXT for row in moment["rows"])
        for layer in (0, 1):
            lengths = [row["importance"] ** 2 for row in moment["rows"] if row["layer"] == layer]
            # When training starts no head adds anything: its output projection is 0.
            assert sum(lengths) == pytest.approx(0.0 if moment["name"] == "start" else 1.0, abs=1e-4)
    assert set(found["statistics"]) == OF_TEXT
    assert set(found["stability"]) == OF_TEXT
    assert found["examples"] == len(every[::3])
    (chance,) = {json.dumps(each) for each in found["chance"].values()}
    # Even weights over 32 positions: the mean of 1/(i+1) over rows 1 to 31; a block of 16 said twice.
    assert json.loads(chance)["sink"] == pytest.approx(sum(1 / (i + 1) for i in range(1, 32)) / 31, abs=1e-5)
    assert json.loads(chance)["induction"] == pytest.approx(sum(1 / (i + 1) for i in range(16, 32)) / 16, abs=1e-5)
    why = " ".join(each["why"] for each in found["ablations"])
    assert "strongest previous-token" in why
    assert "strongest induction" in why
    assert "most important" in why
    assert {each["how"] for each in found["ablations"]} == {"zero", "mean"}
    unseen = len(every) - len(every[::3])
    assert {each[name]["n"] for each in found["ablations"] for name in ("loss_change", "random")} == {unseen}
    notes = json.loads((trained / "summary.json").read_text(encoding="utf-8"))["notes"]
    assert found["ablations"][0]["sentence"] in notes["heads"]


def test_the_table_says_what_the_maps_of_its_examples_say(trained: Path) -> None:
    """Example by example instead of in batches, and importance by the gradient of one example's own loss."""
    run = loaded(trained)
    every = examples(run, 6).batches
    assert examples(run, 6).grid is None
    table = table_of(run.task, run.data, together(every))
    site = sites(run.model)[1].name
    for at, batch in enumerate(every):
        with capture(run.model, [site], grad=True) as maps:
            loss = F.cross_entropy(run.model(batch.tokens)[0], batch.targets[0], reduction="sum")
        weights = maps[site].weights
        with torch.no_grad():
            assert torch.allclose(table.scores[site]["sink"][at], patterns.sink(weights)[0].double(), atol=1e-5)
            assert torch.allclose(table.scores[site]["distance"][at], patterns.distance(weights)[0].double(), atol=1e-4)
        # Along the weights: sum A dL/dA = sum context dL/dcontext, since context = A V.
        (gradient,) = torch.autograd.grad(loss, [weights])
        assert torch.allclose(
            table.scores[site]["importance"][at], importance(weights, gradient)[0].double(), atol=1e-3
        )
    row = next(row for row in table.rows() if (row["site"], row["head"]) == (site, 1))
    assert row["sink"] == pytest.approx(table.scores[site]["sink"][:, 1].mean().item(), abs=1e-5)
    strongest = table.strongest("induction")
    assert strongest is not None
    assert strongest[1] == max(row["induction"] for row in table.rows())
    assert telling(table)[strongest[0]].count("strongest induction") == 1


def test_examples_do_not_overlap_and_are_the_same_each_time(trained: Path) -> None:
    run = loaded(trained)
    whole = run.data.ids["validation"]
    every = examples(run, 10_000).batches
    assert len(every) == (len(whole) - 1) // run.data.context
    assert torch.equal(torch.cat([each.tokens[0] for each in every]), whole[: len(every) * run.data.context])
    assert [len(batch.tokens) for batch in together(every[:18])] == [16, 2]


def test_the_random_block_is_said_twice_without_the_unknown_token() -> None:
    tokens = repeated(5, 8, count=50)
    assert torch.equal(tokens[:, :8], tokens[:, 8:])
    assert set(tokens.flatten().tolist()) == {1, 2, 3, 4}
    assert torch.equal(tokens, repeated(5, 8, count=50))


def test_taking_the_table_leaves_training_alone(trained: Path) -> None:
    run = loaded(trained)
    run.task.train()
    before = torch.get_rng_state()
    table_of(run.task, run.data, together(examples(run, 2).batches))
    assert torch.equal(before, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in run.model.parameters())
    assert run.task.training
    assert run.model.training


def test_a_resumed_run_keeps_the_moments_before_it_and_drops_what_it_does_again(
    tmp_path: Path, trained: Path, unchecked: None
) -> None:
    rows = kept(trained)["moments"][0]["rows"]
    moments = [
        {"step": step, "name": name, "rows": rows} for step, name in ((0, "start"), (20, "middle"), (40, "trained"))
    ]
    (tmp_path / "heads.json").write_text(json.dumps({"moments": moments}), encoding="utf-8")
    callback = HeadTablesCallback(folder=tmp_path)
    trainer: Any = SimpleNamespace(global_step=10, is_global_zero=True, max_steps=40)
    run = loaded(trained)
    callback.on_train_start(trainer, run.task)
    trainer.global_step, trainer.datamodule = 20, run.data
    callback.on_train_batch_end(trainer, run.task, None, None, 0)
    callback.on_train_batch_end(trainer, run.task, None, None, 1)  # the next part of an accumulated update
    assert [each["step"] for each in kept(tmp_path)["moments"]] == [0, 20]
    assert kept(tmp_path)["moments"][1]["rows"] != rows


def test_several_runs_are_compared_by_their_tables(trained: Path) -> None:
    found = over_runs([trained, trained])
    assert set(found) == OF_TEXT
    assert found["sink"]["heads"].mean == pytest.approx(1.0)


def test_a_translator_has_what_applies_to_each_of_its_stacks(translator: Path) -> None:
    found = kept(translator)["moments"][-1]["rows"]
    of = {(row["site"].split(".")[0], row["kind"]): set(row) - PLACE for row in found}
    ordered = {"distance", "entropy", "relative_entropy", "previous_token", "sink", "importance"}
    assert of == {
        ("encoder", "self"): ordered,
        ("decoder", "self"): ordered,
        ("decoder", "cross"): {"entropy", "relative_entropy", "importance"},
    }
    named = {each["heads"] for each in kept(translator)["ablations"]}
    assert all(name.startswith(("encoder self-attention layer", "decoder ")) for name in named), named
    assert (translator / "alignment.json").exists(), "alignment is measured beside it"


def test_an_image_model_has_distances_between_patches(tmp_path: Path, one_thread: None) -> None:
    from hydra import compose, initialize_config_dir

    from triptych.commands.cli import CONF
    from triptych.commands.train import train

    small = [setting for setting in TINY if setting.split("=")[0] not in NOT_OF_IMAGES]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(
            "train",
            overrides=[
                "task=vit",
                "data=digits",
                "model.patch_size=4",
                *small,
                "trainer.max_steps=4",
                f"runs={tmp_path}",
            ],
        )
    found = kept(train(config).path)
    last = found["moments"][-1]["rows"]
    assert all(set(row) == PLACE | OF_IMAGES for row in last)
    # 2 x 2 patches: from each the four are 0, 1, 1 and sqrt 2 away.
    assert next(iter(found["chance"].values()))["distance"] == pytest.approx((2 + math.sqrt(2)) / 4, abs=1e-5)
    assert [each["how"] for each in found["ablations"]] == ["zero", "mean"]
    assert "most important" in found["ablations"][0]["why"]


NOT_OF_IMAGES = (
    "model.context",
    "model.tied",
    "model.positions",
    "model.qk_norm",
    "maps.length",
    "sample.length",
    "model.dropout",
)


def test_several_analyses_speak_in_their_order(unchecked: None) -> None:
    asked: list[str] = []

    class One:
        def __init__(self, name: str) -> None:
            self.name = name

        def measure(self, task: Any, data: Any) -> tuple[dict[str, float], dict[str, str]]:
            return {f"val/{self.name}": 1.0}, {self.name: "said"}

        def conclude(self, task: Any, data: Any, loggers: list[Any], step: int) -> None:
            asked.append(f"{self.name} {step}")

        def pictures(self, task: Any, probe: Any, step: int) -> dict[str, Any]:
            return {self.name: step}

    both = AnalysisGroup(One("a"), One("b"))
    assert both.measure(None, None) == ({"val/a": 1.0, "val/b": 1.0}, {"a": "said", "b": "said"})
    both.conclude(None, None, [], 7)
    assert asked == ["a 7", "b 7"]
    assert both.pictures(None, None, 7) == {"a": 7, "b": 7}
    assert [one.name for one in both] == ["a", "b"]  # type: ignore[attr-defined]


def test_a_model_without_attention_has_no_table(tmp_path: Path, unchecked: None) -> None:
    callback = HeadTablesCallback(folder=tmp_path)
    task: Any = SimpleNamespace(model=torch.nn.Linear(1, 1))
    assert callback.measure(task, None) == ({}, {})
    callback.conclude(task, None, [], 1)
    assert not list(tmp_path.iterdir())
