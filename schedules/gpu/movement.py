"""The movement family on a GPU: each thread moves up to 16 bytes of the result, and neighbouring threads write neighbours.

Each move is a launch of one kernel. There are three ways:

- ``rows``: as many neighbours at once as are contiguous and aligned on both sides in every row.
- ``blocks``: any strides, rules and indices; a thread reads neighbours of the result one by one, and writes them at once: what they
  have in common is computed once.
- ``tiles``: the source is contiguous in another dimension than the result: it is transposed through shared memory.

Elements move as bits, so types of one width share kernels. Indices have 32 bits where they fit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from tvmdml.kernels import movement
from tvmdml.kernels import tensorir as T
from tvmdml.kernels.formula import Formula
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob
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

KNOBS = group_knobs(
    "movement",
    gathered=Knob(4, (1, 2, 4, 8), "neighbours that a thread reads one by one and writes at once, at most; twice as many bytes"),
    gathered_items=Knob(1 << 15, (1, *(1 << n for n in range(10, 21))), "fewest threads that have several of them"),
)

Block = tuple[int, ...]
"""How many elements a thread has in each dimension: powers of two. The product of them is what it writes at once."""


def kernel(desc: Movement, target: DeviceTarget, shared: Shared, knobs: Any) -> Kernel:
    """The kernel of one operator: a launch for each move."""
    if not desc.is_moved():
        weighed = desc.resampling()
        if weighed is not None:
            return resampling.kernel(weighed, target, shared, knobs)
        if isinstance(desc, Scattered):
            return _scatter.kernel(desc, target, knobs)
        return _gather.kernel(desc, target, knobs)
    transfer = desc.transfer().simplified()
    kinds, formula = desc.kinds(), desc.formula()
    types = (*(one.data_type for one in (*formula.inputs, *formula.outputs)), *formula.between)
    most = VECTOR_BYTES // max(one.itemsize for one in types)
    threads = min(knobs.threads, target.max_threads)
    ways: list[tuple[str, Block]] = []
    groups, moves, sizes = [], [], []
    for move in transfer.moves:
        lanes, rank = _together(move, most), len(move.sizes)
        other = _crossing(move)
        block, items = (*[1] * (rank - 1), lanes), math.prod(move.sizes)
        if other is not None and target.max_threads >= _tiles.THREADS:
            way = "tiles"
            move, block = move.ordered([*(i for i in range(rank - 1) if i != other), other, rank - 1]), (1,) * rank
            groups.append(min(_tiles.count(move.sizes), target.max_groups, knobs.most_groups))
        else:
            way = "rows"
            own = min(most, knobs.gathered * (2 if most == VECTOR_BYTES else 1))
            if lanes == 1 and items >= own * knobs.gathered_items and math.prod(several := _block(move, own)) > 1:
                way, block = "blocks", several
            groups.append(groups_for(items // math.prod(block), threads, target, knobs.most_groups))
        moves.append(move)
        ways.append((way, block))
        sizes += [size // one for size, one in zip(move.sizes, block, strict=True)]
    transfer = transfer._replace(moves=tuple(moves))
    others = tuple(number for move in moves for number in move.numbers()[len(move.sizes) :])
    divisors = ("sizes",) if target.has("int64") else ()
    numbers = Numbers(
        transfer.span, plain=("moves", "sizes"), divisors=divisors, groups=tuple(groups), sizes=tuple(sizes), moves=others
    )
    require(desc, target, *(one.tvm for one in types if formula.key))
    way = max(way for way, _ in ways)
    writer = _Writer(transfer, formula, numbers, kinds, ways, threads)
    module, *also = desc.modules()
    built = Kernel(module, way, writer.parameters, writer.function, numbers.scalars, also=tuple(also))
    return checked(desc, target, built)


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


def _block(move: Move, most: int) -> Block:
    """What a thread reads one by one: up to so many elements that are neighbours in the result, and aligned there."""
    block, steps, whole = [1] * len(move.sizes), move.written.steps, 1
    for i in reversed(range(len(steps))):
        while steps[i] == whole and math.prod(block) < most and move.sizes[i] % (2 * block[i]) == 0:
            block[i] *= 2
        if block[i] < move.sizes[i]:
            break
        whole *= move.sizes[i]
    several = zip(move.sizes, steps, block, strict=True)
    starts = [move.written.base, *(step * one for size, step, one in several if size > one)]
    aligned = all(number % math.prod(block) == 0 for number in starts)
    return tuple(block) if aligned or most == 1 else _block(move, most // 2)


def _crossing(move: Move) -> int | None:
    """The dimension in which the source is contiguous, if it is another one than the result's."""
    other = _tiles.crossing(move.sizes, move.read.steps, move.written.steps)
    return None if other is None or move.rules else other


class _Writer:
    """Writes the kernel."""

    def __init__(
        self, transfer: Transfer, formula: Formula, numbers: Numbers, types: tuple[str, ...], ways: list[tuple[str, Block]],
        threads: int,
    ) -> None:  # fmt: skip
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

    def function(self) -> T.PrimFunc:
        with T.on_device(), T.function() as f, T.counting(self.numbers.dtype):
            buffers = [f.buffer(f"tensor{i}", dtype) for i, dtype in enumerate(self.types)]
            n = self.numbers.declare(f)
            first = 0
            for at, (move, (way, block), groups) in enumerate(zip(self.transfer.moves, self.ways, n.groups, strict=True)):
                rank = len(block)
                count = move.integers() - rank
                own = move.expressions([*n.sizes[rank * at : rank * (at + 1)], *n.moves[first : first + count]])
                first += count
                if way == "tiles":
                    self._tiles(own, groups, buffers)
                else:
                    self._rows(move, own, block, way == "rows", groups, buffers)
        return f.result()

    def _rows(self, known: Move, move: Move, block: Block, at_once: bool, groups: Any, buffers: list[Any]) -> None:
        dtype, count = self.numbers.dtype, math.prod(block)
        repeated = [not one.place.steps[-1] and (at_once or count == 1) for one in known.beside]
        with T.launch(groups, self.threads) as (group, thread):
            first = position(group, thread, self.threads, dtype)
            total = T.let(math.prod(move.sizes[1:], start=move.sizes[0]))
            with strided(first, total, T.let(groups * self.threads)) as i:
                start = [T.cast(c, dtype) for c in unravel(i, move.sizes)]
                start = [c if one == 1 else T.let(c * self.numbers.const(one)) for c, one in zip(start, block, strict=True)]
                target = T.let(movement.value(move.written, start))
                if at_once:
                    found = self._read(move, start, repeated, count, buffers)
                else:
                    each = [self._read(move, at, repeated, 1, buffers) for at in _inside(start, block)]
                    found = [_joined(values) for values in zip(*each, strict=True)]
                T.store(buffers[move.result], _whole(target, count), *self.formula.value(*found))

    def _read(self, move: Move, at: list[Any], repeated: list[bool], lanes: int, buffers: list[Any]) -> list[Any]:
        """What is moved to a place, or to neighbours from there on, and what is taken beside it."""
        place, comes = movement.place(move, buffers, at)
        found = buffers[move.source][_whole(T.let(place), lanes)]
        if comes is not None:
            found = T.Select(_wide(comes, lanes), T.let(found), _wide(self._fill(buffers), lanes))
        beside = []
        for same, one in zip(repeated, move.beside, strict=True):
            place = T.let(movement.value(one.place, at[:-1] if same and len(at) > 1 else at))
            value = buffers[one.tensor][place if same else _whole(place, lanes)]
            beside.append(_wide(value, lanes) if same else value)
        return [found, *beside]

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


def _inside(start: list[Any], block: Block) -> Iterator[list[Any]]:
    """The coordinates of each element of a block, in the order of the result's memory."""
    for steps in itertools.product(*map(range, block)):
        yield [c if step == 0 else T.let(c + step) for c, step in zip(start, steps, strict=True)]


def _joined(values: Sequence[Any]) -> Any:
    """A vector of values."""
    held = T.local(T.type_of(values[0]), len(values))
    for i, value in enumerate(values):
        T.store(held, i, value)
    return held[T.run(T.const(0, "int32"), len(values))]
