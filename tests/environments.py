"""Python environments that lack packages: folders of links to what is installed here, and commands run in them.

Nothing is patched in such an environment. Its only packages are those that triptych and the chosen extras require, so
a library that looks for another one finds what it would find on a machine where only they were installed.
"""

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parent.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# -S leaves out every site-packages folder, and -I the variables and the working folder that could add to the path.
START = "import runpy, sys; site, source, script = sys.argv[1:4]; sys.path += [source, site]; del sys.argv[1:4]; "
RUN = "from triptych.commands.cli import main; main()"
IN_TURN = """
import contextlib, io, json
from hydra.core.global_hydra import GlobalHydra
from triptych.commands.cli import main

for words in json.loads(sys.argv[1]):
    GlobalHydra.instance().clear()
    sys.argv = ["triptych", *words]
    output, errors = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    print(json.dumps([code, output.getvalue(), errors.getvalue()]))
"""


class Outcome(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


def closure(requirements: Iterable[str]) -> set[str]:
    """Names of the installed packages that the requirements come to, with all that these require in turn."""
    names: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                further = distribution(name).requires or []
            except PackageNotFoundError:
                continue
            names.add(name)
            for text in further:
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    waiting.append(needed)
    return names


def required(extras: Iterable[str]) -> list[str]:
    """What pyproject.toml requires of an installation with these extras."""
    optional = PROJECT["optional-dependencies"]
    return [*PROJECT["dependencies"], *(text for extra in extras for text in optional[extra])]


def contents(package: str) -> dict[str, Path]:
    """The entries of site-packages that an installed package owns, with where they are."""
    installed = distribution(package)
    tops = {file.parts[0] for file in installed.files or () if file.parts[0] not in ("..", "__pycache__")}
    return {top: Path(str(installed.locate_file(top))) for top in tops}


class Environment:
    """A folder with links to all that triptych requires with some of its extras, and to nothing else."""

    def __init__(self, folder: Path, extras: Sequence[str] = ()) -> None:
        self.site = folder / "site-packages"  # the name by which dill tells modules of packages from a user's own
        self.site.mkdir(parents=True)
        for package in closure(required(extras)):
            for name, place in contents(package).items():
                if not (self.site / name).exists():
                    (self.site / name).symlink_to(place)

    def python(self, code: str, *words: str, script: Path | None = None) -> Outcome:
        """Run code, which finds ``script`` under that name and ``words`` from sys.argv[1] on."""
        start = [sys.executable, "-S", "-I", "-c", START + code, str(self.site), str(REPOSITORY / "src")]
        done = subprocess.run([*start, str(script), *words], capture_output=True, text=True, timeout=900)
        return Outcome(done.returncode, done.stdout, done.stderr)

    def command(self, name: str, *words: str) -> Outcome:
        """Run a command in a process of its own."""
        return self.python(RUN, name, *words)

    def commands(self, *lines: Sequence[str]) -> list[Outcome]:
        """Run several commands in turn in one process, which imports the large libraries once."""
        done = self.python(IN_TURN, json.dumps(lines))
        assert done.code == 0, done.out + done.err
        return [Outcome(*json.loads(line)) for line in done.out.splitlines()]
