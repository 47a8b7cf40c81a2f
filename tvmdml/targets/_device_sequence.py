"""Sequences on a device: their steps are prepared together, for arrays that were seen before or are bound."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml.arrays.device_array import DeviceArray
from tvmdml.errors import InvalidArgument, message
from tvmdml.targets._device import VECTOR_BYTES
from tvmdml.targets._device_launch import DeviceLaunch, Placed
from tvmdml.targets._sequence import Place, Step, check_arrays, checked, farthest

if TYPE_CHECKING:
    from tvmdml.arrays import NumpyArray
    from tvmdml.targets._device import DeviceTarget

_KEPT = 4
"""For how many sets of arrays a sequence keeps its prepared steps."""
_PART = 32
"""Steps that are prepared together. New outputs then cost only the parts that write to them: most steps use the arena alone."""
_ALIGNMENT = 256
"""Of temporaries: the most that any device asks for."""


class _Part(NamedTuple):
    """Steps that are prepared together."""

    steps: tuple[tuple[DeviceLaunch, tuple[Place, ...]], ...]
    slots: tuple[int, ...]
    """The slots with places of theirs."""
    scratch_bytes: int
    """Of the step that needs the most temporaries."""


class DeviceSequence:
    """Launches of programs that run in turn.

    The steps share their temporaries' memory, because each runs after the one before it. Arrays that are NumPy's, or that do not
    begin as kernels need it, are copied for each run.

    Raises:
        InvalidArgument: a launch is no launch on this device, or a place is impossible.
    """

    def __init__(self, target: DeviceTarget, steps: Sequence[Step], slots: int) -> None:
        self._target = target
        self._steps = tuple((_own(target, number, step), step.places) for number, step in enumerate(checked(steps, slots)))
        self._whole = _part(self._steps)
        self._parts = [_part(self._steps[i : i + _PART]) for i in range(0, len(self._steps), _PART)]
        self._farthest = farthest(steps, slots)
        self._reads, self._writes = (
            frozenset(step.places[i][0] for step in steps for i in getattr(step.launch, name) if i < len(step.places))
            for name in ("reads", "writes")
        )
        self._kept: OrderedDict[tuple[object, ...], tuple[Any, list[Placed]]] = OrderedDict()
        self._lock = threading.RLock()

    def __call__(self, arrays: Sequence[NumpyArray | DeviceArray]) -> None:
        """Run all steps. With device arrays only, it returns before the work is done. NumPy outputs are complete on return."""
        if not self._check(arrays):
            return
        launch = self._steps[0][0]
        with launch.on_stream(arrays):
            device = self._target.device  # a new one, if the previous one was lost
            bases, after = self._bases(device, arrays)
            identities = [launch.identity(base) for base in bases]
            for number, part in enumerate(self._parts):
                key = (id(device), number, *[identities[slot] for slot in part.slots])
                prepared, scratch = self._found(key) or self._new(key, device, part, bases)
                launch.runner(device, prepared, [*(bases[slot] for slot in part.slots), *scratch])()
            for finish in after:
                finish()

    def timed(self, arrays: Sequence[NumpyArray | DeviceArray]) -> tuple[int, ...]:
        """Run all steps, and return how many nanoseconds each of them took, by the device's clock. Waits for them."""
        if not self._check(arrays):
            return ()
        launch = self._steps[0][0]
        with launch.on_stream(arrays):
            device = self._target.device
            bases, after = self._bases(device, arrays)
            scratch = _scratch(device, self._whole)

            def dispatch(step: DeviceLaunch, places: tuple[Place, ...]) -> Callable[[], None]:
                return lambda: step.dispatch(device, _placed(device, step, places, bases, scratch))

            seconds = launch.seconds(device, [dispatch(*step) for step in self._steps])
            for finish in after:
                finish()
        return tuple(max(round(each * 1e9), 0) for each in seconds)

    def bind(self, arrays: Sequence[NumpyArray | DeviceArray]) -> Callable[[], None]:
        """A run on these arrays. If all are on the device and aligned, everything that can be done once is done now."""
        arrays = tuple(arrays)
        if not self._check(arrays):
            return lambda: None
        launch, device = self._steps[0][0], self._target.device
        if not all(isinstance(array, DeviceArray) and launch.begins_well(device, array) for array in arrays):
            return lambda: self(arrays)
        with launch.on_stream(arrays):
            bases, _ = self._bases(device, arrays)
            prepared, scratch = _prepared(device, self._whole, bases, keep=True)
            run = launch.replayed(device, prepared, bases + scratch)
        run.held = bases, scratch, prepared  # type: ignore[attr-defined] # keeps the memory alive
        return run

    def _check(self, arrays: Sequence[NumpyArray | DeviceArray]) -> bool:
        """Refuse wrong arrays; returns whether there is anything to do."""
        check_arrays(arrays, self._farthest)
        return bool(self._steps)

    def _bases(self, device: Any, arrays: Sequence[NumpyArray | DeviceArray]) -> tuple[list[Placed], list[Callable[[], None]]]:
        """The place of each slot's array on the device, and the actions needed after the run."""
        place, bases, after = self._steps[0][0].place, [], []
        for slot, array in enumerate(arrays):
            base, finish = place(device, array, slot in self._reads or slot in self._writes, slot in self._writes)
            bases.append(base)
            if finish is not None:
                after.append(finish)
        return bases, after

    def _found(self, key: tuple[object, ...]) -> tuple[Any, list[Placed]] | None:
        """The prepared steps of a part for these arrays, and their scratch memory."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def _new(self, key: tuple[object, ...], device: Any, part: _Part, bases: Sequence[Placed]) -> tuple[Any, list[Placed]]:
        found = _prepared(device, part, bases, keep=False)
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > _KEPT * len(self._parts):
                self._kept.popitem(last=False)
        return found


def _part(steps: tuple[tuple[DeviceLaunch, tuple[Place, ...]], ...]) -> _Part:
    slots = sorted({slot for _, places in steps for slot, _ in places})
    return _Part(steps, tuple(slots), max((sum(map(_rounded, launch.temporaries)) for launch, _ in steps), default=0))


def _prepared(device: Any, part: _Part, bases: Sequence[Placed], keep: bool) -> tuple[Any, list[Placed]]:
    """The prepared steps, and their scratch memory. With ``keep``, they keep the memory of the arrays alive too."""
    scratch = _scratch(device, part)
    steps: list[Any] = []
    for launch, places in part.steps:
        steps += launch.steps(device, _placed(device, launch, places, bases, scratch))
    return device.prepare(steps, keep), scratch


def _scratch(device: Any, part: _Part) -> list[Placed]:
    size = part.scratch_bytes
    return [Placed(device.allocate(size), 0, size)] if size else []


def _own(target: DeviceTarget, number: int, step: Step) -> DeviceLaunch:
    """The launch of a step, which must be one on this device, with as many places as it takes arrays."""
    launch, where = step.launch, f"steps[{number}] of a sequence"
    if not isinstance(launch, DeviceLaunch) or launch.target.home != target.home:
        raise InvalidArgument(message(where, f"the launch {type(launch).__name__}", f"a launch on {target.name}"))
    if len(step.places) != launch.arrays:
        raise InvalidArgument(message(where, f"{len(step.places)} places", f"{launch.arrays}, one for each array"))
    for _, offset in step.places:
        if offset % VECTOR_BYTES:
            raise InvalidArgument(message(where, f"the offset {offset}", f"multiples of {VECTOR_BYTES}"))
    return launch


def _rounded(nbytes: int) -> int:
    return -(-max(nbytes, 1) // _ALIGNMENT) * _ALIGNMENT


def _placed(
    device: Any, launch: DeviceLaunch, places: Sequence[Place], bases: Sequence[Placed], scratch: Sequence[Placed]
) -> list[Placed]:
    """Where a launch's arrays and temporaries are. An array may extend to the end of its slot's memory."""
    found = []
    for slot, offset in places:
        memory, start, nbytes = bases[slot]
        found.append(Placed(memory, start + offset, launch.longest(device, nbytes - offset)))
    at = 0
    for nbytes in launch.temporaries:
        found.append(Placed(scratch[0].memory, at, max(nbytes, 1)))
        at += _rounded(nbytes)
    return found
