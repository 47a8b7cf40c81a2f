"""A recurrent network one sequence at a time, for any layout: the computation of targets without a schedule for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._recurrent_step import Unit


class Item:
    """A sequence in one direction, from its first step to its outputs.

    States are rows of scratch memory, with a value for each unit. A schedule may let several threads share the units of an item.
    """

    def __init__(
        self,
        desc: Any,
        tensors: Mapping[str, Any],
        layouts: Mapping[str, Sequence[Any]],
        sizes: Mapping[str, Any],
        scratch: Any,
        base: Any,
        at: tuple[Any, Any],
        group: tuple[int, ...],
    ) -> None:
        self.desc, self.tensors, self.layouts, self.scratch, self.base = desc, tensors, layouts, scratch, base
        self.steps, self.inputs, self.hidden = (sizes[name] for name in ("steps", "inputs", "hidden"))
        (self.direction, self.sequence), self.group = at, group
        self.functions, self.stages = desc.functions(group[0]), desc.stages()
        # Rows: the state, the state after the step, the cell, then what stages hand on.
        self.handed = 2 + desc.has_cell

    @staticmethod
    def rows(desc: Any) -> int:
        """How many values each unit has in scratch memory."""
        return 2 + desc.has_cell + sum(1 + stage.kept for stage in desc.stages()[:-1])

    # -- What a schedule may do in another way

    def units(self) -> AbstractContextManager[Any]:
        """Run the statements for each unit."""
        return T.loop(self.hidden)

    def meet(self) -> None:
        """What threads that share an item have written, all of them see from here on."""

    def weight(self, name: str, row: Any, column: Any) -> Any:
        """A weight of the input or of the state."""
        value = self._read(name, self._zero, self.direction, row, column)
        if not self.desc.QUANTIZED:
            return value
        scale, zero = (name.replace("_tensor", f"_{one}_tensor") for one in ("scale", "zero_point"))
        at, kind = (self._zero, self._zero, self.direction, row), self.desc.computed
        less = T.cast(self._read(zero, *at), kind) if self.desc.has(zero) else T.const(0, kind)
        return (T.cast(value, kind) - less) * self._read(scale, *at)

    # -- The steps

    def run(self) -> None:
        """All steps, and the outputs."""
        desc = self.desc
        self._zero = T.const(0, T.type_of(self.hidden))
        self.length = self.steps
        if desc.has("sequence_lengths_tensor"):
            given = self.tensors["sequence_lengths_tensor"][self.sequence * self.layouts["sequence_lengths_tensor"][3]]
            self.length = T.hold(limited(given, self.steps))
        with self.units() as unit:
            self._keep(0, unit, self._state("hidden_init_tensor", unit))
            if desc.has_cell:
                self._keep(2, unit, self._state("cell_mem_init_tensor", unit))
        self.meet()
        with T.loop(self.length) as step:
            self._step(step)
        self._finish()

    def _place(self, name: str, at: Sequence[Any]) -> Any:
        return T.dot(at, self.layouts[name])

    def _read(self, name: str, *at: Any) -> Any:
        return T.wide(self.tensors[name][self._place(name, at)])

    def _row(self, row: int, unit: Any) -> Any:
        return self.base + self.hidden * row + unit

    def _kept(self, row: int, unit: Any) -> Any:
        return T.hold(self.scratch[self._row(row, unit)])

    def _keep(self, row: int, unit: Any, value: Any) -> None:
        T.store(self.scratch, self._row(row, unit), value)

    def _state(self, name: str, unit: Any) -> Any:
        if not self.desc.has(name):
            return T.const(0.0, self.desc.computed)
        return self._read(name, self._zero, self.direction, self.sequence, unit)

    def _time(self, step: Any) -> Any:
        """The place of a step in the sequence."""
        last = T.hold(self.length - 1 - step)
        if len(self.group) == 2:
            return T.hold(T.Select(self.direction == T.const(1, T.type_of(self.direction)), last, step))
        return last if self.desc.is_backward(self.group[0]) else step

    def _step(self, step: Any) -> None:
        desc, time = self.desc, self._time(step)
        vector, row, before = 0, self.handed, 0
        for stage in self.stages:
            with self.units() as unit:
                kept = tuple(self._kept(row - before + i, unit) for i in range(before))
                values = self._unit(stage, time, unit, vector, kept)
                if stage is self.stages[-1]:
                    self._keep(1, unit, desc.rounded_state(values[0]))
                    if desc.has_cell:
                        self._keep(2, unit, values[1])
                else:
                    for i, value in enumerate(values):
                        self._keep(row + i, unit, value)
            self.meet()
            vector, row, before = row, row + 1 + stage.kept, stage.kept
        with self.units() as unit:
            state = self._kept(1, unit)
            self._keep(0, unit, state)
            if desc.has("output_sequence_tensor"):
                self._write("output_sequence_tensor", [time, self.direction, self.sequence, unit], state)
        self.meet()

    def _unit(self, stage: Any, time: Any, unit: Any, vector: int, kept: tuple[Any, ...]) -> tuple[Any, ...]:
        """What a stage makes of a unit."""
        desc = self.desc
        rows = {gate: T.hold(unit + self.hidden * gate) for gate in stage.gates}
        totals = {gate: T.Variable(desc.computed, self._bias(0, row)) for gate, row in rows.items()}
        with T.loop(self.inputs) as i:
            x = T.hold(self._read("input_tensor", self._zero, time, self.sequence, i))
            for gate, row in rows.items():
                totals[gate].set(totals[gate].value + x * self.weight("weight_tensor", row, i))
        apart = {gate: T.hold(totals[gate].value) for gate in stage.gates if gate in desc.apart()}
        for gate, row in rows.items():
            totals[gate].set(self._bias(1, row) if gate in apart else totals[gate].value + self._bias(1, row))
        with T.loop(self.hidden) as j:
            y = T.hold(self.scratch[self._row(vector, j)])
            for gate, row in rows.items():
                totals[gate].set(totals[gate].value + y * self.weight("recurrence_tensor", row, j))
        peepholes: tuple[Any, ...] = ()
        if desc.has("peephole_tensor"):
            places = (unit + self.hidden * i for i in range(3))
            peepholes = tuple(T.hold(self._read("peephole_tensor", self._zero, self._zero, self.direction, at)) for at in places)
        cell = self._kept(2, unit) if desc.has_cell else None
        sums = {gate: T.hold(total.value) for gate, total in totals.items()}
        own = Unit(self.functions, sums, apart, self._kept(0, unit), cell, peepholes, kept)
        return tuple(map(T.hold, stage.value(own)))

    def _bias(self, part: int, row: Any) -> Any:
        """A gate's bias: the input's, or the recurrence's."""
        desc = self.desc
        if not desc.has("bias_tensor"):
            return T.const(0.0, desc.computed)
        return self._read("bias_tensor", self._zero, self._zero, self.direction, row + self.hidden * (part * desc.GATES))

    def _write(self, name: str, at: list[Any], value: Any) -> None:
        T.store(self.tensors[name], self._place(name, at), T.to(value, self.desc.input_tensor.data_type.tvm))

    def _finish(self) -> None:
        """What follows after the last step: the sequence's rest is zeros, and so are the last states of an empty sequence."""
        desc = self.desc
        zero = T.const(0.0, desc.computed)
        if desc.has("output_sequence_tensor") and desc.has("sequence_lengths_tensor"):
            with T.loop(T.hold(self.steps - self.length)) as i, self.units() as unit:
                self._write("output_sequence_tensor", [self.length + i, self.direction, self.sequence, unit], zero)
        for row, name in ((0, "output_single_tensor"), (2, "output_cell_single_tensor")):
            if desc.has(name):
                with self.units() as unit:
                    value = T.Select(self.length > self._zero, self._kept(row, unit), zero)
                    self._write(name, [self._zero, self.direction, self.sequence, unit], value)


def limited(given: Any, most: Any) -> Any:
    """A sequence's length: that which is given, but no more than there are steps, and none of a negative number."""
    kind = T.scalar_type(given)
    found = T.cast(T.min(given, T.cast(most, kind)), T.type_of(most))
    return found if kind.startswith("u") else T.max(found, T.const(0, T.type_of(most)))
