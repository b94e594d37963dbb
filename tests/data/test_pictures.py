"""Picture files of every kind become 8 bits in grey or RGB, or are refused in one sentence that names the file."""

import io
import logging
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from triptych.data import pictures
from triptych.errors import UserError

WHOLE = (0.0, 65535.0)  # all that 16 bits hold


def encoded(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format, **options)
    return buffer.getvalue()


def decoded(image: Image.Image, format: str = "PNG", **options: object) -> Image.Image:
    return pictures.decode(encoded(image, format, **options), "a.png", levels=WHOLE)


@pytest.mark.parametrize(
    ("image", "mode", "pixel"),
    [
        (Image.new("L", (5, 4), 77), "L", 77),
        (Image.new("1", (5, 4), 1), "L", 255),
        (Image.new("RGB", (5, 4), (1, 2, 3)), "RGB", (1, 2, 3)),
        (Image.new("RGBA", (5, 4), (1, 2, 3, 255)), "RGB", (1, 2, 3)),
        (Image.new("RGBA", (5, 4), (1, 2, 3, 0)), "RGB", (255, 255, 255)),  # transparent: white shows through
        (Image.new("LA", (5, 4), (9, 0)), "L", 255),
        (Image.new("RGB", (5, 4), (200, 10, 10)).convert("P"), "RGB", None),
        (Image.fromarray(np.full((4, 5), 257 * 100, np.uint16)), "L", 100),  # 16 bits
        (Image.new("RGB", (1, 1), (4, 5, 6)), "RGB", (4, 5, 6)),
    ],
    ids=["grey", "bilevel", "rgb", "rgba", "transparent", "grey transparent", "palette", "16-bit", "1 x 1"],
)
def test_modes(image: Image.Image, mode: str, pixel: object) -> None:
    found = decoded(image)
    assert (found.mode, found.size) == (mode, image.size)
    if pixel is not None:
        assert found.getpixel((0, 0)) == pixel


def test_sixteen_bits_in_colour_become_eight() -> None:
    """2 x 1 pixels, red and a dark blue, all of 16 bits."""
    content = png16(np.array([[[65535, 0, 0], [0, 0, 257 * 40]]]))
    found = pictures.decode(content, "deep.png", levels=WHOLE)
    assert (found.mode, found.getpixel((0, 0)), found.getpixel((1, 0))) == ("RGB", (255, 0, 0), (0, 0, 40))


def test_a_transparent_palette_is_put_on_white() -> None:
    image = Image.new("P", (3, 3), 0)
    image.putpalette([10, 20, 30] * 256)
    assert decoded(image, transparency=0).getpixel((0, 0)) == (255, 255, 255)


def test_cmyk_becomes_rgb() -> None:
    found = pictures.decode(encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"), "a.jpg", levels=None)
    red, green, blue = found.getpixel((4, 4))
    assert red > 150 > 120 > max(green, blue)


def test_an_animation_gives_its_first_frame_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    frames = [Image.new("L", (4, 4), value) for value in (0, 255)]
    content = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    with caplog.at_level(logging.WARNING):
        found = pictures.decode(content, "moving.gif", levels=None)
    assert pictures.is_grey(found)
    assert np.asarray(found).max() == 0
    assert caplog.text.count("moving.gif has 2 frames") == 1
    with caplog.at_level(logging.WARNING):
        pictures.decode(content, "moving.gif", levels=None, quiet=True)
    assert caplog.text.count("frames") == 1


def test_a_photo_is_turned_as_the_camera_was_held() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # taken with the camera on its side
    assert decoded(Image.new("RGB", (6, 4)), "JPEG", exif=exif).size == (4, 6)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF"])
def test_files_cut_short_are_refused_by_name(format: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40), dtype=np.uint8))
    content = encoded(noise, format)
    for share in (0.1, 0.5, 0.9):
        with pytest.raises(UserError, match=r"^folder/cut\.file is (cut short|not a picture)"):
            pictures.decode(content[: int(len(content) * share)], "folder/cut.file", levels=None)


@pytest.mark.parametrize("content", [b"", b"hello, I am a text", b"\x89PNG\r\n\x1a\n"])
def test_what_is_no_picture_is_refused_by_name(content: bytes) -> None:
    with pytest.raises(UserError, match=r"^notes\.txt is"):
        pictures.decode(content, "notes.txt", levels=None)


def png16(values: np.ndarray, transparent: tuple[int, ...] = ()) -> bytes:
    """A PNG of 16 bits, written by hand, for Pillow writes colours of 8 only: H W C, C from grey to RGB with alpha.

    transparent: the one value, or colour, that is.
    """

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    height, width, channels = values.shape
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in values)
    header = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    key = chunk(b"tRNS", struct.pack(f">{len(transparent)}H", *transparent)) if transparent else b""
    parts = chunk(b"IHDR", header) + key + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_deep_pixels_use_the_range_that_is_said(channels: int) -> None:
    """Values 10, 65 and 120 of 65,535: divided by 257 they would all be 0. What lies outside is cut off."""
    values = np.array([[[10], [65], [120], [200], [0]]]).repeat(channels, axis=2)
    if channels in (2, 4):
        values[..., -1] = 65535  # opaque
    content = png16(values)
    assert pictures.deep_range(content, "a") == (0.0, 200.0)
    pixels = np.asarray(pictures.decode(content, "a", levels=(10.0, 120.0)))
    grey = pixels if pixels.ndim == 2 else pixels[..., 0]
    assert grey[0].tolist() == [0, 128, 255, 255, 0]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.array([[0, 2048, 4095]], np.uint16), "PNG"),  # 12 bits
        (np.array([[0, 128, 255]], np.uint16), "TIFF"),  # 8 bits in 16
        (np.array([[-1.0, 0.003, 1.0]], np.float32), "TIFF"),
        (np.array([[-100_000, 300, 100_000]], np.int32), "TIFF"),
    ],
)
def test_a_range_is_found_whatever_it_is(values: np.ndarray, kind: str) -> None:
    content = encoded(Image.fromarray(values), kind)
    levels = pictures.deep_range(content, "a")
    assert levels == (float(values.min()), float(values.max()))
    assert np.asarray(pictures.decode(content, "a", levels=levels))[0].tolist() == [0, 128, 255]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("by", ["alpha", "key"])
def test_a_transparent_pixel_is_white_and_has_no_part_in_the_range(channels: int, by: str) -> None:
    """Put on white before the range was looked for, one such pixel made it that of all 16 bits, and 10 to 120 black."""
    values = np.array([[[10], [65], [120], [40_000]]]).repeat(channels, axis=2)
    if by == "alpha":
        content = png16(np.concatenate([values, np.array([[[65535], [65535], [65535], [0]]])], axis=2))
    else:
        content = png16(values, transparent=(40_000,) * channels)
    levels = pictures.deep_range(content, "a")
    assert levels == (10.0, 120.0)
    pixels = np.asarray(pictures.decode(content, "a", levels=levels))
    assert pixels.reshape(4, channels)[:, 0].tolist() == [0, 128, 255, 255]


def test_what_shows_in_part_is_mixed_with_white_and_has_no_part_in_the_range() -> None:
    """As the picture of 8 bits would be: the value is brought into the range first, then mixed with its upper end."""
    values = np.array([[[100, 65535], [300, 65535], [100, 32768], [60_000, 13107], [7, 13107]]])
    assert pictures.deep_range(png16(values), "a") == (100.0, 300.0)
    pixels = np.asarray(pictures.decode(png16(values), "a", levels=(100.0, 300.0)))
    assert pixels[0].tolist() == [0, 255, 127, 255, 204]
    assert pictures.deep_range(png16(values[:, 2:]), "a") == (7.0, 60_000.0)  # nothing is opaque: what shows counts


def test_a_picture_that_is_transparent_everywhere_is_white_and_has_no_values() -> None:
    content = png16(np.array([[[5, 0], [900, 0]]]))
    assert pictures.deep_range(content, "a") == pictures.NO_VALUES
    assert np.asarray(pictures.decode(content, "a", levels=(10.0, 120.0))).tolist() == [[255, 255]]


def test_eight_bits_have_no_range() -> None:
    assert pictures.deep_range(encoded(Image.new("RGBA", (3, 3))), "a") is None
    assert pictures.deep_range(encoded(Image.new("1", (3, 3))), "a") is None


def test_a_deep_picture_where_none_is_expected_is_refused() -> None:
    with pytest.raises(UserError, match=r"^a\.png has more than 8 bits per pixel, and the training pictures have not"):
        pictures.decode(png16(np.zeros((2, 2, 3), int)), "a.png", levels=None)


def test_colours_of_sixteen_bits_that_cannot_be_read_are_refused() -> None:
    content = b"P6 1 1 65535\n" + np.array([10, 100, 4095], ">u2").tobytes()  # Pillow makes 0, 0, 16 of it
    with pytest.raises(UserError, match=r"^a\.ppm has 16 bits per colour.*save it as \.png, or with 8 bits"):
        pictures.decode(content, "a.ppm", levels=WHOLE)
    with pytest.raises(UserError, match=r"^a\.png is cut short"):
        pictures.decode(png16(np.zeros((20, 20, 3), int))[:60], "a.png", levels=WHOLE)


def test_pixels_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(UserError, match="no numbers"):
        decoded(Image.fromarray(np.full((3, 3), np.nan, np.float32)), "TIFF")


def test_fit_fills_the_frame_and_cuts_evenly() -> None:
    wide = np.zeros((10, 30), np.uint8)
    wide[:, 10:20] = 200  # the middle is what stays
    assert (pictures.fit(Image.fromarray(wide), 10, 10, 1) == 200).all()
    assert pictures.fit(Image.fromarray(wide), 5, 7, 3).shape == (5, 7, 3)


def test_grey_is_seen_whatever_the_mode() -> None:
    assert pictures.is_grey(Image.new("RGB", (2, 2), (7, 7, 7)))
    assert not pictures.is_grey(Image.new("RGB", (2, 2), (7, 7, 8)))


def test_files_of_a_folder_in_order(tmp_path: Path) -> None:
    for name in ("b.PNG", "a.jpg", "notes.txt", "inside/c.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [file.name for file in pictures.files(tmp_path, "input")] == ["a.jpg", "b.PNG", "c.png"]
    with pytest.raises(UserError, match=r"input=.* does not exist"):
        pictures.files(tmp_path / "nowhere", "input")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no pictures"):
        pictures.files(tmp_path / "empty", "input")
