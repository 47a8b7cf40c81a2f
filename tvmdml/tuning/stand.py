"""``Stand``: a job prepared in this process: inputs in guarded memory, and expected outputs."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tvmdml import operators, targets
from tvmdml.arrays import NumpyArray
from tvmdml.bench.inputs import FILLS, SEED
from tvmdml.bench.work import Traffic
from tvmdml.device_arrays import DeviceArray
from tvmdml.guarded import GUARD, Place
from tvmdml.operators import Operator
from tvmdml.operators._contract import Role
from tvmdml.packs import lines
from tvmdml.targets import Target
from tvmdml.tuning import clocks
from tvmdml.tuning.terms import Job


def described(job: Job) -> Operator:
    """The operator that a job's kernel is made for.

    Raises:
        TvmdmlError: there is no such operation.
    """
    return lines.read(job.line, "the job").canonical()


class Stand:
    """A job's inputs, and the clock that times them.

    Raises:
        TvmdmlError: there is no such operation, or target.
    """

    def __init__(self, job: Job) -> None:
        self.target = targets.resolve(job.target)
        self.desc = described(job)
        self.module = operators.module_of(type(self.desc))
        self.in_place = job.in_place
        present = [(name, desc) for name, desc in self.desc.tensors(Role.OUTPUT) if desc is not None]
        outputs = {} if self.in_place else {name: _Held(Place(desc), self.target) for name, desc in present}
        self.samples = [Sample(self, name, outputs) for name in self.desc.samples() or ("",)]
        self.clock = clocks.of(self.target, self._traffic(job.in_place))

    def _traffic(self, in_place: bool) -> Traffic:
        """The approximate memory traffic."""
        read, written = (
            sum(desc.element_count * desc.data_type.itemsize for _, desc in self.desc.tensors(role) if desc is not None)
            for role in (Role.INPUT, Role.OUTPUT)
        )
        return Traffic(rewritten=written) if in_place else Traffic(read=read, written=written)


class Sample:
    """One input of a job, with the correct outputs.

    Args:
        stand: the job's stand.
        fill: the kind of data, one of ``FILLS``; empty if the operator has no input.
        outputs: the memory for results, shared by all inputs; empty if results are written to the input's memory.
    """

    def __init__(self, stand: Stand, fill: str, outputs: dict[str, _Held]) -> None:
        self.fill = fill
        self._desc, self._target = stand.desc, stand.target
        values = {
            name: FILLS[fill](np.random.default_rng(SEED), desc.sizes, desc.data_type.numpy)
            for name, desc in self._desc.tensors(Role.INPUT)
            if desc is not None
        }
        self._before: dict[str, NumpyArray] = {}
        """The contents of the outputs before a call, where they matter."""
        self._inputs: dict[str, _Held] = {}
        self._outputs = outputs
        present = {name: desc for name, desc in self._desc.tensors() if desc is not None}
        if stand.in_place:
            self._before = dict(zip((name for name, _ in self._desc.tensors(Role.OUTPUT)), values.values(), strict=True))
            self._outputs = {name: _Held(Place(present[name]), self._target) for name in self._before}
        else:
            self._inputs = {name: _Held(Place(present[name]).holding(value), self._target) for name, value in values.items()}
        read = {**values, **{name: held.place.array for name, held in self._inputs.items()}}  # elements may share memory
        with np.errstate(all="ignore"):
            self._expected = self._desc.reference(*(read.get(name) for name, _ in self._desc.tensors(Role.INPUT)))
        self._sums = {name: zlib.crc32(held.place.memory.data) for name, held in self._inputs.items()}
        everything = {**self._inputs, **self._outputs}
        self.arrays: list[Any] = [everything[name].array for name in present if name in everything]
        """The arrays that a kernel is launched on."""

    def problem(self, call: Callable[[], object]) -> tuple[str, float]:
        """What is wrong with the results of a call, and its duration in seconds."""
        for name, held in self._outputs.items():
            held.place.clear()
            if name in self._before:
                held.place.holding(self._before[name])
            held.send()
        self._target.wait()
        start = time.perf_counter()
        call()
        self._target.wait()
        seconds = time.perf_counter() - start
        for held in (*self._inputs.values(), *self._outputs.values()):
            held.fetch()
        return self._wrong(), seconds

    def _wrong(self) -> str:
        for name, held in self._inputs.items():
            if zlib.crc32(held.place.memory.data) != self._sums[name]:
                return f"the input {name}, or memory beside it, was written to"
        for name, held in self._outputs.items():
            if not held.place.is_guarded():
                return f"memory outside of {name} was written to"
        return self._desc.mismatch(tuple(held.place.array for held in self._outputs.values()), self._expected)


class _Held:
    """A tensor with guard bytes, and its array on the target."""

    def __init__(self, place: Place, target: Target) -> None:
        self.place = place
        self._copy: DeviceArray | None = target.asarray(place.memory) if target.moves else None
        self.array: NumpyArray | DeviceArray = place.array
        if self._copy is not None:
            form = (place.array.shape, place.array.dtype, place.array.strides)
            self.array = DeviceArray(target.home, self._copy.memory, self._copy.offset + GUARD, *form)

    def send(self) -> None:
        """Copy the tensor to the target."""
        if self._copy is not None:
            self._copy.write(self.place.memory)

    def fetch(self) -> None:
        """Copy the tensor back from the target."""
        if self._copy is not None:
            self.place.memory[...] = self._copy.numpy()
