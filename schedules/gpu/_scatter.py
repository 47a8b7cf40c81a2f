"""Updates on a GPU: the last one of each place is found first, so each element is written once, and in the order of memory.

There are three launches. The first clears a table of places. The second enters the number of each update there, by an atomic
maximum. The third writes each element, from the update that the table names, or else from the input.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tvmdml.kernels import movement
from tvmdml.kernels import tensorir as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.layout import collapse
from tvmdml.operators._movement_scatter import Scattered
from tvmdml.schedules.gpu import VECTOR_BYTES, Numbers, checked, groups_for, position, require, strided
from tvmdml.schedules.gpu._words import unravel
from tvmdml.targets._device import DeviceTarget

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc


def kernel(desc: Scattered, target: DeviceTarget, knobs: Any) -> Kernel:
    """The kernel of updates."""
    found = desc.updates()
    indices, places = found.indices, tuple(index.size for index in found.indices)
    split = len(found.columns)
    # Columns whose indices are their own have their own places in the table.
    own = [any(index.at.steps[i] for index in indices) for i in range(split)]
    keys = tuple(n if is_own else 1 for n, is_own in zip(found.columns, own, strict=True))
    weights = tuple(math.prod((*keys, *places)[i + 1 :]) for i in range(split + len(places)))
    table = math.prod((*keys, *places))
    entered, (*looked, at_table, number) = collapse(
        (*keys, *found.order),
        *(index.at.steps for index in indices),
        (*weights[:split], *(0 for _ in found.order)),
        (*(0 for _ in keys), *(math.prod(found.order[i + 1 :]) for i in range(len(found.order)))),
    )
    written, steps = collapse(
        (*found.columns, *places),
        (*found.source.steps, *(index.source for index in indices)),
        (*found.given.steps[:split], *(0 for _ in places)),
        (*(w if is_own else 0 for w, is_own in zip(weights, own, strict=False)), *weights[split:]),
        (*found.result.steps, *(index.result for index in indices)),
        reorder=True,
    )
    order, (given,) = collapse(found.order, found.given.steps[split:])
    itemsize = desc.outputs()[0].data_type.itemsize
    lanes = _together(written, steps, given, VECTOR_BYTES // itemsize)
    threads = min(knobs.threads, target.max_threads)
    rounds = (table, math.prod(entered), math.prod(written) // lanes)
    spans = (tensor.span for _, tensor in desc.tensors() if tensor is not None)
    numbers = Numbers(
        max(*spans, *rounds, math.prod(written), *(abs(step) for own in (*steps, *looked) for step in own)),
        groups=tuple(groups_for(items, threads, target, knobs.most_groups) for items in rounds),
        table=table,
        entered=entered,
        looked=tuple(step for one in looked for step in one),
        bases=tuple(index.at.base for index in indices),
        at_table=at_table,
        number=number,
        sizes=places,
        weights=weights[split:],
        written=written,
        steps=tuple(step for one in steps for step in one),
        order=order,
        given=given,
    )
    require(desc, target, numbers, "uint32")
    writer = _Writer(numbers, types=desc.kinds(), threads=threads, lanes=lanes, ranks=(len(entered), len(written), len(places)))
    module, *also = desc.modules()
    temporaries = (("uint32", table),)
    built = Kernel(module, "updates", writer.parameters, writer.function, numbers.scalars, temporaries, tuple(also))
    result: Kernel = checked(desc, target, built)
    return result


def _together(sizes: tuple[int, ...], steps: tuple[tuple[int, ...], ...], given: tuple[int, ...], most: int) -> int:
    """How many neighbours a thread writes at once: all of one place, contiguous and aligned on every side."""
    if not sizes or [own[-1] for own in steps] != [1, 1, 0, 1]:
        return 1
    source, update, _, result = steps
    while any(number % most for number in (sizes[-1], *source[:-1], *update[:-1], *result[:-1], *given)):
        most //= 2
    return most


class _Writer:
    """Writes the kernel."""

    types: tuple[str, ...]
    threads: int
    lanes: int
    ranks: tuple[int, ...]

    def __init__(self, numbers: Numbers, **choices: Any) -> None:
        self.numbers = numbers
        self.__dict__.update(choices)
        self.parameters = (*choices.items(), *numbers.parameters)

    def function(self) -> PrimFunc:
        with T.on_device(), T.function() as f, T.counting(self.numbers.dtype):
            names = ("source", "indices", "updates", "result")
            source, indices, updates, result = (f.buffer(name, kind) for name, kind in zip(names, self.types, strict=True))
            table = f.buffer("table", "uint32")
            n = self.numbers.declare(f)
            entered, written, looks = self.ranks
            steps = [n.steps[written * i : written * (i + 1)] for i in range(4)]

            def clear(at: Any) -> None:
                T.store(table, at, T.const(0, "uint32"))

            def enter(item: Any) -> None:
                at = self._coordinates(item, n.entered)
                place, fits = self._sum(at, n.at_table), None
                for j in range(looks):
                    whence = n.bases[j] + self._sum(at, n.looked[entered * j : entered * (j + 1)])
                    index = T.let(movement.normalized(indices[whence], n.sizes[j]))
                    fits = movement.both(fits, (index >= self.numbers.const(0)) & (index < n.sizes[j]))
                    place = place + index * n.weights[j]
                with T.when(fits):
                    number = T.cast(self._sum(at, n.number), "uint32") + T.const(1, "uint32")
                    T.atomic_do("max", table, T.let(place), number)

            def write(item: Any) -> None:
                *rest, last = n.written or [self.numbers.const(1)]
                *at, last = self._coordinates(item, [*rest, T.let(T.truncdiv(last, self.numbers.const(self.lanes)))])
                at = [*at, T.let(last * self.numbers.const(self.lanes))]
                whence, given, place, where = (T.let(self._sum(at, own)) for own in steps)
                number = T.let(table[place])
                zero = T.const(0, "uint32")

                def updated() -> None:
                    own = self._coordinates(T.let(T.cast(number - T.const(1, "uint32"), self.numbers.dtype)), n.order)
                    T.store(result, self._run(where), updates[self._run(T.let(given + self._sum(own, n.given)))])

                T.either(number > zero, updated, lambda: T.store(result, self._run(where), source[self._run(whence)]))

            counts = (n.table, self._product(n.entered), T.truncdiv(self._product(n.written), self.numbers.const(self.lanes)))
            for groups, count, body in zip(n.groups, counts, (clear, enter, write), strict=True):
                self._launch(groups, count, body)
        return f.result()

    def _launch(self, groups: Any, count: Any, body: Any) -> None:
        with T.launch(groups, self.threads) as (group, thread):
            first = position(group, thread, self.threads, self.numbers.dtype)
            with strided(first, T.let(count), T.let(groups * self.threads)) as item:
                body(item)

    def _coordinates(self, item: Any, sizes: list[Any]) -> list[Any]:
        return [T.cast(one, self.numbers.dtype) for one in unravel(item, sizes)]

    def _sum(self, at: list[Any], steps: list[Any]) -> Any:
        return T.dot(at, steps) if steps else self.numbers.const(0)

    def _product(self, sizes: list[Any]) -> Any:
        return math.prod(sizes, start=self.numbers.const(1))

    def _run(self, at: Any) -> Any:
        return at if self.lanes == 1 else T.run(T.let(T.multiple(at, self.lanes)), self.lanes)
