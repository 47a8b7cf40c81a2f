"""Gradients of windows on the CPU: each window gives to the elements that it reaches, image by image.

That computes a window once. The computation lets each element gather from its windows, and does all of a window for each of its
elements. An element is given its parts in the same order, so that the sums have the same bits.
"""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.loops import nested
from tvmdml.operators._window import levels_of
from tvmdml.operators._window_gradients import Gathered
from tvmdml.schedules.cpu import share
from tvmdml.schedules.cpu._window import WindowWay


class SpreadWindows(WindowWay):  # type: ignore[misc] # mypy knows these modules by another name
    """Images are divided among tasks."""

    NAME = "spread"

    @staticmethod
    def serves(desc: Any) -> bool:
        """Whether elements can hold their own sums: those are not computed in a wider type, nor in several chains."""
        return isinstance(desc, Gathered) and desc.computed == desc.whole().data_type.tvm and levels_of(desc.windows_at()) == 1

    def task(self, task: Any, tasks: Any) -> None:
        x, y = self.desc.whole(), self.desc.pooled()
        sizes = [T.index(n) for n in x.sizes]
        buffer = self.tensors[self.desc.WHOLE]
        begin, end = share(task, tasks, sizes[0] * sizes[1])
        image = [T.Variable("int64", one) for one in T.unravel(begin, sizes[:2])]

        def add(place: Any, value: Any) -> None:
            offset = T.let(T.dot(place, x.layout))
            T.store(buffer, offset, buffer[offset] + value)

        with T.loop(T.let(end - begin)):
            own = [T.let(one.value) for one in image]
            with nested([T.loop(n) for n in sizes[2:]]) as at:
                T.store(buffer, T.dot([*own, *at], x.layout), T.const(0, self.desc.computed))
            with nested([T.loop(T.index(n)) for n in y.sizes[2:]]) as at:
                self.desc.give(self.tensors, [*own, *at], add)
            T.count_up(image, sizes[:2])
