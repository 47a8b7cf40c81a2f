"""Recurrent networks on the CPU: products of blocks of sequences with packed weights, then the steps one by one.

Weights that never change are packed once, and others for each call, unless sequences have very few elements. A task has some of the
sequences in one direction. It computes what the input contributes for as many steps as fit in the cache, then makes these steps:
sums of all gates of a block of units are in registers, begin with the input's contribution, and become the units' next state while
they are at hand. Every second step takes the blocks from the last to the first: their weights are still in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.operators._contract import Shared
from tvmdml.operators._recurrent import Recurrent
from tvmdml.operators._recurrent_fused import QuantizedRecurrent
from tvmdml.operators._recurrent_step import StepPart, Unit
from tvmdml.schedules.cpu import _default, per_task, share, split
from tvmdml.schedules.cpu._recurrent_bytes import COLUMNS, BytePanels, Digits
from tvmdml.schedules.cpu._recurrent_memory import MemorySizes, TaskMemory
from tvmdml.schedules.cpu._recurrent_products import GatePanels, GateProduct, GateWeights, Unpacked, WeightPacking
from tvmdml.schedules.cpu._tiles import SIDE
from tvmdml.targets import Target

_POWERS = tuple(1 << n for n in range(24))
WEIGHTS = ("weight_tensor", "recurrence_tensor")
KNOBS = Knobs(
    "recurrent",
    chunk_rows=Knob(
        192,
        (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192),
        "elements of sequences whose products with the input's weights are made together",
    ),
    unpacked_rows=Knob(4, (0, 1, 2, 4, 8, 16), "most elements of all sequences for which weights are not packed"),
    task_products=Knob(1 << 16, _POWERS[8:], "least products of a step for each task"),
    share_products=Knob(1 << 16, _POWERS[8:], "least products of a step for each of the threads that share a sequence's units"),
)


def kernel(desc: Recurrent, target: Target, shared: Shared, knobs: Any) -> Kernel:
    """Sequences and directions are divided among tasks; if there are too few, the units of each among threads, in every step."""
    processor: Any = getattr(target, "processor", None)
    digits = _digits(desc, processor)
    if desc.QUANTIZED and not digits:
        return _default.kernel(desc, target, shared)
    wide = processor is not None and processor.has("avx512f")
    register = 64 if wide else 32 if processor is None or processor.has("avx") else 16
    lanes, registers = register // (8 if desc.computed == "float64" else 4), 32 if wide else 16
    work = desc.GATES * desc.hidden * (desc.hidden + desc.inputs) * desc.steps * desc.batch * desc.directions
    threads = max(1, min(target.tasks(), work // (int(knobs.task_products) * 16)))
    parts = max(1, min(desc.batch, threads // desc.directions))
    tasks = parts * desc.directions
    shares = split(desc.GATES * desc.hidden * desc.hidden * desc.batch, target, int(knobs.share_products)) if tasks == 1 else 1
    shares = min(shares, -(-desc.hidden // (2 * lanes)))
    most = -(-desc.batch // parts)
    chunk = max(1, min(desc.steps, int(knobs.chunk_rows) // most))
    units = -(-desc.hidden // shares)
    stages = [GateProduct.fitting(one.gates, lanes, registers, most, units, digits or 1) for one in desc.stages()]
    gates = tuple(sorted({gate for one in desc.stages() for gate in one.gates}))
    of_input = GateProduct.fitting(gates, lanes, registers, most * chunk, units, digits or 1)
    owned = {name for name in WEIGHTS if name in desc.owned()}
    if desc.batch * desc.steps <= knobs.unpacked_rows and not digits:
        stages = [one if WEIGHTS[1] in owned else _unpacked(desc, WEIGHTS[1], one) for one in stages]
        of_input = of_input if WEIGHTS[0] in owned else _unpacked(desc, WEIGHTS[0], of_input)
    made = BytePanels if digits else GatePanels
    packings = [WeightPacking(desc, name, some, columns, made) for name, some, columns in
                zip(WEIGHTS, ([of_input], stages), (desc.inputs, desc.hidden), strict=True) if name in owned]  # fmt: skip
    tiles = [-(-most // one.rows) for one in stages]
    least = desc.batch // parts
    writer = _Writer(
        desc,
        of_input,
        stages,
        tile_rows=tuple(least // count for count in tiles),
        even=all(desc.batch == parts * count * (least // count) for count in tiles),
        owned=tuple(one.name for one in packings),
        digits=digits,
        fused=parts == 1
        and not packings
        and not digits
        and all(one.units % SIDE == 0 or not one.packed for one in (of_input, *stages)),
        divided=shares > 1,
        steps_known=tuple(sorted((name, one.layout[3] == 1) for name, one in desc.tensors() if one is not None)),
    )
    sizes = MemorySizes.of(desc, of_input, stages, shares, most, chunk, digits)
    layouts = [step for _, tensor in desc.tensors() if tensor is not None for step in tensor.layout]
    bases = [base for one in packings if one.name == WEIGHTS[1] for base in one.bases()[:-1]] or [0] * len(stages)
    scalars = (
        tasks, parts, shares, threads if min(tasks, threads) > 1 else 1, chunk, *tiles, *bases,
        desc.steps, desc.batch, desc.inputs, desc.hidden, *sizes, *layouts,
    )  # fmt: skip
    columns = [(of_input, desc.inputs), *((one, desc.hidden) for one in stages)]
    fixed = [WEIGHTS[min(i, 1)] in owned for i in range(len(columns))]
    scratch = [
        (made.KIND or desc.computed, 1 if once else max(1, desc.directions * one.size(desc.hidden, made.padded_columns(count))))
        for once, (one, count) in zip(fixed, columns, strict=True)
    ]
    scratch += [(desc.computed, sizes.fixed * desc.directions), (desc.computed, sizes.task * tasks), ("int64", most * tasks)]
    scratch += [("int32", sizes.words * tasks)] if digits else []
    module, *also = desc.modules()
    return Kernel(
        module,
        "steps",
        writer.parameters,
        writer.function,
        scalars=scalars,
        temporaries=tuple(scratch),
        also=tuple(also),
        owned=tuple(one.owned(module, target) for one in packings),
    )


def _digits(desc: Recurrent, processor: Any) -> int:
    """How many digits the vectors' integers have, if bytes are multiplied by weights; otherwise 0."""
    has = processor is not None and processor.has("avx512f") and processor.has("avx512vnni")
    if not (isinstance(desc, QuantizedRecurrent) and has and max(desc.inputs, desc.hidden) <= COLUMNS):
        return 0
    return 1 if desc.may_round else 3


def _unpacked(desc: Recurrent, name: str, product: GateProduct) -> GateProduct:
    """The product with weights where they are, if they lie well; otherwise the one that is given."""
    tensor = getattr(desc, name)
    fits = tensor.layout[3] == 1 and desc.hidden % product.lanes == 0 and tensor.sizes[3] % product.lanes == 0
    return product._replace(vectors=1, rows=1, packed=False) if fits else product


class _Writer:
    """Writes the kernel."""

    tile_rows: tuple[int, ...]
    even: bool
    owned: tuple[str, ...]
    """The weights that are given packed."""
    digits: int
    """Those of the integers that vectors become; 0 if they are multiplied as floats."""
    fused: bool
    divided: bool
    steps_known: tuple[tuple[str, bool], ...]

    def __init__(self, desc: Recurrent, of_input: GateProduct, of_stages: list[GateProduct], **choices: Any) -> None:
        self.desc, self.of_input, self.of_stages = desc, of_input, of_stages
        self.__dict__.update(choices)
        self.parameters = (*desc.formula_key(), ("products", repr((of_input, *of_stages))), *choices.items())
        self.stages = desc.stages()

    def function(self) -> T.PrimFunc:
        desc = self.desc
        with T.function() as f:
            kind = BytePanels.KIND if self.digits else desc.computed
            buffers = f.tensors(desc, packed=dict.fromkeys(self.owned, kind))
            packed = [f.buffer(f"packed{i}", kind) for i in range(1 + len(self.stages))]
            fixed, work, lengths = f.buffer("fixed", desc.computed), f.buffer("work", desc.computed), f.buffer("lengths", "int64")
            words = f.buffer("words", "int32") if self.digits else None
            names = ("tasks", "parts", "shares", "packers", "chunk")
            self.tasks, self.parts, self.shares, self.packers, self.chunk = map(f.scalar, names)
            self.tiles = f.scalars("tiles", len(self.stages))
            bases = f.scalars("base", len(self.stages))
            self.steps, self.batch, self.inputs, self.hidden = (f.scalar(n) for n in ("steps", "batch", "inputs", "hidden"))
            sizes = MemorySizes(*(f.scalar(f"size_{name}") for name in MemorySizes._fields))
            layouts = {name: f.scalars(f"{name}_step", 4) for name, tensor in desc.tensors() if tensor is not None}
            known = dict(self.steps_known)
            steps = {name: [*own[:3], 1 if known[name] else own[3]] for name, own in layouts.items()}
            memory = self.memory = TaskMemory(desc, buffers, steps, fixed, work, lengths, sizes, self.hidden, self.of_input)
            self.weights, self.recurrence = (GateWeights(buffers[one], steps[one]) for one in WEIGHTS)
            packed = [buffers[name] if (name := WEIGHTS[min(i, 1)]) in self.owned else one for i, one in enumerate(packed)]

            def panels(
                product: GateProduct, packed: Any, weights: GateWeights, columns: Any, base: Any = 0
            ) -> GatePanels | Unpacked:
                if not product.packed:
                    return Unpacked(product, weights, desc.computed, columns, self.hidden)
                if words is None:
                    return GatePanels(product, packed, desc.computed, columns, self.hidden, base)
                bytes_of = BytePanels(product, packed, kind, columns, self.hidden, base)
                return bytes_of.of(Digits(self.digits, words), memory, 0 if product is self.of_input else 1)

            self.input_panels = panels(self.of_input, packed[0], self.weights, self.inputs)
            each = zip(self.of_stages, packed[1:], bases, strict=True)
            self.panels = [panels(one, buffer, self.recurrence, self.hidden, base) for one, buffer, base in each]
            memory.fill_fixed()
            if not self.fused and len(self.owned) < len(WEIGHTS):
                per_task(self.packers, self._pack)
            if self.divided:  # then threads share what a task does
                with T.loop(self.tasks) as task:
                    self._task(T.hold(task))
            else:
                per_task(self.tasks, self._task)
        return f.result()

    def _pack(self, part: Any) -> None:
        """A part of the weights, packed."""
        parts = self.packers
        directions = T.i64(self.desc.directions)
        if WEIGHTS[0] not in self.owned:
            self.input_panels.fill(part, parts, directions, self.weights)
        for panels in self.panels if WEIGHTS[1] not in self.owned else ():
            panels.fill(part, parts, directions, self.recurrence)

    # -- A task

    def _task(self, task: Any) -> None:
        """Some sequences in one direction, from the first to the last step."""
        direction = T.hold(T.truncdiv(task, self.parts))
        begin, end = share(T.hold(task - direction * self.parts), self.parts, self.batch)
        for group in self.desc.alike():
            if len(group) == self.desc.directions:
                self._sequences(task, direction, begin, T.hold(end - begin), group)
            else:
                with T.when(direction == T.i64(group[0])):
                    self._sequences(task, direction, begin, T.hold(end - begin), group)

    def _sequences(self, task: Any, direction: Any, first: Any, count: Any, group: tuple[int, ...]) -> None:
        memory = self.memory
        memory.begin(task, direction, first, count, group, self.steps)
        self.functions = self.desc.functions(group[0])
        self.direction, self.count = direction, count
        last = memory.start()
        with T.loop(T.hold(T.truncdiv(last + (self.chunk - 1), self.chunk))) as number:
            done = T.hold(number * self.chunk)
            some = T.hold(T.min(self.chunk, last - done))
            memory.gather(done, some, self.inputs)
            self._write_digits(T.hold(some * count), self.input_panels, memory.element)
            self._of_input(number, T.hold(some * count))
            if self.fused:
                with T.when(number == T.i64(0)):
                    for panels in self.panels:
                        self._blocks(panels, partial(self._fill_block, panels))
            with T.loop(some) as i:
                self._step(T.hold(done + i), T.hold(i * count))
        memory.finish()

    def _fill_block(self, panels: GatePanels | Unpacked, block: Any) -> None:
        panels.fill_block(self.direction, block, self.recurrence)

    def _of_input(self, number: Any, rows: Any) -> None:
        """What the input contributes to all gates, for so many elements of sequences; a last tile computes rows that nobody reads.

        If no other task needs the weights of this direction, each block is packed just before it is first used.
        """
        product, memory = self.of_input, self.memory
        tiles = T.hold(T.truncdiv(rows + (product.rows - 1), T.i64(product.rows)))

        def block_of(block: Any) -> None:
            if self.fused:
                with T.when(number == T.i64(0)):
                    self.input_panels.fill_block(self.direction, block, self.weights)
            place = self.input_panels.place(self.direction, block)
            unit = T.hold(block * product.units)

            def bias(row: int, number: int, vector: int, unit: Any = unit) -> Any:
                return memory.bias(product.gates[number], unit + vector * product.lanes, product.lanes)

            with T.loop(tiles) as tile:
                first = T.hold(tile * product.rows)
                starts = [self._vector(self.input_panels, memory.element, T.hold(first + r)) for r in range(product.rows)]
                sums = self.input_panels.sums(place, memory.work, starts, bias)
                for r, own in enumerate(sums):
                    for gate, vectors in zip(product.gates, own, strict=True):
                        for v, value in enumerate(vectors):
                            at = memory.contribution(T.hold(first + r), gate, unit + v * product.lanes)
                            T.store(memory.work, T.run(at, product.lanes), value)

        self._blocks(self.input_panels, block_of)

    def _blocks(self, panels: GatePanels | Unpacked, body: Callable[[Any], None], turned: Any = None) -> None:
        """Do something for each block of units, which threads may share; ``turned`` is 1 to begin with the last one."""

        def all_of(begin: Any, count: Any) -> None:
            with T.loop(count) as i:
                at = i if turned is None else T.Select(turned == T.i64(1), count - 1 - i, i)
                body(T.hold(begin + at))

        if not self.divided:
            all_of(T.i64(0), panels.blocks)
            return

        def some(number: Any) -> None:
            begin, end = share(number, self.shares, panels.blocks)
            self.memory.share = number
            all_of(begin, T.hold(end - begin))

        per_task(self.shares, some)
        self.memory.share = T.i64(0)

    def _step(self, step: Any, element: Any) -> None:
        """A step of all sequences; ``element`` is where its first contribution is."""
        memory = self.memory
        memory.turn(step)
        turned = T.hold(step & 1)
        for number, stage in enumerate(self.stages):
            panels, tiles = self.panels[number], self.tiles[number]
            self._write_digits(self.count, panels, partial(memory.vector, number))

            def block_of(
                block: Any,
                number: int = number,
                stage: StepPart = stage,
                panels: GatePanels | Unpacked = panels,
                tiles: Any = tiles,
            ) -> None:
                place = panels.place(self.direction, block)
                unit = T.hold(block * panels.product.units)
                with T.loop(tiles) as tile:
                    begin, end = share(tile, tiles, self.count)
                    self._tile(number, stage, place, unit, begin, T.hold(end - begin), element)

            self._blocks(panels, block_of, turned)
        memory.write(step)

    def _vector(self, panels: GatePanels | Unpacked, place: Callable[[Any], Any], row: Any) -> Any:
        """Where a vector is that is multiplied by weights: an element of a sequence, or of a state."""
        return self.memory.words(row, panels.weights, self.digits) if isinstance(panels, BytePanels) else place(row)

    def _write_digits(self, count: Any, panels: GatePanels | Unpacked, place: Callable[[Any], Any]) -> None:
        """Make integers of so many vectors, if they are multiplied as such."""
        if isinstance(panels, BytePanels):
            with T.loop(count) as row:
                to = self._vector(panels, place, row)
                panels.digits.write(to, self.memory.work, place(row), panels.columns)

    def _tile(self, number: int, stage: StepPart, place: Any, unit: Any, first: Any, rows: Any, element: Any) -> None:
        """Some sequences, and a block of units: sums, then what the units make of them."""
        least = self.tile_rows[number]

        def tile(count: int) -> Callable[[], None]:
            return lambda: self._sums(number, stage, place, unit, first, count, element)

        if self.even:
            tile(least)()
        else:
            T.either(rows == T.i64(least), tile(least), tile(least + 1))
        self._values(number, stage, unit, first, rows, element)

    def _sums(self, number: int, stage: StepPart, place: Any, unit: Any, first: Any, count: int, element: Any) -> None:
        memory, panels = self.memory, self.panels[number]
        product, apart = panels.product, self.desc.apart()

        def start(row: int, at: int, vector: int) -> Any:
            gate = product.gates[at]
            place = T.hold(unit + vector * product.lanes)
            if gate in apart:
                return memory.own_bias(gate, place, product.lanes)
            return memory.work[T.run(memory.contribution(T.hold(element + first + row), gate, place), product.lanes)]

        starts = [self._vector(panels, partial(memory.vector, number), T.hold(first + r)) for r in range(count)]
        for r, own in enumerate(panels.sums(place, memory.work, starts, start)):
            for at, vectors in enumerate(own):
                for v, value in enumerate(vectors):
                    T.store(memory.work, T.run(memory.sum(r, product, at, v), product.lanes), value)

    def _values(self, number: int, stage: StepPart, unit: Any, first: Any, rows: Any, element: Any) -> None:
        """What the units make of their sums."""
        memory, product, desc = self.memory, self.panels[number].product, self.desc
        lanes = product.lanes
        # One loop over rows and vectors, so that it is not deeper than those of products (see ``deep_loop``).
        with T.loop(T.hold(rows * product.vectors)) as i:
            r, v = map(T.hold, T.unravel(i, [None, product.vectors]))
            row, place = T.hold(first + r), T.hold(unit + v * lanes)

            def read(at: Any) -> Any:
                return T.hold(memory.work[T.run(T.hold(at), lanes)])

            sums = {gate: read(memory.sum(r, product, at, v)) for at, gate in enumerate(product.gates)}
            apart = {
                gate: read(memory.contribution(T.hold(element + row), gate, place))
                for gate in desc.apart()
                if gate in product.gates
            }
            kept = tuple(read(memory.kept(number - 1, i, row, place)) for i in range(self.stages[number - 1].kept if number else 0))
            cell = read(memory.cell(row, place)) if desc.has_cell else None
            peepholes = tuple(memory.peephole(i, place, lanes) for i in range(3)) if desc.has("peephole_tensor") else ()
            own = Unit(self.functions, sums, apart, read(memory.state(row, place)), cell, peepholes, kept)
            values = [T.hold(one) for one in stage.value(own)]
            if number + 1 < len(self.stages):
                for i, value in enumerate(values):
                    to = memory.handed(number, row, place) if i == 0 else memory.kept(number, i - 1, row, place)
                    T.store(memory.work, T.run(T.hold(to), lanes), value)
                return
            T.store(memory.work, T.run(T.hold(memory.next_state(row, place)), lanes), desc.rounded_state(values[0]))
            if desc.has_cell:
                T.store(memory.work, T.run(T.hold(memory.cell(row, place)), lanes), values[1])
