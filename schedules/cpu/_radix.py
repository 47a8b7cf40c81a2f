"""A stable radix sort of keys with positions: least significant digit first, one pass for each digit in which keys differ."""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir as T
from tvmdml.schedules.cpu._order import Order

Temporaries = tuple[tuple[str, int], ...]


class RadixSort:
    """Sorts up to ``room`` entries for each of several tasks, in its own scratch memory.

    An entry is one 64-bit word: the key in ascending form in the upper bits, a 32-bit position in the lower. A key of 64 bits has a
    word of its own, and the positions are in a separate array.
    """

    def __init__(self, order: Order, digit_bits: int) -> None:
        self.order = order
        self.wide = order.bits == 64
        self.passes = -(-order.bits // digit_bits)
        self.digit_bits = -(-order.bits // self.passes)
        self.bins = 1 << self.digit_bits

    def temporaries(self, tasks: int, room: int) -> Temporaries:
        """The scratch memory it needs."""
        entries = 2 * tasks * room  # a pass moves them from one half to the other
        return (("uint64", entries), ("uint32", entries if self.wide else 1), ("uint32", tasks * self.passes * self.bins))

    def declare(self, f: T.Function) -> None:
        """Declare the scratch as parameters."""
        self.entries, self.positions = f.buffer("entries", "uint64"), f.buffer("positions", "uint32")
        self.histogram = f.buffer("histogram", "uint32")

    def begin(self, task: Any, room: Any) -> None:
        """Select a task's part of the scratch for the statements that follow."""
        self.room = room
        self.base = T.let(task * room * 2)
        self.bin_base = T.let(task * (self.passes * self.bins))

    def sort(self, count: Any, key: Any, position: Any) -> Any:
        """Sort ``count`` entries; two functions give entry i's key and position (uint32). Returns where the result begins."""
        with T.loop(T.i64(self.passes * self.bins)) as b:
            T.store(self.histogram, self.bin_base + b, T.const(0, "uint32"))
        with T.loop(count) as i:
            word = T.let(T.cast(self.order.ascending(key(i)), "uint64"))
            if self.wide:
                T.store(self.entries, self.base + i, word)
                T.store(self.positions, self.base + i, position(i))
            else:
                T.store(self.entries, self.base + i, (word << T.const(32, "uint64")) | T.cast(position(i), "uint64"))
            for digit in range(self.passes):
                here = T.let(self._bin(word, digit, 0))
                T.store(self.histogram, here, self.histogram[here] + T.const(1, "uint32"))
        half = T.Variable("int64", T.i64(0))
        for digit in range(self.passes):
            self._pass(digit, half, count)
        return T.let(self.base + half.value)

    def position(self, entry: Any) -> Any:
        """The position (uint32) of a sorted entry."""
        return self.positions[entry] if self.wide else T.cast(self.entries[entry], "uint32")

    def _bin(self, entry: Any, digit: int, above: int) -> Any:
        """The histogram bin of an entry for a digit; the key begins ``above`` bits up in the word."""
        shifted = entry >> T.const(above + digit * self.digit_bits, "uint64")
        value = shifted & T.const(self.bins - 1, "uint64")
        return self.bin_base + digit * self.bins + T.cast(value, "int64")

    def _pass(self, digit: int, half: T.Variable, count: Any) -> None:
        above = 0 if self.wide else 32
        first = T.let(self._bin(self.entries[self.base + half.value], digit, above))
        with T.when(self.histogram[first] != T.cast(count, "uint32")):
            before = T.Variable("uint32", T.const(0, "uint32"))
            with T.loop(T.i64(self.bins)) as value:
                b = T.let(self.bin_base + digit * self.bins + value)
                here = T.let(self.histogram[b])
                T.store(self.histogram, b, before.value)
                before.set(before.value + here)
            source, other = T.let(self.base + half.value), T.let(self.base + self.room - half.value)
            with T.loop(count) as i:
                entry = T.let(self.entries[source + i])
                b = T.let(self._bin(entry, digit, above))
                place = T.let(self.histogram[b])
                T.store(self.histogram, b, place + T.const(1, "uint32"))
                to = T.let(other + T.cast(place, "int64"))
                T.store(self.entries, to, entry)
                if self.wide:
                    T.store(self.positions, to, self.positions[source + i])
            half.set(self.room - half.value)
