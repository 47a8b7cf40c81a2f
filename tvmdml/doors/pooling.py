"""``tvmdml.max_pooling``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from typing_extensions import overload

from tvmdml.doors._index_types import index_type, usual_index_type
from tvmdml.doors._made import door
from tvmdml.doors._renamed import ABSENT, REQUIRED, refuse
from tvmdml.doors._sizes import hashable
from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.functions import AnyArray, Described, call, describes
from tvmdml.operators.pooling import MaxPooling2
from tvmdml.tensors import ArrayTensorDesc

if TYPE_CHECKING:
    from tvmdml.typing import DType

__all__ = ["MaxPoolingResult", "max_pooling"]


class MaxPoolingResult(NamedTuple):
    """The result of ``max_pooling(output_indices=True)``."""

    values: AnyArray
    """The largest elements."""
    indices: AnyArray
    """Their indices: each counts all elements of the input."""


@overload
def max_pooling(
    input: AnyArray,
    *,
    window_sizes: Sequence[int],
    strides: Sequence[int] | None = None,
    start_padding: Sequence[int] | None = None,
    end_padding: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    output_indices: Literal[True],
    output_sizes: Sequence[int] | None = None,
    index_dtype: DType | None = None,
    out: tuple[AnyArray, AnyArray] | None = None,
    device: str | None = None,
) -> MaxPoolingResult: ...


@overload
def max_pooling(
    input: AnyArray,
    *,
    window_sizes: Sequence[int],
    strides: Sequence[int] | None = None,
    start_padding: Sequence[int] | None = None,
    end_padding: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    output_indices: bool = False,
    output_sizes: Sequence[int] | None = None,
    index_dtype: DType | None = None,
    out: AnyArray | Sequence[AnyArray] | None = None,
    device: str | None = None,
) -> AnyArray: ...


@door(MaxPooling2)
def max_pooling(  # noqa: D417 - what is refused
    input: AnyArray,  # noqa: A002
    *,
    window_sizes: Sequence[int] = REQUIRED,
    strides: Sequence[int] | None = None,
    start_padding: Sequence[int] | None = None,
    end_padding: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    output_indices: bool = False,
    output_sizes: Sequence[int] | None = None,
    index_dtype: DType | None = None,
    out: AnyArray | Sequence[AnyArray] | None = None,
    device: str | None = None,
    window_size: object = ABSENT,
) -> AnyArray:
    """The largest element of each window of an image, and its index in the image (DML_OPERATOR_MAX_POOLING2).

    Of equal elements the first is taken, and a NaN before all numbers. A window without an element gives -inf, or an integer type's
    least number, and an index with all bits set.

    Args:
        input: any of the eleven data types; a batch, channels and one to three spatial dimensions.
        window_sizes: the sizes of a window, one for each spatial dimension.
        strides: the steps from one window to the next; 1 by default.
        start_padding: how far windows reach out of each spatial dimension before it; 0 by default.
        end_padding: that behind each.
        dilations: the steps between the elements of a window; 1 by default.
        output_indices: whether to return indices, too.
        output_sizes: the sizes of the result: by default as many windows as fit. One more in a dimension is allowed if a part of it
            fits, and so are fewer.
        index_dtype: ``"uint32"``, ``"uint64"``, ``"int32"`` or ``"int64"``. By default int64 for a PyTorch tensor, because PyTorch
            cannot index with uint32, and uint32 for other arrays.
        out: an array for the values; with indices a pair of arrays.
        device: where to run, such as ``"cpu"``, ``"cuda:0"`` or ``"vulkan:0"``; by default the device of ``input``.

    Returns:
        The values; with ``output_indices`` a ``MaxPoolingResult``.

    Raises:
        InvalidArgument, Unsupported: an argument breaks a rule above.
    """
    if window_size is not ABSENT or window_sizes is REQUIRED:
        refuse("max_pooling", "window_sizes", "window_size", window_size)
    if not isinstance(output_indices, (int, np.bool_)):  # bool is an int
        raise InvalidArgument(message("tvmdml.max_pooling: output_indices", safe_repr(output_indices), "True or False"))
    wanted = bool(output_indices)
    if index_dtype is None and wanted:
        index_dtype = usual_index_type(input, out)
    numbers = (_numbers(one) for one in (window_sizes, strides, start_padding, end_padding, dilations))
    sizes = None if output_sizes is None else hashable(output_sizes, "tvmdml.max_pooling: output_sizes")
    found = call(_describe, (input,), (*numbers, sizes, wanted, index_dtype), out, device)
    return MaxPoolingResult(*found) if wanted else found[0]


def _numbers(values: Any) -> Any:
    return tuple(values) if type(values) is list else values


@describes("tvmdml.max_pooling")
def _describe(
    input: ArrayTensorDesc,  # noqa: A002
    window_sizes: Any,
    strides: Any,
    start_padding: Any,
    end_padding: Any,
    dilations: Any,
    output_sizes: Any,
    output_indices: bool,
    index_dtype: Any,
) -> Described:
    given = {
        "window_size": window_sizes,
        "strides": strides,
        "start_padding": start_padding,
        "end_padding": end_padding,
        "dilations": dilations,
        "output_sizes": output_sizes,
    }
    dtypes: tuple[str | None, ...] = ()
    if output_indices:
        name, given["output_indices_tensor"] = index_type(index_dtype, MaxPooling2.where("index_dtype"))
        dtypes = (None, name)
    desc = MaxPooling2.of_call(input, **given)
    sizes = MaxPooling2.result_sizes(input, **given)
    return Described(desc, dtypes, () if sizes is None else (sizes,) * len(desc.outputs()))
