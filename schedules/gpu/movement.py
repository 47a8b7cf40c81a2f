"""The movement family on a GPU: each thread moves up to 16 bytes of the result, and neighbouring threads write neighbours.

Each move is a launch of one kernel. There are two ways:

- ``rows``: any strides, rules and indices; as many neighbours at once as are contiguous and aligned on both sides in every row.
- ``tiles``: the source is contiguous in another dimension than the result: it is transposed through shared memory.

Elements move as bits, so types of one width share kernels. Indices have 32 bits where they fit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tvmdml.kernels import movement
from tvmdml.kernels import tensorir as T
from tvmdml.kernels.formula import Formula
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.movement import Move, Transfer
from tvmdml.operators._contract import Shared
from tvmdml.operators._movement import Movement
from tvmdml.operators._movement_scatter import Scattered
from tvmdml.schedules.gpu import (
    VECTOR_BYTES,
    Numbers,
    _gather,
    _scatter,
    _tiles,
    checked,
    group_knobs,
    groups_for,
    position,
    require,
    resampling,
    strided,
)
from tvmdml.schedules.gpu._words import unravel
from tvmdml.targets._device import DeviceTarget

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

KNOBS = group_knobs("movement")


def kernel(desc: Movement, target: DeviceTarget, shared: Shared, knobs: Any) -> Kernel:
    """The kernel of one operator: a launch for each move."""
    if not desc.is_moved():
        weighed = desc.resampling()
        if weighed is not None:
            between: Kernel = resampling.kernel(weighed, target, shared, knobs)
            return between
        if isinstance(desc, Scattered):
            updated: Kernel = _scatter.kernel(desc, target, knobs)
            return updated
        summed: Kernel = _gather.kernel(desc, target, knobs)
        return summed
    transfer = desc.transfer().simplified()
    kinds, formula = desc.kinds(), desc.formula()
    types = (*(one.data_type for one in (*formula.inputs, *formula.outputs)), *formula.between)
    most = VECTOR_BYTES // max(one.itemsize for one in types)
    threads = min(knobs.threads, target.max_threads)
    ways, groups, moves = [], [], []
    for move in transfer.moves:
        lanes = _together(move, most)
        other = _crossing(move)
        if other is not None and target.max_threads >= _tiles.THREADS:
            rank = len(move.sizes)
            move, lanes = move.ordered([*(i for i in range(rank - 1) if i != other), other, rank - 1]), 0
            groups.append(min(_tiles.count(move.sizes), target.max_groups, knobs.most_groups))
        else:
            groups.append(groups_for(math.prod(move.sizes) // lanes, threads, target, knobs.most_groups))
        moves.append(move)
        ways.append(lanes)
    transfer = transfer._replace(moves=tuple(moves))
    own = tuple(number for move in moves for number in move.numbers())
    numbers = Numbers(transfer.span, plain=("moves",), groups=tuple(groups), moves=own)
    require(desc, target, numbers, *(one.tvm for one in types if formula.key))
    way = "tiles" if ways == [0] else "rows"
    writer = _Writer(transfer, formula, numbers, kinds, ways, threads)
    module, *also = desc.modules()
    built = Kernel(module, way, writer.parameters, writer.function, numbers.scalars, also=tuple(also))
    found: Kernel = checked(desc, target, built)
    return found


def _together(move: Move, most: int) -> int:
    """How many neighbours can be moved at once everywhere: a power of two."""
    if (move.read.steps[-1], move.written.steps[-1]) != (1, 1) or any(rule.follows(-1) for rule in move.rules):
        return 1
    if any(one.place.steps[-1] not in (0, 1) for one in move.beside):
        return 1
    contiguous = (move.read, move.written, *(one.place for one in move.beside if one.place.steps[-1]))
    steps = [step for one in contiguous for step in (one.base, *one.steps[:-1])]
    steps += [rule.step for rule in move.rules]
    while any(number % most for number in (move.sizes[-1], *steps)):
        most //= 2
    return most


def _crossing(move: Move) -> int | None:
    """The dimension in which the source is contiguous, if it is another one than the result's."""
    other = _tiles.crossing(move.sizes, move.read.steps, move.written.steps)
    return None if other is None or move.rules else other


class _Writer:
    """Writes the kernel."""

    def __init__(
        self, transfer: Transfer, formula: Formula, numbers: Numbers, types: tuple[str, ...], ways: list[int], threads: int
    ) -> None:
        self.transfer, self.formula, self.numbers = transfer, formula, numbers
        self.types, self.ways, self.threads = types, ways, threads
        repeated = [[int(not one.place.steps[-1]) for one in move.beside] for move in transfer.moves]
        forms = [(move.form(), len(move.sizes), way) for move, way in zip(transfer.moves, ways, strict=True)]
        self.parameters = (
            *formula.key,
            ("types", " ".join(types)),
            ("forms", str(forms)),
            *((("repeated", str(repeated)),) if formula.key else ()),
            ("fill", str((transfer.fill, transfer.filled_from))),
            ("threads", threads),
            *numbers.parameters,
        )

    def function(self) -> PrimFunc:
        with T.on_device(), T.function() as f, T.counting(self.numbers.dtype):
            buffers = [f.buffer(f"tensor{i}", dtype) for i, dtype in enumerate(self.types)]
            n = self.numbers.declare(f)
            first = 0
            for move, lanes, groups in zip(self.transfer.moves, self.ways, n.groups, strict=True):
                own = move.expressions(n.moves[first : first + move.integers()])
                first += move.integers()
                if lanes == 0:
                    self._tiles(own, groups, buffers)
                else:
                    self._rows(move, own, lanes, groups, buffers)
        return f.result()

    def _rows(self, known: Move, move: Move, lanes: int, groups: Any, buffers: list[Any]) -> None:
        dtype = self.numbers.dtype
        with T.launch(groups, self.threads) as (group, thread):
            first = position(group, thread, self.threads, dtype)
            sizes = [*move.sizes[:-1], T.let(T.truncdiv(move.sizes[-1], self.numbers.const(lanes)))]
            total = T.let(math.prod(sizes[1:], start=sizes[0]))
            with strided(first, total, T.let(groups * self.threads)) as i:
                *at, last = (T.cast(c, dtype) for c in unravel(i, sizes))
                at = [*at, T.let(last * self.numbers.const(lanes))]
                place, comes = movement.place(move, buffers, at)
                target = T.let(movement.value(move.written, at))
                found = buffers[move.source][_whole(T.let(place), lanes)]
                if comes is not None:
                    found = T.Select(_wide(comes, lanes), T.let(found), _wide(self._fill(buffers), lanes))
                beside = []
                for own, one in zip(known.beside, move.beside, strict=True):
                    repeated = not own.place.steps[-1]
                    place = T.let(movement.value(one.place, at[:-1] if repeated and len(at) > 1 else at))
                    value = buffers[one.tensor][place if repeated else _whole(place, lanes)]
                    beside.append(_wide(value, lanes) if repeated else value)
                T.store(buffers[move.result], _whole(target, lanes), *self.formula.value(found, *beside))

    def _fill(self, buffers: list[Any]) -> Any:
        if self.transfer.filled_from is not None:
            tensor, offset = self.transfer.filled_from
            return T.let(buffers[tensor][self.numbers.const(offset)])
        return T.word(self.transfer.fill, 8 * self.formula.inputs[0].data_type.itemsize)

    def _tiles(self, move: Move, groups: Any, buffers: list[Any]) -> None:
        def read(at: list[Any]) -> list[Any]:
            return [buffers[move.source][movement.value(move.read, at)]]

        def write(at: list[Any], values: Any) -> None:
            beside = (buffers[one.tensor][movement.value(one.place, at)] for one in move.beside)
            T.store(buffers[move.result], movement.value(move.written, at), *self.formula.value(values[0], *beside))

        _tiles.move(groups, self.numbers, move.sizes, [self.formula.inputs[0].data_type.tvm], read, write)


def _whole(place: Any, lanes: int) -> Any:
    """The places of so many neighbours, the first of which is aligned."""
    return place if lanes == 1 else T.run(T.let(T.multiple(place, lanes)), lanes)


def _wide(value: Any, lanes: int) -> Any:
    return value if lanes == 1 else T.splat(value, lanes)
