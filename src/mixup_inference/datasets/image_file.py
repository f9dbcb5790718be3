"""Read one untrusted image file: its header, then its pixels."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from mixup_inference.errors import InputError

FORMATS = ("PNG", "JPEG", "WEBP")
EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".webp"})
MAX_PIXELS = 64_000_000

#: What undoes each Exif orientation; 5 to 8 swap width and height.
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass
class ImageFile:
    """An image file, and what reading it has shown."""

    path: Path
    label: int
    test: bool
    size: tuple[int, int] = (0, 0)  # height and width, upright
    grey: bool = False
    problem: str | None = None  # why it cannot be read
    content: bytes | None = None  # if it is not on disk
    max_pixels: int = MAX_PIXELS


@contextmanager
def pillow_warnings() -> Iterator[None]:
    """Make Pillow's warning of a decompression bomb an error, and hide its other warnings."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _with_image(file: ImageFile, use: Callable[[Image.Image], None]) -> None:
    """Hand over the image, not decoded yet; whatever goes wrong becomes the file's problem."""
    try:
        if file.content is None and not file.path.is_file():  # opening a pipe would wait for ever
            raise ValueError("not a regular file, or a broken link")
        source = file.path if file.content is None else io.BytesIO(file.content)
        with Image.open(source, formats=FORMATS) as image:
            if image.width * image.height > file.max_pixels:
                raise ValueError(
                    f"{image.width}x{image.height} is more than {file.max_pixels:,} pixels"
                )
            use(image)
    except UnidentifiedImageError:
        file.problem = "not a PNG, JPEG or WebP image"
    except OSError as error:
        file.problem = error.strerror or str(error)
    except Exception as error:  # Pillow raises nearly anything for a malformed file
        file.problem = str(error) or type(error).__name__


def inspect_image(file: ImageFile) -> None:
    """Note an image's size and whether it is grey, from its header."""

    def note(image: Image.Image) -> None:
        sides = (image.height, image.width)
        file.size = sides if _orientation(image) < 5 else sides[::-1]
        file.grey = is_grey(image)

    _with_image(file, note)


def read_image(item: tuple[ImageFile, npt.NDArray[np.uint8]]) -> None:
    """Decode an image into its row of the tensor, with the row's size and channels."""
    file, row = item
    channels, height, width = row.shape

    def decode(image: Image.Image) -> None:
        turn = UPRIGHT.get(_orientation(image))
        flat = eight_bits(image, "L" if channels == 1 else "RGB")
        upright = flat if turn is None else flat.transpose(turn)
        fitted = ImageOps.fit(upright, (width, height), Image.Resampling.BILINEAR)
        row[:] = np.asarray(fitted).reshape(height, width, channels).transpose(2, 0, 1)

    _with_image(file, decode)


def read_picture(
    source: Path | bytes, shape: tuple[int, int, int], max_pixels: int = MAX_PIXELS
) -> npt.NDArray[np.uint8]:
    """One picture, scaled until it just covers (channels, height, width), its centre cut out.

    InputError says why it cannot be read.
    """
    path, content = (Path("picture"), source) if isinstance(source, bytes) else (source, None)
    file = ImageFile(path, 0, test=False, content=content, max_pixels=max_pixels)
    row = np.empty(shape, dtype=np.uint8)
    with pillow_warnings():
        read_image((file, row))
    if file.problem is not None:
        raise InputError(f"{path}: {file.problem}.")
    return row


def _orientation(image: Image.Image) -> int:
    """The Exif orientation, 1 to 8; an image with broken Exif data is taken as it is."""
    try:
        # Not image.getexif(), which decodes a PNG to look for Exif data behind its pixels.
        value = int(Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1))
    except Exception:
        return 1
    return value if value in UPRIGHT else 1


def is_grey(image: Image.Image) -> bool:
    """Whether an image is stored as grey."""
    return image.mode in {"1", "L", "LA"} or image.mode.startswith("I")


def eight_bits(image: Image.Image, mode: str) -> Image.Image:
    """The image in mode L or RGB, with 16-bit grey scaled and transparency laid on white."""
    if image.mode.startswith("I"):  # convert("L") would cut off at 255 instead
        high_bytes = (np.asarray(image) >> 8).astype(np.uint8)
        image = Image.fromarray(high_bytes)
    if image.has_transparency_data:
        above = image.convert("RGBA")
        image = Image.new("RGB", above.size, "white")
        image.paste(above, mask=above)
    return image.convert(mode)
