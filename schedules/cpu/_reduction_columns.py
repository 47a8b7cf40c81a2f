"""Reductions of neighbouring slices on the CPU: a vector has an element of each of several slices."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.formula import Source
from tvmdml.kernels.reduction import FOLDS, LEVELS, Totals, Values, Walk
from tvmdml.schedules.cpu import per_task, share
from tvmdml.schedules.cpu._reduction import CELL, ReductionWriter, bits, held, splat

ROWS = 8
"""Rows that a task goes over together: a processor reads ahead in so many sequences, and not in many more."""


class SliceColumns(ReductionWriter):  # type: ignore[misc] # mypy knows these modules by another name
    """Neighbouring slices in vectors: totals of a panel are in scratch memory, those of some rows in registers."""

    def body(self) -> None:
        per_task(self.tasks, self._task)

    def _task(self, task: Any) -> None:
        *outer, last = self.outer
        self.group = self.lanes * self.vectors
        self.slots = T.let(self.chunk + self.group)
        states = max((walk.states for walk in self.walks), default=0)
        finds = sum(walk.finds or walk.states for walk in self.walks)
        self.base = T.let(task * self.slots * (LEVELS * states + finds))
        self.kept = T.let(self.base + self.slots * LEVELS * states)
        panels = T.let(T.truncdiv(last + (self.chunk - 1), self.chunk))
        begin, end = share(task, self.tasks, T.let(math.prod(outer, start=panels)))
        with T.loop(T.let(end - begin)) as i:
            *at, panel = T.unravel(begin + i, [*outer, panels])
            self.left = T.let(panel * self.chunk)
            self.groups = T.let(T.truncdiv(T.min(self.chunk, last - self.left) + (self.group - 1), T.i64(self.group)))
            self.clear()
            for j, (name, (own, inner)) in enumerate(self.steps.items()):
                along = own[-1] if self.last[j] < 0 else self.last[j]
                source = Source(self.buffers[name], (*inner, along), T.let(T.dot(at, own[:-1]) if at else T.i64(0)))
                kind = self.ends if name not in self.operand_names else self.sinks if name in self.desc.EACH else self.sources
                kind.append(source)
            self._panel()

    def _vectors(self) -> Iterator[tuple[Any, Any]]:
        """The place and the slot of each vector of a panel. The last ones may begin earlier, and be computed twice."""
        with T.loop(self.groups) as i:
            first = T.let(T.min(self.left + i * self.group, self.outer[-1] - self.group))
            for v in range(self.vectors):
                yield T.let(first + v * self.lanes), T.let(i * self.group + v * self.lanes)

    def _rows(self) -> Iterator[tuple[list[Any], Any, Any, Any]]:
        """Some rows that follow each other: the outer coordinates, the first row's, their number, the first one's position."""
        *outer, last = self.inner
        with T.loop(T.let(math.prod(outer, start=T.i64(1)))) as row:
            at = T.unravel(row, outer)
            with T.loop(T.let(T.truncdiv(last + (ROWS - 1), T.i64(ROWS)))) as block:
                start = T.let(block * ROWS)
                yield at, start, T.let(T.min(last - start, T.i64(ROWS))), T.let(row * last + start)

    def _position(self, place: Any) -> Any:
        return splat(T.cast(place, self.position), self.lanes)

    def _panel(self) -> None:
        types: list[str] = []
        for walk in self.walks:
            types += self._walk(walk, types)
        if self.slices:
            for place, slot in self._vectors():
                found = self._found(types, slot)
                values = self.desc.slice_results(*found, self.as_count(self.lanes))
                self.results([end._replace(steps=end.steps[-1:]) for end in self.ends], [place], values, self.slices)
        if not self.outputs:
            return
        for at, start, count, position in self._rows():
            with T.loop(count) as i:
                row = [*at, T.let(start + i)]
                for place, slot in self._vectors():
                    elements = self.read(self.sources, [*row, place], self.lanes)
                    values = self.desc.element_of(self._position(position + i), elements, self._found(types, slot))
                    self.results(self.sinks, [*row, place], values, self.outputs)

    def _walk(self, walk: Walk, types: list[str]) -> list[str]:
        """The totals of a panel's slices; returns the types of what is found."""
        lanes = self.lanes
        levels = 1 if walk.exact else LEVELS
        first = [T.i64(0)] * self.ranks[1]
        like = walk.values(
            self._found(types, T.i64(0)), self._position(T.i64(0)), self.read(self.sources, [*first, self._first()], lanes)
        )
        identity = held(walk.identity(tuple(map(T.hold, like))))
        kinds = [T.scalar_type(one) for one in identity]

        def level(number: int, slot: Any) -> Values:
            return tuple(
                T.hold(self._cells(self.base + (number * walk.states + i) * self.slots, kind, slot)) for i, kind in enumerate(kinds)
            )

        def keep(number: int, slot: Any, values: Values) -> None:
            for i, value in enumerate(values):
                self._keep(self.base + (number * walk.states + i) * self.slots, slot, value)

        for _, slot in self._vectors():
            for number in range(levels):
                keep(number, slot, identity)
        blocks = T.Variable("int64", T.i64(0))
        for at, start, count, position in self._rows():
            with T.loop(self.groups) as g:
                place = T.let(T.min(self.left + g * self.group, self.outer[-1] - self.group))
                totals = [Totals(walk, identity, 1) for _ in range(self.vectors)]
                found = [self._found(types, T.let(g * self.group + v * lanes)) for v in range(self.vectors)]
                with T.loop(count) as i:
                    for v, total in enumerate(totals):
                        elements = self.read(self.sources, [*at, T.let(start + i), T.let(place + v * lanes)], lanes)
                        total.add(walk.values(found[v], self._position(position + i), elements))
                for v, total in enumerate(totals):
                    slot = T.let(g * self.group + v * lanes)
                    keep(0, slot, walk.combine(level(0, slot), total.values, True))
            blocks.set(blocks.value + 1)
            every = FOLDS
            for number in range(levels - 1):
                with T.when((blocks.value & T.i64(every - 1)) == T.i64(0)):
                    for _, slot in self._vectors():
                        keep(number + 1, slot, walk.combine(level(number + 1, slot), level(number, slot)))
                        keep(number, slot, identity)
                every *= FOLDS
        known: list[str] = []
        for _, slot in self._vectors():
            values = level(levels - 1, slot)
            for number in reversed(range(levels - 1)):
                values = held(walk.combine(values, level(number, slot)))
            totals_found = held(walk.totals(values, self._found(types, slot), self.as_count(lanes)))
            known = [T.scalar_type(one) for one in totals_found]
            for i, value in enumerate(totals_found):
                self._keep(self.kept + (len(types) + i) * self.slots, slot, value)
        return known

    def _first(self) -> Any:
        """The place of a vector in the panel."""
        return T.let(T.min(self.left, self.outer[-1] - self.group))

    def _found(self, types: list[str], slot: Any) -> list[Any]:
        return [T.hold(self._cells(self.kept + i * self.slots, kind, slot)) for i, kind in enumerate(types)]

    def _cells(self, array: Any, kind: str, slot: Any) -> Any:
        """Values of an array in scratch memory: a cell has room for the widest."""
        view = T.view(self.scratch.data, kind)
        start = T.let(array * (CELL * 8 // bits(kind)) + slot)
        return view[T.run(start, self.lanes) if self.lanes > 1 else start]

    def _keep(self, array: Any, slot: Any, value: Any) -> None:
        kind = T.scalar_type(value)
        start = T.let(array * (CELL * 8 // bits(kind)) + slot)
        T.store(T.view(self.scratch.data, kind), T.run(start, self.lanes) if self.lanes > 1 else start, value)
