"""Recurrent networks on a GPU: a group of threads for each sequence and direction, whose states are in shared memory if they fit.

A thread has some of the units: neighbours have neighbouring ones. The weights are turned first, so that threads that are neighbours
read neighbouring weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.operators._contract import Shared
from tvmdml.operators._recurrent import Recurrent
from tvmdml.operators._recurrent_default import Item
from tvmdml.schedules.gpu import (
    Numbers,
    _default,
    checked,
    enough_groups,
    position,
    require,
    require_few_rounds,
    strided,
    taken_steps,
)
from tvmdml.targets._device import DeviceTarget

KNOBS = Knobs(
    "recurrent",
    enough_groups(1024),
    threads=Knob(256, (32, 64, 128, 256, 512, 1024), "most threads of a group, which has a sequence in one direction"),
    shared_bytes=Knob(1 << 15, (0, *(1 << n for n in range(10, 17))), "most shared memory for the states of a sequence"),
    most_groups=Knob(8192, tuple(1 << n for n in range(16)), "maximum groups per launch; each strides over the rest"),
)
_TURNERS = 64
"""Threads of a group that turns weights."""


def kernel(desc: Recurrent, target: DeviceTarget, shared: Shared, knobs: Any) -> Kernel:
    """Two launches: the weights turned, then all sequences."""
    if desc.QUANTIZED:
        return _default.kernel(desc, target, shared)
    tensors = {name: tensor for name, tensor in desc.tensors() if tensor is not None}
    threads = min(knobs.threads, target.max_threads)
    while threads > 32 and threads // 2 >= desc.hidden:
        threads //= 2
    items = desc.directions * desc.batch
    groups = max(1, min(items, target.max_groups, knobs.most_groups))
    rows = Item.rows(desc)
    itemsize = 8 if desc.computed == "float64" else 4
    room = 1 << (rows * desc.hidden - 1).bit_length()
    shares = room * itemsize <= min(knobs.shared_bytes, target.max_shared_bytes)
    weights = [desc.directions * desc.GATES * desc.hidden * columns for columns in (desc.inputs, desc.hidden)]
    turners = [max(1, min(-(-count // _TURNERS), target.max_groups, knobs.most_groups)) for count in weights]
    _require_few_rounds(desc, target, -(-items // groups), threads)
    numbers = Numbers(
        max(*(tensor.span for tensor in tensors.values()), *weights, groups * rows * desc.hidden)
        + max(*turners, groups) * max(threads, _TURNERS),
        steps=desc.steps,
        batch=desc.batch,
        inputs=desc.inputs,
        hidden=desc.hidden,
        # A separate number for each launch, as TVM would name one that two launches share.
        groups=(*turners, groups),
        **{f"{name}_step": taken_steps(tensor.sizes, tensor.layout) for name, tensor in tensors.items()},
    )
    require(desc, target, desc.computed, *sorted(desc.stored_types()))
    writer = _Writer(desc, numbers, threads=threads, room=room if shares else 0)
    scratch = [(desc.computed, count) for count in weights]
    scratch.append((desc.computed, 1 if shares else groups * rows * desc.hidden))
    module, *also = desc.modules()
    plain = Kernel(module, "groups", writer.parameters, writer.function, numbers.scalars, tuple(scratch), also=tuple(also))
    return checked(desc, target, plain)


def _require_few_rounds(desc: Recurrent, target: DeviceTarget, items: int, threads: int) -> None:
    """Refuse what a driver would leave before its end."""
    units = -(-desc.hidden // threads)
    step = units * (len(desc.stages()) * (desc.inputs + desc.hidden + 1) + 2)
    total = items * (desc.steps * (step + 1) + 4 * units)
    require_few_rounds(desc, target, total)


class _Writer:
    """Writes the kernel."""

    threads: int
    room: int

    def __init__(self, desc: Recurrent, numbers: Numbers, **choices: Any) -> None:
        self.desc, self.numbers, self.dtype = desc, numbers, numbers.dtype
        self.__dict__.update(choices)
        self.parameters = (*desc.formula_key(), *choices.items(), *numbers.parameters)

    def function(self) -> T.PrimFunc:
        desc = self.desc
        with T.on_device(), T.counting(self.dtype), T.function() as f:
            self.tensors = f.tensors(desc)
            self.turned = {name: f.buffer(f"turned_{name}", desc.computed) for name in ("weight_tensor", "recurrence_tensor")}
            self.states = f.buffer("states", desc.computed)
            given = self.numbers.declare(f)
            for turn, (name, columns) in enumerate((("weight_tensor", "inputs"), ("recurrence_tensor", "hidden"))):
                self._turn(given, turn, name, columns)
            self._run(given)
        return f.result()

    def _held(self, given: Any) -> Any:
        """A launch's own variables for the integers: TVM would pass what launches have in common as parameters."""
        return SimpleNamespace(
            **{name: [T.hold(one) for one in v] if isinstance(v, list) else T.hold(v) for name, v in vars(given).items()}
        )

    def _turn(self, given: Any, turn: int, name: str, columns: str) -> None:
        """Weights by direction and column, and then by unit."""
        desc = self.desc
        with T.launch(given.groups[turn], _TURNERS) as (group, thread):
            n = self._held(given)
            steps = getattr(n, f"{name}_step")
            rows, count = T.hold(n.hidden * desc.GATES), getattr(n, columns)
            total = T.hold(rows * count * desc.directions)
            with strided(position(group, thread, _TURNERS, self.dtype), total, T.hold(n.groups[turn] * _TURNERS)) as at:
                direction, column, row = T.unravel(at, [None, count, rows])
                value = T.wide(self.tensors[name][T.hold(direction * steps[1] + row * steps[2] + column * steps[3])])
                T.store(self.turned[name], at, value)

    def _run(self, given: Any) -> None:
        desc = self.desc
        with T.launch(given.groups[2], self.threads) as (group, thread):
            n = self._held(given)
            names = [name for name, tensor in desc.tensors() if tensor is not None]
            layouts = {name: getattr(n, f"{name}_step") for name in names}
            first = T.hold(T.cast(group, self.dtype))
            states = T.shared(desc.computed, self.room) if self.room else self.states
            base = T.const(0, self.dtype) if self.room else T.hold(first * Item.rows(desc) * n.hidden)
            with strided(first, T.hold(n.batch * desc.directions), n.groups[2]) as item:
                direction, sequence = T.unravel(item, [None, n.batch])
                for alike in desc.alike():
                    one = _Item(desc, self.tensors, layouts, vars(n), states, base, (direction, sequence), alike)
                    one.share(T.hold(T.cast(thread, self.dtype)), self.threads, self.turned)
                    if len(alike) == desc.directions:
                        one.run()
                    else:
                        with T.when(direction == T.const(alike[0], self.dtype)):
                            one.run()


class _Item(Item):
    """A sequence whose units are shared by a group's threads."""

    def share(self, thread: Any, threads: int, turned: dict[str, Any]) -> None:
        """The thread that does this, of how many, and the turned weights."""
        self.thread, self.threads, self.turned = thread, T.const(threads, T.type_of(thread)), turned

    @contextmanager
    def units(self) -> Iterator[Any]:
        """The thread's own units."""
        with strided(self.thread, self.hidden, self.threads) as unit:
            yield unit

    def meet(self) -> None:
        """All threads wait for each other."""
        T.barrier()

    def weight(self, name: str, row: Any, column: Any) -> Any:
        """A turned weight."""
        columns = self.inputs if name == "weight_tensor" else self.hidden
        rows = self.hidden * self.desc.GATES
        return self.turned[name][(self.direction * columns + column) * rows + row]
