"""Operators with indices, and those whose result's size may depend on elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tvmdml
from tvmdml.onnx import described
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import Node, Results, along, axis_of, reshaped, rule
from tvmdml.onnx.values import Value
from tvmdml.tensors.sizes import is_open


@rule("Gather")
def _gather(node: Node) -> Results:
    """One index is a view."""
    x = node.x()
    axis = node.axis(x.ndim)
    if node.value(1).elements is not None and not node.shape(1):
        at, count = node.count(1), x.shape[axis]
        return x[
            along(axis, min(max(at + count if at < 0 else at, 0), count - 1))
        ]  # one that is beyond is the nearest, as in gather
    return tvmdml.gather(x, node.x(1), axis=axis) if node.shape(1) else described.convert(node)


@rule("GatherND")
def _gather_nd(node: Node) -> Results:
    """DirectML has no result without dimensions."""
    (found,) = described.convert(node)
    x, at = node.shape(), node.shape(1)
    return reshaped(found, (*at[:-1], *x[node.integer("batch_dims", 0) + at[-1] :]))


@rule("ai.onnx.ml.ArrayFeatureExtractor")
def _extracted(node: Node) -> Results:
    """Some columns; of one row, a matrix of a row."""
    x = node.x()
    found = tvmdml.gather(x, node.x(1).reshape(-1), axis=x.ndim - 1)
    return found if x.ndim > 1 else found.reshape(1, -1)


@rule("OneHot")
def _one_hot(node: Node) -> Results:
    """Indices may be of every type; those of floats are whole numbers."""
    if node.shape(2) != (2,):
        raise NotConvertible(f"its values are {list(node.shape(2))}, and not two")
    if node.dtype().kind == "f" or node.dtype().itemsize < 4:
        node.inputs[0] = Value.computed(node.x().astype(np.int64))
    return described.convert(node)


@rule("Range")
def _range(node: Node) -> Results:
    if any(node.value(i).sizes is not None and not node.is_known(i) for i in range(3)) and node.is_known(2):
        start, limit, delta = (node.count(i) for i in range(3))
        if delta and (node.dtype().kind != "f" or (delta == 1 and start == 0)):
            count = max(-(-(limit - start) // delta), 0)
            graph: Any = node.graph
            found: Any = tvmdml.fill_value_sequence([count], 0, delta, dtype=node.dtype(), device=graph)
            return found + (node.x().reshape(1) if is_open(start) else node.like(start, found))
    for i in range(3):
        node.number(i)
    return described.convert(node)


@rule("CumSum", "CumProd")
def _scan(node: Node) -> Results:
    axis = axis_of(int(node.number(1)), len(node.shape()))
    function = tvmdml.cumulative_summation if node.kind == "CumSum" else tvmdml.cumulative_product
    direction = "decreasing" if node.integer("reverse", 0) else "increasing"
    exclusive = bool(node.integer("exclusive", 0))
    given: dict[str, Any] = {"has_exclusive_sum" if node.kind == "CumSum" else "has_exclusive_product": exclusive}
    return function(node.x(), axis=axis, axis_direction=direction, **given)


@rule("Pad")
def _pad(node: Node) -> Results:
    """Negative pads cut, which is a view; of the mode wrap, copies are joined."""
    x, pads = node.x(), node.integers(1)
    axes = [axis_of(n, x.ndim) for n in node.integers(3)] if node.has(3) else list(range(x.ndim))
    if len(pads) != 2 * len(axes):
        raise NotConvertible(f"its pads are {pads}, for {len(axes)} dimensions")
    starts, ends = [0] * x.ndim, [0] * x.ndim
    for i, axis in enumerate(axes):
        starts[axis], ends[axis] = pads[i], pads[len(axes) + i]
    mode = node.text("mode", "constant")
    value = node.number(2) if node.has(2) and mode == "constant" else 0
    value = int(value) if isinstance(value, bool) else value
    sizes = [a + n + b for a, b, n in zip(starts, ends, x.shape, strict=True)]
    if any(n < 0 for n in sizes):
        raise NotConvertible(f"its pads are {pads}, for the sizes {list(x.shape)}: none may become less than 0")
    if 0 in sizes:
        return np.empty(sizes, node.dtype())
    if mode == "constant" and any(min(a, b) < -n for a, b, n in zip(starts, ends, x.shape, strict=True)):
        return np.full(sizes, value, node.dtype())  # what is cut includes some of the padding
    cut = tuple(slice(max(-a, 0), n - max(-b, 0)) for a, b, n in zip(starts, ends, x.shape, strict=True))
    x = x[cut]
    starts, ends = [max(n, 0) for n in starts], [max(n, 0) for n in ends]
    if not any((*starts, *ends)):
        return x
    if mode == "wrap":
        for axis, (a, b) in enumerate(zip(starts, ends, strict=True)):
            n = x.shape[axis]
            if a or b:
                places = np.arange(-a, n + b, dtype=np.int64) % n
                x = tvmdml.gather(x, node.constant(places), axis=axis)
        return x
    modes = {"constant": "constant", "edge": "edge", "reflect": "reflection"}
    if mode not in modes:
        raise NotConvertible(f"its mode is {mode}")
    return tvmdml.padding(x, start_padding=starts, end_padding=ends, padding_mode=modes[mode], padding_value=value)


@rule("AveragePool", "LpPool", "MaxPool")
def _pool(node: Node) -> Results:
    """ONNX's shape inference counts windows that begin behind the input. The standard, and ONNX Runtime, leave them out."""
    found = _columns_first(node) if node.integer("storage_order", 0) else described.convert(node)
    if node.integer("ceil_mode", 0):
        rank = len(node.shape())
        shapes = [None if one is None else (*one.shape[:2], *one.shape[one.ndim - rank + 2 :]) for one in found]
        node.results = [one._replace(shape=shape) for one, shape in zip(node.results, shapes, strict=False)]
    return found


def _columns_first(node: Node) -> list[Any]:
    """Indices that count columns first are made of those that count rows first."""
    own = {name: value for name, value in node.attributes.items() if name != "storage_order"}
    found: list[Any] = list(described.convert(node.replaced("MaxPool", **own)))
    if len(found) < 2 or found[1] is None:
        return found
    result, at = found
    at = at.view(np.int64) if at.dtype == np.uint64 else at.astype(np.int64)
    space = node.shape()[2:]
    rest = inside = tvmdml.modulus_floor(at, node.like(math.prod(space), at))
    found = at - inside
    for i, n in reversed(list(enumerate(space))):
        found = found + tvmdml.modulus_floor(rest, node.like(n, at)) * node.like(math.prod(space[:i]), at)
        rest = tvmdml.divide(rest, node.like(n, at))
    return [result, found]


@rule("MaxUnpool")
def _unpool(node: Node) -> Results:
    """Of any number of dimensions of space. A larger output than the windows say has zeros behind."""
    x, rank = node.x(), node.x().ndim - 2
    window, strides, pads = (
        list(node.attributes.get(name, usual))
        for name, usual in (("kernel_shape", ()), ("strides", (1,) * rank), ("pads", (0,) * 2 * rank))
    )
    if rank < 1 or not len(window) == len(strides) == rank or len(pads) != 2 * rank or node.shape(1) != x.shape:
        raise NotConvertible(
            f"its windows are {window}, with strides of {strides} and pads of {pads}, for an input of {list(x.shape)}"
        )
    rows = zip(x.shape[2:], window, strides, pads[:rank], pads[rank:], strict=True)
    space = [(n - 1) * stride + k - first - last for n, k, stride, first, last in rows]
    if any(n < 1 for n in space):
        raise NotConvertible(f"its windows make the sizes {space}")
    flat, places = (one.reshape(*x.shape[:2], math.prod(x.shape[2:]), 1) for one in (x, node.x(1).view(np.uint64)))
    found = tvmdml.max_unpooling(flat, places, output_sizes=(*x.shape[:2], math.prod(space), 1)).reshape(*x.shape[:2], *space)
    more = [n - m for n, m in zip(node.integers(2) if node.has(2) else found.shape, found.shape, strict=True)]
    if any(n < 0 for n in more):
        raise NotConvertible(f"its output_shape is {node.integers(2)}, and its windows make {list(found.shape)}")
    return tvmdml.padding(found, start_padding=[0] * found.ndim, end_padding=more) if any(more) else found


@rule("CenterCropPad")
def _centered(node: Node) -> Results:
    """Dimensions are cut or padded with 0 at both sides, by one more behind if the number is odd."""
    x, sizes = node.x(), node.integers(1)
    axes = [axis_of(n, x.ndim) for n in node.attributes.get("axes", range(x.ndim))]
    if len(sizes) != len(axes) or len(set(axes)) != len(axes) or any(n < 1 for n in sizes):
        raise NotConvertible(f"its sizes are {sizes}, for the axes {axes}")
    starts, ends = [0] * x.ndim, [0] * x.ndim
    for axis, size in zip(axes, sizes, strict=True):
        more = size - x.shape[axis]
        if more < 0:
            x = x[along(axis, slice(-more // 2, -more // 2 + size))]
        else:
            starts[axis], ends[axis] = more // 2, more - more // 2
    return tvmdml.padding(x, start_padding=starts, end_padding=ends) if any(starts) or any(ends) else x
