"""Updates on a GPU: the last one of each place is found first, so each element is written once, and in the order of memory.

There are three launches. The first clears a table of places. The second enters the number of each update there, by an atomic
maximum. The third writes each element, from the update that the table names, or else from the input.
"""

from __future__ import annotations

from typing import Any

from tvmdml.kernels import tensorir as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.operators._movement_scatter import Scattered
from tvmdml.schedules.gpu import Numbers, _scatter_combined, checked, groups_for, position, strided
from tvmdml.schedules.gpu._scatter_plan import ScatterPlan, Updating
from tvmdml.targets._device import DeviceTarget


def kernel(desc: Scattered, target: DeviceTarget, knobs: Any) -> Kernel:
    """The kernel of updates."""
    if desc.combination():
        return _scatter_combined.kernel(desc, target, knobs)
    plan = ScatterPlan.of(desc)
    threads = min(knobs.threads, target.max_threads)
    rounds = (plan.table, plan.entered, plan.items)
    groups = tuple(groups_for(items, threads, target, knobs.most_groups) for items in rounds)
    numbers = Numbers(max(plan.span, *rounds), groups=groups, **plan.numbers)
    writer = _Writer(numbers, types=desc.kinds(), threads=threads, lanes=plan.lanes, ranks=plan.ranks)
    module, *also = desc.modules()
    temporaries = (("uint32", plan.table),)
    built = Kernel(module, "updates", writer.parameters, writer.function, numbers.scalars, temporaries, tuple(also))
    return checked(desc, target, built)


class _Writer(Updating):  # type: ignore[misc] # imported as Any here; checked in its own file
    """Writes the kernel."""

    types: tuple[str, ...]
    threads: int

    def __init__(self, numbers: Numbers, **choices: Any) -> None:
        self.numbers = numbers
        self.__dict__.update(choices)
        self.parameters = (*choices.items(), *numbers.parameters)

    def function(self) -> T.PrimFunc:
        with T.on_device(), T.function() as f, T.counting(self.numbers.dtype):
            names = ("source", "indices", "updates", "result")
            source, indices, updates, result = (f.buffer(name, kind) for name, kind in zip(names, self.types, strict=True))
            table = f.buffer("table", "uint32")
            self.n = n = self.numbers.declare(f)

            def clear(at: Any) -> None:
                T.store(table, at, T.const(0, "uint32"))

            def enter(item: Any) -> None:
                place, fits, at = self.destination(indices, item)
                with T.when(fits):
                    T.atomic_do("max", table, place, T.cast(self.sum(at, n.number), "uint32") + T.const(1, "uint32"))

            def write(item: Any) -> None:
                whence, given, place, where = self.element(item)
                number = T.let(table[place])

                def updated() -> None:
                    own = T.let(T.cast(number - T.const(1, "uint32"), self.numbers.dtype))
                    T.store(result, self.run(where), updates[self.update(given, own)])

                copied = lambda: T.store(result, self.run(where), source[self.run(whence)])  # noqa: E731
                T.either(number > T.const(0, "uint32"), updated, copied)

            counts = (n.table, self.product(n.entered), self.items())
            for groups, count, body in zip(n.groups, counts, (clear, enter, write), strict=True):
                self._launch(groups, count, body)
        return f.result()

    def _launch(self, groups: Any, count: Any, body: Any) -> None:
        with T.launch(groups, self.threads) as (group, thread):
            first = position(group, thread, self.threads, self.numbers.dtype)
            with strided(first, T.let(count), T.let(groups * self.threads)) as item:
                body(item)
