"""``tvmdml.nonzero_coordinates``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml.doors._index_types import index_type, usual_index_type
from tvmdml.doors._made import door, truth
from tvmdml.functions import AnyArray, Described, call, describes
from tvmdml.operators._contract import NumpyArray
from tvmdml.operators.nonzero_coordinates import NonzeroCoordinates
from tvmdml.tensors import ArrayTensorDesc

if TYPE_CHECKING:
    from tvmdml.typing import DType

__all__ = ["NonzeroCoordinatesResult", "non_zero_coordinates", "nonzero_coordinates"]


class NonzeroCoordinatesResult(NamedTuple):
    """The result of ``nonzero_coordinates(trim=False)``."""

    count: AnyArray
    """uint32, shape (1,), for every kind of array: the number of valid rows."""
    coordinates: AnyArray
    """The coordinates, of shape (elements, rank); rows from ``count`` on are 0."""


@door(NonzeroCoordinates, ({"trim": "Literal[False]"}, "NonzeroCoordinatesResult"), ({}, "AnyArray"))
def nonzero_coordinates(
    input: AnyArray,  # noqa: A002
    *,
    trim: bool = True,
    index_dtype: DType | None = None,
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
    """
    if index_dtype is None:
        index_dtype = usual_index_type(input)
    trimmed = truth("nonzero_coordinates", "trim", trim)
    finish = _trim if trimmed else _without_columns
    result = NonzeroCoordinatesResult(*call(_describe, (input,), (index_dtype,), None, device, boolean=True, finish=finish))
    return result.coordinates if trimmed else result


non_zero_coordinates = nonzero_coordinates


def _without_columns(inputs: Sequence[NumpyArray | None], results: tuple[NumpyArray, ...]) -> tuple[NumpyArray, ...]:
    """For an array without dimensions, remove the coordinate columns."""
    (x,), (count, coordinates) = inputs, results
    assert x is not None
    return count, coordinates if x.ndim else coordinates[:, :0]


def _trim(inputs: Sequence[NumpyArray | None], results: tuple[NumpyArray, ...]) -> tuple[NumpyArray, ...]:
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
    desc = NonzeroCoordinates.rows_of(input, written)
    return Described(desc, dtypes=(None, name))
