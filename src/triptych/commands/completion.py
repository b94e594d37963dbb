"""Completion of the command line in bash and zsh: Hydra knows the options, this knows the commands."""

import os
import re
from collections.abc import Sequence

from triptych.commands import help_text
from triptych.commands.catalogue import COMMANDS
from triptych.config import search_path
from triptych.errors import UserError

_BASH = """_triptych() {
    local line=${COMP_LINE:0:$COMP_POINT} word choices prefix
    word=${line##* }
    choices=$(COMP_LINE="$line" command triptych --shell-completion query=bash 2>/dev/null)
    COMPREPLY=($(compgen -W "$choices" -- "$word"))
    # bash replaces only what stands after the last = of a word.
    if [[ $word == *=* && $COMP_WORDBREAKS == *=* ]]; then
        prefix=${word%"${word##*=}"}
        COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
    fi
}
complete -o nospace -o default -F _triptych triptych"""
_INSTALL = {
    "install=bash": _BASH,
    "install=zsh": f"autoload -Uz compinit bashcompinit && compinit && bashcompinit\n{_BASH}",
    "uninstall=bash": "complete -r triptych; unset -f _triptych",
    "uninstall=zsh": "complete -r triptych; unset -f _triptych",
}


def run(words: Sequence[str]) -> None:
    """Print the shell's half (``install=``, ``uninstall=``), or what may follow the line in COMP_LINE (``query=bash``).

    Raises:
        UserError: For another shell, or another request.
    """
    wanted = words[-1]
    if wanted == "query=bash":
        print(" ".join(suggestions(os.environ.get("COMP_LINE", ""))))
    elif wanted in _INSTALL:
        print(_INSTALL[wanted])
    else:
        raise UserError(f"--shell-completion takes one of {', '.join(_INSTALL)}, not {wanted}")


def suggestions(line: str) -> list[str]:
    """Words that could stand where the line ends; none where Hydra cannot compose what it says so far."""
    words = line.split(" ")
    if len(words) <= 2:
        return [name for name in COMMANDS if name.startswith(words[-1])]
    command = COMMANDS.get(words[1])
    if command is None or command.config is None:
        return []
    last = words[-1]
    options = [word for word in words[2:-1] if "=" in word and not word.startswith("-")]
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.core_plugins.bash_completion import BashCompletion
    from hydra._internal.utils import create_config_search_path

    from triptych.config.messages import takes_groups

    search_path.register()
    loader = ConfigLoaderImpl(create_config_search_path(str(search_path.CONF)))
    try:
        known = BashCompletion(loader)._query(command.config, " ".join([*options, last]))
    except Exception:  # a line that is not finished may be wrong in any way, and completion has nowhere to say so
        return []
    if takes_groups(command.config):
        return known
    return [word for word in known if re.split("[.=]", word)[0] in help_text.names(command)]
