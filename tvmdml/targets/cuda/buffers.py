"""``Buffers``: TensorIR's memory as CUDA's pointers, arrays and variables, and the C++ code for their elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from tvmdml.targets._device import VECTOR_BYTES
from tvmdml.targets.cuda.terms import PRIMARY, SIZES, TYPES, Term, binary, typed
from tvmdml.targets.cuda.text import SourceLine, Text

_PLACES = {"shared": "__shared__ ", "shared.dyn": "__shared__ ", "local": "", "global": "", "": ""}


class BufferMemory:
    """The memory of one or more buffers."""

    def __init__(self, key: int, name: str, dtype: str, place: str) -> None:
        self.key, self.name, self.dtype = key, name, dtype
        self.place = place
        """``parameter``, ``shared`` or ``thread``."""
        self.line: SourceLine | None = None
        """The line that declares it, if it is an array."""
        self.read = self.written = self.aliased = False


class BufferArray(NamedTuple):
    """A buffer as the function sees it: memory, with an element type."""

    name: str
    dtype: str
    memory: BufferMemory
    is_variable: bool = False
    """It has a single element, and takes no index."""


class Buffers:
    """Keys are the handles of TVM's nodes, which the function keeps alive.

    ``of_data`` is the thread and group memory that is known to hold values that depend on data.
    """

    def __init__(self, text: Text, refuse: Callable[[str], NoReturn], of_data: set[int]) -> None:
        self.parameters: list[BufferMemory] = []
        self.shared_bytes = self.thread_bytes = 0
        self.of_data = of_data
        self.trusted: set[int] = set()
        """Memory that was read as if nothing that depends on data had ever been written to it."""
        self._text, self._refuse = text, refuse
        self._arrays: dict[int, BufferArray] = {}

    # -- Declarations

    def parameter(self, node: Any, dtype: str) -> None:
        """Add the next pointer parameter."""
        key = node.__chandle__()
        memory = BufferMemory(key, self._text.fresh(str(node.name).removesuffix("_ptr")), dtype, "parameter")
        self.parameters.append(memory)
        self._arrays[key] = BufferArray(memory.name, dtype, memory)

    def pointer(self, memory: BufferMemory, restrict: bool) -> str:
        """A parameter's declaration."""
        const = "" if memory.written else "const "
        alone = "__restrict__ " if restrict and not (memory.aliased and memory.written) else ""
        return f"{const}{stored(memory.dtype)} *{alone}{memory.name}"

    def allocate(self, node: Any) -> None:
        """Allocate shared memory of the group, or memory of the thread."""
        scope, dtype = str(node.scope()), str(node.dtype)
        if scope not in _PLACES or dtype not in TYPES:
            self._refuse(f"cannot translate memory of {dtype} of scope {scope!r}")
        sizes = list(node.shape)
        if any(type(size).__name__ != "IntImm" for size in sizes):
            self._refuse(f"{node.name}: the size of its memory is not constant")
        count = max(math.prod(int(size.value) for size in sizes), 1)
        key, name = node.__chandle__(), self._text.fresh(str(node.name))
        place, size = _PLACES[scope], SIZES[dtype]
        memory = BufferMemory(key, name, dtype, "shared" if place else "thread")
        if place:
            self.shared_bytes = -(-self.shared_bytes // size) * size + count * size
        elif count > 1:
            self.thread_bytes += count * size
        if place or count > 1:
            memory.line = self._text.line(f"{place}{stored(dtype)} {name}[{count}];", defines=name)
        else:
            self._text.declare(stored(dtype), name)
        self._arrays[key] = BufferArray(name, dtype, memory, is_variable=not place and count == 1)

    def declare(self, node: Any, data: Any) -> None:
        """Declare another name for memory, perhaps with another element type."""
        if type(data).__name__ == "Call":  # buffer_data(buffer)
            data = data.args[0]
        found = self._arrays.get(data.__chandle__())
        if found is None:
            self._refuse(f"{node.name}: its memory is neither a parameter nor allocated")
        offset = node.elem_offset
        if type(offset).__name__ != "IntImm" or offset.value:
            self._refuse(f"{node.name}: a buffer must begin at the start of its memory")
        dtype, key = str(node.dtype), node.__chandle__()
        if dtype not in TYPES:
            self._refuse(f"{node.name}: a buffer of {dtype}, a type that CUDA does not have")
        if dtype == found.dtype:
            self._arrays[key] = found
            return
        found.memory.aliased = True
        self._text.used(found.name)
        if SIZES[found.memory.dtype] < SIZES[dtype]:
            self.align(found.memory)
        element, name = self._text.fresh(f"{found.name}_{dtype}"), self._text.fresh(f"{found.name}_as_{dtype}")
        self._text.line(f"typedef {stored(dtype)} {element} __attribute__((__may_alias__));", defines=element)
        self._text.line(f"{element} *{name} = ({element} *){'&' if found.is_variable else ''}{found.name};", defines=name)
        self._arrays[key] = BufferArray(name, dtype, found.memory)

    def align(self, memory: BufferMemory) -> None:
        """Align an array as parameters are."""
        line = memory.line
        if line is not None and "__align__" not in line.text:
            line.text = f"__align__({VECTOR_BYTES}) {line.text}"
            self.shared_bytes += VECTOR_BYTES if memory.place == "shared" else 0

    # -- Elements

    def array(self, node: Any) -> BufferArray:
        """The array of a buffer."""
        found = self._arrays.get(node.__chandle__())
        if found is None:
            self._refuse(f"{node.name}: the buffer is not declared")
        return found

    def element(self, array: BufferArray, index: Term) -> Term:
        """The value of an element."""
        memory, dtype = array.memory, array.dtype
        memory.read = True
        if array.is_variable:
            self._text.used(array.name)
        data = memory.place == "parameter" or memory.key in self.of_data
        if not data:
            self.trusted.add(memory.key)
        found = Term(
            dtype,
            self.spelled(array, index),
            index.lanes,
            PRIMARY,
            data=data,
            reads=index.reads | {memory.name},
            depth=index.depth + 1,
        )
        return binary("NE", found._replace(dtype="uint8"), Term("uint8", "0"))._replace(dtype="bool") if dtype == "bool" else found

    def spelled(self, array: BufferArray, index: Term) -> str:
        """An element's C++ expression."""
        return array.name if array.is_variable else f"{array.name}[{index.code}]"

    def store(self, array: BufferArray, index: Term, value: Term) -> None:
        """Write an element."""
        self.wrote(array, value)
        if array.is_variable:
            self._text.assign(array.name, value.code)
        else:
            self._text.line(f"{self.spelled(array, index)} = {value.code};")

    def wrote(self, array: BufferArray, value: Term) -> None:
        """Record that memory is written to."""
        array.memory.written = True
        if value.data:
            self.of_data.add(array.memory.key)

    def address(self, array: BufferArray, index: Term) -> Term:
        """The address of an element that is read and written atomically."""
        memory = array.memory
        memory.read = True
        self.of_data.add(memory.key)
        return Term("uint64", f"&{self.spelled(array, index)}", reads=index.reads, depth=index.depth + 1)

    def alignment(self, array: BufferArray, start: Term, count: int) -> int:
        """The provable alignment in bytes of neighbouring elements, which can then be moved together; 0 if there is none."""
        if array.memory.place != "parameter":
            return 0
        size = SIZES[array.dtype]
        found = min(VECTOR_BYTES, size * (count & -count), size << min(start.zeros, 4))
        return found if found > size else 0


def stored(dtype: str) -> str:
    """The type in memory: a bool is stored as a byte."""
    return "uint8_t" if dtype == "bool" else TYPES[dtype]


def index_term(term: Term) -> Term:
    """A value as an index. Indices are correct by construction, so nothing in them overflows."""
    return typed(term)._replace(data=False) if term.held else term._replace(data=False)
