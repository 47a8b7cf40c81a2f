"""PyTorch's operators with tensors of indices: what is looked up, and what is replaced or combined at places.

PyTorch refuses an index that is out of range when it runs. Here it means the nearest element where elements are looked up, and
changes nothing elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

import tvmdml
from tvmdml.enums import ReduceFunction
from tvmdml.graph import Expression
from tvmdml.graph.scattering import scattered, scattered_nd
from tvmdml.operators._broadcast import common_sizes
from tvmdml.tensors.sizes import are_equal
from tvmdml.torch._aten import CONDITIONS, _number, _truth, aten, entry

_FUNCTIONS: Mapping[str, ReduceFunction] = {
    "sum": ReduceFunction.SUM,
    "add": ReduceFunction.SUM,
    "mean": ReduceFunction.SUM,
    "prod": ReduceFunction.MULTIPLY,
    "multiply": ReduceFunction.MULTIPLY,
    "amax": ReduceFunction.MAX,
    "amin": ReduceFunction.MIN,
}
_INDICES = (torch.int64, torch.int32)


def _numbers(node: Any) -> bool:
    """Whether numbers are combined, of a kind whose mean PyTorch does not round down."""
    dtype = node.args[0].meta["val"].dtype
    named = [argument for argument in node.args if isinstance(argument, str)]
    return dtype != torch.bool and (dtype.is_floating_point or "mean" not in named)


def _by_indices(node: Any) -> bool:
    """Whether neighbouring dimensions have tensors of indices, and no masks, whose results' sizes the data tell."""
    indices = node.args[1]
    places = [i for i, index in enumerate(indices) if index is not None]
    return (
        node.args[0].meta["val"].ndim > 0
        and places == list(range(places[0], places[-1] + 1))
        and all(indices[i].meta["val"].dtype in _INDICES for i in places)
    )


CONDITIONS.update(
    {
        aten.index.Tensor: _by_indices,
        aten.index_put.default: _by_indices,
        aten.scatter_reduce.two: _numbers,
        aten.index_reduce.default: _numbers,
        aten.scatter_add.default: _numbers,
        aten.scatter.reduce: _numbers,
        aten.scatter.value_reduce: _numbers,
    }
)


def _whole(x: Expression) -> Expression:
    """A tensor with a dimension at least."""
    whole: Expression = _number(x)
    return whole if whole.ndim else whole.reshape((1,))


def _like(x: Expression, result: Expression) -> Any:
    """A result with the form of a tensor."""
    return _truth_of(x, result.reshape(x.shape) if result.ndim != x.ndim else result)


def _truth_of(x: Expression, result: Any) -> Any:
    """A result with the type of a tensor, which may be bool."""
    return _truth(result) if x.dtype == np.bool_ else result


def _filled(x: Expression, value: Any, dtype: Any = None) -> Any:
    """As many elements as a tensor has, all of one value."""
    number = x.graph.constant(np.asarray(value).astype(x.dtype if dtype is None else dtype))
    return number.broadcast(x.shape) if x.shape else number


@entry(aten.full_like.default)
def _full_like(x: Expression, value: Any, *, dtype: Any = None, **rest: Any) -> Any:
    return _filled(x, value, None if dtype is None else str(dtype).removeprefix("torch."))


# -- Looked up


@entry(aten.index_select.default, mixed=True)
def _index_select(x: Expression, dim: int, index: Expression) -> Any:
    return _like(x, tvmdml.gather(_whole(x), index.reshape(index.size), axis=dim % max(x.ndim, 1)))


@entry(aten.gather.default, mixed=True)
def _gather(x: Expression, dim: int, index: Expression, *, sparse_grad: bool = False) -> Any:
    whole, places, axis = _whole(x), _whole(index), dim % max(x.ndim, 1)
    pairs = enumerate(zip(places.shape, whole.shape, strict=True))
    part = tuple(slice(None) if i == axis or are_equal(n, m) else slice(n) for i, (n, m) in pairs)
    return _truth_of(x, tvmdml.gather_elements(whole[part], places, axis=axis).reshape(index.shape))


@entry(aten.index.Tensor, mixed=True)
def _index(x: Expression, indices: Sequence[Any]) -> Any:
    first, places = _places(indices)
    whole = _number(x)
    if len(places) == 1:
        rows = tvmdml.gather(whole, places[0].reshape(places[0].size), axis=first)
        shape = (*x.shape[:first], *places[0].shape, *x.shape[first + 1 :])
        return _truth_of(x, rows.reshape(shape))
    behind = first + len(places)
    moved = whole.transpose((*range(first, behind), *range(first), *range(behind, x.ndim)))
    shape, tuples = _tuples(places)
    rows = tvmdml.gather_nd(moved, tuples).reshape((math.prod(shape), *moved.shape[len(places) :]))
    order = (*range(1, first + 1), 0, *range(first + 1, rows.ndim))
    return _truth_of(x, rows.transpose(order).reshape((*x.shape[:first], *shape, *x.shape[behind:])))


def _places(indices: Sequence[Any]) -> tuple[int, list[Expression]]:
    """The first dimension with indices, and these."""
    given = [i for i, index in enumerate(indices) if index is not None]
    return given[0], [indices[i] for i in given]


def _tuples(places: Sequence[Expression]) -> tuple[tuple[int, ...], Expression]:
    """The shape that several tensors of indices are broadcast to, and their tuples in rows."""
    sizes = common_sizes({f"indices[{i}]": index.desc for i, index in enumerate(places)})
    shape = sizes[len(sizes) - max(index.ndim for index in places) :]
    columns = [index.broadcast(shape).reshape((math.prod(shape), 1)) for index in places]
    kind = max((column.dtype for column in columns), key=lambda dtype: dtype.itemsize)
    columns = [column.astype(kind) for column in columns]
    return shape, columns[0] if len(columns) == 1 else tvmdml.join(columns, axis=1)


# -- Replaced and combined


@entry(aten.index_put.default, mixed=True)
def _index_put(x: Expression, indices: Sequence[Any], values: Expression, accumulate: bool = False) -> Any:
    first, places = _places(indices)
    behind = first + len(places)
    order = (*range(first, behind), *range(first), *range(behind, x.ndim))
    moved = _number(x).transpose(order)
    shape, tuples = _tuples(places)
    given = _number(values).broadcast((*x.shape[:first], *shape, *x.shape[behind:]))
    rank = first + len(shape)
    given = given.transpose((*range(first, rank), *range(first), *range(rank, given.ndim)))
    given = given.reshape((math.prod(shape), *moved.shape[len(places) :]))
    of_bools = x.dtype == np.bool_
    function = None if not accumulate else ReduceFunction.MAX if of_bools else ReduceFunction.SUM
    result = scattered_nd(moved, tuples, given, function)
    return _truth_of(x, result.transpose([order.index(i) for i in range(x.ndim)]))


def _scattered(x: Expression, dim: int, index: Expression, source: Expression, reduce: str = "", include_self: bool = True) -> Any:
    """What all scatters do: with a name, elements and updates are combined."""
    whole, places, updates, axis = _whole(x), _whole(index), _whole(source), dim % max(x.ndim, 1)
    pairs = enumerate(zip(places.shape, updates.shape, strict=True))
    part = {i: slice(n) for i, (n, m) in pairs if not are_equal(n, m)}
    if part:
        updates = updates[tuple(part.get(i, slice(None)) for i in range(updates.ndim))]
    if not reduce:
        return _like(x, scattered(whole, places, updates, axis))
    function = _FUNCTIONS[reduce]
    ones = _filled(updates, 1)
    count = scattered(_filled(whole, include_self), places, ones, axis, ReduceFunction.SUM) if reduce == "mean" else None
    if not include_self:
        whole = scattered(whole, places, _filled(updates, _neutral(function, x.dtype)), axis)
    result = scattered(whole, places, updates, axis, function)
    return _like(x, result if count is None else tvmdml.divide(result, tvmdml.max(count, _filled(count, 1))))


def _neutral(function: ReduceFunction, dtype: np.dtype[Any]) -> float:
    """What changes no element that it is combined with."""
    if function in (ReduceFunction.SUM, ReduceFunction.MULTIPLY):
        return float(function is ReduceFunction.MULTIPLY)
    least = function is ReduceFunction.MAX
    if dtype.kind == "f":
        return -math.inf if least else math.inf
    return int(np.iinfo(dtype).min if least else np.iinfo(dtype).max)


@entry(aten.scatter.src, aten.scatter.reduce, mixed=True)
def _scatter(x: Expression, dim: int, index: Expression, source: Expression, *, reduce: str = "") -> Any:
    return _scattered(x, dim, index, source, reduce)


@entry(aten.scatter.value, aten.scatter.value_reduce, mixed=True)
def _scatter_value(x: Expression, dim: int, index: Expression, value: float, *, reduce: str = "") -> Any:
    return _scattered(x, dim, index, _filled(index, value, x.dtype), reduce)


@entry(aten.scatter_add.default, mixed=True)
def _scatter_add(x: Expression, dim: int, index: Expression, source: Expression) -> Any:
    return _scattered(x, dim, index, source, "sum")


@entry(aten.scatter_reduce.two, mixed=True)
def _scatter_reduce(
    x: Expression, dim: int, index: Expression, source: Expression, reduce: str, *, include_self: bool = True
) -> Any:
    return _scattered(x, dim, index, source, reduce, include_self)


@entry(aten.index_reduce.default, mixed=True)
def _index_reduce(x: Expression, dim: int, index: Expression, source: Expression, reduce: str, *, include_self: bool = True) -> Any:
    axis = dim % max(source.ndim, 1)
    sizes = [index.size if i == axis else 1 for i in range(max(source.ndim, 1))]
    places = index.reshape(sizes).broadcast(source.shape) if source.ndim else index
    return _scattered(x, dim, places, source, reduce, include_self)
