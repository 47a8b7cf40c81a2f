"""Updates that are combined on a GPU: they are sorted by their places, in their order, and a thread has all of an element's.

So the bits are those of updates one after the other, with any number of threads. The sort is that of ``_sort.py``, of the places'
numbers. Then a launch notes where each place's updates begin and end, and the last one writes each element once.
"""

from __future__ import annotations

from typing import Any

from tvmdml.enums import AxisDirection
from tvmdml.kernels import tensorir as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.operators._movement_scatter import Scattered
from tvmdml.schedules.gpu import Numbers, checked, groups_for, position, refuse, strided, top_k
from tvmdml.schedules.gpu._bitonic import POSITION
from tvmdml.schedules.gpu._keys import Keys
from tvmdml.schedules.gpu._rows import Batch, KeyRows
from tvmdml.schedules.gpu._scatter_plan import ScatterPlan, Updating
from tvmdml.schedules.gpu._sort import Sort
from tvmdml.schedules.gpu._way import below
from tvmdml.targets._device import DeviceTarget
from tvmdml.tensors import TensorDataType

_SPARE_ROUNDS = 1024
"""Rounds of a thread that are no updates."""
_MOST_TURNS = 256  # launches, one for each turn, where a device leaves long loops (``max_rounds``)
_PLAIN = ("entered", "looked", "bases", "at_table", "number", "weights", "steps", "order", "given", "rows", "blocks")


def kernel(desc: Scattered, target: DeviceTarget, knobs: Any) -> Kernel:
    """The kernel of updates that are combined."""
    sorting = top_k.KNOBS.now(target)
    plan = ScatterPlan.of(desc)
    threads = below(min(sorting.threads, target.max_threads, max(32, sorting.subgroups * target.subgroup_size)))
    if plan.table >= 1 << 31 or plan.entered >= 1 << 31:
        refuse(desc.where("input_tensor"), f"{plan.table} places and {plan.entered} indices", f"fewer than {1 << 31}")
    writer = _Combined(_Places(plan, desc, target, sorting), target, sorting, threads, knobs)
    module, *also = desc.modules()
    built = Kernel(
        module, "updates_combined", writer.parameters, writer.function, writer.numbers.scalars, writer.temporaries, tuple(also)
    )
    return checked(desc, target, built)


class _Places(KeyRows):  # type: ignore[misc] # imported as Any here; checked in its own file
    """The row that is sorted: for each update the number of its place. Those that are out of range are behind all places."""

    def __init__(self, plan: ScatterPlan, desc: Scattered, target: DeviceTarget, knobs: Any) -> None:
        keys = Keys(TensorDataType.UINT32, AxisDirection.INCREASING)
        keys.bits = max(plan.table.bit_length(), 1)
        batch = Batch(1, plan.entered, plan.entered, (1,), ((0,),), (1,), plan.span)
        super().__init__(keys, batch, 1, target, knobs.most_groups, often=False)
        self.plan, self.desc = plan, desc
        self.parameters = (("types", " ".join(desc.kinds())), ("combination", desc.combination()), ("passes", -(-keys.bits // 8)))
        self.temporaries = ((POSITION, plan.entered), (POSITION, plan.table), (POSITION, plan.table))

    def numbers(self, span: int, **own: int | tuple[int, ...]) -> Numbers:
        numbers = Numbers(
            max(span, self.plan.span), plain=_PLAIN, rows=1, length=self.batch.length, k=self.batch.k, **own, **self.plan.numbers
        )
        self.dtype = numbers.dtype
        return numbers

    def declare(self, f: T.Function) -> None:
        names = ("source", "indices", "updates", "result")
        self.source, self.looked, self.updates, self.result = (
            f.buffer(name, kind) for name, kind in zip(names, self.desc.kinds(), strict=True)
        )
        self.order, self.first, self.last = (f.buffer(name, POSITION) for name in ("order", "first", "last"))

    def start(self, row: Any, tensor: int) -> Any:
        return self.number(0)

    def emit(self, starts: list[Any], place: Any, position: Any) -> None:
        T.store(self.order, place, position)


class _Combined(Updating, Sort):  # type: ignore[misc] # imported as Any here; checked in its own file
    """Writes the kernel."""

    def __init__(self, rows: _Places, target: DeviceTarget, sorting: Any, threads: int, knobs: Any) -> None:
        plan = rows.plan
        self.ranks, self.lanes, self._plan, self._own = plan.ranks, plan.lanes, plan, knobs
        rows.key = lambda start, item: self._key_of(item)
        super().__init__("sort", rows, target, sorting, threads, 0)

    def plan(self, target: DeviceTarget) -> tuple[dict[str, Any], int, dict[str, Any]]:
        own, span, numbers = super().plan(target)
        plan, most = self._plan, self._own.most_groups
        rounds = {"table_groups": plan.table, "entered_groups": plan.entered, "item_groups": plan.items}
        groups = {name: groups_for(items, self.threads, target, most) for name, items in rounds.items()}
        # A device may leave loops after so many rounds of a thread: launches then combine some updates of each element in turns.
        chunk, self.turns = plan.length, 1
        if target.max_rounds is not None:
            each = -(-plan.items // (groups["item_groups"] * self.threads))
            chunk = max(1, (target.max_rounds - _SPARE_ROUNDS) // each - 2)
            while self.turns * chunk < plan.length:
                self.turns *= 2
            if self.turns > _MOST_TURNS:
                where, given = self.rows.desc.where("indices_tensor"), f"{plan.length} indices on {target.name}"
                refuse(where, given, f"up to {_MOST_TURNS * chunk}")
        numbers |= {**groups, "chunk": chunk}
        own |= {"lanes": self.lanes, "ranks": self.ranks, "turns": self.turns}
        return own, max(span, self.turns * chunk), numbers

    def launches(self) -> None:
        self._each("table_groups", lambda: self.n.table, self._clear)
        super().launches()
        self._each("entered_groups", lambda: self.n.length, self._bound)
        for turn in range(self.turns):
            self._each("item_groups", self.items, lambda item, turn=turn: self._write(turn, item))

    def _each(self, groups: str, count: Any, body: Any) -> None:
        with self.launch(0, groups, self.threads) as (group, thread):
            first = position(group, thread, self.threads, self.numbers.dtype)
            with strided(first, T.let(count()), T.let(getattr(self.n, groups) * self.threads)) as item:
                body(item)

    def _clear(self, place: Any) -> None:
        T.store(self.rows.first, place, T.const(0, POSITION))
        T.store(self.rows.last, place, T.const(0, POSITION))

    def _key_of(self, item: Any) -> Any:
        place, fits, _ = self.destination(self.rows.looked, item)
        return T.hold(T.cast(T.Select(fits, place, self.n.table), POSITION))

    def _bound(self, item: Any) -> None:
        """Note where the updates of a place begin and end."""
        unit, order = self.numbers.const(1), self.rows.order
        neighbours = (item, T.max(item - unit, self.numbers.const(0)), T.min(item + unit, self.n.length - unit))
        own, before, behind = (self._key_of(T.let(self.number(order[T.let(at)]))) for at in neighbours)
        with T.when(own < T.cast(self.n.table, POSITION)):
            place = T.let(self.number(own))
            with T.when((item == self.numbers.const(0)) | (own != before)):
                T.store(self.rows.first, place, T.cast(item, POSITION))
            with T.when((item == self.n.length - unit) | (own != behind)):
                T.store(self.rows.last, place, T.cast(item + unit, POSITION))

    def _write(self, turn: int, item: Any) -> None:
        """Combine an element with its updates, or with those of a turn."""
        rows, n = self.rows, self.n
        whence, given, place, where = self.element(item)
        begin = T.let(self.number(rows.first[place]) + n.chunk * self.numbers.const(turn))
        end = T.let(T.min(self.number(rows.last[place]), begin + n.chunk))

        def combined() -> None:
            held = rows.source[self.run(whence)] if turn == 0 else rows.result[self.run(where)]
            value = T.Variable(T.type_of(held), held)
            with strided(begin, end, self.numbers.const(1)) as i:
                number = T.let(T.truncmod(self.number(rows.order[i]), T.let(self.product(n.order))))
                value.set(rows.desc.combined(value.value, T.hold(rows.updates[self.update(given, number)])))
            T.store(rows.result, self.run(where), value.value)

        if turn == 0:
            combined()
        else:
            with T.when(begin < end):
                combined()
