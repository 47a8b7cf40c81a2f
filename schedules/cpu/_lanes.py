"""The lanes of vectors combined: of one vector to a scalar, or of as many vectors as each has lanes to one vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmdml.kernels import tensorir_values as T

Combine = Callable[[Any, Any], Any]


def folded(x: Any, combine: Combine) -> Any:
    """The lanes of a vector combined, the halves with each other."""
    lanes = T.lanes(x)
    while lanes > 1:
        lanes //= 2
        parts = [T.hold(T.Shuffle([x], list(range(k, k + lanes)))) for k in (0, lanes)]
        x = T.hold(combine(*parts))
    return x


def joined(values: list[Any], combine: Combine) -> Any:
    """The lanes of each vector combined, the halves with each other: of vector ``i`` to lane ``i``."""
    lanes = width = len(values)
    while len(values) > 1:
        width //= 2
        low = [start + i for start in range(0, 2 * lanes, 2 * width) for i in range(width)]
        high = [one + width for one in low]
        pairs = zip(values[::2], values[1::2], strict=True)
        values = [T.hold(combine(*(T.hold(T.Shuffle([*pair], own)) for own in (low, high)))) for pair in pairs]
    return values[0]
