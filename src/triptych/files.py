"""The one way in which files are written: whole, or not at all."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

SUFFIX = ".partial"


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A name beside ``path`` to write to; when the block ends well, what was written becomes ``path`` at once.

    A reader sees the old file or the new one, never half of one. Two writers at once do not meet: each has a name of
    its own, and the later one wins. When the block fails, ``path`` stays as it was and nothing is left beside it; only
    a process that is killed leaves its file there, for `remove_leftovers`.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}{SUFFIX}")  # short: names have at most 255 bytes
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file whole or not at all; line ends stay as they are."""
    with written_whole(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        file.write(text)


def remove_leftovers(folder: Path) -> None:
    """Remove what writers that were killed left in a folder; only for a process that alone writes there."""
    for file in folder.glob(f".*{SUFFIX}"):
        file.unlink(missing_ok=True)
