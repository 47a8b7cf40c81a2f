"""Writing TensorIR: TVM's IR builder, loaded when the first kernel is built, and the few forms that kernels share.

Used as ``from tvmdml import tensorir as T``; a name that is not defined here is TVM's own (``T.serial``, ``T.trunc`` …).
Kernels are built by calling the builder, not parsed from source: 1 ms instead of 20 to 44.

Every kernel is a flat function: pointers to elements first, then 64-bit integers. Tensors arrive as one-dimensional
buffers that are aligned to one element, as NumPy's memory is, and each index is computed from sizes and strides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmdml import _imports

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from tvmdml.operators import Operator

Each = Callable[[int], AbstractContextManager[Any]]
"""How a target runs independent items: ``with each(n) as i:`` states that the items 0 to n - 1 may run in any order, at once."""

# What TVM's CPU code generator keeps in registers or on the stack. (Its "local" calls for a workspace from the runtime.)
_REGISTERS = "global"
# Buffers carry no length: an index is right by construction, and the launcher has checked the memory behind it.
_UNBOUNDED = 1 << 48


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # Python looking at the module
        raise AttributeError(name)
    _imports.tvm()
    from tvm.tirx.script import builder

    return getattr(builder, name)


class Function:
    """A kernel while it is written. ``with tensorir.function() as f:`` … ``f.result()``."""

    def __init__(self) -> None:
        _imports.tvm()
        from tvm.script.ir_builder import IRBuilder
        from tvm.tirx.script import builder

        self._builder = IRBuilder()
        self._t = builder

    def buffer(self, name: str, dtype: str) -> Any:
        """The next parameter: a pointer to elements of ``dtype``."""
        t = self._t
        pointer = t.arg(name, t.handle())
        return t.match_buffer(pointer, (t.int64(_UNBOUNDED),), dtype, align=np.dtype(dtype).itemsize)

    def scalar(self, name: str) -> Any:
        """The next parameter: a 64-bit integer."""
        return self._t.arg(name, self._t.int64())

    def scalars(self, name: str, count: int) -> list[Any]:
        """The next ``count`` parameters: 64-bit integers."""
        return [self.scalar(f"{name}{i}") for i in range(count)]

    def tensors(self, desc: Operator, in_place: bool = False) -> dict[str, Any]:
        """The next parameters: a buffer for each tensor that an operator has, by name, in field order.

        In place, the output's buffer is the input's too: two that are the same would break the promise that none overlap.
        """
        if in_place:
            (source, _), (result, tensor) = desc.tensors()
            assert tensor is not None
            buffer = self.buffer(result, tensor.data_type.tvm)
            return {source: buffer, result: buffer}
        return {name: self.buffer(name, tensor.data_type.tvm) for name, tensor in desc.tensors() if tensor is not None}

    def result(self) -> PrimFunc:
        """The finished function."""
        return self._builder.get()


@contextmanager
def function() -> Iterator[Function]:
    """A new kernel; no two of its buffers overlap."""
    f = Function()
    with f._builder, f._t.prim_func(s_tir=True):
        f._t.func_name("main")
        f._t.func_attr({"tirx.noalias": True})
        yield f


class Variable:
    """A local variable: a register that loops may change. ``v.value`` reads it, ``v.set(x)`` writes it."""

    def __init__(self, dtype: str, initial: Any = None) -> None:
        t = _builder()
        self._buffer = t.alloc_buffer((1,), dtype, scope=_REGISTERS)
        if initial is not None:
            self.set(initial)

    @property
    def value(self) -> Any:
        """What it holds."""
        return self._buffer[0]

    def set(self, value: Any) -> None:
        """Write to it."""
        _builder().buffer_store(self._buffer, value, [0])


def local(dtype: str, size: int) -> Any:
    """A small array of the calling thread's own, on the stack."""
    return _builder().alloc_buffer((size,), dtype, scope=_REGISTERS)


def store(buffer: Any, index: Any, value: Any) -> None:
    """``buffer[index] = value``; ``index`` may be a list, for a buffer of several dimensions."""
    _builder().buffer_store(buffer, value, index if isinstance(index, list) else [index])


@contextmanager
def when(condition: Any) -> Iterator[None]:
    """The statements run where the condition holds."""
    t = _builder()
    with t.If(condition), t.Then():
        yield


def either(condition: Any, then: Any, otherwise: Any) -> None:
    """``then()`` writes one branch and ``otherwise()`` the other."""
    t = _builder()
    with t.If(condition):
        with t.Then():
            then()
        with t.Else():
            otherwise()


def loop(extent: Any, parallel: bool = False) -> Any:
    """Run the statements for each index from 0 up to the extent; entering it gives the index."""
    t = _builder()
    return (t.parallel if parallel else t.serial)(i64(0), extent)


def loop_while(condition: Any) -> Any:
    """A loop for as long as the condition holds."""
    return _builder().While(condition)


def let(value: Any) -> Any:
    """The value, computed once and named."""
    return _builder().bind(value)


def hold(value: Any) -> Any:
    """The value, computed once, as a variable that TVM's simplifier cannot see through.

    For what is made of several selects, minima or maxima: each of them doubles the cases that the simplifier goes through.
    """
    many = lanes(value)
    dtype = str(value.ty.dtype)
    if many == 1:
        return Variable(dtype, value).value
    held = local(dtype.rpartition("x")[0], many)
    whole = run(i64(0), many)
    store(held, whole, value)
    return held[whole]


def i64(value: int) -> Any:
    """A 64-bit integer constant: what every index is made of."""
    return _builder().int64(value)


def const(value: int | float, dtype: str) -> Any:
    """A constant of a data type."""
    _imports.tvm()
    from tvm import tirx

    return tirx.const(value, dtype)


def lanes(value: Any) -> int:
    """How many lanes a value has: 1, but for a vector."""
    count: int = value.ty.dtype.lanes
    return count


def run(start: Any, count: int) -> Any:
    """The index of ``count`` neighbours: ``buffer[run(i, 16)]`` is a vector of 16."""
    return _builder().ramp(start, i64(1), count)


def splat(value: Any, count: int) -> Any:
    """A vector of ``count`` times the value."""
    return _builder().Broadcast(value, count)


def Shuffle(vectors: list[Any], indices: list[int]) -> Any:  # noqa: N802 - as TVM spells its expressions
    """Lanes picked from vectors that are laid end to end."""
    _imports.tvm()
    from tvm import tirx

    return tirx.Shuffle(vectors, indices)


def word(value: int, bits: int) -> Any:
    """An unsigned constant of ``bits`` bits; -1 is all ones. (TVM makes 64-bit ones only up to 2**63.)"""
    value &= (1 << bits) - 1
    if value >> 63:
        return _builder().reinterpret(f"uint{bits}", i64(value - (1 << 64)))
    return const(value, f"uint{bits}")


def dot(indices: Sequence[Any], strides: Sequence[Any]) -> Any:
    """The offset of an element: the sum of index times stride."""
    total: Any = i64(0)
    for index, stride in zip(indices, strides, strict=True):
        total = total + index * stride
    return total


def unravel(index: Any, sizes: Sequence[Any]) -> list[Any]:
    """The coordinates of a row-major ``index``; the first is not wrapped."""
    coordinates = []
    rest = let(index)
    for size in reversed(sizes[1:]):
        size = i64(size) if isinstance(size, int) else size
        above = hold(_builder().truncdiv(rest, size))
        coordinates.append(let(rest - above * size))
        rest = above
    return [*reversed([*coordinates, rest])] if sizes else []


def _builder() -> Any:
    from tvm.tirx.script import builder

    return builder
