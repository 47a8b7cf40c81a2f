"""``Way``: the shared code of the algorithms that find the K best of each row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tvmdml.kernels import tensorir as T
from tvmdml.schedules.gpu._bitonic import POSITION
from tvmdml.schedules.gpu._rows import KeyRows
from tvmdml.targets._device import DeviceTarget

SPARE_BYTES = 256
"""Shared memory reserved for counts and the like."""
SCANNED_BYTES = 2304
"""The shared memory that a scan of 512 threads needs."""


def below(value: int) -> int:
    """The value rounded down to a power of two."""
    return 1 << (value.bit_length() - 1)


def above(value: int) -> int:
    """The value rounded up to a power of two."""
    return 1 << (value - 1).bit_length()


class Way:
    """An algorithm for one kind of rows: it makes its decisions, and then writes the kernel."""

    each_turn: tuple[str, ...] = ()
    """The names of those numbers that have a separate value for each launch."""
    scratch: tuple[int, ...] = ()
    """The sizes of buffers for counts in device memory."""
    rooms: tuple[int, ...] = ()
    """The sizes of pairs of buffers for entries in device memory."""

    def __init__(self, way: str, rows: KeyRows, target: DeviceTarget, knobs: Any, threads: int, most: int) -> None:
        self.way, self.rows, self.keys, self.batch, self.knobs = way, rows, rows.keys, rows.batch, knobs
        self.threads, self.most, self.lockstep = threads, most, target.lockstep
        self.most_groups = min(knobs.most_groups, target.max_groups)
        own, span, numbers = self.plan(target)
        self.numbers = rows.numbers(span, **numbers)
        self.parameters = (
            ("threads", self.threads),
            ("lockstep", self.lockstep),
            *rows.parameters,
            *own.items(),
            *self.numbers.parameters,
        )

    def plan(self, target: DeviceTarget) -> tuple[dict[str, Any], int, dict[str, Any]]:
        """Make the decisions; returns the code's parameters, the largest number that it computes, and its integers."""
        raise NotImplementedError

    def launches(self) -> None:
        """Write the launches."""
        raise NotImplementedError

    @property
    def temporaries(self) -> tuple[tuple[str, int], ...]:
        """The type and size of each buffer after the tensors."""
        counts = tuple(("int32", size) for size in self.scratch)
        entries = tuple((dtype, size) for size in self.rooms for dtype in (self.keys.word, POSITION))
        return (*self.rows.temporaries, *counts, *entries)

    def groups(self, items: int) -> int:
        """The number of groups to launch for so many items; each group strides over the rest."""
        count: int = min(items, self.most_groups)
        return max(1, count)

    def function(self) -> T.PrimFunc:
        with T.on_device(), T.function() as f:
            self.rows.declare(f)
            self.counts = [f.buffer("counts", "int32") for _ in self.scratch]
            # Launches with equal code should be identical for a driver, so they use the same names.
            self.found = [(f.buffer("keys", self.keys.word), f.buffer("positions", POSITION)) for _ in self.rooms]
            self.rows.n = self.numbers.declare(f)
            self.rows.gather(self.numbers)
            self.launches()
        return f.result()

    @property
    def n(self) -> Any:
        """The kernel's integers."""
        return self.rows.n

    def number(self, value: Any) -> Any:
        return self.rows.number(value)

    def small(self, *names: str) -> Any:
        """Some of the integers, which are known to be small, in 32 bits, the type of loop counters."""
        return SimpleNamespace(**{name: T.let(T.cast(getattr(self.n, name), "int32")) for name in names})

    def launch(self, turn: int, groups: str, threads: int) -> Any:
        """One launch of several."""
        own = {name: value[turn] if name in self.each_turn else value for name, value in vars(self.n).items()}
        return self.rows.launch(own[groups], threads, SimpleNamespace(**own))
