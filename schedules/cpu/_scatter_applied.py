"""Updates of a task that has some of the places, and rows that are combined: the parts of ``_scatter.py`` that apply them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.schedules.cpu._ahead import read_ahead, write_ahead
from tvmdml.schedules.cpu._picked import AT_ONCE
from tvmdml.schedules.cpu._runs import Runs

_LISTED = 7
"""Vectors of indices of which a task lists its own ones before it applies these updates: two lists fit on the stack."""
_BYTE = 8
AHEAD_ROWS = 8
"""Rows that are combined between one and another that is asked for, of which so many lines are: the others follow."""
AHEAD_LINES = 4


class Applied(Runs):  # type: ignore[misc] # mypy knows these modules by another name
    """Base class of what writes such kernels."""

    types: tuple[str, ...]
    way: str
    divided: bool
    """Whether tasks have parts of the places."""
    signed: bool
    """Whether negative indices count from the end."""
    combination: str
    """How an update and the element that is there are combined; empty if it is replaced."""
    even: bool
    """Whether rows that are combined are whole lines."""
    row_lines: int
    """How many lines are asked for of a row that is combined later; 0 if the first cache has it."""
    combined: Callable[[Any, Any], Any]
    n: Any
    at: SimpleNamespace
    first: Any
    last_column: Any
    low: Any
    high: Any
    given: Any
    result: Any
    looked: list[Any]

    def _put(self, buffer: Any, place: Any, update: Any) -> None:
        T.store(buffer, place, self.combined(buffer[place], update) if self.combination else update)

    def _combined_row(self, given: Any, result: Any) -> None:
        """The task's columns of an update: lines, and what is left in halves of a line."""
        step, count = self.n.inner[1], T.let(self.last_column - self.first)
        given, result = T.let(given + self.first * step), T.let(result + self.first)
        if not (isinstance(step, int) and step == 1):
            with T.loop(count) as i:
                self._put(self.at.result, T.let(result + i), self.at.updates[given + i * step])
            return

        def run(at: Any, lanes: int) -> None:
            place, update = (T.run(T.let(base + at), lanes) if lanes > 1 else T.let(base + at) for base in (result, given))
            self._put(self.at.result, place, self.at.updates[update])

        lanes = self.lanes
        with T.loop(T.let(T.truncdiv(count, T.i64(lanes)))) as i:
            run(T.let(i * lanes), lanes)
        while not self.even and lanes > 1:
            lanes //= 2
            with T.when(T.truncmod(T.truncdiv(count, T.i64(lanes)), T.i64(2)) == 1):
                run(T.let(T.truncdiv(count, T.i64(2 * lanes)) * (2 * lanes)), lanes)

    def _asked_row(self, number: Any) -> None:
        """Ask for a row that is combined later."""
        place, _ = self._place(number)
        result = T.let(self.result + place * self.n.places[1] + self.first)
        for line in range(self.row_lines):
            write_ahead(self.at.result, T.let(result + line * self.lanes))
        if self.divided:  # the next one may be far away
            given = T.let(self.given + number * self.n.number[0] + self.first)
            for line in range(self.row_lines):
                read_ahead(self.at.updates, T.let(given + line * self.lanes))

    def _found(self, at: Any) -> tuple[Any, Any]:
        """As many indices, and a word whose bits say which of them are places of the task."""
        kind = f"int{self.types[1].partition('int')[2]}"
        low, high = (T.splat(T.let(T.cast(bound, kind)), AT_ONCE) for bound in (self.low, self.high))
        index = self._counted(self.at.indices[T.run(T.let(at), AT_ONCE)], self.n.sizes[0], kind)
        return index, self.leaves.bits((index >= low) & (index < high))

    def _sought(self, first: Any, rounds: Any) -> None:
        """Which of many indices are the task's is found at once. While it applies these updates, it asks for the next ones."""
        several, room = T.i64(_LISTED), _LISTED * AT_ONCE + _BYTE
        lists, before = T.local("int32", 2 * room), T.Variable("int64", T.i64(0))
        with T.loop(T.let(T.truncdiv(rounds + (several - 1), several) + 1)) as part:
            base = T.let(first + part * (several * AT_ONCE))
            own = T.let(T.truncmod(part, T.i64(2)) * room)
            other = T.let(room - own)
            count = T.let(self._listed(lists, own, base, T.let(T.min(rounds - part * several, several))))
            with T.loop(T.let(T.max(count, before.value))) as i:
                if self.row_lines:
                    with T.when(i < count):
                        self._asked_row(T.let(base + T.cast(lists[own + i], "int64")))
                with T.when(i < before.value):
                    self._taken(T.let(base - several * AT_ONCE + T.cast(lists[other + i], "int64")))
            before.set(count)

    def _listed(self, lists: Any, start: Any, first: Any, rounds: Any) -> Any:
        """List which of some vectors' indices are the task's, by their numbers from the first one on; how many they are."""
        count = T.Variable("int64", T.i64(0))
        with T.loop(rounds) as i:
            begin = T.let(i * AT_ONCE)
            _, mask = self._found(self.looked[0] + first + begin)
            mask = T.let(T.cast(mask, "uint64"))
            for half in range(0, AT_ONCE, _BYTE):
                byte = T.let((mask >> T.const(half, "uint64")) & T.const((1 << _BYTE) - 1, "uint64"))
                numbers = T.cast(self.leaves.positions(byte), "int32") + T.splat(T.cast(begin + half, "int32"), _BYTE)
                T.store(lists, T.run(T.let(start + count.value), _BYTE), numbers)
                count.set(count.value + T.cast(T.call_llvm_pure_intrin("uint64", "llvm.ctpop", byte), "int64"))
        return count.value

    def _taken(self, number: Any) -> None:
        """An update that is the task's."""
        n, (place, _) = self.n, self._place(number)
        given, result = T.let(self.given + number * n.number[0]), T.let(self.result + place * n.places[1])
        if self.way == "slices":
            self._combined_row(given, result)
        else:
            self._put(self.at.result, result, self.at.updates[given])

    def _counted(self, index: Any, size: Any, dtype: str) -> Any:
        """An index, signed; a negative one counts from the end."""
        bits = T.bits_of(index)
        index = T.let(T.cast(index, dtype) if bits == 32 and dtype == "int64" else T.reinterpret(index, f"int{bits}"))
        if not self.signed:
            return index
        zero = T.like(index, 0)
        size = T.cast(size, dtype)
        return T.let(T.Select(index < zero, index + (size if T.lanes(index) == 1 else T.splat(size, T.lanes(index))), index))

    def _place(self, number: Any, column: Any = None) -> tuple[Any, Any]:
        """The number of an update's place, and whether it is one of the task's."""
        n, total, fits = self.n, None, None
        several = len(n.sizes) > 1
        for j, size in enumerate(n.sizes):
            at = self.looked[j] + number * n.number[1 + j]
            index = self._counted(self.at.indices[at if column is None else at + column * n.inner[2]], size, "int64")
            weighted = index * n.weights[j] if several else index
            total = weighted if total is None else total + weighted
            if several:
                own = (index >= T.i64(0)) & (index < size)
                fits = own if fits is None else fits & own
        total = T.let(total)
        inside = (total >= self.low) & (total < self.high)
        return total, inside if fits is None else fits & inside
