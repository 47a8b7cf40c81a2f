"""DIAGONAL_MATRIX1 on the CPU: limited by memory, so write each cache line once, whole, and read only what is copied.

In each row the band is one segment, ``[first, last)``. Inside and outside of it, the result is a constant or the input. Elements
are moved as plain bits, so one kernel serves every type of the same size. There are three algorithms:

- ``flat``: a narrow band of a packed output without input. The outside is one long fill, and the band is stored on top of it while
  the lines are still in cache. Large outputs are written with non-temporal stores, except for the lines that the band touches.
- ``rows``: the elements of a row are contiguous. A row consists of lines that are all outside, all inside, or a blend of the two.
- ``elements``: any strides, one element at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmdml.kernels import tensorir as T
from tvmdml.kernels.kernel import Kernel, Offers
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.kernels.layout import collapse
from tvmdml.operators._contract import Shared
from tvmdml.operators.diagonal_matrix import DiagonalMatrix1, bits
from tvmdml.schedules.cpu import STREAMED, per_task, share, split, stream_bytes, unit_step
from tvmdml.schedules.cpu._leaves import Leaves
from tvmdml.targets import Target

if TYPE_CHECKING:
    from collections.abc import Callable


_LINE = 64
_COLUMNS = 16

KNOBS = Knobs(
    "diagonal_matrix",
    STREAMED,
    task_bytes=Knob(1 << 17, (1, *(1 << n for n in range(12, 24))), "least bytes of result for each task, if processed row by row"),
    # One thread fills what fits in its core's L2 cache, of which a quarter is left to other data: fetching lines that another core
    # wrote the last time takes longer than filling them. Two threads fill more than that, with at least three eighths of L2 each.
    fill_bytes=Knob(
        3 << 17, (1, *(factor << n for n in range(12, 24) for factor in (2, 3))), "least bytes of a long fill for each task",
        derived=lambda caches: caches.l2 // 8 * 3,
    ),
    tasks_per_thread=Knob(4, (1, 2, 4, 8, 16), "tasks per thread: rows of a triangle differ in cost"),
    # The result fills half of the last-level cache: the other half is left to what the program reads next.
    stream_bytes=stream_bytes("least bytes of a result that is written with non-temporal stores"),
    on_top_bytes=Knob(64, (0, *(1 << n for n in range(3, 12))), "largest width of a band that is stored on top of a long fill"),
    # The filled lines are still in the L1 cache when the band is stored.
    block_bytes=Knob(
        1 << 15, tuple(1 << n for n in range(10, 24)), "bytes that are filled before the band is stored on top of them",
        derived=lambda caches: caches.l1,
    ),
)  # fmt: skip


def kernel(desc: DiagonalMatrix1, target: Target, shared: Shared, knobs: Any) -> Kernel:
    """Rows of all matrices of the batch; columns are treated as rows if the output's elements are closer together that way."""
    source, result = desc.input_tensor, desc.output_tensor
    itemsize = result.data_type.itemsize
    layouts = [result.layout, result.layout if source is None else source.layout]
    height, width = result.sizes[-2:]
    begin, end = desc.diagonal_fill_begin, desc.diagonal_fill_end
    if abs(result.layout[-2]) < abs(result.layout[-1]):
        layouts = [(*rest, x, y) for *rest, y, x in layouts]
        height, width, begin, end = width, height, 1 - end, 1 - begin
    inverted = begin > end  # then the value is written outside of [end, begin)
    low, high = min(begin, end), max(begin, end)
    batch, steps = collapse(result.sizes[:-2], *(layout[:-2] for layout in layouts))

    rows = result.element_count // width
    size = result.element_count * itemsize
    if width > 1 and any(layout[-1] != 1 for layout in layouts):
        way = "elements"
    elif source is None and result.is_packed and (high - low) * itemsize <= knobs.on_top_bytes:
        way = "flat"
    else:
        way = "rows"
    tasks = split(size, target, knobs.fill_bytes if way == "flat" else knobs.task_bytes)
    tasks = min(tasks * knobs.tasks_per_thread, rows) if tasks > 1 else 1
    # The elements of a vector are contiguous in memory.
    room = {"elements": 1, "flat": rows // tasks * width, "rows": width}[way]
    lanes = min(_LINE // itemsize, 1 << room.bit_length() - 1)
    writer = _Writer(
        Leaves(target),
        itemsize=itemsize,
        way=way,
        copied="none" if source is None else "inside" if inverted else "outside",
        lanes=lanes,
        batch_rank=len(batch),
        steps=tuple(unit_step(layout[-1]) for layout in layouts),
        # If columns are contiguous, a few columns are processed together: the lines that the row before read are in cache.
        columns=_COLUMNS if way == "elements" and any(0 < abs(y) < abs(x) for *_, y, x in layouts) else 0,
        stream=size >= knobs.stream_bytes and lanes * itemsize == _LINE,
    )
    value = bits(desc.element()) * (0x01010101 if itemsize == 1 else 1)  # bytes are filled four at a time
    constants = (0, value) if inverted else (value, 0)
    return Kernel(
        "diagonal_matrix", way, writer.parameters, writer.function,
        scalars=(
            tasks, height, width, low, high,
            *(c - (1 << 64) if c >> 63 else c for c in constants), 0,  # 64 bits are passed as a signed integer
            max(1, knobs.block_bytes // (width * itemsize)),
            *layouts[0][-2:], *layouts[1][-2:], *batch, *steps[0], *steps[1],
        ),
        offers=Offers.OWN if way == "elements" else Offers.OWN | Offers.VECTORS,
    )  # fmt: skip


class _Writer:
    """Writes the kernel."""

    itemsize: int
    way: str
    copied: str
    lanes: int
    batch_rank: int
    steps: tuple[int, int]
    columns: int
    stream: bool

    def __init__(self, leaves: Leaves, **choices: Any) -> None:
        self.leaves, self.parameters = leaves, tuple(choices.items())
        self.__dict__.update(choices)
        self.unsigned = f"uint{8 * self.itemsize}"

    def function(self) -> T.PrimFunc:
        with T.function() as f:
            self.source: Any = None if self.copied == "none" else f.buffer("input", self.unsigned)
            self.result = f.buffer("output", self.unsigned)
            tasks, self.height, self.width = f.scalar("tasks"), f.scalar("height"), f.scalar("width")
            self.low, self.high = f.scalar("low"), f.scalar("high")
            inside, outside, zero = f.scalar("inside"), f.scalar("outside"), f.scalar("zero")
            self.block = f.scalar("block")
            row_out, step_out = f.scalars("out", 2)
            row_in, step_in = f.scalars("in", 2)
            batch = f.scalars("batch", self.batch_rank)
            batch_out, batch_in = f.scalars("batch_out", self.batch_rank), f.scalars("batch_in", self.batch_rank)
            self.step_out, self.step_in = (
                T.i64(known) if known else step for known, step in zip(self.steps, (step_out, step_in), strict=True)
            )
            self.constants = {"inside": inside, "outside": outside, "zero": zero}

            def task(number: Any) -> None:
                rows = self.height
                for size in batch:
                    rows = rows * size
                begin, end = share(number, tasks, rows)

                def each_row(body: Callable[..., None], *more: Any) -> None:
                    with T.loop(end - begin) as r:
                        *at, y = T.unravel(begin + r, [*batch, self.height])
                        start_in, start_out = T.dot(at, batch_in) + y * row_in, T.dot(at, batch_out) + y * row_out
                        body(_known(start_in), _known(start_out), *self._band(y), *more)

                if self.way == "flat":
                    self._flat(begin, end)
                elif self.way == "rows":
                    each_row(self._row)
                elif self.columns:
                    with T.loop(T.truncdiv(self.width + (self.columns - 1), T.i64(self.columns))) as i:
                        left = T.let(i * self.columns)
                        each_row(self._elements, left, T.let(T.min(self.width, left + self.columns)))
                else:
                    each_row(self._elements, T.i64(0), self.width)
                if self.stream:
                    self.leaves.fence()

            with self.leaves.available():
                per_task(tasks, task)
        return f.result()

    def _band(self, y: Any) -> tuple[Any, Any]:
        """Where the band of a row begins and ends."""
        first, last = (T.max(T.i64(0), T.min(self.width, y + bound)) for bound in (self.low, self.high))
        return _known(first), _known(last)

    # -- A long fill, and the band on top ----------------------------------------------------------------------------

    def _flat(self, begin: Any, end: Any) -> None:
        start, stop = T.let(begin * self.width), T.let(end * self.width)
        constant = T.let(self._constant("outside", self.lanes))
        # The partial lines at both ends; the rest writes whole lines.
        self._store(start, constant, self.lanes)
        self._store(stop - self.lanes, constant, self.lanes)
        origin = T.let(start + self._to_line(start))
        limit = T.let(origin + self._lines(stop - origin))
        done = T.Variable("int64", origin)

        def fill(upto: Any, stream: bool) -> None:
            """Fill lines up to, not including, the line at ``upto``."""
            upto = T.let(T.max(done.value, T.min(upto, limit)))
            self._each_line(done.value, upto, lambda at: self._store(at, constant, self.lanes, stream))
            done.set(upto)

        def band(row: Any, first: Any, last: Any) -> None:
            with T.loop(last - first) as i:
                # OR with a zero that LLVM does not know: otherwise it calls memset for a band of bytes, however narrow.
                same = self._constant("inside") | (T.cast(i, self.unsigned) & self._constant("zero"))
                T.store(self.result, row * self.width + first + i, same)

        def of_row(row: Any) -> tuple[Any, Any]:
            return self._band(T.unravel(row, [T.i64(1), self.height])[1] if self.batch_rank else row)

        if self.stream:
            with T.loop(end - begin) as r:
                row = T.let(begin + r)
                first, last = of_row(row)
                with T.when(first < last):
                    at = T.let(row * self.width - origin)
                    fill(origin + self._lines(at + first), True)
                    fill(origin + self._lines(at + last + (self.lanes - 1)), False)
                    band(row, first, last)
            fill(limit, True)
        else:
            with T.loop(T.truncdiv(end - begin + self.block - 1, self.block)) as i:
                above = T.let(begin + i * self.block)
                below = T.let(T.min(end, above + self.block))
                fill(origin + self._lines(below * self.width - origin + (self.lanes - 1)), False)
                with T.loop(below - above) as r:
                    row = T.let(above + r)
                    band(row, *of_row(row))

    # -- Row by row, in lines ----------------------------------------------------------------------------------------

    def _row(self, start_in: Any, start_out: Any, first: Any, last: Any) -> None:
        lanes, width = self.lanes, self.width

        def put(x: Any, part: str, count: int = lanes, stream: bool = False) -> None:
            self._store(start_out + x, self._value(part, start_in, x, first, last, count), count, stream)

        def whole(begin: Any, end: Any, part: str) -> None:
            self._each_line(begin, end, lambda x: put(x, part, stream=self.stream))

        def edge(begin: Any, end: Any) -> None:
            with T.when(begin < end):
                put(begin, "both", stream=self.stream)

        head = self._to_line(start_out)
        end = _known(head + self._lines(width - head))

        def within(x: Any, least: Any) -> Any:
            return _known(T.max(least, T.min(end, head + self._lines(x - head))))

        # The lines in which the band begins and ends; they may be the same line.
        first_from, first_to = within(first, head), within(first + (lanes - 1), head)
        last_from = within(last, first_to)
        last_to = within(last + (lanes - 1), first_to)
        if self.stream:
            # A line with a non-temporal store must not be in a cache, so the partial lines at the ends touch no other line.
            with T.loop(head + (width - end)) as i:
                put(T.let(T.Select(i < head, i, end - head + i)), "both", 1)
        else:
            # The lines that overlap the ends write the same values again.
            with T.when(head > 0):
                put(T.i64(0), "both")
            with T.when(end < width):
                put(T.let(width - lanes), "both")
        whole(head, first_from, "outside")
        edge(first_from, first_to)
        whole(first_to, last_from, "inside")
        edge(last_from, last_to)
        whole(last_to, end, "outside")

    def _value(self, part: str, start_in: Any, x: Any, first: Any, last: Any, count: int) -> Any:
        """The result for a few adjacent elements of a row: all outside of the band, all inside, or some of both."""
        if part != "both":
            if self.copied != part:
                return self._constant(part, count)
            # LLVM calls memcpy for a plain copy loop, but not if a zero that LLVM does not know is added.
            return self.source[_run(start_in + x, count)] | self._constant("zero", count)
        # Lanes are as wide as elements, and so are the masks.
        signed = f"int{8 * self.itemsize}"
        lane = T.const(0, signed) if count == 1 else T.ramp(T.const(0, signed), T.const(1, signed), count)
        lower, upper = (_splat(T.cast(T.max(T.i64(0), T.min(T.i64(count), bound - x)), signed), count) for bound in (first, last))
        outside, inside = (T.let(self._value(p, start_in, x, first, last, count)) for p in ("outside", "inside"))
        return T.Select(lane >= lower, T.Select(lane < upper, inside, outside), outside)

    # -- Lines ---------------------------------------------------------------------------------------------------------

    def _each_line(self, begin: Any, end: Any, body: Callable[[Any], None]) -> None:
        begin = T.let(begin)
        with T.loop(T.let(T.truncdiv(end - begin, T.i64(self.lanes)))) as i:
            body(T.let(begin + i * self.lanes))

    def _lines(self, elements: Any) -> Any:
        """A number of elements, rounded down to whole lines."""
        return elements & T.i64(-self.lanes)

    def _to_line(self, at: Any) -> Any:
        """How many elements there are to the beginning of the next cache line."""
        if self.lanes * self.itemsize < _LINE:
            return T.i64(0)
        past = T.truncdiv(self.leaves.misalignment(self.result, at), T.i64(self.itemsize))
        return _known((T.i64(0) - past) & T.i64(self.lanes - 1))

    def _constant(self, name: str, count: int = 1) -> Any:
        """A constant, in ``count`` lanes. Bytes are made from words: otherwise LLVM calls memset for them, line by line."""
        wide = self.itemsize == 1 and count >= 4
        word = T.cast(self.constants[name], "uint32" if wide else self.unsigned)
        return T.reinterpret(f"uint8x{count}", _splat(word, count // 4)) if wide else _splat(word, count)

    def _store(self, at: Any, value: Any, count: int, stream: bool = False) -> None:
        if stream:
            self.leaves.stream(self.result, at, value)
        else:
            T.store(self.result, _run(at, count), value)

    # -- Element by element --------------------------------------------------------------------------------------------

    def _elements(self, start_in: Any, start_out: Any, first: Any, last: Any, left: Any, right: Any) -> None:
        """Part of a row, from one column to another."""
        first, last = (_known(T.max(left, T.min(right, bound))) for bound in (first, last))

        def run(begin: Any, end: Any, part: str) -> None:
            with T.loop(end - begin) as i:
                x = T.let(begin + i)
                value = self.source[start_in + x * self.step_in] if self.copied == part else self._constant(part)
                T.store(self.result, start_out + x * self.step_out, value)

        run(left, first, "outside")
        run(first, last, "inside")
        run(last, right, "outside")


def _run(at: Any, count: int) -> Any:
    return T.run(at, count) if count > 1 else at


def _splat(value: Any, count: int) -> Any:
    return T.splat(value, count) if count > 1 else value


def _known(value: Any) -> Any:
    """Like ``T.let``, but hidden from TVM's simplifier, which takes longer than LLVM for sums of nested bounds."""
    return T.let(T.Variable("int64", value).value)
