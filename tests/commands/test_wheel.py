"""What is installed from a wheel works by itself: no file of the repository is needed to train and to answer."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = ("model.depth=1", "trainer.accelerator=cpu", "trainer.max_steps=2", "validations=1", "maps=none", "logger=[]")


def run(folder: Path, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process in ``folder`` that knows nothing of the environment's variables for Python."""
    plain = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "TRIPTYCH_"))}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env={**plain, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.slow
def test_an_installed_wheel_trains_and_answers_from_an_empty_folder(tmp_path: Path) -> None:
    source, site, empty = tmp_path / "source", tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    source.mkdir()  # a copy: a build leaves folders beside what it builds
    for name in ("src", "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(source, *pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, ".")
    (wheel,) = tmp_path.glob("triptych-*.whl")
    run(empty, *pip, "install", "--no-deps", "--target", site, wheel)
    shutil.rmtree(source)
    packaged = {file.relative_to(site / "triptych" / "conf") for file in (site / "triptych" / "conf").rglob("*.yaml")}
    assert packaged == {file.relative_to(ROOT / "conf") for file in (ROOT / "conf").rglob("*.yaml")}

    def triptych(*words: str) -> str:
        return run(empty, site / "bin" / "triptych", *words, PYTHONPATH=str(site)).stdout

    where = run(empty, sys.executable, "-c", "import triptych; print(triptych.__file__)", PYTHONPATH=str(site)).stdout
    assert Path(where.strip()).is_relative_to(site)
    triptych("train", "task=charlm", *SMALL, "explain.examples=0")
    text = "x = 3, [y] or ' \" {z}"
    assert triptych("predict", "runs/charlm/latest", text, "length=5").startswith(text)
    assert "finished" in triptych("runs")

    # A task of one's own: its modules where Python finds them, its yaml files in ./conf.
    shutil.copytree(ROOT / "tests" / "toy" / "conf", empty / "conf")
    modules = {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT / "tests" / "toy")])}
    here = empty / "runs" / "majority" / "latest"
    words = ("task=majority", "callbacks=[default,weight_norm]", "trainer.accelerator=cpu")
    run(empty, site / "bin" / "triptych", "train", *words, **modules)
    assert (here / "ended.txt").read_text(encoding="utf-8") == "40\n"
    answer = run(empty, site / "bin" / "triptych", "predict", here, "111", "allow=majority", **modules)
    assert answer.stdout.strip() == "1"
