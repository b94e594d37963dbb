"""A user's mistake ends in one clear sentence, with an exit code and without a traceback, and nothing is lost."""

import errno
import multiprocessing
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import triptych.commands.evaluate
import triptych.commands.predict
import triptych.commands.report
import triptych.commands.train
from conftest import TINY, Composed
from test_resume import UNEVEN, checkpoint_of, only_run, rows_of, summary_of
from triptych.commands.cli import command
from triptych.runs import folder
from triptych.tasks.charlm import CharLMTask
from triptych.training.checkpoints import AtomicCheckpointIO

COMMANDS = {
    "train": triptych.commands.train.train,
    "evaluate": triptych.commands.evaluate.evaluate,
    "predict": triptych.commands.predict.predict,
    "report": triptych.commands.report.rebuild_report,
}

Said = Callable[..., str]


@pytest.fixture
def said(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    text_file: Path,
    one_thread: None,
) -> Said:
    """``said("seed=abc")``: the sentence that a command line ends in; checks that there is one, and nothing else."""

    def run(*words: str, name: str = "train", task: str | None = "charlm", path: Path | None = text_file) -> str:
        given = list(words)
        if name == "train":
            chosen = [f"task={task}", "data=text"] if task else []
            chosen += [f"data.path={path}"] if path else []
            given = [*chosen, *TINY, "maps=none", f"runs={tmp_path / 'runs'}", *given]
        monkeypatch.setattr(sys, "argv", [name, *given])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            command(COMMANDS[name], name)
        errors = capfd.readouterr().err
        assert ended.value.code == 2
        assert "Traceback" not in errors
        (sentence,) = re.findall(r"^triptych: (.*)\n\Z", errors, re.MULTILINE)
        assert "Error executing job" not in errors  # Hydra's own words stay out of it
        return sentence

    return run


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("modle.width=3", r"modle\.width is not an option; did you mean model\.width"),
        ("model.wdith=3", r"model\.wdith is not an option; did you mean model\.width"),
        ("trainer.maxsteps=3", r"trainer\.maxsteps is not an option; did you mean trainer\.max_steps"),
        ("sed=3", r"sed is not an option; did you mean seed"),
        ("batch_size=3", r"batch_size is not an option; did you mean data\.batch_size"),
        ("zzz=3", r"zzz is not an option; there are: .*model.*seed"),
        ("+model.width=3", r"model\.width exists already: write model\.width=\.\.\. without the \+"),
        ("+model.wdith=3", r"model\.wdith is not an option; there are: .*width"),
        ("++modle.width=3", r"modle\.width is not an option; did you mean model\.width"),
        ("+foo=3", r"foo is not an option"),
        ("data.longest=64", r"data\.longest is now called data\.max_length: write that instead"),
        ("+data.vocabulary=64", r"data\.vocabulary is now called data\.vocab_size: write that instead"),
        ("+trainer.foo=3", r"trainer: .*unexpected keyword argument 'foo'"),
        ("~model.width", r"model: .*'width'"),
        ("logger=null", r"takes a name, or a list of names: logger=\[\] for none"),
        ("attention=flsh", r"attention=flsh does not exist; did you mean attention=flash"),
        ("data=foo", r"data=foo does not exist; there are: .*python_reference"),
        ("logger=[tensorboard,foo]", r"logger=foo does not exist; there are: tensorboard, wandb"),
        ("optimizer=adam", r"optimizer=adam does not exist; did you mean optimizer=adamw"),
        ("model.width=abc", r"model\.width=abc; it must be a whole number"),
        ("model.width=1.5", r"model\.width=1\.5; it must be a whole number"),
        ("model.dropout=true", r"model\.dropout=True; it must be a number"),
        ("model.kv_heads=x", r"model\.kv_heads=x; it must be a whole number or null"),
        ("model.activation=foo", r"model\.activation=foo; it must be gelu or relu_squared"),
        (
            "model.width=30 model.heads=4",
            r"model\.width=30 does not divide into model\.heads=4; what works: 1, 3, 5, 15",
        ),
        ("model.dropout=1.5", r"model\.dropout=1\.5; it must be"),
        ("trainer.max_steps=-1", r"trainer\.max_steps=-1; it must be a whole number of at least 1"),
        ("trainer.max_steps=lots", r"trainer\.max_steps=lots; it must be a whole number"),
        ("validations=0", r"validations=0; it must be"),
        ("seed=-1", r"seed=-1; it must be"),
        ("early_stopping=never", r"early_stopping=never; it must be null, or"),
        ("trainer.precision=half", r"trainer: Precision 'half' is invalid.*bf16-mixed"),
        ("trainer.accelerator=abacus", r"trainer\.accelerator=abacus; it must be auto, cpu"),
        ("trainer.devices=2", r"trainer\.devices=2: one process trains; use 1"),
        ("trainer.gradient_clip_val=-1", r"trainer\.gradient_clip_val=-1; it must be"),
        ("compile=perhaps", r"compile=perhaps; it must be true, false or auto"),
        ("watch.metric=val/accuracy", r"watch\.metric=val/accuracy is not a metric of task=charlm; it has: val/loss"),
        ("watch.mode=best", r"watch\.mode=best; it must be min or max"),
        ("attention=flex", r"attention=flex cannot train on a CPU.*attention=flash"),
        ("data.batch_size=0", r"data\.batch_size=0; it must be at least 1"),
        ("data.workers=-1", r"data\.workers=-1; it must be at least 0"),
        ("maps=default maps.layers=[7]", r"maps\.layers: there is no layer 7; there are 0 to 1"),
        ("maps=default maps.heads=[7]", r"maps\.heads: there is no head 7; there are 0 to 1"),
        ("maps.layers=[]", r"maps\.layers=\[\] chooses none"),
        ("maps.probes=-1", r"maps\.probes=-1; it must be at least 0"),
        ("sample.temperature=-1", r"sample\.temperature=-1; it must be"),
        ("sample.length=long", r"sample\.length=long; it must be a whole number"),
        ("optimizer.lr=fast", r"optimizer\.lr=fast; it must be a number"),
        ("optimizer.lr=-1", r"optimizer\.lr=-1; it must be"),
        ("model=[a", r"model=\[a cannot be read as NAME=VALUE"),
        ("model.context=5000", r"text has [\d,]+ characters, and model\.context=5000 needs more"),
        ("resume=/nowhere", r"resume=/nowhere does not exist"),
    ],
    ids=lambda value: value.replace(" ", "_") if "=" in value and "\\" not in value else "",
)
def test_a_wrong_setting_is_named(said: Said, tmp_path: Path, words: str, sentence: str) -> None:
    assert re.match(f".*{sentence}", said(*words.split()))
    assert not (tmp_path / "runs").exists()  # refused before there is a folder


def test_what_is_not_given_is_asked_for(said: Said) -> None:
    assert said(task=None, path=None).startswith("say which task: task=NAME, one of: charlm")
    assert said("task=chrlm", task=None, path=None) == "task=chrlm does not exist; did you mean task=charlm?"
    assert said(path=None) == "data.path is not set: give data.path=..."


def test_parts_that_do_not_belong_together(said: Said, composed: Composed) -> None:
    foreign = "model._target_=torch.nn.Linear"
    assert "task=charlm does not go with model=Linear" in said(foreign)
    assert "task=charlm does not go with data=DataLoader" in said("data._target_=torch.utils.data.DataLoader")
    from triptych.config import build
    from triptych.errors import UserError

    config = composed("+recipe={name: a, task: vit}")
    with pytest.raises(UserError, match="experiment=a is a recipe for task=vit, not charlm"):
        build.check(config)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "does not exist"),
        (b"", "is empty"),
        ("café ".encode("latin-1") * 500, "is not UTF-8 text .see byte 3.: save it as UTF-8"),
        (b"short", "too short|needs more than"),
        (b"a short text. " * 10, "too short|needs more than"),
    ],
    ids=["missing", "empty", "latin-1", "tiny", "shorter than the context"],
)
def test_a_text_file_that_cannot_be_used(said: Said, tmp_path: Path, content: bytes | None, sentence: str) -> None:
    path = tmp_path / "my text.txt"
    if content is not None:
        path.write_bytes(content)
    assert re.search(sentence, said(path=path))
    assert not (tmp_path / "runs").exists()


def test_a_run_folder_that_cannot_be_made(said: Said, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    assert re.search(r"runs=.*cannot be made.*choose another with runs=", said())


@pytest.mark.parametrize("name", ["predict", "evaluate", "report"])
def test_a_run_that_is_none(said: Said, tmp_path: Path, name: str) -> None:
    assert "run= is not set" in said(name=name)
    assert "run=/nowhere does not exist" in said("run=/nowhere", name=name)
    assert "is no run folder" in said(f"run={tmp_path}", name=name)
    assert "rnu is not an option; did you mean run" in said("rnu=x", name=name)


# ---- a run that goes wrong on its way ----


def test_a_diverging_run_keeps_its_last_good_checkpoint(
    said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss is NaN from step 13 on: it stops there, says step and learning rate, and last.ckpt is step 10's."""
    original = CharLMTask.loss

    def loss(self: CharLMTask, logits: torch.Tensor, batch: Any) -> tuple[torch.Tensor, int]:
        value, count = original(self, logits, batch)
        return (value * float("nan") if self.trainer.global_step >= 13 else value), count

    monkeypatch.setattr(CharLMTask, "loss", loss)
    sentence = said("checkpoint_every=5")
    assert re.match(
        r"training diverged: the loss is nan at step 13, learning rate [\d.e-]+(, [\d.e-]+)?; the last good checkpoint "
        r"is kept; lower optimizer\.lr",
        sentence,
    )
    (run,) = folder.all_runs(tmp_path / "runs", "charlm")
    assert (summary_of(run.path)["status"], checkpoint_of(run.path)["global_step"]) == ("failed", 10)
    assert all(bool(torch.isfinite(weights).all()) for weights in checkpoint_of(run.path)["state_dict"].values())


@pytest.mark.parametrize("moment", ["maps", "validation", "checkpoint"])
def test_nothing_is_made_of_parameters_that_are_no_numbers(
    said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The update itself can break them while the loss before it was fine, right where maps and samples are due."""
    options = {
        "maps": ("maps=default", "maps.every_n_steps=3"),
        "validation": ("validations=13",),
        "checkpoint": ("checkpoint_every=3",),
    }[moment]
    original = CharLMTask.optimizer_step

    def optimizer_step(self: CharLMTask, *args: Any, **options: Any) -> None:
        third = self.trainer.global_step == 2
        original(self, *args, **options)
        if third:
            with torch.no_grad():
                self.model.norm.weight[0] = torch.inf

    monkeypatch.setattr(CharLMTask, "optimizer_step", optimizer_step)
    assert "training diverged" in said(*options)
    (run,) = folder.all_runs(tmp_path / "runs", "charlm")
    assert summary_of(run.path)["status"] == "failed"
    assert not list(run.path.glob("maps/*"))
    for checkpoint in run.path.glob("checkpoints/*"):
        state = torch.load(checkpoint, weights_only=True)["state_dict"]
        assert all(bool(torch.isfinite(weights).all()) for weights in state.values())


def test_a_learning_rate_far_too_high_says_so(said: Said) -> None:
    sentence = said("optimizer.lr=1e30", "trainer.gradient_clip_val=null", "trainer.max_steps=30")
    assert re.match(r"training diverged: .* at step \d+, learning rate .*e\+\d+", sentence)


def test_a_full_disk_leaves_the_checkpoint_before(said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No space for the third ``last``: one sentence, and the second is whole."""
    original, count = AtomicCheckpointIO.save_checkpoint, 0

    def save_checkpoint(
        self: AtomicCheckpointIO, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        nonlocal count
        count += 1
        if count <= 3:
            return original(self, checkpoint, path, storage_options)
        opened = open

        class Full:
            """A file on a full disk."""

            def __init__(self, *args: Any) -> None:
                self.file = opened(*args)

            def __enter__(self) -> "Full":
                return self

            def __exit__(self, *args: Any) -> None:
                self.file.close()

            def write(self, data: memoryview) -> None:
                self.file.write(data[:1000])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("triptych.training.checkpoints.open", Full, raising=False)
            return original(self, checkpoint, path, storage_options)

    monkeypatch.setattr(AtomicCheckpointIO, "save_checkpoint", save_checkpoint)
    sentence = said("validations=1", "checkpoint_every=5")
    assert re.match(
        r"cannot write.*No space left on device; make room there, or choose another folder with runs=", sentence
    )
    (run,) = folder.all_runs(tmp_path / "runs", "charlm")
    assert (summary_of(run.path)["status"], checkpoint_of(run.path)["global_step"]) == ("failed", 15)
    assert not list(run.path.rglob("*.partial"))


def test_a_file_that_may_not_grow_any_more(composed: Composed, capfd: pytest.CaptureFixture[str]) -> None:
    """A real limit of the system, met by whichever file comes first; then, with room again, the run goes on."""
    config = composed(*UNEVEN, "maps=none", "checkpoint_every=4")

    def body() -> None:
        original = CharLMTask.training_step

        def training_step(self: CharLMTask, batch: Any, index: int) -> torch.Tensor:
            if self.trainer.global_step == 9:
                resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
            return original(self, batch, index)

        CharLMTask.training_step = training_step  # type: ignore[method-assign]
        sys.argv = ["train", *words]
        code: Any = 1
        try:
            command(triptych.commands.train.train, "train")
        except SystemExit as error:
            code = error.code
        finally:
            sys.stderr.flush()
            os._exit(code)

    words = ["task=charlm", "data=text", f"data.path={config.data.path}", *TINY, *UNEVEN, "maps=none"]
    words += ["checkpoint_every=4", f"runs={config.runs}"]
    process = multiprocessing.get_context("fork").Process(target=body)
    process.start()
    process.join(120)
    errors = capfd.readouterr().err
    assert process.exitcode == 2
    assert re.search(r"^triptych: cannot write.*File too large; make room", errors, re.MULTILINE)
    assert "Traceback" not in errors
    run = only_run(config)
    assert checkpoint_of(run)["global_step"] == 8
    assert not list(run.rglob("*.partial"))
    triptych.commands.train.train(composed(*UNEVEN, "maps=none", "checkpoint_every=4", "resume=auto"))
    assert [row["step"] for row in rows_of(run) if "train/loss" in row] == [3, 6, 9, 12, 15, 18, 21, 24]
    assert summary_of(run)["status"] == "finished"


# ---- free text and paths, as the Makefile passes them ----

HARD = ["${x", "a 'quote' \"two\" `three`", "line\nbreak = 1, {b: [c]}", "é = ü $HOME $(ls) \\ \\${y} #", "=", "  "]


@pytest.mark.parametrize("text", HARD)
def test_free_text_arrives_as_typed(
    trained: Path, text: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither Hydra's grammar nor OmegaConf's interpolation may read what a person wrote."""
    arrived: list[Any] = []
    monkeypatch.setenv("TRIPTYCH_INPUT", text)
    monkeypatch.setenv("TRIPTYCH_RUN", str(trained))
    monkeypatch.setattr(sys, "argv", ["predict", "length=2"])
    command(lambda config: arrived.append((config.input, config.run)), "predict")
    assert arrived == [(text, str(trained))]


def test_a_path_of_strange_letters_trains_and_evaluates(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    """``${`` in a path is stored so that config.yaml means the same path when it is read again."""
    path = tmp_path / "my ${texts}, = 'all' {1}.txt"
    shutil.copy(text_file, path)
    monkeypatch.setenv("TRIPTYCH_DATA_PATH", str(path))
    words = ["task=charlm", "data=text", *TINY, "trainer.max_steps=2", "maps=none", f"runs={tmp_path / 'runs'}"]
    monkeypatch.setattr(sys, "argv", ["train", *words])
    command(triptych.commands.train.train, "train")
    (run,) = folder.all_runs(tmp_path / "runs", "charlm")
    assert run.config().data.path == str(path)
    assert summary_of(run.path)["data"]["source"] == str(path)
    monkeypatch.delenv("TRIPTYCH_DATA_PATH")
    measured: list[Any] = []
    monkeypatch.setattr(sys, "argv", ["evaluate", f"run={run.path}"])
    command(lambda config: measured.append(triptych.commands.evaluate.evaluate(config)), "evaluate")
    assert measured == [summary_of(run.path)["metrics"]]


def test_the_sentence_and_exit_code_of_a_real_process(tmp_path: Path) -> None:
    """Once as a user has it: the command, in its own process."""
    words = ["task=charlm", "modle.width=3", f"runs={tmp_path / 'runs'}"]
    command_line = [sys.executable, "-m", "triptych.commands", "train", *words]
    done = subprocess.run(command_line, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "triptych: modle.width is not an option; did you mean model.width or model.depth or model.dropout?\n"
    )
    assert not done.stdout
    assert not list(tmp_path.iterdir())  # Hydra leaves no folder of its own
