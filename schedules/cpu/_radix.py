"""A stable radix sort of keys with positions: least significant digit first, a pass a digit, none for a digit that all share."""

from __future__ import annotations

from typing import Any

from tvmdml import tensorir as T
from tvmdml.schedules.cpu._order import Order

Temporaries = tuple[tuple[str, int], ...]


class RadixSort:
    """Sorts up to ``room`` entries for each of several tasks, in scratch memory of its own.

    An entry is a key's ascending form above a 32-bit position, in one 64-bit word; keys of 64 bits lie in a word of their own,
    with the positions beside them.
    """

    def __init__(self, order: Order, digit_bits: int) -> None:
        self.order = order
        self.wide = order.bits == 64
        self.passes = -(-order.bits // digit_bits)
        self.digit_bits = -(-order.bits // self.passes)
        self.bins = 1 << self.digit_bits

    def temporaries(self, tasks: int, room: int) -> Temporaries:
        """The scratch it takes."""
        entries = 2 * tasks * room  # a pass moves them from one half to the other
        return (("uint64", entries), ("uint32", entries if self.wide else 1), ("uint32", tasks * self.passes * self.bins))

    def declare(self, f: T.Function) -> None:
        """Take the scratch as parameters."""
        self.entries, self.positions = f.buffer("entries", "uint64"), f.buffer("positions", "uint32")
        self.histogram = f.buffer("histogram", "uint32")

    def begin(self, task: Any, room: Any) -> None:
        """What follows is in a task's own part of the scratch."""
        self.room = room
        self.base = T.let(task * room * 2)
        self.bin_base = T.let(task * (self.passes * self.bins))

    def sort(self, count: Any, key: Any, position: Any) -> Any:
        """Sort the entries whose key and position (uint32) two functions give by their number; returns where they begin."""
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
        """The position (uint32) that a sorted entry holds."""
        return self.positions[entry] if self.wide else T.cast(self.entries[entry], "uint32")

    def _bin(self, entry: Any, digit: int, above: int) -> Any:
        """Where in the histogram an entry counts by a digit; its key is ``above`` so many bits."""
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
