"""The choices of ``tvmdml.kernels.tiles`` in C (``c/choices.h``): answers of schedules hold where these return the same.

A choice takes and returns 64-bit integers: what it takes is ``flattened``, and its answer one number, ``encoded``.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable, Iterator
from typing import Any

_LISTS = ("tiles", "counts", "heights")
"""The parameters that are lists of any length: it comes first."""
_BITS = 20
MOST_ARGUMENTS = 64

NAMES = (
    "of_product",
    "parts_of_product",
    "of_places",
    "of_following_places",
    "wastes_columns",
    "places_together",
    "rows_together",
)
"""The functions, by their numbers in C."""


def flattened(function: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
    """The arguments of a choice as integers; what is no constant stays as it is.

    Raises:
        ValueError: there are too many, or others than the function takes.
    """
    try:
        bound = inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise ValueError(str(error)) from None
    bound.apply_defaults()
    integers: list[Any] = []
    for name, value in bound.arguments.items():
        integers += [*([len(value)] if name in _LISTS else []), *_plain(value)]
    if len(integers) > MOST_ARGUMENTS:
        raise ValueError(f"{len(integers)} arguments of a choice")
    return integers


def _plain(value: Any) -> Iterator[Any]:
    if isinstance(value, str):
        yield from (0, 0) if value == "auto" else map(int, value.split("x"))
    elif type(value) is tuple:
        for part in value:
            yield from _plain(part)
    else:
        yield struct.unpack("<q", struct.pack("<d", value))[0] if isinstance(value, float) else value


def encoded(answer: Any) -> int:
    """What a choice returns, as one number.

    Raises:
        ValueError: it is none.
    """
    parts = answer if isinstance(answer, tuple) else (answer,)
    if len(parts) > 3 or not all(isinstance(part, int) and 0 <= part < 1 << _BITS for part in parts):
        raise ValueError(f"the answer {answer!r} of a choice")
    return sum(part << _BITS * i for i, part in enumerate(parts))
