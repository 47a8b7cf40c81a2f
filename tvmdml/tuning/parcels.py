"""The data sent to machines without tvmdml: kernels as self-contained libraries, inputs, and expected outputs."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tvmdml import operators
from tvmdml.errors import TvmdmlError
from tvmdml.library import knobs as all_knobs
from tvmdml.library import lines
from tvmdml.library.log_terms import Job, Knobs
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators import Operator, _shared
from tvmdml.operators._accuracy import Expected
from tvmdml.operators._contract import Role, Shared
from tvmdml.proof.bench.inputs import FILLS, SEED
from tvmdml.targets.cpu import CpuTarget, host
from tvmdml.tensors import NumpyArray as NumpyArray
from tvmdml.tensors import TensorDesc

_SHOWN = 300
"""The maximum number of characters of a problem."""
_JUNK = 0x5A
"""The byte that outputs are filled with before a kernel writes them: a valid but unlikely number in every type."""


class CandidateLibrary(NamedTuple):
    """A compiled kernel and how to launch it, or the reason why there is none."""

    content: bytes = b""
    """A shared library."""
    symbol: str = ""
    scalars: tuple[int, ...] = ()
    temporaries: tuple[tuple[str, int], ...] = ()
    problem: str = ""


class SentSample(NamedTuple):
    """One input of a job. All arrays are flat: all bytes from the first element to the last."""

    name: str
    inputs: tuple[NumpyArray, ...]
    expected: tuple[Expected, ...]
    """The outputs as NumPy arrays (or bounds around them), in their shapes."""


class JobParcel(NamedTuple):
    """Everything that a session needs to know about a job."""

    desc: Operator
    shared: Shared
    samples: tuple[SentSample, ...]
    default: CandidateLibrary

    def outputs(self) -> tuple[NumpyArray, ...]:
        """Flat outputs, filled with junk."""
        return tuple(_junk(desc) for desc in self.desc.outputs())

    def mismatch(self, sample: SentSample, actual: tuple[NumpyArray, ...]) -> str:
        """What is wrong with flat outputs that came back; empty if nothing is wrong."""
        descs = self.desc.outputs()
        views = tuple(view(desc, flat) for desc, flat in zip(descs, actual, strict=True))
        if problem := self.desc.mismatch(views, sample.expected):
            return problem
        # The bytes between the elements of an input's memory are the input's, which only the job's own kernel uses.
        same = {output: source for source, output in self.desc.positions(self.shared)}
        before = [sample.inputs[same[i]] if i in same else junk for i, junk in enumerate(self.outputs())]
        for desc, flat, untouched in zip(descs, actual, before, strict=True):
            between = np.ones(flat.shape, np.bool_)
            view(desc, between)[...] = ~desc.used_bytes() if desc.data_type.is_nibble else False
            if flat[between].tobytes() != untouched[between].tobytes():
                return "it writes to memory between the elements of an output"
        return ""


def view(desc: TensorDesc, flat: NumpyArray) -> NumpyArray:
    """A flat array as a tensor."""
    desc = desc.stored
    strides = tuple(stride * flat.itemsize for stride in desc.layout)
    return np.lib.stride_tricks.as_strided(flat, desc.sizes, strides)


def build_library(job: Job, knobs: Knobs, threads: int) -> CandidateLibrary:
    """Compile a candidate for a machine with so many threads; other knobs have the schedule's defaults, never a log's values."""
    try:
        desc = lines.read(job.line, "tune")
        processor = host.known(job.target.removeprefix("cpu:"))
        assert processor is not None, job.target
        target = CpuTarget(processor, threads)
        with all_knobs.untuned(), all_knobs.using(**{operators.tuned_as(type(desc.canonical())): knobs}):
            kernel = kernel_for(desc.canonical(), target, _shared.read(desc, job.in_place, "tune"))
            function = kernel.written(target)
        symbol = f"tvmdml_{kernel.name}"
        library = target.join({symbol: target.unit(function, symbol)})
    except Exception as error:  # a schedule may fail in any way with untested values
        said = str(error) if isinstance(error, TvmdmlError) else f"{type(error).__name__}: {error}"
        return CandidateLibrary(problem=f"does not compile: {said[:_SHOWN]}")
    return CandidateLibrary(library, symbol, tuple(kernel.scalars), tuple(kernel.temporaries))


def prepare(job: Job, threads: int, path: Path) -> str:
    """Make a job's ``JobParcel`` and write it to a file; returns the reason if that failed."""
    desc = lines.read(job.line, "tune")
    default = build_library(job, {}, threads)
    if default.problem:
        return default.problem
    shared = _shared.read(desc, job.in_place, "tune")
    samples = tuple(_sample(desc, shared, name, number) for number, name in enumerate(desc.samples() or ("",)))
    with open(path, "wb") as stream:
        pickle.dump(JobParcel(desc, shared, samples, default), stream, protocol=pickle.HIGHEST_PROTOCOL)
    return ""


def load(path: Path) -> JobParcel:
    """Read what ``prepare`` wrote."""
    with open(path, "rb") as stream:
        work: JobParcel = pickle.load(stream)  # noqa: S301 - this process's parent wrote it
    return work


def _sample(desc: Operator, shared: Shared, name: str, number: int) -> SentSample:
    rng = np.random.default_rng(SEED + number)
    inputs: list[NumpyArray] = []
    views: list[NumpyArray | None] = []
    same, before = dict(shared), dict[str, NumpyArray]()
    for field, tensor in desc.tensors(Role.INPUT):
        if tensor is None:
            views.append(None)
            continue
        tensor = tensor.stored
        output = same.get(field, field)
        if output not in before:  # inputs in the same memory have the same values
            before[output] = _junk(tensor)
            view(tensor, before[output])[...] = FILLS[name](rng, tensor.sizes, before[output].dtype)
        inputs.append(before[output])
        views.append(view(tensor, inputs[-1]))
    return SentSample(name, tuple(inputs), desc.reference(*views))


def _junk(desc: TensorDesc) -> NumpyArray:
    desc = desc.stored
    size = max(1, desc.span)
    return np.full(size * desc.data_type.numpy.itemsize, _JUNK, np.uint8).view(desc.data_type.numpy)
