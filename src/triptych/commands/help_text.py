"""The help texts: what a command does, its options as conf/*.yaml documents them, and two examples."""

import re
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from triptych.commands.catalogue import COMMANDS, Command
from triptych.config import search_path

_SETTING = re.compile(r"( *)([\w@/-]+):(?:\s+(.*?))??(?:\s+#\s*(.*))?$")
_CHOICE = re.compile(r"\s+- (?:override )?/?([\w/]+)(@_here_)?(?:: (.*?))?(?:\s+#.*)?$")
_OPTION_WIDTH, _WIDEST = 34, 110
_LITERAL = "RUN, TEXT and what stands after input=, reference=, run=, path=, output= are taken as they were typed."


@dataclass(frozen=True)
class Setting:
    """A setting as its file documents it: dotted name, value in YAML, and the comment beside it."""

    name: str
    value: str
    remark: str


@dataclass(frozen=True)
class Settings:
    """What a configuration file says.

    Attributes:
        title: Its first comment, in one line.
        settings: Its settings, those that hold others without a value.
        choices: Groups that its list of defaults chooses from, with what is chosen.
        bases: Files whose settings it takes over.
    """

    title: str
    settings: list[Setting]
    choices: dict[str, str]
    bases: list[str]


def read(path: Path) -> Settings:
    """Read a configuration file with its comments, which a YAML parser would drop."""
    title: list[str] = []
    rows: list[Setting] = []
    choices: dict[str, str] = {}
    bases: list[str] = []
    parents: list[tuple[int, str]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            if not rows and not choices and "@package" not in line:
                title.append(line.lstrip("# "))
        elif line.lstrip().startswith("#"):  # goes on with the comment of the line above
            if rows and rows[-1].remark:
                last = rows.pop()
                rows.append(Setting(last.name, last.value, f"{last.remark} {line.lstrip('# ')}"))
        elif parents and parents[0][1] == "defaults" and (choice := _CHOICE.match(line)):
            group, here, value = choice.groups()
            if value is not None:
                choices[group] = value
            elif here or group != "_self_":
                bases.append(group)
        elif match := _SETTING.match(line):
            indent, name, value, remark = match.groups()
            parents = [parent for parent in parents if parent[0] < len(indent)]
            dotted = ".".join([*(parent[1] for parent in parents), name])
            parents.append((len(indent), name))
            if dotted.split(".")[0] not in ("defaults", "hydra") and not name.startswith("_"):
                rows.append(Setting(dotted, value or "", remark or ""))
    return Settings(" ".join(title), rows, choices, bases)


def names(command: Command) -> set[str]:
    """The first parts of the names of a command's options."""
    if command.config is None:
        return set(command.positional)
    contents = _settings(command.config)
    own = {setting.name.split(".")[0] for setting in contents.settings} | {"hydra", "allow"}
    has_groups = {group for group in contents.choices if not group.startswith("hydra")}
    return own | has_groups | ({"path"} if "data" in own | has_groups else set())


def overview() -> str:
    """The text of ``triptych --help``."""
    width = max(map(len, COMMANDS))
    lines = [f"  {command.name:{width}}  {command.summary}" for command in COMMANDS.values()]
    return "\n".join(
        [
            "triptych: one attention core, three tasks trained on it, and exact maps of what it attends to.",
            "",
            "triptych COMMAND [WORDS ...]",
            "",
            *lines,
            "",
            *_wrapped(
                "triptych COMMAND --help says what a command takes. Exit codes: 0 it worked, 2 a mistake in what was "
                "typed, 130 interrupted."
            ),
            *_wrapped(
                'Completion in bash and zsh: eval "$(triptych --shell-completion install=bash)", or install=zsh; in '
                "your ~/.bashrc or ~/.zshrc it stays."
            ),
            "",
            "Examples",
            *(f"  {COMMANDS[name].examples[0]}" for name in ("train", "predict")),
        ]
    )


def of_command(command: Command, words: Sequence[str] = ()) -> str:
    """The text of ``triptych COMMAND --help``.

    Args:
        command: Which one.
        words: The other words typed: of a choice such as ``optimizer=muon`` the options are listed too.
    """
    lines = [*_wrapped(command.summary), "", f"triptych {command.name} {command.usage}"]
    if command.config is None:
        return "\n".join([*lines, "", "Examples", *(f"  {example}" for example in command.examples)])
    if command.positional:
        lines += ["", *_wrapped(f"{_LITERAL} A text that looks like an option or a flag follows --.")]
    contents = _settings(command.config)
    groups = {group: value for group, value in contents.choices.items() if not group.startswith("hydra")}
    if groups:
        lines += ["", "Choices (each is a file under conf/, or in a folder of yours)"]
        for group, value in groups.items():
            chosen = f" (default: {value})" if value not in ("null", "???") else ""
            lines += _option(f"{group}=NAME", ", ".join(search_path.options(group)) + chosen)
    lines += ["", "Options"]
    for setting in contents.settings:
        if setting.value or setting.remark:
            lines += _option(_assigned(setting), setting.remark)
    if groups or "data" in names(command):
        lines += _option("path=PATH", "the data's file or folder, data.path, taken as it was typed")
    if command.name in ("train", "sweep"):
        lines += _option("seeds=N", "train N times, with N seeds")
    for word in words:
        lines += _choice(word)
    lines += ["", "Flags", *_flags(command)]
    return "\n".join([*lines, "", "Examples", *(f"  {example}" for example in command.examples)])


def _flags(command: Command) -> list[str]:
    lines = [
        *_option("--cfg job", "print every setting with its value, and do nothing"),
        *_option("--config-dir FOLDER", "look for configuration files there first; a folder conf/ here is next"),
        *_option("--shell-completion install=bash", 'completion: eval "$(triptych --shell-completion install=bash)"'),
        *_option("--hydra-help", "Hydra's other flags"),
    ]
    if "task" in names(command):
        example = f"triptych {command.name} task=vit optimizer=muon --help"
        lines += _option("--help", f"this text; with choices, their options too: {example}")
    return lines


def _choice(word: str) -> list[str]:
    """The options of one choice such as ``optimizer=muon``; nothing for another word."""
    group, _, name = word.lstrip("+").partition("=")
    path = search_path.file(f"{group}/{name}") if search_path.is_group(group) and name else None
    if path is None:
        return []
    contents = _settings(f"{group}/{name}")
    prefix = "" if "@package _global_" in path.read_text(encoding="utf-8") else f"{group}."
    lines = ["", *_wrapped(f"{group}={name}: {contents.title}")]
    for setting in contents.settings:
        if setting.value:
            lines += _option(prefix + _assigned(setting), setting.remark)
    return lines


def _settings(name: str) -> Settings:
    """A file with the settings of those that it takes over before its own."""
    path = search_path.file(name)
    assert path is not None, f"conf/{name}.yaml is part of the installation"
    contents = read(path)
    settings: dict[str, Setting] = {}
    choices: dict[str, str] = {}
    folder = name.rpartition("/")[0]
    for base in contents.bases:
        taken = _settings(f"{folder}/{base}" if folder else base)
        settings |= {setting.name: setting for setting in taken.settings}
        choices |= taken.choices
    for setting in contents.settings:
        before = settings.pop(setting.name, setting)
        settings[setting.name] = Setting(setting.name, setting.value, setting.remark or before.remark)
    return Settings(contents.title, list(settings.values()), choices | contents.choices, contents.bases)


def _assigned(setting: Setting) -> str:
    return f"{setting.name}={setting.value}" if setting.value else f"{setting.name}.*"


def _option(left: str, right: str) -> list[str]:
    """One option, its remark beside it or, for a long one, below."""
    if not right:
        return [f"  {left}"]
    lines = textwrap.wrap(right, max(30, _width() - _OPTION_WIDTH), break_on_hyphens=False, break_long_words=False)
    if len(left) + 2 >= _OPTION_WIDTH:
        return [f"  {left}", *(" " * _OPTION_WIDTH + line for line in lines)]
    return [f"  {left}".ljust(_OPTION_WIDTH) + lines[0], *(" " * _OPTION_WIDTH + line for line in lines[1:])]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _width(), break_on_hyphens=False, break_long_words=False)


def _width() -> int:
    return min(shutil.get_terminal_size().columns, _WIDEST)
