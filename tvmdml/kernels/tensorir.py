"""Helpers to write TensorIR: TVM's IR builder, loaded when the first kernel is built, and constructs that kernels share.

Use it as ``from tvmdml.kernels import tensorir as T``; a name that is not defined here is TVM's own (``T.serial``, ``T.trunc`` …).
Kernels are built by calls to the builder, not parsed from source: 1 ms instead of 20 to 44.

Every kernel is a flat function: pointers to elements first, then 64-bit integers. Tensors are one-dimensional buffers with the
alignment of one element, as in NumPy, and each index is computed from sizes and strides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tvmdml import _imports
from tvmdml.kernels.open_shapes import Launched, OpenTensor, Steps

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from tvmdml.tensors import TensorDesc

Each = Callable[[Any], AbstractContextManager[Any]]
"""How a target runs independent items: ``with each(n) as i:`` declares that items 0 to n - 1 may run in any order, in parallel. The
number is a Python integer or an integer of the launch."""

# The scope of memory in registers or on the stack. For TVM's CPU code generator this is "global"; its "local" requests a workspace
# from the runtime. On a device, "local" memory belongs to a thread.
_registers: ContextVar[str] = ContextVar("registers", default="global")
# The type that an operator's computation counts in.
_index: ContextVar[str] = ContextVar("index", default="int64")
# The processor that a kernel is written for, and the LLVM IR that it has imported.
_processor: ContextVar[tuple[Any, set[str]]] = ContextVar("processor")
# The launch's integers that have reciprocals in the kernel that is written now, by their nodes.
_reciprocals: ContextVar[dict[int, tuple[Any, Any]]] = ContextVar("reciprocals", default={})  # noqa: B039 - it stays empty
_rounds: ContextVar[Rounds | None] = ContextVar("rounds", default=None)
# Buffers have no length: indices are correct by construction, and the launcher has checked the memory.
_UNBOUNDED = 1 << 48
_NOTHING: Mapping[str, str] = MappingProxyType({})


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # Python inspects the module
        raise AttributeError(name)
    _imports.tvm()
    from tvm.tirx.script import builder

    return getattr(builder, name)


class Operation(Protocol):
    """What a kernel's parameters follow from: an operator's descriptor."""

    def tensors(self) -> Iterable[tuple[str, TensorDesc | None]]:
        """Its tensors by name, in field order; ``None`` for an absent one."""


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

    def tensors(
        self, desc: Operation, shared: Iterable[tuple[str, str]] = (), dtype: str = "", packed: Mapping[str, str] = _NOTHING
    ) -> dict[str, Any]:
        """Add a buffer parameter for each tensor that an operator has, by name, in field order; then the integers of their shapes.

        An input that shares memory with an output has the output's buffer: two buffers with the same memory would violate the
        no-alias promise. With ``dtype``, elements are read and written as that type. The buffer of a 4-bit tensor has its bytes.
        In place of an input that is ``packed``, the buffer has elements of the type given there.
        """
        same = dict(shared)
        present = {name: tensor for name, tensor in desc.tensors() if tensor is not None}
        types = {name: packed.get(name) or dtype or one.data_type.stored.tvm for name, one in present.items()}
        buffers = {name: self.buffer(name, kind) for name, kind in types.items() if name not in same}
        declared: list[Launched] = []
        for tensor in present.values():
            for integers in tensor.integers if isinstance(tensor, OpenTensor) else ():
                if integers not in declared:
                    integers.declare(lambda name: self.scalar(name, _index.get()))
                    declared.append(integers)
        return {name: buffers[same.get(name, name)] for name in present}

    def result(self) -> PrimFunc:
        """The finished function."""
        return self._builder.get()


@contextmanager
def function() -> Iterator[Function]:
    """Start a new kernel; its buffers never overlap."""
    f = Function()
    token = _reciprocals.set({})
    try:
        with f._builder, f._t.prim_func(s_tir=True):
            f._t.func_name("main")
            f._t.func_attr({"tirx.noalias": True})
            yield f
    finally:
        _reciprocals.reset(token)


class Variable:
    """A local variable: registers that loops may change. ``v.value`` reads it, ``v.set(x)`` writes it."""

    def __init__(self, dtype: str, initial: Any = None) -> None:
        kind, _, many = dtype.partition("x")
        self._buffer = _builder().alloc_buffer((int(many or 1),), kind, scope=_registers.get())
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
        _builder().buffer_store(self._buffer, value, [self._at])


def view(pointer: Any, dtype: str) -> Any:
    """The memory behind a pointer as a buffer of elements."""
    return _builder().decl_buffer((_UNBOUNDED,), dtype, data=pointer, align=np.dtype(dtype).itemsize)


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


def loop(extent: Any, parallel: bool = False, most: int = 1) -> Any:
    """Run the statements for each index from 0 to the extent, in the extent's type; entering it returns the index.

    Of an extent that is not a constant, ``most`` is its limit, for ``Rounds``.
    """
    t = _builder()
    if (rounds := _rounds.get()) is not None:
        return rounds.counted(extent, most)
    return (t.parallel if parallel else t.serial)(const(0, type_of(extent)), extent)


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
    return Variable(type_of(value), value).value


def i64(value: int) -> Any:
    """A 64-bit integer constant, the type of every index."""
    return _builder().int64(value)


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
    """The index of ``count`` contiguous elements: ``buffer[run(i, 16)]`` is a vector of 16; of one, the index itself."""
    if count == 1:
        return start
    return _builder().ramp(start, const(1, type_of(start)), count)


def rounded(product: Any) -> Any:
    """A product (or quotient) as it is after its own rounding: a sum with it is not contracted to a fused multiply-add.

    TVM has LLVM contract ``a * b + c`` wherever the processor has such an instruction, so results would depend on the processor.
    The fence prevents that. It costs no instruction, but a loop of scalars that has one is not vectorised by LLVM: kernels write
    vectors. Devices do not contract: CUDA is compiled with ``--fmad=false``, SPIR-V is decorated with ``NoContraction``.
    """
    if is_on_device():
        return product
    return _builder().call_llvm_pure_intrin(type_of(product), "llvm.arithmetic.fence", product)


@contextmanager
def instructions_of(processor: Any) -> Iterator[None]:
    """Kernels that are written meanwhile are for this processor (``targets.cpu.host.Processor``); ``None`` is any."""
    token = _processor.set((processor, set()))
    try:
        yield
    finally:
        _processor.reset(token)


def has_instructions(feature: str) -> bool:
    """Whether the kernel that is written now is for a processor with a feature, by LLVM's name."""
    processor, _ = _processor.get((None, set()))
    return not is_on_device() and processor is not None and processor.has(feature)


def call_imported(dtype: str, function: str, source: str, *values: Any) -> Any:
    """The result of a function in LLVM IR, which the kernel has from the first such call on."""
    found = Variable(dtype)
    with _imported(source):
        found.set(_builder().call_extern(dtype, function, *values))
    return found.value


def do_imported(function: str, source: str, *values: Any) -> None:
    """Call a function in LLVM IR that has no result."""
    with _imported(source):
        _builder().evaluate(_builder().call_extern("void", function, *values))


@contextmanager
def _imported(source: str) -> Iterator[None]:
    """The statement may call functions of LLVM IR, which the kernel has from the first time on."""
    _, imported = _processor.get((None, set()))
    with nullcontext() if source in imported else _builder().attr(0, "pragma_import_llvm", source):
        yield
    imported.add(source)


def is_on_device() -> bool:
    """Whether the kernel that is written now is for a device."""
    return _registers.get() != "global"


def multiple(value: Any, of: int) -> Any:
    """A value that is known to be a multiple of a power of two, in a form that code generators recognize."""
    return value if of == 1 else value & const(-of, type_of(value))


def splat(value: Any, count: int) -> Any:
    """A vector with the value in each of ``count`` lanes; of one, the value itself."""
    if count == 1:
        return value
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


def unravel(index: Any, sizes: Sequence[Any]) -> list[Any]:
    """The coordinates of a row-major ``index``; the first coordinate is not wrapped."""
    coordinates = []
    rest = let(index)
    dtype = type_of(index)
    for size in reversed(sizes[1:]):
        divisor = const(size, dtype) if isinstance(size, int) else _builder().cast(size, dtype)
        above = hold(_quotient(rest, size, divisor))
        coordinates.append(let(rest - above * divisor))
        rest = above
    return [*reversed([*coordinates, rest])] if sizes else []


def unravel_word(index: Any, sizes: Sequence[Any]) -> list[Any]:
    """The coordinates of a row-major index, as uint32: a tensor has at most 2^32 - 1 elements, and these divide fastest."""
    if type_of(index) == "int64" and all(isinstance(size, int) or hasattr(size, "value") for size in sizes):
        index = hold(index)  # with constant sizes TVM bounds it, by more than a uint32 holds, and then fails
    return unravel(_builder().cast(index, "uint32"), sizes)


def _quotient(number: Any, size: Any, divisor: Any) -> Any:
    """The quotient of an integer that is not negative; of one of 32 bits by the divisor's reciprocal, if the kernel has it."""
    found = _reciprocals.get().get(_handle(size))
    dtype = type_of(number)
    if found is None or dtype not in ("int32", "uint32"):
        return _builder().truncdiv(number, divisor)
    cast, (reciprocal, shift) = _builder().cast, found
    twice = let(cast(number, "uint32") * const(2, "uint32"))
    product = cast(twice, "uint64") * cast(reciprocal, "uint64")
    return cast(cast(product >> const(32, "uint64"), "uint32") >> cast(shift, "uint32"), dtype)


def _handle(value: Any) -> int:
    return 0 if isinstance(value, int) else int(value.__chandle__())


def reciprocal_of(divisor: int) -> tuple[int, int]:
    """A word and a number of bits, by which numbers up to 2^30 are divided, with the quotient rounded down.

    The word is ``2^(31 + bits) / divisor``, rounded up; it is less than ``divisor`` parts of it too large, so that the product with
    twice a number has the right quotient in its bits from ``32 + bits`` on.
    """
    bits = (divisor - 1).bit_length()
    return -(-(1 << (31 + bits)) // divisor), bits


def divides_by(size: Any, reciprocal: Any, shift: Any) -> None:
    """Have ``unravel`` divide by a size, an integer of the launch, by its reciprocal, in the kernel that is written now."""
    _reciprocals.get()[_handle(size)] = reciprocal, shift


_BLOCK = 4096
"""About how many elements are one item on the CPU: short rows are done together, and a long row is divided."""
_MANY = 1 << 16
"""So many elements are worth more than one task, however few items they are."""


@contextmanager
def elements(each: Each, sizes: Sequence[Any], layout: Sequence[Any] = ()) -> Iterator[list[Any]]:
    """Run the statements for the coordinates of each element, in any order, in parallel.

    On a device, an item is an element. On the CPU, it is some rows, or a part of one: coordinates are divided out once and then
    counted up, and the loop over a row can become vectors. With a ``layout`` whose order is known (Python integers, or ``Steps``),
    rows are along its least step: a device's neighbouring threads have neighbours.
    """
    if _registers.get() != "global":
        order = _order(sizes, layout)
        with each(_product(sizes)) as element:
            at = unravel_word(element, [sizes[i] for i in order])
            dtype = type_of(element)
            yield [let(_builder().cast(at[order.index(i)], dtype)) for i in range(len(order))]
        return
    if not sizes:  # one element
        with _rows(each, [1]):
            yield []
        return
    order = _order(sizes, layout)
    with _rows(each, [sizes[i] for i in order]) as at:
        yield [at[order.index(i)] for i in range(len(order))]


def _order(sizes: Sequence[Any], layout: Sequence[Any]) -> list[int]:
    """The dimensions, from the largest step to the least, if that is known."""
    if isinstance(layout, Steps):
        return [*layout.order]
    order = [*range(len(sizes))]
    if len(layout) == len(order) and all(isinstance(step, int) for step in layout):
        order.sort(key=lambda i: -layout[i] if sizes[i] != 1 else -(1 << 62))
    return order


@contextmanager
def _rows(each: Each, sizes: Sequence[Any]) -> Iterator[list[Any]]:
    """Each element, on the CPU."""
    t = _builder()
    count = _product(sizes)
    known = isinstance(count, int)
    *outer, length = [index(size) for size in sizes]
    if known:
        many, inner = _product(sizes[:-1]), sizes[-1]
        at_once, parts = max(_BLOCK // max(inner, 1), 1), max(-(-inner // _BLOCK), 1)
        all_rows, rows, blocks = i64(many), i64(at_once), i64(parts)
        items = -(-many // at_once) * parts
        count = items if count < _MANY else i64(items)  # one that is not Python's is divided among tasks
    else:
        all_rows = let(_product(outer) * i64(1))
        rows = let(t.max(t.truncdiv(i64(_BLOCK), length), i64(1)))
        blocks = let(t.truncdiv(length + i64(_BLOCK - 1), i64(_BLOCK)))
        count = let(t.truncdiv(all_rows + (rows - 1), rows) * blocks)
    with each(count) as item:
        group, block = unravel(item, [None, blocks])
        begin, first = let(group * rows), let(block * i64(_BLOCK))
        row = [Variable("int64", at) for at in unravel(begin, outer)]
        with loop(let(t.min(all_rows - begin, rows))):
            at = [let(one.value) for one in row]
            with loop(let(t.min(length - first, i64(_BLOCK)))) as i:
                yield [*at, first + i]
            count_up(row, outer)


def count_up(coordinates: Sequence[Variable], sizes: Sequence[Any]) -> None:
    """The coordinates of the next row; the first coordinate is not wrapped."""
    if not coordinates:
        return
    last = coordinates[-1]
    last.set(last.value + 1)
    if len(coordinates) > 1:
        with when(last.value >= sizes[-1]):
            last.set(i64(0))
            count_up(coordinates[:-1], sizes[:-1])


def _product(sizes: Sequence[Any]) -> Any:
    total: Any = 1
    for size in sizes:
        total = size * total
    return total


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


def looked_up(columns: Sequence[Sequence[float]], index: Any) -> list[Any]:
    """The elements of tables of eight float32 that are parts of the kernel's code, for each lane of an index of UINT32 below 8.

    In memory, what an index finds is side by side, so that a few loads bring it all.
    """
    width = 1 << (len(columns) - 1).bit_length()
    rows = np.zeros((len(columns[0]), width), "<f4")
    rows[:, : len(columns)] = np.transpose(columns)
    dtype, digits = type_of(index).replace("uint32", "float32"), rows.tobytes().hex()
    return [_builder().call_pure_extern(dtype, "looked_up", digits, width, i, index) for i in range(len(columns))]


# -- Devices with tensor cores, and with copies to shared memory that go on meanwhile -------------------------------


def multiply_tiles(types: tuple[str, str], sums: Any, at: int, a: Sequence[Any], b: Sequence[Any]) -> None:
    """Add the product of two small matrices to sums, which the threads of a subgroup hold together.

    The first factor has 16 rows and the second one 8 columns, of 32 bytes each. Of the first a thread has four words, of the second
    two, as ``load_tiles`` gives them, and of the sums four: two neighbours in row ``lane // 4``, and two in the row 8 after it.
    Products of float16 are summed in float32, in a way that differs between devices; those of bytes in int32, which wraps.
    """
    t, name = _builder(), "_".join(dict.fromkeys(types) if types[0] == "float16" else types)
    t.evaluate(t.call_extern("int32", f"multiply_tiles_{name}", t.address_of(sums[at]), *a, *b))


def load_tiles(words: Any, at: int, source: Any, place: Any, turned: bool = False) -> None:
    """Load four matrices of 8 rows of 16 bytes from shared memory; a thread has a word of row ``lane // 4`` of each.

    Thread ``i`` says where row ``i % 8`` of matrix ``i // 8`` is. With ``turned``, the memory's rows are columns, of 8 elements of
    16 bits.
    """
    t = _builder()
    name = "load_turned_tiles" if turned else "load_tiles"
    t.evaluate(t.call_extern("int32", name, t.address_of(words[at]), t.address_of(source[place])))


class SubgroupMatrix:
    """A small matrix that the threads of a subgroup hold together, each of them parts that nobody knows.

    All of them must reach each of its operations. Products are summed in an order of the device's own.

    Args:
        name: its own in the kernel.
        use: ``a`` or ``b``, a factor, or ``sum``.
        dtype: the type of its elements.
        shape: its rows and columns.
    """

    def __init__(self, name: str, use: str, dtype: str, shape: tuple[int, int]) -> None:
        self._arguments = name, use, dtype, *shape

    def _do(self, operation: str, *arguments: Any) -> None:
        t = _builder()
        t.evaluate(t.call_extern("int32", f"matrix_{operation}", *self._arguments, *arguments))

    def clear(self) -> None:
        """All elements become 0."""
        self._do("clear")

    def load(self, source: Any, place: Any, pitch: int, turned: bool = False) -> None:
        """Load it from shared memory, whose rows are ``pitch`` elements apart; with ``turned``, its columns are."""
        self._do("load", _builder().address_of(source[place]), int(turned), pitch)

    def store(self, target: Any, place: Any, pitch: int) -> None:
        """Store it to shared memory, as ``load`` reads it."""
        self._do("store", _builder().address_of(target[place]), 0, pitch)

    def add(self, other: SubgroupMatrix) -> None:
        """Add another one, element by element."""
        self._do("add", *other._arguments)

    def add_product(self, a: SubgroupMatrix, b: SubgroupMatrix) -> None:
        """Add the product of two factors."""
        self._do("multiply", *a._arguments, *b._arguments)


def halves(low: Any, high: Any) -> Any:
    """Two float32, rounded to float16, as a word: neighbours, as in a small matrix."""
    return _builder().call_extern("uint32", "pack_halves", low, high)


def near_exp2(value: Any) -> Any:
    """2 to the power of a float32, within 2**-22 of it; 0 below the normal numbers. Its bits depend on the device."""
    return _builder().call_extern("float32", "near_exp2", value)


def copy_async(target: Any, at: Any, source: Any, place: Any, size: int, there: Any) -> None:
    """Begin to copy 4, 8 or 16 bytes, aligned to their number, to shared memory; zeros unless they are ``there``.

    ``await_copies`` says when they are in place. A barrier must follow before other threads read them.
    """
    t = _builder()
    t.evaluate(t.call_extern("int32", "copy_async", t.address_of(target[at]), t.address_of(source[place]), size, there))


def end_copies() -> None:
    """The thread's copies since the last call are a batch."""
    t = _builder()
    t.evaluate(t.call_extern("int32", "end_copies"))


def await_copies(others: int) -> None:
    """Wait for the thread's batches of copies, but for the last ``others``."""
    t = _builder()
    t.evaluate(t.call_extern("int32", "await_copies", others))


def _builder() -> Any:
    from tvm.tirx.script import builder

    return builder
