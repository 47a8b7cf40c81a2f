"""Prefix sums over a group's threads: by subgroups if the device guarantees whole ones, otherwise in shared memory."""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir as T


class PrefixScan:
    """Prefix sums in shared memory, which this class declares. Every thread of the group must take part in each call.

    Threads are divided into chunks, about as many chunks as threads in a chunk. Sums are made from the sums of chunks, which needs
    few barriers. ``threads`` is a power of two.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._chunk = _chunk(threads)
        self._chunks = threads // self._chunk
        # One word of padding after each chunk: threads that each add up one chunk then have no bank conflicts.
        self._values = T.shared("uint32", threads + self._chunks)
        self._of_chunks = T.shared("uint32", self._chunks)
        self._sums = T.shared("uint32", threads)

    @staticmethod
    def shared_bytes(threads: int) -> int:
        """The shared memory that it needs."""
        return 4 * 2 * (threads + threads // _chunk(threads))

    def sum_up(self, thread: Any, value: Any) -> Any:
        """Compute prefix sums of the threads' values, which ``upto`` and ``before`` then return. Returns the total."""
        self._sum_chunks(thread, value)
        chunk = T.let(thread >> (self._chunk.bit_length() - 1))
        first = T.let(chunk * (self._chunk + 1))
        sum_ = self._sum(self._of_chunks, T.const(0, "int32"), chunk)
        sum_.set(sum_.value + self._sum(self._values, first, (thread & (self._chunk - 1)) + 1).value)
        T.store(self._sums, thread, sum_.value)
        T.barrier()
        return T.let(self.upto(self.threads - 1))

    def upto(self, thread: Any) -> Any:
        """The inclusive prefix sum of a thread."""
        return self._sums[thread]

    def before(self, thread: Any) -> Any:
        """The exclusive prefix sum of a thread."""
        sum_ = T.Variable("uint32", T.const(0, "uint32"))
        with T.when(thread > 0):
            sum_.set(self.upto(thread - 1))
        return sum_.value

    def total(self, thread: Any, value: Any) -> Any:
        """Only the sum of all threads' values."""
        self._sum_chunks(thread, value)
        return T.let(self._sum(self._of_chunks, T.const(0, "int32"), T.const(self._chunks, "int32")).value)

    def _sum_chunks(self, thread: Any, value: Any) -> None:
        T.barrier()  # the previous values may still be read
        T.store(self._values, thread + (thread >> (self._chunk.bit_length() - 1)), value)
        T.barrier()
        with T.when(thread < self._chunks):
            sum_ = self._sum(self._values, thread * (self._chunk + 1), T.const(self._chunk, "int32"))
            T.store(self._of_chunks, thread, sum_.value)
        T.barrier()

    def _sum(self, buffer: Any, first: Any, count: Any) -> T.Variable:
        sum_ = T.Variable("uint32", T.const(0, "uint32"))
        with T.loop(count) as i:
            sum_.set(sum_.value + buffer[first + i])
        return sum_


class SubgroupScan:
    """The same for a device whose groups consist of whole subgroups of ``lockstep`` threads."""

    def __init__(self, threads: int, lockstep: int, dtype: str = "uint32") -> None:
        self.threads, self.lockstep, self.dtype = threads, lockstep, dtype
        self.subgroups = threads // lockstep
        self._of_subgroups = T.shared(dtype, self.subgroups)
        self._sums = T.shared(dtype, threads)

    @staticmethod
    def shared_bytes(threads: int, lockstep: int) -> int:
        """The shared memory that it needs."""
        return 4 * (threads + threads // lockstep)

    def sum_up(self, thread: Any, value: Any) -> Any:
        """As ``PrefixScan.sum_up``."""
        upto, total = self.sums(thread, value)
        T.store(self._sums, thread, upto)
        T.barrier()
        return total

    def sums(self, thread: Any, value: Any) -> tuple[Any, Any]:
        """The inclusive prefix sum of this thread, and the total."""
        own = T.let(T.subgroup("inclusive_add", self.dtype, value))
        lane, number = T.let(thread & (self.lockstep - 1)), T.let(thread >> (self.lockstep.bit_length() - 1))
        self._share(lane == self.lockstep - 1, number, own)
        mine = T.Variable(self.dtype, T.const(0, self.dtype))
        with T.when(lane < self.subgroups):
            mine.set(self._of_subgroups[lane])
        others = T.let(T.subgroup("inclusive_add", self.dtype, mine.value))
        before = T.let(T.subgroup("shuffle", self.dtype, others, T.max(number - 1, T.const(0, "int32"))))
        total = T.let(T.subgroup("shuffle", self.dtype, others, T.const(self.subgroups - 1, "int32")))
        return T.let(own + T.Select(number > 0, before, T.const(0, self.dtype))), total

    def upto(self, thread: Any) -> Any:
        """As ``PrefixScan.upto``."""
        return self._sums[thread]

    def before(self, thread: Any) -> Any:
        """As ``PrefixScan.before``."""
        sum_ = T.Variable(self.dtype, T.const(0, self.dtype))
        with T.when(thread > 0):
            sum_.set(self.upto(thread - 1))
        return sum_.value

    def total(self, thread: Any, value: Any) -> Any:
        """As ``PrefixScan.total``."""
        own = T.let(T.subgroup("add", self.dtype, value))
        self._share((thread & (self.lockstep - 1)) == 0, thread >> (self.lockstep.bit_length() - 1), own)
        sum_ = T.Variable(self.dtype, T.const(0, self.dtype))
        with T.loop(T.const(self.subgroups, "int32")) as i:
            sum_.set(sum_.value + self._of_subgroups[i])
        return T.let(sum_.value)

    def _share(self, condition: Any, number: Any, value: Any) -> None:
        """Share one value of each subgroup, written by one of its threads."""
        T.barrier()  # the previous values may still be read
        with T.when(condition):
            T.store(self._of_subgroups, number, value)
        T.barrier()


def scan(threads: int, lockstep: int) -> PrefixScan | SubgroupScan:
    """The implementation that suits the device."""
    return PrefixScan(threads) if lockstep == 1 else SubgroupScan(threads, lockstep)


def shared_bytes(threads: int, lockstep: int) -> int:
    """The shared memory that it needs."""
    return PrefixScan.shared_bytes(threads) if lockstep == 1 else SubgroupScan.shared_bytes(threads, lockstep)


def _chunk(threads: int) -> int:
    return 1 << (threads.bit_length() - 1) // 2
