"""The words of a command line, sorted: what Hydra reads, and the free texts and paths that nobody may interpret."""

import difflib
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from triptych.commands.catalogue import COMMANDS, Command
from triptych.config import search_path
from triptych.errors import UserError

# Texts and paths reach `triptych.commands.cli.command` through these variables, as they were typed; see the Makefile.
FROM_ENVIRONMENT = {
    "TRIPTYCH_INPUT": "input",
    "TRIPTYCH_RUN": "run",
    "TRIPTYCH_DATA_PATH": "data.path",
    "TRIPTYCH_RESUME": "resume",
    "TRIPTYCH_OUTPUT": "output",
    "TRIPTYCH_REFERENCE": "reference",
    "TRIPTYCH_RUNS": "runs",
}
VARIABLES = {
    **{name: variable for variable, name in FROM_ENVIRONMENT.items() if name != "runs"},  # elsewhere a sweep reads it
    "path": "TRIPTYCH_DATA_PATH",
}
"""The options that are taken literally when they are given as NAME=TEXT, with their variables."""
HELP = ("-h", "--help")
COMPLETION = ("--shell-completion", "-sc")
FLAGS = {  # Hydra's, and whether a word follows
    **dict.fromkeys(("--cfg", "-c", "--package", "-p", "--config-dir", "-cd"), True),
    **dict.fromkeys(("--config-path", "-cp", "--config-name", "-cn", "--experimental-rerun"), True),
    **dict.fromkeys(("--hydra-help", "--resolve", "--info", "-i", *COMPLETION), False),
    **dict.fromkeys(("--multirun", "-m", "--run", "-r", "--version", *HELP), False),
}
INFORMING = ("--cfg", "-c", "--hydra-help", "--info", "-i", *COMPLETION, "--version", *HELP)
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")  # what may follow --info


@dataclass(frozen=True)
class Words:
    """A command line, sorted.

    Attributes:
        hydra: Flags and options for Hydra, in their order.
        texts: Variables of the environment with the texts that they are to hold.
        help: Whether the help text is asked for.
    """

    hydra: list[str]
    texts: dict[str, str]
    help: bool


def find_command(name: str) -> Command:
    """The command of that name. Raises UserError naming the nearest for another."""
    if name in COMMANDS:
        return COMMANDS[name]
    if "=" in name:
        raise UserError(f"say first what to do, as in: triptych train {name}; triptych --help lists the commands")
    near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
    hint = f"did you mean triptych {near[0]}?" if near else f"there are: {', '.join(COMMANDS)}"
    raise UserError(f"{name} is not a command; {hint}")


def parse(command: Command, words: Sequence[str], names: Collection[str], environment: Mapping[str, str]) -> Words:
    """Tell options from texts.

    A word is an option when its name, up to ``=``, is one of the command's; a flag when it is one of Hydra's; anything
    else fills the command's positional settings. What follows ``--`` is text whatever it looks like.

    Args:
        command: What is to be done.
        words: What was typed after its name.
        names: The first parts of the names of its options.
        environment: Variables that may hold what no word gives.

    Raises:
        UserError: Too many texts, too few, or a word that may be a misspelt option.
    """
    hydra: list[str] = []
    texts: list[str] = []
    literal: dict[str, str] = {}
    asked_for_help = informing = False
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if word == "--":
            texts += waiting
            break
        if _is_flag(word):
            flag, sign, _ = word.partition("=")
            if flag in HELP:
                asked_for_help = True
                continue
            informing |= flag in INFORMING
            takes = FLAGS.get(flag)
            if takes is None:
                raise UserError(_unknown_flag(command, flag))
            hydra.append(word)
            if not sign and waiting and (takes or (flag in ("--info", "-i") and waiting[0] in INFO)):
                hydra.append(waiting.pop(0))
            continue
        name, sign, value = word.partition("=")
        if sign and name in names and (name in VARIABLES or name in command.positional):
            literal[_variable(name)] = value
        elif _is_option(command, word, names):
            hydra.append(word)
        else:
            texts.append(word)
    if command.config is None and hydra:
        raise UserError(f"{hydra[0]} is not an option of {command.name}; it takes {command.usage}")
    if asked_for_help:
        return Words(hydra, literal, True)
    literal |= _positional(command, texts)
    if not informing:
        _check_needed(command, {*literal, *environment})
    return Words(hydra, literal, False)


def _variable(name: str) -> str:
    return "TRIPTYCH_RUNS" if name == "runs" else VARIABLES[name]


def _is_flag(word: str) -> bool:
    return re.fullmatch(r"--?[A-Za-z][\w-]*(=.*)?", word, re.DOTALL) is not None


def _unknown_flag(command: Command, flag: str) -> str:
    near = difflib.get_close_matches(flag, FLAGS, n=1, cutoff=0.7)
    hint = f"did you mean {near[0]}?" if near else f"triptych {command.name} --help lists what there is"
    more = f"; a text that begins with - follows --, as in: triptych {command.name} RUN -- {flag}"
    return f"{flag} is not a flag; {hint}{more if 'input' in command.positional else ''}"


def _is_option(command: Command, word: str, names: Collection[str]) -> bool:
    """Whether Hydra is to read the word. Raises UserError where a text may be a misspelt option."""
    if not command.positional:
        return "=" in word or word.startswith("~")
    option = re.match(r"(?:\+\+?|~)?([A-Za-z_]\w*)([\w.@:/]*)=", word) or re.fullmatch(r"~([A-Za-z_]\w*)([\w.]*)", word)
    if option is None:
        return False
    name, rest = option.groups()
    if name in names:
        return True
    if "input" not in command.positional:
        return "/" not in rest  # a path may have a = in it; Hydra names the option that is near to another word
    near = [] if rest else difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    if near:
        raise UserError(
            f"{name}= is not an option of {command.name}; did you mean {near[0]}=? "
            f"A text that looks like an option follows --, as in: triptych {command.name} RUN -- TEXT"
        )
    return False


def _positional(command: Command, texts: Sequence[str]) -> dict[str, str]:
    """What the words without a name say, as variables. Raises UserError where there are too many."""
    if command.many:
        # One path or pattern a word: blanks in it are its own.
        return {"TRIPTYCH_RUNS": " ".join(shlex.quote(text) for text in texts)} if texts else {}
    if len(texts) > len(command.positional):
        raise UserError(_too_many(command, texts[len(command.positional)]))
    return {_variable(name): text for name, text in zip(command.positional, texts, strict=False)}


def _too_many(command: Command, word: str) -> str:
    short = word if len(word) <= 60 else word[:57] + "..."
    if not command.positional:
        groups = sorted(search_path.groups(), key=lambda group: group != "task")
        group = next((group for group in groups if word in search_path.options(group)), None)
        hint = f"did you mean {group}={word}?" if group else "an option is written NAME=VALUE"
        return f"{command.name} takes options only, and {short!r} is none; {hint}"
    return (
        f"{command.name} takes {command.usage}, and {short!r} is one word too many; "
        "a text with blanks stands in quotes, an option is written NAME=VALUE"
    )


def _check_needed(command: Command, have: Iterable[str]) -> None:
    for name in command.positional[: command.needed]:
        if _variable(name) in have:
            continue
        if name == "input":
            raise UserError(f"what is the model to answer? Give a text, as in: {command.examples[0]}")
        what = "which runs?" if name == "runs" else "which run?"
        raise UserError(f"{what} Give run folders, as in: {command.examples[0]}; triptych runs lists those there are")
