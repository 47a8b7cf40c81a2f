"""What a region's parts have along one side: tables that are computed once for all channels."""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._roi_align import Line


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

    def fill(self, line: Line, linear: bool, share: Any = None) -> None:
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
