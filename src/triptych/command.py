"""From a command line to a function of one configuration, with every user's mistake told in one sentence."""

import difflib
import errno
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from triptych.errors import UserError

CONF = Path(__file__).resolve().parents[2] / "conf"
# Free text and paths reach us here as they were typed; see the Makefile.
FROM_ENVIRONMENT = {
    "TRIPTYCH_INPUT": "input",
    "TRIPTYCH_RUN": "run",
    "TRIPTYCH_DATA_PATH": "data.path",
    "TRIPTYCH_RESUME": "resume",
    "TRIPTYCH_OUTPUT": "output",
    "TRIPTYCH_REFERENCE": "reference",
}
DISK = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOTDIR, errno.EIO}


def command(function: Callable[[Any], Any], config_name: str) -> None:
    """Run ``function`` on the composed configuration, then exit.

    Exit code 0 when it worked, 2 for a user's mistake, 130 when interrupted; a bug still shows its traceback.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us instead of being printed with Hydra's own traceback
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    failures: list[Exception] = []

    def body(config: Any) -> Any:
        try:
            _refuse_added(config)
            _add_environment(config)
            return function(config)
        except Exception as error:  # passed on to Hydra, it would print the whole command line before our sentence
            failures.append(error)
            return None

    sys.argv[1:] = [_switch(word) for word in sys.argv[1:]]
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)(body)()
        if failures:
            raise failures[0]
    except UserError as error:
        _fail(str(error))
    except _Unknown as error:
        _fail(_unknown(str(error), config_name))
    except (HydraException, OmegaConfBaseException) as error:
        _fail(_configuration_sentence(error, config_name))
    except KeyboardInterrupt:
        print(file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        if error.errno not in DISK:
            raise
        where = f" {error.filename}" if error.filename else ""
        _fail(f"cannot write{where}: {error.strerror}; make room there, or choose another folder with runs=")
    except RuntimeError as error:
        if "out of memory" not in str(error) and "can't allocate memory" not in str(error):
            raise
        _fail("out of memory: use a smaller data.batch_size (with trainer.accumulate_grad_batches), model or context")


class _Unknown(Exception):
    """A key that no part of the configuration has."""


def _refuse_added(config: Any) -> None:
    """``+key=...`` adds to what an object is made with, which that object checks; elsewhere nobody would read it."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    for word in HydraConfig.get().overrides.task:
        key = word.partition("=")[0]
        if key.startswith("+") and "@" not in key and "/" not in key:
            parent = OmegaConf.select(config, key.lstrip("+").rpartition(".")[0] or "nothing")
            is_group = (CONF / key.lstrip("+")).is_dir()
            if not is_group and (not OmegaConf.is_dict(parent) or "_target_" not in parent):
                raise _Unknown(key.lstrip("+"))


def _switch(word: str) -> str:
    """``maps=true`` as ``maps.draw=true``: for the name of a folder of options, Hydra takes no truth values."""
    found = re.fullmatch(r"(\w+)=(true|false)", word, re.IGNORECASE)
    return f"{found[1]}.draw={found[2]}" if found and (CONF / found[1]).is_dir() else word


def _fail(sentence: str) -> None:
    print(f"triptych: {sentence}", file=sys.stderr)
    sys.exit(2)


def _add_environment(config: Any) -> None:
    from omegaconf import OmegaConf

    from triptych.folder import literal_text

    for variable, key in FROM_ENVIRONMENT.items():
        text = os.environ.get(variable)
        if text is None:
            continue
        parent, _, last = key.rpartition(".")
        node = OmegaConf.select(config, parent) if parent else config
        if node is None or last not in node.keys():  # noqa: SIM118 (``in`` denies a key whose value is still missing)
            raise UserError(f"{last}= is not an option of this command")
        node[last] = literal_text(text)


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
    if found := re.search(r"Could not override '([^']+)'", text):
        return _unknown(found[1].lstrip("+~").split("@")[0], config_name)
    if found := re.search(r"Could not append to config\. An item is already at '([^']+)'", text):
        return f"{found[1]} exists already: write {found[1]}=... without the +"
    if found := re.search(r"Could not (?:find|load) '([^']+)'", text):
        group, _, option = found[1].rpartition("/")
        return f"{group}={option} does not exist; {_nearest(option, _options(group), f'{group}=')}"
    if found := re.search(r"You must specify '([^']+)'", text):
        group = found[1].split("@")[0]
        return f"say which {group}: {group}=NAME, one of: {', '.join(_options(group))}"
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


def _options(group: str) -> list[str]:
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))


def _known_keys(config_name: str) -> list[str]:
    """Every dotted key of the configuration as composed from the choices of this command line that compose."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    GlobalHydra.instance().clear()
    groups = {folder.name for folder in CONF.iterdir() if folder.is_dir()}
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
    return sorted({key for key in keys if not key.rpartition(".")[2].startswith("_")} | groups)
