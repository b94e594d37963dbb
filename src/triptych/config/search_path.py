"""Where the configuration files are: a person's own folders first, then the one that triptych brings along.

Nothing here imports Hydra before it is needed: the help texts read these files too, and are to appear at once.
"""

from collections.abc import Sequence
from pathlib import Path

from triptych.errors import UserError

_INSTALLED = Path(__file__).resolve().parents[1] / "conf"  # where a wheel puts it
CONF = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).resolve().parents[3] / "conf"

_FLAGS = ("--config-dir", "-cd")
_config_dirs: list[Path] = []


def take_config_dirs(words: Sequence[str]) -> list[str]:
    """Remember the folders of ``--config-dir`` for this process, and return the other words.

    Raises:
        UserError: A folder that does not exist, or a flag without one.
    """
    folders: list[Path] = []
    rest: list[str] = []
    waiting = iter(words)
    for word in waiting:
        if word == "--":  # what follows is text
            return _remember(folders, [*rest, word, *waiting])
        flag, sign, value = word.partition("=")
        if flag not in _FLAGS:
            rest.append(word)
            continue
        text = value if sign else next(waiting, "")
        if not text:
            raise UserError(f"{flag} takes a folder of configuration files, such as --config-dir my_conf")
        folder = Path(text).expanduser().absolute()
        if not folder.is_dir():
            raise UserError(f"{flag} {text} is not a folder: name one that holds configuration files")
        folders.append(folder)
    return _remember(folders, rest)


def _remember(folders: list[Path], rest: list[str]) -> list[str]:
    _config_dirs[:] = folders
    return rest


def own_folders() -> list[Path]:
    """The person's folders: those of ``--config-dir``, then ``conf`` in the working directory, if it is not ours."""
    here = Path.cwd() / "conf"
    here_too = [here] if here.is_dir() and not here.samefile(CONF) else []
    return [*_config_dirs, *here_too]


def folders() -> list[Path]:
    """Every folder of configuration files, the one that is looked into first at the front."""
    return [*own_folders(), CONF]


def is_group(name: str) -> bool:
    """Whether one of several files is chosen by ``name=``."""
    return any((folder / name).is_dir() for folder in folders())


def groups() -> list[str]:
    """The names of all choices: ``attention``, ``data`` and so on."""
    return sorted({place.name for folder in folders() for place in folder.iterdir() if place.is_dir()})


def options(group: str) -> list[str]:
    """What ``group=`` can be."""
    return sorted({file.stem for folder in folders() for file in (folder / group).glob("*.yaml")})


def file(name: str) -> Path | None:
    """The configuration ``name``, such as ``train`` or ``data/text``, from the first folder that has it."""
    return next((path for folder in folders() if (path := folder / f"{name}.yaml").is_file()), None)


def notes() -> list[str]:
    """A sentence for each of the person's own folders with files that are read in place of triptych's."""
    sentences = []
    for folder in own_folders():
        names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*.yaml"))]
        same = [name for name in names if (CONF / name).is_file()]
        if same:
            more = f" and {len(same) - 3} more files" if len(same) > 3 else ""
            sentences.append(f"note: in place of triptych's own: {', '.join(same[:3])}{more}, from {folder}")
    return sentences


def register() -> None:
    """Tell Hydra, for this process, to look into the person's own folders before ours."""
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class OwnFoldersFirst(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            if not any(element.provider == "main" for element in search_path.get_path()):
                return  # a command whose one file is all its configuration
            for folder in own_folders():
                search_path.prepend("own", f"file://{folder}", anchor="main")

    plugins = Plugins.instance()
    if not any(plugin.__name__ == OwnFoldersFirst.__name__ for plugin in plugins.discover(SearchPathPlugin)):
        plugins.register(OwnFoldersFirst)
