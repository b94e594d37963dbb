"""The bytes of text files as text: UTF-8 and nothing else, or one sentence that says what they are instead."""

import codecs
from pathlib import Path

from triptych.errors import UserError

ENDINGS = (".txt", ".text")
OTHER_CODES = {  # how files in another encoding begin
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def read_bytes(path: Path) -> bytes:
    """A file's bytes. Raises UserError naming the file that cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"data.path: {path} could not be read: {error.strerror}.") from error


def read_text_bytes(path: Path) -> bytes:
    """The bytes of a UTF-8 file, without the mark that some editors put in front.

    Raises:
        UserError: the file cannot be read, or is not UTF-8; the sentence names the first byte that is not.
    """
    content = read_bytes(path)
    for mark, code in OTHER_CODES.items():
        if content.startswith(mark):
            raise UserError(f"data.path: {path} is {code} text: save it as UTF-8.")
    if _has_two_bytes_each(content):
        raise UserError(f"data.path: {path} is UTF-16 text: save it as UTF-8.")
    try:
        str(content, "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"data.path: {path} is not UTF-8 text (see byte {error.start}): save it as UTF-8.") from error
    return content.removeprefix(codecs.BOM_UTF8)


def _has_two_bytes_each(content: bytes) -> bool:
    """Whether this is UTF-16 without a mark, which would pass for UTF-8: zeros at every other place, and only there."""
    if len(content) < 8 or len(content) % 2:
        return False
    zeros = sorted((content[0::2].count(0), content[1::2].count(0)))
    return zeros[0] == 0 and zeros[1] > 0.9 * len(content) / 2


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, every character as it stands there, line ends too. Raises as `read_text_bytes`."""
    return str(read_text_bytes(path), "utf-8")
