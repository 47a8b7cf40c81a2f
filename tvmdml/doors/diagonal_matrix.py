"""``tvmdml.diagonal_matrix``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvmdml.doors._made import door
from tvmdml.doors._sizes import hashable
from tvmdml.errors import InvalidArgument, message
from tvmdml.functions import AnyArray, call, describes
from tvmdml.operators.diagonal_matrix import DiagonalMatrix1
from tvmdml.tensors import ArrayTensorDesc, TensorDataType

if TYPE_CHECKING:
    from tvmdml.typing import DType

__all__ = ["diagonal_matrix"]

_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1


@door(DiagonalMatrix1)
def diagonal_matrix(
    input: AnyArray | None = None,  # noqa: A002
    *,
    sizes: Sequence[int] | None = None,
    dtype: DType | None = None,
    value: int | float = 1,
    diagonal_fill_begin: int | None = 0,
    diagonal_fill_end: int | None = 1,
    out: AnyArray | None = None,
    device: str | None = None,
) -> AnyArray:
    """Fill a band of diagonals of a matrix, or of each matrix of a batch (DML_OPERATOR_DIAGONAL_MATRIX1).

    With ``d`` the column minus the row, elements with ``begin <= d < end`` become ``value``; if begin is greater than end, those
    with ``d < end`` or ``d >= begin``. The other elements are the input's, or zero without an input.

    Args:
        input: the elements outside the band; any of the eleven types, two to eight dimensions.
        sizes: the result's sizes, if there is no input.
        dtype: the result's type, if there is no input; float32 by default.
        value: the value to fill the band with; an integer for integer types.
        diagonal_fill_begin: the first diagonal to fill; ``None`` for no bound: all diagonals below ``diagonal_fill_end``.
        diagonal_fill_end: the diagonal after the last to fill; ``None`` for no bound: all from ``diagonal_fill_begin`` on.
        out: an array for the result; may be ``input`` itself.
        device: where to run, such as ``"cpu"``, ``"cuda:0"`` or ``"vulkan:0"``; by default where ``input`` is, or the CPU.

    Returns:
        An array of the input's kind, type and sizes; a NumPy array if there is no input.
    """
    form = None if sizes is None else hashable(sizes, "tvmdml.diagonal_matrix: sizes")
    attributes = (form, dtype, value, diagonal_fill_begin, diagonal_fill_end)
    return call(_describe, (input,), attributes, out, device, optional=True)[0]


@describes("tvmdml.diagonal_matrix")
def _describe(
    input: ArrayTensorDesc | None,  # noqa: A002
    sizes: Any,
    dtype: Any,
    value: Any,
    begin: int | None,
    end: int | None,
) -> DiagonalMatrix1:
    where = DiagonalMatrix1.where
    if input is None:
        if sizes is None:
            raise InvalidArgument(message(where("sizes"), "neither an input nor sizes", "an input or sizes"))
        result = ArrayTensorDesc(TensorDataType.of("float32" if dtype is None else dtype, where("dtype")), sizes)
    else:
        result = input.with_sizes(input.sizes)
        for name, given, own in (("sizes", sizes, input.sizes), ("dtype", dtype, input.data_type)):
            if given is not None and (TensorDataType.of(given, where("dtype")) if name == "dtype" else given) != own:
                shown = own.tvm if isinstance(own, TensorDataType) else own
                raise InvalidArgument(message(where(name), given, f"{shown}, the input's", "Leave it out."))
    return DiagonalMatrix1.of(
        input,
        output_tensor=result,
        value=value,
        diagonal_fill_begin=_INT_MIN if begin is None else begin,
        diagonal_fill_end=_INT_MAX if end is None else end,
    )
