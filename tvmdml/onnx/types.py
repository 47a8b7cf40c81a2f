"""Types of tensors, and inputs whose elements decide: words that need neither the package onnx nor operators."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from tvmdml.errors import InvalidArgument, TvmdmlError, message, safe_repr
from tvmdml.system import at_hand
from tvmdml.tensors import PRECISIONS, TensorDataType

ACCURACIES = ("exact", "file")
"""How exact products are: as of float32, or as nodes of the model allow."""


class Exactness(NamedTuple):
    """What a model is loaded with. See ``load``."""

    accuracy: str = ACCURACIES[0]
    precision: str = PRECISIONS[0]

    def check(self) -> None:
        """
        Raises:
            InvalidArgument: there is no such value.
        """
        for name, given, allowed in zip(self._fields, self, (ACCURACIES, PRECISIONS), strict=True):
            if not isinstance(given, str) or given not in allowed:  # an array is compared by elements
                raise InvalidArgument(message(f"load {name}", safe_repr(given), " or ".join(map(repr, allowed))))


_MOST_DECIDING = 4096
_MOST_MEASURED = 16


def decides(dtype: Any, count: int, itself: bool = True) -> bool:
    """Whether the values of an input may decide how a model is computed: few integers, such as sizes and positions, or a condition.

    Other types are measured: images, scores. They are different each time, but for a threshold or scales. So are words, where not
    they themselves decide (``itself``), but what is computed from them.
    """
    kind = np.dtype(dtype)
    counts = kind.kind == "b" or (kind.kind in "iu" and kind.itemsize > 1)
    if not itself:
        return counts and count <= _MOST_MEASURED
    return count <= (_MOST_DECIDING if counts else _MOST_MEASURED)


class Undecided(Exception):
    """The values of some inputs of the model must be known before it can be compiled."""

    def __init__(self, inputs: Iterable[str]) -> None:
        self.inputs = frozenset(inputs)
        super().__init__(f"the values of {', '.join(sorted(self.inputs))} decide how the model is computed")


@functools.lru_cache(64)
def dtype_of(element: int) -> Any:
    """The NumPy type of an ONNX element type; ``None`` if there is none."""
    at_hand("tvmdml.operators._onnx_messages")
    from tvmdml.operators._onnx_messages import numpy_type

    found = numpy_type(element)
    return None if found is None else np.dtype(found)


def is_ours(dtype: Any) -> bool:
    """Whether DirectML has a NumPy type of whole bytes; bool is UINT8."""
    try:
        return dtype is not None and not TensorDataType.from_numpy(np.dtype(dtype)).is_nibble
    except TvmdmlError:
        return False


_WIDE = {
    **dict.fromkeys(("int4", "int2"), np.int8),
    **dict.fromkeys(("uint4", "uint2"), np.uint8),
    "bfloat16": np.float32,
    **{f"float8_{one}": np.float32 for one in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")},
    **dict.fromkeys(("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"), np.float32),
}


def is_narrow(dtype: Any) -> bool:
    """Whether a type is one of those that DirectML has not, and whose elements a wider one has."""
    return dtype is not None and _is_narrow(np.dtype(dtype))


@functools.lru_cache(64)
def _is_narrow(dtype: Any) -> bool:
    return dtype.name in _WIDE


def wide_of(dtype: Any) -> Any:
    """The type that has the elements of a narrow one."""
    return np.dtype(_WIDE[np.dtype(dtype).name])


def named(name: str) -> np.dtype[Any]:
    """A type by its name, or what NumPy writes for one."""
    if name in _WIDE:
        at_hand("ml_dtypes")
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)
