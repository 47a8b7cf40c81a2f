"""Pointwise operators that follow in the kernels of others, and what must be true of that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from support import Array, seeded

import tvmdml
from tvmdml import Operator, TensorDesc
from tvmdml.compiler import CompiledOperator
from tvmdml.library import lines
from tvmdml.operators._contract import Role
from tvmdml.operators._following import follow
from tvmdml.operators._pointwise_fused import Result
from tvmdml.operators._trial import OperatorTrial
from tvmdml.proof.conformance import references
from tvmdml.targets import Target
from tvmdml.tensors.arrays.guarded import GuardedTensor


def by_channel(y: TensorDesc) -> TensorDesc:
    return TensorDesc(y.data_type, y.sizes, [int(i == 1) for i in range(y.rank)])


Follower = tuple[list[Operator], list[list[Any]], list[TensorDesc]]


def residual(y: TensorDesc) -> Follower:
    """relu(residual + y)."""
    return [tvmdml.ElementWiseAdd.of(y, y), tvmdml.ActivationRelu.of(y)], [[1, 0], [Result(0)]], [y]


def gate(y: TensorDesc) -> Follower:
    """y * sigmoid(y)."""
    return [tvmdml.ActivationSigmoid.of(y), tvmdml.ElementWiseMultiply.of(y, y)], [[0], [0, Result(0)]], []


def scaled(y: TensorDesc) -> Follower:
    """clip(y * scale of the channel + a number) less what lies as the output, and that twice."""
    c, one = by_channel(y), TensorDesc(y.data_type, y.sizes, (0,) * y.rank)
    nodes = [
        tvmdml.ElementWiseMultiply.of(y, c), tvmdml.ElementWiseAdd.of(y, one), tvmdml.ElementWiseClip.of(y, min=-1.5, max=2.5),
        tvmdml.ElementWiseSubtract.of(y, y), tvmdml.ElementWiseAdd.of(y, y),
    ]  # fmt: skip
    return nodes, [[0, 1], [Result(0), 2], [Result(1)], [Result(2), 3], [Result(3), Result(3)]], [c, one, y]


FOLLOWERS = (residual, gate, scaled)


def ordinary(rng: np.random.Generator, one: TensorDesc) -> Array:
    """Ordinary numbers; a single one, such as a scale, is not 0."""
    if not one.data_type.is_float:
        return rng.integers(0, 100, one.sizes).astype(one.data_type.numpy)
    found = rng.standard_normal(one.sizes)
    return (np.abs(found) / 4 + 0.25 if one.element_count == 1 else found).astype(one.data_type.numpy)


def agrees(head: Any, follower: Follower, target: Target, seed: object = 0, bits: bool = True) -> Any:
    """The kernel's results are the bits of the head's and then of each node's on the CPU; elsewhere near the reference."""
    nodes, wiring, others = follower
    # The nodes' results are written as the head's.
    nodes = [_like(node, head.output_tensor) for node in nodes]
    desc = follow(head, nodes, wiring)
    names = [one for _, one in head.tensors(Role.INPUT) if one is not None]
    values = [ordinary(seeded(seed, i), one) for i, one in enumerate((*names, *others))]
    arrays = [GuardedTensor(one).holding(x).array for one, x in zip((*names, *others), values, strict=True)]
    expected = None
    if bits:
        made: dict[Any, Array] = {0: GuardedTensor(head.output_tensor).array}
        CompiledOperator(head, target)(*_with_absent(head, arrays[: len(names)]), made[0])
        made |= {i + 1: array for i, array in enumerate(arrays[len(names) :])}
        for i, (node, some) in enumerate(zip(nodes, wiring, strict=True)):
            made[Result(i)] = GuardedTensor(node.outputs()[0]).array
            CompiledOperator(node, target)(*(made[one] for one in some), made[Result(i)])
        expected = (made[Result(len(nodes) - 1)],)
    taken = iter(arrays)
    problem = references.tried(desc, target, OperatorTrial(desc, (), lambda *_: next(taken), expected))
    assert not problem, f"{problem}\n{lines.toml(lines.of(desc))}"
    return desc


def _with_absent(head: Any, arrays: list[Array]) -> Iterator[Any]:
    given = iter(arrays)
    return (None if one is None else next(given) for _, one in head.tensors(Role.INPUT))


def _like(node: Any, y: TensorDesc) -> Any:
    """The node, whose packed tensors lie as the head's result."""
    return node.with_tensors(lambda one: TensorDesc(one.data_type, y.sizes, y.strides) if one.strides is None else one)


def as_floats(y: TensorDesc) -> Follower:
    """Integers as floats, times a number, plus what lies as the output; as float16."""
    floats, one = TensorDesc("float32", y.sizes), TensorDesc("float32", y.sizes, (0,) * y.rank)
    nodes = [
        tvmdml.Cast.of(y, output_tensor="float32"),
        tvmdml.ElementWiseMultiply.of(floats, one),
        tvmdml.ElementWiseAdd.of(floats, floats),
        tvmdml.Cast.of(floats, output_tensor="float16"),
    ]
    return nodes, [[0], [Result(0), 1], [Result(1), 2], [Result(2)]], [one, floats]


def as_bytes(y: TensorDesc) -> Follower:
    """Floats, quantized."""
    one, zero = (TensorDesc(dtype, y.sizes, (0,) * y.rank) for dtype in (y.data_type, "int8"))
    nodes: list[Operator] = [tvmdml.ActivationRelu.of(y), tvmdml.ElementWiseQuantizeLinear.of(y, one, zero)]
    return nodes, [[0], [Result(0), 1, 2]], [one, zero]
