"""Windows that have a whole image each, which is contiguous: its elements are combined in vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._window import CHAIN, Cascade, levels_of
from tvmdml.operators._window_sums import Seen, Summed
from tvmdml.schedules.cpu import share
from tvmdml.schedules.cpu._lanes import folded, joined
from tvmdml.schedules.cpu._window import WindowContext, WindowWay, larger, load, splat

_ACCUMULATORS = 4
"""Vectors of an image that are combined independently."""
_MOST_TOGETHER = 16
"""Images that are combined together, at most: each takes a register."""


class WholeImages(WindowWay):  # type: ignore[misc] # mypy knows these modules by another name
    """Windows that have a whole image each."""

    NAME = "images"

    def __init__(self, desc: Any, full: int, tasks: int) -> None:
        x, y = desc.whole(), desc.pooled()
        length = math.prod(x.sizes[one.dimension] for one in desc.windows())
        lanes = full
        while lanes > length:
            lanes //= 2
        self.lanes = lanes
        self.accumulators = _ACCUMULATORS if length >= 2 * _ACCUMULATORS * lanes else 1
        self.levels = levels_of(-(-length // (self.accumulators * lanes * CHAIN)) + 1)
        # Short images: to add the lanes of one would take longer than to add its vectors.
        short = self.accumulators == 1 and 1 < lanes <= _MOST_TOGETHER and desc.computed in ("float32", "float64")
        self.together = short and y.layout[1] == 1 and x.sizes[1] >= lanes
        super().__init__(desc, tasks, lanes=lanes, accumulators=self.accumulators, levels=self.levels, together=self.together)

    def task(self, task: Any, tasks: Any) -> None:
        x, y = self.desc.whole(), self.desc.pooled()
        sizes = [T.index(n) for n in x.sizes]
        length = T.let(math.prod(sizes[3:], start=sizes[2]))
        if self.together:
            self._channels(task, tasks, sizes, length)
            return
        begin, end = share(task, tasks, sizes[0] * sizes[1])
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
            totals[0].set(totals[0].value + self._last_terms(offset, length, left))
        chain()
        return T.hold(folded(T.hold(cascade.value()), lambda a, b: a + b))

    def _last_terms(self, offset: Any, length: Any, left: Any) -> Any:
        """The terms of the last elements of an image, in a vector with 0 for those before."""
        lanes = self.lanes
        term = self.desc.term(self._read(T.let(offset + length - lanes)))
        lane = T.Ramp(T.const(0, "int32"), T.const(1, "int32"), lanes)
        own = lane >= T.splat(T.cast(T.i64(lanes) - left, "int32"), lanes)
        return T.Select(own, term, _zero(term))

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
        result = T.Variable(dtype, folded(found, larger))
        if T.is_float(result.value):
            with T.when(result.value == T.like(result.value, 0)):
                result.set(self._first_zero(offset, length))
        return result.value

    def _first_zero(self, offset: Any, length: Any) -> Any:
        """The first zero of an image, whatever its sign is."""
        dtype, buffer, at = self.desc.computed, self.tensors[self.desc.WHOLE], T.Variable("int64", T.i64(0))
        found = T.Variable(dtype, T.const(0, dtype))
        with T.loop_while(at.value < length):
            value = T.let(T.to(buffer[offset + at.value], dtype))
            is_zero = T.expression(value == T.const(0, dtype))
            found.set(T.Select(is_zero, value, found.value))
            at.set(T.Select(is_zero, length, at.value + 1))
        return T.hold(found.value)

    # -- Neighbouring channels together

    def _channels(self, task: Any, tasks: Any, sizes: list[Any], length: Any) -> None:
        """As many images as a vector has lanes, whose results are one vector. The last ones may begin earlier."""
        x, y, lanes = self.desc.whole(), self.desc.pooled(), self.lanes
        blocks = T.let(T.truncdiv(sizes[1] + (lanes - 1), T.i64(lanes)))
        begin, end = share(task, tasks, sizes[0] * blocks)
        corner = [T.i64(0)] * (x.rank - 2)
        reaches = self.desc.reaches([T.i64(0), T.i64(0), *corner])
        unit = [T.Variable("int64", one) for one in T.unravel(begin, [sizes[0], blocks])]
        with T.loop(T.let(end - begin)):
            batch, block = (T.let(one.value) for one in unit)
            at = [batch, T.let(T.min(block * lanes, sizes[1] - lanes)), *corner]
            first, step = T.let(T.dot(at, x.layout)), T.index(x.layout[1])
            offsets = [T.let(first + i * step) for i in range(lanes)]
            if isinstance(self.desc, Summed):
                totals = self._sums(offsets, length)
                found = self.desc.result(
                    joined(totals, lambda a, b: a + b), WindowContext(Seen(self.desc, self.tensors, at, reaches), lanes)
                )
            else:
                found = self._maxima(offsets, length)
            T.store(self.tensors[self.desc.POOLED], T.run(T.let(T.dot(at, y.layout)), lanes), T.to(found, y.data_type.tvm))
            T.count_up(unit, [sizes[0], blocks])

    def _sums(self, offsets: list[Any], length: Any) -> list[Any]:
        """The sum of each image, in parts."""
        zero = splat(T.const(0, self.desc.computed), self.lanes)
        totals = [T.Variable(T.type_of(zero), zero) for _ in offsets]
        rounds = T.let(T.truncdiv(length, T.i64(self.lanes)))
        with T.loop(rounds) as i:
            for total, offset in zip(totals, offsets, strict=True):
                total.set(total.value + self.desc.term(self._read(T.let(offset + i * self.lanes))))
        left = T.let(length - rounds * self.lanes)
        with T.when(left > T.i64(0)):
            for total, offset in zip(totals, offsets, strict=True):
                total.set(total.value + self._last_terms(offset, length, left))
        return [T.hold(one.value) for one in totals]

    def _maxima(self, offsets: list[Any], length: Any) -> Any:
        """The largest element of each image."""
        lanes, dtype = self.lanes, self.desc.computed
        best = [T.Variable(f"{dtype}x{lanes}", self._read(T.let(offset + length - lanes))) for offset in offsets]
        with T.loop(T.let(T.truncdiv(length, T.i64(lanes)))) as i:
            for one, offset in zip(best, offsets, strict=True):
                one.set(larger(self._read(T.let(offset + i * lanes)), one.value))
        found = joined([T.hold(one.value) for one in best], larger)
        result = T.Variable(T.type_of(found), found)
        zero = T.like(found, 0)
        zeros = T.hold(T.Select(T.expression(found == zero), T.like(zero, 1), zero))
        with T.when(folded(zeros, lambda a, b: a + b) > T.const(0, dtype)):
            own, run = T.local(dtype, lanes), T.run(T.i64(0), lanes)
            T.store(own, run, found)
            for i, offset in enumerate(offsets):
                with T.when(own[T.i64(i)] == T.const(0, dtype)):
                    T.store(own, T.i64(i), self._first_zero(offset, length))
            result.set(own[run])
        return T.hold(result.value)


def _zero(value: Any) -> Any:
    """0 in all lanes."""
    return T.like(value, 0)
