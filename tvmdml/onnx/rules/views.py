"""Operators that only say how memory is read: they are views, and cost nothing until a kernel needs elements without gaps."""

from __future__ import annotations

import math

import numpy as np

import tvmdml
from tvmdml.graph import Expression
from tvmdml.onnx import described
from tvmdml.onnx.descriptors import NotConvertible
from tvmdml.onnx.node import Node, Results, along, axis_of, broadcast_sizes, reshaped, rule
from tvmdml.onnx.values import Value


@rule("Identity", "MemcpyFromHost", "MemcpyToHost")
def _identity(node: Node) -> Results:
    return node.value(0)


@rule("Reshape", "com.microsoft.Reshape")
def _reshape(node: Node) -> Results:
    sizes, x = node.integers(1), node.x()
    if not node.integer("allowzero", 0):
        if any(n == 0 and i >= x.ndim for i, n in enumerate(sizes)):
            raise NotConvertible(f"its shape is {sizes}, for {x.ndim} dimensions")
        sizes = [x.shape[i] if n == 0 else n for i, n in enumerate(sizes)]
    if sizes.count(-1) == 1:
        rest = -math.prod(sizes)
        sizes = [(x.size // rest if rest else 0) if n == -1 else n for n in sizes]
    return reshaped(x, sizes)


@rule("Flatten")
def _flatten(node: Node) -> Results:
    x = node.x()
    axis = node.integer("axis", 1)
    if not -x.ndim <= axis <= x.ndim:
        raise NotConvertible(f"its axis is {axis}, for {x.ndim} dimensions")
    axis += x.ndim if axis < 0 else 0
    return reshaped(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@rule("Squeeze")
def _squeeze(node: Node) -> Results:
    x = node.x()
    axes = {axis_of(n, x.ndim) for n in node.integers(1)} if node.has(1) else {i for i, n in enumerate(x.shape) if n == 1}
    return reshaped(x, [n for i, n in enumerate(x.shape) if i not in axes])


@rule("Unsqueeze")
def _unsqueeze(node: Node) -> Results:
    x, axes = node.x(), node.integers(1)
    rank = x.ndim + len(axes)
    places = {axis_of(n, rank) for n in axes}
    if len(places) != len(axes):
        raise NotConvertible(f"its axes are {axes}")
    rest = iter(x.shape)
    return reshaped(x, [1 if i in places else next(rest) for i in range(rank)])


@rule("Transpose")
def _transpose(node: Node) -> Results:
    x = node.x()
    order = node.attributes.get("perm", list(range(x.ndim))[::-1])
    if sorted(order) != list(range(x.ndim)):
        raise NotConvertible(f"its perm is {order}, for {x.ndim} dimensions")
    return x.transpose(*order)


@rule("Expand")
def _expand(node: Node) -> Results:
    x = node.x()
    return x.broadcast(broadcast_sizes(x.shape, node.integers(1)))


@rule("Slice")
def _slice(node: Node) -> Results:
    steps = node.integers(4) if node.has(4) else []
    x, starts, ends = node.x(), node.integers(1), node.integers(2)
    axes = node.integers(3) if node.has(3) else list(range(len(starts)))
    if not len(starts) == len(ends) == len(axes) == len(steps or starts):
        raise NotConvertible("its starts, ends, axes and steps differ in number")
    if len({axis_of(axis, x.ndim) for axis in axes}) < len(axes):
        raise NotConvertible(f"its axes {axes} name one twice")
    if min(steps, default=1) < 1:
        return described.convert(node)
    keys = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps or [1] * len(starts), strict=True):
        n = x.shape[axis_of(axis, x.ndim)]
        keys[axis_of(axis, x.ndim)] = slice(start, end, min(step, max(n, 1)))  # a view's steps have 32 bits
    return x[tuple(keys)]


def parted(x: Expression, axis: int, sizes: list[int]) -> list[Expression]:
    """Views of the parts of a tensor along an axis."""
    if sum(sizes) != x.shape[axis] or any(n < 0 for n in sizes):
        raise NotConvertible(f"its parts have the sizes {sizes}, which are not {x.shape[axis]} together")
    found, begin = [], 0
    for n in sizes:
        found.append(x[along(axis, slice(begin, begin + n))])
        begin += n
    return found


@rule("Split")
def _split(node: Node) -> Results:
    x = node.x()
    axis = node.axis(x.ndim)
    count = len(node.outputs)
    most = -(-x.shape[axis] // node.integer("num_outputs", count))
    sizes = node.integers(1) if node.has(1) else [max(0, min(most, x.shape[axis] - i * most)) for i in range(count)]
    return parted(x, axis, sizes)


@rule("Concat")
def _concat(node: Node) -> Results:
    parts = [node.x(i) for i in range(len(node.inputs))]
    axis = node.axis(parts[0].ndim)
    parts = [one for one in parts if one.shape[axis]]
    return parts[0] if len(parts) == 1 else tvmdml.join(parts, axis=axis)


@rule("SpaceToDepth", "DepthToSpace")
def _blocks(node: Node) -> Results:
    """Blocks by views: one copy, for tensors of every type."""
    x, block = node.x(), node.integer("blocksize", 0)
    if x.ndim != 4 or block < 1:
        raise NotConvertible(f"its input has {x.ndim} dimensions, and its blocksize is {block}")
    n, c, h, w = x.shape
    if node.kind == "SpaceToDepth":
        order = (0, 3, 5, 1, 2, 4) if node.text("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
        split = reshaped(x, (n, c, h // block, block, w // block, block)).transpose(*order)
        return split.reshape(n, c * block * block, h // block, w // block)
    if node.text("mode", "DCR") == "DCR":
        split = reshaped(x, (n, block, block, c // block**2, h, w)).transpose(0, 3, 4, 1, 5, 2)
    else:
        split = reshaped(x, (n, c // block**2, block, block, h, w)).transpose(0, 1, 4, 2, 5, 3)
    return split.reshape(n, c // block**2, h * block, w * block)


@rule("Tile")
def _tile(node: Node) -> Results:
    x, repeats = node.x(), node.integers(1)
    if len(repeats) != x.ndim or any(n < 0 for n in repeats):
        raise NotConvertible(f"its repeats are {repeats}, for {x.ndim} dimensions")
    wide = [(1, n) if k > 1 else (n,) for n, k in zip(x.shape, repeats, strict=True)]
    if sum(map(len, wide)) > 8:
        return described.convert(node)
    from_one = reshaped(x, [n for one in wide for n in one])
    shape = [m for n, k in zip(x.shape, repeats, strict=True) for m in ((k, n) if k > 1 else (n,))]
    return reshaped(from_one.broadcast(shape), [n * k for n, k in zip(x.shape, repeats, strict=True)])


@rule("EyeLike")
def _eye(node: Node) -> Results:
    result = node.results[0]
    if result.dtype is None or len(node.shape()) != 2:
        return described.convert(node)
    return Value.known(np.eye(node.shape()[0], node.shape()[1], node.integer("k", 0), result.dtype))
