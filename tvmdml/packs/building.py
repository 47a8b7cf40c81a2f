"""Building a pack: the schedules choose kernels for each line of a spec; these are compiled, joined into libraries and written."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

import tvmdml
from tvmdml import operators, targets
from tvmdml.errors import CompileError, InvalidArgument, Unsupported, message, safe_repr
from tvmdml.kernels import knobs
from tvmdml.kernels.kernel import Kernel
from tvmdml.library import files, lines, records, scheduling, stamps, tuned
from tvmdml.library import format as container
from tvmdml.library.format import Contents, Part
from tvmdml.library.records import LaunchRecord, OperationRecord, symbol_of
from tvmdml.library.scheduling import kernel_for
from tvmdml.library.spec import Spec, Wanted
from tvmdml.operators import _shared
from tvmdml.operators._contract import Shared
from tvmdml.packs import graphs, listed, sources, work
from tvmdml.packs.processes import Processes
from tvmdml.system import apart, imports, installing
from tvmdml.system.disk import stores
from tvmdml.targets import Target, elsewhere

_TOGETHER = 4
"""The number of kernels in one task for a process: at most this many are lost when the build is interrupted."""
_ALONE = 4
"""Up to this many kernels are compiled without starting processes, which would take longer."""

_PART = 64
"""The most kernels in a part of a library: loading a kernel loads its part, and a network has some of each operator's kernels."""

Progress = Callable[[int, int], None]
"""Called with the number of finished kernels, and the number of all kernels."""


class Built(NamedTuple):
    """The result of a build."""

    operations: int
    """Lines of the spec, times targets."""
    kernels: int
    """The number of different kernels."""
    compiled: int
    """How many of them were not compiled before."""
    size: int
    """The size of the pack in bytes."""
    skipped: tuple[str, ...]
    """Operations that a target does not support, and why."""
    recordings: int = 0
    """Those of models with open sizes."""


def build(
    spec: Spec | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    targets: Sequence[str] = (),
    executor: Executor | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    plain_weights: bool = False,
    asking: Progress | None = None,
) -> Built:
    """Build a pack. The same spec gives the same bytes.

    Compiled kernels are kept in the cache on disk: after an interruption, the same build continues where it stopped.

    Args:
        spec: the contents: a ``Spec``, or the path of a spec, of a DxDispatch model (``.json``) or of an ONNX model.
        path: the file to write; it is replaced atomically when the build is complete.
        targets: what to compile for, instead of the spec's targets: ``cpu:x86-64-v3``, ``cuda:sm_90``, ``vulkan:desktop``.
        executor: where to compile: any ``concurrent.futures`` executor, such as Dask's or Ray's; by default processes of its own.
        jobs: how many processes to start; by default, as many as this process may use processors.
        progress: called whenever kernels are finished.
        plain_weights: graphs have weights only as they are, and pack them when they are loaded. Kernels for different sizes of
            a model may read different packed forms, so that packs for several sizes, merged, are smaller with this.
        asking: called while schedules are asked about the sizes of a model's ranges: with so many sizes, and all.

    Raises:
        InvalidArgument: the spec is invalid, or names no targets; a target is unknown.
        CompileError: kernels do not compile, or the tools for a target are not installed. The compiled kernels are kept.
        OSError: the file cannot be written.
    """
    place = files.require_place(path)
    if not isinstance(spec, Spec) and place == Path(os.path.realpath(spec)):
        raise InvalidArgument(message("output", str(path), "another file than the spec"))
    if jobs is not None and (type(jobs) is not int or jobs < 1):
        raise InvalidArgument(message("jobs", safe_repr(jobs), "1 or more"))
    wanted = listed.complete(spec if isinstance(spec, Spec) else sources.read([Path(spec)], targets))
    if not wanted.wanted and not wanted.graphs:
        raise InvalidArgument(message("pack spec", "no operations", "one or more, in kernels or in [[operators]]"))
    names = tuple(targets) or wanted.targets
    require_joins(names)
    plan = BuildPlan(wanted, names, asking)
    if not plan.operations and (plan.skipped or not (plan.graphs or plan.opened)):
        raise Unsupported(f"no target supports any operation of the spec: {'; '.join(plan.skipped[:4])}")
    units, compiled = _compile(plan, executor, jobs, progress or (lambda done, total: None))
    with graphs.with_graphs(_assemble(plan, units), plan.graphs, plan.opened, wanted.files, plain_weights) as contents:
        container.write(path, contents)
    return _built(path, contents, compiled, plan)


def require_joins(names: Iterable[str]) -> None:
    """Find what joins the kernels for targets, before hours are spent on them.

    Raises:
        CompileError: a tool is missing.
    """
    for machine in itertools.chain.from_iterable(map(elsewhere, names)):
        machine.require_join()


def build_library(plan: BuildPlan, path: str | os.PathLike[str], jobs: int | None, progress: Progress) -> Built:
    """Build a pack of kernels without operations. Its parts are small, and stored as they are: a wheel is compressed itself.

    Raises:
        CompileError, OSError: as ``build``.
    """
    units, compiled = _compile(plan, None, jobs, progress)
    contents = _assemble(plan, units, _PART, level=0)._replace(operations=())
    container.write(path, contents)
    return _built(path, contents, compiled, plan)


def _built(path: str | os.PathLike[str], contents: Contents, compiled: int, plan: BuildPlan) -> Built:
    size, recordings = Path(path).stat().st_size, len(contents.head["graphs"]) if plan.opened else 0
    return Built(len(contents.operations), len(contents.kernels), compiled, size, tuple(plan.skipped), recordings)


def plan(spec: Spec) -> tuple[bytes, ...]:
    """The keys of the kernels that a spec needs: nothing is compiled."""
    return tuple(BuildPlan(listed.complete(spec), spec.targets).wanted)


# -- Planning -----------------------------------------------------------------------------------------------------


def _both_ways(spec: Spec) -> Iterator[Wanted]:
    """For each operation whose tensors share memory, also add it with separate arrays."""
    wanted = set(spec.wanted)
    for one in spec.wanted:
        if one.shared and one._replace(shared=()) not in wanted:
            yield one._replace(shared=())
        yield one


KernelIdentity = tuple[str, str, records.Parameters]
"""A kernel without its target."""


def identity(kernel: Kernel) -> KernelIdentity:
    """A kernel's module, name and parameters."""
    return kernel.module, kernel.name, kernel.parameters


class _Wanted(NamedTuple):
    """A kernel that at least one operation needs."""

    kernel: Kernel
    machine: Target
    job: work.CompileJob


class BuildPlan:
    """Every operation with its launches, and every kernel once."""

    def __init__(self, spec: Spec, names: tuple[str, ...], asking: Progress | None = None) -> None:
        if not names:
            advice = "Name them in the spec, or with --target."
            raise InvalidArgument(message("pack targets", "none", "one or more, such as cpu:x86-64-v3", advice))
        given = (
            *spec.knobs.items(),
            *knobs.in_force().items(),
        )  # the pack will run in other processes, without this process's knobs
        self.knobs: dict[str, dict[str, knobs.Value]] = {}
        for operator, values in given:
            self.knobs.setdefault(operator, {}).update(values)
        self.machines: dict[str, tuple[str, Target]] = {}
        for name in names:
            for machine in targets.elsewhere(name):
                self.machines.setdefault(machine.code, (name, machine))
        self.logs = tuned.carried(spec.logs, [machine for _, machine in self.machines.values()]) if knobs.logs_count() else []
        logs = tuned.logs_of(self.logs)
        self.machines = {code: (name, tuned.deciding(one, self.knobs, logs)) for code, (name, one) in self.machines.items()}
        self.operations: dict[bytes, OperationRecord] = {}
        self.wanted: dict[bytes, _Wanted] = {}
        self.skipped: list[str] = []
        self._add(_both_ways(spec), tuple(self.machines.values()))
        self.graphs, self.opened, left_out = graphs.planned(spec.graphs, tuple(self.machines.values()), asking)
        self.skipped += left_out
        for graph in self.graphs:
            self._add(graph.wanted(), graph.machines)
        for choice in itertools.chain.from_iterable(one.choices for one in self.opened):
            self._want(lines.of(choice.desc), *choice)

    def leave_out(self, kernels: Collection[KernelIdentity]) -> None:
        """Build no kernels that are elsewhere."""
        self.wanted = {key: one for key, one in self.wanted.items() if identity(one.kernel) not in kernels}

    def _add(self, several: Iterable[Wanted], machines: Sequence[tuple[str, Target]]) -> None:
        """Add operations for some targets."""
        for desc, shared in several:
            line = lines.of(desc)
            for name, machine in machines:
                try:
                    launches = tuple(self._launches(line, desc.canonical(), shared, name, machine))
                except Unsupported as error:
                    self.skipped.append(f"{machine}: {error}")
                    continue
                operation = OperationRecord(line, _shared.write(desc, shared), machine.code, launches)
                self.operations[operation.key] = operation

    def _launches(self, line: lines.Line, desc: Any, shared: Shared, name: str, machine: Target) -> Iterator[LaunchRecord]:
        before: LaunchRecord | None = None
        for threads, variant in machine.variants():
            launch = self._want(line, desc, shared, name, machine, threads, variant, kernel_for(desc, variant, shared))
            if before is None or launch[1:] != before[1:]:
                yield launch
            before = launch

    def _want(
        self, line: lines.Line, desc: Any, shared: Shared, name: str, machine: Target, threads: int, variant: Target, kernel: Kernel
    ) -> LaunchRecord:
        """Add the kernels of a launch that a schedule chose for a variant of a target."""
        launch = records.launch_of(machine.code, threads, kernel)
        for key, one in zip(launch.kernels, kernel.every, strict=True):
            if key in self.wanted:
                continue
            turned = self._turned(operators.tuned_as(type(desc)), variant, desc.canonical(), shared)
            job = work.CompileJob(line, shared, name, machine.code, threads, turned, stamps.source(one, machine), key)
            self.wanted[key] = _Wanted(one._replace(tuning=""), machine, job)  # in a pack, only the code of a kernel counts
        return launch

    def _turned(self, tuned_as: str, machine: Target, desc: Any, shared: Shared) -> dict[str, dict[str, knobs.Value]]:
        """The knobs for an operation, including those from tuning logs: the process that compiles it needs no logs."""
        declared = knobs.of(tuned_as, machine)
        values = {} if declared is None else scheduling.tuned(declared, desc, machine, shared).values
        return {**self.knobs, tuned_as: {**values, **self.knobs.get(tuned_as, {})}} if values else self.knobs


# -- Compiling ----------------------------------------------------------------------------------------------------


def _compile(plan: BuildPlan, executor: Executor | None, jobs: int | None, progress: Progress) -> tuple[dict[bytes, bytes], int]:
    """The compiled unit of every kernel, and how many of them had to be compiled."""
    store = stores.DiskStore()
    units: dict[bytes, bytes] = {}
    digests = {key: stamps.digest(_manifest(wanted, key)) for key, wanted in plan.wanted.items()}
    for key, wanted in plan.wanted.items():
        if (artifact := store.find(digests[key], (_suffix(wanted.machine),))) is not None:
            units[key] = artifact.content
    left = [wanted.job for key, wanted in plan.wanted.items() if key not in units]
    total = len(plan.wanted)
    progress(len(units), total)
    problems = []

    def keep(unit: work.CompiledUnit) -> None:
        if not isinstance(unit, work.CompiledUnit) or unit.key not in plan.wanted:
            raise CompileError(
                "packs.build executor: it returned something other than the requested kernels. Did its workers finish?"
            )
        if not unit.problem and not plan.wanted[unit.key].machine.is_unit(unit.content, symbol_of(unit.key)):
            unit = unit._replace(problem="the executor returned something that is not this kernel")
        if unit.problem:
            problems.append(f"{plan.wanted[unit.key].job.line['operator']} for {plan.wanted[unit.key].machine}: {unit.problem}")
            return
        units[unit.key] = unit.content
        _keep(store, digests[unit.key], plan.wanted[unit.key], unit)
        progress(len(units), total)

    _run(left, executor, jobs, keep)
    if absent := total - len(units) - len(problems):
        raise CompileError(f"packs.build executor: {absent} of {total} kernels were not returned. Did its workers exit?")
    if problems:
        raise CompileError(f"{len(problems)} of {total} kernels do not compile; the first: {problems[0]}")
    return units, len(left)


def _run(
    left: list[work.CompileJob], executor: Executor | None, jobs: int | None, keep: Callable[[work.CompiledUnit], None]
) -> None:
    """Compile kernels, and pass on each when it is finished."""
    if executor is None and left and importlib.util.find_spec("tvm") is None:
        raise CompileError(f"building a pack requires the compiler, which is not installed: {installing.command('compiler')}.")
    if executor is None and (jobs == 1 or len(left) <= _ALONE):
        for job in left:
            for unit in apart(functools.partial(work.compile_units, [job])):
                keep(unit)
        return
    pieces = [left[at : at + _TOGETHER] for at in range(0, len(left), _TOGETHER)]
    with contextlib.ExitStack() as stack:
        if executor is None:
            executor = stack.enter_context(Processes(min(jobs or _processors(), len(pieces))))
        with _uninterrupted():
            waiting = {_submit(executor, piece) for piece in pieces}
        try:
            for future in as_completed(tuple(waiting)):
                for unit in _result(future):
                    keep(unit)
                waiting.discard(future)  # what an interrupt comes in the middle of is kept once more, and counted as what it is
        except KeyboardInterrupt:
            _drain(waiting, keep)
            raise
        finally:
            for future in waiting:
                future.cancel()


def _submit(executor: Executor, piece: list[work.CompileJob]) -> Future[list[work.CompiledUnit]]:
    try:
        return executor.submit(work.compile_units, piece)
    except Exception as error:
        raise _failed(error) from error


def _result(future: Future[list[work.CompiledUnit]]) -> list[work.CompiledUnit]:
    try:
        return future.result()
    except Exception as error:
        raise _failed(error) from error


def _failed(error: Exception) -> CompileError:
    if isinstance(error, CompileError):  # from this package's own processes
        return CompileError(
            f"{error}. The system may have killed it for lack of memory. The compiled kernels are kept: build again."
        )
    if isinstance(error, BrokenProcessPool):
        return CompileError(
            "a process that compiled kernels has exited. The system may have killed it for lack of memory, or your main program "
            'is not under `if __name__ == "__main__":`, as new processes require. The compiled kernels are kept: build again.'
        )
    return CompileError(f"packs.build executor failed: {type(error).__name__}: {error}. The compiled kernels are kept.")


def _drain(waiting: set[Future[list[work.CompiledUnit]]], keep: Callable[[work.CompiledUnit], None]) -> None:
    """Keep the kernels that are being compiled now, and start no more. A second interrupt stops this, too."""
    running = [future for future in waiting if not future.cancel()]
    for future in running:
        with contextlib.suppress(Exception):
            for unit in future.result():
                keep(unit)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes that are started inside ignore Ctrl-C, which this process handles."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield  # only the main thread may change the handler, and a handler that a C program set could not be restored
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _keep(store: stores.DiskStore, name: str, wanted: _Wanted, unit: work.CompiledUnit) -> None:
    try:
        with store.staging(name) as folder:
            built = folder / f"unit{_suffix(wanted.machine)}"
            built.write_bytes(unit.content)
            store.add(name, _manifest(wanted, unit.key), built)
    except stores.Untrusted:
        pass  # a warning was already issued
    except OSError as error:
        stores.warn_once(
            str(store.root),
            f"tvmdml: kernels cannot be kept in {store.root} ({error}); an interrupted build starts from the beginning.",
        )


def _manifest(wanted: _Wanted, key: bytes) -> dict[str, object]:
    return {**stamps.manifest(wanted.kernel, wanted.machine), "for a pack": key.hex()}


def _suffix(machine: Target) -> str:
    return ".o" if machine.joins else machine.suffixes[0]


# -- Writing ------------------------------------------------------------------------------------------------------


def _assemble(plan: BuildPlan, units: dict[bytes, bytes], most: int | None = None, level: int = 9) -> Contents:
    """The contents of the pack; ``most`` limits the kernels of a part, in which those are together that are alike."""
    groups: dict[tuple[str, str, str], list[bytes]] = defaultdict(list)
    for key in sorted(units):
        kernel, machine, _ = plan.wanted[key]
        own = "" if machine.joins else key.hex()
        groups[machine.code, kernel.module, own].append(key)
    joined, kernels = [], []
    for (code, module, _), keys in sorted(groups.items()):
        if most is not None:
            keys = sorted(keys, key=lambda key: repr(identity(plan.wanted[key].kernel)))
        for at in range(0, len(keys), most or len(keys)):
            members = {key: units[key] for key in keys[at : at + (most or len(keys))]}
            joined.append((plan.machines[code][1], members))
            for key in members:
                kernel = plan.wanted[key].kernel
                kernels.append(records.KernelRecord(module, kernel.name, kernel.parameters, code, len(joined) - 1))
    return Contents(_head(plan), _Parts(joined, level), kernels, list(plan.operations.values()))


class _Parts(Sequence[Part]):
    """The parts of a pack, each joined from its units on demand: at most one library is in memory at a time."""

    def __init__(self, members: list[tuple[Target, dict[bytes, bytes]]], level: int) -> None:
        self._members, self._level = members, level

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Part]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: Any) -> Any:
        machine, units = self._members[number]
        if machine.joins:
            return Part(".so", machine.join({symbol_of(key): unit for key, unit in units.items()}), self._level)
        return Part(machine.suffixes[0], next(iter(units.values())), self._level)


def _head(plan: BuildPlan) -> dict[str, Any]:
    return {
        "producer": {
            "tvmdml": tvmdml.__version__,
            "apache-tvm": imports.version("apache-tvm"),
            "apache-tvm-ffi": imports.version("apache-tvm-ffi"),
        },
        "targets": {code: machine.name for code, (_, machine) in plan.machines.items()},
        "sources": {
            f"{machine.kind} {module}": stamp
            for kernel, machine, _ in plan.wanted.values()
            for module, stamp in stamps.sources(kernel, machine).items()
        },
        "knobs": plan.knobs,
        "logs": plan.logs,
    }
