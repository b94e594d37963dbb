"""Run folders: none shared, none half-written, locked while in use, and configurations that can be compared."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from triptych.errors import UserError
from triptych.files import write_text
from triptych.runs import folder
from triptych.runs.folder import RunFolder, differing, escaped, literal_text


def test_a_new_folder_is_locked_until_it_is_released(tmp_path: Path) -> None:
    run = folder.create(tmp_path, "charlm")
    assert not RunFolder(run.path).lock()
    run.release()
    other = RunFolder(run.path)
    assert other.lock()
    other.release()


def test_latest_follows_and_is_skipped_in_lists(tmp_path: Path) -> None:
    first, second = folder.create(tmp_path, "charlm"), folder.create(tmp_path, "charlm")
    assert os.readlink(tmp_path / "charlm" / "latest") == second.path.name  # relative: runs/ may be moved
    listed = [run.path for run in folder.all_runs(tmp_path, "charlm")]
    assert sorted(listed) == sorted([first.path, second.path])
    assert listed == sorted(listed, reverse=True)
    assert folder.all_runs(tmp_path, "vit") == []


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.json"
    write_text(path, "old")

    def full(*args: object, **options: object) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="no space"):
            write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_summary_is_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"task": "ch')
    assert RunFolder(tmp_path).summary() == {}


def test_differing_keys_are_named_and_some_are_left_out() -> None:
    one = OmegaConf.create({"a": 1, "b": {"c": 2, "d": [1, 2]}, "e": "${a}", "path": "x"})
    other = OmegaConf.create({"a": 1, "b": {"c": 3, "d": [1]}, "e": 1, "path": "y", "new": {}})
    assert differing(one, other, ("path",)) == ["b.c", "b.d", "new"]
    assert differing(one, other, ("path", "b")) == ["new"]
    assert differing(one, one, ()) == []


@given(st.text(alphabet="\\${}ab' ", max_size=12))
def test_any_text_comes_back_from_a_stored_configuration(text: str) -> None:
    """OmegaConf reads ``${`` in a value, and backslashes before it: a path may hold both."""
    config = OmegaConf.create({"path": literal_text(text)})
    assert config.path == text
    again = OmegaConf.create(OmegaConf.to_yaml(escaped(config)))
    assert again.path == text


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"resume=.*no run folder"):
        folder.existing(tmp_path, "resume")
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    with pytest.raises(UserError, match="no configuration of a run"):
        folder.existing(tmp_path, "run")
    with pytest.raises(UserError, match="run= is not set"):
        folder.existing("", "run")
