"""TOP_K1 on the CPU: each sequence on its own, by whichever of three ways suits its length and K.

An element becomes a key: an unsigned number of its own width, in whose order smaller comes first, whatever the type and direction.
-0 and +0 get one key, and so do all NaN. Keys are compared; the values that are returned are copied from the input by position.

insertion  a short sorted list, K at most 32: most elements are told apart from the list's last in blocks, without a look at each
sort       radix sort of the whole sequence: K is a good part of it
filter     elements below the K-th smallest key so far are collected; when room runs out, a radix sort keeps the first K of them

All three are stable: a later element goes before an earlier one only if its key is smaller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tvmdml.schedules.cpu import per_task, share, split

from tvmdml import tensorir as T
from tvmdml.enums import AxisDirection
from tvmdml.kernel import Kernel
from tvmdml.layout import collapse
from tvmdml.operators.top_k import TopK1
from tvmdml.targets import Target

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

BLOCK = 64
"""Elements told apart from the threshold together."""
INSERTION_MAX_K = 32
"""Above this, moving list entries costs more than collecting and sorting."""
FILTER_ROOM = 4
"""A filter has room for this many times K, so that a sort of it makes room for three times K."""
FILTER_LEAST_ROOM = 1024
"""… and for at least this many elements: below, sorting them all is quicker."""
LEAST_TASK_ELEMENTS = 1 << 16
"""A task has to have at least this many elements."""
_DIGIT = 8


def choose(length: int, k: int) -> str:
    """The way for a sequence of this length."""
    if k <= INSERTION_MAX_K:
        return "insertion"
    return "sort" if length <= max(FILTER_ROOM * k, FILTER_LEAST_ROOM) else "filter"


def kernel(desc: TopK1, target: Target, in_place: bool) -> Kernel:
    """Sequences are shared out among tasks; each task has scratch of its own."""
    tensors = (desc.input_tensor, desc.output_value_tensor, desc.output_index_tensor)
    axis, source = desc.axis, desc.input_tensor
    length = source.sizes[axis]
    sizes, steps = collapse(*(_without(axis, t) for t in (source.sizes, *(t.layout for t in tensors))))
    along = [t.layout[axis] for t in tensors]
    way = choose(length, desc.k)
    rows = source.element_count // length
    tasks = min(rows, split(source.element_count, target.tasks(), LEAST_TASK_ELEMENTS))
    room = {"insertion": desc.k + 1, "sort": length, "filter": max(FILTER_ROOM * desc.k, FILTER_LEAST_ROOM)}[way]
    writer = _Writer(desc, way, len(sizes), along[0] == 1 or length == 1, tasks > 1)
    return Kernel(
        "top_k",
        way,
        writer.parameters(),
        writer.function,
        scalars=(tasks, rows, length, desc.k, room, *along, *sizes, *(s for tensor in steps for s in tensor)),
        temporaries=(
            (writer.word, tasks * room * writer.halves),
            ("uint32", tasks * room * writer.halves),
            ("uint32", tasks * (writer.passes << _DIGIT)),
        ),
    )


def _without(axis: int, values: tuple[int, ...]) -> tuple[int, ...]:
    return values[:axis] + values[axis + 1 :]


class _Writer:
    """Writes the kernel; each method writes one piece."""

    def __init__(self, desc: TopK1, way: str, batch_rank: int, dense: bool, parallel: bool) -> None:
        data_type = desc.input_tensor.data_type
        self.way, self.batch_rank, self.dense, self.parallel = way, batch_rank, dense, parallel
        self.bits = 8 * data_type.itemsize
        self.word = f"uint{self.bits}"
        self.form = "float" if data_type.is_float else "signed" if data_type.is_signed else "unsigned"
        self.exponent = {16: 0x7C00, 32: 0x7F800000, 64: 0x7FF0000000000000}.get(self.bits, 0)
        self.decreasing = desc.axis_direction is AxisDirection.DECREASING
        self.index_type = desc.output_index_tensor.data_type.tvm
        self.passes = self.bits // _DIGIT
        self.halves = 1 if way == "insertion" else 2  # a radix sort goes back and forth between two halves

    def parameters(self) -> tuple[tuple[str, int | str | bool], ...]:
        names = ("bits", "form", "decreasing", "index_type", "batch_rank", "dense", "parallel")
        return (*((name, getattr(self, name)) for name in names), ("block", BLOCK), ("digit", _DIGIT))

    def function(self) -> PrimFunc:
        with T.function() as f:
            self.source, self.values = f.buffer("input", self.word), f.buffer("values", self.word)
            self.indices = f.buffer("indices", self.index_type)
            self.keys, self.positions = f.buffer("keys", self.word), f.buffer("positions", "uint32")
            self.histogram = f.buffer("histogram", "uint32")
            tasks, rows, self.length, self.k, self.room = (f.scalar(n) for n in ("tasks", "rows", "length", "k", "room"))
            self.step, self.value_step, self.index_step = (f.scalar(n) for n in ("step", "value_step", "index_step"))
            sizes = f.scalars("size", self.batch_rank)
            steps = [f.scalars(n, self.batch_rank) for n in ("row", "value_row", "index_row")]
            if self.dense:
                self.step = T.i64(1)

            def task(number: Any) -> None:
                self.base = T.let(number * self.room * self.halves)
                self.bins = T.let(number * (self.passes << _DIGIT))
                begin, end = share(number, tasks, rows)
                with T.loop(end - begin) as r:
                    at = T.unravel(begin + r, sizes)
                    self.start, value_start, index_start = (T.let(T.dot(at, s)) for s in steps)
                    first = {"insertion": self._insertion, "sort": self._sort, "filter": self._filter}[self.way]()
                    self._emit(first, value_start, index_start)

            per_task(tasks, self.parallel, task)
        return f.result()

    # -- Keys -----------------------------------------------------------------------------------------------------

    def _key(self, i: Any) -> Any:
        """The key of the element at position ``i``."""
        word = self.source[self.start + i * self.step]
        sign = T.word(1 << (self.bits - 1), self.bits)
        if self.form == "signed":
            key = word ^ sign
        elif self.form == "unsigned":
            key = word
        else:
            magnitude = word & T.word((1 << (self.bits - 1)) - 1, self.bits)
            negative = (word >= sign) & (magnitude != T.word(0, self.bits))  # -0 goes with +0
            key = T.Select(negative, ~word, word | sign)
            key = T.Select(magnitude > T.word(self.exponent, self.bits), T.word(-1, self.bits), key)  # NaN is above all
        return ~key if self.decreasing else key

    def _blocks(self, begin: Any, body: Callable[[Any, Any], None]) -> None:
        """``body(first, size)`` for each block of the positions from ``begin`` on."""
        with T.loop(T.truncdiv(self.length - begin + (BLOCK - 1), T.i64(BLOCK))) as b:
            first = T.let(begin + b * BLOCK)
            body(first, T.let(T.min(T.i64(BLOCK), self.length - first)))

    def _any_below(self, threshold: Any, first: Any, size: Any) -> Any:
        """Whether a block has a key below the threshold. (LLVM vectorises a count; a minimum or a disjunction it does not.)"""
        below = T.Variable("int32", T.const(0, "int32"))
        with T.loop(size) as i:
            below.set(below.value + T.cast(self._key(first + i) < threshold, "int32"))
        return below.value > T.const(0, "int32")

    def _put(self, place: Any, key: Any, position: Any) -> None:
        T.store(self.keys, self.base + place, key)
        T.store(self.positions, self.base + place, position)

    # -- The three ways: each leaves K entries in order, and returns where they begin ------------------------------

    def _insertion(self) -> Any:
        """Entries 1 to K are the list. Entry 0 has the smallest key there is, so that no search goes past it."""
        self._put(T.i64(0), T.word(0, self.bits), T.const(0, "uint32"))

        def insert(last: Any, key: Any, position: Any) -> None:
            """Into the list that may grow to entry ``last``; what is there already is lost."""
            place = T.Variable("int64", last)
            with T.loop_while(self.keys[self.base + place.value - 1] > key):
                self._put(place.value, self.keys[self.base + place.value - 1], self.positions[self.base + place.value - 1])
                place.set(place.value - 1)
            self._put(place.value, key, T.cast(position, "uint32"))

        with T.loop(self.k) as i:
            insert(T.let(i + 1), T.let(self._key(i)), i)

        def block(first: Any, size: Any) -> None:
            last = T.let(self.keys[self.base + self.k])
            with T.when(self._any_below(last, first, size)), T.loop(size) as i:
                key = T.let(self._key(first + i))
                with T.when(key < self.keys[self.base + self.k]):
                    insert(self.k, key, first + i)

        self._blocks(self.k, block)
        return T.i64(1)

    def _sort(self) -> Any:
        with T.loop(self.length) as i:
            self._put(i, self._key(i), T.cast(i, "uint32"))
        return self._radix_sort(self.length)

    def _filter(self) -> Any:
        with T.loop(self.room) as i:
            self._put(i, self._key(i), T.cast(i, "uint32"))
        count = T.Variable("int64", self.room)

        def keep_first_k() -> None:
            first = T.let(self._radix_sort(count.value))
            with T.when(first != 0), T.loop(self.k) as i:
                self._put(i, self.keys[self.base + first + i], self.positions[self.base + first + i])
            count.set(self.k)

        threshold = T.Variable(self.word)

        def block(first: Any, size: Any) -> None:
            with T.when((count.value > self.room - BLOCK) | (first == self.room)):
                keep_first_k()
                threshold.set(self.keys[self.base + self.k - 1])
            with T.when(self._any_below(T.let(threshold.value), first, size)), T.loop(size) as i:
                key = T.let(self._key(first + i))
                self._put(count.value, key, T.cast(first + i, "uint32"))
                count.set(count.value + T.cast(key < threshold.value, "int64"))

        self._blocks(self.room, block)
        return self._radix_sort(count.value)

    def _radix_sort(self, count: Any) -> Any:
        """Sort the task's entries by key, least significant digit first; returns which half of the scratch they end in."""
        bins = 1 << _DIGIT
        with T.loop(T.i64(self.passes * bins)) as i:
            T.store(self.histogram, self.bins + i, T.const(0, "uint32"))

        def bin_of(key: Any, digit: Any) -> Any:
            """Where in the histogram a key counts, by one of its digits."""
            value = (key >> T.cast(digit * _DIGIT, self.word)) & T.word(bins - 1, self.bits)
            return T.let(self.bins + digit * bins + T.cast(value, "int64"))

        with T.loop(count) as i:
            key = T.let(self.keys[self.base + i])
            with T.loop(T.i64(self.passes)) as digit:
                b = bin_of(key, digit)
                T.store(self.histogram, b, self.histogram[b] + T.const(1, "uint32"))
        half = T.Variable("int64", T.i64(0))
        with T.loop(T.i64(self.passes)) as digit:
            first_bin = bin_of(self.keys[self.base + half.value], digit)
            with T.when(self.histogram[first_bin] != T.cast(count, "uint32")):  # else all share this digit
                before = T.Variable("uint32", T.const(0, "uint32"))
                with T.loop(T.i64(bins)) as value:
                    b = T.let(self.bins + digit * bins + value)
                    here = T.let(self.histogram[b])
                    T.store(self.histogram, b, before.value)
                    before.set(before.value + here)
                source = T.let(half.value)
                other = T.let(self.room - source)
                with T.loop(count) as i:
                    key = T.let(self.keys[self.base + source + i])
                    b = bin_of(key, digit)
                    place = T.let(self.histogram[b])
                    T.store(self.histogram, b, place + T.const(1, "uint32"))
                    self._put(other + T.cast(place, "int64"), key, self.positions[self.base + source + i])
                half.set(other)
        return half.value

    def _emit(self, first: Any, value_start: Any, index_start: Any) -> None:
        first = T.let(first)
        with T.loop(self.k) as j:
            position = T.let(self.positions[self.base + first + j])
            T.store(self.values, value_start + j * self.value_step, self.source[self.start + T.cast(position, "int64") * self.step])
            T.store(self.indices, index_start + j * self.index_step, T.cast(position, self.index_type))
