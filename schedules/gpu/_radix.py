"""Sort tiles of entries by one digit, each tile in a group's shared memory: the building block of radix sort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmdml.kernels import tensorir as T
from tvmdml.schedules.gpu import strided
from tvmdml.schedules.gpu._bitonic import i32
from tvmdml.schedules.gpu._select import PrefixSums

_NIBBLE = 4
_NIBBLES = 1 << _NIBBLE
_BANK = 32  # banks of a group's shared memory, which serve one word each at a time


class TileSort:
    """A stable sort of one tile of entries by a digit of eight bits.

    The digit and the entry's number in the tile are packed in one word, and sorted by four bits of the digit at a time: each thread
    counts these bits in its own neighbouring words, and a scan over all threads' counts gives the destinations.
    """

    BITS = 8
    BINS = 1 << BITS

    def __init__(self, thread: Any, threads: int, each: int, lockstep: int = 1) -> None:
        self.thread, self.threads, self.each, self.size = thread, threads, each, threads * each
        self._words = T.shared("uint32", self.size)
        self._counts = T.shared("int32", _spread(_NIBBLES * threads))
        self._sums = PrefixSums(threads, thread, threads, lockstep)
        self._base, self._offset = T.shared("int32", self.BINS), T.shared("int32", self.BINS)

    @classmethod
    def shared_bytes(cls, threads: int, each: int) -> int:
        """The shared memory that it needs."""
        counts: int = _spread(_NIBBLES * threads)
        return 4 * (threads * each + counts + 2 * threads + 2 * cls.BINS)

    def begin(self, digit: Any, base: Any) -> None:
        """Set the destination of the first entry with a digit to ``base``."""
        T.store(self._base, digit, base)

    def scatter(self, count: Any, digit: Callable[[Any], Any], move: Callable[[Any, Any], None]) -> None:
        """Sort ``count`` entries by their ``digit``, and ``move(entry, to)`` each to its place among the entries of all tiles."""
        with strided(self.thread, i32(self.size), self.threads) as i:
            word = T.Variable("uint32", T.const(self.BINS - 1, "uint32"))  # unused places sort after the last entry
            with T.when(i < count):
                word.set(T.cast(digit(i), "uint32"))
            T.store(self._words, i, word.value * self.size + T.cast(i, "uint32"))
        T.barrier()
        with T.loop(i32(self.BITS // _NIBBLE)) as turn:
            self._turn(T.let(turn * _NIBBLE))
        with strided(self.thread, count, self.threads) as i:
            own = self._digit(i)
            with T.when(self._neighbour(i - 1, i > 0) != own):
                T.store(self._offset, own, self._base[own] - i)
        T.barrier()
        with strided(self.thread, count, self.threads) as i:
            own = self._digit(i)
            to = T.hold(self._offset[own] + i)
            move(T.cast(self._words[i] & T.const(self.size - 1, "uint32"), "int32"), to)
            with T.when(self._neighbour(i + 1, i < count - 1) != own):
                T.store(self._base, own, to + 1)
        T.barrier()

    def _digit(self, place: Any) -> Any:
        return T.hold(T.cast(self._words[place] >> T.const(self.size.bit_length() - 1, "uint32"), "int32"))

    def _neighbour(self, place: Any, there: Any) -> Any:
        digit = T.Variable("int32", i32(-1))
        with T.when(there):
            digit.set(self._digit(place))
        return digit.value

    def _turn(self, shift: Any) -> None:
        """Sort by four bits of the digit."""
        own = [T.hold(self._words[self.thread * self.each + n]) for n in range(self.each)]
        size_bits = self.size.bit_length() - 1

        def counter(word: Any) -> Any:
            bits = (word >> T.cast(shift + size_bits, "uint32")) & T.const(_NIBBLES - 1, "uint32")
            return T.let(_spread(T.cast(bits, "int32") * self.threads + self.thread))

        with T.loop(i32(_NIBBLES)) as n:
            T.store(self._counts, _spread(n * self.threads + self.thread), i32(0))
        for word in own:
            at = counter(word)
            T.store(self._counts, at, self._counts[at] + 1)
        T.barrier()
        total = T.Variable("int32", i32(0))
        with T.loop(i32(_NIBBLES)) as n:
            total.set(total.value + self._counts[_spread(self.thread * _NIBBLES + n)])
        T.store(self._sums.numbers, self.thread, total.value)
        T.barrier()
        base = T.let(self._sums.run())
        before = T.Variable("int32", self._sums.numbers[base + self.thread] - total.value)
        with T.loop(i32(_NIBBLES)) as n:
            at = T.let(_spread(self.thread * _NIBBLES + n))
            here = T.hold(self._counts[at])
            T.store(self._counts, at, before.value)
            before.set(before.value + here)
        T.barrier()
        for word in own:
            at = counter(word)
            to = T.hold(self._counts[at])
            T.store(self._counts, at, to + 1)
            T.store(self._words, to, word)
        T.barrier()


def _spread(place: Any) -> Any:
    """The padded index of a number, so that neighbours in power-of-two strides are in different memory banks."""
    return place + place // _BANK if isinstance(place, int) else place + (place >> _BANK.bit_length() - 1)
