"""A recurrent network one sequence at a time, for any layout: the computation of targets without a schedule for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tvmdml.kernels import tensorir_values as T

if TYPE_CHECKING:
    from tvmdml.operators._recurrent import Recurrent


class Item:
    """A sequence in one direction, from its first step to its outputs. States are rows of scratch memory, one value for each unit."""

    def __init__(
        self,
        desc: Recurrent,
        tensors: Mapping[str, Any],
        scratch: Any,
        item: Any,
        direction: Any,
        sequence: Any,
        group: tuple[int, ...],
    ) -> None:
        self.desc, self.tensors, self.scratch = desc, tensors, scratch
        self.direction, self.sequence, self.group = direction, sequence, group
        self.base = T.let(item * T.index(self.rows(desc) * desc.hidden))
        self.functions = desc.functions(group[0])
        # Rows: the state, the state after the step, the cell, then what stages hand on.
        self.handed = 2 + desc.has_cell
        self.layouts = {name: tensor.layout for name, tensor in desc.tensors() if tensor is not None}

    @staticmethod
    def rows(desc: Recurrent) -> int:
        """How many values each unit has in scratch memory."""
        return 2 + desc.has_cell + sum(1 + stage.kept for stage in desc.stages()[:-1])

    def run(self) -> None:
        """All steps, and the outputs."""
        desc = self.desc
        every = T.index(desc.steps)
        self.length = every
        if desc.has("sequence_lengths_tensor"):
            given = self.tensors["sequence_lengths_tensor"][self._place("sequence_lengths_tensor", [0, 0, 0, self.sequence])]
            self.length = T.hold(limited(given, every))
        for row, name in ((0, "hidden_init_tensor"), (2, "cell_mem_init_tensor")):
            if row < self.handed:
                with T.loop(T.index(desc.hidden)) as unit:
                    self._keep(row, unit, self._state(name, unit))
        with T.loop(every) as step, T.when(step < self.length):
            self._step(step)
        self._finish(every)

    # -- Memory

    def _place(self, name: str, at: Sequence[Any]) -> Any:
        return T.dot([T.index(one) for one in at], self.layouts[name])

    def _read(self, name: str, *at: Any) -> Any:
        return T.wide(self.tensors[name][self._place(name, at)])

    def _row(self, row: int, unit: Any) -> Any:
        return self.base + T.index(row * self.desc.hidden) + unit

    def _kept(self, row: int, unit: Any) -> Any:
        return T.hold(self.scratch[self._row(row, unit)])

    def _keep(self, row: int, unit: Any, value: Any) -> None:
        T.store(self.scratch, self._row(row, unit), value)

    def _state(self, name: str, unit: Any) -> Any:
        if not self.desc.has(name):
            return T.const(0.0, self.desc.computed)
        return self._read(name, 0, self.direction, self.sequence, unit)

    # -- A step

    def _time(self, step: Any) -> Any:
        """The place of a step in the sequence."""
        desc = self.desc
        last = T.let(self.length - 1 - step)
        if len(self.group) == 2:
            return T.hold(T.Select(self.direction == T.index(1), last, step))
        return last if desc.is_backward(self.group[0]) else step

    def _step(self, step: Any) -> None:
        desc = self.desc
        time, hidden = self._time(step), T.index(desc.hidden)
        vector, row = 0, self.handed
        stages = desc.stages()
        before = 0
        for stage in stages:
            with T.loop(hidden) as unit:
                kept = tuple(self._kept(row - before + i, unit) for i in range(before))
                values = self._unit(stage, time, unit, vector, kept)
                if stage is stages[-1]:
                    self._keep(1, unit, desc.rounded_state(values[0]))
                    if desc.has_cell:
                        self._keep(2, unit, values[1])
                else:
                    for i, value in enumerate(values):
                        self._keep(row + i, unit, value)
            vector, row, before = row, row + 1 + stage.kept, stage.kept
        with T.loop(hidden) as unit:
            state = self._kept(1, unit)
            self._keep(0, unit, state)
            if desc.has("output_sequence_tensor"):
                self._write("output_sequence_tensor", [time, self.direction, self.sequence, unit], state)

    def _unit(self, stage: Any, time: Any, unit: Any, vector: int, kept: tuple[Any, ...]) -> tuple[Any, ...]:
        from tvmdml.operators._recurrent import Unit

        desc = self.desc
        sums, apart = {}, {}
        for gate in stage.gates:
            row = T.let(unit + T.index(gate * desc.hidden))
            total = T.Variable(desc.computed, self._bias(0, row))
            with T.loop(T.index(desc.inputs)) as i:
                x = self._read("input_tensor", 0, time, self.sequence, i)
                total.set(total.value + x * self._read("weight_tensor", 0, self.direction, row, i))
            if gate in desc.apart():
                apart[gate] = T.hold(total.value)
                total.set(self._bias(1, row))
            else:
                total.set(total.value + self._bias(1, row))
            with T.loop(T.index(desc.hidden)) as j:
                weight = self._read("recurrence_tensor", 0, self.direction, row, j)
                total.set(total.value + self.scratch[self._row(vector, j)] * weight)
            sums[gate] = T.hold(total.value)
        peepholes: tuple[Any, ...] = ()
        if desc.has("peephole_tensor"):
            rows = (unit + T.index(i * desc.hidden) for i in range(3))
            peepholes = tuple(T.hold(self._read("peephole_tensor", 0, 0, self.direction, row)) for row in rows)
        cell = self._kept(2, unit) if desc.has_cell else None
        own = Unit(self.functions, sums, apart, self._kept(0, unit), cell, peepholes, kept)
        return tuple(map(T.hold, stage.value(own)))

    def _bias(self, part: int, row: Any) -> Any:
        """A gate's bias: the input's, or the recurrence's."""
        desc = self.desc
        if not desc.has("bias_tensor"):
            return T.const(0.0, desc.computed)
        return self._read("bias_tensor", 0, 0, self.direction, row + T.index(part * desc.GATES * desc.hidden))

    # -- Outputs

    def _write(self, name: str, at: list[Any], value: Any) -> None:
        T.store(self.tensors[name], self._place(name, at), T.to(value, self.desc.input_tensor.data_type.tvm))

    def _finish(self, every: Any) -> None:
        """What follows after the last step: the sequence's rest is zeros, and so are the last states of an empty sequence."""
        desc = self.desc
        zero = T.const(0.0, desc.computed)
        if desc.has("output_sequence_tensor") and desc.has("sequence_lengths_tensor"):
            with T.loop(every) as time, T.when(time >= self.length), T.loop(T.index(desc.hidden)) as unit:
                self._write("output_sequence_tensor", [time, self.direction, self.sequence, unit], zero)
        for row, name in ((0, "output_single_tensor"), (2, "output_cell_single_tensor")):
            if desc.has(name):
                with T.loop(T.index(desc.hidden)) as unit:
                    value = T.Select(self.length > T.index(0), self._kept(row, unit), zero)
                    self._write(name, [0, self.direction, self.sequence, unit], value)


def limited(given: Any, most: Any) -> Any:
    """A sequence's length: that which is given, but no more than there are steps, and none of a negative number."""
    kind = T.scalar_type(given)
    found = T.cast(T.min(given, T.cast(most, kind)), T.type_of(most))
    return found if kind.startswith("u") else T.max(found, T.const(0, T.type_of(most)))
