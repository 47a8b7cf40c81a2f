"""What a region's parts have along one side: tables that are computed once for all channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._roi_align import SampleLine
from tvmdml.schedules.cpu._reduction import lane_numbers
from tvmdml.schedules.cpu._resampling_rows import splat


class Side:
    """The tables of a side: of each part, the first element, the number of elements, and that of samples in the image."""

    def __init__(self, parts: Any, size: Any, integers: Any, cells: Any, numbers: Any, weights: Any) -> None:
        self.parts, self.size, self.numbers, self.weights = parts, size, numbers, weights
        self.integers, self.cells = integers, cells

    def first(self, part: Any) -> Any:
        return T.cast(self.numbers[self.integers + part], "int64")

    def count(self, part: Any) -> Any:
        return T.cast(self.numbers[self.integers + self.parts + part], "int64")

    def seen(self, part: Any) -> Any:
        return self.numbers[self.integers + 2 * self.parts + part]

    def weight(self, part: Any, place: Any) -> Any:
        return self.weights[self.cells + part * self.size + place]

    def box(self) -> tuple[Any, Any]:
        """The first element that any part has, and the first after those."""
        low, high = T.Variable("int64", T.cast(T.index(self.size), "int64")), T.Variable("int64", T.i64(0))
        with T.loop(T.index(self.parts)) as part:
            begin, count = T.let(self.first(part)), T.let(self.count(part))
            low.set(T.min(low.value, begin))
            high.set(T.max(high.value, begin + count))
        return T.hold(low.value), T.hold(high.value)

    def clear(self, *cells: Any) -> None:
        """No element has a weight; nor in more tables of this size."""
        with T.loop(T.let(T.index(self.parts) * self.size)) as i:
            for cell in (self.cells, *cells):
                T.store(self.weights, cell + i, T.like(self.weights[cell + i], 0))

    def fill(self, line: SampleLine, linear: bool, share: Any = None) -> None:
        """The tables of a region; weights are multiplied by ``share``."""
        dtype = T.type_of(line.count)
        size = T.let(T.cast(T.index(self.size), "int32"))
        with T.loop(T.index(self.parts)) as part:
            begin, end = line.inside(part)
            low, high = (T.Variable("int32", number) for number in (size, T.const(-1, "int32")))

            def reach(number: Any, part: Any = part, low: Any = low, high: Any = high) -> None:
                before, after, _ = line.taps(line.at(part, number), linear)
                low.set(T.min(low.value, before))
                high.set(T.max(high.value, after))

            with T.when(begin < end):
                reach(begin)
                reach(end - T.const(1, "int32"))
            first, count = T.hold(low.value), T.hold(T.max(high.value - low.value + T.const(1, "int32"), T.const(0, "int32")))
            own = T.let(self.cells + part * self.size)
            with T.loop(T.cast(count, "int64")) as i:
                T.store(self.weights, own + T.cast(first, "int64") + i, T.const(0, dtype))
            with T.loop(T.let(T.cast(end - begin, "int64"))) as i:
                number = T.let(begin + T.cast(i, "int32"))
                before, after, past = line.taps(line.at(part, number), linear)

                def add(place: Any, weight: Any, own: Any = own) -> None:
                    at = T.let(own + T.cast(place, "int64"))
                    T.store(self.weights, at, self.weights[at] + (weight if share is None else T.rounded(weight * share)))

                add(before, T.hold(T.like(past, 1) - past))
                with T.when(past > T.like(past, 0)):
                    add(after, past)
            for i, value in enumerate((first, count, T.let(end - begin))):
                T.store(self.numbers, self.integers + i * self.parts + part, value)


def fresh(low: Any, stop: Any, size: Any, lanes: int, body: Callable[[Any, Callable[[], Any]], None]) -> None:
    """Vectors of a row's elements between two. ``body`` is given a place, and what says which lanes the vector before lacks."""
    with T.loop(T.let(T.truncdiv(T.max(stop - low, T.i64(0)) + (lanes - 1), T.i64(lanes)))) as v:
        first = T.let(low + v * lanes)
        place = T.let(T.min(first, size - lanes))
        again = splat(T.let(T.cast(first - place, "int32")), lanes)

        def new(again: Any = again) -> Any:
            return T.expression(lane_numbers(lanes) >= again)

        body(place, new)
