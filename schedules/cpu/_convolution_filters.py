"""Filters packed for convolutions whose vectors are of filters (``_convolution_lanes.py``).

A panel has some filters, those of a vector being neighbours: for each channel, and each tap of it in the order in which taps lie in
memory. So a panel is the same whatever the phases of the output, and in which order they meet the taps.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel, Owned
from tvmdml.schedules.cpu import per_task, share, split
from tvmdml.schedules.cpu._convolution_plan import DIMENSIONS, NAMES, Plan
from tvmdml.schedules.cpu._gemm_owned import TASK_ELEMENTS, Panels
from tvmdml.schedules.cpu._part import load_part
from tvmdml.schedules.cpu._sums import zeros
from tvmdml.schedules.cpu._tiles import SIDE, transposed
from tvmdml.targets import Target


def together(plan: Plan) -> bool:
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

    def __init__(self, plan: Plan, kind: str, width: int) -> None:
        self.plan, self.kind, self.width = plan, kind, width
        self.by_channel = plan.backward or not plan.rows_contiguous
        """Whether what lies together are the taps of a channel; otherwise all of a filter."""
        run = plan.taps if self.by_channel else plan.products
        self.whole, self.short = run % SIDE == 0, run < SIDE
        self.taps = run if self.short else 0

    def key(self) -> str:
        """What the code depends on."""
        return f"{self.by_channel} {self.whole} {self.taps}"

    def owned(self, name: str, module: str, panels: Panels, target: Target) -> Owned:
        """How filters that never change are packed once."""
        own = self.plan
        tasks = split(panels.room * own.groups, target, TASK_ELEMENTS)
        sizes = f"{own.groups} {own.filters} {own.channels} {own.taps}"
        choices = {"type": self.kind, "width": self.width, "runs": self.key(), "parallel": tasks > 1}

        def function() -> Any:
            with T.function() as f:
                source, to = f.buffer(name, self.kind), f.buffer("packed", "float32")
                n = SimpleNamespace(**{one: f.scalar(one) for one in NAMES})
                count = f.scalar("tasks")
                per_task(count, tasks > 1, lambda task: self.pack(n, source, to, task, count))
            return f.result()

        packer = Kernel(module, "vectors", tuple(choices.items()), function, (*own.scalars(), tasks))
        form = f"vectors of filters {self.kind} {self.width} of {sizes}"
        return Owned(name, "float32", panels.room * own.groups, form, (name,), packer)

    def pack(self, n: Any, w: Any, to: Any, task: Any, tasks: Any) -> None:
        """A task's panels, of the numbers of a plan."""
        own = Panels(self.width, 1, n.filters, n.channels * n.taps)
        count, panel, room = (T.hold(one) for one in (own.count, own.panel, own.room))
        begin, end = share(task, tasks, T.let(n.groups * count))
        with T.loop(T.let(end - begin)) as i:
            unit = T.let(begin + i)
            group = T.hold(T.truncdiv(unit, count))
            number = T.let(unit - group * count)
            self.panel(n, w, to, group, number, T.let(group * room + number * panel))

    def panel(self, n: Any, w: Any, to: Any, group: Any, number: Any, target: Any, begin: Any = 0, count: Any = None) -> None:
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
            at = T.let(target + (c * length + block * SIDE) * self.width + j * SIDE)
            left = T.let(length - block * SIDE)

            def put(rows: list[Any], most: int, checks: bool, at: Any = at, left: Any = left) -> None:
                for k, column in enumerate(transposed([T.hold(T.cast(T.wide(row), "float32")) for row in rows])[:most]):
                    if checks:
                        with T.when(T.i64(k) < left):
                            T.store(to, T.run(at + k * self.width, SIDE), column)
                    else:
                        T.store(to, T.run(at + k * self.width, SIDE), column)

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
