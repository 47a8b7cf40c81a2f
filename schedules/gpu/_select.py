"""The first K of many entries, found by the digits of their keys (radix select)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmdml.kernels import tensorir as T
from tvmdml.schedules.gpu import strided
from tvmdml.schedules.gpu._bitonic import POSITION, Entries, Load, Neighbours, i32, stream
from tvmdml.schedules.gpu._scan import SubgroupScan


class PrefixSums:
    """Prefix sums over numbers in shared memory."""

    def __init__(self, size: int, thread: Any, threads: int, lockstep: int = 1) -> None:
        self.size, self.thread, self.threads = size, thread, threads
        self.numbers = T.shared("int32", 2 * size if lockstep == 1 else size)
        """The numbers are in the first ``size`` places; the rest is for intermediate steps."""
        self._scan = None if lockstep == 1 else SubgroupScan(threads, lockstep, "int32")

    @staticmethod
    def shared_bytes(size: int) -> int:
        """The shared memory that it needs."""
        return 8 * size

    def run(self) -> Any:
        """Replace each number by its inclusive prefix sum; returns where the first one is now. Barriers before and after."""
        return self._run_by_steps() if self._scan is None else self._run_by_subgroups(self._scan)

    def _run_by_subgroups(self, scan: SubgroupScan) -> Any:
        """Process as many numbers at a time as there are threads."""
        carry = T.Variable("int32", i32(0))
        with T.loop(i32(-(-self.size // self.threads))) as turn:
            place = T.let(turn * self.threads + self.thread)
            own = T.Variable("int32", i32(0))
            with T.when(place < self.size):
                own.set(self.numbers[place])
            upto, total = scan.sums(self.thread, own.value)
            with T.when(place < self.size):
                T.store(self.numbers, place, carry.value + upto)
            carry.set(carry.value + total)
        T.barrier()
        return i32(0)

    def _run_by_steps(self) -> Any:
        base, step = T.Variable("int32", i32(0)), T.Variable("int32", i32(1))
        with T.loop_while(step.value < self.size):
            with strided(self.thread, i32(self.size), self.threads) as i:
                own = T.Variable("int32", self.numbers[base.value + i])
                with T.when(i >= step.value):
                    own.set(own.value + self.numbers[base.value + i - step.value])
                T.store(self.numbers, (self.size - base.value) + i, own.value)
            T.barrier()
            base.set(self.size - base.value)
            step.set(step.value * 2)
        return base.value


class Counters:
    """A histogram of digits in shared memory, with several counters for each digit to reduce contention between threads."""

    def __init__(self, bins: int, copies: int, thread: Any, threads: int) -> None:
        self.bins, self.copies, self.thread, self.threads = bins, copies, thread, threads
        self._counts = T.shared("int32", bins * copies)

    @staticmethod
    def shared_bytes(bins: int, copies: int) -> int:
        """The shared memory that it needs."""
        return 4 * bins * copies

    def clear(self) -> None:
        """Set all counters to zero; ends with a barrier."""
        with strided(self.thread, i32(self.bins * self.copies), self.threads) as i:
            T.store(self._counts, i, i32(0))
        T.barrier()

    def add(self, digit: Any) -> None:
        """Count one occurrence of a digit."""
        T.atomic_do("add", self._counts, digit * self.copies + (self.thread & (self.copies - 1)), i32(1))

    def total(self, digit: Any) -> Any:
        """The count of a digit, after all were added."""
        sum_: Any = self._counts[digit * self.copies]
        for copy in range(1, self.copies):
            sum_ = sum_ + self._counts[digit * self.copies + copy]
        return T.let(sum_)


class Select:
    """The first K of many entries: narrowed digit by digit, until the remaining candidates fit in shared memory.

    The digits of keys come first. If too many entries have the same key, the digits of their positions follow.
    """

    def __init__(self, entries: Entries, batch: int, digit_bits: int, copies: int) -> None:
        self.entries, self.batch, self.digit_bits, self.bins = entries, batch, digit_bits, 1 << digit_bits
        self.sums = PrefixSums(self.bins, entries.thread, entries.threads, entries.lockstep)
        self.counters = Counters(self.bins, copies, entries.thread, entries.threads)
        self._found = T.shared("int32", 3)
        self._count = T.shared("int32", 1)

    def collect(self, load: Load | Neighbours, total: Any, k: Any, keep: Any, position_shift: Any) -> None:
        """The first ``k`` of ``total`` entries, in order; ``keep`` is ``k`` rounded up to a power of two, at most the space
        available.

        ``position_shift`` is the shift of a position's highest digit.
        """
        own = self.entries
        # ``sure`` entries come before those whose digits so far equal the K-th's; of the latter there are ``open``.
        self.sure, self.open = T.Variable("int32", i32(0)), T.Variable("int32", total)
        keys = _Digits(own.order.word, i32(highest_shift(own.order.bits, self.digit_bits)))
        positions = _Digits(POSITION, position_shift)
        self._narrow(load, total, k, keys, lambda key, position: (key, None))
        self._narrow(load, total, k, positions, lambda key, position: (position, key == keys.head.value))
        with T.when(own.thread == 0):
            T.store(self._count, 0, i32(0))
        T.barrier()

        def take(key: Any, position: Any) -> None:
            head = T.let(own.order.above(key, keys.low.value))
            tail = T.let(own.order.above(position, positions.low.value))
            with T.when((head < keys.most.value) | ((head == keys.most.value) & (tail <= positions.most.value))):
                own.put(T.let(T.atomic("add", self._count, 0, i32(1))), key, position)

        stream(own.thread, own.threads, T.Variable("int32", i32(0)), total, self.batch, load, take)
        T.barrier()
        width = own.widen(self.sure.value + self.open.value, keep)
        own.sort(width, width, keep)

    def _narrow(
        self, load: Load | Neighbours, total: Any, k: Any, digits: _Digits, part: Callable[[Any, Any], tuple[Any, Any]]
    ) -> None:
        """Examine one digit after the other. ``part`` gives the number with the digits, and whether an entry counts."""
        own, order = self.entries, self.entries.order
        shift = T.Variable("int32", digits.first)
        numbers = self.sums.numbers
        with T.loop_while((self.sure.value + self.open.value > own.room) & (shift.value >= 0)):
            self.counters.clear()

            def count(key: Any, position: Any) -> None:
                number, counts = part(key, position)
                rest = T.let(order.above(number, shift.value))
                same = order.above(rest, i32(self.digit_bits)) == digits.head.value
                with T.when(same if counts is None else same & counts):
                    self.counters.add(order.digit(rest, i32(0), self.bins))

            stream(own.thread, own.threads, T.Variable("int32", i32(0)), total, self.batch, load, count)
            T.barrier()
            with strided(own.thread, i32(self.bins), own.threads) as i:
                T.store(numbers, i, self.counters.total(i))
            T.barrier()
            base = T.let(self.sums.run())
            wanted = T.let(k - self.sure.value)
            with strided(own.thread, i32(self.bins), own.threads) as bin_:
                upto = T.hold(numbers[base + bin_])
                below = T.Variable("int32", i32(0))
                with T.when(bin_ > 0):
                    below.set(numbers[base + bin_ - 1])
                with T.when((below.value < wanted) & (upto >= wanted)):
                    for place, value in enumerate((bin_, below.value, upto - below.value)):
                        T.store(self._found, place, value)
            T.barrier()
            digits.head.set(digits.head.value * self.bins + T.cast(self._found[0], T.type_of(digits.head.value)))
            digits.most.set(digits.head.value)
            digits.low.set(shift.value)
            self.sure.set(self.sure.value + self._found[1])
            self.open.set(self._found[2])
            shift.set(shift.value - self.digit_bits)


class _Digits:
    """The known digits of the K-th entry's key, or of its position."""

    def __init__(self, dtype: str, first: Any) -> None:
        self.first = first
        """The shift of the highest digit."""
        self.head = T.Variable(dtype, T.const(0, dtype))
        """The digits known so far."""
        self.low = T.Variable("int32", i32(0))
        """The shift of the lowest known digit."""
        self.most = T.Variable(dtype, T.word(-1, int(dtype.removeprefix("uint"))))
        """The largest prefix that still counts: the known digits, or all bits set while none is known."""


def highest_shift(bits: int, digit_bits: int) -> int:
    """The shift of the highest digit of a number with so many bits."""
    return (bits - 1) // digit_bits * digit_bits
