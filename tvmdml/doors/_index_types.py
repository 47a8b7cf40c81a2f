"""The types of indices that functions return: those that DirectML writes, and signed types with the same bits."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.functions import AnyArray
from tvmdml.tensors import TensorDataType
from tvmdml.tensors.arrays import is_torch

# The index types that a caller may request, and the type that the kernel writes: signed types have the same bits.
_INDEX_TYPES = {
    "uint32": TensorDataType.UINT32,
    "int32": TensorDataType.UINT32,
    "uint64": TensorDataType.UINT64,
    "int64": TensorDataType.UINT64,
}


def index_type(index_dtype: Any, where: str) -> tuple[str, TensorDataType]:
    """The name of an index type, and the type that the kernel writes for it.

    Raises:
        InvalidArgument: it is not one of the four.
    """
    try:
        name = TensorDataType.of(index_dtype, where).tvm
        return name, _INDEX_TYPES[name]
    except (InvalidArgument, KeyError):
        raise InvalidArgument(message(where, safe_repr(index_dtype), ", ".join(_INDEX_TYPES))) from None


def usual_index_type(input: AnyArray, out: Any = None, place: int = 1, count: int = 2) -> str:  # noqa: A002
    """The default index type: that of the output array for indices, else a type that the input's library can index with.

    Args:
        input: the input that determines the library.
        out: the caller's arrays for the outputs.
        place: which of the outputs the indices are.
        count: the number of outputs.
    """
    if out is not None:
        given = out if isinstance(out, (tuple, list)) else (out,)
        try:
            if len(given) == count:
                return _index_name(getattr(given[place], "dtype", None))
        except (InvalidArgument, TypeError):
            pass  # if it is not an index type, the check of ``out`` refuses it
    return "int64" if type(input) is not np.ndarray and is_torch(input) else "uint32"


@functools.lru_cache(64)
def _index_name(dtype: Any) -> str:
    return index_type(dtype, "dtype")[0]
