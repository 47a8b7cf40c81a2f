"""From a case to its result: make the task, prepare all contenders, check their outputs, and time them."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tvmdml import compiler, targets
from tvmdml.library import finding
from tvmdml.operators._contract import Role
from tvmdml.proof.bench import blas, checks, inputs, limits, logs_in_force, measure, peers, venues
from tvmdml.proof.bench.cases import Case
from tvmdml.proof.bench.measure import Contender, RacePace
from tvmdml.proof.bench.peers import Attempt
from tvmdml.proof.bench.results import BenchRun, CaseResult, ContenderResult
from tvmdml.proof.bench.task import Task, kind
from tvmdml.proof.bench.venues import Venue
from tvmdml.system import imports
from tvmdml.targets import Target
from tvmdml.targets._device import DeviceTarget
from tvmdml.targets.cpu.thread_count import thread_count
from tvmdml.tensors.arrays.device_array import DeviceArray

OURS = "tvmdml"


class Options(NamedTuple):
    """How to measure."""

    pace: RacePace
    thorough: bool = False
    """Whether to compare with every library."""
    threads: int | None = None
    """The most threads that every contender may use."""
    size: int | None = None
    """Limit dimensions to this size."""
    target: Target | None = None
    """Where tvmdml runs; ``None`` for the processor."""


def run(cases: Sequence[Case], into: BenchRun, options: Options, done: Callable[[CaseResult], None] = lambda result: None) -> None:
    """Measure the cases one after the other; ``done`` is called with each result."""
    for case in cases:
        result = measured(case, options)
        into.add(result)
        done(result)


def measured(case: Case, options: Options) -> CaseResult:
    """The result of one case."""
    if options.size is not None:
        case = case.at_most(options.size)
    venue = venues.of(options.target)
    venue.open()
    try:
        # NumPy's warnings of invalid numbers would be printed, and take time.
        with np.errstate(all="ignore"), limited(case.threads or options.threads) as count:
            return _Race(case, options, venue, count).result()
    finally:
        venue.close()


class _Race:
    """A case that is being measured."""

    def __init__(self, case: Case, options: Options, venue: Venue, threads: int) -> None:
        self._case, self._options, self._venue, self._threads = case, options, venue, threads
        self._task = Task(case.work)
        self._contenders: list[Contender] = []
        self._entries: list[ContenderResult] = []
        self._failures: list[str] = []
        self._compile_seconds, self._compiled = 0.0, 0

    def result(self) -> CaseResult:
        """Measure it."""
        case = self._case
        self._enter_ours("ours", self._task)
        if not self._failures:  # a wrong kernel is not compared with others
            if case.baseline is None:
                self._enter_peers()
            else:
                self._enter_ours("base", Task(case.baseline))
        limit = self._race() if not self._failures else None
        return CaseResult(
            name=case.name,
            row=case.row,
            point=case.point,
            work=case.work.as_json(),
            goal=case.goal if self._venue.goals else None,
            against_base=case.baseline is not None,
            threads=self._threads,
            entries=self._entries,
            failures=self._failures,
            traffic=self._task.traffic._asdict(),
            limit=limit,
            compile_seconds=self._compile_seconds,
            compiled=self._compiled,
            share=case.share if self._venue.goals else None,
            limit_of=self._venue.limit_of(self._task.traffic),
            group=case.group.name if case.group else "",
            group_goal=case.group.goal if case.group and self._venue.goals else None,
            log=logs_in_force.used(self._task.desc.canonical(), case.work.shared(), self._options.target or targets.resolve("cpu")),
        )

    def _race(self) -> float | None:
        """Time all contenders, and the limit of memory; returns the limit."""
        traffic = self._task.traffic
        bounds = self._venue.limits(traffic, self._threads)
        timings = measure.race([*self._contenders, *bounds], self._options.pace, self._venue.clock(traffic))
        entered = [entry for entry in self._entries if not entry.problem]
        entered += [ContenderResult(bound.role, bound.library, bound.name, bound.threads) for bound in bounds]
        for entry, timing in zip(entered, timings, strict=True):
            entry.timing = timing
        self._entries += entered[len(self._contenders) :]
        timed = list(zip(bounds, timings[len(self._contenders) :], strict=True))
        return limits.seconds(timed, self._venue.limit_of(traffic))

    def _enter_ours(self, role: str, task: Task) -> None:
        entry = ContenderResult(role, OURS, task.work.door, self._threads)
        before, start = finding.compiled_count, time.perf_counter()
        try:
            attempt = ours(task, self._options.target)
        except Exception as error:  # a defect in one kernel must not stop the run: the row reports it
            self._fail(entry, f"{type(error).__name__}: {error}")
            return
        if compiled := finding.compiled_count - before:
            self._compiled += compiled
            self._compile_seconds += time.perf_counter() - start
        self._enter(entry, attempt, checks.ours(task, attempt.results()))

    def _enter_peers(self) -> None:
        case, every, task = self._case, self._threads, self._task.newest()
        for peer in peers.of(case.work, self._options.thorough, case.rivals, self._venue.peers):
            library = peers.LIBRARIES[peer.where][peer.library]
            counts = sorted({1, every}) if library.threaded else [1]
            for threads in counts:
                entry = ContenderResult("aside" if library.aside else "peer", peer.library, peer.name, threads, note=peer.note)
                try:
                    attempt = peer.make(task, threads)
                    attempt.prepare()
                    problem = checks.peer(task, attempt.results())
                except Exception as error:  # a library without the type, or an older version without the operator
                    entry.problem = f"cannot: {' '.join(str(error).split())[:200] or type(error).__name__}"
                    self._entries.append(entry)
                    continue
                self._enter(entry, attempt, problem)

    def _enter(self, entry: ContenderResult, attempt: Attempt, problem: str) -> None:
        if problem:
            self._fail(entry, problem)
            return
        self._entries.append(entry)
        who = (entry.role, entry.library, entry.name, entry.threads)
        self._contenders.append(Contender(*who, attempt.call, attempt.prepare, attempt.repeat, stream=attempt.stream))

    def _fail(self, entry: ContenderResult, problem: str) -> None:
        entry.problem = problem
        self._entries.append(entry)
        self._failures.append(f"{entry.library} {entry.name}: {problem}")


class Room(NamedTuple):
    """The arrays of a task, in the target's memory."""

    inputs: list[Any]
    """``None`` for one that is absent."""
    outputs: list[Any]
    """In place, one of them is an input."""


def room(task: Task, target: Target) -> Room:
    """Allocate the inputs and the outputs."""
    sources: list[Any] = [array if array is None else target.place(array) for array in task.inputs]
    outputs: list[Any] = []
    present = [place for place, array in enumerate(sources) if array is not None]
    same = {result: present[source] for source, result in task.desc.positions(task.work.shared())}
    for place, array in enumerate(task.outputs()):
        if place in same:
            array[...] = task.inputs[same[place]]
        outputs.append(target.place(array))
        if place in same:
            sources[same[place]] = outputs[place]
    return Room(sources, outputs)


def ours(task: Task, target: Target | None = None, where: Room | None = None) -> Attempt:
    """Prepare tvmdml for a task, by the way of calling that its work names; compiles the kernel.

    The ``function`` way allocates its own outputs; the others write to those of ``where``, or to new ones.
    """
    return _DOORS[task.work.door](task, target or targets.resolve("cpu"), where)


def _bound(task: Task, target: Target, where: Room | None) -> Attempt:
    sources, outputs = where or room(task, target)
    return _writing(compiler.compile(task.desc, target).bind(*_in_order(task, sources, outputs)), outputs, target)


def _operator(task: Task, target: Target, where: Room | None) -> Attempt:
    sources, outputs = where or room(task, target)
    return _writing(partial(compiler.compile(task.desc, target), *_in_order(task, sources, outputs)), outputs, target)


def _initialized(task: Task, target: Target, where: Room | None) -> Attempt:
    desc: Any = task.desc
    sources, outputs = where or room(task, target)
    given = dict(zip((name for name, _ in desc.tensors()), _in_order(task, sources, outputs), strict=True))
    weights = {name: given[name] for name in kind(task.work.operator).weights}
    owned = {name: dataclasses.replace(getattr(desc, name), flags="OWNED_BY_DML") for name in weights}
    operator = compiler.compile(dataclasses.replace(desc, **owned), target)
    operator.initialize(**weights)
    return _writing(operator.bind(*(None if name in weights else one for name, one in given.items())), outputs, target)


def _in_order(task: Task, sources: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """All tensors as the descriptor orders them: what follows an operator has inputs behind its output."""
    given, present = iter(sources), iter(outputs)
    results = {name: None if tensor is None else next(present) for name, tensor in task.desc.tensors(Role.OUTPUT)}
    return [results[name] if name in results else next(given) for name, _ in task.desc.tensors()]


def _function(task: Task, target: Target, where: Room | None) -> Attempt:
    placed = [array if array is None else venues.of(target).placed(array) for array in task.given]
    call: Any = task.kind.function(task, placed)
    if isinstance(target, DeviceTarget) and not any(isinstance(array, DeviceArray) for array in placed):
        # NumPy's arrays are copied to the device and back.
        call = partial(call, device=target.name)
    call()  # makes the plan, and compiles

    def results() -> tuple[inputs.NumpyArray, ...]:
        found = call()
        return tuple(map(_array, found if isinstance(found, tuple) else (found,)))

    return Attempt(call, results)


_DOORS = {"bound": _bound, "initialized": _initialized, "operator": _operator, "function": _function}


def _writing(call: Callable[[], object], outputs: Sequence[Any], target: Target) -> Attempt:
    def results() -> tuple[inputs.NumpyArray, ...]:
        call()
        return tuple(map(_array, outputs))

    if not isinstance(target, DeviceTarget):
        return Attempt(call, results)

    def repeat(times: int) -> None:
        for _ in range(times):
            call()
        target.wait()

    return Attempt(call, results, repeat=repeat)


def _array(array: Any) -> inputs.NumpyArray:
    return array.numpy() if isinstance(array, DeviceArray) else array


# -- Around a run -------------------------------------------------------------------------------------------------


@contextmanager
def fresh_kernels() -> Iterator[None]:
    """Compile kernels again, in a separate cache folder: the compile time is part of the report."""
    kept = tempfile.TemporaryDirectory(prefix="tvmdml-bench-", ignore_cleanup_errors=True)  # a kernel may be on its way into it
    with kept as folder, _variable("TVMDML_CACHE_DIR", folder):
        imports.tvm()  # loading the compiler does not count as compiling
        yield


@contextmanager
def limited(count: int | None) -> Iterator[int]:
    """Limit all libraries to this many threads, ``None`` for all; yields the resulting number."""
    if count is None:
        yield thread_count()
        return
    with _variable("TVMDML_NUM_THREADS", str(count)), blas.limited(count):
        yield count


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
