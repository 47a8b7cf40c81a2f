"""What is known before a model runs: constants, shapes, and arithmetic with them."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import Node, axis_of, broadcast_sizes
from tvmdml.onnx.types import dtype_of, is_narrow, is_ours
from tvmdml.onnx.values import Value
from tvmdml.operators.cast import converted
from tvmdml.operators.element_wise_binary import greater, less, quotient
from tvmdml.operators.fill_value import length
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.sizes import is_open

_MOST = 1 << 16
"""The most elements of an array that is computed here; the graph computes larger ones."""

# -- Without inputs, or with only their shapes -----------------------------------------------------------------------


def _constant(node: Node) -> NumpyArray:
    (name, value), *more = node.attributes.items() or [("", None)]
    if more or name in ("", "sparse_value"):
        raise NotConvertible("it is not one dense constant")
    if name == "value":
        return node.around.array(value)
    if name in ("value_int", "value_ints"):
        return np.asarray(value, np.int64)
    if name in ("value_float", "value_floats"):
        return np.asarray(value, np.float32)
    raise NotConvertible(f"its {name} is not one of DirectML's types")


def _shape(node: Node) -> Value:
    return _of_sizes(node.shape()[node.integer("start", 0) : node.attributes.get("end")])


def _of_sizes(sizes: Sequence[int]) -> Value:
    return Value.of_sizes(objects(sizes), np.int64)


def objects(sizes: Sequence[int]) -> NumpyArray:
    """An array of sizes as they are."""
    found = np.empty(len(sizes), object)
    found[:] = sizes
    return found


_ALWAYS: Mapping[str, Callable[[Node], NumpyArray | Value]] = {
    "Constant": _constant,
    "Shape": _shape,
    "Size": lambda node: Value.of_sizes(objects([math.prod(node.shape())]).reshape(()), np.int64),
}

# -- Of known inputs -------------------------------------------------------------------------------------------------


def _slice(node: Node) -> NumpyArray:
    return _sliced(node, node.known(0))


def _sliced(node: Node, x: NumpyArray) -> NumpyArray:
    starts, ends = node.integers(1), node.integers(2)
    axes = node.integers(3) if node.has(3) else range(len(starts))
    steps = node.integers(4) if node.has(4) else [1] * len(starts)
    keys = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        begin = start if step > 0 else max(start, -x.shape[axis])  # ONNX begins inside
        keys[axis_of(axis, x.ndim)] = slice(begin, end if end > -_FAR else None, step)
    return x[tuple(keys)]


_FAR = 2**31 - 1


class _LaterOn(Exception):
    """The rule of the operator computes it."""


def _reduced(function: Callable[..., Any]) -> Callable[[Node], Any]:
    """Sums and products of floats depend on the order, which is the kernel's."""

    def fold(node: Node) -> Any:
        x = node.known(0)
        axes = tuple(node.integers(1)) if node.has(1) else ()
        if not x.size or x.dtype.kind == "f":
            raise _LaterOn
        if not axes and node.integer("noop_with_empty_axes", 0):
            return x
        kept = bool(node.integer("keepdims", 1))
        return function(x, axis=axes or None, keepdims=kept, **({} if function in (np.max, np.min) else {"dtype": x.dtype}))

    return fold


def _range(node: Node) -> NumpyArray:
    start, limit, delta = (node.known(i).reshape(()) for i in range(3))
    count = length(start.item(), limit.item(), delta.item())
    return (start + np.arange(count, dtype=start.dtype) * delta).astype(start.dtype)


def _cast(node: Node) -> NumpyArray:
    to = node.dtype(1) if node.kind == "CastLike" else dtype_of(node.integer("to", 0))
    if is_narrow(to):
        raise _LaterOn
    if not is_ours(to):
        raise NotConvertible("the type of its output is not one of DirectML's")
    return converted(node.known(0), to)


def _axes(node: Node) -> tuple[int, ...]:
    return tuple(node.integers(1))


def _numpy(function: Callable[..., Any]) -> Callable[[Node], Any]:
    def fold(node: Node) -> Any:
        arrays = [node.known(i) for i in range(len(node.inputs))]
        found = function(*arrays)
        return np.asarray(found).astype(arrays[-1].dtype) if np.asarray(found).dtype != np.bool_ else found

    return fold


def _several(function: Callable[..., Any]) -> Callable[[Node], Any]:
    def fold(node: Node) -> Any:
        found = node.known(0)
        for i in range(1, len(node.inputs)):
            found = function(found, node.known(i))
        return found

    return fold


def _gather(node: Node) -> Any:
    """Indices beyond the elements are those of the nearest one."""
    x, at = node.known(0), node.known(1)
    axis = node.axis(x.ndim)
    count = x.shape[axis]
    return np.take(x, np.where(at < 0, at + count, at), axis, mode="clip")


def _full(node: Node) -> NumpyArray:
    given = node.attributes.get("value")
    value = np.zeros(1, np.float32) if given is None else node.around.array(given)
    return np.full(tuple(node.integers(0)), value.reshape(-1)[0], value.dtype)


def _mod(node: Node) -> Any:
    return (np.fmod if node.integer("fmod", 0) else np.mod)(node.known(0), node.known(1))


def _reshape(node: Node) -> Any:
    x, shape = node.known(0), node.results[0].shape or ()
    if math.prod(shape) != x.size:
        raise NotConvertible(f"its {x.size} elements cannot have the sizes {list(shape)}")
    return x.reshape(shape)


_FOLDED: Mapping[str, Callable[[Node], Any]] = {  # bit by bit what kernels compute
    "Abs": _numpy(np.abs),
    "Add": _numpy(np.add),
    "And": _numpy(np.logical_and),
    "Cast": _cast,
    "CastLike": _cast,
    "Ceil": _numpy(np.ceil),
    "Concat": lambda node: np.concatenate([node.known(i) for i in range(len(node.inputs))], node.axis(len(node.shape()))),
    "ConstantOfShape": _full,
    "Div": _numpy(quotient),
    "Equal": _numpy(np.equal),
    "Expand": lambda node: np.broadcast_to(node.known(0), node.results[0].shape or ()),
    "Flatten": _reshape,
    "Floor": _numpy(np.floor),
    "Gather": _gather,
    "Greater": _numpy(np.greater),
    "GreaterOrEqual": _numpy(np.greater_equal),
    "Identity": lambda node: node.known(0),
    "Less": _numpy(np.less),
    "LessOrEqual": _numpy(np.less_equal),
    "Max": _several(greater),
    "Min": _several(less),
    "Mod": _mod,
    "Mul": _numpy(np.multiply),
    "Neg": _numpy(np.negative),
    "Not": _numpy(np.logical_not),
    "Or": _numpy(np.logical_or),
    "Range": _range,
    "ReduceMax": _reduced(np.max),
    "ReduceMin": _reduced(np.min),
    "ReduceProd": _reduced(np.prod),
    "ReduceSum": _reduced(np.sum),
    "Reshape": _reshape,
    "Slice": _slice,
    "Sqrt": _numpy(np.sqrt),
    "Squeeze": _reshape,
    "Sub": _numpy(np.subtract),
    "Sum": _several(np.add),
    "Tile": lambda node: np.tile(node.known(0), node.integers(1)),
    "Transpose": lambda node: np.transpose(node.known(0), node.attributes.get("perm")),
    "Unsqueeze": _reshape,
    "Where": lambda node: np.where(node.known(0), node.known(1), node.known(2)),
    "Xor": _numpy(np.logical_xor),
}
"""Operators with results whose sizes inference does not know; they are not larger than the inputs allow."""


def _reshaped(node: Node) -> tuple[int, ...]:
    x, wanted = node.elements(0), node.integers(1)
    if not node.integer("allowzero", 0):
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    known = math.prod(n for n in wanted if n >= 0)
    return tuple(x.size // known if n < 0 else n for n in wanted)


def _squeezed(node: Node) -> tuple[int, ...]:
    shape = node.shape()
    axes = {axis_of(one, len(shape)) for one in node.integers(1)} if node.has(1) else {i for i, n in enumerate(shape) if n == 1}
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def _unsqueezed(node: Node) -> tuple[int, ...]:
    rest, rank = iter(node.shape()), len(node.shape()) + len(node.integers(1))
    axes = {axis_of(one, rank) for one in node.integers(1)}
    return tuple(1 if i in axes else next(rest) for i in range(rank))


def _flattened(node: Node) -> tuple[int, ...]:
    shape, axis = node.shape(), node.integer("axis", 1)
    return math.prod(shape[:axis]), math.prod(shape[axis:])


# -- Of sizes that are open ------------------------------------------------------------------------------------------


def _each(function: Callable[..., Any]) -> Callable[[Node], Any]:
    """A function of elements, by NumPy's rules for shapes."""

    def fold(node: Node) -> Any:
        return functools.reduce(np.frompyfunc(function, 2, 1), (_objects_of(node, i) for i in range(len(node.inputs))))

    return fold


def _compared(function: Callable[[Any, Any], bool]) -> Callable[[Node], Any]:
    def fold(node: Node) -> Any:
        return np.asarray(_each(function)(node)).astype(np.bool_)

    return fold


def _objects_of(node: Node, position: int) -> NumpyArray:
    """The elements of an input. Floats that are whole numbers are those integers."""
    elements = node.elements(position)
    if elements.dtype.kind == "f":
        if not (np.abs(elements) < _EXACT).all() or (elements % 1).any() or np.signbit(elements[elements == 0]).any():
            raise _LaterOn
        elements = elements.astype(np.int64)
    return elements.astype(object)


_EXACT = 1 << 24
"""Whole numbers below are exact in float32."""


def _divided(a: Any, b: Any) -> Any:
    """Rounded towards 0, as integers of kernels are."""
    return a // b if a >= 0 and b > 0 else (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)


def _cast_sizes(node: Node) -> Any:
    to = node.dtype(1) if node.kind == "CastLike" else dtype_of(node.integer("to", 0))
    if to == np.bool_:
        return np.asarray(np.frompyfunc(bool, 1, 1)(_objects_of(node, 0))).astype(np.bool_)
    if to not in (np.int32, np.int64, np.float32, np.float64):
        raise _LaterOn
    return _objects_of(node, 0)


def _reduced_sizes(function: Callable[[Any, Any], Any]) -> Callable[[Node], Any]:
    def fold(node: Node) -> Any:
        x = _objects_of(node, 0)
        axes = tuple(node.integers(1)) if node.has(1) else ()
        if not x.size or (not axes and node.integer("noop_with_empty_axes", 0)):
            raise _LaterOn
        every = {axis_of(axis, x.ndim) for axis in axes} or set(range(x.ndim))
        for axis in sorted(every, reverse=True):
            x = np.asarray(np.frompyfunc(function, 2, 1).reduce(x, axis=axis, keepdims=bool(node.integer("keepdims", 1))), object)
        return x

    return fold


def _taken(node: Node) -> Any:
    x, at = _objects_of(node, 0), node.known(1)
    axis = node.axis(x.ndim)
    return np.take(x, np.where(at < 0, at + x.shape[axis], at), axis, mode="clip")


_OF_ALL: Mapping[str, Callable[[Node], Any]] = {
    "Add": _each(operator.add),
    "Concat": lambda node: np.concatenate([_objects_of(node, i) for i in range(len(node.inputs))], node.axis(len(node.shape()))),
    "Div": _each(_divided),
    "Equal": _compared(operator.eq),
    "Greater": _compared(operator.gt),
    "GreaterOrEqual": _compared(operator.ge),
    "Less": _compared(operator.lt),
    "LessOrEqual": _compared(operator.le),
    "Max": _each(max),
    "Min": _each(min),
    "Mod": _each(operator.mod),
    "Mul": _each(operator.mul),
    "Sub": _each(operator.sub),
    "Sum": _each(operator.add),
    "Where": lambda node: np.where(node.known(0), _objects_of(node, 1), _objects_of(node, 2)),
}
"""Operators that compute with integers that follow from sizes in any input."""
_OF_FIRST: Mapping[str, Callable[[Node], Any]] = {
    "Abs": lambda node: np.frompyfunc(abs, 1, 1)(_objects_of(node, 0)),
    "Cast": _cast_sizes,
    "CastLike": _cast_sizes,
    "Expand": lambda node: np.broadcast_to(_objects_of(node, 0), broadcast_sizes(node.shape(), node.integers(1))),
    "Flatten": lambda node: _objects_of(node, 0).reshape(_flattened(node)),
    "Ceil": lambda node: _objects_of(node, 0),
    "Floor": lambda node: _objects_of(node, 0),
    "Gather": _taken,
    "Round": lambda node: _objects_of(node, 0),
    "Identity": lambda node: _objects_of(node, 0),
    "Neg": lambda node: np.frompyfunc(operator.neg, 1, 1)(_objects_of(node, 0)),
    "ReduceMax": _reduced_sizes(max),
    "ReduceMin": _reduced_sizes(min),
    "ReduceProd": _reduced_sizes(operator.mul),
    "ReduceSum": _reduced_sizes(operator.add),
    "Reshape": lambda node: _objects_of(node, 0).reshape(_reshaped(node)),
    "Slice": lambda node: _sliced(node, _objects_of(node, 0)),
    "Squeeze": lambda node: _objects_of(node, 0).reshape(_squeezed(node)),
    "Tile": lambda node: np.tile(_objects_of(node, 0), node.integers(1)),
    "Transpose": lambda node: np.transpose(_objects_of(node, 0), node.attributes.get("perm")),
    "Unsqueeze": lambda node: _objects_of(node, 0).reshape(_unsqueezed(node)),
}
"""Those that move the elements of the first input, or compute with them; the others are known."""


def _of_open_sizes(node: Node) -> list[Any] | None:
    """The result of a node that computes with integers that follow from sizes; ``None`` if the graph computes it."""
    function = _OF_ALL.get(node.kind)
    others = [one for one in node.inputs if one is not None]
    if function is None:
        function, others = _OF_FIRST.get(node.kind), others[1:]
        if any(one.array is None for one in others):
            return None
    if function is None or len(node.outputs) != 1 or any(one.elements is None or one.size > _MOST_SIZES for one in others):
        return None
    dtype = np.dtype(node.results[0].dtype or node.dtype(node.kind == "Where"))
    if dtype.kind == "f" and node.kind in ("Div", "Mod", "ReduceProd", "ReduceSum"):
        return None  # rounded, or in the order of a kernel
    if node.kind == "Mod" and node.integer("fmod", 0):
        return None
    try:
        found = np.asarray(function(node))
    except _LaterOn:
        return None
    if found.dtype == np.bool_:
        return [found]
    every = found.reshape(-1).tolist()
    if dtype.kind == "f" and not all(-_EXACT < n < _EXACT for n in every):
        return None
    if dtype.kind == "f" and node.kind in ("Mul", "Neg") and not all(every):
        return None  # a 0 may have a sign
    if dtype.kind in "iu" and not all(np.iinfo(dtype).min <= n <= np.iinfo(dtype).max for n in every):
        return None  # it wraps
    return [Value.of_sizes(found.astype(object), dtype)]


_MOST_SIZES = 1024


def folds(kind: str) -> bool:
    """Whether an operator may be computed here."""
    return kind in _ALWAYS


def fold(node: Node) -> Any:
    """The result of a node if it is known now; ``None`` otherwise."""
    if (always := _ALWAYS.get(node.kind)) is not None:
        return [always(node)]
    if any(one is not None and one.array is None and one.sizes is not None for one in node.inputs):
        return _of_open_sizes(node)
    function = _FOLDED.get(node.kind)
    if function is None or len(node.outputs) != 1 or not all(one is None or one.array is not None for one in node.inputs):
        return None
    known = [one for one in node.inputs if one is not None]
    shape = node.results[0].shape
    if shape is not None and any(map(is_open, shape)):
        return None
    if not known or any(one.size > _MOST for one in known) or not all(is_ours(one.dtype) for one in known):
        return None
    if shape is None or math.prod(shape) > _MOST:
        return None
    with np.errstate(all="ignore"):
        try:
            return [np.asarray(function(node))]
        except _LaterOn:
            return None
