"""``emit``: from a device function that TVM has lowered to CUDA C++.

TVM's own generator for CUDA writes vectors of eight lanes in a form that no compiler accepts, and float functions as
approximations.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from tvmdml.errors import CompileError, message
from tvmdml.targets._device import VECTOR_BYTES
from tvmdml.targets.cuda import prelude, terms
from tvmdml.targets.cuda.buffers import BufferArray, Buffers, index_term
from tvmdml.targets.cuda.calls import Calls
from tvmdml.targets.cuda.terms import EVERYTHING, SIZES, TYPES, Term
from tvmdml.targets.cuda.text import Text, identifier
from tvmdml.targets.cuda.vectors import Vectors

MAX_THREADS = 1024  # of every architecture
MAX_SHARED_BYTES = 48 << 10
"""The shared memory that a group has without an opt-in."""
MAX_PARAMETER_BYTES = 4096  # more only from CUDA 12.1 on, and not on all architectures
_REGISTERS = 1 << 16
"""The registers of a multiprocessor, on every architecture."""
_PARTITIONS = 4
"""A warp has its registers from one of so many parts of them."""
_OWN_REGISTERS = 64
"""A thread's. Few kernels need as many; without a limit compilers use more than helps, or spill for no reason."""
_MANY_REGISTERS = 80
"""Arrays of more registers leave less than is needed beside them."""
_MANY_BUFFERS = 5
"""Places in so many buffers need registers of their own, where a group's threads read them in turns."""
_MOST_REGISTERS = 255  # that an instruction of any architecture can name for a thread
_MOST_GROUPS = 16
"""The resident groups that a multiprocessor supports, on every architecture."""
_AXES = "xyz"
# How a scalar parameter is passed: with at least 32 bits.
_PASSED = {"bool": "uint32", "int8": "int32", "uint8": "uint32", "int16": "int32", "uint16": "uint32", "float16": "float32"}
_FORMATS = {"int32": "i", "uint32": "I", "float32": "f", "int64": "q", "uint64": "Q", "float64": "d"}
_DEEPEST = 40
"""Expressions nested deeper than this are split: compilers have a depth limit."""
_UNROLLED = 3  # tirx.ForKind.UNROLLED
_UNROLLED_BY_COMPILERS = 16
"""Shorter loops are over registers."""
_LEAVING = {"tirx.thread_return": "return;", "tirx.break_loop": "break;", "tirx.continue_loop": "continue;"}


class Emitted(NamedTuple):
    """A device function's text, and the facts needed to launch it."""

    name: str
    text: str
    uses: frozenset[str]
    """The pieces of the prelude that it uses."""
    threads: tuple[int, int, int]
    buffers: tuple[int, ...]
    """Which parameters are buffers: their addresses come first."""
    scalars: tuple[tuple[int, str], ...]
    """Which are scalars, and their types, in the order in which they follow."""
    block: tuple[tuple[int, str], ...]
    """The scalars' offsets after the addresses, and their ``struct`` formats."""
    block_bytes: int
    reads: tuple[bool, ...]
    writes: tuple[bool, ...]


def emit(function: Any) -> Emitted:
    """Translate a lowered device function.

    Raises:
        CompileError: CUDA has no equivalent for a part of it, or it exceeds a limit that every device has.
    """
    of_data: set[int] = set()
    while True:
        writer = FunctionWriter(function, of_data)
        try:
            emitted = writer.emitted()
        except terms.Refusal as error:
            writer.refuse(str(error))
        except RecursionError:
            writer.refuse("expressions are nested too deeply: name parts of them")
        # Memory that turned out to hold data was already read as if it did not: translate again with this knowledge.
        if not writer.buffers.trusted & of_data:
            return emitted


def unit(functions: list[Emitted]) -> str:
    """The text to compile: the shared prelude, then each function."""
    used = {piece for function in functions for piece in function.uses}
    return "\n".join([prelude.text(used), *(function.text for function in functions)])


class FunctionWriter:
    """Translates one function. ``visit`` handles statements, ``value`` expressions."""

    def __init__(self, function: Any, of_data: set[int]) -> None:
        attributes = function.attrs
        self.function = function
        self.name = identifier(str(attributes["global_symbol"])) if "global_symbol" in attributes else "kernel"
        self.restrict = "tirx.noalias" in attributes and bool(attributes["tirx.noalias"])
        """Whether parameters never overlap."""
        self.text = Text(self.name)
        self.buffers = Buffers(self.text, self.refuse, of_data)
        self.vectors = Vectors(self)
        self._calls = Calls(self)
        self._values: dict[int, Term] = {}
        self._extents: dict[str, Any] = {}
        self._is_wide = False
        self._tables: dict[str, str] = {}

    def emitted(self) -> Emitted:
        """Translate the whole function."""
        buffers, scalars = self._declare_parameters()
        self.visit(self.function.body)
        threads = self.threads()
        x, y, z = threads
        if x * y * z > MAX_THREADS or z > 64:
            self.refuse(message("threads in a group", f"{x} x {y} x {z}", f"up to {MAX_THREADS}, of which 64 along z"))
        if self.buffers.shared_bytes > MAX_SHARED_BYTES:
            self.refuse(message("shared memory", f"{self.buffers.shared_bytes} bytes", f"up to {MAX_SHARED_BYTES}"))
        block, at = [], 0
        for _, _, passed in scalars:
            block.append((at, _FORMATS[passed.dtype]))
            at += SIZES[passed.dtype]
        if 8 * len(buffers) + at > MAX_PARAMETER_BYTES:
            self.refuse(message("parameters", f"{8 * len(buffers) + at} bytes", f"up to {MAX_PARAMETER_BYTES}"))
        lines, words = self.text.finish()
        parameters = [self.buffers.pointer(memory, self.restrict) for memory in self.buffers.parameters]
        parameters += [f"{TYPES[passed.dtype]} {passed.code}" for _, _, passed in scalars]
        head = f'extern "C" __global__ void {self._bounds(x * y * z)} {self.name}({", ".join(parameters)}) {{'
        return Emitted(
            self.name,
            "\n".join([head, *(_table(name, numbers) for numbers, name in self._tables.items()), *lines, "}", ""]),
            prelude.needed([*words, *(["__half"] if "__half" in head else [])]),
            threads,
            buffers,
            tuple((place, dtype) for place, dtype, _ in scalars),
            tuple(block),
            at,
            tuple(memory.read for memory in self.buffers.parameters),
            tuple(memory.written for memory in self.buffers.parameters),
        )

    def refuse(self, why: str) -> NoReturn:
        """Raise ``CompileError``."""
        raise CompileError(f"cuda: {self.name}: {why}")

    # -- Parameters and threads

    def _declare_parameters(self) -> tuple[tuple[int, ...], list[tuple[int, str, Term]]]:
        buffers: list[int] = []
        scalars: list[tuple[int, str, Term]] = []
        for place, parameter in enumerate(self.function.params):
            kind = parameter.ty
            is_buffer = hasattr(kind, "element_type")
            dtype = str(kind.element_type.dtype if is_buffer else kind.dtype)
            if dtype not in TYPES:
                self.refuse(f"parameter {parameter.name} has the type {dtype}, which CUDA does not have")
            if is_buffer:
                buffers.append(place)
                self.buffers.parameter(parameter, dtype)
                self._is_wide |= SIZES[dtype] == 8
            else:
                passed = Term(_PASSED.get(dtype, dtype), self.text.fresh(str(parameter.name)))
                scalars.append((place, dtype, passed))
                self._is_wide |= SIZES[passed.dtype] == 8  # it counts in 64 bits
                self._values[parameter.__chandle__()] = terms.cast(passed, dtype)
        # The widest first: then each is aligned to its size, without gaps.
        scalars.sort(key=lambda scalar: -SIZES[scalar[2].dtype])
        return tuple(buffers), scalars

    def threads(self) -> tuple[int, int, int]:
        """The extents of a group, as far as they are known so far."""
        extents = [self._extents.get(f"threadIdx.{axis}", 1) for axis in _AXES]
        for axis, extent in zip(_AXES, extents, strict=True):
            if not isinstance(extent, int):
                self.refuse(f"threadIdx.{axis} has the extent {extent}, which is not a constant")
        x, y, z = extents
        return x, y, z

    def table(self, numbers: str) -> str:
        """The name of a constant array of float32, which are given as hexadecimal digits."""
        if numbers not in self._tables:
            self._tables[numbers] = self.text.fresh("table")
        return self._tables[numbers]

    def _bounds(self, threads: int) -> str:
        """Tell the compiler, by the groups that should fit in a multiprocessor, how many registers a thread may use."""
        for_arrays, most = self.buffers.thread_bytes // 4, _MOST_GROUPS
        beside = _OWN_REGISTERS + min(for_arrays, _OWN_REGISTERS // 2)  # what works on large arrays needs little else
        beside += _OWN_REGISTERS // 2 * self._is_wide  # 64 bits are in two registers
        if self.buffers.shared_bytes and len(self.buffers.parameters) >= _MANY_BUFFERS:  # where the next elements of each are
            beside += _OWN_REGISTERS // 8
        # Arrays of nearly all registers, such as sums of a tile, are computed with many other values.
        with_arrays = _OWN_REGISTERS // 2 + for_arrays + max(0, for_arrays - _MANY_REGISTERS)
        if self.buffers.shared_bytes and for_arrays >= _OWN_REGISTERS // 4:  # parts of tiles, and where they are
            beside, most = beside + _OWN_REGISTERS // 4, most // 2
        registers = min(max(beside, with_arrays), _MOST_REGISTERS)
        warps = _REGISTERS // _PARTITIONS // (registers * 32) * _PARTITIONS
        return f"__launch_bounds__({threads}, {max(1, min(warps // -(-threads // 32), most))})"

    def _is_kept(self, counter: str) -> bool:
        """Whether loops stay as they are: compilers unroll those over many arrays, or with 64 bits, until no register is left."""
        return "64" in counter or len(self.buffers.parameters) >= _OWN_REGISTERS // 8

    def _thread(self, node: Any) -> None:
        tag, variable, extent = str(node.node.thread_tag), node.node.var, node.value
        room, _, axis = tag.partition(".")
        if room not in ("blockIdx", "threadIdx") or axis not in ("x", "y", "z"):
            self.refuse(f"there is no thread index {tag}")
        self._extents.setdefault(tag, int(extent.value) if type(extent).__name__ == "IntImm" else extent)
        dtype = str(variable.ty.dtype)
        self._values[variable.__chandle__()] = Term(dtype, f"({TYPES[dtype]}){tag}", rank=terms.UNARY)

    # -- Statements

    def visit(self, node: Any) -> None:
        """Translate a statement."""
        kind = type(node).__name__
        visit = _STATEMENTS.get(kind)
        if visit is None:
            self.refuse(f"cannot translate {kind}")
        self.vectors.moved.clear()
        visit(self, node)

    def _sequence(self, node: Any) -> None:
        for statement in node.seq:
            self.visit(statement)

    def _attribute(self, node: Any) -> None:
        if str(node.attr_key) == "thread_extent":
            self._thread(node)
        self.visit(node.body)

    def _nothing(self, node: Any) -> None:
        """An assertion: the caller has already checked its condition."""

    def _declare(self, node: Any) -> None:
        self.buffers.declare(node.buffer, node.data)

    def _allocate(self, node: Any) -> None:
        self.buffers.allocate(node.buffer)

    def _bind(self, node: Any) -> None:
        self._values[node.var.__chandle__()] = self.named(self.value(node.value), str(node.var.name))

    def _evaluate(self, node: Any) -> None:
        expression = node.value
        kind = type(expression).__name__
        if kind == "IntImm":
            return
        if kind == "Call" and (leaving := _LEAVING.get(str(getattr(expression.op, "name", "")))) is not None:
            self.text.line(leaving)
            return
        value = self.value(expression)
        if value.code:
            self.text.line(f"{value.code};")

    def _store(self, node: Any) -> None:
        array, value = self.buffers.array(node.buffer), self.value(node.value)
        if value.lanes == 1:
            self.buffers.store(array, self.index(self._place(node)), value)
        else:
            self.vectors.store(array, self._place(node), value)

    def _if(self, node: Any) -> None:
        with self.text.braces(f"if ({self.value(node.condition).code})"):
            self.visit(node.then_case)
        if node.else_case is not None:
            with self.text.braces("else"):
                self.visit(node.else_case)

    def _for(self, node: Any) -> None:
        begin, extent = self.index(node.min), self.index(node.extent)
        step = terms.constant(begin.dtype, 1) if node.step is None else self.index(node.step)
        end = extent if begin.number == 0 else terms.binary("Add", begin, extent)
        if begin.number is not None and extent.number is not None:
            end = terms.constant(begin.dtype, begin.number + extent.number)
        hint = str(node.loop_var.name)
        if end.reads:  # the end is evaluated once, before the loop
            end = self.named(end, f"{hint}_end")
        name = self.text.fresh(hint)
        index = Term(begin.dtype, name, zeros=min(begin.zeros, step.zeros))
        self._values[node.loop_var.__chandle__()] = index
        if int(node.kind) == _UNROLLED:
            self.text.line("#pragma unroll")
        elif self._is_kept(begin.dtype) and (extent.number is None or extent.number > _UNROLLED_BY_COMPILERS):
            self.text.line("#pragma unroll 1")
        goes_on, counts = terms.binary("LT", index, end).code, f"++{name}" if step.number == 1 else f"{name} += {step.code}"
        with self.text.braces(f"for ({TYPES[begin.dtype]} {name} = {begin.code}; {goes_on}; {counts})"):
            self.visit(node.body)

    def _while(self, node: Any) -> None:
        """Of threads that work alone, a loop to an end that is known at launch strides over what lacks threads, in few rounds.

        Unrolled, it would take more instructions to divide its rounds than that saves.
        """
        condition, lines = self._aside(node.condition)
        strides = type(node.condition).__name__ == "LT" and type(node.condition.b).__name__ != "IntImm"
        if strides and not self.buffers.shared_bytes:
            self.text.line("#pragma unroll 1")
        if not lines:
            with self.text.braces(f"while ({condition.code})"):
                self.visit(node.body)
            return
        with self.text.braces("while (true)"):  # the condition's parts are computed in each iteration
            self.text.add(lines)
            self.text.line(f"if ({terms.inverse(condition).code}) break;")
            self.visit(node.body)

    # -- Expressions

    def value(self, node: Any) -> Term:
        """Translate an expression."""
        kind = type(node).__name__
        translate = _EXPRESSIONS.get(kind)
        if translate is not None:
            found = translate(self, node)
        elif kind in terms.BINARY:
            found = terms.binary(kind, self.value(node.a), self.value(node.b))
        else:
            self.refuse(f"cannot translate {kind}")
        return found if found.depth <= _DEEPEST else self.named(found, "part")

    def index(self, node: Any) -> Term:
        """Translate an index: it is correct by construction, and nothing in it overflows."""
        kind = type(node).__name__
        if kind in ("Add", "Sub", "Mul"):
            found = terms.binary(kind, self.index(node.a), self.index(node.b))
            return found if found.depth <= _DEEPEST else self.named(found, "part")
        if kind == "Ramp":
            return self.vectors.ramp(self.index(node.base), self.index(node.stride), self.type_of(node)[1])
        return index_term(self.value(node))

    def type_of(self, node: Any) -> tuple[str, int]:
        """An expression's type, and its number of lanes."""
        full = str(node.ty.dtype)
        if full in TYPES:
            return full, 1
        name, _, lanes = full.partition("x")
        if name not in TYPES or not lanes.isdecimal():
            self.refuse(f"there is no {full}")
        return name, int(lanes)

    def named(self, value: Term, name: str) -> Term:
        """Store the value in a constant, or in a vector of lanes; literals and constants need no other name."""
        if value.lanes > 1:
            return self.vectors.fixed(value, name)
        if value.depth == 0 and not value.reads:
            return value
        dtype = value.dtype
        found = self.text.named(f"const {TYPES[dtype]}", name, value.code, is_pure=EVERYTHING not in value.reads)
        return Term(dtype, found, zeros=value.zeros, data=value.data)

    def choice(self, condition: Any, then: Any, otherwise: Any) -> Term:
        """One value or the other; the value that is not selected is not computed."""
        truth = self.value(condition)
        (a, first), (b, second) = self._aside(then), self._aside(otherwise)
        if not first and not second:
            return terms.select(truth, a, b)
        dtype, lanes, name = a.dtype, max(a.lanes, b.lanes), self.text.fresh("chosen")
        self.text.line(f"{self.vectors.type(dtype, lanes) if lanes > 1 else TYPES[dtype]} {name};")
        for head, lines, value in ((f"if ({truth.code})", first, a), ("else", second, b)):
            with self.text.braces(head):
                self.text.add(lines)
                if lanes > 1:
                    self.vectors.each(lanes, f"{name}.at[lane] = {value.code};")
                else:
                    self.text.line(f"{name} = {value.code};")
        return Term(dtype, f"{name}.at[lane]" if lanes > 1 else name, lanes, zeros=min(a.zeros, b.zeros), data=a.data or b.data)

    def _aside(self, node: Any) -> tuple[Term, list[Any]]:
        """A value that may never be computed, and the lines that compute it."""
        moved, self.vectors.moved = self.vectors.moved, dict(self.vectors.moved)
        with self.text.aside() as lines:
            value = self.value(node)
        self.vectors.moved = moved
        return value, lines

    def address(self, node: Any, whole: bool = False) -> tuple[BufferArray, Term]:
        """For ``address_of(buffer[index])``: the buffer, and the index's C++. ``whole``: up to 16 bytes are moved together."""
        array = self.buffers.array(node.source)
        if whole and array.memory.place == "shared":
            self.buffers.align(array.memory)
        return array, self.buffers.address(array, self.index(self._place(node)))

    def _place(self, node: Any) -> Any:
        if len(node.indices) != 1:
            self.refuse("cannot translate a buffer of several dimensions")
        return node.indices[0]

    def _both(self, node: Any) -> Term:
        """And, or: the second operand is evaluated only if the first leaves the result open."""
        kind, a, (b, lines) = type(node).__name__, self.value(node.a), self._aside(node.b)
        if not lines or b.lanes > 1:
            self.text.add(lines)
            return terms.binary(kind, a, b)
        name = self.text.fresh("both" if kind == "And" else "either")
        self.text.line(f"bool {name} = {a.code};")
        with self.text.braces(f"if ({name if kind == 'And' else f'!{name}'})"):
            self.text.add(lines)
            self.text.line(f"{name} = {b.code};")
        return Term("bool", name)

    def _load(self, node: Any) -> Term:
        array, place = self.buffers.array(node.source), self._place(node)
        _, count = self.type_of(node)
        return self.buffers.element(array, self.index(place)) if count == 1 else self.vectors.load(array, place, count)

    def _variable(self, node: Any) -> Term:
        found = self._values.get(node.__chandle__())
        if found is None:
            self.refuse(f"{node.name} has no value here")
        return found

    def _number(self, node: Any) -> Term:
        dtype, _ = self.type_of(node)
        return terms.constant(dtype, node.value)

    def _cast(self, node: Any) -> Term:
        dtype, _ = self.type_of(node)
        return terms.cast(self.value(node.value), dtype)

    def _inverse(self, node: Any) -> Term:
        return terms.inverse(self.value(node.a))

    def _select(self, node: Any) -> Term:
        return terms.select(self.value(node.condition), self.value(node.true_value), self.value(node.false_value))

    def _let(self, node: Any) -> Term:
        self._values[node.var.__chandle__()] = self.named(self.value(node.value), str(node.var.name))
        return self.value(node.body)

    def _broadcast(self, node: Any) -> Term:
        return self.vectors.broadcast(self.value(node.value), self.type_of(node)[1])

    def _ramp(self, node: Any) -> Term:
        return self.vectors.ramp(self.value(node.base), self.value(node.stride), self.type_of(node)[1])

    def _shuffle(self, node: Any) -> Term:
        dtype, _ = self.type_of(node)
        return self.vectors.shuffle(dtype, [self.value(one) for one in node.vectors], [int(index.value) for index in node.indices])

    def _call(self, node: Any) -> Term:
        return self._calls.call(node)


def _table(name: str, numbers: str) -> str:
    """A constant array, so aligned that compilers load neighbours at once."""
    values = [terms.constant("float32", value).code for (value,) in struct.iter_unpack("<f", bytes.fromhex(numbers))]
    return f"  static const __align__({2 * VECTOR_BYTES}) float {name}[{len(values)}] = {{{', '.join(values)}}};"


_STATEMENTS: dict[str, Callable[[FunctionWriter, Any], None]] = {
    "AllocBuffer": FunctionWriter._allocate,
    "AssertStmt": FunctionWriter._nothing,
    "AttrStmt": FunctionWriter._attribute,
    "Bind": FunctionWriter._bind,
    "BufferStore": FunctionWriter._store,
    "DeclBuffer": FunctionWriter._declare,
    "Evaluate": FunctionWriter._evaluate,
    "For": FunctionWriter._for,
    "IfThenElse": FunctionWriter._if,
    "SeqStmt": FunctionWriter._sequence,
    "While": FunctionWriter._while,
}
_EXPRESSIONS: dict[str, Callable[[FunctionWriter, Any], Term]] = {
    "And": FunctionWriter._both,
    "BitwiseNot": FunctionWriter._inverse,
    "Broadcast": FunctionWriter._broadcast,
    "BufferLoad": FunctionWriter._load,
    "Call": FunctionWriter._call,
    "Cast": FunctionWriter._cast,
    "FloatImm": FunctionWriter._number,
    "IntImm": FunctionWriter._number,
    "Let": FunctionWriter._let,
    "Not": FunctionWriter._inverse,
    "Or": FunctionWriter._both,
    "Ramp": FunctionWriter._ramp,
    "Select": FunctionWriter._select,
    "Shuffle": FunctionWriter._shuffle,
    "TensorLoad": FunctionWriter._load,
    "Var": FunctionWriter._variable,
}
