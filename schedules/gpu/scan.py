"""Scans on a GPU: sixteen threads combine a block of a row, each a group of it, in the family's order (``operators/_scan.py``).

Threads read neighbours: of one row, which are exchanged in shared memory, or, where neighbouring rows are contiguous, of several.
There are two variants:

- ``whole``: the sixteen threads walk along a row.
- ``tiles``: if rows are few, each tile has its threads. One launch finds what each tile comes to, the next each tile's base, and
  the last scans the tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from tvmdml.kernels import launched
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob
from tvmdml.kernels.layout import collapse, without
from tvmdml.operators._contract import Shared
from tvmdml.operators._scan import BLOCK, GROUP, TILE, Scan
from tvmdml.schedules.gpu import Numbers, checked, group_knobs, require, strided, taken_steps
from tvmdml.schedules.gpu._words import offset, unravel
from tvmdml.targets._device import DeviceTarget

KNOBS = group_knobs(
    "scan",
    algorithm=Knob("auto", ("auto", "whole", "tiles"), "the variant; auto chooses by the number and the length of rows"),
    threads=Knob(128, (32, 64, 128, 256), "threads per group of threads; each sixteen work on one row or tile"),
    whole_tiles=Knob(2, tuple(1 << n for n in range(12)), "most tiles of a row that is not divided, if the device is partly idle"),
)

_PITCH = GROUP + 1
"""Words between groups in shared memory: threads that each read one have no bank conflicts."""
_MOST_ROUNDS = 1 << 15
"""Of a loop in a thread: Mesa's CPU driver silently ends one after 65535."""


def kernel(desc: Scan, target: DeviceTarget, shared: Shared, knobs: Any) -> Kernel:
    """The kernel over rows, or over their tiles."""
    axis, source, result = desc.axis, desc.input_tensor, desc.output_tensor
    length = source.sizes[axis]
    layouts = [taken_steps(tensor.sizes, tensor.layout) for tensor in (source, result)]
    sizes, steps = collapse(*(without(axis, t) for t in (source.sizes, *layouts)))
    sizes, steps = sizes or (1,), tuple(s or (0,) for s in steps)
    along = tuple(layout[axis] for layout in layouts)
    rows, tiles = source.element_count // length, -(-length // TILE)
    computed = desc.computed if source.data_type.itemsize > 2 or source.data_type.is_float else "int32"
    if computed == "int32" and not source.data_type.is_signed and source.data_type.itemsize < 4:
        computed = "uint32"
    width = 8 if computed.endswith("64") else 4
    threads = knobs.threads
    while threads > target.max_threads or threads * (_PITCH + 1) * width > target.max_shared_bytes:
        threads //= 2
    slots = threads // GROUP
    idle = rows * GROUP < threads * target.tasks() and tiles > knobs.whole_tiles
    divided = tiles > 1 and (tiles >= _MOST_ROUNDS or (idle if knobs.algorithm == "auto" else knobs.algorithm == "tiles"))
    units = rows * tiles if divided else rows
    most = min(target.max_groups, knobs.most_groups)
    numbers = Numbers(
        max(source.span, result.span, source.element_count + TILE, rows * tiles * TILE, units + threads * most),
        # A driver that sees a sum with a constant 0 may leave it out, which is wrong for -0.
        launched.patterns((float(desc.FIRST),)) if desc.exclusive and source.data_type.is_float else (),
        rows=rows,
        units=units,
        length=length,
        tiles=tiles,
        # A separate number for each launch, as TVM would name one that two launches share.
        groups=tuple(max(1, min(n, most)) for n in (-(-units // slots), -(-rows // threads), -(-units // slots))),
        sizes=sizes,
        steps=sum(steps, ()),
        along=along,
    )
    require(desc, target, source.data_type.tvm)
    writer = _Writer(
        desc,
        numbers,
        computed=computed,
        divided=divided,
        single=tiles == 1,
        threads=threads,
        rank=len(sizes),
        # Threads that are neighbours have neighbouring rows, rather than groups of one row.
        across=steps[0][-1] == 1 and sizes[-1] > 1 and along[0] != 1,
        shared=bool(shared),
    )
    module, *_ = desc.modules()
    scratch = ((computed, units),) if divided else ()
    way = "tiles" if divided else "whole"
    return checked(desc, target, Kernel(module, way, writer.parameters, writer.function, numbers.scalars, scratch))


class _Writer:
    """Writes the kernel."""

    computed: str
    divided: bool
    single: bool
    threads: int
    rank: int
    across: bool
    shared: bool

    def __init__(self, desc: Scan, numbers: Numbers, **choices: Any) -> None:
        self.desc, self.numbers, self.dtype = desc, numbers, numbers.dtype
        self.__dict__.update(choices)
        self.stored = desc.input_tensor.data_type.tvm
        own = {"operator": desc.NAME, "type": self.stored, "decreasing": desc.decreasing, "exclusive": desc.exclusive}
        self.parameters = (*own.items(), *choices.items(), *numbers.parameters)
        self.slots = self.threads // GROUP

    def function(self) -> T.PrimFunc:
        with T.on_device(), T.function() as f:
            source = None if self.shared else f.buffer("input", self.stored)
            self.result = f.buffer("output", self.stored)
            self.source = self.result if source is None else source
            self.bases: Any = f.buffer("bases", self.computed) if self.divided else None
            self.n = self.numbers.declare(f)
            if self.divided:
                self._units(0, store=False)
                self._sum_up()
            self._units(2, store=True)
        return f.result()

    @contextmanager
    def _launch(self, turn: int) -> Iterator[tuple[Any, Any]]:
        """One launch, with its own variables for the integers: TVM would pass what launches have in common as parameters."""
        given = self.n
        with T.launch(given.groups[turn], self.threads) as place:
            held = {name: [T.hold(one) for one in v] if isinstance(v, list) else T.hold(v) for name, v in vars(given).items()}
            self.n = SimpleNamespace(**held)
            yield place
        self.n = given

    def _zero(self) -> Any:
        return T.const(0, self.computed)

    def _first(self) -> Any:
        """The base of a row."""
        words = self.n.words
        return (
            T.cast(T.reinterpret(T.cast(words[0], "uint32"), "float32"), self.computed) if words else self.desc.first(self._zero())
        )

    def _sum_up(self) -> None:
        """Each row's tiles one after the other: in place of what a tile comes to, its base."""
        with self._launch(1) as (group, thread):
            n = self.n
            first = T.let(T.cast(group, self.dtype) * self.threads + T.cast(thread, self.dtype))
            with strided(first, n.rows, T.let(n.groups[1] * self.threads)) as row:
                base = T.Variable(self.computed, self._first())
                parts = T.let(T.truncdiv(n.tiles + (_MOST_ROUNDS - 1), self.numbers.const(_MOST_ROUNDS)))
                with T.loop(parts) as part:
                    start = T.let(part * _MOST_ROUNDS)
                    with T.loop(T.let(T.min(n.tiles - start, self.numbers.const(_MOST_ROUNDS)))) as i:
                        at = T.let(row * n.tiles + start + i)
                        own = T.hold(self.bases[at])
                        T.store(self.bases, at, base.value)
                        base.set(self.desc.combine(base.value, own))

    # -- Rows and tiles ------------------------------------------------------------------------------------------------

    def _units(self, turn: int, store: bool) -> None:
        """The launch over rows or tiles: it scans them, or only finds what each comes to."""
        with self._launch(turn) as (group, thread):
            n = self.n
            self.totals = T.shared(self.computed, self.threads)
            self.exchanged = None if self.across else T.shared(self.computed, self.threads * _PITCH)
            self.values = T.local(self.computed, GROUP)
            if self.across:
                self.slot, self.lane = T.let(thread & (self.slots - 1)), T.let(thread >> (self.slots.bit_length() - 1))
            else:
                self.slot, self.lane = T.let(thread >> (GROUP.bit_length() - 1)), T.let(thread & (GROUP - 1))
            first, step = T.let(T.cast(group, self.dtype) * self.slots), T.let(n.groups[turn] * self.slots)
            with strided(first, n.units, step) as start:
                number = T.let(start + T.cast(self.slot, self.dtype))
                self._unit(T.let(T.min(number, n.units - 1)), number < n.units, store)

    def _unit(self, unit: Any, is_there: Any, store: bool) -> None:
        n = self.n
        row = T.hold(T.truncdiv(unit, n.tiles)) if self.divided else unit
        tile = T.let(unit - row * n.tiles) if self.divided else self.numbers.const(0)
        at = unravel(row, n.sizes)
        back = n.length - 1 if self.desc.decreasing else self.numbers.const(0)
        self.starts = [
            T.let(offset(at, n.steps[i * self.rank : (i + 1) * self.rank], self.dtype) + back * n.along[i]) for i in range(2)
        ]
        self.end = T.hold(T.Select(is_there, n.length, self.numbers.const(0)))
        base = T.Variable(self.computed, self.bases[unit] if self.divided and store else self._first())
        if self.divided or self.single:
            total = self._tile(T.let(tile * TILE), base.value, store)
            if not store:
                with T.when(is_there & (self.lane == 0)):
                    T.store(self.bases, unit, total)
            return
        with T.loop(n.tiles) as i:
            base.set(self.desc.combine(base.value, self._tile(T.let(i * TILE), base.value, store)))

    def _tile(self, first: Any, base: Any, store: bool) -> Any:
        """The blocks of a tile; returns what the tile comes to."""
        combine, none = self.desc.combine, self.desc.identity(self._zero())
        of_blocks = T.Variable(self.computed, none)
        base = T.hold(base)
        # A number for all threads: they meet at barriers.
        last = self.numbers.const(GROUP) if not self.single else T.truncdiv(self.n.length + (BLOCK - 1), self.numbers.const(BLOCK))
        with T.loop(T.let(last)) as block:
            start = T.let(first + block * BLOCK)
            self._load(start)
            self._combine_group()
            T.store(self.totals, self._total_of(self.lane), self.values[GROUP - 1])
            T.barrier()
            before, chain = T.Variable(self.computed, none), T.Variable(self.computed, none)
            with T.loop(T.const(GROUP, "int32")) as i:
                before.set(T.Select(i == self.lane, chain.value, before.value))
                chain.set(combine(chain.value, self.totals[self._total_of(i)]))
            if store:
                own = T.hold(combine(T.hold(combine(base, of_blocks.value)), before.value))
                self._results(own)
                self._store(start)
            of_blocks.set(combine(of_blocks.value, chain.value))
            T.barrier()  # the next block's totals are stored where these were read
        return T.hold(of_blocks.value)

    def _total_of(self, lane: Any) -> Any:
        return self.slot * GROUP + lane

    def _combine_group(self) -> None:
        """In each round, the last of a half with each of the next half."""
        values, width = self.values, 1
        while width < GROUP:
            for i in range(GROUP):
                if i & width:
                    T.store(values, i, self.desc.combine(values[i - i % width - 1], values[i]))
            width *= 2

    def _results(self, base: Any) -> None:
        places = range(GROUP)
        for i in reversed(places) if self.desc.exclusive else places:
            x = self.values[i] if not self.desc.exclusive else self.values[i - 1] if i else self.desc.identity(self._zero())
            T.store(self.values, i, self.desc.combine(base, x))

    # -- Memory --------------------------------------------------------------------------------------------------------

    def _load(self, start: Any) -> None:
        """The thread's group of a block; past the row's end zeros, which change nothing before them."""

        def read(i: Any, put: Any, place: Any) -> None:
            position = T.let(start + T.cast(i, self.dtype))
            found = T.Variable(self.computed, self._zero())
            with T.when(position < self.end):
                found.set(T.to(T.wide(self.source[self._place(position, 0)]), self.computed))
            T.store(put, place, found.value)

        with T.loop(T.const(GROUP, "int32")) as i:
            if self.exchanged is None:
                read(self.lane * GROUP + i, self.values, i)
            else:  # threads that are neighbours read neighbours
                read(i * GROUP + self.lane, self.exchanged, self._exchange(i, self.lane))
        if self.exchanged is not None:
            T.barrier()
            with T.loop(T.const(GROUP, "int32")) as i:
                T.store(self.values, i, self.exchanged[self._exchange(self.lane, i)])

    def _store(self, start: Any) -> None:
        def write(i: Any, value: Any) -> None:
            position = T.let(start + T.cast(i, self.dtype))
            with T.when(position < self.end):
                T.store(self.result, self._place(position, 1), T.to(value, self.stored))

        if self.exchanged is not None:
            with T.loop(T.const(GROUP, "int32")) as i:
                T.store(self.exchanged, self._exchange(self.lane, i), self.values[i])
            T.barrier()
        with T.loop(T.const(GROUP, "int32")) as i:
            if self.exchanged is None:
                write(self.lane * GROUP + i, self.values[i])
            else:
                write(i * GROUP + self.lane, self.exchanged[self._exchange(i, self.lane)])

    def _exchange(self, group: Any, element: Any) -> Any:
        """Where an element of the slot's block is in shared memory."""
        return (self.slot * GROUP + group) * _PITCH + element

    def _place(self, position: Any, tensor: int) -> Any:
        step = position * self.n.along[tensor]
        return T.let(self.starts[tensor] - step if self.desc.decreasing else self.starts[tensor] + step)
