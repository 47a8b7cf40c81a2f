"""``emit``: from a device function that TVM has lowered to CUDA C++.

TVM's own generator for CUDA spells vectors of eight lanes in a way that no compiler takes, and functions of floats as approximations.
This one writes a vector as a loop over its lanes, which the compiler unrolls; neighbours in memory move up to 16 bytes at once, where
they provably begin on a multiple of that.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from tvmdml.errors import CompileError, message
from tvmdml.targets._device import VECTOR_BYTES
from tvmdml.targets.cuda import prelude, terms
from tvmdml.targets.cuda.calls import Calls
from tvmdml.targets.cuda.terms import HALF, SIZES, TYPES, Term, bare

MAX_THREADS = 1024
MAX_SHARED_BYTES = 48 << 10
"""What a group has without asking for more."""
MAX_PARAMETER_BYTES = 4096
_AXES = "xyz"
_FORMATS = {"int32": "i", "uint32": "I", "float32": "f", "int64": "q", "uint64": "Q", "float64": "d"}
_SCOPES = {"shared": "__shared__ ", "local": "", "global": "", "": ""}
_LANE = "lane"
_UNROLLED = 3  # tirx.ForKind.UNROLLED


class Emitted(NamedTuple):
    """A device function's text, and what a caller must know to launch it."""

    name: str
    text: str
    uses: frozenset[str]
    """Pieces of the prelude."""
    threads: tuple[int, int, int]
    buffers: tuple[int, ...]
    """Which parameters are buffers: their addresses come first."""
    scalars: tuple[tuple[int, str], ...]
    """Which are scalars, and their types, in the order in which they follow."""
    block: tuple[tuple[int, str], ...]
    """Where these lie behind the addresses, and their ``struct`` format."""
    block_bytes: int
    reads: tuple[bool, ...]
    writes: tuple[bool, ...]


class Array(NamedTuple):
    """A buffer as the function sees it."""

    name: str
    dtype: str
    memory: Memory
    single: bool = False
    """It is a variable, not an array."""


class Memory:
    """What lies behind one or more buffers."""

    def __init__(self, name: str, dtype: str, is_parameter: bool) -> None:
        self.name, self.dtype, self.is_parameter = name, dtype, is_parameter
        self.read = self.written = self.aliased = False


def emit(function: Any) -> Emitted:
    """Translate a lowered device function.

    Raises:
        CompileError: it holds what CUDA has not, or needs more of something than every device has.
    """
    return Writer(function).emitted()


def unit(functions: list[Emitted]) -> str:
    """The text to compile: what all need, and then each."""
    used = {piece for function in functions for piece in function.uses}
    return "\n".join([prelude.text(used), *(function.text for function in functions)])


class Writer:
    """Walks over one function. ``visit`` takes statements, ``value`` expressions."""

    def __init__(self, function: Any) -> None:
        attributes = function.attrs
        self.function = function
        self.name = str(attributes["global_symbol"]) if "global_symbol" in attributes else "kernel"
        self.uses: set[str] = set()
        self._restrict = "tirx.noalias" in attributes and bool(attributes["tirx.noalias"])
        self._calls = Calls(self)
        self._names: set[str] = {_LANE, self.name}
        self._values: dict[int, Term] = {}
        self._arrays: dict[int, Array] = {}
        self._parameters: list[Memory] = []
        self._extents: dict[str, Any] = {}
        self._lines: list[str] = []
        self._depth = 1
        self._hoisting = True
        """Whether a statement may be written before the one that an expression stands in."""
        self._moved: dict[str, str] = {}
        """What the statement in hand has moved from memory already, and where to."""
        self._constants: set[str] = set()
        """Names of what never changes: they need no other."""
        self._shared_bytes = 0

    def emitted(self) -> Emitted:
        """Translate all of it."""
        buffers, scalars = self._declare_parameters()
        self.visit(self.function.body)
        threads = self._threads()
        if self._shared_bytes > MAX_SHARED_BYTES:
            self.refuse(message("shared memory", f"{self._shared_bytes} bytes", f"up to {MAX_SHARED_BYTES}"))
        block, at = [], 0
        for _, _, dtype in scalars:
            block.append((at, _FORMATS[dtype]))
            at += SIZES[dtype]
        if 8 * len(buffers) + at > MAX_PARAMETER_BYTES:
            self.refuse(message("parameters", f"{8 * len(buffers) + at} bytes", f"up to {MAX_PARAMETER_BYTES}"))
        pointers = [self._pointer(memory) for memory in self._parameters]
        numbers = [f"{TYPES[dtype]} {self._values[parameter.__chandle__()].code}" for _, parameter, dtype in scalars]
        bound = math.prod(threads)
        head = f'extern "C" __global__ void __launch_bounds__({bound}) {self.name}({", ".join([*pointers, *numbers])}) {{'
        return Emitted(
            self.name,
            "\n".join([head, *self._lines, "}", ""]),
            frozenset(self.uses),
            threads,
            buffers,
            tuple((place, dtype) for place, _, dtype in scalars),
            tuple(block),
            at,
            tuple(memory.read for memory in self._parameters),
            tuple(memory.written for memory in self._parameters),
        )

    def refuse(self, why: str) -> NoReturn:
        """Raise ``CompileError``."""
        raise CompileError(f"cuda: {self.name}: {why}")

    # -- Parameters and threads

    def _declare_parameters(self) -> tuple[tuple[int, ...], list[tuple[int, Any, str]]]:
        buffers: list[int] = []
        scalars: list[tuple[int, Any, str]] = []
        for place, parameter in enumerate(self.function.params):
            kind = parameter.ty
            is_buffer = hasattr(kind, "element_type")
            dtype = str(kind.element_type.dtype if is_buffer else kind.dtype)
            if dtype not in TYPES or (not is_buffer and dtype not in _FORMATS):
                self.refuse(f"parameter {parameter.name} is a {dtype}, which no kernel takes")
            name = self._fresh(str(parameter.name).removesuffix("_ptr"))
            if is_buffer:
                buffers.append(place)
                memory = Memory(name, dtype, is_parameter=True)
                self._parameters.append(memory)
                self._arrays[parameter.__chandle__()] = Array(name, dtype, memory)
                self._note(dtype)
            else:
                scalars.append((place, parameter, dtype))
                self._values[parameter.__chandle__()] = Term(dtype, name)
                self._constants.add(name)
        # The widest first: then each lies where its size wants it, with no gaps.
        scalars.sort(key=lambda scalar: -SIZES[scalar[2]])
        return tuple(buffers), scalars

    def _pointer(self, memory: Memory) -> str:
        const = "" if memory.written else "const "
        restrict = "__restrict__ " if self._restrict and not (memory.aliased and memory.written) else ""
        return f"{const}{self._stored(memory.dtype)} *{restrict}{memory.name}"

    def _threads(self) -> tuple[int, int, int]:
        extents = [_plain(self._extents.get(f"threadIdx.{axis}", 1)) for axis in _AXES]
        for axis, extent in zip(_AXES, extents, strict=True):
            if not isinstance(extent, int):
                self.refuse(f"threadIdx.{axis} has the extent {extent}, which is not constant")
        x, y, z = extents
        if x * y * z > MAX_THREADS or z > 64:
            self.refuse(message("threads in a group", f"{x} x {y} x {z}", f"up to {MAX_THREADS}, of which 64 along z"))
        return x, y, z

    def _thread(self, node: Any) -> None:
        tag, variable = str(node.node.thread_tag), node.node.var
        room, _, axis = tag.partition(".")
        if room not in ("blockIdx", "threadIdx") or axis not in ("x", "y", "z"):
            self.refuse(f"there is no thread index {tag}")
        self._extents.setdefault(tag, node.value)
        dtype = str(variable.ty.dtype)
        self._values[variable.__chandle__()] = Term(dtype, f"{TYPES[dtype]}({tag})")

    # -- Text

    def line(self, text: str) -> None:
        """Write a line."""
        self._lines.append("  " * self._depth + text)

    @contextmanager
    def _braces(self, head: str) -> Iterator[None]:
        self.line(f"{head} {{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    def each_lane(self, count: int, text: str) -> None:
        """Write a statement that is done for each lane."""
        self.line("#pragma unroll")
        self.line(f"for (int {_LANE} = 0; {_LANE} < {count}; ++{_LANE}) {text}")

    def _fresh(self, name: str) -> str:
        """A name that the function has not used."""
        base = re.sub(r"\W", "_", name).strip("_") or "value"
        base = f"{base}_" if base in _RESERVED or base[0].isdigit() else base
        found, number = base, 1
        while found in self._names:
            found, number = f"{base}_{number}", number + 1
        self._names.add(found)
        return found

    def _note(self, dtype: str) -> None:
        if dtype == HALF:
            self.uses.add("half")

    def _stored(self, dtype: str) -> str:
        """The type in memory: a truth is a byte there."""
        return "uint8_t" if dtype == "bool" else TYPES[dtype]

    # -- Statements

    def visit(self, node: Any) -> None:
        """Translate a statement."""
        kind = type(node).__name__
        visit = _STATEMENTS.get(kind)
        if visit is None:
            self.refuse(f"cannot translate {kind}")
        self._moved.clear()
        visit(self, node)

    def _sequence(self, node: Any) -> None:
        for statement in node.seq:
            self.visit(statement)

    def _attribute(self, node: Any) -> None:
        if str(node.attr_key) == "thread_extent":
            self._thread(node)
        self.visit(node.body)

    def _nothing(self, node: Any) -> None:
        """An assertion: the caller has checked what it says."""

    def _declare(self, node: Any) -> None:
        buffer, data = node.buffer, node.data
        if type(data).__name__ == "Call":  # buffer_data(buffer)
            data = data.args[0]
        found = self._arrays.get(data.__chandle__())
        if found is None:
            self.refuse(f"{buffer.name}: a buffer over what is neither a parameter nor allocated")
        offset = buffer.elem_offset
        if type(offset).__name__ != "IntImm" or offset.value:
            self.refuse(f"{buffer.name}: a buffer that does not begin where its memory does")
        dtype = str(buffer.dtype)
        if dtype == found.dtype:
            self._arrays[buffer.__chandle__()] = found
            return
        self._note(dtype)
        found.memory.aliased = True
        stored = self._stored(dtype)
        name = self._fresh(f"{found.name}_words" if dtype == "uint32" else str(buffer.name))
        self._arrays[buffer.__chandle__()] = Array(name, dtype, found.memory)
        # Whether it is written to is known at the end: the text is filled in then.
        self.line(f"auto *{name} = ({stored} *){'&' if found.single else ''}{found.name};")

    def _allocate(self, node: Any) -> None:
        buffer = node.buffer
        scope, dtype = str(buffer.scope()), str(buffer.dtype)
        if scope not in _SCOPES or dtype not in TYPES:
            self.refuse(f"cannot translate memory of {dtype} of scope {scope!r}")
        sizes = list(buffer.shape)
        if any(type(size).__name__ != "IntImm" for size in sizes):
            self.refuse(f"{buffer.name}: memory of a size that is not constant")
        self._note(dtype)
        count = math.prod(int(size.value) for size in sizes)
        single = count == 1 and scope != "shared"
        name = self._fresh(str(buffer.name))
        if scope == "shared":
            self._shared_bytes += count * SIZES[dtype]
        self._arrays[buffer.__chandle__()] = Array(name, dtype, Memory(name, dtype, is_parameter=False), single)
        self.line(f"{_SCOPES[scope]}{self._stored(dtype)} {name}{'' if single else f'[{count}]'};")

    def _bind(self, node: Any) -> None:
        self._values[node.var.__chandle__()] = self._named(str(node.var.name), self.value(node.value))

    def _named(self, name: str, value: Term) -> Term:
        """A variable that holds a value."""
        if value.lanes > 1:
            return self.materialised(value, name)
        if value.code not in self._constants:
            self._constants.add(code := self.named(f"const {TYPES[value.dtype]}", name, bare(value.code)))
            return value._replace(code=code)
        return value

    def named(self, kind: str, name: str, code: str) -> str:
        """Declare a variable; gives the name that it has."""
        found = self._fresh(name)
        self.line(f"{kind} {found} = {code};")
        return found

    def materialised(self, value: Term, name: str = "lanes") -> Term:
        """The lanes of a value in a variable of their own."""
        found = self._fresh(name)
        self.line(f"{self.lanes_type(value.dtype, value.lanes)} {found};")
        self.each_lane(value.lanes, f"{found}.at[{_LANE}] = {bare(value.code)};")
        return value._replace(code=f"{found}.at[{_LANE}]")

    def lanes_type(self, dtype: str, count: int, align: int = 0) -> str:
        """The type of neighbours that lie on a multiple of so many bytes."""
        self.uses.add("lanes")
        self._note(dtype)
        stored = TYPES[dtype]
        return f"Lanes<{stored}, {count}, {align or SIZES[dtype]}>"

    def _evaluate(self, node: Any) -> None:
        expression = node.value
        if type(expression).__name__ == "IntImm":
            return
        value = self.value(expression)
        if value.code:
            self.line(f"{value.code};")

    def _store(self, node: Any) -> None:
        array, place, value = self._array(node.buffer), self._place(node), self.value(node.value)
        array.memory.written = True
        if value.lanes == 1:
            self._assign(array, self.value(place).code, value.code)
            return
        # All lanes are read before any is written.
        run = self._run(place)
        align = 0 if run is None else self._alignment(array, run, value.lanes)
        if run is not None and align:
            whole = self.lanes_type(array.dtype, value.lanes, align)
            held = self._fresh("whole")
            self.line(f"{whole} {held};")
            self.each_lane(value.lanes, f"{held}.at[{_LANE}] = {bare(value.code)};")
            self.line(f"*({whole} *)({array.name} + {run.code}) = {held};")
            return
        if not re.fullmatch(rf"\w+\.at\[{_LANE}\]", value.code):
            value = self.materialised(value)
        self.each_lane(value.lanes, f"{array.name}[{bare(self.value(place).code)}] = {value.code};")

    def _assign(self, array: Array, index: str, code: str) -> None:
        target = array.name if array.single else f"{array.name}[{bare(index)}]"
        self.line(f"{target} = {bare(code)};")

    def _if(self, node: Any) -> None:
        with self._braces(f"if ({bare(self.value(node.condition).code)})"):
            self.visit(node.then_case)
        if node.else_case is not None:
            with self._braces("else"):
                self.visit(node.else_case)

    def _for(self, node: Any) -> None:
        begin, extent = self.value(node.min), self.value(node.extent)
        end = extent if begin.code in ("0", "int64_t(0ll)") else terms.binary("Add", begin, extent)
        step = terms.constant(begin.dtype, 1) if node.step is None else self.value(node.step)
        name = self._fresh(str(node.loop_var.name))
        self._values[node.loop_var.__chandle__()] = Term(begin.dtype, name, zeros=min(begin.zeros, step.zeros))
        if int(node.kind) == _UNROLLED:
            self.line("#pragma unroll")
        counts = "++" + name if step.code in ("1", "int64_t(1ll)") else f"{name} += {step.code}"
        with self._braces(f"for ({TYPES[begin.dtype]} {name} = {bare(begin.code)}; {name} < {bare(end.code)}; {counts})"):
            self.visit(node.body)

    def _while(self, node: Any) -> None:
        with self._lazily():
            condition = bare(self.value(node.condition).code)
        with self._braces(f"while ({condition})"):
            self.visit(node.body)

    # -- Expressions

    def value(self, node: Any) -> Term:
        """Translate an expression."""
        kind = type(node).__name__
        if kind in terms.BINARY:
            if kind in ("Min", "Max"):
                self.uses.add("least")
            return terms.binary(kind, self.value(node.a), self.value(node.b))
        translate = _EXPRESSIONS.get(kind)
        if translate is None:
            self.refuse(f"cannot translate {kind}")
        return translate(self, node)

    def type_of(self, node: Any) -> tuple[str, int]:
        """An expression's type, and how many lanes it has."""
        name, _, lanes = str(node.ty.dtype).partition("x")
        if name not in TYPES or not (lanes or "1").isdecimal():
            self.refuse(f"there is no {node.ty.dtype}")
        self._note(name)
        return name, int(lanes or 1)

    @contextmanager
    def _lazily(self) -> Iterator[None]:
        """What is translated meanwhile may never be computed: it stays in its place."""
        before, self._hoisting = self._hoisting, False
        yield
        self._hoisting = before

    def choice(self, condition: Any, then: Any, otherwise: Any) -> Term:
        """The one or the other, and nothing of the one that is not asked for."""
        truth = self.value(condition)
        with self._lazily():
            return terms.select(truth, self.value(then), self.value(otherwise))

    def address(self, node: Any) -> tuple[Array, str]:
        """Of ``address_of(buffer[index])``: the buffer, and C++ for it."""
        array = self._array(node.source)
        array.memory.read = True
        index = bare(self.value(self._place(node)).code)
        return array, f"&{array.name}" if array.single else f"&{array.name}[{index}]"

    def hoisted(self, what: str) -> None:
        """Say that a statement is written before.

        Raises:
            CompileError: none may be.
        """
        if not self._hoisting:
            self.refuse(f"{what} stands where it may never be computed")

    def _array(self, buffer: Any) -> Array:
        found = self._arrays.get(buffer.__chandle__())
        if found is None:
            self.refuse(f"{buffer.name}: a buffer that is not declared")
        return found

    def _place(self, node: Any) -> Any:
        if len(node.indices) != 1:
            self.refuse("cannot translate a buffer of several dimensions")
        return node.indices[0]

    def _run(self, index: Any) -> Term | None:
        """Where the elements begin, if they are neighbours."""
        if type(index).__name__ != "Ramp" or type(index.stride).__name__ != "IntImm" or index.stride.value != 1:
            return None
        return self.value(index.base)

    def _alignment(self, array: Array, start: Term, count: int) -> int:
        """The bytes that neighbours provably lie on a multiple of, and may move at once by; 0 where they do not."""
        if not array.memory.is_parameter or array.dtype == "bool":
            return 0
        size = SIZES[array.dtype]
        found = min(VECTOR_BYTES, size * (count & -count), size << min(start.zeros, 4))
        return found if found > size else 0

    def _load(self, node: Any) -> Term:
        array, place = self._array(node.source), self._place(node)
        array.memory.read = True
        _, count = self.type_of(node)
        if count == 1:
            index = bare(self.value(place).code)
            return self._element(array, array.name if array.single else f"{array.name}[{index}]")
        run = self._run(place)
        align = 0 if run is None else self._alignment(array, run, count)
        if run is not None and align and self._hoisting:
            whole = self.lanes_type(array.dtype, count, align)
            place = f"*(const {whole} *)({array.name} + {run.code})"
            name = self._moved.get(place) or self.named(f"const {whole}", "whole", place)
            self._moved[place] = name
            return Term(array.dtype, f"{name}.at[{_LANE}]", count)
        value = self._element(array, f"{array.name}[{bare(self.value(place).code)}]")._replace(lanes=count)
        return self.materialised(value) if self._hoisting else value

    def _element(self, array: Array, code: str) -> Term:
        return Term("bool", f"({code} != 0)") if array.dtype == "bool" else Term(array.dtype, code)

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

    def _not(self, node: Any) -> Term:
        return terms.inverse(terms.cast(self.value(node.a), "bool"))

    def _inverse(self, node: Any) -> Term:
        return terms.inverse(self.value(node.a))

    def _select(self, node: Any) -> Term:
        return terms.select(self.value(node.condition), self.value(node.true_value), self.value(node.false_value))

    def _let(self, node: Any) -> Term:
        value = self.value(node.value)
        self._values[node.var.__chandle__()] = self._named(str(node.var.name), value) if self._hoisting else value
        return self.value(node.body)

    def _broadcast(self, node: Any) -> Term:
        value = self.value(node.value)
        _, count = self.type_of(node)
        if value.lanes == 1:
            return value._replace(lanes=count)
        self.hoisted("a vector of vectors")
        held = self.materialised(value)
        return held._replace(code=held.code.replace(f"[{_LANE}]", f"[{_LANE} % {value.lanes}]"), lanes=count)

    def _ramp(self, node: Any) -> Term:
        _, count = self.type_of(node)
        base, stride = self.value(node.base), self.value(node.stride)
        lane = Term(base.dtype, _LANE if base.dtype == "int32" else f"{TYPES[base.dtype]}({_LANE})")
        step = lane if stride.code in ("1", "int64_t(1ll)") else terms.binary("Mul", stride, lane)
        return terms.binary("Add", base, step)._replace(lanes=count, zeros=0)

    def _shuffle(self, node: Any) -> Term:
        self.hoisted("a choice of lanes")
        lanes: list[str] = []
        for vector in map(self.value, node.vectors):
            held = self.materialised(vector) if vector.lanes > 1 else vector
            lanes += [held.code.replace(f"[{_LANE}]", f"[{i}]") for i in range(vector.lanes)]
        dtype, count = self.type_of(node)
        picked = [lanes[int(index.value)] for index in node.indices]
        if count == 1:
            return Term(dtype, picked[0])
        name = self._fresh("picked")
        self.line(f"const {self.lanes_type(dtype, count)} {name} = {{{{{', '.join(picked)}}}}};")
        return Term(dtype, f"{name}.at[{_LANE}]", count)

    def _call(self, node: Any) -> Term:
        return self._calls.call(node)


_RESERVED = {
    "auto", "bool", "break", "case", "char", "class", "const", "continue", "default", "delete", "do", "double", "else", "enum",
    "extern", "float", "for", "goto", "half", "if", "inline", "int", "long", "new", "operator", "private", "public", "register",
    "return", "short", "signed", "sizeof", "static", "struct", "switch", "template", "this", "typedef", "union", "unsigned",
    "void", "volatile", "while", "least", "greatest", "min", "max",
}  # fmt: skip
_STATEMENTS: dict[str, Callable[[Writer, Any], None]] = {
    "AllocBuffer": Writer._allocate,
    "AssertStmt": Writer._nothing,
    "AttrStmt": Writer._attribute,
    "Bind": Writer._bind,
    "BufferStore": Writer._store,
    "DeclBuffer": Writer._declare,
    "Evaluate": Writer._evaluate,
    "For": Writer._for,
    "IfThenElse": Writer._if,
    "SeqStmt": Writer._sequence,
    "While": Writer._while,
}
_EXPRESSIONS: dict[str, Callable[[Writer, Any], Term]] = {
    "BitwiseNot": Writer._inverse,
    "Broadcast": Writer._broadcast,
    "BufferLoad": Writer._load,
    "Call": Writer._call,
    "Cast": Writer._cast,
    "FloatImm": Writer._number,
    "IntImm": Writer._number,
    "Let": Writer._let,
    "Not": Writer._not,
    "Ramp": Writer._ramp,
    "Select": Writer._select,
    "Shuffle": Writer._shuffle,
    "TensorLoad": Writer._load,
    "Var": Writer._variable,
}


def _plain(extent: Any) -> Any:
    return int(extent.value) if type(extent).__name__ == "IntImm" else extent
