"""A person's own configuration files: those in ./conf and --config-dir come before ours, with nothing installed."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig
from lines import Ended, run

from triptych.config import search_path

Line = Callable[..., Ended]


@pytest.fixture
def line(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Line:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(search_path, "_config_dirs", [])
    return lambda *words: run(capfd, monkeypatch, *words)


def write(folder: Path, name: str, text: str) -> None:
    file = folder / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


OWN = "_target_: triptych.training.optimizers.adamw\n_partial_: true\nlr: {lr}  # mine\n"


def test_a_file_in_conf_is_a_choice_like_ours(line: Line, tmp_path: Path) -> None:
    write(tmp_path / "conf", "optimizer/mine", OWN.format(lr=0.125))
    shown = line("train", "task=vit", "optimizer=mine", "--cfg", "job", "--package", "optimizer")
    assert (shown.code, shown.err) == (0, "")
    assert "lr: 0.125" in shown.out
    described = line("train", "optimizer=mine", "--help").out
    assert "adamw_recurrent, mine, muon" in " ".join(described.split())
    assert "optimizer.lr=0.125" in described
    assert "did you mean optimizer=mine" in line("train", "task=vit", "optimizer=mien").err


def test_config_dir_comes_before_conf_and_conf_before_ours(line: Line, tmp_path: Path) -> None:
    write(tmp_path / "conf", "optimizer/mine", OWN.format(lr=0.125))
    write(tmp_path / "conf", "optimizer/muon", OWN.format(lr=0.25))
    write(tmp_path / "there", "optimizer/mine", OWN.format(lr=0.5))
    look = ("--cfg", "job", "--package", "optimizer")
    for flag in (["--config-dir", "there"], ["--config-dir=there"], ["-cd", str(tmp_path / "there")]):
        assert "lr: 0.5" in line("train", "task=vit", "optimizer=mine", *flag, *look).out
    replaced = line("train", "task=vit", *look)
    assert "lr: 0.25" in replaced.out
    assert replaced.err == f"note: in place of triptych's own: optimizer/muon.yaml, from {tmp_path / 'conf'}\n"


def test_a_new_group_is_no_unknown_option(line: Line, tmp_path: Path) -> None:
    write(tmp_path / "conf", "extras/one", "# @package _global_\nseed: 77\n")
    shown = line("train", "task=vit", "+extras=one", "--cfg", "job", "--package", "seed")
    assert (shown.code, shown.err) == (0, "")
    assert not HydraConfig.initialized(), "what is done next in this process would say that it was called so"
    assert line("train", "task=vit", "+extras=one", "--cfg", "job").out.count("seed: 77") >= 1
    assert "extras=two does not exist; there are: one" in line("train", "task=vit", "+extras=two").err


def test_the_repositorys_own_folder_is_no_persons_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_path, "_config_dirs", [])
    monkeypatch.chdir(search_path.CONF.parent)
    assert search_path.own_folders() == []
    assert search_path.notes() == []
