"""A run's folder is data: loading a stranger's does not run what it names."""

import re
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from triptych.commands.cli import CONF
from triptych.config.registers import ALLOW, TARGETS, refuse_strangers
from triptych.errors import UserError
from triptych.inference.loading import load

STORED = Path(__file__).parent.parent / "runs" / "version_0_1_0" / "charlm"

WAYS = {
    "task": "task._target_",
    "model": "model._target_",
    "nested": "trainer.strategy._target_",
    "in a list": "trainer.callbacks",
    "added": "logger.mine._target_",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_hostile_configuration_is_refused_before_anything_is_imported(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module would leave a file behind as soon as it is imported."""
    (tmp_path / "hostile.py").write_text(f"open({str(tmp_path / 'it ran')!r}, 'w').close()\ndef run(**_): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    run = Path(shutil.copytree(STORED, tmp_path / "run"))
    config = OmegaConf.load(run / "config.yaml")
    value = [{"_target_": "hostile.run"}] if way == "in a list" else "hostile.run"
    OmegaConf.update(config, WAYS[way], value, force_add=True)
    OmegaConf.save(config, run / "config.yaml")
    with pytest.raises(UserError, match=r"config\.yaml names hostile\.run, which is none of .*allow=hostile$"):
        load(run)
    assert not (tmp_path / "it ran").exists()


def test_what_is_made_by_an_interpolation_is_seen(tmp_path: Path) -> None:
    config = OmegaConf.create({"a": "os.system", "model": {"_target_": "${a}"}})
    with pytest.raises(UserError, match=r"names os\.system"):
        refuse_strangers(config, tmp_path / "config.yaml")


def test_what_a_person_allows_is_let_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = OmegaConf.create({"model": {"_target_": "mine.models.Model"}, "data": {"_target_": "other.Data"}})
    with pytest.raises(UserError, match=r"names other\.Data"):
        refuse_strangers(config, tmp_path / "config.yaml", allow=["mine"])
    monkeypatch.setenv(ALLOW, "other,more")
    refuse_strangers(config, tmp_path / "config.yaml", allow=["mine.models"])
    with pytest.raises(UserError, match=r"names mine\.models\.Model"):
        refuse_strangers(config, tmp_path / "config.yaml", allow=["min", "mine.model"])


def test_the_register_is_what_conf_names() -> None:
    """Launchers and sweepers are Hydra's, and stand in no run's folder."""
    named = set()
    for file in CONF.rglob("*.yaml"):
        named |= set(re.findall(r"_target_: *([\w.]+)", file.read_text(encoding="utf-8")))
    assert {name for name in named if not name.startswith("hydra_plugins.")} == TARGETS
