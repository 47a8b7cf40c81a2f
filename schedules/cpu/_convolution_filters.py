"""Filters packed for convolutions whose vectors are of filters (``_convolution_lanes.py``).

A panel has some filters, those of a vector being neighbours: for each phase of the output each channel, and for each of these the
taps that the phase meets. So tiles read a panel from its begin to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel, Owned
from tvmdml.schedules.cpu import per_task, share, split
from tvmdml.schedules.cpu._ahead import read_ahead
from tvmdml.schedules.cpu._convolution_plan import DIMENSIONS, NAMES, ConvolutionPlan
from tvmdml.schedules.cpu._gemm_owned import TASK_ELEMENTS, Panels
from tvmdml.schedules.cpu._part import load_part
from tvmdml.schedules.cpu._sums import zeros
from tvmdml.schedules.cpu._tiles import SIDE, transposed
from tvmdml.targets import Target


def together(plan: ConvolutionPlan) -> bool:
    """Whether the taps of a channel lie together, in any order."""
    step = 1
    for i in reversed(range(DIMENSIONS)):
        kernel = plan.numbers[f"kernel{i}"]
        if kernel > 1 and abs(plan.numbers[f"tap_step{i}"]) != step:
            return False
        step *= kernel
    return True


class Filters:
    """Packs the filters of a convolution."""

    def __init__(self, plan: ConvolutionPlan, kind: str, width: int) -> None:
        self.plan, self.kind, self.width = plan, kind, width
        self.by_channel = plan.backward or not plan.rows_contiguous
        """Whether what lies together are the taps of a channel; otherwise all of a filter."""
        run = plan.taps if self.by_channel else plan.products
        self.whole, self.short = run % SIDE == 0, run < SIDE
        self.taps = run if self.short else 0

    def key(self) -> str:
        """What the code depends on."""
        return f"{self.by_channel} {self.whole} {self.taps}"

    def owned(self, name: str, module: str, panels: Panels, target: Target, order: Callable[[Any, Any], Any]) -> Owned:
        """How filters that never change are packed once. ``order(numbers, table)`` writes the order of taps."""
        own = self.plan
        tasks = split(panels.room * own.groups, target, TASK_ELEMENTS)
        sizes = [getattr(own, one) for one in ("groups", "filters", "channels")]
        sizes += [getattr(own, f"{one}{i}") for one in ("kernel", "dilation", "backward") for i in range(DIMENSIONS)]
        choices = {"type": self.kind, "width": self.width, "runs": self.key(), "backward": own.backward}

        def function() -> Any:
            with T.function() as f:
                source, to = f.buffer(name, self.kind), f.buffer("packed", "float32")
                table = f.buffer("table_scratch", "int64")
                n = SimpleNamespace(**{one: f.scalar(one) for one in NAMES})
                count = f.scalar("tasks")
                places = order(n, table)
                per_task(count, lambda task: self.pack(n, source, to, task, count, places))
            return f.result()

        room = ("int64", 2 * own.taps)
        packer = Kernel(module, "vectors", tuple(choices.items()), function, (*own.scalars(), tasks), (room,))
        form = f"vectors of filters {self.kind} {self.width} of {' '.join(map(str, sizes))} from {own.filters_from()}"
        return Owned(name, "float32", panels.room * own.groups, form, (name,), packer)

    def pack(self, n: Any, w: Any, to: Any, task: Any, tasks: Any, places: Any) -> None:
        """A task's panels, of a plan's numbers. ``places(tap)``: the place of a tap's first channel, and how far the next is."""
        own = Panels(self.width, 1, n.filters, n.channels * n.taps)
        count, panel, room = (T.hold(one) for one in (own.count, own.panel, own.room))
        begin, end = share(task, tasks, T.let(n.groups * count))
        with T.loop(T.let(end - begin)) as i:
            unit = T.let(begin + i)
            group = T.hold(T.truncdiv(unit, count))
            number = T.let(unit - group * count)
            self.panel(n, w, to, group, number, T.let(group * room + number * panel), places=places)

    def panel(
        self, n: Any, w: Any, to: Any, group: Any, number: Any, target: Any, begin: Any = 0, count: Any = None, places: Any = None
    ) -> None:
        """A panel of a group's filters; of contiguous ones also ``count`` products from one on."""
        runs, length = (
            (n.channels, n.taps) if self.by_channel else (T.i64(1), T.let(n.channels * n.taps) if count is None else count)
        )
        nothing = zeros(SIDE, self.kind)
        first = T.hold(T.max(T.min(number * self.width, n.filters - self.width), T.i64(0)))
        base = T.let(group * n.filter_group + begin)
        blocks = T.let(T.truncdiv(length + (SIDE - 1), T.i64(SIDE)))
        with T.loop(runs) as c, T.loop(T.i64(self.width // SIDE)) as j, T.loop(blocks) as block:
            lines = [
                T.let(base + c * n.filter_channel + T.min(first + j * SIDE + r, n.filters - 1) * n.filter_row + block * SIDE)
                for r in range(SIDE)
            ]
            at = T.let(target + block * (SIDE * self.width) + j * SIDE)
            left = T.let(length - block * SIDE)
            if self.by_channel:
                for line in lines:  # what is read next is far away
                    read_ahead(w, line + n.filter_channel)

            def put(
                rows: list[Any], most: int, checks: bool, at: Any = at, left: Any = left, block: Any = block, c: Any = c
            ) -> None:
                for k, column in enumerate(transposed([T.hold(T.cast(T.wide(row), "float32")) for row in rows])[:most]):

                    def store(k: int = k, column: Any = column) -> None:
                        to_place = at + k * self.width
                        if self.by_channel:
                            first, step = places(block * SIDE + k)
                            to_place = T.let(target + (first + c * step) * self.width + j * SIDE)
                        T.store(to, T.run(to_place, SIDE), column)

                    if checks:
                        with T.when(T.i64(k) < left):
                            store()
                    else:
                        store()

            def full(lines: list[Any] = lines, put: Any = put) -> None:
                put([T.hold(w[T.run(line, SIDE)]) for line in lines], SIDE, False)

            def part(lines: list[Any] = lines, put: Any = put, left: Any = left) -> None:
                ends = T.const(0, "int32"), T.const(self.taps, "int32") if self.short else T.let(T.cast(left, "int32"))
                put([T.hold(load_part(w, line, *ends, nothing)) for line in lines], self.taps or SIDE, not self.short)

            if self.whole:
                full()
            elif self.short:
                part()
            else:
                T.either(left >= T.i64(SIDE), full, part)
