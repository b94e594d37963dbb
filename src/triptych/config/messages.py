"""A user's mistake, wherever it shows, in one sentence that names the setting and what would work."""

import difflib
import errno
import re
import sys
from collections.abc import Iterable
from typing import Any

from triptych.config import search_path
from triptych.config.search_path import CONF
from triptych.errors import UserError
from triptych.runs.stored import RENAMED

DISK = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOTDIR, errno.EIO}


def sentence(error: BaseException, config_name: str = "train") -> str | None:
    """What to tell the user of ``error``; None when it is nobody's mistake but a bug.

    config_name: the command's configuration, for the names of its options.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, UnknownOption):
        return _unknown(str(error), config_name)
    if isinstance(error, HydraException | OmegaConfBaseException):
        return _configuration_sentence(error, config_name)
    if isinstance(error, ValueError) and "Config group override must be" in str(error):  # which one, Hydra does not say
        return "a choice such as logger= or data= takes a name, or a list of names: logger=[] for none, not null"
    if isinstance(error, OSError) and error.errno in DISK:
        where = f" {error.filename}" if error.filename else ""
        return f"cannot write{where}: {error.strerror}; make room there, or choose another folder with runs="
    if isinstance(error, RuntimeError) and re.search("out of memory|can't allocate memory", str(error)):
        return "out of memory: use a smaller data.batch_size (with trainer.accumulate_grad_batches), model or context"
    return None


class UnknownOption(Exception):
    """A key that no part of the configuration has."""


def takes_groups(config_name: str) -> bool:
    """Whether a command's configuration is put together from the folders of conf/, or is its one file alone.

    Only then is a name such as ``attention`` that of a folder to choose a file from; else it is an option like others.
    """
    items = own_settings(config_name)["defaults"]
    names = [next(iter(item)) if isinstance(item, dict) else item for item in items]  # "- data: null", "- train"
    return any(name != "_self_" and not name.startswith("override hydra/") for name in names)


def own_settings(config_name: str) -> dict[str, Any]:
    """What a command's own file in conf/ holds, as it is written there."""
    from omegaconf import OmegaConf

    file = search_path.file(config_name)
    assert file is not None, f"conf/{config_name}.yaml is part of the installation"
    settings = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    return {str(name): value for name, value in settings.items()} if isinstance(settings, dict) else {}


def refuse_flattened(config: Any, config_name: str) -> None:
    """Raise UserError for one value in the place of an option that has parts: Hydra would put it there."""
    from omegaconf import OmegaConf

    for name, parts in own_settings(config_name).items():
        if isinstance(parts, dict) and name in config and not OmegaConf.is_dict(config[name]):
            places = " or ".join(f"{name}.{part}=" for part in parts)
            raise UserError(f"{name}={config[name]} says nothing: the option has parts, write {places}...")


def refuse_added(config: Any, words: Iterable[str], config_name: str = "train") -> None:
    """``+key=...`` adds to what an object is made with, which that object checks; elsewhere nobody would read it."""
    from omegaconf import OmegaConf

    there = own_settings(config_name)
    for word in words:
        key = word.partition("=")[0]
        name = key.lstrip("+")
        if key.startswith("+") and "@" not in key and "/" not in key and name not in there:
            parent = OmegaConf.select(config, name.rpartition(".")[0] or "nothing")
            is_group = takes_groups(config_name) and search_path.is_group(name)
            if not is_group and (not OmegaConf.is_dict(parent) or "_target_" not in parent):
                raise UnknownOption(name)


def _configuration_sentence(error: Exception, config_name: str) -> str:
    """Hydra's and OmegaConf's words for a wrong command line, in ours, with the nearest names that exist."""
    from hydra.errors import InstantiationException, OverrideParseException
    from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue

    text = str(error)
    cause: BaseException | None = error
    while cause is not None:  # what we raised ourselves while an object was made
        if isinstance(cause, UserError):
            return str(cause)
        cause = cause.__cause__
    if isinstance(error, InstantiationException) and error.__cause__ is not None:
        where = re.search(r"full_key: (\S+)", text)
        said = " ".join(str(error.__cause__).split())[:300]
        return f"{where[1] if where else 'configuration'}: {said}"
    if isinstance(error, OverrideParseException):
        return (
            f"{error.override} cannot be read as NAME=VALUE ({error.message.splitlines()[0]}): put a value with "
            "special characters in quotes within quotes, or give it through path=, input= or run="
        )
    if found := re.search(r"Ambiguous value for argument '([^=]+)=(.*)'", text):
        return (
            f"{found[1]}={found[2]} has several values: make sweep tries each of them; a list is written "
            f"{found[1]}=[{found[2]}], a text with commas in quotes within quotes"
        )
    if found := re.search(r"Could not override '([^']+)'", text):
        return _unknown(found[1].lstrip("+~").split("@")[0], config_name)
    if found := re.search(r"Could not append to config\. An item is already at '([^']+)'", text):
        return f"{found[1]} exists already: write {found[1]}=... without the +"
    if found := re.search(r"Could not (?:find|load) '([^']+)'", text):
        group, _, option = found[1].rpartition("/")
        return f"{group}={option} does not exist; {_nearest(option, search_path.options(group), f'{group}=')}"
    if found := re.search(r"You must specify '([^']+)'", text):
        group = found[1].split("@")[0]
        return f"say which {group}: {group}=NAME, one of: {', '.join(search_path.options(group))}"
    if isinstance(error, MissingMandatoryValue) or "Missing mandatory value" in text:
        key = getattr(error, "full_key", None) or text.rsplit(":", 1)[-1].strip()
        return f"{key} is not set: give {key}=..."
    if isinstance(error, InterpolationResolutionError) and "Missing" in text:
        return f"a value that others follow from is not set: {text.splitlines()[0]}"
    if "is not in struct" in text and getattr(error, "full_key", None):
        return f"{error.full_key} is missing: do not take it away with ~"  # type: ignore[attr-defined]
    if getattr(error, "full_key", None):
        return f"{error.full_key}: {text.splitlines()[0]}"  # type: ignore[attr-defined]
    return " ".join(text.split())[:400]


def _unknown(key: str, config_name: str) -> str:
    if key in RENAMED:
        return f"{key} is now called {RENAMED[key]}: write that instead"
    names = _known_keys(config_name)
    return f"{key} is not an option; {_nearest(key, names)}"


def _nearest(name: str, names: list[str], prefix: str = "") -> str:
    """ "did you mean ..." with up to three names that exist, or all when none is near."""
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if not near:  # the right word in the wrong place
        last = name.rpartition(".")[2]
        near = [known for known in names if difflib.get_close_matches(last, [known.rpartition(".")[2]], cutoff=0.75)][
            :3
        ]
    if near:
        return f"did you mean {' or '.join(prefix + other for other in near)}?"
    shown = names if len(names) <= 20 else [known for known in names if "." not in known]
    return f"there are: {', '.join(sorted(shown))}"


def _known_keys(config_name: str) -> list[str]:
    """Every dotted key of the configuration as composed from the choices of this command line that compose."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    GlobalHydra.instance().clear()
    groups = set(search_path.groups()) if takes_groups(config_name) else set()
    choices = [word for word in sys.argv[1:] if "=" in word and word.split("=")[0].lstrip("+") in groups]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        try:
            config = compose(config_name, overrides=choices)
        except Exception:
            config = compose(config_name, overrides=["task=charlm"] if config_name == "train" else [])
    keys: list[str] = []

    def walk(node: Any, prefix: str) -> None:
        if isinstance(node, dict):
            for name, item in node.items():
                keys.append(f"{prefix}{name}")
                walk(item, f"{prefix}{name}.")

    walk(OmegaConf.to_container(config, resolve=False), "")
    known = {key for key in keys if not key.rpartition(".")[2].startswith("_")}
    if not groups:  # Hydra's own, in which nothing of such a command is to be changed
        known = {key for key in known if key.partition(".")[0] != "hydra"}
    return sorted(known | groups)
