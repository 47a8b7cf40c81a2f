"""Images as resources, and resources as images: pixels from 0 to 1, in planes of red, green and blue."""

from __future__ import annotations

import importlib
import io
import math
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from tvmdml.errors import Unsupported, message
from tvmdml.operators._json.nodes import JsonNode
from tvmdml.system import installing

AnyArray = np.ndarray[Any, np.dtype[Any]]

SUFFIXES = {".bmp": "BMP", ".jpeg": "JPEG", ".jpg": "JPEG", ".png": "PNG"}
"""The format of a file, by the end of its name."""
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_MOST_PIXELS = 1 << 26
"""A small file may have very many pixels, all alike. Pillow has 4 bytes for each: decoded, in other colours, and in other sizes."""
_ALLOWED = "[1, channels, height, width], with 1, 3 or 4 channels (gray, RGB, RGBA)"


def sizes_of(file: BinaryIO, source: JsonNode, wanted: JsonNode | None) -> tuple[int, ...]:
    """The sizes of an image's tensor: the wanted ones, or those of the file, in colours.

    Raises:
        ModelError: the file is no image, or the sizes are none of an image.
        Unsupported: Pillow is not installed.
    """
    image = _opened(file, source)
    if wanted is None:
        return (1, 3, image.height, image.width)
    return checked([one.integer(1, _MOST_PIXELS) for one in wanted.items()], wanted)


def checked(sizes: Sequence[int], where: JsonNode) -> tuple[int, ...]:
    """The sizes of an image's tensor.

    Raises:
        ModelError: they are none.
    """
    if len(sizes) != 4 or sizes[0] != 1 or sizes[1] not in _MODES or math.prod(sizes[2:]) > _MOST_PIXELS:
        raise where.error(str(list(sizes)), _ALLOWED)
    return tuple(sizes)


def read(file: BinaryIO, source: JsonNode, sizes: tuple[int, ...]) -> AnyArray:
    """The pixels, in these sizes, as float32.

    Raises:
        ModelError: the file is damaged.
    """
    _, channels, height, width = sizes
    image = _opened(file, source)
    if width * image.height > _MOST_PIXELS:  # Pillow resizes rows first
        given = f"an image of {image.width} x {image.height} pixels, for {width} x {height}"
        raise source.error(given, f"at most {_MOST_PIXELS} pixels, also with the rows of the one and the columns of the other")
    try:
        image = image.convert(_MODES[channels])
        if image.size != (width, height):
            image = image.resize((width, height), _pillow().Resampling.BICUBIC)
        pixels = np.asarray(image).reshape(height, width, channels)
    except Exception as error:  # Pillow does not document its exceptions
        raise source.error(f"an image that cannot be read ({type(error).__name__}: {error})", "an image") from None
    planes = np.empty(sizes, np.float32)
    for plane, colour in zip(planes[0], pixels.transpose(2, 0, 1), strict=True):
        np.divide(colour, np.float32(255), out=plane)
    return planes


def written(pixels: AnyArray, form: str) -> bytes:
    """The file of an image of floats from 0 to 1; others are clamped."""
    _, channels, height, width = pixels.shape
    with np.errstate(invalid="ignore"):
        clamped = np.nan_to_num(np.clip(pixels[0].astype(np.float32), 0, 1), nan=0.0) * np.float32(255)
    rows = np.ascontiguousarray(clamped.astype(np.uint8).transpose(1, 2, 0)).reshape(height, width, channels)
    image = _pillow().fromarray(rows[:, :, 0] if channels == 1 else rows, _MODES[channels])
    content = io.BytesIO()
    (image.convert("RGB") if form == "JPEG" and channels == 4 else image).save(content, form)
    return content.getvalue()


def require() -> None:
    """Pillow, which reads and writes images.

    Raises:
        Unsupported: it is not installed.
    """
    _pillow()


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        advice = f"Install it: {installing.command('dxdispatch')}."
        raise Unsupported(message("image", "an image, without the package Pillow", ".npy files and raw data", advice)) from None


def _opened(file: BinaryIO, source: JsonNode) -> Any:
    pillow = _pillow()
    try:
        image = pillow.open(file, formats=sorted(set(SUFFIXES.values())))
    except Exception as error:
        given = f"a file that is no image ({type(error).__name__})"
        raise source.error(given, "an image of the formats PNG, JPEG and BMP") from None
    if image.width * image.height > _MOST_PIXELS:
        raise source.error(f"an image of {image.width} x {image.height} pixels", f"at most {_MOST_PIXELS} pixels")
    return image
