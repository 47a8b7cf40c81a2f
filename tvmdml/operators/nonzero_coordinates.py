"""DML_OPERATOR_NONZERO_COORDINATES: the coordinates and the number of nonzero elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from typing_extensions import overload

from tvmdml import tensorir as T
from tvmdml.enums import FeatureLevel
from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.functions import AnyArray, Described, call, describes
from tvmdml.operators._contract import Array, Input, Operator, Output
from tvmdml.operators._support import support
from tvmdml.operators.top_k import index_type, usual_index_type
from tvmdml.tensors import ArrayTensorDesc, TensorDataType

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

__all__ = ["NonzeroCoordinates", "NonzeroCoordinatesResult", "non_zero_coordinates", "nonzero_coordinates"]


class NonzeroCoordinates(Operator):
    """The coordinates of all nonzero elements, in row-major order (``DML_NONZERO_COORDINATES_OPERATOR_DESC``).

    -0 counts as zero; NaN counts as nonzero. The count tensor has one element. The coordinates have sizes {1, …, 1, M, N}: M is
    the number of elements of the input, N is between the input's effective rank (at least 1) and its rank, and a row contains the
    last N coordinates. Rows from the count on are undefined.
    """

    NAME = "NONZERO_COORDINATES"
    SUPPORT = support(
        input_tensor="3.0 FIU r45 · 4.0 r8 · ext all",
        output_count_tensor="3.0 u r45 · 4.0 r8",
        output_coordinates_tensor="3.0 u r45 · 4.0 r2-8 · ext uW",
    )

    input_tensor: Input
    output_count_tensor: Output
    output_coordinates_tensor: Output

    def check_level(self, level: FeatureLevel) -> None:
        """Before level 4.0 the three tensors have the same number of dimensions."""
        if level < FeatureLevel.LEVEL_4_0:
            for name in ("output_count_tensor", "output_coordinates_tensor"):
                self.require_same("rank", name, "input_tensor")

    def check(self) -> None:
        """One count, and a row of coordinates for every element."""
        count, coordinates = self.output_count_tensor.sizes, self.output_coordinates_tensor.sizes
        self.require(set(count) == {1}, "output_count_tensor.sizes", count, "all sizes 1")
        elements = self.input_tensor.element_count
        low, high = max(self.input_tensor.effective_rank, 1), self.input_tensor.rank
        fits = set(coordinates[:-2]) <= {1} and coordinates[-2] == elements and low <= coordinates[-1] <= high
        allowed = f"(1, …, 1, {elements}, n) with n from {low} to {high}: a row for each element of the input"
        self.require(fits, "output_coordinates_tensor.sizes", coordinates, allowed)

    def shape_class(self) -> dict[str, int | str]:
        """Includes the number of coordinates in a row, which determines how much is written."""
        return {
            "elements": self.input_tensor.element_count,
            "length": self.input_tensor.sizes[-1],
            "columns": str(self.output_coordinates_tensor.sizes[-1]),
            "layout": self.layout(),
        }

    def samples(self) -> tuple[str, ...]:
        """The percentages of nonzero elements."""
        return "10 %", "0.1 %", "50 %", "100 %"

    def computation(self, each: T.Each, in_place: bool = False) -> PrimFunc:
        """A single item, because the position of a row depends on all elements before it."""
        source, result = self.input_tensor, self.output_coordinates_tensor
        columns = result.sizes[-1]
        with T.function() as f:
            tensors = f.tensors(self)
            with each(1):
                count = T.Variable(T.type_of(T.index(0)), T.index(0))
                with T.loop(T.index(source.element_count)) as element:
                    at = T.unravel(element, source.sizes)
                    value = tensors["input_tensor"][T.dot(at, source.layout)]
                    nonzero = value != T.const(0, source.data_type.tvm)
                    if source.data_type.is_float:
                        nonzero = nonzero | T.isnan(value)  # TVM treats every comparison with NaN as false, != too
                    with T.when(nonzero):
                        for column, coordinate in enumerate(at[source.rank - columns :]):
                            place = T.dot([count.value, column], result.layout[-2:])
                            T.store(tensors["output_coordinates_tensor"], place, T.cast(coordinate, result.data_type.tvm))
                        count.set(count.value + 1)
                T.store(tensors["output_count_tensor"], 0, T.cast(count.value, "uint32"))
        return f.result()

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """The operator in NumPy; rows after the count are zero."""
        (x,) = inputs
        assert x is not None
        sizes = self.output_coordinates_tensor.sizes
        found = np.argwhere(x)[:, x.ndim - sizes[-1] :]
        rows = np.zeros((sizes[-2], sizes[-1]), self.output_coordinates_tensor.data_type.numpy)
        rows[: len(found)] = found
        return np.full(self.output_count_tensor.sizes, len(found), np.uint32), rows.reshape(sizes)

    def defined(self, outputs: tuple[Array, ...]) -> tuple[Array, ...]:
        """The count, and that number of rows."""
        count, rows = outputs
        return count, rows[..., : int(count.item()), :]


class NonzeroCoordinatesResult(NamedTuple):
    """The result of ``nonzero_coordinates(trim=False)``."""

    count: AnyArray
    """uint32, shape (1,), for every kind of array: the number of valid rows."""
    coordinates: AnyArray
    """The coordinates, of shape (elements, rank); rows from ``count`` on are undefined."""


@overload
def nonzero_coordinates(
    input: AnyArray,
    *,
    trim: Literal[False],
    index_dtype: Any = None,
    device: str | None = None,
) -> NonzeroCoordinatesResult: ...


@overload
def nonzero_coordinates(
    input: AnyArray,
    *,
    trim: bool = True,
    index_dtype: Any = None,
    device: str | None = None,
) -> AnyArray: ...


def nonzero_coordinates(
    input: AnyArray,  # noqa: A002
    *,
    trim: bool = True,
    index_dtype: Any = None,
    device: str | None = None,
) -> AnyArray:
    """The coordinates of all nonzero elements, in row-major order (DML_OPERATOR_NONZERO_COORDINATES).

    -0 counts as zero; NaN counts as nonzero. DirectMLX's spelling ``non_zero_coordinates`` works too.

    Args:
        input: any of the eleven data types, or bool; any shape of up to eight dimensions.
        trim: return only the valid rows. Without it the whole array is returned, with no copy and no wait for the device.
        index_dtype: ``"uint32"``, ``"uint64"``, ``"int32"`` or ``"int64"``. By default int64 for a PyTorch tensor, because PyTorch
            cannot index with uint32, and uint32 for other arrays. Differences of unsigned coordinates wrap around.
        device: where to run, such as ``"cpu"``, ``"cuda:0"`` or ``"vulkan:0"``; by default the device of ``input``.

    Returns:
        The coordinates, of shape (count, rank); with ``trim=False`` a ``NonzeroCoordinatesResult``.

    Raises:
        InvalidArgument, Unsupported: an argument breaks a rule above.
    """
    if not isinstance(trim, (int, np.bool_)):  # bool is an int
        raise InvalidArgument(message("tvmdml.nonzero_coordinates: trim", safe_repr(trim), "True or False"))
    if index_dtype is None:
        index_dtype = usual_index_type(input)
    finish = _trim if trim else _without_columns
    found = NonzeroCoordinatesResult(*call(_describe, (input,), (index_dtype,), None, device, boolean=True, finish=finish))
    return found.coordinates if trim else found


non_zero_coordinates = nonzero_coordinates


def _without_columns(inputs: Sequence[Array | None], results: tuple[Array, ...]) -> tuple[Array, ...]:
    """For an array without dimensions, remove the coordinate columns."""
    (x,), (count, coordinates) = inputs, results
    assert x is not None
    return count, coordinates if x.ndim else coordinates[:, :0]


def _trim(inputs: Sequence[Array | None], results: tuple[Array, ...]) -> tuple[Array, ...]:
    count, coordinates = _without_columns(inputs, results)
    rows = coordinates[: int(count[0])]
    # A view of a few rows would keep the memory for all elements alive.
    return count, rows if len(rows) * 2 > len(coordinates) else rows.copy()


# The results' shapes after these steps, from the inputs' and results' shapes, without data; None is a size that depends on data.
_without_columns.shapes = lambda inputs, results: (results[0], results[1] if inputs[0] else (results[1][0], 0))  # type: ignore[attr-defined]
_trim.shapes = lambda inputs, results: (results[0], (None, len(inputs[0])))  # type: ignore[attr-defined]


@describes("tvmdml.nonzero_coordinates")
def _describe(input: ArrayTensorDesc, index_dtype: Any) -> Described:  # noqa: A002
    name, written = index_type(index_dtype, NonzeroCoordinates.where("index_dtype"))
    desc = NonzeroCoordinates(
        input_tensor=input,
        output_count_tensor=input.with_sizes((1,), TensorDataType.UINT32),
        output_coordinates_tensor=input.with_sizes((input.element_count, input.rank), written),
    )
    return Described(desc, dtypes=(None, name))
