"""Helpers to write TensorIR: TVM's IR builder, loaded when the first kernel is built, and constructs that kernels share.

Use it as ``from tvmdml import tensorir as T``; a name that is not defined here is TVM's own (``T.serial``, ``T.trunc`` …).
Kernels are built by calls to the builder, not parsed from source: 1 ms instead of 20 to 44.

Every kernel is a flat function: pointers to elements first, then 64-bit integers. Tensors are one-dimensional buffers with the
alignment of one element, as in NumPy, and each index is computed from sizes and strides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmdml import _imports

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from tvmdml.operators import Operator

Each = Callable[[int], AbstractContextManager[Any]]
"""How a target runs independent items: ``with each(n) as i:`` declares that items 0 to n - 1 may run in any order, in parallel."""

# The scope of memory in registers or on the stack. For TVM's CPU code generator this is "global"; its "local" requests a workspace
# from the runtime. On a device, "local" memory belongs to a thread.
_registers: ContextVar[str] = ContextVar("registers", default="global")
# The type that an operator's computation counts in.
_index: ContextVar[str] = ContextVar("index", default="int64")
_rounds: ContextVar[Rounds | None] = ContextVar("rounds", default=None)
# Buffers have no length: indices are correct by construction, and the launcher has checked the memory.
_UNBOUNDED = 1 << 48


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # Python inspects the module
        raise AttributeError(name)
    _imports.tvm()
    from tvm.tirx.script import builder

    return getattr(builder, name)


class Function:
    """A kernel under construction. ``with tensorir.function() as f:`` … ``f.result()``."""

    def __init__(self) -> None:
        _imports.tvm()
        from tvm.script.ir_builder import IRBuilder
        from tvm.tirx.script import builder

        self._builder = IRBuilder()
        self._t = builder

    def buffer(self, name: str, dtype: str) -> Any:
        """Add a parameter: a pointer to elements of ``dtype``."""
        t = self._t
        pointer = t.arg(name, t.handle())
        found = t.match_buffer(pointer, (t.int64(_UNBOUNDED),), dtype, align=np.dtype(dtype).itemsize)
        return self._builder.name(name, found)

    def scalar(self, name: str, dtype: str = "int64") -> Any:
        """Add a parameter: an integer of 64 bits, or of fewer in kernels for devices that count in fewer bits."""
        return self._t.arg(name, getattr(self._t, dtype)())

    def scalars(self, name: str, count: int, dtype: str = "int64") -> list[Any]:
        """Add ``count`` integer parameters."""
        return [self.scalar(f"{name}{i}", dtype) for i in range(count)]

    def tensors(self, desc: Operator, in_place: bool = False) -> dict[str, Any]:
        """Add a buffer parameter for each tensor that an operator has, by name, in field order.

        In place, the output's buffer is the input's: two buffers with the same memory would violate the no-alias promise.
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
    """Start a new kernel; its buffers never overlap."""
    f = Function()
    with f._builder, f._t.prim_func(s_tir=True):
        f._t.func_name("main")
        f._t.func_attr({"tirx.noalias": True})
        yield f


class Variable:
    """A local variable: a register that loops may change. ``v.value`` reads it, ``v.set(x)`` writes it."""

    def __init__(self, dtype: str, initial: Any = None) -> None:
        t = _builder()
        self._buffer = t.alloc_buffer((1,), dtype, scope=_registers.get())
        if initial is not None:
            self.set(initial)

    @property
    def value(self) -> Any:
        """The current value."""
        return self._buffer[0]

    def set(self, value: Any) -> None:
        """Write to it."""
        _builder().buffer_store(self._buffer, value, [0])


def local(dtype: str, size: int) -> Any:
    """A small array on the calling thread's stack."""
    return _builder().alloc_buffer((size,), dtype, scope=_registers.get())


def store(buffer: Any, index: Any, value: Any) -> None:
    """``buffer[index] = value``; ``index`` may be a list, for a buffer with several dimensions."""
    _builder().buffer_store(buffer, value, index if isinstance(index, list) else [index])


@contextmanager
def when(condition: Any) -> Iterator[None]:
    """Run the statements if the condition holds."""
    t = _builder()
    with t.If(condition), t.Then():
        yield


def either(condition: Any, then: Any, otherwise: Any) -> None:
    """An if statement: ``then()`` writes one branch, and ``otherwise()`` the other."""
    t = _builder()
    with t.If(condition):
        with t.Then():
            then()
        with t.Else():
            otherwise()


def loop(extent: Any, parallel: bool = False) -> Any:
    """Run the statements for each index from 0 to the extent, in the extent's type; entering it returns the index."""
    t = _builder()
    if (rounds := _rounds.get()) is not None:
        return rounds.counted(extent)
    return (t.parallel if parallel else t.serial)(const(0, type_of(extent)), extent)


class Rounds:
    """Counts how many rounds of loops a thread makes, as far as their extents are constants: a driver may have a limit."""

    def __init__(self) -> None:
        self.total = 0
        self._around = 1

    @contextmanager
    def counted(self, extent: Any) -> Iterator[Any]:
        """A loop, and how often its body runs."""
        outside, self._around = self._around, self._around * int(getattr(extent, "value", 1))
        self.total += self._around
        with _builder().serial(const(0, type_of(extent)), extent) as at:
            yield at
        self._around = outside


@contextmanager
def rounds_counted() -> Iterator[Rounds]:
    """The rounds of the loops that are written meanwhile by ``loop``, each once for every round of the loops around it."""
    rounds = Rounds()
    token = _rounds.set(rounds)
    try:
        yield rounds
    finally:
        _rounds.reset(token)


def loop_while(condition: Any) -> Any:
    """Repeat the statements as long as the condition holds."""
    return _builder().While(condition)


def let(value: Any) -> Any:
    """The value, computed once and stored under a name."""
    return _builder().bind(value)


def hold(value: Any) -> Any:
    """The value, computed once, as a variable that is opaque to TVM's simplifier.

    Use it for expressions with several selects, minima or maxima: each of them doubles the cases that the simplifier examines.
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
    """A 64-bit integer constant, the type of every index."""
    return _builder().int64(value)


def index(value: int) -> Any:
    """An integer constant of the type that an operator's computation counts in: 64 bits, unless ``counting`` says otherwise."""
    return const(value, _index.get())


@contextmanager
def counting(dtype: str) -> Iterator[None]:
    """Computations that are written meanwhile count in this type."""
    token = _index.set(dtype)
    try:
        yield
    finally:
        _index.reset(token)


def const(value: int | float, dtype: str) -> Any:
    """A constant of a data type."""
    _imports.tvm()
    from tvm import tirx

    return tirx.const(value, dtype)


def type_of(value: Any) -> str:
    """The data type of a value: ``int32``, ``float16x4``."""
    return "int64" if isinstance(value, int) else str(value.ty.dtype)


def lanes(value: Any) -> int:
    """The number of lanes of a value: 1 for a scalar."""
    count: int = value.ty.dtype.lanes
    return count


def run(start: Any, count: int) -> Any:
    """The index of ``count`` contiguous elements: ``buffer[run(i, 16)]`` is a vector of 16."""
    return _builder().ramp(start, const(1, type_of(start)), count)


def rounded(product: Any) -> Any:
    """A product (or quotient) as it is after its own rounding: a sum with it is not contracted to a fused multiply-add.

    TVM has LLVM contract ``a * b + c`` wherever the processor has such an instruction, so results would depend on the processor.
    The fence prevents that. It costs no instruction, but a loop of scalars that has one is not vectorised by LLVM: kernels write
    vectors. Devices do not contract: CUDA is compiled with ``--fmad=false``, SPIR-V is decorated with ``NoContraction``.
    """
    if _registers.get() != "global":
        return product
    return _builder().call_llvm_pure_intrin(type_of(product), "llvm.arithmetic.fence", product)


def multiple(value: Any, of: int) -> Any:
    """A value that is known to be a multiple of a power of two, in a form that code generators recognize."""
    return value if of == 1 else value & const(-of, type_of(value))


def splat(value: Any, count: int) -> Any:
    """A vector with the value in each of ``count`` lanes."""
    return _builder().Broadcast(value, count)


def Shuffle(vectors: list[Any], indices: list[int]) -> Any:  # noqa: N802 - named as TVM's expression
    """Lanes selected from concatenated vectors."""
    _imports.tvm()
    from tvm import tirx

    return tirx.Shuffle(vectors, indices)


def word(value: int, bits: int) -> Any:
    """An unsigned constant of ``bits`` bits; -1 means all bits set. (TVM's 64-bit constants only go up to 2**63.)"""
    value &= (1 << bits) - 1
    if value >> 63:
        return _builder().reinterpret(f"uint{bits}", i64(value - (1 << 64)))
    return const(value, f"uint{bits}")


def dot(indices: Sequence[Any], strides: Sequence[Any]) -> Any:
    """The offset of an element: the sum of index times stride."""
    total: Any = None
    for position, stride in zip(indices, strides, strict=True):
        total = position * stride if total is None else total + position * stride
    return index(0) if total is None else total


def unravel(index: Any, sizes: Sequence[Any]) -> list[Any]:
    """The coordinates of a row-major ``index``; the first coordinate is not wrapped."""
    coordinates = []
    rest = let(index)
    dtype = type_of(index)
    for size in reversed(sizes[1:]):
        size = const(size, dtype) if isinstance(size, int) else size
        above = hold(_builder().truncdiv(rest, size))
        coordinates.append(let(rest - above * size))
        rest = above
    return [*reversed([*coordinates, rest])] if sizes else []


# -- Devices: many groups of threads ------------------------------------------------------------------------------


@contextmanager
def on_device() -> Iterator[None]:
    """Kernels written inside are for a device: each of its threads has its own variables."""
    token = _registers.set("local")
    try:
        yield
    finally:
        _registers.reset(token)


@contextmanager
def launch(groups: Any, threads: int) -> Iterator[tuple[Any, Any]]:
    """One launch: the statements run in every thread of every group, and see what the function's earlier launches wrote.

    Returns the group's and the thread's index as 32-bit integers. ``groups`` may be computed from the function's integers.
    """
    t = _builder()
    extent = groups if isinstance(groups, int) or type_of(groups) == "int32" else t.cast(groups, "int32")
    with t.launch_thread("blockIdx.x", extent) as group, t.launch_thread("threadIdx.x", threads) as thread:
        yield group, thread


def shared(dtype: str, size: int) -> Any:
    """An array in the shared memory of a group."""
    return _builder().alloc_buffer((size,), dtype, scope="shared")


def barrier() -> None:
    """A barrier for the group: writes before it are visible to all its threads after it. All of them must reach it."""
    t = _builder()
    t.evaluate(t.tvm_storage_sync("shared"))


def subgroup_barrier() -> None:
    """A barrier for the threads of a subgroup. All of them must reach it."""
    t = _builder()
    t.evaluate(t.tvm_storage_sync("warp"))


def atomic(operation: str, buffer: Any, index: Any, *values: Any) -> Any:
    """An atomic operation; returns the previous value.

    It is ``add``, ``min``, ``max``, ``and``, ``or``, ``xor``, ``exchange``, ``compare_exchange`` or ``load``. The result must be
    used or bound (``let``); use ``atomic_do`` if it is not needed.
    """
    t = _builder()
    return t.call_extern(str(buffer.dtype), f"atomic_{operation}", t.address_of(buffer[index]), *values)


def atomic_do(operation: str, buffer: Any, index: Any, *values: Any) -> None:
    """``atomic`` as a statement; also supports ``store``."""
    _builder().evaluate(atomic(operation, buffer, index, *values))


def subgroup(operation: str, dtype: str, *values: Any) -> Any:
    """An operation over the threads of a subgroup: ``ballot``, ``exclusive_add``, ``shuffle_xor``, ``size`` …"""
    return _builder().call_extern(dtype, f"subgroup_{operation}", *values)


def _builder() -> Any:
    from tvm.tirx.script import builder

    return builder
