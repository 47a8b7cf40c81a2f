"""Sequences on a device: their steps are prepared together, for arrays that were seen before or are bound."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml.errors import InvalidArgument, message
from tvmdml.targets._device_launch import DeviceLaunch, Placed
from tvmdml.targets._hazards import Access, waiting
from tvmdml.targets._sequence import SequenceStep, SlotOffset, check_arrays, checked, farthest
from tvmdml.tensors.arrays.device_array import DeviceArray

if TYPE_CHECKING:
    from tvmdml.targets._device import DeviceTarget
    from tvmdml.tensors.arrays import NumpyArray

_KEPT = 4
"""For how many sets of arrays a sequence keeps its prepared steps."""
_PART = 32
"""Steps that are prepared together. New outputs then cost only the parts that write to them: most steps use the arena alone."""
_ALIGNMENT = 256
"""Of temporaries: the most that any device asks for."""


class _Step(NamedTuple):
    """A step that was checked."""

    launch: DeviceLaunch
    places: tuple[SlotOffset, ...]
    sizes: tuple[int, ...]
    number: int

    def is_aligned(self, alignment: int) -> bool:
        """Whether its kernels can work on all of its places."""
        return all(offset % alignment == 0 for _, offset in self.places)


class _Part(NamedTuple):
    """Steps that are prepared together."""

    steps: tuple[_Step, ...]
    slots: tuple[int, ...]
    """The slots with places of theirs."""
    copied: bool
    """It is one step whose places are not all aligned: it works on copies of those that are not."""

    @classmethod
    def of(cls, steps: Sequence[_Step], copied: bool = False) -> _Part:
        """These steps."""
        return cls(tuple(steps), tuple(sorted({slot for step in steps for slot, _ in step.places})), copied)


class DeviceSequence:
    """Launches of programs that run in turn.

    The steps share their temporaries' memory, because each runs after the one before it. Arrays that are NumPy's, or that do not
    begin as kernels need it, are copied for each run; so are the places that are not aligned.

    Raises:
        InvalidArgument: a launch is no launch on this device, or a place is impossible.
    """

    def __init__(self, target: DeviceTarget, steps: Sequence[SequenceStep], slots: int) -> None:
        self._target = target
        self._steps = [_own(target, number, step) for number, step in enumerate(checked(steps, slots))]
        self._farthest = farthest(steps, slots)
        self._reads, self._writes = (
            frozenset(step.places[i][0] for step in self._steps for i in getattr(step.launch, name) if i < len(step.places))
            for name in ("reads", "writes")
        )
        self._parts: dict[tuple[int, int], list[_Part]] = {}
        self._scratch_bytes = max((sum(map(_rounded, step.launch.temporaries)) for step in self._steps), default=0)
        self._rooms: list[tuple[Any, list[Placed]]] = []
        self._kept: OrderedDict[tuple[object, ...], tuple[Any, list[Placed]]] = OrderedDict()
        self._lock = threading.RLock()

    def __call__(self, arrays: Sequence[NumpyArray | DeviceArray]) -> None:
        """Run all steps. With device arrays only, it returns before the work is done. NumPy outputs are complete on return."""
        if not self._check(arrays):
            return
        launch = self._steps[0].launch
        with launch.on_stream(arrays):
            device = self._target.device  # a new one, if the previous one was lost
            bases, after = self._bases(device, arrays)
            identities = [launch.identity(base) for base in bases]
            parts = self._divided(device, _PART)
            with self._room(device) as scratch:
                for number, part in enumerate(parts):
                    if part.copied:
                        _on_copies(device, part.steps[0], bases, scratch)()
                        continue
                    key = (id(device), number, *(id(room.memory) for room in scratch), *(identities[slot] for slot in part.slots))
                    prepared = self._found(key)
                    if prepared is None:
                        prepared = self._new(key, device, part, bases, scratch)
                    launch.runner(device, prepared, [*(bases[slot] for slot in part.slots), *scratch])()
            for finish in after:
                finish()

    def timed(self, arrays: Sequence[NumpyArray | DeviceArray]) -> tuple[int, ...]:
        """Run all steps, and return how many nanoseconds each of them took, by the device's clock. Waits for them."""
        if not self._check(arrays):
            return ()
        launch = self._steps[0].launch
        with launch.on_stream(arrays):
            device = self._target.device
            bases, after = self._bases(device, arrays)
            self._divided(device, _PART)  # refuses what cannot run
            with self._room(device) as scratch:
                seconds = launch.seconds(device, [_on_copies(device, step, bases, scratch) for step in self._steps])
            for finish in after:
                finish()
        return tuple(max(round(each * 1e9), 0) for each in seconds)

    def bind(self, arrays: Sequence[NumpyArray | DeviceArray]) -> Callable[[], None]:
        """A run on these arrays. If all are on the device and aligned, everything that can be done once is done now."""
        arrays = tuple(arrays)
        if not self._check(arrays):
            return lambda: None
        launch, device = self._steps[0].launch, self._target.device
        if not all(isinstance(array, DeviceArray) and launch.begins_well(device, array) for array in arrays):
            return lambda: self(arrays)
        runs: list[Callable[[], None]] = []
        with launch.on_stream(arrays):
            bases, _ = self._bases(device, arrays)
            scratch = self._new_room(device)
            for part in self._divided(device, len(self._steps)):
                if part.copied:
                    runs.append(_on_copies(device, part.steps[0], bases, scratch))
                    continue
                prepared = _prepared(device, part, bases, scratch, keep=True)
                runs.append(launch.replayed(device, prepared, bases + scratch))

        def run() -> None:
            with launch.on_stream(arrays):
                for each in runs:
                    each()

        found = run if len(runs) > 1 else runs[0]
        found.held = arrays, bases  # type: ignore[attr-defined] # keeps the memory alive
        return found

    def _check(self, arrays: Sequence[NumpyArray | DeviceArray]) -> bool:
        """Refuse wrong arrays; returns whether there is anything to do."""
        check_arrays(arrays, self._farthest)
        return bool(self._steps)

    def _divided(self, device: Any, most: int) -> list[_Part]:
        """Parts of at most so many steps. What is aligned depends on the device."""
        alignment = self._steps[0].launch.alignment(device)
        found = self._parts.get((alignment, most))
        if found is None:
            found = self._parts[alignment, most] = list(_divided(self._steps, alignment, most))
        return found

    def _bases(self, device: Any, arrays: Sequence[NumpyArray | DeviceArray]) -> tuple[list[Placed], list[Callable[[], None]]]:
        """The place of each slot's array on the device, and the actions needed after the run."""
        place, bases, after = self._steps[0].launch.place, [], []
        for slot, array in enumerate(arrays):
            base, finish = place(device, array, slot in self._reads or slot in self._writes, slot in self._writes)
            bases.append(base)
            if finish is not None:
                after.append(finish)
        return bases, after

    @contextmanager
    def _room(self, device: Any) -> Iterator[list[Placed]]:
        """Memory for the temporaries of a run, which no other run uses while this one launches its steps."""
        with self._lock:
            owner, room = self._rooms.pop() if self._rooms else (None, [])
        if owner is not device:  # it belongs to a device that was lost
            room = self._new_room(device)
        try:
            yield room
        finally:
            self._rooms.append((device, room))

    def _new_room(self, device: Any) -> list[Placed]:
        size = self._scratch_bytes
        return [Placed(device.allocate(size), 0, size)] if size else []

    def _found(self, key: tuple[object, ...]) -> Any:
        """The prepared steps of a part for these arrays, if they were seen lately."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def _new(self, key: tuple[object, ...], device: Any, part: _Part, bases: Sequence[Placed], scratch: list[Placed]) -> Any:
        prepared = _prepared(device, part, bases, scratch, keep=False)
        with self._lock:
            self._kept[key] = prepared, scratch
            while len(self._kept) > _KEPT * len(self._divided(device, _PART)):
                self._kept.popitem(last=False)
        return prepared


def _own(target: DeviceTarget, number: int, step: SequenceStep) -> _Step:
    """A step whose launch is one on this device, with as many places as it takes arrays."""
    launch, where = step.launch, f"steps[{number}] of a sequence"
    if not isinstance(launch, DeviceLaunch) or launch.target.home != target.home:
        raise InvalidArgument(message(where, f"the launch {type(launch).__name__}", f"a launch on {target.name}"))
    if step.wanted:
        raise InvalidArgument(message(where, f"{len(step.wanted)} conditions", "none on a device: it runs all steps"))
    if len(step.places) != launch.arrays:
        raise InvalidArgument(message(where, f"{len(step.places)} places", f"{launch.arrays}, one for each array"))
    return _Step(launch, step.places, step.sizes, number)


def _divided(steps: Sequence[_Step], alignment: int, most: int) -> Iterator[_Part]:
    together: list[_Step] = []
    for step in steps:
        copied = not step.is_aligned(alignment)
        if copied and not step.sizes:
            given = f"places {step.places} and no sizes"
            raise InvalidArgument(
                message(f"steps[{step.number}] of a sequence", given, f"offsets that are multiples of {alignment}")
            )
        if together and (copied or len(together) == most):
            yield _Part.of(together)
            together = []
        if copied:
            yield _Part.of([step], copied=True)
        else:
            together.append(step)
    if together:
        yield _Part.of(together)


def _prepared(device: Any, part: _Part, bases: Sequence[Placed], scratch: Sequence[Placed], keep: bool) -> Any:
    """The steps, prepared. With ``keep``, they keep the memory of the arrays alive."""
    steps: list[Any] = []
    accesses: list[tuple[list[Access], int]] = []
    for step in part.steps:
        places = _placed(device, step, bases, scratch)
        launches = list(step.launch.steps(device, places))
        accesses.append((_accesses(step, places), len(launches)))
        steps += launches
    return device.prepare(steps, waiting(accesses), keep)


def _accesses(step: _Step, places: Sequence[Placed]) -> list[Access]:
    """What a step does to its places, in whole words as kernels do. It writes to its temporaries."""
    count, writes = len(step.places), step.launch.writes
    return [
        Access(id(memory), offset & ~3, offset + nbytes + 3 & ~3, i in writes or i >= count)
        for i, (memory, offset, nbytes) in enumerate(places)
    ]


def _on_copies(device: Any, step: _Step, bases: Sequence[Placed], scratch: Sequence[Placed]) -> Callable[[], None]:
    """A run of one step, on copies of those places that are not aligned."""
    places, launch = _placed(device, step, bases, scratch), step.launch
    copies = []
    for i, (slot, offset) in enumerate(step.places):
        if offset % launch.alignment(device):
            own = Placed(bases[slot].memory, bases[slot].offset + offset, step.sizes[i])
            places[i] = Placed(device.allocate(own.nbytes), 0, own.nbytes)
            copies.append((own, places[i], i in launch.writes))

    def run() -> None:
        for own, copy, _ in copies:
            device.copy(own.memory, own.offset, copy.memory, 0, own.nbytes)
        launch.dispatch(device, places)
        for own, copy, written in copies:
            if written:
                device.copy(copy.memory, 0, own.memory, own.offset, own.nbytes)

    return run


def _rounded(nbytes: int) -> int:
    return -(-max(nbytes, 1) // _ALIGNMENT) * _ALIGNMENT


def _placed(device: Any, step: _Step, bases: Sequence[Placed], scratch: Sequence[Placed]) -> list[Placed]:
    """Where a launch's arrays and temporaries are. An array without a size may extend to the end of its slot's memory."""
    found = []
    for i, (slot, offset) in enumerate(step.places):
        memory, start, nbytes = bases[slot]
        size = max(step.sizes[i], 1) if step.sizes else step.launch.longest(device, nbytes - offset)
        if offset + size > nbytes:
            given = f"an array of {nbytes} bytes"
            where = f"arrays[{slot}] of a sequence"
            raise InvalidArgument(message(where, given, f"{offset + size} or more, for steps[{step.number}]"))
        found.append(Placed(memory, start + offset, size))
    at = 0
    for nbytes in step.launch.temporaries:
        found.append(Placed(scratch[0].memory, at, max(nbytes, 1)))
        at += _rounded(nbytes)
    return found
