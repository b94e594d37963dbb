"""From a command line to a function of one configuration, with every user's mistake told in one sentence."""

import os
import re
import sys
from collections.abc import Callable
from typing import Any

from triptych.config.messages import CONF, own_settings, refuse_added, refuse_flattened, sentence, takes_groups
from triptych.config.registers import ALLOW
from triptych.errors import UserError

# Free text and paths reach us here as they were typed; see the Makefile.
FROM_ENVIRONMENT = {
    "TRIPTYCH_INPUT": "input",
    "TRIPTYCH_RUN": "run",
    "TRIPTYCH_DATA_PATH": "data.path",
    "TRIPTYCH_RESUME": "resume",
    "TRIPTYCH_OUTPUT": "output",
    "TRIPTYCH_REFERENCE": "reference",
    "TRIPTYCH_RUNS": "runs",
}


def command(function: Callable[[Any], Any], config_name: str, *, sweep: bool = False) -> None:
    """Run ``function`` on the composed configuration, or on each of those of a sweep, then exit.

    sweep: it is one in any case; otherwise the words ``sweep=`` or ``seeds=`` make it one.

    Exit code 0 when it worked, 2 for a user's mistake, 130 when interrupted; a bug still shows its traceback.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us instead of being printed with Hydra's own traceback
    import hydra
    from hydra.core.hydra_config import HydraConfig

    failures: list[Exception] = []

    def body(config: Any) -> Any:
        is_trial = config.get("trial") is not None
        try:
            refuse_flattened(config, config_name)
            refuse_added(config, HydraConfig.get().overrides.task, config_name)
            _add_environment(config)
            return function(config)
        except Exception as error:  # passed on to Hydra, it would print the whole command line before our sentence
            if is_trial:
                raise  # the sweep notes it and goes on
            failures.append(error)
            return None

    words = [_switch(word, config_name) for word in sys.argv[1:] if not word.startswith("allow=")]
    # For every process that this one starts, too.
    allowed = [word.removeprefix("allow=").strip("[]") for word in sys.argv[1:] if word.startswith("allow=")]
    if allowed:
        os.environ[ALLOW] = ",".join(allowed).replace(" ", "")
    try:
        if config_name == "train":
            words = _sweep_words(words, always=sweep)
        sys.argv[1:] = words
        where = (str(CONF), config_name) if takes_groups(config_name) else (None, _alone(config_name))
        hydra.main(version_base="1.3", config_path=where[0], config_name=where[1])(body)()
        if failures:
            raise failures[0]
    except KeyboardInterrupt:
        print(file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except Exception as error:
        said = sentence(error, config_name)
        if said is None:
            raise
        _fail(said)


def _alone(config_name: str) -> str:
    """Hand Hydra the command's one file without the folders beside it; the name that Hydra then knows it by.

    With them, ``attention=naive`` would be the choice of a file for a configuration that has no such choice.
    """
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    name = f"{config_name}_alone"  # Hydra would take one of the file's own name for its schema
    ConfigStore.instance().store(name=name, node=OmegaConf.load(CONF / f"{config_name}.yaml"))
    return name


def _switch(word: str, config_name: str = "train") -> str:
    """``maps=true`` as ``maps.draw=true``: where a name stands for several options, that is the one that is meant."""
    found = re.fullmatch(r"(\w+)=(true|false)", word, re.IGNORECASE)
    if not found:
        return word
    parts = own_settings(config_name).get(found[1])
    several = (CONF / found[1]).is_dir() if takes_groups(config_name) else isinstance(parts, dict) and "draw" in parts
    return f"{found[1]}.draw={found[2]}" if several else word


def _sweep_words(words: list[str], *, always: bool) -> list[str]:
    """The words of a sweep as Hydra takes them, its sweeper known to Hydra; other words as they are.

    ``seeds=5`` is ``seed=S,...,S+4`` from the seed that is given, or 0; without ``sweep=`` it is a grid.
    """
    counts = [word.partition("=")[2] for word in words if word.startswith("seeds=")]
    chosen = [word for word in words if word.startswith("sweep=")]
    if not (always or counts or chosen):
        return words
    if counts:
        if not re.fullmatch("[1-9][0-9]{0,3}", counts[-1]):
            raise UserError(f"seeds={counts[-1]}; it must be a whole number of at least 1, such as seeds=5")
        first = [word.partition("=")[2] for word in words if word.startswith("seed=")]
        if first and not first[-1].isdecimal():
            raise UserError(f"seeds={counts[-1]} goes on from one seed, not from seed={first[-1]}; give one of the two")
        start = int(first[-1]) if first else 0
        words = [word for word in words if not word.startswith(("seeds=", "seed="))]
        words.append(f"seed={','.join(str(start + n) for n in range(int(counts[-1])))}")
    from triptych.sweeps.sweeper import register

    register()
    return [*words, *([] if chosen else ["sweep=grid"]), "--multirun"]


def _fail(sentence: str) -> None:
    print(f"triptych: {sentence}", file=sys.stderr)
    sys.exit(2)


def _add_environment(config: Any) -> None:
    from omegaconf import OmegaConf

    from triptych.runs.folder import literal_text

    for variable, key in FROM_ENVIRONMENT.items():
        text = os.environ.get(variable)
        if text is None:
            continue
        parent, _, last = key.rpartition(".")
        node = OmegaConf.select(config, parent) if parent else config
        if node is None or last not in node.keys():  # noqa: SIM118 (``in`` denies a key whose value is still missing)
            raise UserError(f"{last}= is not an option of this command")
        node[last] = literal_text(text)
