"""From a command line to a function of one configuration, with every user's mistake told in one sentence."""

import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from triptych.commands import help_text
from triptych.commands.words import COMPLETION, FROM_ENVIRONMENT, HELP, find_command, parse
from triptych.config import search_path
from triptych.config.search_path import CONF
from triptych.errors import UserError


def main() -> None:
    """What ``triptych`` on a command line does: help texts at once, everything else through `command`."""
    typed = sys.argv[1:]
    try:
        if not typed or typed[0] in HELP:
            print(help_text.overview())
            return
        if typed[0] == "--version":
            from importlib.metadata import version

            print(f"triptych {version('triptych')}")
            return
        if typed[0] in COMPLETION or (typed[1:] and typed[1] in COMPLETION):
            from triptych.commands import completion

            completion.run(typed)
            return
        chosen = find_command(typed[0])
        rest = search_path.take_config_dirs(typed[1:]) if chosen.config else typed[1:]
        line = parse(chosen, rest, help_text.names(chosen), os.environ)
        if line.help:
            print(help_text.of_command(chosen, line.hydra))
            return
        for note in search_path.notes():
            print(note, file=sys.stderr)
        module, _, name = chosen.function.partition(":")
        function = getattr(import_module(module), name)
        if chosen.config is None:
            function(line.texts)
            return
        config_name = chosen.config
    except UserError as error:
        _fail(str(error))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        sys.exit(130)
    sys.argv = ["triptych", *line.hydra]
    before = {name: os.environ.get(name) for name in line.texts}
    os.environ.update(line.texts)  # byte for byte: neither Hydra nor OmegaConf reads them
    try:
        command(function, config_name, sweep=chosen.name == "sweep")
    finally:  # the next command of this process, in a notebook say, has texts of its own
        for name, text in before.items():
            os.environ.pop(name, None)
            if text is not None:
                os.environ[name] = text


def command(function: Callable[[Any], Any], config_name: str, *, sweep: bool = False) -> None:
    """Run ``function`` on the composed configuration, or on each of those of a sweep, then exit.

    sweep: it is one in any case; otherwise the words ``sweep=`` or ``seeds=`` make it one.

    Exit code 0 when it worked, 2 for a user's mistake, 130 when interrupted; a bug still shows its traceback.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us instead of being printed with Hydra's own traceback
    import hydra
    from hydra.core.hydra_config import HydraConfig

    from triptych.config.messages import refuse_added, refuse_flattened, sentence, takes_groups
    from triptych.config.registers import ALLOW

    failures: list[Exception] = []
    configured = HydraConfig.instance().cfg  # with ``--cfg``, Hydra leaves what it has shown in its place

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

    overrides = [_switch(word, config_name) for word in sys.argv[1:] if not word.startswith("allow=")]
    # For every process that this one starts, too.
    allowed = [word.removeprefix("allow=").strip("[]") for word in sys.argv[1:] if word.startswith("allow=")]
    if allowed:
        os.environ[ALLOW] = ",".join(allowed).replace(" ", "")
    try:
        if config_name == "train":
            overrides = _sweep_words(overrides, always=sweep)
        sys.argv[1:] = overrides
        search_path.register()
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
    finally:
        HydraConfig.instance().cfg = configured


def _alone(config_name: str) -> str:
    """Hand Hydra the command's one file without the folders beside it; the name that Hydra then knows it by.

    With them, ``attention=naive`` would be the choice of a file for a configuration that has no such choice.
    """
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    file = search_path.file(config_name)
    assert file is not None, f"conf/{config_name}.yaml is part of the installation"
    name = f"{config_name}_alone"  # Hydra would take one of the file's own name for its schema
    ConfigStore.instance().store(name=name, node=OmegaConf.load(file))
    return name


def _switch(word: str, config_name: str = "train") -> str:
    """``maps=true`` as ``maps.draw=true``: where a name stands for several options, that is the one that is meant."""
    found = re.fullmatch(r"(\w+)=(true|false)", word, re.IGNORECASE)
    if not found:
        return word
    from triptych.config.messages import own_settings, takes_groups

    parts = own_settings(config_name).get(found[1])
    grouped = takes_groups(config_name)
    several = search_path.is_group(found[1]) if grouped else isinstance(parts, dict) and "draw" in parts
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
        # OmegaConf takes ??? for a value that is missing, unless it comes out of an interpolation.
        node[last] = f"${{oc.env:{variable}}}" if text == "???" else literal_text(text)
