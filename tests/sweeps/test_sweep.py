"""Whole sweeps through the command line, tiny: grids, seeds, searches, failures in the middle, kills, and going on."""

import json
import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from conftest import TINY
from triptych.commands.cli import command
from triptych.commands.train import train
from triptych.config.messages import CONF
from triptych.sweeps.record import SweepFolder, all_sweeps
from triptych.tasks.charlm import CharLMTask

FEW = ("trainer.max_steps=6", "validations=3", "maps=none", "logger=[]", "sample.length=2", "explain.examples=0")


class Swept:
    """``swept("optimizer.lr=1,2")``: a sweep of tiny character models; how it ended, what it said."""

    def __init__(self, runs: Path, text: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
        self.runs, self.text, self.monkeypatch, self.capfd = runs, text, monkeypatch, capfd
        self.code, self.out, self.err = 0, "", ""

    def __call__(self, *words: str, always: bool = True) -> dict[str, Any]:
        given = ["task=charlm", "data=text", f"data.path={self.text}", *TINY, *FEW, f"runs={self.runs}", *words]
        self.monkeypatch.setattr(sys, "argv", ["sweep", *given])
        self.capfd.readouterr()
        self.code = 0
        try:
            command(train, "train", sweep=always)
        except SystemExit as ended:
            self.code = int(ended.code or 0)
        self.out, self.err = self.capfd.readouterr()
        return self.record()

    def record(self) -> dict[str, Any]:
        found = all_sweeps(self.runs)
        return found[0].read() if found else {}

    def forked(self, *words: str) -> int | None:
        """The same in a process of its own; its exit code, minus the signal that ended it."""
        process = multiprocessing.get_context("fork").Process(target=lambda: os._exit(self._code(*words)))
        process.start()
        process.join(120)
        return process.exitcode

    def _code(self, *words: str) -> int:
        self(*words)
        sys.stdout.write(self.out)
        sys.stderr.write(self.err)
        sys.stdout.flush()
        return self.code

    def folders(self) -> list[Path]:
        return [path for path in (self.runs / "charlm").iterdir() if not path.is_symlink()]


@pytest.fixture
def swept(
    tmp_path: Path,
    text_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    one_thread: None,
) -> Swept:
    return Swept(tmp_path / "runs", text_file, monkeypatch, capfd)


def statuses(record: dict[str, Any]) -> list[str]:
    return [trial["status"] for trial in record["trials"]]


def blow_at(monkeypatch: pytest.MonkeyPatch, step: int, rate: float, blow: Callable[[CharLMTask], Any]) -> None:
    """``blow`` while update ``step`` + 1 of the trial with that learning rate is computed, the first time only."""
    original = CharLMTask.training_step
    done: list[int] = []

    def training_step(self: CharLMTask, batch: Any, index: int) -> torch.Tensor:
        rates = {group.get("initial_lr", group["lr"]) for group in self.trainer.optimizers[0].param_groups}
        if self.trainer.global_step == step and any(abs(each - rate) < 1e-9 for each in rates) and not done:
            done.append(step)
            blow(self)
        return original(self, batch, index)

    monkeypatch.setattr(CharLMTask, "training_step", training_step)


def test_a_grid_whose_middle_trial_fails_goes_on_and_says_so(swept: Swept, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(task: CharLMTask) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")

    blow_at(monkeypatch, 1, 0.02, fail)
    record = swept("optimizer.lr=0.01,0.02,0.03")
    assert statuses(record) == ["finished", "failed", "finished"]
    assert record["trials"][1]["why"].startswith("out of memory: use a smaller data.batch_size")
    assert swept.code == 0
    assert "failed: optimizer.lr=0.02: out of memory" in swept.out
    winner = min((trial for trial in record["trials"] if trial["value"]), key=lambda trial: trial["value"])
    said = swept.out.splitlines()[-1]
    assert said.startswith("make train task=charlm")
    assert winner["overrides"][0] in said
    folder = all_sweeps(swept.runs)[0].path
    assert (folder / "compare.html").exists()
    assert (folder / "compare.csv").exists()
    run = folder / record["trials"][0]["run"]
    config = (run / "config.yaml").read_text()
    assert "\nsweep:" not in config, "what is stored composes again to a run of its own"
    assert re.search(r"^trial: null", config, re.MULTILINE)


def test_when_every_trial_fails_so_does_the_sweep(swept: Swept) -> None:
    record = swept("model.heads=3,5")  # 32 is no multiple of either
    assert statuses(record) == ["failed", "failed"]
    assert swept.code == 2
    assert "triptych: no trial of the sweep finished" in swept.err


def test_seeds_repeat_a_run_and_show_mean_and_interval(swept: Swept) -> None:
    record = swept("seeds=3", "seed=4", always=False)
    assert [trial["overrides"] for trial in record["trials"]] == [["seed=4"], ["seed=5"], ["seed=6"]]
    values = [trial["value"] for trial in record["trials"]]
    mean = sum(values) / 3
    assert "mean ± standard deviation [95 % interval]" in swept.out
    assert re.search(rf"val/loss +{mean:.3f} ± ", swept.out)
    assert "seed=4" not in swept.out.splitlines()[-1], "the configuration is what is best, not a seed"
    assert "heads over seeds: mean rank correlation" in swept.out
    at = all_sweeps(swept.runs)[0].path
    for trial in record["trials"]:
        kept = json.loads((at / trial["run"] / "seeds.json").read_text())["metrics"]["val/loss"]
        assert kept["n"] == 3
        assert kept["mean"] == pytest.approx(mean)
        assert "3 seeds: " in (at / trial["run"] / "report.html").read_text()


def test_a_search_prunes_and_starts_from_the_configuration_itself(swept: Swept) -> None:
    wide = "optimizer.lr=tag(log,interval(1e-9,0.1))"
    record = swept("sweep=search", "sweep.trials=7", "sweep.startup=1", wide, "trainer.max_steps=20", "validations=5")
    assert record["trials"][0]["overrides"] == ["optimizer.lr=0.025"]
    assert record["trials"][0]["status"] == "finished", "nothing to compare with yet"
    pruned = [trial for trial in record["trials"] if trial["status"] == "pruned"]
    assert pruned
    for trial in pruned:
        assert trial["steps"] < 20
        summary = json.loads((all_sweeps(swept.runs)[0].path / trial["run"] / "summary.json").read_text())
        assert summary["status"] == "pruned"
        assert summary["metrics"].keys() == {"val/loss"}
    assert "importance" in record


def test_a_killed_search_goes_on_without_repeating_anything(swept: Swept, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (
        "sweep=search",
        "sweep.trials=4",
        "sweep.pruner=none",
        "sweep.study=one",
        "optimizer.lr=interval(0.01,0.05)",
    )
    blow_at(monkeypatch, 3, 0.025, lambda task: os.kill(os.getpid(), signal.SIGKILL))
    assert swept.forked(*words) == -signal.SIGKILL
    first = swept.record()
    assert statuses(first) == ["running"]
    assert len(swept.folders()) == 1
    monkeypatch.undo()
    second = swept(*words)
    assert statuses(second) == ["finished"] * 4
    assert second["trials"][0]["run"] == first["trials"][0]["run"], "cut, not given up"
    assert len(swept.folders()) == 4
    again = swept(*words)
    assert again["trials"] == second["trials"]
    assert len(swept.folders()) == 4


def test_a_terminated_grid_says_how_to_go_on_and_does(swept: Swept, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("optimizer.lr=0.01,0.02", "trainer.max_steps=6")
    blow_at(monkeypatch, 3, 0.01, lambda task: os.kill(os.getpid(), signal.SIGTERM))
    record = swept(*words)
    assert swept.code == 130
    assert statuses(record) == ["interrupted"]
    folder = all_sweeps(swept.runs)[0]
    assert f"resume={folder.path}" in swept.out.splitlines()[-1]
    record = swept(*words, "resume=auto")
    assert statuses(record) == ["finished"] * 2
    assert record["id"] == folder.id
    assert len(swept.folders()) == 2
    whole = Swept(swept.runs.parent / "whole", swept.text, swept.monkeypatch, swept.capfd)(*words)
    assert [trial["value"] for trial in whole["trials"]] == [trial["value"] for trial in record["trials"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "the sweep has nothing to vary"),
        (
            ("optimizer.lr=interval(2,1)", "sweep=search"),
            "optimizer.lr=interval(2,1): its low end, 2, must be below its high end",
        ),
        (("optimizer.rl=1,2",), "optimizer.rl is not an option; did you mean optimizer.lr"),
        (("optimiser=muon,adamw",), "optimiser is not an option"),
        (("optimizer=muon,adam",), "optimizer=adam does not exist"),
        (("seed=1,2", "watch.metric=val/los"), "watch.metric=val/los is not a metric of task=charlm"),
        (("seed=1,2", "sweep.metric=val/los", "sweep.mode=min"), "sweep.metric=val/los is not a metric of task=charlm"),
        (("seed=1,2", "sweep.trails=3"), "sweep.trails is not an option; did you mean sweep.trials"),
        (("sweep=search", "seed=1,2", "sweep.sampler=grid"), "sweep.sampler=grid; it must be tpe or random or null"),
        (("sweep=search", "seed=1,2", "sweep.trials=0"), "sweep.trials=0; it must be a whole number of at least 1"),
        (("seeds=many",), "seeds=many; it must be a whole number"),
        (("seeds=3", "seed=1,2"), "seeds=3 goes on from one seed, not from seed=1,2"),
        (("sweep=lrr",), "sweep=lrr does not exist; did you mean sweep=lr"),
    ],
)
def test_a_mistake_stops_before_the_first_trial(swept: Swept, words: tuple[str, ...], said: str) -> None:
    swept(*words)
    assert swept.code == 2
    assert f"triptych: {said}" in swept.err
    assert len(swept.err.splitlines()) == 1
    assert not (swept.runs / "charlm").exists()
    assert not all_sweeps(swept.runs)


def test_without_optuna_a_search_names_the_extra(swept: Swept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    swept("sweep=lr")
    assert swept.err == 'triptych: a search needs optuna: pip install "triptych[sweep]"\n'
    assert not all_sweeps(swept.runs)


def test_several_values_without_a_sweep_point_at_it(swept: Swept) -> None:
    swept("seed=1,2", always=False)
    assert swept.err.startswith("triptych: seed=1,2 has several values: make sweep tries each of them")


def test_the_wandb_sweep_names_options_that_exist_in_the_form_that_hydra_reads() -> None:
    sweep = OmegaConf.to_container(OmegaConf.load(CONF / "wandb_sweep.yaml"), resolve=False)
    assert isinstance(sweep, dict)
    words = [word for word in sweep["command"] if "=" in word]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", overrides=words)
    for name in sweep["parameters"]:
        assert OmegaConf.select(config, name, throw_on_missing=True) is not None, name
    assert sweep["metric"]["name"] in CharLMTask.metrics
    assert sweep["command"][-1] == "${args_no_hyphens}"
    assert sweep["command"][:2] == ["${program}", "train"]
    assert config.logger.wandb.project == sweep["project"]


def test_a_study_with_another_space_is_refused(swept: Swept) -> None:
    swept("optimizer.lr=0.01", "seed=1,2", "sweep.study=mine")
    assert swept.code == 0
    swept("optimizer.lr=0.01", "seed=1,2,3", "sweep.study=mine")
    assert swept.code == 2
    assert "sweep.study=mine exists and is a sweep of another space (seed=1,2, now seed=1,2,3)" in swept.err
    swept("optimizer.lr=0.02", "seed=1,2", "sweep.study=mine")
    assert "with other settings" in swept.err
    assert len(swept.folders()) == 2


def test_moving_the_folder_of_runs_moves_its_sweeps(swept: Swept) -> None:
    swept("seed=1,2", "sweep.study=mine")
    moved = swept.runs.rename(swept.runs.with_name("elsewhere"))
    folder = SweepFolder(moved / "sweeps/mine")
    assert all((run := folder.run(trial)) and run.summary() for trial in folder.read()["trials"])
