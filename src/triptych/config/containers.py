"""A configuration as plain containers."""

from typing import Any

from omegaconf import DictConfig, OmegaConf


def to_dict(config: DictConfig) -> dict[str, Any]:
    """A configuration as plain containers, its values filled in."""
    contents = OmegaConf.to_container(config, resolve=True)
    assert isinstance(contents, dict)
    return {str(key): item for key, item in contents.items()}
