"""Sizes that a caller gives as an argument."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.tensors.sizes import symbols


def hashable(sizes: Any, where: str) -> tuple[int, ...]:
    """The sizes as a tuple, which can be part of a plan's key.

    Raises:
        InvalidArgument: they are not a sequence of integers.
    """
    try:
        some = tuple(itertools.islice(sizes, 65))  # an endless iterator must not cause a hang, and 65 sizes are too many anyway
        if not any(isinstance(size, (bool, np.bool_)) for size in some):
            return tuple(symbols.index(size) for size in some)
    except (TypeError, RuntimeError):  # PyTorch raises RuntimeError for a tensor that is too large
        pass
    raise InvalidArgument(message(where, safe_repr(sizes), "a sequence of integers"))
