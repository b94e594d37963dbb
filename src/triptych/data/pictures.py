"""Picture files of any kind to pixels: one orientation, one frame, no transparency, 8 bits, grey or RGB."""

import io
import logging
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, ImageOps

from triptych.errors import UserError

log = logging.getLogger(__name__)

Pixels = npt.NDArray[np.uint8]  # H W (grey) or H W 3
FILES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


def decode(content: bytes, where: str, *, quiet: bool = False) -> Image.Image:
    """The picture in a file's bytes, in mode L or RGB.

    The first frame of an animation; turned as its EXIF data say; transparent parts on white; 16 bits brought to 8.

    where: what to call it in the sentence of the UserError that says it is none, is cut short or is too large.
    quiet: say nothing of further frames.
    """
    if not content:
        raise UserError(f"{where} is empty: it holds no picture")
    assert not ImageFile.LOAD_TRUNCATED_IMAGES
    try:
        with Image.open(io.BytesIO(content)) as file:
            if not quiet and getattr(file, "n_frames", 1) > 1:
                log.warning("%s has %d frames; the first is used.", where, file.n_frames)  # type: ignore[attr-defined]
            file.load()
            return _eight_bits(ImageOps.exif_transpose(file), where)
    except Image.UnidentifiedImageError as error:
        raise UserError(f"{where} is not a picture that can be read (PNG, JPEG, GIF, WebP, BMP, TIFF ...)") from error
    except Image.DecompressionBombError as error:
        raise UserError(f"{where} has too many pixels: make it smaller") from error
    except (OSError, SyntaxError, ValueError, EOFError) as error:  # what Pillow raises for broken files
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


def read(path: Path) -> Image.Image:
    """One picture from disk. Raises UserError naming the file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} could not be read: {error.strerror}") from error
    return decode(content, str(path))


def _eight_bits(picture: Image.Image, where: str) -> Image.Image:
    """Mode L or RGB of any mode that Pillow knows."""
    if picture.mode in ("I;16", "I;16L", "I;16B", "I;16N", "I"):
        deep = np.asarray(picture).astype(np.int64)
        if deep.min() < 0 or deep.max() > 65535:
            raise UserError(f"{where} has 32 bits per pixel: save it with 8 or 16")
        if picture.mode != "I" or deep.max() > 255:
            deep = (deep + 128) // 257
        return Image.fromarray(deep.astype(np.uint8))
    if picture.mode == "F":
        raise UserError(f"{where} has floating-point pixels, whose range is unknown: save it with 8 bits")
    transparent = picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info
    if transparent:
        colourless = picture.mode in ("LA", "La", "L")
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        return Image.alpha_composite(white, picture).convert("L" if colourless else "RGB")
    return picture.convert("L" if picture.mode in ("1", "L") else "RGB")
