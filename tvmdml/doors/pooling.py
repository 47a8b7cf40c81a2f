"""``tvmdml.max_pooling``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml.doors._index_types import index_type, usual_index_type
from tvmdml.doors._made import as_tuple, door, truth
from tvmdml.doors._renamed import ABSENT, REQUIRED, refuse
from tvmdml.doors._sizes import hashable
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


@door(
    MaxPooling2,
    ({"output_indices": "Literal[True]", "out": "tuple[AnyArray, AnyArray] | None"}, "MaxPoolingResult"),
    ({}, "AnyArray"),
)
def max_pooling(
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
    """
    if window_size is not ABSENT or window_sizes is REQUIRED:
        refuse("max_pooling", "window_sizes", "window_size", window_size)
    wanted = truth("max_pooling", "output_indices", output_indices)
    if index_dtype is None and wanted:
        index_dtype = usual_index_type(input, out)
    numbers = map(as_tuple, (window_sizes, strides, start_padding, end_padding, dilations))
    sizes = None if output_sizes is None else hashable(output_sizes, "tvmdml.max_pooling: output_sizes")
    results = call(_describe, (input,), (*numbers, sizes, wanted, index_dtype), out, device)
    return MaxPoolingResult(*results) if wanted else results[0]


_NUMBERS = ("window_size", "strides", "start_padding", "end_padding", "dilations", "output_sizes")


@describes("tvmdml.max_pooling")
def _describe(input: ArrayTensorDesc, *given_numbers: Any) -> Described:  # noqa: A002
    *numbers, output_indices, index_dtype = given_numbers
    given = dict(zip(_NUMBERS, numbers, strict=True))
    dtypes: tuple[str | None, ...] = ()
    if output_indices:
        name, given["output_indices_tensor"] = index_type(index_dtype, MaxPooling2.where("index_dtype"))
        dtypes = (None, name)
    desc = MaxPooling2.of_call(input, **given)
    sizes = MaxPooling2.result_sizes(input, **given)
    return Described(desc, dtypes, () if sizes is None else (sizes,) * len(desc.outputs()))
