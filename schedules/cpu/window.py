"""The window family on the CPU: vectors of neighbouring windows, or of neighbouring elements of a window that is the whole image.

- ``lines``: input and output are contiguous in one dimension. A vector has windows that are neighbours there. If windows extend in
  that dimension, too, their taps are selected from contiguous elements. The first and the last vector of a line may have taps
  outside, and which these are is a part of the code; where lines are too short for that, such windows are done one by one. Other
  dimensions are loops over the taps inside, without a check of bounds.
- ``spread``: gradients of averages and maxima: a window gives to its elements.
- ``images``: one window has a whole image, which is contiguous: its elements are combined in vectors.
- Anything else is the computation, one element after the other.

Elements are combined in an order that depends on sizes and the processor's vectors, and not on tasks. A result that is a copy is
that of the first of equal elements: zeros of both signs are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.operators._contract import Shared
from tvmdml.operators._window import CHAIN, Along, Cascade, levels_of
from tvmdml.operators._window_largest import Largest
from tvmdml.operators._window_sums import Seen, Summed
from tvmdml.schedules.cpu import _default, share, split
from tvmdml.schedules.cpu._window import Way, larger, load, splat
from tvmdml.schedules.cpu._window_lines import Lines
from tvmdml.schedules.cpu._window_spread import Spread
from tvmdml.targets import Target

_POWERS = tuple(1 << n for n in range(24))

KNOBS = Knobs(
    "window",
    task_elements=Knob(1 << 14, (1, *_POWERS[10:]), "least elements, read or written, for each task"),
    tasks_per_thread=Knob(2, (1, 2, 4, 8), "most tasks per thread"),
    registers=Knob(2, (1, 2, 4), "registers of a vector, at most, if windows extend along it"),
    channel_registers=Knob(4, (1, 2, 4), "registers of a vector, at most, if windows do not"),
)

_MOST_STRIDE = 4
"""From a larger step on, most of a vector that is read would not be used."""
_MOST_TAPS = CHAIN
"""The most taps that are written one after the other in the code."""
_FEWEST = 4
"""The fewest windows of a vector."""
_ACCUMULATORS = 4
"""Vectors of an image that are combined independently."""


def kernel(desc: Any, target: Target, shared: Shared, knobs: Any) -> Kernel:
    """The way that suits the windows."""
    if not shared and Spread.serves(desc):
        work = max(desc.whole().element_count, desc.pooled().element_count * min(desc.taps(), 8))
        spread: Kernel = Spread(desc, split(work, target, knobs.task_elements, knobs.tasks_per_thread)).kernel()
        return spread
    if not isinstance(desc, (Summed, Largest)) or desc.wide():
        plain: Kernel = _default.kernel(desc, target, shared)
        return plain
    full = _register(desc, target)
    work = max(desc.whole().element_count, desc.pooled().element_count * min(desc.taps(), 8))
    tasks = split(work, target, knobs.task_elements, knobs.tasks_per_thread)
    if _is_image(desc):
        whole: Kernel = Images(desc, full, tasks).kernel()
        return whole
    for along, dimension in _contiguous(desc):
        most = full * (knobs.channel_registers if along is None else knobs.registers)
        edges = along is not None and _edged(desc, along, most) >= _FEWEST
        lanes = _edged(desc, along, most) if along is not None and edges else _lanes(desc, along, dimension, most)
        if lanes >= _FEWEST:
            lined: Kernel = Lines(desc, along, dimension, lanes, edges, tasks).kernel()
            return lined
    found: Kernel = _default.kernel(desc, target, shared)
    return found


def _register(desc: Any, target: Target) -> int:
    """The elements that are computed in one register."""
    processor = getattr(target, "processor", None)
    width = 64 if processor is not None and processor.has("avx512f") else 32
    return int(width // max(desc.whole().data_type.itemsize, 4 if desc.computed == "float32" else 1))


def _is_image(desc: Any) -> bool:
    """Whether each window has a whole image, which is contiguous."""
    if isinstance(desc, Largest) and desc.indices() is not None:
        return False
    x, step = desc.whole(), 1
    for one in reversed(desc.windows()):
        size = x.sizes[one.dimension]
        whole = desc.pooled().sizes[one.dimension] == 1 and one.start == 0 and one.size >= size and one.dilation == 1
        if not whole or (x.layout[one.dimension] != step and size > 1):
            return False
        step *= size
    return step >= _FEWEST and [one.dimension for one in desc.windows()] == list(range(2, x.rank))


def _contiguous(desc: Any) -> list[tuple[Along | None, int]]:
    """The dimensions in which all tensors are contiguous, and the windows along each; the longest first."""
    windows = {one.dimension: one for one in desc.windows()}
    tensors = [tensor for _, tensor in desc.tensors() if tensor is not None]
    found = [i for i in range(desc.pooled().rank) if all(one.layout[i] == 1 for one in tensors) and desc.pooled().sizes[i] > 1]
    return [(windows.get(i), i) for i in sorted(found, key=lambda i: -desc.pooled().sizes[i])]


def _interior(desc: Any, along: Along, size: int, count: int) -> tuple[int, int]:
    """The windows whose taps are inside, and around which enough can be read."""
    low = min(-(-along.start // along.stride), count)
    high = (size + along.start - max(along.span, along.stride)) // along.stride + 1
    return low, max(low, min(high, count))


def _lanes(desc: Any, along: Along | None, dimension: int, most: int) -> int:
    """The windows of a vector: a power of two."""
    count = desc.pooled().sizes[dimension]
    if along is not None:
        if along.stride > _MOST_STRIDE or along.size > _MOST_TAPS:
            return 0
        low, high = _interior(desc, along, desc.whole().sizes[dimension], count)
        count = high - low
    lanes = most
    while lanes > count:
        lanes //= 2
    return lanes


def _edged(desc: Any, along: Along, most: int) -> int:
    """The windows of a vector if the first and the last one of a line may have taps outside; 0 if that is not worth it."""
    size, count = desc.whole().sizes[along.dimension], desc.pooled().sizes[along.dimension]
    low, high = _interior(desc, along, size, count)
    if along.stride > _MOST_STRIDE or along.size > _MOST_TAPS or (low, high) == (0, count):
        return 0
    lanes = most
    while lanes > min(high - low, count - low, high) or lanes * along.stride > size:
        lanes //= 2
    return lanes


class Images(Way):  # type: ignore[misc] # mypy knows these modules by another name
    """Windows that have a whole image each."""

    NAME = "images"

    def __init__(self, desc: Any, full: int, tasks: int) -> None:
        x = desc.whole()
        length = math.prod(x.sizes[one.dimension] for one in desc.windows())
        lanes = full
        while lanes > length:
            lanes //= 2
        self.lanes = lanes
        self.accumulators = _ACCUMULATORS if length >= 2 * _ACCUMULATORS * lanes else 1
        self.levels = levels_of(-(-length // (self.accumulators * lanes * CHAIN)) + 1)
        super().__init__(desc, tasks, lanes=lanes, accumulators=self.accumulators, levels=self.levels)

    def task(self, task: Any, tasks: Any) -> None:
        x, y = self.desc.whole(), self.desc.pooled()
        sizes = [T.index(n) for n in x.sizes]
        begin, end = share(task, tasks, sizes[0] * sizes[1])
        length = T.let(math.prod(sizes[3:], start=sizes[2]))
        image = [T.Variable("int64", one) for one in T.unravel(begin, sizes[:2])]
        corner = [T.i64(0)] * (x.rank - 2)
        reaches = self.desc.reaches([T.i64(0), T.i64(0), *corner])
        with T.loop(T.let(end - begin)):
            at = [*(T.let(one.value) for one in image), *corner]
            offset = T.let(T.dot(at, x.layout))
            to = T.let(T.dot(at, y.layout))
            if isinstance(self.desc, Summed):
                seen = Seen(self.desc, self.tensors, at, reaches)
                found = self.desc.result(self._sum(offset, length), seen)
            else:
                found = self._largest(offset, length)
            T.store(self.tensors[self.desc.POOLED], to, T.to(found, y.data_type.tvm))
            T.count_up(image, sizes[:2])

    def _read(self, place: Any) -> Any:
        return load(self.tensors[self.desc.WHOLE], place, self.lanes, self.desc.computed)

    def _each(self, offset: Any, length: Any, some: list[Callable[[Any], None]], chain: Callable[[], None]) -> Any:
        """Give vectors to functions in turn, and after each ``CHAIN`` rounds call ``chain``; returns where the rest begins."""
        lanes, several = self.lanes, len(some)
        step = lanes * several
        rounds = T.let(T.truncdiv(length, T.i64(step)))
        with T.loop(T.let(T.truncdiv(rounds + (CHAIN - 1), T.i64(CHAIN)))) as number:
            first = T.let(number * CHAIN)
            with T.loop(T.hold(T.min(rounds - first, T.i64(CHAIN)))) as i:
                base = T.let(offset + (first + i) * step)
                for j, add in enumerate(some):
                    add(self._read(T.let(base + j * lanes)))
            chain()
        done = T.let(rounds * step)
        if several > 1:
            rest = T.let(T.truncdiv(length - done, T.i64(lanes)))
            with T.loop(rest) as i:
                some[0](self._read(T.let(offset + done + i * lanes)))
            done = T.let(done + rest * lanes)
        return done

    def _sum(self, offset: Any, length: Any) -> Any:
        desc, lanes, dtype = self.desc, self.lanes, self.desc.computed
        zero = splat(T.const(0, dtype), lanes)
        totals = [T.Variable(T.type_of(zero), zero) for _ in range(self.accumulators)]
        cascade = Cascade(dtype, self.levels, lanes)

        def adder(total: T.Variable) -> Callable[[Any], None]:
            return lambda x: total.set(total.value + desc.term(x))

        def chain() -> None:
            values = [total.value for total in totals]
            while len(values) > 1:
                values = [T.hold(a + b) for a, b in zip(values[::2], values[1::2], strict=True)]
            cascade.add(values[0])
            for total in totals:
                total.set(zero)

        done = self._each(offset, length, [adder(total) for total in totals], chain)
        left = T.let(length - done)
        with T.when(left > T.i64(0)):
            # The last elements, with what is before them, which is left out.
            term = desc.term(self._read(T.let(offset + length - lanes)))
            lane = T.Ramp(T.const(0, "int32"), T.const(1, "int32"), lanes)
            own = lane >= T.splat(T.cast(T.i64(lanes) - left, "int32"), lanes)
            totals[0].set(totals[0].value + T.Select(own, term, _zero(term)))
        chain()
        return T.hold(_folded(T.hold(cascade.value()), lambda a, b: a + b))

    def _largest(self, offset: Any, length: Any) -> Any:
        dtype, lanes = self.desc.computed, self.lanes
        best = [T.Variable(f"{dtype}x{lanes}", self._read(offset)) for _ in range(self.accumulators)]

        def taker(one: T.Variable) -> Callable[[Any], None]:
            return lambda x: one.set(larger(x, one.value))

        self._each(offset, length, [taker(one) for one in best], lambda: None)
        taker(best[0])(self._read(T.let(offset + length - lanes)))
        found = best[0].value
        for one in best[1:]:
            found = T.hold(larger(one.value, found))
        result = T.Variable(dtype, _folded(found, larger))
        if T.is_float(result.value):
            # Of zeros the first, whatever its sign is.
            with T.when(result.value == T.like(result.value, 0)):
                buffer, at = self.tensors[self.desc.WHOLE], T.Variable("int64", T.i64(0))
                value = T.Variable(dtype, T.to(buffer[offset], dtype))
                with T.loop_while(value.value != T.like(value.value, 0)):
                    at.set(at.value + 1)
                    value.set(T.to(buffer[offset + at.value], dtype))
                result.set(value.value)
        return result.value


def _zero(value: Any) -> Any:
    """0 in all lanes."""
    return T.like(value, 0)


def _folded(x: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """The lanes of a vector combined, the halves with each other."""
    lanes = T.lanes(x)
    while lanes > 1:
        lanes //= 2
        parts = [T.hold(T.Shuffle([x], list(range(k, k + lanes)))) for k in (0, lanes)]
        x = T.hold(combine(*parts))
    return x
