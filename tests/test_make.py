"""Makefile and scripts/setup.sh with stand-ins for Python: nothing is installed, nothing is downloaded."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.commands.catalogue import COMMANDS

ROOT = Path(__file__).parents[1]
MAKE = shutil.which("make")
pytestmark = pytest.mark.skipif(MAKE is None, reason="make is not installed")

SLOW_PIP = """import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
print("pip at work", flush=True)
time.sleep(float(os.environ["FAKE_SECONDS"]))"""

# A Python that obeys FAKE_VERSION, FAKE_NO_VENV, FAKE_PIP (exit code) and FAKE_SECONDS (how long pip takes);
# the rest goes to the real one. `-m venv` copies it: the environment that setup.sh makes is fake, too, and so is its
# `triptych`, which only says that it ran.
FAKE_PYTHON = f"""#!/bin/sh
case "$*" in
  *sys.version_info*) echo "${{FAKE_VERSION:-3.11.7}}"
    case "${{FAKE_VERSION:-3.11.7}}" in 2.*|3.[0-9].*|3.10.*) exit 1;; esac;;
  *"import ensurepip"*) [ -z "${{FAKE_NO_VENV:-}}" ];;
  "-m venv"*) for folder; do :; done; rm -rf "$folder"; mkdir -p "$folder/bin"
    echo home > "$folder/pyvenv.cfg"; cp "$0" "$folder/bin/python"; cp "$0" "$folder/bin/triptych";;
  bench) echo "ran bench";;
  "-m pip install"*) [ -z "${{FAKE_SECONDS:-}}" ] || exec {sys.executable} -c '{SLOW_PIP}'
    echo "pip at work"; exit "${{FAKE_PIP:-0}}";;
  "-m pip"*|"-m ensurepip"*) ;;
  *) exec {sys.executable} "$@";;
esac
"""

# Says what the program was given: its words, and its environment byte for byte.
DUMP = f"""#!{sys.executable} -IS
import json, os, sys
names = {{os.fsdecode(k): v.decode("latin-1") for k, v in os.environb.items()}}
with open("seen.json", "w") as file:
    json.dump([sys.argv[1:], names], file)
"""


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def outside(**extra: str) -> dict[str, str]:
    """The environment of a shell that knows nothing of the make, or of the settings, that run this test."""
    ours = ("MAKE", "MFLAGS", "GNUMAKEFLAGS", "TRIPTYCH_", "FAKE_", "VENV", "PYTHON")
    own = {"task", "sweep", "args", "port", "input", "run", "path", "resume", "output", "reference", "runs"}
    return {k: v for k, v in os.environ.items() if not k.startswith(ours) and k not in own} | extra


def run_make(folder: Path, *words: str | bytes, **extra: str) -> subprocess.CompletedProcess[str]:
    environment = outside(**extra)
    return subprocess.run(
        ["make", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def start_make(folder: Path, *words: str, **extra: str) -> subprocess.Popen[str]:
    """make in a process group of its own, as a terminal starts it; returns once pip is at work."""
    process = subprocess.Popen(
        ["make", *words],
        cwd=folder,
        env=outside(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "pip at work" in line:
            return process
    raise AssertionError(f"make ended with {process.wait()} before pip")


def seen(folder: Path) -> tuple[list[str], dict[str, bytes]]:
    """Words and environment of the last program; the record goes, so an old one never passes for a new one."""
    words, names = json.loads((folder / "seen.json").read_text())
    (folder / "seen.json").unlink()
    return words, {name: value.encode("latin-1") for name, value in names.items()}


def copy_project(folder: Path) -> None:
    (folder / "scripts").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "scripts/setup.sh"):
        shutil.copy(ROOT / name, folder / name)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose environment is made; its programs record what they were given."""
    folder = tmp_path_factory.mktemp("ready").resolve() / "a folder"
    copy_project(folder)
    executable(folder / ".venv/bin/python", DUMP)
    executable(folder / ".venv/bin/triptych", DUMP)
    executable(folder / ".venv/bin/oxlint", '#!/bin/sh\necho "$*" > linted\n')  # the one tool that is no module
    (folder / ".venv/.ready").write_text(f"{folder}\n")
    return folder


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project as cloned, on a machine whose only Pythons are stand-ins."""
    folder = tmp_path.resolve() / "project"
    copy_project(folder)
    executable(tmp_path / "bin/python3", FAKE_PYTHON)
    tools = "make sh awk sed cat rm mv cp mkdir touch cksum df find head tr uname"
    for tool in tools.split():
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or pytest.skip(f"no {tool}"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return folder


def stamp(folder: Path) -> Path:
    return folder / ".venv/.ready"


def sentence(result: subprocess.CompletedProcess[str]) -> str:
    """The one line that a failed setup says, make's own closing line aside."""
    assert result.returncode != 0
    lines = [line for line in result.stderr.splitlines() if not line.startswith("make: ***")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stdout + result.stderr
    return lines[0]


# ---- what a person sees ----


def test_make_alone_lists_every_target_in_one_line_each(ready: Path) -> None:
    listed = [line.split()[0] for line in run_make(ready).stdout.splitlines()]
    wanted = "help setup train sweep evaluate predict explain report compare dashboard bench test test-slow clean"
    assert listed == wanted.split()


def test_args_become_words_and_the_command_is_shown(ready: Path) -> None:
    result = run_make(ready, "train", "task=charlm", "args=trainer.max_steps=200 'name=a b'\nx=$((1+1))")
    words, _ = seen(ready)
    assert words == ["train", "task=charlm", "trainer.max_steps=200", "name=a b", "x=2"]
    assert ".venv/bin/triptych train task='charlm' trainer.max_steps=200" in result.stdout


def test_train_without_a_task_passes_nothing(ready: Path) -> None:
    run_make(ready, "train")
    assert seen(ready)[0] == ["train"]


@pytest.mark.parametrize("task", ["$(shell touch bad)", "`touch bad`", "a'b", "a b", "; touch bad", "$(", "a,b"])
def test_a_strange_task_reaches_the_program_as_one_word(ready: Path, task: str) -> None:
    run_make(ready, "train", f"task={task}")
    assert seen(ready)[0] == ["train", f"task={task}"]
    assert not (ready / "bad").exists()


@pytest.mark.parametrize("name", ["seed", "trainer.max_steps"])
def test_a_setting_that_make_would_ignore_is_refused(ready: Path, name: str) -> None:
    result = run_make(ready, "train", "task=charlm", f"{name}=3")
    assert result.returncode == 2
    assert f'args="{name}=..."' in result.stderr
    assert not (ready / "seen.json").exists()


def test_dashboard_takes_a_port_and_refuses_a_word(ready: Path) -> None:
    run_make(ready, "dashboard", "port=6007")
    assert seen(ready)[0] == ["-m", "tensorboard.main", "--logdir", "runs", "--port", "6007"]
    assert "port= takes a number" in sentence(run_make(ready, "dashboard", "port=six"))
    assert "port= takes a number" in sentence(run_make(ready, "dashboard", "port=$(error no)"))


def test_targets_are_commands_of_the_same_name(ready: Path) -> None:
    for name in ("train", "sweep", "evaluate", "predict", "explain", "report", "compare", "bench"):
        run_make(ready, name)
        assert seen(ready)[0] == [name]
        assert name in COMMANDS


def test_clean_keeps_runs_and_the_environment(ready: Path) -> None:
    (ready / "tests").mkdir(exist_ok=True)
    for name in ("runs/charlm/one/config.yaml", ".mypy_cache/x", "src/triptych/__pycache__/x.pyc"):
        (ready / name).parent.mkdir(parents=True, exist_ok=True)
        (ready / name).touch()
    assert run_make(ready, "clean").returncode == 0
    assert (ready / "runs/charlm/one/config.yaml").exists()
    assert stamp(ready).exists()
    assert not (ready / ".mypy_cache").exists()
    assert not (ready / "src/triptych/__pycache__").exists()


# ---- free text and paths ----

NASTY = [
    "plain", "", "a 'b' \"c\" `touch bad`", "a, b=c; d | e > bad & f", "=", ":=x", "$", "$$", "a$b $(HOME)",
    "$(shell touch bad)", "$(error boom)", "$(", "${x", "$(eval x:=", "(", "{", "}{)(", "# no comment",
    "a\\#b", "100 %", "\\", "back\\slash\\\\", "ends with\\\n", "two\nlines", "ends\n\n", "a\r\nb",
    "tab\tbed", "\x01\x02", "trailing   ", "-n", "--help", "-j8 -k", "@echo", "+x", "é ü ñ", "u\u0308",
    "日本 🙂", "*", "~", "!!", "endef\nendif", "x" * 20_000,
]  # fmt: skip
BLANK_FIRST = ["   ", "    indented", "\nnew", "\t", "\r\n", " \n\t\r\v\f\n n\n", "\n\x01x"]
# make itself drops the blanks; without /proc (macOS) nothing shows what stood there
sees_own_command_line = Path("/proc/self/cmdline").exists()


@pytest.mark.parametrize("text", NASTY + (BLANK_FIRST if sees_own_command_line else []))
def test_text_arrives_as_typed(ready: Path, text: str) -> None:
    result = run_make(ready, "predict", f"input={text}")
    assert result.returncode == 0, result.stderr
    words, environment = seen(ready)
    assert environment["TRIPTYCH_INPUT"] == text.encode()
    assert words == ["predict"]
    assert not (ready / "bad").exists()
    assert "input" not in environment


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_text_arrives_as_typed(ready: Path, text: str) -> None:
    run_make(ready, "predict", f"input={text}")
    expected = text if sees_own_command_line else text.lstrip(" \t\n\r\v\f")
    assert seen(ready)[1]["TRIPTYCH_INPUT"] == expected.encode()


def test_bytes_that_are_no_text_arrive_too(ready: Path) -> None:
    run_make(ready, "predict", b"input=\xff\xfe $(")
    assert seen(ready)[1]["TRIPTYCH_INPUT"] == b"\xff\xfe $("


PATHS = {
    "run": "RUN",
    "path": "DATA_PATH",
    "resume": "RESUME",
    "output": "OUTPUT",
    "reference": "REFERENCE",
    "runs": "RUNS",
}


def test_paths_arrive_as_typed_all_at_once(ready: Path) -> None:
    given = {name: f"{name} $(shell touch bad) '#,=\\" for name in PATHS}
    run_make(ready, "predict", *(f"{name}={value}" for name, value in given.items()))
    environment = seen(ready)[1]
    assert {name: environment[f"TRIPTYCH_{to}"].decode() for name, to in PATHS.items()} == given
    assert not (ready / "bad").exists()


def test_text_from_the_environment_arrives_as_typed(ready: Path) -> None:
    run_make(ready, "predict", input="  $(error no) $x ")
    assert seen(ready)[1]["TRIPTYCH_INPUT"] == b"  $(error no) $x "
    run_make(ready, "predict", TRIPTYCH_INPUT="  $(error no) $x ")
    assert seen(ready)[1]["TRIPTYCH_INPUT"] == b"  $(error no) $x "


def test_nothing_is_exported_that_was_not_given(ready: Path) -> None:
    run_make(ready, "train", "task=charlm", "args=a=1")
    environment = seen(ready)[1]
    assert not [name for name in environment if name.startswith("TRIPTYCH_")]
    assert not {"task", "args"} & set(environment)


# ---- the environment sets itself up ----


def test_the_first_command_sets_up_and_the_second_does_not(fresh: Path) -> None:
    first = run_make(fresh, "setup")
    assert first.returncode == 0, first.stderr
    assert "making .venv with python3 (3.11.7)" in first.stdout
    assert "pip at work" in first.stdout
    assert stamp(fresh).exists()
    second = run_make(fresh, "setup")
    assert second.stdout == "setup: .venv is ready (Python 3.11.7).\n"


def test_any_target_sets_up_and_other_contents_of_pyproject_do_so_again(fresh: Path) -> None:
    assert "pip at work" in run_make(fresh, "bench").stdout
    project = fresh / "pyproject.toml"
    soon = time.time() + 5
    os.utime(project, (soon, soon))
    touched = run_make(fresh, "bench").stdout
    assert "ran bench" in touched
    assert "pip at work" not in touched, "only its date changed"
    project.write_text(project.read_text() + "\n# more\n")
    os.utime(project, (soon, soon))
    assert "pip at work" in run_make(fresh, "bench").stdout


def test_a_copied_folder_does_not_run_the_code_of_the_old_one(fresh: Path) -> None:
    run_make(fresh, "setup")
    copy = fresh.parent / "copy"
    shutil.copytree(fresh, copy)
    assert "pip at work" in run_make(copy, "bench").stdout
    assert "pip at work" not in run_make(copy, "bench").stdout


@pytest.mark.parametrize("version", ["2.7.18", "3.6.9", "3.10.14"])
def test_an_old_python_is_named_in_one_sentence(fresh: Path, version: str) -> None:
    said = sentence(run_make(fresh, "train", "task=charlm", FAKE_VERSION=version))
    assert f"Python {version}" in said
    assert "3.11 or newer" in said
    assert not (fresh / ".venv").exists()


def test_a_newer_python_on_the_path_is_taken(fresh: Path) -> None:
    bin_folder = fresh.parent / "bin"
    executable(bin_folder / "python3", "#!/bin/sh\necho 3.9.2\nexit 1\n")
    executable(bin_folder / "python3.13", "#!/bin/sh\necho 'shim: no such version' >&2\nexit 127\n")
    executable(bin_folder / "python3.12", FAKE_PYTHON)
    result = run_make(fresh, "setup", FAKE_VERSION="3.12.4")
    assert "with python3.12 (3.12.4)" in result.stdout


def test_no_python_at_all(fresh: Path) -> None:
    (fresh.parent / "bin/python3").unlink()
    assert "there is no python3 on the PATH" in sentence(run_make(fresh, "setup"))


def test_python_can_be_named(fresh: Path) -> None:
    executable(fresh.parent / "my python", FAKE_PYTHON)
    assert (
        "my python (3.14.0)"
        in run_make(fresh, "setup", PYTHON=str(fresh.parent / "my python"), FAKE_VERSION="3.14.0").stdout
    )
    assert "PYTHON=nowhere does not run" in sentence(run_make(fresh, "setup", "PYTHON=nowhere", "VENV=other"))


def test_another_python_than_the_one_in_use_is_not_ignored(fresh: Path) -> None:
    run_make(fresh, "setup")
    executable(fresh.parent / "bin/python3.12", "#!/bin/sh\necho 3.12.4\n")
    said = sentence(run_make(fresh, "setup", PYTHON="python3.12"))
    assert "rm -r .venv" in said
    assert stamp(fresh).exists()


def test_python_without_venv(fresh: Path) -> None:
    said = sentence(run_make(fresh, "test", FAKE_NO_VENV="1"))
    assert "apt install python3.11-venv" in said


def test_a_failing_pip_leaves_no_stamp_and_the_next_try_goes_on(fresh: Path) -> None:
    said = sentence(run_make(fresh, "setup", FAKE_PIP="1"))
    assert "pip could not install" in said
    assert "PIP_INDEX_URL" in said
    assert not stamp(fresh).exists()
    again = run_make(fresh, "setup")
    assert again.returncode == 0
    assert "bringing .venv up to date" in again.stdout
    assert stamp(fresh).exists()


def test_a_failed_update_takes_the_stamp_away(fresh: Path) -> None:
    run_make(fresh, "setup")
    with (fresh / "pyproject.toml").open("a") as file:
        file.write("\n# more\n")
    assert run_make(fresh, "setup", FAKE_PIP="1").returncode != 0
    assert not stamp(fresh).exists()


def test_an_interrupted_setup_leaves_no_stamp(fresh: Path) -> None:
    process = start_make(fresh, "setup", FAKE_SECONDS="30")
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does: to everything in the terminal's foreground
    said, _ = process.communicate(timeout=20)
    assert "interrupted; make setup goes on from here" in said
    assert process.returncode != 0
    assert not stamp(fresh).exists()


@pytest.mark.parametrize("left", ["nothing", "folders", "dangling", "junk"])
def test_a_half_made_environment_is_repaired(fresh: Path, left: str) -> None:
    (fresh / ".venv/bin").mkdir(parents=True)
    if left == "dangling":  # the Python that made it was upgraded away
        (fresh / ".venv/bin/python").symlink_to("/nowhere/python3.11")
        stamp(fresh).write_text(f"{fresh}\n")
    if left == "junk":
        executable(fresh / ".venv/bin/python", "#!/bin/sh\nexit 1\n")
    result = run_make(fresh, "bench" if left == "dangling" else "setup")
    assert result.returncode == 0, result.stderr
    assert "making .venv" in result.stdout
    assert stamp(fresh).exists()


def test_a_package_without_its_list_of_files_is_installed_again(fresh: Path) -> None:
    run_make(fresh, "setup", FAKE_PIP="1")
    packages = fresh / ".venv/lib/python3.11/site-packages"
    (packages / "half.dist-info").mkdir(parents=True)
    (packages / "whole.dist-info").mkdir()
    (packages / "whole.dist-info/RECORD").touch()
    run_make(fresh, "setup")
    assert [path.name for path in packages.iterdir()] == ["whole.dist-info"]


def test_another_folder_for_the_environment(fresh: Path) -> None:
    result = run_make(fresh, "setup", "VENV=../mine")
    assert result.returncode == 0, result.stderr
    assert (fresh.parent / "mine/.ready").exists()
    assert not (fresh / ".venv").exists()
    assert "without spaces" in run_make(fresh, "setup", "VENV=a b").stderr


def test_setup_never_empties_a_folder_that_holds_something_else(fresh: Path) -> None:
    (fresh / "thesis").mkdir()
    (fresh / "thesis/chapter.txt").write_text("years of work")
    assert "must not remove" in sentence(run_make(fresh, "setup", "VENV=thesis"))
    assert (fresh / "thesis/chapter.txt").exists()


def test_two_setups_at_once_take_turns(fresh: Path) -> None:
    first = start_make(fresh, "setup", FAKE_SECONDS="1")
    second = run_make(fresh, "-j4", "setup")
    first.communicate(timeout=20)
    assert first.returncode == 0
    assert second.returncode == 0, second.stderr
    assert second.stdout.startswith("setup: another make is setting up here; waiting")
    assert "pip at work" not in second.stdout


def test_ci_runs_make_test(ready: Path) -> None:
    (ready / ".ci").mkdir(exist_ok=True)
    shutil.copy(ROOT / ".ci/run", ready / ".ci/run")
    subprocess.run(["bash", ".ci/run"], cwd=ready, check=True, capture_output=True)
    assert seen(ready)[0][:2] == ["-m", "pytest"]
    assert (ready / "linted").read_text() == "--deny-warnings src/triptych/report/assets\n"
