"""Runs of elements that a task does one after the other: contiguous ones by lines, others one by one, and squares by transposing.

A run is what is left of a kernel when all coordinates but the last are known (``Sink.within``). Any family's kernel may consist of
runs: its results pass through a formula, which may do nothing but copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tvmdml.kernels import tensorir as T
from tvmdml.kernels.formula import Formula, Sink
from tvmdml.kernels.knobs import Knob
from tvmdml.schedules.cpu._leaves import Leaves
from tvmdml.schedules.cpu._tiles import SIDE, corner, tiles, transposed
from tvmdml.targets import Target
from tvmdml.tensors import TensorDataType

LINE = 64
"""Bytes of a cache line."""
_AT_ONCE = 4
"""Lines that are read before any of them is written, if they are only copied."""


def aligned_elements(default: int) -> Knob:
    """The knob from which length on rows begin with a whole line."""
    return Knob(default, (1, *(1 << n for n in range(6, 20))), "shortest row whose stores are aligned to cache lines")


def lanes_of(formula: Formula, target: Target) -> int:
    """Elements of a vector: a cache line of the first output, unless that needs too many registers for the widest type.

    Several operators in turn have more values at a time: a line of the widest type. (Of bytes and float16 that was a sixth faster
    than whole lines of the output, which are streamed if they are many.)
    """
    lanes: int = LINE // formula.outputs[0].data_type.itemsize
    widest = _widest(formula)
    most = 4 * LINE if _has_long_registers(target) else 2 * LINE
    most = LINE if formula.between else most
    while lanes * widest > most:
        lanes //= 2
    return lanes


def lanes_of_function(formula: Formula, target: Target) -> int:
    """The same for a function, whose steps wait for each other: at least two registers, which share constants and counting.

    (With one, an AMD Zen 5 takes a tenth longer: it does not look far enough ahead to have enough vectors at work.)
    """
    lanes = lanes_of(formula, target)
    return 2 * lanes if _has_long_registers(target) and not formula.between and lanes * _widest(formula) == LINE else lanes


def are_lines(formula: Formula, lanes: int) -> bool:
    """Whether so many elements of each output are whole cache lines, as non-temporal stores want them."""
    return all(lanes * tensor.data_type.itemsize % LINE == 0 for tensor in formula.outputs)


def _widest(formula: Formula) -> int:
    """The bytes of the widest type that is computed in."""
    types = (*(tensor.data_type for tensor in (*formula.inputs, *formula.outputs)), *formula.between)
    return max(map(_computed_bytes, types))


def _has_long_registers(target: Target) -> bool:
    processor = getattr(target, "processor", None)
    return processor is not None and processor.has("avx512f")


def _computed_bytes(data_type: TensorDataType) -> int:
    return 4 if data_type is TensorDataType.FLOAT16 else data_type.itemsize


class Runs:
    """Base class of what writes such kernels. The choices are part of the kernel's parameters."""

    lanes: int
    last: tuple[int, ...]
    """The stride of each tensor's last dimension where the code depends on it, else -1."""
    rows: str
    """Whether rows have at least the elements of a vector: ``long``, ``short``, or ``any`` if that is decided at run time."""
    stream: bool
    aligned: int
    once: bool = False
    """Whether the expression is so long that it should stand in the code once, which is compiled sooner: a vector at a time, and
    what is less than that passes through memory.
    """

    def __init__(self, formula: Formula, leaves: Leaves, **choices: Any) -> None:
        self.formula, self.leaves = formula, leaves
        self.__dict__.update(choices)
        self.parameters = (*formula.key, *choices.items())

    def lines(self, sink: Sink, start: Any, stop: Any) -> None:
        """Contiguous elements of a row."""
        length = T.let(stop - start)
        if self.once:
            whole, part = partial(self._in_one_loop, sink, start, stop, length), partial(self._padded, sink, start, length)
            if self.rows == "any":
                T.either(length >= self.lanes, whole, part)
            else:
                (whole if self.rows == "long" else part)()
        elif self.rows == "long":
            self._whole_lines(sink, start, stop, length)
        elif self.rows == "short":
            self._short_row(sink, start, stop, length, self.lanes // 2)
        else:
            whole = length >= self.lanes
            T.either(whole, lambda: self._whole_lines(sink, start, stop, length), lambda: self.elements(sink, start, stop))

    def _short_row(self, sink: Sink, start: Any, stop: Any, length: Any, lanes: int) -> None:
        """A row shorter than twice these lanes: two vectors that overlap, or of one element."""
        if lanes <= 1:
            self.elements(sink, start, stop)
            return

        def two_vectors() -> None:
            first, last = (self._kept(sink, at, lanes) for at in (start, T.let(stop - lanes)))
            if self.formula.shared:
                first(True, False)
                last(True, False)
                first(False, True)
                last(False, True)
            else:
                first(True, True)
                last(True, True)

        T.either(length >= lanes, two_vectors, lambda: self._short_row(sink, start, stop, length, lanes // 2))

    def _past(self, sink: Sink, start: Any, length: Any) -> tuple[Any, Any]:
        """How many elements a row begins behind a line of the first output, and whether it is so long that this matters: stores
        that straddle two lines make a long row an eighth slower.
        """
        output, lanes, itemsize = sink.outputs[0], self.lanes, self.formula.outputs[0].data_type.itemsize
        past = T.truncdiv(self.leaves.misalignment(output.buffer, output.place([start])) & (lanes * itemsize - 1), T.i64(itemsize))
        return past, length >= max(self.aligned, 2 * lanes)

    def _in_one_loop(self, sink: Sink, start: Any, stop: Any, length: Any) -> None:
        """At least a vector: the first and the last one overlap others."""
        lanes, last = self.lanes, T.let(stop - self.lanes)
        before, is_long = T.i64(0), length >= T.i64(0)
        if not self.formula.shared:
            past, is_long = self._past(sink, start, length)
            before = T.let(T.Select(is_long, past, T.i64(0)))
        # In place, the vector before the last one writes a part of that: it is read first.
        kept = {i: T.hold(sink.sources[i].get([last], lanes)) for i, _ in self.formula.shared}
        with T.loop(T.let(T.truncdiv(length + before + (lanes - 1), T.i64(lanes)))) as i:
            place = T.let(start - before + i * lanes)
            at = T.hold(T.min(T.max(place, start), last))
            is_last = T.splat(at >= last, lanes) if kept else None
            read = [source.get([at], lanes) for source in sink.sources]
            read = [T.Select(is_last, kept[j], one) if j in kept else one for j, one in enumerate(read)]
            values = tuple(map(T.hold, self.formula.value(*read)))
            store, stream = partial(sink.store, [at], values), partial(self._streamed, sink, at, values)
            if self.stream:
                T.either(is_long & (place >= start) & (place <= last), stream, store)
            else:
                store()

    def _padded(self, sink: Sink, start: Any, length: Any) -> None:
        """Fewer elements than a vector: the last one is repeated."""
        lanes = self.lanes
        whole, inputs, outputs = T.run(T.i64(0), lanes), self.formula.inputs, self.formula.outputs
        with T.when(length > 0):
            read = [T.local(tensor.data_type.tvm, lanes) for tensor in inputs]
            with T.loop(T.i64(lanes)) as i:
                at = T.let(start + T.min(i, length - 1))
                for buffer, source in zip(read, sink.sources, strict=True):
                    T.store(buffer, i, source.get([at]))
            values = self.formula.value(*(buffer[whole] for buffer in read))
            made = [T.local(tensor.data_type.tvm, lanes) for tensor in outputs]
            for buffer, value in zip(made, values, strict=True):
                T.store(buffer, whole, value)
            with T.loop(length) as i:
                sink.store([T.let(start + i)], tuple(buffer[i] for buffer in made))

    def _streamed(self, sink: Sink, at: Any, values: Any) -> None:
        for place, value, tensor in zip(sink.outputs, values, self.formula.outputs, strict=True):
            line = LINE // tensor.data_type.itemsize
            for begin in range(0, T.lanes(value), line):
                part = value if T.lanes(value) == line else T.Shuffle([value], list(range(begin, begin + line)))
                self.leaves.stream(place.buffer, place.place([at + begin]), part)

    def _whole_lines(self, sink: Sink, start: Any, stop: Any, length: Any) -> None:
        lanes = self.lanes
        past, is_long = self._past(sink, start, length)
        head = T.let(T.Select((past > 0) & is_long, T.i64(lanes) - past, T.i64(0)))
        if self.formula.copied:
            self._copied_lines(sink, start, stop, is_long, head)
            return
        # The first and the last line overlap others. In place, they are computed before any element is overwritten.
        before, after = (self._kept(sink, at, lanes) for at in (start, T.let(stop - lanes)))
        in_place = bool(self.formula.shared)
        with T.when(head > 0):
            before(True, not in_place)
        if in_place:
            after(True, False)

        whole = T.let(T.truncdiv(length - head, T.i64(lanes)))

        def lines(stream: bool) -> None:
            with T.loop(whole) as i:
                at = [T.let(start + head + i * lanes)]
                values = sink.values(at, lanes=lanes)
                if stream:
                    self._streamed(sink, at[0], values)
                else:
                    sink.store(at, values)

        if self.stream:
            T.either(is_long, lambda: lines(True), lambda: lines(False))
        else:
            lines(False)
        if in_place:
            with T.when(head > 0):
                before(False, True)
        # A store to a line that was just streamed would wait for memory, and all later stores with it.
        with T.when(length - head > whole * lanes):
            after(not in_place, True)

    def _copied_lines(self, sink: Sink, start: Any, stop: Any, is_long: Any, head: Any) -> None:
        """Lines that nothing is computed of. There are no loops of a line each, which LLVM makes calls of memcpy."""
        lanes, several = self.lanes, _AT_ONCE * self.lanes
        begin = T.let(start + head)

        def copy(places: Sequence[Any], stream: bool = False) -> None:
            values = [T.hold(sink.values([at], lanes=lanes)[0]) for at in places]
            for at, value in zip(places, values, strict=True):
                if stream:
                    self._streamed(sink, at, (value,))
                else:
                    sink.store([at], (value,))

        def neighbours(first: Any, count: int = _AT_ONCE) -> list[Any]:
            return [T.let(first + i * lanes) for i in range(count)]

        def rounds(stream: bool) -> Any:
            count = T.let(T.truncdiv(stop - begin, T.i64(several)))
            with T.loop(count) as i:
                copy(neighbours(T.let(begin + i * several)), stream)
            return T.let(begin + count * several)

        def cached() -> None:
            with T.when(head > 0):
                copy([start])
            left = rounds(False)

            def few() -> None:
                copy([start, T.let(stop - lanes)])
                with T.when(stop - start > 2 * lanes):
                    copy([T.let(start + lanes), T.let(stop - 2 * lanes)])

            # What is left overlaps what is done.
            with T.when(left < stop):
                T.either(stop - start >= several, lambda: copy(neighbours(T.let(stop - several))), few)

        def streamed() -> None:
            # A store to a line that is streamed, too, would wait for memory, and all later stores with it.
            self._short_row(sink, start, begin, head, lanes // 2)
            left = rounds(True)
            whole = T.let(T.truncdiv(stop - left, T.i64(lanes)))
            with T.loop(whole) as i:
                copy([T.let(left + i * lanes)], True)
            left = T.let(left + whole * lanes)
            self._short_row(sink, left, stop, T.let(stop - left), lanes // 2)

        if self.stream:
            T.either(is_long, streamed, cached)
        else:
            cached()

    def _kept(self, sink: Sink, at: Any, lanes: int) -> Callable[[bool, bool], None]:
        """A vector that is computed at one time and stored at another."""
        types = [tensor.data_type.tvm for tensor in self.formula.outputs]
        whole = T.run(T.i64(0), lanes)
        kept = [T.local(dtype, lanes) for dtype in types] if self.formula.shared else []

        def line(compute: bool, store: bool) -> None:
            values = sink.values([at], lanes=lanes) if compute else tuple(buffer[whole] for buffer in kept)
            if store:
                sink.store([at], values)
                return
            for buffer, value in zip(kept, values, strict=True):
                T.store(buffer, whole, value)

        return line

    def elements(self, sink: Sink, start: Any, stop: Any) -> None:
        with T.loop(stop - start) as i:
            sink.put([T.let(start + i)])

    def row_of_tiles(self, sink: Sink, top: Any, width: Any) -> None:
        """Inputs that are contiguous along columns are read by columns and transposed; the outputs are written by rows."""
        in_place = bool(self.formula.shared)
        with T.loop(T.let(T.truncdiv(width, T.i64(SIDE)) if in_place else tiles(width))) as tile:
            left = T.let(tile * SIDE) if in_place else corner(tile, width)
            columns = {}
            for i, (source, last) in enumerate(zip(sink.sources, self.last, strict=False)):
                if last not in (0, 1) and source.buffer is not None:
                    down = source._replace(steps=(source.steps[1], 1))
                    columns[i] = transposed([T.hold(down.get([T.let(left + c), top], SIDE)) for c in range(SIDE)])
            for r in range(SIDE):
                at = [T.let(top + r), left]
                read = (columns[i][r] if i in columns else source.get(at, SIDE) for i, source in enumerate(sink.sources))
                sink.store(at, self.formula.value(*read))
