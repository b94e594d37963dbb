"""Configurations that earlier versions stored mean today what they meant then."""

import pytest
from omegaconf import OmegaConf

from triptych.errors import UserError
from triptych.runs import stored

IMAGES = {"_target_": "triptych.data.images.ImageData", "splits": {"train": "train", "validation": 0.1, "test": "test"}}
PAIRS = {
    "_target_": "triptych.data.translation.TranslationData",
    "splits": {"train": "a", "validation": 0.02, "test": 0.03},
}


def test_a_share_stays_one_where_there_is_no_such_split() -> None:
    """A number meant: a share, unless the data have the split. Today it always means a share."""
    config = OmegaConf.create({"task": {"name": "translation"}, "data": PAIRS})
    found = stored.upgrade(config)
    assert found.data.splits == {"train": "a", "validation": "validation or 0.02", "test": "test or 0.03"}
    assert found.data.cast is False
    assert found.task.bleu_tokenizer == "auto"
    assert "cast" not in config.data, "what was handed in stays as it is"


def test_pictures_get_the_settings_that_they_had_no_choice_of() -> None:
    found = stored.upgrade(OmegaConf.create({"task": {"name": "vit"}, "data": IMAGES}))
    assert found.data.splits == {"train": "train", "validation": "validation or 0.1", "test": "test"}
    assert (found.data.layout, found.data.pixel_range) == ("auto", None)
    assert "cast" not in found.data
    assert "bleu_tokenizer" not in found.task


def test_what_is_stored_now_is_left_alone() -> None:
    config = OmegaConf.create({"task": {"name": "vit"}, "data": IMAGES, stored.KEY: stored.version()})
    found = stored.upgrade(config)
    assert stored.KEY not in found
    assert found.data == IMAGES


@pytest.mark.parametrize("text", ["task: {name: charlm}", "a: 1"])
def test_a_configuration_without_data_is_no_reason_to_fail(text: str) -> None:
    assert stored.upgrade(OmegaConf.create(text)) == OmegaConf.create(text)


@pytest.mark.parametrize("version", [stored.version() + 1, 0, "new"])
def test_a_configuration_of_a_newer_version_is_refused(version: object) -> None:
    config = OmegaConf.create({"task": {"name": "vit"}, stored.KEY: version})
    with pytest.raises(UserError, match=rf"settings_version={version}, and this triptych knows 1 to"):
        stored.upgrade(config)


def test_modules_that_have_moved_are_found() -> None:
    config = OmegaConf.create({"optimizer": {"_target_": "triptych.tasks.optimizers.muon", "lr": 0.1}, "seed": 0})
    assert stored.upgrade(config).optimizer == {"_target_": "triptych.training.optimizers.muon", "lr": 0.1}


def test_settings_that_were_renamed_keep_their_values() -> None:
    data = {**PAIRS, "vocabulary": 60, "longest": 64, "ratio": 3.0}
    upgraded = stored.upgrade(OmegaConf.create({"task": {"name": "translation"}, "data": data, stored.KEY: 2}))
    assert (upgraded.data.vocab_size, upgraded.data.max_length, upgraded.data.max_length_ratio) == (60, 64, 3.0)
    assert not {"vocabulary", "longest", "ratio"} & set(upgraded.data)
