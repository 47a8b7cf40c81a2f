"""What is done in other processes, here or on other machines, when a pack is built: kernels are compiled, a few at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml import targets
from tvmdml._whole import whole
from tvmdml.errors import CompileError

if TYPE_CHECKING:
    from tvmdml.kernel import Kernel
    from tvmdml.targets import Target


class Job(NamedTuple):
    """A kernel to compile: which of what a spec's line comes to."""

    line: Mapping[str, Any]
    in_place: bool
    target: str
    """As ``targets.elsewhere`` takes it."""
    code: str
    threads: int
    knobs: Mapping[str, Mapping[str, Any]]
    """Those of the pack, and what its logs say about the operation."""
    source: str
    """The stamp of the schedules that decided."""
    key: bytes


class Unit(NamedTuple):
    """A compiled kernel, or why there is none."""

    key: bytes
    content: bytes
    problem: str = ""


def machine(text: str, code: str, knobs: Mapping[str, Mapping[str, Any]]) -> Target:
    """The target of a name that has this code, with knobs, and no logs."""
    from tvmdml.packs import tuned

    found = next(one for one in targets.elsewhere(text) if one.code == code)
    return tuned.deciding(found, knobs, tuned.logs_of([]))


def compile_units(jobs: Sequence[Job]) -> list[Unit]:
    """Compile kernels; one that does not compile says so, and the others are there."""
    return [_compile(job) for job in jobs]


def _compile(job: Job) -> Unit:
    from tvmdml.packs import lines
    from tvmdml.packs.records import kernel_key, symbol_of

    try:
        target = machine(job.target, job.code, job.knobs)
        variant = next(variant for threads, variant in target.variants() if threads == job.threads)
        kernel: Kernel = variant.kernel(lines.read(job.line, "a job").canonical(), job.in_place)
        key = kernel_key(variant.code, kernel.module, kernel.name, kernel.parameters)
        if (key, kernel.source(variant)) != (job.key, job.source):
            raise CompileError(
                "the process that compiles has another version of tvmdml than the one that asks: install the same on both"
            )
        with whole():
            return Unit(key, variant.unit(kernel.build(), symbol_of(key)))
    except Exception as error:  # whatever it is, it has to reach the caller, from another machine too
        return Unit(job.key, b"", f"{type(error).__name__}: {error}")
