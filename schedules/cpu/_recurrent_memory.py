"""The memory of a recurrent network on the CPU: where a task's numbers are, and how they come from and go to tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._recurrent import Recurrent
from tvmdml.operators._recurrent_default import limited
from tvmdml.schedules.cpu._recurrent_bytes import words
from tvmdml.schedules.cpu._recurrent_products import GateProduct


class MemorySizes(NamedTuple):
    """Counts of numbers, and where in a task's memory something begins."""

    pitch: Any
    """The units of a row, with those that fill up the last block."""
    fixed: Any
    """What is the same for all tasks of a direction."""
    task: Any
    contributions: Any
    states: Any
    plane: Any
    """A number for each unit of each of a task's sequences."""
    cells: Any
    handed: Any
    sums: Any
    sum_room: Any
    """The sums of a tile."""
    most: Any
    """The most sequences of a task."""
    words: Any
    """The words of a task's vectors of integers."""
    state_words: Any
    """Where those of states begin."""

    @classmethod
    def of(
        cls, desc: Recurrent, of_input: GateProduct, stages: Sequence[GateProduct], shares: int, most: int, chunk: int, digits: int
    ) -> MemorySizes:
        """Those of an operator; ``shares`` is how many threads a task's units are divided among.

        With ``digits``, vectors are multiplied as integers of so many.
        """
        widest = max(one.units for one in (of_input, *stages))
        pitch = -(-desc.hidden // widest) * widest + 16
        rows = -(-most * chunk // of_input.rows) * of_input.rows
        plane = most * pitch
        contributions = _whole(rows * desc.inputs)
        states = contributions + _whole(rows * desc.GATES * pitch)
        cells = states + 2 * plane
        handed = cells + plane * desc.has_cell
        sums = handed + plane * sum(1 + one.kept for one in desc.stages()[:-1])
        sum_room = max((one.rows + 1) * one.width for one in stages)
        task = sums + shares * sum_room
        fixed = (desc.GATES + len(desc.apart()) + 3 + (4 * desc.GATES if digits else 0)) * pitch
        state_words = rows * words(desc.inputs, digits) if digits else 0
        all_words = state_words + most * words(desc.hidden, digits) if digits else 0
        return cls(
            *(pitch, fixed, _whole(task) + 16, contributions, states, plane, cells, handed, sums, sum_room, most),
            *(all_words, state_words),
        )


def _whole(count: int) -> int:
    """So many numbers, in whole cache lines."""
    return -(-count // 16) * 16


class TaskMemory:
    """A task's numbers, all of one type."""

    def __init__(
        self,
        desc: Recurrent,
        buffers: Mapping[str, Any],
        steps: Mapping[str, Sequence[Any]],
        fixed: Any,
        work: Any,
        lengths: Any,
        sizes: MemorySizes,
        hidden: Any,
        of_input: GateProduct,
    ) -> None:
        self.desc, self.buffers, self.steps = desc, buffers, steps
        self.fixed, self.work, self.lengths = fixed, work, lengths
        self.sizes, self.hidden = sizes, hidden
        self.of_input = of_input

    # -- What is the same for all sequences

    def fill_fixed(self) -> None:
        """Biases and peephole weights, with zeros for the units that fill up the last block."""
        desc = self.desc
        count, apart = desc.GATES, desc.apart()
        with T.loop(T.i64(desc.directions)) as direction, T.loop(self.sizes.pitch) as unit:
            base = T.hold(direction * self.sizes.fixed + unit)
            inside = T.hold(unit < self.hidden)

            def put(row: int, parts: Sequence[tuple[str, int]], more: float = 0.0, base: Any = base, inside: Any = inside) -> None:
                found = [self._fixed_value(name, direction, number, unit) for name, number in parts if desc.has(name)]
                to = T.hold(base + self.sizes.pitch * row)
                if more or not found:
                    found.append(T.const(more, desc.computed))
                T.either(
                    inside,
                    lambda: T.store(self.fixed, to, found[0] + found[1] if len(found) > 1 else found[0]),
                    lambda: T.store(self.fixed, to, T.const(0.0, desc.computed)),
                )

            for gate in range(count):
                both = (("bias_tensor", gate),) if gate in apart else (("bias_tensor", gate), ("bias_tensor", count + gate))
                put(gate, both)
            for i, gate in enumerate(apart):
                put(count + i, (("bias_tensor", count + gate),))
            for i in range(3 if desc.has("peephole_tensor") else 0):
                put(count + len(apart) + i, (("peephole_tensor", i),))
            for i, name in enumerate(("weight", "recurrence") if desc.QUANTIZED else ()):
                middle = 128.0 if getattr(desc, f"{name}_tensor").data_type.is_signed else 0.0
                for gate in range(count):
                    put(self._parameter(i, 0, gate), ((f"{name}_scale_tensor", gate),))
                    put(self._parameter(i, 1, gate), ((f"{name}_zero_point_tensor", gate),), middle)

    def _fixed_value(self, name: str, direction: Any, number: int, unit: Any) -> Any:
        steps = self.steps[name]
        value = self.buffers[name][T.hold(direction * steps[2] + (self.hidden * number + unit) * steps[3])]
        return T.cast(value, self.desc.computed)

    def _fixed(self, row: int, unit: Any, lanes: int) -> Any:
        at = T.hold(self.direction * self.sizes.fixed + self.sizes.pitch * row + unit)
        return T.hold(self.fixed[T.run(at, lanes)])

    def bias(self, gate: int, unit: Any, lanes: int) -> Any:
        """What is added to the input's contribution to a gate."""
        return self._fixed(gate, unit, lanes)

    def scale(self, weights: int, gate: int, unit: Any, lanes: int) -> Any:
        """The scales of bytes: 0 for the input's weights, 1 for those of states."""
        return self._fixed(self._parameter(weights, 0, gate), unit, lanes)

    def zero_point(self, weights: int, gate: int, unit: Any, lanes: int) -> Any:
        """Their zero points, counted from the lower end of the range."""
        return self._fixed(self._parameter(weights, 1, gate), unit, lanes)

    def _parameter(self, weights: int, number: int, gate: int) -> int:
        return self.desc.GATES * (1 + 2 * weights + number) + len(self.desc.apart()) + 3 + gate

    def own_bias(self, gate: int, unit: Any, lanes: int) -> Any:
        """What is added to the state's contribution to a gate that is apart."""
        return self._fixed(self.desc.GATES + self.desc.apart().index(gate), unit, lanes)

    def peephole(self, number: int, unit: Any, lanes: int) -> Any:
        """Weights of the cell."""
        return self._fixed(self.desc.GATES + len(self.desc.apart()) + number, unit, lanes)

    # -- Where a task's numbers are

    def begin(self, task: Any, direction: Any, first: Any, count: Any, group: tuple[int, ...], steps: Any) -> None:
        """What follows is about a task's sequences."""
        self.base = T.hold(task * self.sizes.task)
        self.first_word = T.hold(task * self.sizes.words)
        self.length_base = T.hold(task * self.sizes.most)
        self.direction, self.first, self.count, self.group, self.total = direction, first, count, group, steps
        self.inputs: Any = None
        self.share: Any = T.i64(0)
        """Which of the threads that a task's units are divided among it is."""

    def element(self, row: Any) -> Any:
        """An element of a sequence."""
        return T.hold(self.base + row * self.inputs)

    def words(self, row: Any, weights: int, digits: int) -> Any:
        """A vector of integers: 0 for an element of a sequence, 1 for a state."""
        begin = self.first_word + (self.sizes.state_words if weights else T.i64(0))
        return T.hold(begin + row * words(self.hidden if weights else self.inputs, digits))

    def contribution(self, row: Any, gate: int, unit: Any) -> Any:
        """What the input contributes to a gate."""
        return T.hold(self.base + self.sizes.contributions + (row * self.desc.GATES + gate) * self.sizes.pitch + unit)

    def _plane(self, start: Any, row: Any, unit: Any) -> Any:
        return self.base + start + row * self.sizes.pitch + unit

    def turn(self, step: Any) -> None:
        """The state before and after a step are in two places that change."""
        odd = T.hold(step & 1)
        self.now = T.hold(self.sizes.states + odd * self.sizes.plane)
        self.next = T.hold(self.sizes.states + (1 - odd) * self.sizes.plane)

    def state(self, row: Any, unit: Any) -> Any:
        """The state before the step."""
        return self._plane(self.now, row, unit)

    def next_state(self, row: Any, unit: Any) -> Any:
        """The state after the step."""
        return self._plane(self.next, row, unit)

    def cell(self, row: Any, unit: Any) -> Any:
        """The cell."""
        return self._plane(self.sizes.cells, row, unit)

    def handed(self, stage: int, row: Any, unit: Any) -> Any:
        """What a stage makes for the next one to multiply."""
        return self._plane(self.sizes.handed + self._rows_before(stage) * self.sizes.plane, row, unit)

    def kept(self, stage: int, number: int, row: Any, unit: Any) -> Any:
        """What a stage keeps for the next one."""
        return self._plane(self.sizes.handed + (self._rows_before(stage) + 1 + number) * self.sizes.plane, row, unit)

    def _rows_before(self, stage: int) -> int:
        return sum(1 + one.kept for one in self.desc.stages()[:stage])

    def vector(self, stage: int, row: Any) -> Any:
        """What a stage multiplies: the state, or what the stage before has made."""
        return T.hold(self.state(row, T.i64(0)) if stage == 0 else self.handed(stage - 1, row, T.i64(0)))

    def sum(self, row: Any, product: GateProduct, gate: int, vector: Any) -> Any:
        """A tile's sums."""
        first = self.base + self.sizes.sums + self.share * self.sizes.sum_room
        return T.hold(first + row * product.width + gate * product.units + vector * product.lanes)

    # -- Tensors

    def start(self) -> Any:
        """The lengths, the states before the first step; returns how many steps there are."""
        desc = self.desc
        longest = T.Variable("int64", T.i64(0))
        with T.loop(self.count) as b:
            length = self.total
            if desc.has("sequence_lengths_tensor"):
                name = "sequence_lengths_tensor"
                given = self.buffers[name][T.hold((self.first + b) * self.steps[name][3])]
                length = T.hold(limited(given, self.total))
            T.store(self.lengths, T.hold(self.length_base + b), length)
            longest.set(T.max(longest.value, length))
        self.turn(T.i64(0))
        for place, name in ((self.state, "hidden_init_tensor"), (self.cell, "cell_mem_init_tensor")):
            if place == self.cell and not desc.has_cell:
                continue
            with T.loop(self.count) as b, T.loop(self.hidden) as unit:
                value = T.const(0.0, desc.computed)
                if desc.has(name):
                    value = T.wide(self.buffers[name][self._at(name, 0, self.first + b, unit)])
                T.store(self.work, T.hold(place(b, unit)), value)
        return T.hold(longest.value)

    def _at(self, name: str, time: Any, sequence: Any, unit: Any) -> Any:
        steps = self.steps[name]
        return T.hold(time * steps[0] + self.direction * steps[1] + sequence * steps[2] + unit * steps[3])

    def _time(self, step: Any, length: Any) -> Any:
        """The place of a step in a sequence; that of any step after the last one is in the sequence, too."""
        last = T.hold(T.max(length - 1 - step, T.i64(0)))
        if len(self.group) == 2:
            return T.hold(T.Select(self.direction == T.i64(1), last, step))
        return last if self.desc.is_backward(self.group[0]) else step

    def _length(self, sequence: Any) -> Any:
        return T.hold(self.lengths[T.hold(self.length_base + sequence)])

    def gather(self, first: Any, count: Any, inputs: Any) -> None:
        """The elements of the sequences in some steps, one after another."""
        self.inputs = inputs
        name = "input_tensor"
        steps = self.steps[name]
        with T.loop(count) as i, T.loop(self.count) as b:
            time = self._time(T.hold(first + i), self._length(b))
            source = T.hold(time * steps[1] + (self.first + b) * steps[2])
            to = self.element(T.hold(i * self.count + b))
            with T.loop(inputs) as j:
                T.store(self.work, to + j, T.wide(self.buffers[name][source + j * steps[3]]))

    def write(self, step: Any) -> None:
        """The state after a step; of a sequence's last step the last states, too."""
        desc = self.desc
        with T.loop(self.count) as b:
            length = self._length(b)
            with T.when(step < length):
                if desc.has("output_sequence_tensor"):
                    time = self._time(step, length)
                    self._copy("output_sequence_tensor", time, b, self.next_state(b, T.i64(0)))
                ends = [(n, p) for n, p in (("output_single_tensor", self.next_state), ("output_cell_single_tensor", self.cell))]
                if any(desc.has(name) for name, _ in ends):
                    with T.when(step == length - 1):
                        for name, place in ends:
                            if desc.has(name):
                                self._copy(name, T.i64(0), b, place(b, T.i64(0)))

    def _copy(self, name: str, time: Any, sequence: Any, source: Any) -> None:
        source = T.hold(source)
        to = self._at(name, time, self.first + sequence, T.i64(0))
        step, kind = self.steps[name][3], self.desc.input_tensor.data_type.tvm
        with T.loop(self.hidden) as unit:
            T.store(self.buffers[name], to + unit * step, T.to(self.work[source + unit], kind))

    def finish(self) -> None:
        """Zeros behind the ends of sequences, and as the last states of empty ones."""
        desc = self.desc
        if not desc.has("sequence_lengths_tensor"):
            return
        kind = desc.input_tensor.data_type.tvm
        zero = T.const(0.0, kind)

        def clear(name: str, time: Any, b: Any) -> None:
            to, step = self._at(name, time, self.first + b, T.i64(0)), self.steps[name][3]
            with T.loop(self.hidden) as unit:
                T.store(self.buffers[name], to + unit * step, zero)

        with T.loop(self.count) as b:
            length = self._length(b)
            if desc.has("output_sequence_tensor"):
                with T.loop(T.hold(self.total - length)) as i:
                    clear("output_sequence_tensor", T.hold(length + i), b)
            with T.when(length == T.i64(0)):
                for name in ("output_single_tensor", "output_cell_single_tensor"):
                    if desc.has(name):
                        clear(name, T.i64(0), b)
