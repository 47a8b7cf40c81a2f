"""The work of other processes, here or on other machines, when a pack is built: they compile kernels, a few at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tvmdml import targets
from tvmdml.errors import CompileError
from tvmdml.library import stamps
from tvmdml.library.scheduling import kernel_for
from tvmdml.system import whole

if TYPE_CHECKING:
    from tvmdml.kernels.kernel import Kernel
    from tvmdml.operators._contract import Shared
    from tvmdml.targets import Target


class CompileJob(NamedTuple):
    """A kernel to compile, given by the spec's line that needs it."""

    line: Mapping[str, Any]
    shared: Shared
    target: str
    """As ``targets.elsewhere`` takes it."""
    code: str
    threads: int
    knobs: Mapping[str, Mapping[str, Any]]
    """The pack's knobs, with the values of its tuning records for the operation."""
    source: str
    """The stamp of the schedules that chose the kernel."""
    key: bytes


class CompiledUnit(NamedTuple):
    """A compiled kernel, or the reason why it could not be compiled."""

    key: bytes
    content: bytes
    problem: str = ""


def machine(text: str, code: str, knobs: Mapping[str, Mapping[str, Any]]) -> Target:
    """The target with this name and code, with these knobs and without tuning records."""
    from tvmdml.library import tuned

    found = next(one for one in targets.elsewhere(text) if one.code == code)
    return tuned.deciding(found, knobs, tuned.logs_of([]))


def compile_units(jobs: Sequence[CompileJob]) -> list[CompiledUnit]:
    """Compile kernels. If one fails, its unit has the reason, and the others are compiled all the same."""
    return [_compile(job) for job in jobs]


def _compile(job: CompileJob) -> CompiledUnit:
    from tvmdml.library import lines
    from tvmdml.library.records import kernel_key, symbol_of

    try:
        target = machine(job.target, job.code, job.knobs)
        variant = next(variant for threads, variant in target.variants() if threads == job.threads)
        chosen: Kernel = kernel_for(lines.read(job.line, "a job").canonical(), variant, job.shared)
        keys = {kernel_key(variant.code, one.module, one.name, one.parameters): one for one in chosen.every}
        kernel = keys.get(job.key)
        if kernel is None or stamps.source(kernel, variant) != job.source:
            raise CompileError(
                "the compiling process has another version of tvmdml than the building process: install the same version for both"
            )
        with whole():
            return CompiledUnit(job.key, variant.unit(kernel.written(variant), symbol_of(job.key)))
    except Exception as error:  # any exception must reach the caller, also from another machine
        return CompiledUnit(job.key, b"", f"{type(error).__name__}: {error}")
