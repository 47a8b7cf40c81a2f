"""``Vectors``: values with several lanes, as loops over the lanes that the compiler unrolls.

Neighbouring elements are moved up to 16 bytes at a time, if they are provably aligned to that.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

from tvmdml.targets.cuda.buffers import BufferArray, Buffers, stored
from tvmdml.targets.cuda.terms import EVERYTHING, SIZES, TYPES, Term, binary, call, cast, typed
from tvmdml.targets.cuda.text import Text

_LANE = "lane"
_OF_LANES = re.compile(rf"(\w+)\.at\[{_LANE}\]")


class VectorTranslator(Protocol):
    """What vector code needs from the translator of its function."""

    text: Text
    buffers: Buffers
    restrict: bool

    def index(self, node: Any) -> Term:
        """Translate an index."""

    def named(self, value: Term, name: str) -> Term:
        """Store a value in a constant, or in a vector of lanes."""


class Vectors:
    """Writes the vector code of one function."""

    def __init__(self, writer: VectorTranslator) -> None:
        self._writer = writer
        self._text = writer.text
        self._buffers = writer.buffers
        self.moved: dict[str, str] = {}
        """What the current statement has already loaded from memory, and the variable it is in."""
        self._types: dict[str, str] = {}
        """The types of vector constants."""

    # -- Memory

    def load(self, array: BufferArray, place: Any, count: int) -> Term:
        """Load several elements."""
        run = self._run(place)
        align = 0 if run is None else self._buffers.alignment(array, run, count)
        if run is None or not align:
            return self._buffers.element(array, self._writer.index(place))._replace(lanes=count)
        # In memory a bool is a byte.
        dtype = "uint8" if array.dtype == "bool" else array.dtype
        kind = self.type(dtype, count, align)
        found = f"*(const {kind} *)&{self._buffers.spelled(array, run)}"
        name = self.moved.get(found)
        if name is None:
            array.memory.read = True
            name = self.moved[found] = self._text.named(f"const {kind}", "whole", found)
            self._types[name] = kind
        return cast(Term(dtype, f"{name}.at[{_LANE}]", count, data=True), array.dtype)

    def store(self, array: BufferArray, place: Any, value: Term) -> None:
        """Write several elements. All lanes are computed before any is written."""
        count, run = value.lanes, self._run(place)
        self._buffers.wrote(array, value)
        align = 0 if run is None else self._buffers.alignment(array, run, count)
        if run is not None and align:
            kind = f"Lanes<{stored(array.dtype)}, {count}, {align}>"
            name = _name(value)
            if name is None or self._types.get(name) != kind:
                name = self._text.fresh("whole")
                self._text.line(f"{kind} {name};")
                self.each(count, f"{name}.at[{_LANE}] = {value.code};")
            self._text.line(f"*({kind} *)&{self._buffers.spelled(array, run)} = {name};")
            return
        index = self._writer.index(place)
        if self._meet(array, index):
            index = self.fixed(index, "places")
        if self._meet(array, value):
            value = self.fixed(value, "lanes")
        self.each(count, f"{self._buffers.spelled(array, index)} = {value.code};")

    def _meet(self, array: BufferArray, value: Term) -> bool:
        """Whether writing an element may change another lane of the value."""
        memory = array.memory
        if not value.reads or memory.name in value.reads or EVERYTHING in value.reads:
            return bool(value.reads)
        others = {other.name for other in self._buffers.parameters}
        return not self._writer.restrict and memory.place == "parameter" and bool(others & value.reads)

    def _run(self, index: Any) -> Term | None:
        """The index of the first element, if the elements are contiguous."""
        if type(index).__name__ != "Ramp" or type(index.stride).__name__ != "IntImm" or index.stride.value != 1:
            return None
        return self._writer.index(index.base)

    # -- Values

    def type(self, dtype: str, count: int, align: int = 0) -> str:
        """The type of a vector with so many lanes and this alignment in bytes."""
        return f"Lanes<{TYPES[dtype]}, {count}, {align or SIZES[dtype]}>"

    def each(self, count: int, text: str) -> None:
        """Write a statement that runs for each lane."""
        self._text.line("#pragma unroll")
        self._text.line(f"for (int {_LANE} = 0; {_LANE} < {count}; ++{_LANE}) {text}")

    def fixed(self, value: Term, name: str) -> Term:
        """The lanes of a value in a variable, if they are not in one already."""
        if (value.depth == 0 or _name(value)) and value.code != _LANE and not value.reads:
            return value
        kind, found = self.type(value.dtype, value.lanes), self._text.fresh(name)
        self._text.line(f"{kind} {found};")
        self.each(value.lanes, f"{found}.at[{_LANE}] = {value.code};")
        self._types[found] = kind
        return Term(value.dtype, f"{found}.at[{_LANE}]", value.lanes, data=value.data)

    def whole(self, value: Term) -> str:
        """A variable that holds exactly the lanes of the value."""
        found = self.fixed(value, "lanes")
        name = _name(found)
        if name is None:  # the same constant in each lane
            name = self._text.fresh("lanes")
            self._text.line(f"{self.type(value.dtype, value.lanes)} {name};")
            self.each(value.lanes, f"{name}.at[{_LANE}] = {found.code};")
        return name

    def of(self, dtype: str, count: int, code: str, data: bool, name: str) -> Term:
        """The lanes of a vector that is given as one C++ expression."""
        kind = self.type(dtype, count)
        found = self._text.named(f"const {kind}", name, code)
        self._types[found] = kind
        return Term(dtype, f"{found}.at[{_LANE}]", count, data=data)

    def broadcast(self, value: Term, count: int) -> Term:
        """A vector with the value in every lane."""
        return self._writer.named(value, "each")._replace(lanes=count)

    def ramp(self, base: Term, stride: Term, count: int) -> Term:
        """A vector of numbers with a constant step."""
        lane = cast(Term("int32", _LANE), base.dtype)
        step = lane if stride.number == 1 else binary("Mul", stride, lane)
        return (step if base.number == 0 else binary("Add", base, step))._replace(lanes=count, zeros=0)

    def shuffle(self, dtype: str, vectors: list[Term], indices: list[int]) -> Term:
        """Lanes selected from concatenated vectors."""
        lanes: list[str] = []
        for vector in vectors:
            held = typed(self.fixed(vector, "lanes")) if vector.lanes > 1 else typed(vector)
            lanes += [held.code.replace(f"[{_LANE}]", f"[{i}]") for i in range(vector.lanes)]
        data, reads = any(vector.data for vector in vectors), frozenset[str]().union(*(v.reads for v in vectors if v.lanes == 1))
        if len(indices) == 1:
            return Term(dtype, lanes[indices[0]], data=data, reads=reads, rank=max(v.rank for v in vectors), depth=1)
        return self.of(dtype, len(indices), f"{{{{{', '.join(lanes[i] for i in indices)}}}}}", data, "picked")

    def cut(self, value: Term, dtype: str, count: int) -> Term:
        """The same bits as a vector with another number of lanes."""
        target = self.type(dtype, count) if count > 1 else TYPES[dtype]
        source = Term(value.dtype, self.whole(value)) if value.lanes > 1 else typed(value)
        found = call(dtype, f"bits_as<{target}>", source)._replace(data=True)
        return found if count == 1 else self.of(dtype, count, found.code, True, "bits")


def _name(value: Term) -> str | None:
    """The variable that holds the value's lanes, if there is one."""
    found = _OF_LANES.fullmatch(value.code)
    return found[1] if found is not None else None
