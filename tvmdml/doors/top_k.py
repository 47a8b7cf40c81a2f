"""``tvmdml.top_k``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml.doors._index_types import index_type, usual_index_type
from tvmdml.doors._made import door
from tvmdml.doors._renamed import ABSENT, refuse
from tvmdml.enums import AxisDirection
from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.functions import AnyArray, Described, call, describes
from tvmdml.operators._inference import dimension
from tvmdml.operators.top_k import TopK1
from tvmdml.tensors import ArrayTensorDesc
from tvmdml.tensors.sizes import symbols

if TYPE_CHECKING:
    from tvmdml.typing import DType

__all__ = ["TopKResult", "top_k"]


class TopKResult(NamedTuple):
    """The result of ``top_k``."""

    values: AnyArray
    """The elements, of the input's kind and type."""
    indices: AnyArray
    """Their positions along the axis."""


@door(TopK1)
def top_k(
    input: AnyArray,  # noqa: A002
    k: int,
    *,
    axis: int = -1,
    axis_direction: AxisDirection | str = AxisDirection.DECREASING,
    index_dtype: DType | None = None,
    out: tuple[AnyArray, AnyArray] | None = None,
    device: str | None = None,
    axes: object = ABSENT,
) -> TopKResult:
    """The k largest or smallest elements along an axis, in order, with their positions (DML_OPERATOR_TOP_K1).

    Equal elements are in ascending order of their positions. NaN ranks above +infinity: it is first when decreasing, last when
    increasing.

    Args:
        input: any of the eleven data types; any shape of up to eight dimensions.
        k: the number of elements, from 0 (the results are empty) to the input's size along the axis (a full sort).
        axis: the dimension; a negative number counts from the last.
        axis_direction: ``"decreasing"`` for the largest first, ``"increasing"`` for the smallest first.
        index_dtype: ``"uint32"``, ``"uint64"``, ``"int32"`` or ``"int64"``. By default the type of the second array of ``out``.
            Without ``out``, int64 for a PyTorch tensor, because PyTorch cannot index with uint32, and uint32 for other arrays.
            Differences of unsigned indices wrap around: ``numpy.uint32(1) - numpy.uint32(2)`` is 4294967295.
        out: a pair of arrays for the values and the indices.
        device: where to run, such as ``"cpu"``, ``"cuda:0"`` or ``"vulkan:0"``; by default the device of ``input``.

    Returns:
        ``(values, indices)``, arrays of the input's kind and shape, except k along the axis.
    """
    if axes is not ABSENT:
        refuse("top_k", "axis", "axes", axes)
    if index_dtype is None:
        index_dtype = usual_index_type(input, out)
    return TopKResult(*call(_describe, (input,), (k, axis, axis_direction, index_dtype), out, device))


@describes("tvmdml.top_k")
def _describe(input: ArrayTensorDesc, k: int, axis: int, axis_direction: AxisDirection | str, index_dtype: Any) -> Described:  # noqa: A002
    name, written = index_type(index_dtype, TopK1.where("index_dtype"))
    position = dimension(axis, input.rank, TopK1.where("axis"))
    try:
        count = -1 if isinstance(k, bool) else symbols.index(k)
    except (TypeError, RuntimeError):  # PyTorch raises RuntimeError for a tensor that is too large
        count = -1
    if not symbols.is_symbol(count) and count < 0:
        allowed = f"an integer from 0 to {input.sizes[position]}, the input's size along axis {position}"
        raise InvalidArgument(message(TopK1.where("k"), safe_repr(k), allowed))
    desc = TopK1.of(input, k=k, axis=position, axis_direction=axis_direction, output_index_tensor=written)
    return Described(desc, dtypes=(None, name), shapes=((), ()) if input.zero_dimensional and count else ())
