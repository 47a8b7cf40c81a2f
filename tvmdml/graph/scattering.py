"""Scatters of all kinds, as ONNX and PyTorch have them: those that combine, and those of fewer elements than the tensor has."""

from __future__ import annotations

from typing import Any

import tvmdml
from tvmdml import functions
from tvmdml.enums import ReduceFunction
from tvmdml.graph.expression import Expression
from tvmdml.operators._contract import Operator
from tvmdml.operators._movement_scatter_fused import FusedScatter, FusedScatterNd
from tvmdml.operators.scatter import Scatter, ScatterNd


def scattered(x: Any, indices: Any, updates: Any, axis: int, function: ReduceFunction | None = None) -> Any:
    """A tensor with updates at the places of indices along an axis.

    Args:
        x: an array or expression of at least one dimension.
        indices: of any length along the axis, and otherwise at most the sizes of ``x``. A negative one counts from the end; one
            that is out of range changes nothing.
        updates: as many as indices.
        axis: from 0 on.
        function: what an element and its updates, in their order, come to; without it the last update is the element.

    Raises:
        InvalidArgument: indices and updates do not fit.
    """
    if 0 in indices.shape:
        return x
    for i, (whole, part) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if i != axis and part < whole:  # what is behind stays as it is
            first = scattered(x[along(i, slice(None, part))], indices, updates, axis, function)
            return tvmdml.join([first, x[along(i, slice(part, None))]], axis=i)
    return functions.call(_elements, (x, indices, updates), (axis, function), boolean=True)[0]


def along(axis: int, key: Any) -> tuple[Any, ...]:
    """An index of one axis."""
    return (*[slice(None)] * axis, key)


def scattered_nd(x: Any, indices: Any, updates: Any, function: ReduceFunction | None = None) -> Any:
    """A tensor with updates, which are slices of it, at the places of tuples of indices.

    Args:
        x: an array or expression of at least one dimension.
        indices: tuples along the last dimension. Negative ones count from the end; one that is out of range changes nothing.
        updates: a slice for each tuple.
        function: as for ``scattered``.

    Raises:
        InvalidArgument: indices and updates do not fit.
    """
    if 0 in (*indices.shape, *updates.shape):
        return x
    # Kernels for all sizes count places in the order of memory.
    whole = x.copy() if isinstance(x, Expression) and not x.desc.is_packed else x
    return functions.call(_tuples, (whole, indices, updates), (function,), boolean=True)[0]


@functions.describes("tvmdml.scatter_elements", "input", "indices", "updates")
def _elements(x: Any, indices: Any, updates: Any, axis: int, function: ReduceFunction | None) -> Operator:
    if function is None:
        return Scatter.of(x, indices, updates, axis=axis)
    return FusedScatter.of(x, indices, updates, axis=axis, function=function)


@functions.describes("tvmdml.scatter_nd", "input", "indices", "updates")
def _tuples(x: Any, indices: Any, updates: Any, function: ReduceFunction | None) -> functions.Described:
    counts: dict[str, Any] = {"input_dimension_count": None, "indices_dimension_count": None}
    if function is None:
        desc = ScatterNd.of_call(x, indices, updates, **counts)
    else:
        desc = FusedScatterNd.of_call(x, indices, updates, **counts, function=function)
    return functions.Described(desc, shapes=(tuple(x.sizes),))
