"""DML_OPERATOR_TOP_K and TOP_K1: the K largest or smallest elements along an axis, in order, with their positions."""

from __future__ import annotations

import functools
import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tvmdml import tensorir as T
from tvmdml.arrays import is_torch
from tvmdml.enums import AxisDirection
from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.functions import AnyArray, Described, call, describes
from tvmdml.operators._contract import Array, Input, Operator, Output, Uint
from tvmdml.operators._support import support
from tvmdml.tensors import ArrayTensorDesc, TensorDataType

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

__all__ = ["TopK", "TopK1", "TopKResult", "top_k"]

_INDICES = "2.1 u r4 · 3.1 r8 · 5.0 +W"


class TopK1(Operator):
    """The K largest or smallest elements of each sequence along an axis, with positions (``DML_TOP_K1_OPERATOR_DESC``).

    ``DECREASING`` gives the largest first. The results are sorted; equal elements are in ascending order of their positions, in
    both directions. -0 equals +0; NaN ranks above +infinity, and all NaN are equal. A value is a copy of the input's element, so a
    NaN's payload and a zero's sign are kept. The outputs have the input's sizes, except K along the axis.
    """

    NAME = "TOP_K1"
    SUPPORT = support("2.1 FIU r4 · 3.1 r8 · 5.0 +LW · ext D", output_index_tensor=_INDICES)

    input_tensor: Input
    output_value_tensor: Output
    output_index_tensor: Output
    axis: Uint
    k: Uint
    axis_direction: AxisDirection

    def check(self) -> None:
        """The axis exists, K is at most its size, and the outputs have the right sizes."""
        _check(self)

    def shape_class(self) -> dict[str, int | str]:
        """The length and number of rows along the axis, and the distance in elements between neighbours in a row."""
        sizes = self.input_tensor.sizes
        return {
            "length": sizes[self.axis],
            "k": self.k,
            "rows": math.prod(sizes[: self.axis]) * math.prod(sizes[self.axis + 1 :]),
            "inner": math.prod(sizes[self.axis + 1 :]),
            "layout": self.layout(),
        }

    def samples(self) -> tuple[str, ...]:
        """Easy and hard inputs for selection."""
        nan = ("all NaN",) if self.input_tensor.data_type.is_float else ()
        return "normal", "ascending", "descending", "constant", *nan, "dense block"

    def computation(self, each: T.Each, in_place: bool = False) -> PrimFunc:
        """One item for each element: its rank is the number of elements before it. If the rank is below K, it is the position."""
        source, values, indices = self.input_tensor, self.output_value_tensor, self.output_index_tensor
        length = source.sizes[self.axis]
        with T.function() as f:
            tensors = f.tensors(self)
            with each(source.element_count) as element:
                at = T.unravel(element, source.sizes)
                mine = T.let(tensors["input_tensor"][T.dot(at, source.layout)])
                rank = T.Variable(T.type_of(T.index(0)), T.index(0))
                with T.loop(T.index(length)) as i:
                    other = tensors["input_tensor"][T.dot([*at[: self.axis], i, *at[self.axis + 1 :]], source.layout)]
                    before = self._precedes(other, mine) | (~self._precedes(mine, other) & (i < at[self.axis]))
                    rank.set(rank.value + T.cast(before, T.type_of(rank.value)))
                with T.when(rank.value < T.index(self.k)):
                    place = [*at[: self.axis], rank.value, *at[self.axis + 1 :]]
                    T.store(tensors["output_value_tensor"], T.dot(place, values.layout), mine)
                    position = T.cast(at[self.axis], indices.data_type.tvm)
                    T.store(tensors["output_index_tensor"], T.dot(place, indices.layout), position)
        return f.result()

    def _precedes(self, a: Any, b: Any) -> Any:
        """Whether ``a`` comes before ``b`` by value alone."""
        low, high = (a, b) if self.axis_direction is AxisDirection.INCREASING else (b, a)
        if not self.input_tensor.data_type.is_float:
            return low < high
        # NaN ranks above all numbers. Every comparison with it is false, so it needs a separate test.
        return (low < high) | (~T.isnan(low) & T.isnan(high))

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """The operator in NumPy: a stable sort by value, with a separate key for NaN."""
        (x,) = inputs
        assert x is not None
        order = _order(x, self.axis, self.axis_direction).take(range(self.k), axis=self.axis)
        return np.take_along_axis(x, order, self.axis), order.astype(self.output_index_tensor.data_type.numpy)


class TopK(Operator):
    """The K largest elements of each sequence along an axis (``DML_TOP_K_OPERATOR_DESC``): ``TopK1``, always decreasing."""

    NAME = "TOP_K"
    SUPPORT = support("1.0 F r4 · 2.1 +IU · 3.1 r8 · 5.0 +LW · ext D", output_index_tensor=f"1.0 u r4 · {_INDICES}")

    input_tensor: Input
    output_value_tensor: Output
    output_index_tensor: Output
    axis: Uint
    k: Uint

    def check(self) -> None:
        """As for TOP_K1."""
        _check(self)

    def canonical(self) -> TopK1:
        """TOP_K1, decreasing."""
        return TopK1(
            input_tensor=self.input_tensor,
            output_value_tensor=self.output_value_tensor,
            output_index_tensor=self.output_index_tensor,
            axis=self.axis,
            k=self.k,
            axis_direction=AxisDirection.DECREASING,
        )

    def shape_class(self) -> dict[str, int | str]:
        """TOP_K1's."""
        return self.canonical().shape_class()

    def samples(self) -> tuple[str, ...]:
        """TOP_K1's."""
        return self.canonical().samples()

    def computation(self, each: T.Each, in_place: bool = False) -> PrimFunc:
        """TOP_K1's."""
        return self.canonical().computation(each)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """TOP_K1's."""
        return self.canonical().reference(*inputs)


def _check(desc: TopK | TopK1) -> None:
    sizes = desc.input_tensor.sizes
    desc.require(desc.axis < len(sizes), "axis", desc.axis, f"0 to {len(sizes) - 1}", "The input has no such dimension.")
    # DirectML has no tensors without elements, and therefore no K of 0. Arrays may be empty.
    least, length = desc.output_value_tensor.SMALLEST_SIZE, sizes[desc.axis]
    desc.require(least <= desc.k <= length, "k", desc.k, f"{least} to {length}, the input's size along axis {desc.axis}")
    desc.require_same("data_type", "output_value_tensor", "input_tensor")
    wanted = (*sizes[: desc.axis], desc.k, *sizes[desc.axis + 1 :])
    for name in ("output_value_tensor", "output_index_tensor"):
        given = getattr(desc, name).sizes
        desc.require(given == wanted, f"{name}.sizes", given, f"{wanted}: the input's, but k along the axis")


def _order(x: Array, axis: int, direction: AxisDirection) -> Array:
    """The positions along an axis, sorted in the operator's order."""
    if x.dtype.kind != "f":
        # The complement reverses the order without overflow, for signed and unsigned integers.
        return np.argsort(x if direction is AxisDirection.INCREASING else ~x, axis=axis, kind="stable")
    nan = np.isnan(x)
    numbers = np.where(nan, x.dtype.type(0), x)
    if direction is AxisDirection.INCREASING:
        return np.lexsort((numbers, nan), axis=axis)
    return np.lexsort((-numbers, ~nan), axis=axis)


class TopKResult(NamedTuple):
    """The result of ``top_k``."""

    values: AnyArray
    """The elements, of the input's kind and type."""
    indices: AnyArray
    """Their positions along the axis."""


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


def usual_index_type(input: AnyArray, out: Any = None) -> str:  # noqa: A002
    """The default index type: that of the output array for indices, else a type that the input's library can index with."""
    if out is not None and isinstance(out, (tuple, list)) and len(out) == 2:
        try:
            return _index_name(getattr(out[1], "dtype", None))
        except (InvalidArgument, TypeError):
            pass  # if it is not an index type, the check of ``out`` refuses it
    return "int64" if type(input) is not np.ndarray and is_torch(input) else "uint32"


@functools.lru_cache(64)
def _index_name(dtype: Any) -> str:
    return index_type(dtype, "dtype")[0]


def top_k(
    input: AnyArray,  # noqa: A002
    k: int,
    *,
    axis: int = -1,
    axis_direction: AxisDirection | str = AxisDirection.DECREASING,
    index_dtype: Any = None,
    out: tuple[AnyArray, AnyArray] | None = None,
    device: str | None = None,
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

    Raises:
        InvalidArgument, Unsupported: an argument breaks a rule above.
    """
    if index_dtype is None:
        index_dtype = usual_index_type(input, out)
    return TopKResult(*call(_describe, (input,), (k, axis, axis_direction, index_dtype), out, device))


@describes("tvmdml.top_k")
def _describe(input: ArrayTensorDesc, k: int, axis: int, axis_direction: AxisDirection | str, index_dtype: Any) -> Described:  # noqa: A002
    name, written = index_type(index_dtype, TopK1.where("index_dtype"))
    position = normalise_axis(axis, input.rank, TopK1.where("axis"))
    try:
        count = -1 if isinstance(k, bool) else operator.index(k)
    except (TypeError, RuntimeError):  # PyTorch raises RuntimeError for a tensor that is too large
        count = -1
    if count < 0:
        allowed = f"an integer from 0 to {input.sizes[position]}, the input's size along axis {position}"
        raise InvalidArgument(message(TopK1.where("k"), safe_repr(k), allowed))
    # TOP_K1 itself refuses a k above the axis's size; the outputs' sizes must not fail first.
    length = min(count, input.sizes[position])
    sizes = (*input.sizes[:position], length, *input.sizes[position + 1 :])
    desc = TopK1(
        input_tensor=input,
        output_value_tensor=input.with_sizes(sizes),
        output_index_tensor=input.with_sizes(sizes, written),
        axis=position,
        k=k,
        axis_direction=axis_direction,  # type: ignore[arg-type]
    )
    return Described(desc, dtypes=(None, name), shapes=((), ()) if input.zero_dimensional and length else ())


def normalise_axis(axis: Any, rank: int, where: str) -> int:
    """The axis as a number from 0 up; a negative axis counts from the last.

    Raises:
        InvalidArgument: there is no such axis.
    """
    try:
        position = operator.index(axis)
    except (TypeError, RuntimeError):
        position = rank
    if not -rank <= position < rank or isinstance(axis, bool):
        raise InvalidArgument(message(where, safe_repr(axis), f"an integer from {-rank} to {rank - 1}"))
    return position % rank
