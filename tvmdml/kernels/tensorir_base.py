"""The words of every kernel: its parameters, variables, statements, constants and indices. ``tensorir`` has all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tvmdml.kernels.open_shapes import Launched, OpenTensor
from tvmdml.system import imports

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from tvmdml.tensors import TensorDesc

# The scope of memory in registers or on the stack. For TVM's CPU code generator this is "global"; its "local" requests a workspace
# from the runtime. On a device, "local" memory belongs to a thread.
registers: ContextVar[str] = ContextVar("registers", default="global")
# The type that an operator's computation counts in.
_index: ContextVar[str] = ContextVar("index", default="int64")
# The launch's integers that have reciprocals in the kernel that is written now, by their nodes.
reciprocals: ContextVar[dict[int, tuple[Any, Any]]] = ContextVar("reciprocals", default={})  # noqa: B039 - it stays empty
_rounds: ContextVar[Rounds | None] = ContextVar("rounds", default=None)
# Buffers have no length: indices are correct by construction, and the launcher has checked the memory.
_UNBOUNDED = 1 << 48
_NOTHING: Mapping[str, str] = MappingProxyType({})


def builder() -> Any:
    """TVM's builder, loaded when the first kernel is built."""
    from tvm.tirx.script import builder

    return builder


class ParameterSource(Protocol):
    """What a kernel's parameters follow from: an operator's descriptor."""

    def tensors(self) -> Iterable[tuple[str, TensorDesc | None]]:
        """Its tensors by name, in field order; ``None`` for an absent one."""


class Function:
    """A kernel under construction. ``with tensorir.function() as f:`` … ``f.result()``."""

    def __init__(self) -> None:
        imports.tvm()
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

    def tensors(
        self,
        desc: ParameterSource,
        shared: Iterable[tuple[str, str]] = (),
        dtype: str = "",
        packed: Mapping[str, str] = _NOTHING,
        scratch: Mapping[str, str] = _NOTHING,
    ) -> dict[str, Any]:
        """Add a buffer parameter for each tensor that an operator has, by name, in field order; then the integers of their shapes.

        An input that shares memory with an output has the output's buffer: two buffers with the same memory would violate the
        no-alias promise. With ``dtype``, elements are read and written as that type. The buffer of a 4-bit tensor has its bytes.
        In place of an input that is ``packed``, the buffer has elements of the type given there. Buffers of ``scratch`` memory, by
        name, with their types, follow the tensors'.
        """
        same = dict(shared)
        present = {name: tensor for name, tensor in desc.tensors() if tensor is not None}
        types = {name: packed.get(name) or dtype or one.data_type.stored.tvm for name, one in present.items()}
        buffers = {name: self.buffer(name, kind) for name, kind in types.items() if name not in same}
        more = {name: self.buffer(name, kind) for name, kind in scratch.items()}
        declared: list[Launched] = []
        for tensor in present.values():
            for integers in tensor.integers if isinstance(tensor, OpenTensor) else ():
                if integers not in declared:
                    integers.declare(lambda name: self.scalar(name, _index.get()))
                    declared.append(integers)
        return {name: buffers[same.get(name, name)] for name in present} | more

    def result(self) -> PrimFunc:
        """The finished function."""
        return self._builder.get()


@contextmanager
def function() -> Iterator[Function]:
    """Start a new kernel; its buffers never overlap."""
    f = Function()
    with begun(f):
        f._t.func_attr({"tirx.noalias": True})
        yield f


@contextmanager
def begun(f: Function) -> Iterator[None]:
    """Statements become those of a new kernel."""
    token = reciprocals.set({})
    try:
        with f._builder, f._t.prim_func(s_tir=True):
            f._t.func_name("main")
            yield
    finally:
        reciprocals.reset(token)


@contextmanager
def on_device() -> Iterator[None]:
    """Kernels written inside are for a device: each of its threads has its own variables."""
    token = registers.set("local")
    try:
        yield
    finally:
        registers.reset(token)


def is_on_device() -> bool:
    """Whether the kernel that is written now is for a device."""
    return registers.get() != "global"


class Variable:
    """A local variable: registers that loops may change. ``v.value`` reads it, ``v.set(x)`` writes it."""

    def __init__(self, dtype: str, initial: Any = None) -> None:
        kind, _, many = dtype.partition("x")
        self._buffer = builder().alloc_buffer((int(many or 1),), kind, scope=registers.get())
        self._at = run(i64(0), int(many)) if many else 0
        if initial is not None:
            self.set(initial)

    @classmethod
    def several(cls, dtype: str, initial: Sequence[Any]) -> list[Variable]:
        """Variables in one array, by whose size a device's compiler is told how many registers a thread needs."""
        if len(initial) == 1:
            return [cls(dtype, initial[0])]
        array, found = local(dtype, len(initial)), []
        for i, value in enumerate(initial):
            one = cls.__new__(cls)
            one._buffer, one._at = array, i
            one.set(value)
            found.append(one)
        return found

    @property
    def value(self) -> Any:
        """The current value."""
        return self._buffer[self._at]

    def set(self, value: Any) -> None:
        """Write to it."""
        builder().buffer_store(self._buffer, value, [self._at])


def view(pointer: Any, dtype: str) -> Any:
    """The memory behind a pointer as a buffer of elements."""
    return builder().decl_buffer((_UNBOUNDED,), dtype, data=pointer, align=np.dtype(dtype).itemsize)


def local(dtype: str, size: int) -> Any:
    """A small array on the calling thread's stack."""
    return builder().alloc_buffer((size,), dtype, scope=registers.get())


def store(buffer: Any, index: Any, value: Any) -> None:
    """``buffer[index] = value``; ``index`` may be a list, for a buffer with several dimensions."""
    builder().buffer_store(buffer, value, index if isinstance(index, list) else [index])


@contextmanager
def when(condition: Any) -> Iterator[None]:
    """Run the statements if the condition holds."""
    t = builder()
    with t.If(condition), t.Then():
        yield


def either(condition: Any, then: Any, otherwise: Any) -> None:
    """An if statement: ``then()`` writes one branch, and ``otherwise()`` the other."""
    t = builder()
    with t.If(condition):
        with t.Then():
            then()
        with t.Else():
            otherwise()


def loop(extent: Any, parallel: bool = False, most: int = 1) -> Any:
    """Run the statements for each index from 0 to the extent, in the extent's type; entering it returns the index.

    Of an extent that is not a constant, ``most`` is its limit, for ``Rounds``.
    """
    t = builder()
    if (rounds := _rounds.get()) is not None:
        return rounds.counted(extent, most)
    if not parallel:
        return t.serial(const(0, type_of(extent)), extent)
    # The extent is the first of the values that the loop uses, so that the thread pool finds it: with one round, the caller works
    # alone. A constant would not be among them, and what is first then is no number.
    own = hold(extent) if isinstance(extent, int) or type(extent).__name__ == "IntImm" else let(extent)
    return t.parallel(const(0, type_of(extent)), own)


class Rounds:
    """Counts how many rounds of loops a thread makes, as far as their extents are known: a driver may have a limit."""

    def __init__(self) -> None:
        self.total = 0
        self._around = 1

    @contextmanager
    def counted(self, extent: Any, most: int = 1) -> Iterator[Any]:
        """A loop, and how often its body runs."""
        outside, self._around = self._around, self._around * int(getattr(extent, "value", most))
        self.total += self._around
        with builder().serial(const(0, type_of(extent)), extent) as at:
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
    """Repeat the statements as long as the condition holds.

    It must not compare floats: a device may take some for 0 in one step and not in another, and never come to the end.
    """
    parts = [condition]
    while parts:
        part = parts.pop()
        inner = [one for name in ("a", "b", "condition") if (one := getattr(part, name, None)) is not None]
        assert not any(type_of(one).startswith(("float", "bfloat")) for one in inner), f"a loop that depends on floats: {condition}"
        parts += inner
    return builder().While(condition)


def let(value: Any) -> Any:
    """The value, computed once and stored under a name."""
    return builder().bind(value)


def hold(value: Any) -> Any:
    """The value, computed once, as a variable that is opaque to TVM's simplifier.

    Use it for expressions with several selects, minima or maxima: each of them doubles the cases that the simplifier examines.
    """
    return Variable(type_of(value), value).value


def i64(value: int) -> Any:
    """A 64-bit integer constant, the type of every index."""
    return builder().int64(value)


def index(value: Any) -> Any:
    """A Python integer as a constant of the type that an operator's computation counts in; an integer of the launch as it is.

    The type is of 64 bits, unless ``counting`` says otherwise.
    """
    return const(value, _index.get()) if isinstance(value, int) else value


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
    imports.tvm()
    from tvm import tirx

    return tirx.const(value, dtype)


def type_of(value: Any) -> str:
    """The data type of a value: ``int32``, ``float16x4``."""
    return "int64" if isinstance(value, int) else str(value.ty.dtype)


def lanes(value: Any) -> int:
    """The number of lanes of a value: 1 for a scalar."""
    return value.ty.dtype.lanes


def run(start: Any, count: int) -> Any:
    """The index of ``count`` contiguous elements: ``buffer[run(i, 16)]`` is a vector of 16; of one, the index itself."""
    if count == 1:
        return start
    return builder().ramp(start, const(1, type_of(start)), count)


def multiple(value: Any, of: int) -> Any:
    """A value that is known to be a multiple of a power of two, in a form that code generators recognize."""
    return value if of == 1 else value & const(-of, type_of(value))


def splat(value: Any, count: int) -> Any:
    """A vector with the value in each of ``count`` lanes; of one, the value itself."""
    if count == 1:
        return value
    return builder().Broadcast(value, count)


def Shuffle(vectors: list[Any], indices: list[int]) -> Any:  # noqa: N802 - named as TVM's expression
    """Lanes selected from concatenated vectors."""
    imports.tvm()
    from tvm import tirx

    return tirx.Shuffle(vectors, indices)


def word(value: int, bits: int) -> Any:
    """An unsigned constant of ``bits`` bits; -1 means all bits set. (TVM's 64-bit constants only go up to 2**63.)"""
    value &= (1 << bits) - 1
    if value >> 63:
        return builder().reinterpret(f"uint{bits}", i64(value - (1 << 64)))
    return const(value, f"uint{bits}")


def word_as(value: int, dtype: str) -> Any:
    """A constant of an integer type with the low bits of a number."""
    bits = int(dtype.partition("int")[2])
    if dtype.startswith("u"):
        return word(value, bits)
    value &= (1 << bits) - 1
    return const(value - (value >> (bits - 1) << bits), dtype)


def constant(value: Any) -> int | None:
    """The number that an integer constant is, or each lane of it; ``None`` of every other value."""
    one = value.value if type(value).__name__ == "Broadcast" else value
    return int(one.value) if type(one).__name__ == "IntImm" else None


def dot(indices: Sequence[Any], strides: Sequence[Any]) -> Any:
    """The offset of an element: the sum of index times stride."""
    total: Any = None
    for position, stride in zip(indices, strides, strict=True):
        total = position * stride if total is None else total + position * stride
    return index(0) if total is None else total
