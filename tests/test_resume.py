"""Stopping and going on: a killed run that is resumed logs the very numbers of one that nothing disturbed."""

import json
import multiprocessing
import os
import shlex
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from conftest import Composed
from test_run import rows_of, summary_of
from triptych.commands.train import train
from triptych.errors import UserError
from triptych.report import run_page
from triptych.runs import folder, jsonlines
from triptych.runs.folder import RunFolder
from triptych.tasks.charlm import CharLMTask


def struck(config: DictConfig, step: int, blow: Callable[[], Any], *, micro_batch: int = 0) -> int:
    """Train in a forked process that does ``blow`` while update ``step`` + 1 is computed; returns how it ended."""

    def body() -> None:
        original = CharLMTask.training_step
        calls = 0

        def training_step(self: CharLMTask, batch: Any, index: int) -> torch.Tensor:
            nonlocal calls
            if self.trainer.global_step == step:
                if calls == micro_batch:
                    blow()
                calls += 1
            return original(self, batch, index)

        CharLMTask.training_step = training_step  # type: ignore[method-assign]
        code = 1
        try:
            train(config)
            code = 0
        except SystemExit as error:
            code = int(error.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    process = multiprocessing.get_context("fork").Process(target=body)
    process.start()
    process.join(120)
    assert process.exitcode is not None
    return process.exitcode


def signalled(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def only_run(config: DictConfig) -> Path:
    (run,) = folder.all_runs(Path(config.runs), "charlm")
    return run.path


def checkpoint_of(run: Path, name: str = "last") -> dict[str, Any]:
    return torch.load(run / "checkpoints" / f"{name}.ckpt", weights_only=True)


# maps.every_n_steps=7 and dropout: whatever draws numbers at such a moment would shift every later one.
UNEVEN = ("trainer.max_steps=24", "trainer.log_every_n_steps=3", "maps.every_n_steps=7", "validations=3")


Undisturbed = Callable[..., Path]


@pytest.fixture(scope="module")
def undisturbed(compose_in: Callable[..., DictConfig], tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """``undisturbed(option, ...)``: the folder of a run of UNEVEN and these options that nothing stopped."""
    runs: dict[tuple[str, ...], Path] = {}

    def run(*options: str) -> Path:
        if options not in runs:
            torch.set_num_threads(1)
            runs[options] = train(compose_in(tmp_path_factory.mktemp("undisturbed"), *UNEVEN, *options)).path
        return runs[options]

    return run


@pytest.mark.parametrize(
    ("options", "kill_at", "micro_batch", "resumes_at"),
    [
        (("checkpoint_every=5",), 13, 0, 10),  # in the middle of an epoch, between validations
        (("checkpoint_every=8",), 17, 0, 16),  # the checkpoint was taken at a validation
        (("checkpoint_every=100",), 9, 0, 8),  # there is only the validation's checkpoint
        (("checkpoint_every=5", "trainer.accumulate_grad_batches=2"), 12, 1, 10),  # between two parts of an update
        (("checkpoint_every=100",), 3, 0, 0),  # there is no checkpoint yet
    ],
    ids=["mid-epoch", "at a validation", "between", "accumulating", "before the first"],
)
def test_a_killed_run_goes_on_to_the_bit(
    composed: Composed,
    undisturbed: Undisturbed,
    options: tuple[str, ...],
    kill_at: int,
    micro_batch: int,
    resumes_at: int,
) -> None:
    """kill -9, then resume=auto: every row, the final metrics and the weights equal an undisturbed run's."""
    whole = undisturbed(*options[1:])  # how often it saves changes nothing
    config = composed(*UNEVEN, *options)
    assert struck(config, kill_at, signalled(signal.SIGKILL), micro_batch=micro_batch) == -signal.SIGKILL
    run = only_run(config)
    assert summary_of(run)["status"] == "running"  # it had no time to say otherwise
    left = RunFolder(run).checkpoint
    assert (checkpoint_of(run)["global_step"] if left else 0) == resumes_at

    resumed = train(composed(*UNEVEN, *options, "resume=auto")).path
    assert resumed == run
    assert rows_of(run) == rows_of(whole)
    summary, wanted = summary_of(run), summary_of(whole)
    for key in ("status", "steps", "seen", "metrics", "best_step", "data"):
        assert summary[key] == wanted[key], key
    for name in ("best", "last"):
        weights, right = checkpoint_of(run, name)["state_dict"], checkpoint_of(whole, name)["state_dict"]
        assert all(torch.equal(weights[key], right[key]) for key in right)
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [sample["step"] for sample in samples] == [7, 14, 21, 24]
    assert (run / "samples.jsonl").read_bytes() == (whole / "samples.jsonl").read_bytes()
    assert {file.name for file in (run / "maps").iterdir()} == {file.name for file in (whole / "maps").iterdir()}


def test_what_lies_past_the_checkpoint_is_cut(composed: Composed) -> None:
    """Rows, samples, events and maps of updates that are lost: kept, they would stand twice or never come true."""
    config = composed("trainer.max_steps=30", "validations=1", "checkpoint_every=10", "maps.every_n_steps=4")
    assert struck(config, 19, signalled(signal.SIGKILL)) == -signal.SIGKILL
    run = only_run(config)
    assert (run / "maps" / "step-00000016.png").exists()  # past the checkpoint at 10
    # More was written when the process died, the last line only in part.
    with open(run / "metrics.csv", "a", encoding="utf-8") as file:
        file.write("15,0.1,9.0,9.9,0.1,99.0,,\n20,0.2,10.0,1.2")
    kept: list[set[str]] = []

    original = CharLMTask.training_step

    def spy(self: CharLMTask, batch: Any, index: int) -> torch.Tensor:
        if self.trainer.global_step == 11 and not kept:
            kept.append({file.name[:13] for file in (run / "maps").iterdir()})
        return original(self, batch, index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CharLMTask, "training_step", spy)
        train(composed("trainer.max_steps=31", "validations=1", "checkpoint_every=10", f"resume={run}", "maps=none"))
    assert kept == [{"step-00000004", "step-00000008"}]
    rows = rows_of(run)
    assert all(row.get("train/loss") != 9.9 for row in rows)
    steps = [int(row["step"]) for row in rows if "train/loss" in row]
    assert steps == [5, 10, 15, 20, 25, 30]
    samples = [json.loads(line)["step"] for line in (run / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    assert samples == [4, 8, 20, 31]  # every 20 updates from then on
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == steps


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_in_a_checkpoint(
    composed: Composed, undisturbed: Undisturbed, number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    """The update under way is finished and saved, exit code 130, and the last line says how to go on."""
    whole = undisturbed()
    config = composed(*UNEVEN)
    capfd.readouterr()
    assert struck(config, 10, signalled(number)) == 130
    said = capfd.readouterr()
    run = only_run(config)
    assert f"stopped by {number.name} at step 11; to go on: make train task=charlm resume={run}" in said.out
    assert "Traceback" not in said.out + said.err
    summary = summary_of(run)
    assert (summary["status"], summary["steps"], summary["seen"]["value"]) == ("interrupted", 11, 11 * 8 * 32)
    assert checkpoint_of(run)["global_step"] == 11
    assert (run / "report.html").exists()
    train(composed(*UNEVEN, f"resume={run}"))
    assert rows_of(run) == rows_of(whole)
    assert summary_of(run)["fit_seconds"] > summary["fit_seconds"]


def test_a_second_ctrl_c_stops_at_once(composed: Composed, capfd: pytest.CaptureFixture[str]) -> None:
    config = composed(*UNEVEN)

    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    assert struck(config, 10, twice) == 130
    assert "stopped; to go on: make train" in capfd.readouterr().out
    run = only_run(config)
    assert (summary_of(run)["status"], checkpoint_of(run)["global_step"]) == ("interrupted", 8)


@pytest.mark.parametrize("by_name", [False, True], ids=["auto", "by name"])
def test_killed_after_the_last_update_it_still_finishes(
    composed: Composed, monkeypatch: pytest.MonkeyPatch, by_name: bool
) -> None:
    """Between the last checkpoint and the summary: nothing is left to train, but the run is not finished."""
    from triptych.commands import train as run_module

    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    options = ("trainer.max_steps=6", "maps=none")
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "measure", stop)
        with pytest.raises(SystemExit) as ended:
            train(composed(*options))
    assert ended.value.code == 130
    run = only_run(composed())
    assert (summary_of(run)["status"], summary_of(run)["steps"]) == ("interrupted", 6)
    train(composed(*options, f"resume={run if by_name else 'auto'}"))
    assert summary_of(run)["status"] == "finished"
    assert "test/loss" in summary_of(run)["metrics"]


@pytest.fixture
def stopped(composed: Composed) -> Path:
    """A run interrupted at step 11 of 24."""
    config = composed(*UNEVEN, "maps=none")
    assert struck(config, 10, signalled(signal.SIGTERM)) == 130
    return only_run(config)


def test_a_moved_run_goes_on_where_it_is_now(composed: Composed, stopped: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "my run"
    moved.parent.mkdir()
    stopped.rename(moved)
    config = composed(*UNEVEN, "maps=none")
    config.resume = str(moved)
    run = train(config)
    assert run.path == moved
    assert not stopped.exists()
    summary = summary_of(moved)
    assert (summary["status"], summary["steps"]) == ("finished", 24)
    assert all((moved / path).exists() for name, path in summary["paths"].items() if name != "maps")


def test_a_finished_run_goes_on_when_it_is_made_longer(composed: Composed) -> None:
    run = train(composed("trainer.max_steps=10", "maps=none")).path
    before = rows_of(run)
    with pytest.raises(UserError, match=r"has made its 10 updates; give a larger trainer\.max_steps"):
        train(composed("trainer.max_steps=10", "maps=none", f"resume={run}"))
    train(composed("trainer.max_steps=16", "maps=none", f"resume={run}", "logger=[]", "trainer.log_every_n_steps=2"))
    summary = summary_of(run)
    assert (summary["status"], summary["steps"], summary["seen"]["value"]) == ("finished", 16, 16 * 8 * 32)
    rows = rows_of(run)
    assert rows[: len(before)] == before
    assert [int(row["step"]) for row in rows if "train/loss" in row] == [5, 10, 12, 14, 16]


def test_the_stored_choice_of_auto_is_kept(composed: Composed, stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resumed where "auto" would now mean something else, a run goes on as it began."""
    from triptych import hardware

    monkeypatch.setattr(hardware, "precision", lambda width, device: "bf16-mixed")
    monkeypatch.setattr(hardware, "compile_pays", lambda parameters, positions, device: True)
    train(composed(*UNEVEN, "maps=none", "resume=auto"))
    stored = RunFolder(stopped).config()
    assert (stored.trainer.precision, stored.compile) == ("32-true", False)
    assert summary_of(stopped)["status"] == "finished"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("model.width=64",), r"these do: model\.width; give"),
        (("optimizer.lr=0.1", "seed=1"), r"these do: data\.seed, optimizer\.lr, seed; give"),
        (("attention=naive",), r"attention\.backend"),
        (("trainer.precision=bf16-mixed",), r"trainer\.precision"),
        (("compile=true",), r"compile"),
    ],
)
def test_other_settings_are_refused_by_name(
    composed: Composed, stopped: Path, options: tuple[str, ...], said: str
) -> None:
    before = {file: file.read_bytes() for file in stopped.rglob("*") if file.is_file()}
    with pytest.raises(UserError, match=said):
        train(composed(*UNEVEN, "maps=none", f"resume={stopped}", *options))
    assert {file: file.read_bytes() for file in stopped.rglob("*") if file.is_file()} == before


def test_resume_refuses_what_is_no_run_or_not_free(composed: Composed, stopped: Path, tmp_path: Path) -> None:
    def refused(said: str, resume: Path) -> None:
        config = composed(*UNEVEN, "maps=none")
        config.resume = str(resume)
        with pytest.raises(UserError, match=said):
            train(config)

    refused(r"resume=.*nowhere does not exist", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    refused(r"resume=.*empty is no run folder: it has no config\.yaml", tmp_path / "empty")
    holder = RunFolder(stopped)
    assert holder.lock()
    refused("is being trained by another process", stopped)
    holder.release()

    other = tmp_path / "other"
    shutil.copytree(stopped, other)
    config = OmegaConf.load(other / "config.yaml")
    config.task.name = "vit"
    OmegaConf.save(config, other / "config.yaml")
    refused("is a run of task=vit, not charlm", other)

    last = stopped / "checkpoints" / "last.ckpt"
    last.write_bytes(last.read_bytes()[:-1000])
    refused(r"last\.ckpt cannot be read.*truncated", stopped)
    torch.save({"state_dict": {}}, last)
    refused(r"last\.ckpt is no checkpoint of a run", stopped)


def test_other_data_are_refused(composed: Composed, stopped: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("another text " * 1000, encoding="utf-8")
    with pytest.raises(UserError, match="the data have changed since"):
        train(composed(*UNEVEN, "maps=none", f"data.path={other}", f"resume={stopped}"))
    assert summary_of(stopped)["status"] == "interrupted"
    assert RunFolder(stopped).lock()  # the refusal did not keep the run


# ---- resume=auto ----


def test_auto_without_a_candidate_starts_anew_and_says_so(
    composed: Composed, stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not: runs of another configuration or other data, finished ones, held ones, and what is no run."""
    (stopped.parent / "20990101-000000-abcdef").mkdir()  # killed before it wrote anything
    other = tmp_path / "other.txt"
    other.write_text("another text " * 1000, encoding="utf-8")
    holder = RunFolder(stopped)
    assert holder.lock()
    short = (*UNEVEN, "maps=none")
    new = [train(composed(*short, "resume=auto")).path]
    holder.release()
    new.append(train(composed(*short, "resume=auto", "seed=1")).path)
    new.append(train(composed(*short, "resume=auto", f"data.path={other}")).path)
    assert capsys.readouterr().out.count("no unfinished run of this configuration and data; starting a new one") == 3
    assert len({*new, stopped}) == 4
    assert RunFolder(new[0]).config().resume is None
    resumed = train(composed(*short, "resume=auto")).path  # new[0] is newer, but finished
    assert resumed == stopped
    assert f"going on with {stopped} at step 11" in capsys.readouterr().out


# ---- run folders ----


def test_two_runs_of_one_second_differ(tmp_path: Path) -> None:
    folders = [folder.create(tmp_path, "charlm") for _ in range(20)]
    assert len({run.path for run in folders}) == 20
    assert (tmp_path / "charlm" / "latest").resolve() == folders[-1].path.resolve()
    assert len(folder.all_runs(tmp_path, "charlm")) == 20  # the link is none
    assert all(not RunFolder(run.path).lock() for run in folders)


def test_the_line_that_says_how_to_go_on_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shell reads from it the very options of the first command line, quotes and blanks in them too."""
    from triptych.commands.cli import command
    from triptych.commands.train import _resume_command

    given = ["seed=3", "data=text", "data.columns={text: 'a b'}", "data.config='$x'"]
    monkeypatch.setattr(sys, "argv", ["train", "task=charlm", "resume=auto", *given])
    monkeypatch.setenv("TRIPTYCH_DATA_PATH", "my 'text'.txt")
    run = RunFolder(tmp_path / "my run")
    command(lambda config: print(_resume_command(config, run)), "train")
    make, train_, task, args, path, resume = shlex.split(capsys.readouterr().out)
    assert (make, train_, task) == ("make", "train", "task=charlm")
    assert shlex.split(args.removeprefix("args=")) == given
    assert (path, resume) == ("path=my 'text'.txt", f"resume={run.path}")


def test_a_text_with_other_line_breaks_is_resumed(composed: Composed, tmp_path: Path) -> None:
    """U+2028, form feeds and their like stand in prompts and samples, which are kept as JSON lines."""
    breaks = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
    text = tmp_path / "breaks.txt"
    line = "".join(f"a{sign}b" for sign in breaks) + "\n"
    text.write_text(line * 1000, encoding="utf-8", newline="")
    options = (f"data.path={text}", "maps=none")
    run = train(composed(*options, "trainer.max_steps=20", "maps.every_n_steps=0")).path
    train(composed(*options, "trainer.max_steps=30", "maps.every_n_steps=0", f"resume={run}"))
    rows = jsonlines.read(run / "samples.jsonl").values
    assert [row["step"] for row in rows] == [20, 30]
    assert any(sign in row["prompt"] for row in rows for sign in breaks)
    run_page.write(run)
