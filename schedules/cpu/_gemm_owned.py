"""Factors that never change: all their panels, packed once, in the order in which tiles read them (``_gemm.py``).

A packed factor has its panels one after the other, each with all places of the contraction, and then the sums of its lines, if they
are needed. A product with a batch has such a factor for each of its different matrices. The form depends on the tile's width and
arithmetic only, and not on blocks or tasks.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel, Owned
from tvmdml.schedules.cpu import per_task, share
from tvmdml.schedules.cpu._gemm_arithmetic import ProductArithmetic
from tvmdml.schedules.cpu._gemm_panels import Factor, up
from tvmdml.schedules.cpu._gemm_tile_rows import packer_of
from tvmdml.schedules.cpu._tiles import SIDE

_SLACK = 64
"""Elements behind a matrix, which vectors may read."""
TASK_ELEMENTS = 1 << 16
"""The least elements that a task packs."""


class Panels(NamedTuple):
    """The numbers of a packed matrix: Python's, or a kernel's."""

    width: int
    """Lines of a panel."""
    group: int
    """Places of a packed element."""
    lines: Any
    depth: Any
    unit: int = 1
    """The packed elements of a line are a multiple of this."""

    @property
    def count(self) -> Any:
        """How many panels there are."""
        return up(self.lines, self.width)

    @property
    def groups(self) -> Any:
        """Packed elements of a line."""
        return up(self.depth, self.group * self.unit) * self.unit

    @property
    def panel(self) -> Any:
        """The elements of a panel. The last vector that is written may run over its end."""
        return self.groups * self.width + (SIDE if self.width % SIDE else 0)

    @property
    def sums(self) -> Any:
        """Where the sums of the lines begin."""
        return self.count * self.panel

    @property
    def room(self) -> Any:
        """The elements of a matrix."""
        return self.sums + self.count * self.width + _SLACK


class PackedSource(NamedTuple):
    """Where a factor that is packed is."""

    dtype: str
    form: str
    side: int
    batch: tuple[int, ...]
    """The sizes of the batch."""
    base: int
    steps: tuple[int, ...]
    """The steps of the batch."""
    line: int
    place: int
    zero: tuple[str, int, int] | None
    """The zero points that are subtracted: their type, the first one's place, and the step from line to line."""

    @property
    def different(self) -> tuple[tuple[int, int], ...]:
        """The sizes and steps of those dimensions of the batch in which matrices differ."""
        return tuple((size, step) for size, step in zip(self.batch, self.steps, strict=True) if step)

    def packed_steps(self, room: int) -> tuple[int, ...]:
        """The steps of the batch in the packed form."""
        found: list[int] = []
        step = room
        for size, own in reversed(list(zip(self.batch, self.steps, strict=True))):
            found.insert(0, step if own else 0)
            step *= size if own else 1
        return tuple(found)


class FactorPacking:
    """The kernel that packs a factor."""

    def __init__(
        self, panels: Panels, source: PackedSource, arithmetic: ProductArithmetic, lanes: int, sums: bool, tasks: int
    ) -> None:
        self.panels, self.source, self.arithmetic, self.lanes, self.with_sums = panels, source, arithmetic, lanes, sums
        self.tasks = tasks
        steps = (source.line, source.place, source.zero[2] if source.zero else 0)
        self.known = tuple(one if one in (0, 1) else -1 for one in steps)

    def owned(self, names: tuple[str, ...], module: str) -> Owned:
        """The packed input, which is the first of the names; the second one has the zero points."""
        own, panels = self.source, self.panels
        different = own.different
        count = math.prod(size for size, _ in different)
        kinds = (own.dtype, self.arithmetic.key(), f"{own.side} {panels.width} {panels.group}")
        layout = f"panels {' '.join(kinds)} of {count} {panels.lines} {panels.depth} sums {int(self.with_sums)}"
        layout = f"{layout} from {own.base} {own.line} {own.place} {own.different} {own.zero and own.zero[1:]}"
        parameters = (
            *(("types", f"{own.dtype} {own.zero[0] if own.zero else ''}"), ("arithmetic", self.arithmetic.key())),
            *(("side", own.side), ("width", panels.width), ("lanes", self.lanes), ("form", own.form), ("known", self.known)),
            *(("sums", self.with_sums), ("batch", len(different))),
        )
        scalars = (
            *(self.tasks, count, panels.lines, panels.depth, own.base, own.line, own.place),
            *(own.zero[1:] if own.zero else (0, 0)),
            *(size for size, _ in different),
            *(step for _, step in different),
        )
        packer = Kernel(module, "panels", parameters, self.function, scalars)
        return Owned(names[0], self.arithmetic.packed, count * panels.room, layout, names, packer)

    def function(self) -> T.PrimFunc:
        """The TensorIR."""
        own, width = self.source, self.panels.width
        with T.function() as f:
            source = f.buffer("source", own.dtype)
            zeros = f.buffer("zeros", own.zero[0]) if own.zero else None
            to = f.buffer("packed", self.arithmetic.packed)
            tasks, count, lines, depth, base, *steps, zero_base, zero_step = (
                f.scalar(name) for name in ("tasks", "count", "lines", "depth", "base", "line", "place", "zero_base", "zero_step")
            )
            line_step, place_step, zero_step = (
                given if known < 0 else known for given, known in zip((*steps, zero_step), self.known, strict=True)
            )
            sizes, batch_steps = (f.scalars(name, len(own.different)) for name in ("size", "step"))
            factor = Factor(own.side, source, own.form, width, line_step, place_step, zeros, zero_step)
            packer = packer_of(factor, self.arithmetic)
            panels = self.panels._replace(lines=lines, depth=depth)
            panel, room, number = T.hold(panels.panel), T.hold(panels.room), T.hold(panels.count)

            def task(which: Any) -> None:
                begin, end = share(which, tasks, T.hold(count * number))
                with T.loop(T.hold(end - begin)) as i:
                    one, p = T.unravel(T.hold(begin + i), [None, number])
                    start = T.hold(base + T.dot(T.unravel(one, sizes), batch_steps)) if sizes else base
                    first = T.hold(T.max(T.min(p * width, lines - width), T.i64(0)))
                    at = T.hold(one * room + p * panel)
                    packer.pack(start, zero_base, to, at, first, lines - 1, T.i64(0), depth)
                    if self.with_sums:
                        packer.sums(to, one * room + number * panel + p * width, None, self.lanes)

            per_task(tasks, task)
        return f.result()
