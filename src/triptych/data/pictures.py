"""Picture files of any kind to pixels: one orientation, one frame, no transparency, 8 bits, grey or RGB.

Pictures with more than 8 bits per pixel (depth, medical, astronomical ones) use any part of their range: 12 bits in 16,
or 10 to 120 of 65,535. Which of their values become 0 and 255 is decided once for a whole set, by its training
pictures, and handed to `decode` as ``levels``. What does not show in a picture, its transparent pixels, has no part in
that, and becomes white as in any other picture: the upper end of ``levels``.
"""

import contextlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageFile, ImageOps

from triptych.environment import needs
from triptych.errors import UserError

log = logging.getLogger(__name__)

Levels = tuple[float, float]  # values of deep pixels that become 0 and 255
NO_VALUES = (float("inf"), float("-inf"))  # the range of nothing: any other joined to it is the other
Pixels = npt.NDArray[np.uint8]  # H W (grey) or H W 3
FILES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


class TooDeep(UserError):
    """A picture has more than 8 bits per pixel, and nobody said which of its values matter."""


def decode(content: bytes, where: str, *, levels: Levels | None, quiet: bool = False) -> Image.Image:
    """The picture in a file's bytes, in mode L or RGB.

    The first frame of an animation; turned as its EXIF data say; transparent parts on white.

    where: what to call it in the sentence of the UserError that says it is none, is cut short or is too large.
    levels: of a picture with more than 8 bits per pixel, the values that become 0 and 255; what lies outside becomes
        the nearer of them. None where no such picture is expected: then it is refused.
    quiet: say nothing of further frames.
    """
    with _open(content, where) as file:
        if not quiet and getattr(file, "n_frames", 1) > 1:
            log.warning("%s has %d frames; the first is used.", where, file.n_frames)  # type: ignore[attr-defined]
        if not _is_deep(file):
            file.load()
            return _eight_bits(ImageOps.exif_transpose(file))
        if levels is None:
            raise TooDeep(
                f"{where} has more than 8 bits per pixel, and the training pictures have not: save it with 8 bits"
            )
        low, high = levels
        values, opacity = _deep_values(file, content, where)
        scaled = (values.astype(np.float64).clip(low, high) - low) * (255 / (high - low) if high > low else 0.0)
        if opacity is not None:
            share = opacity if scaled.ndim == 2 else opacity[..., None]
            scaled = scaled * share + 255 * (1 - share)
        return Image.fromarray(np.rint(scaled).astype(np.uint8))


def deep_range(content: bytes, where: str) -> Levels | None:
    """The lowest and the highest value of a picture with more than 8 bits per pixel; None for any other picture.

    Only opaque pixels count or, where there are none, those that show at all. Of a picture that is transparent
    everywhere, the range is that of no values: from infinity to minus infinity.

    where: what to call it in the sentence of the UserError that says it is none, is cut short or is too large.
    """
    with _open(content, where) as file:
        if not _is_deep(file):
            return None
        values, opacity = _deep_values(file, content, where)
        if opacity is not None:
            values = values[opacity == 1] if (opacity == 1).any() else values[opacity > 0]
        return (float(values.min()), float(values.max())) if values.size else NO_VALUES


@contextlib.contextmanager
def _open(content: bytes, where: str) -> Iterator[Image.Image]:
    """The file, not yet decoded; what goes wrong with it, now or later, in a sentence."""
    if not content:
        raise UserError(f"{where} is empty: it holds no picture")
    assert not ImageFile.LOAD_TRUNCATED_IMAGES
    try:
        with Image.open(io.BytesIO(content)) as file:
            yield file
    except Image.UnidentifiedImageError as error:
        raise UserError(f"{where} is not a picture that can be read (PNG, JPEG, GIF, WebP, BMP, TIFF ...)") from error
    except Image.DecompressionBombError as error:
        raise UserError(f"{where} has too many pixels: make it smaller") from error
    except (OSError, SyntaxError, ValueError, EOFError, RuntimeError) as error:  # what the libraries raise
        raise UserError(f"{where} is cut short or damaged ({' '.join(str(error).split())})") from error


def fit(picture: Image.Image, height: int, width: int, channels: int) -> Pixels:
    """Pixels H W (``channels`` 1) or H W 3: scaled so that the frame is filled, what sticks out cut off evenly."""
    picture = picture.convert("L" if channels == 1 else "RGB")
    if picture.size != (width, height):
        picture = ImageOps.fit(picture, (width, height), Image.Resampling.BICUBIC)
    return np.asarray(picture)


def is_grey(picture: Image.Image) -> bool:
    """Whether a picture has no colour in it, however it is stored."""
    if picture.mode == "L":
        return True
    red, green, blue = (np.asarray(band) for band in picture.split())
    return bool((red == green).all() and (green == blue).all())


def files(path: Path, setting: str) -> list[Path]:
    """The file, or the pictures that a folder and its folders hold, in the order of their names.

    Raises UserError naming ``setting`` when there is none.
    """
    if not path.exists():
        raise UserError(f"{setting}={path} does not exist: give a picture or a folder of pictures")
    if path.is_file():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.suffix.lower() in FILES and file.is_file())
    if not found:
        raise UserError(f"{setting}={path} holds no pictures ({', '.join(FILES)})")
    return found


def read(path: Path, levels: Levels | None) -> Image.Image:
    """One picture from disk; ``levels`` as for `decode`. Raises UserError naming the file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} could not be read: {error.strerror}") from error
    return decode(content, str(path), levels=levels)


def _is_deep(file: Image.Image) -> bool:
    """Whether a file has more than 8 bits per channel; Pillow itself would cut colours to their upper 8."""
    if file.mode[0] in "IF":
        return True
    for tile in getattr(file, "tile", ()):
        details = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        if any(isinstance(detail, str) and ";16" in detail for detail in details):
            return True
        if tile[0] == "ppm" and details[-1] > 255:
            return True
    return False


def _deep_values(
    file: Image.Image, content: bytes, where: str
) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.float64] | None]:
    """Values H W, or H W 3, of a picture with more than 8 bits per channel, and how opaque each pixel is, H W, 0 to 1.

    The opacity is None where all pixels are opaque.
    """
    opacity = None
    if file.mode[0] in "IF":
        file.load()
        values = np.asarray(ImageOps.exif_transpose(file))
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise UserError(f"{where} has pixels that are no numbers (NaN or infinite): replace them")
    elif file.format != "PNG":
        raise UserError(
            f"{where} has 16 bits per colour, which can be read from PNG files only: save it as .png, or with 8 bits"
        )
    else:
        with needs(f"{where}, a picture with 16 bits per colour,", "torchvision"):  # Pillow reads the upper 8 bits only
            from torchvision.io import decode_png

        channels = decode_png(torch.frombuffer(bytearray(content), dtype=torch.uint8), apply_exif_orientation=True)
        values = channels.movedim(0, -1).numpy()
        if values.shape[2] in (2, 4):
            values, opacity = values[..., :-1], values[..., -1] / 65535
        values = values[..., 0] if values.shape[2] == 1 else values
    if opacity is None and (key := file.info.get("transparency")) is not None:  # one value or colour is transparent
        opacity = (values != key if values.ndim == 2 else (values != key).any(-1)).astype(np.float64)
    return values, None if opacity is None or (opacity == 1).all() else opacity


def _eight_bits(picture: Image.Image) -> Image.Image:
    """Mode L or RGB of any mode that Pillow knows, with 8 bits or less."""
    transparent = picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info
    if transparent:
        colourless = picture.mode in ("LA", "La", "L")
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        return Image.alpha_composite(white, picture).convert("L" if colourless else "RGB")
    return picture.convert("L" if picture.mode in ("1", "L") else "RGB")
