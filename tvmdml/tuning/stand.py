"""``Stand``: a job prepared in this process: inputs in guarded memory, and expected outputs."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tvmdml import operators, targets
from tvmdml.library import lines
from tvmdml.library.log_terms import Job
from tvmdml.operators import Operator, _shared
from tvmdml.operators._contract import Role
from tvmdml.operators._trial import mostly_within
from tvmdml.proof.bench.inputs import FILLS, SEED
from tvmdml.proof.bench.work import Traffic
from tvmdml.targets import Target
from tvmdml.tensors.arrays import NumpyArray
from tvmdml.tensors.arrays.device_array import DeviceArray
from tvmdml.tensors.arrays.guarded import GUARD, GuardedTensor
from tvmdml.tuning import clocks


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
        self.module = operators.tuned_as(type(self.desc))
        self.shared = _shared.read(self.desc, job.in_place, "the job")
        present = [(name, desc) for name, desc in self.desc.tensors(Role.OUTPUT) if desc is not None]
        rewritten = dict(self.shared).values()
        outputs = {name: _Held(GuardedTensor(desc), self.target) for name, desc in present if name not in rewritten}
        self.samples = [JobSample(self, name, outputs) for name in self.desc.samples() or ("",)]
        self.clock = clocks.of(self.target, self._traffic())

    def _traffic(self) -> Traffic:
        """The approximate memory traffic."""
        sizes = {name: desc.element_count * desc.data_type.bits // 8 for name, desc in self.desc.tensors() if desc is not None}
        same = dict(self.shared)
        rewritten = set(same.values())
        inputs = {name for name, _ in self.desc.tensors(Role.INPUT)}
        return Traffic(
            rewritten=sum(sizes[name] for name in rewritten),
            read=sum(size for name, size in sizes.items() if name in inputs and name not in same),
            written=sum(size for name, size in sizes.items() if name not in inputs and name not in rewritten),
        )


def _within(values: NumpyArray, bounds: tuple[int, int] | None) -> NumpyArray:
    return values if bounds is None else mostly_within(values, *bounds)


class JobSample:
    """One input of a job, with the correct outputs.

    Args:
        stand: the job's stand.
        fill: the kind of data, one of ``FILLS``; empty if the operator has no input.
        outputs: the memory for results, shared by all samples, without outputs in an input's memory.
    """

    def __init__(self, stand: Stand, fill: str, outputs: dict[str, _Held]) -> None:
        self.fill = fill
        self._desc, self._target = stand.desc, stand.target
        values = {
            name: _within(FILLS[fill](np.random.default_rng(SEED), desc.sizes, desc.data_type.numpy), self._desc.bounds(name))
            for name, desc in ((name, tensor and tensor.stored) for name, tensor in self._desc.tensors(Role.INPUT))
            if desc is not None
        }
        same = dict(stand.shared)
        self._before = {output: values[name] for name, output in stand.shared}
        """The contents of the outputs before a call, where they matter."""
        present = {name: desc for name, desc in self._desc.tensors() if desc is not None}
        written = [name for name, _ in self._desc.tensors(Role.OUTPUT) if name in present]
        self._outputs = {name: outputs.get(name) or _Held(GuardedTensor(present[name]), self._target) for name in written}
        self._inputs = {
            name: _Held(GuardedTensor(present[name]).holding(value), self._target)
            for name, value in values.items()
            if name not in same
        }
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

    def __init__(self, place: GuardedTensor, target: Target) -> None:
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
