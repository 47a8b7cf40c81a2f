"""Verifying a pack: every record is checked and compared with the installed schedules, and every kernel is run and compared.

No kernel is run before all records were found right. Then every kernel that this machine can run is run on random input, with guard
zones around its buffers, and its output is compared with the operator's reference. The code runs in this process.
"""

from __future__ import annotations

import functools
import itertools
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tvmdml import targets
from tvmdml.errors import InvalidArgument, PackError, TvmdmlError, Unsupported, message
from tvmdml.graph.stored import answers
from tvmdml.graph.stored.loading import in_pack, is_open, open_in_pack
from tvmdml.graph.stored.open_saved import drawn
from tvmdml.graph.stored.saving import reading
from tvmdml.kernels.kernel import Kernel as Decided
from tvmdml.library import lines, signing
from tvmdml.library.records import GraphRecord, KernelRecord, LaunchRecord, OperationRecord, launch_of, operation_key
from tvmdml.library.scheduling import kernel_for
from tvmdml.library.shelf import LoadedPack
from tvmdml.operators import Operator, _shared
from tvmdml.operators._contract import Shared
from tvmdml.operators._trial import OperatorTrial, any_values
from tvmdml.packs import look
from tvmdml.targets import Launch as Prepared
from tvmdml.targets import Target
from tvmdml.tensors import TensorDesc
from tvmdml.tensors.arrays.device_array import launched
from tvmdml.tensors.arrays.guarded import GuardedTensor

MAX_BYTES = 256 << 20
"""The limit for an operation's tensors and temporaries together. Larger operations are not run."""
_SEEDS = 1 << 64
_DRAWN = 4
"""How many sizes of a graph with open ones are run."""

Progress = Callable[[int, int], object]
"""Called with the number of operations that have been run, and the number of all to run."""


# -- The report ---------------------------------------------------------------------------------------------------


class Finding(NamedTuple):
    """A remark about an operation or kernel."""

    about: str
    said: str


class PackReport(NamedTuple):
    """The result of a check."""

    path: Path
    seed: int
    """The seed of the random input. The same seed repeats the same run."""
    operations: int
    """The number of operations in the pack."""
    ran: int
    """The number of operations that were run."""
    launches: int
    """The number of launches: an operation may be launched differently on more threads."""
    not_run: tuple[Finding, ...]
    """Everything that was not run, with the reason."""
    failed: tuple[Finding, ...]
    """Everything that is wrong."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong, and something was run, unless the pack is empty."""
        return not self.failed and (self.ran > 0 or not self.operations)

    def text(self) -> str:
        """The report as text."""
        ran = f"{self.ran} of {self.operations} operations run in {self.launches} ways"
        shown = [f"{self.path}: {ran}, on random input of seed {self.seed}"]
        shown += [f"not run, {count}: {why}" for why, count in Counter(finding.said for finding in self.not_run).items()]
        shown += [f"WRONG: {finding.about}: {finding.said}" for finding in self.failed]
        nothing = "nothing wrong" if self.ok else "nothing was run: only the checksums and records are known to be right"
        return "\n".join([*shown, f"{len(self.failed)} wrong" if self.failed else nothing])


# -- The check ----------------------------------------------------------------------------------------------------


def verify(
    path: str | os.PathLike[str],
    *,
    key: str | os.PathLike[str] | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    seed: int | None = None,
) -> PackReport:
    """Check a pack: all of its records and parts, and the kernels that this machine can run.

    Args:
        path: the pack.
        key: a public key that must have signed the pack.
        device: run only on this target: a name in the pack (``cpu:x86-64-v3``), or a device of this machine (``vulkan:0``).
        progress: called after each operation.
        seed: the seed of the random input, from an earlier report; by default a new one each time.

    Returns:
        The report. If a record is wrong, nothing was run.

    Raises:
        PackError: the pack is damaged or not trusted, or has a signature that is not valid.
        InvalidArgument, DeviceError: there is no such device.
    """
    seed = int.from_bytes(os.urandom(8), "little") if seed is None else seed
    if not 0 <= seed < _SEEDS:
        raise InvalidArgument(message("verify seed", seed, f"0 to {_SEEDS - 1}"))
    loaded = LoadedPack(path)
    try:
        if loaded.pack.signatures:
            signing.signers(loaded.pack)
        if key is not None and not signing.is_signed_by(loaded.pack, key):
            raise PackError(f"{path}: this pack is not signed by {key}. Do not load it unless you know why.")
        check = _Check(loaded, seed, _Machines(loaded, device))
        check.read()
        if not check.failed:
            check.run(progress or (lambda done, total: None))
        return check.report()
    finally:
        loaded.close()


class _Machines:
    """The targets of a pack that run here, and the reasons why the others do not."""

    def __init__(self, loaded: LoadedPack, device: str | None) -> None:
        self._names: Mapping[str, str] = loaded.pack.head["targets"]
        self._loaded = loaded
        self.here: dict[str, Target] = {}
        """By code."""
        self._why: dict[str, str] = {}
        self._deciding: dict[str, Target | None] = {}
        if device is None:
            for kind in sorted({_kind(code) for code in self._names}):
                codes = [code for code in self._names if _kind(code) == kind]
                try:
                    self._add(targets.resolve(kind), codes)
                except TvmdmlError as error:
                    self._why.update(dict.fromkeys(codes, str(error)))
        elif device in self._names.values():
            self._add(targets.resolve(device.partition(":")[0]), [code for code, name in self._names.items() if name == device])
        else:
            machine = targets.resolve(device, "device")
            self._add(machine, [code for code in self._names if _kind(code) == machine.kind])

    def _add(self, machine: Target, codes: Sequence[str]) -> None:
        machine.home.wait()  # raises if the device is not there
        self.here.update((relative.code, self._loaded.deciding(relative)) for relative in machine.relatives(codes))
        self._why.update((code, f"{machine} does not run code for {self._names[code]}") for code in codes if code not in self.here)

    def why_not(self, code: str) -> str:
        """Why the kernels for a target are not run."""
        return self._why.get(code, "another target was requested")

    def deciding(self, code: str) -> Target | None:
        """A target that the schedules are asked about. Its device may be absent, unless only the device can resolve the name."""
        if code not in self._deciding:
            self._deciding[code] = self.here.get(code) or self._elsewhere(code)
        return self._deciding[code]

    def _elsewhere(self, code: str) -> Target | None:
        try:
            found = [one for one in targets.elsewhere(self._names[code]) if one.code == code]
        except TvmdmlError:
            return None
        return self._loaded.deciding(found[0]) if found else None


def _kind(code: str) -> str:
    return code.replace(":", " ").partition(" ")[0]


class _Ready(NamedTuple):
    """An operation whose records were found right."""

    about: str
    operation: OperationRecord
    desc: Operator
    shared: Shared
    machine: Target
    kernels: tuple[tuple[int, Decided], ...]
    """The launches to run, each different one once, with its number of threads."""


class _Check:
    def __init__(self, loaded: LoadedPack, seed: int, machines: _Machines) -> None:
        self.failed: list[Finding] = []
        self._not_run: list[Finding] = []
        self._loaded, self._pack, self._seed, self._machines = loaded, loaded.pack, seed, machines
        self._ready: list[_Ready] = []
        self._operations = self._ran = self._launches = 0
        self._drew = False
        """Whether sizes of a graph were drawn."""

    def report(self) -> PackReport:
        """The report so far."""
        found = (self._operations, self._ran, self._launches)
        return PackReport(self._pack.path, self._seed, *found, tuple(self._not_run), tuple(self.failed))

    # -- Reading --------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Check every checksum and record, references between records, and all of them against the schedules."""
        kernels = {kernel.key: kernel for kernel in self._pack.kernels()}
        operations = self._pack.operations()
        self._operations = len(operations)
        self._read_parts(kernels)
        for operation in operations:
            about = f"{look.shown(operation)} for {look.named(self._pack, operation.target)}"
            try:
                self._read_operation(about, operation, kernels)
            except PackError as error:
                self.failed.append(Finding(about, str(error)))
        for graph in self._pack.graphs():
            try:
                self._read_graph(graph)
            except TvmdmlError as error:
                self.failed.append(Finding(f"graph {graph.name} for {graph.kind}", str(error)))
        drawn_too = [one.operation for one in self._ready]
        launched_keys = {key for operation in (*operations, *drawn_too) for launch in operation.launches for key in launch.kernels}
        why = "no operation of the pack launches the kernel" + (", and no size that was drawn" if self._drew else "")
        for key, kernel in kernels.items():
            if key not in launched_keys:
                self._not_run.append(Finding(self._called(kernel), why))

    def _read_parts(self, kernels: Mapping[bytes, KernelRecord]) -> None:
        sharing: dict[int, list[KernelRecord]] = defaultdict(list)
        for kernel in kernels.values():
            sharing[kernel.part].append(kernel)
        for number in range(self._pack.part_count):
            self._read_part(number, sharing[number])

    def _read_part(self, number: int, kernels: Sequence[KernelRecord]) -> None:
        content = self._pack.content(number)
        for kernel in kernels:
            if problem := self._misplaced(kernel, content):
                self.failed.append(Finding(self._called(kernel), problem))

    def _misplaced(self, kernel: KernelRecord, content: bytes) -> str:
        """Why a part cannot contain the code of a kernel."""
        if kernel.target not in self._pack.head["targets"]:
            return "its target is not one of the pack's targets"
        machine = self._machines.deciding(kernel.target)
        if machine is None:
            return ""
        suffix = self._pack.part(kernel.part).suffix
        if suffix not in machine.suffixes:
            return f"its code is a part of type {suffix!r}, should be {' or '.join(machine.suffixes)}"
        if machine.joins and kernel.symbol.encode() not in content:
            return f"its library has no {kernel.symbol}"
        return ""

    def _read_operation(self, about: str, operation: OperationRecord, kernels: Mapping[bytes, KernelRecord]) -> None:
        if operation.target not in self._pack.head["targets"]:
            raise PackError("its target is not one of the pack's targets")
        if not operation.launches:
            raise PackError("it has no launches")
        for launch in operation.launches:
            for key in launch.kernels:
                if (kernel := kernels.get(key)) is None:
                    raise PackError(f"on {launch.threads} threads: its kernel {key.hex()} is not in the pack")
                if kernel.target != operation.target:
                    raise PackError(f"on {launch.threads} threads: its kernel is for {look.named(self._pack, kernel.target)}")
        machine = self._machines.deciding(operation.target)
        if machine is None:
            self._not_run.append(Finding(about, self._machines.why_not(operation.target)))
            return
        try:
            desc = lines.read(operation.line, "the record")
            shared = _shared.read(desc, operation.in_place, "the record")
            decided = list(_decided(machine, desc, shared))
        except Exception as error:  # the schedules run on values from a file, which they may not expect
            raise PackError(f"the schedules refuse it: {type(error).__name__}: {error}") from error
        if not all(self._loaded.fits(one, machine) for _, kernel in decided for one in kernel.every):
            made = self._pack.head["producer"].get("tvmdml", "another version")
            why = f"it was built from other schedules than those installed (tvmdml {made}), whose kernels may take other arguments"
            self._not_run.append(Finding(about, why))
            return
        _compare(machine, operation.launches, decided)
        if operation.target in self._machines.here:
            distinct = {launch_of(machine.code, 0, kernel): (threads, kernel) for threads, kernel in reversed(decided)}
            self._ready.append(_Ready(about, operation, desc, shared, machine, tuple(distinct.values())))
        else:
            self._not_run.append(Finding(about, self._machines.why_not(operation.target)))

    def _read_graph(self, graph: GraphRecord) -> None:
        """Check a graph: its descriptors, that each array of a launch has room, and that some target has each launch.

        Raises:
            ModelError, PackError: it is wrong.
        """
        codes = [code for code in self._pack.head["targets"] if _kind(code) == graph.kind]
        machine = next(filter(None, map(self._machines.deciding, codes)), None)
        if machine is None:
            why = next(map(self._machines.why_not, codes), "the pack has no target of its kind")
            self._not_run.append(Finding(f"graph {graph.name} for {graph.kind}", why))
            return
        if is_open(self._pack, graph):
            self._read_open(graph, machine)
            return
        plan = in_pack(self._pack, graph, machine).plan
        with reading(f"{self._pack.shown}: {graph.name}"):
            for called in plan.calls:
                group = plan.groups[called.launching.group]
                if not any(self._pack.operation(operation_key(code, group.line, group.in_place)) for code in codes):
                    raise self._pack.damaged(f"it lacks an operation of its graph {graph.name!r}: {called.launching.title}")

    def _read_open(self, graph: GraphRecord, machine: Target) -> None:
        """Check a graph with open sizes for some of them, drawn from its ranges: what they launch is run with the operations.

        Raises:
            ModelError, PackError: it is wrong, or lacks a kernel.
        """
        self._drew = True
        opened = open_in_pack(self._pack, graph, machine, {})
        found = opened.plan
        with reading(f"{self._pack.shown}: {graph.name}"):
            every = [] if opened.answers is None else list(answers.read(opened.answers, len(opened.described["plan"]["calls"])))
        rng = np.random.default_rng([self._seed, zlib.crc32(graph.name.encode())])
        several = list(drawn(found.limits, _DRAWN, rng))
        for values in rng.permutation(np.array(several).reshape(len(several), -1))[:_DRAWN].tolist():
            if not found.allows(values):  # another recording of the model holds for them
                continue
            sizes = ", ".join(f"{one.name}={value}" for one, value in zip(found.limits, values, strict=True))
            with reading(f"{self._pack.shown}: {graph.name}, {sizes}"):
                plan = found.at(values)
                groups = sorted({called.launching.group for called in plan.calls})
            for code in (code for code in self._machines.here if _kind(code) == graph.kind):
                for i in groups:
                    own = [one for one in every if (one.group, one.target) == (i, code)]
                    about = f"{plan.groups[i].title} of graph {graph.name} for {sizes}"
                    answered = [(one.threads, launch) for one in own if (launch := one.at(values)) is not None]
                    self._read_launch(about, *plan.groups[i].call, self._machines.here[code], answered)

    def _read_launch(
        self, about: str, desc: Operator, shared: Shared, machine: Target, answered: Sequence[tuple[int, LaunchRecord]]
    ) -> None:
        """Note a launch of a graph with open sizes, to be run as an operation is.

        Raises:
            PackError: the pack lacks its kernel, or has another answer of the schedules for C, on so many threads.
        """
        decided = list(_decided(machine, desc, shared))
        for threads, launch in answered:
            (*_, kernel) = (kernel for least, kernel in decided if least <= threads or kernel is decided[0][1])
            if _without_packers(launch) != _without_packers(launch_of(machine.code, 0, kernel)):
                raise self._pack.damaged(f"its launch of {about}{_on(threads)} is another one than the schedules choose")
        for threads, kernel in decided:
            if any(self._loaded.find(one, machine) is None for one in kernel.every):
                raise self._pack.damaged(f"it lacks a kernel of {about}{_on(threads)}")
        launches = tuple(launch_of(machine.code, threads, kernel) for threads, kernel in decided)
        operation = OperationRecord(lines.of(desc), _shared.write(desc, shared), machine.code, launches)
        if all(one.operation.key != operation.key for one in self._ready):
            self._operations += 1
            distinct = {launch_of(machine.code, 0, kernel): (threads, kernel) for threads, kernel in reversed(decided)}
            self._ready.append(_Ready(about, operation, desc, shared, machine, tuple(distinct.values())))

    def _called(self, kernel: KernelRecord) -> str:
        return f"kernel {kernel.operator}/{kernel.kernel} for {look.named(self._pack, kernel.target)}"

    # -- Running --------------------------------------------------------------------------------------------------

    def run(self, progress: Progress) -> None:
        """Run every operation that can be run here, with each of its launches."""
        for done, one in enumerate(self._ready):
            progress(done, len(self._ready))
            if why := _too_much(one):
                self._not_run.append(Finding(one.about, why))
                continue
            self._ran += 1
            # The same input for an operation, whichever others are run, and on every target.
            rng = np.random.default_rng([self._seed, *operation_key("", one.operation.line, one.operation.in_place)])
            trial = OperatorTrial(one.desc, one.shared, functools.partial(any_values, rng), flushed=one.machine.flushed())
            for threads, kernel in one.kernels:
                self._launches += 1
                try:
                    problem = self._launch(one.machine, kernel, trial)
                except Exception as error:  # the code of a kernel may fail in any way
                    problem = f"{type(error).__name__}: {error}"
                if problem:
                    self.failed.append(Finding(one.about, f"{kernel.name}{_on(threads)}: {problem}"))
        progress(len(self._ready), len(self._ready))

    def _launch(self, machine: Target, kernel: Decided, trial: OperatorTrial) -> str:
        launch, *packers = (self._prepared(machine, one) for one in kernel.every)
        places = trial.places()
        with machine.holding([place.memory for place in places.values()]) as there:
            arrays = {name: there(place.array) for name, place in places.items()}
            packed = {}
            for owned, packer in zip(kernel.owned, packers, strict=True):
                buffer = np.zeros(owned.elements, owned.dtype)
                place = GuardedTensor(TensorDesc(buffer.dtype, buffer.shape)).holding(buffer)
                packer(*(arrays[name] for name in owned.inputs), place.array)
                if not place.is_guarded():
                    return f"the kernel that packs {owned.name} wrote to memory outside its buffer"
                packed[owned.name] = place.array
            arrays |= packed
            launched(launch, list(arrays.values()))
            machine.wait()
        return trial.problem(places)

    def _prepared(self, machine: Target, kernel: Decided) -> Prepared:
        launcher = self._loaded.find(kernel, machine)
        assert launcher is not None  # its record was found, and its schedules are those installed
        return machine.launch(launcher, kernel.scalars, kernel.temporaries)


def _decided(machine: Target, desc: Operator, shared: Shared) -> Iterator[tuple[int, Decided]]:
    """The schedules' kernels for each number of threads, without repeats of the one before."""
    before: LaunchRecord | None = None
    for threads, variant in machine.variants():
        kernel = kernel_for(desc.canonical(), variant, shared)
        if (launch := launch_of(machine.code, 0, kernel)) != before:
            yield threads, kernel
        before = launch


def _on(threads: int) -> str:
    return f" on {threads} threads" if threads else ""


def _compare(machine: Target, recorded: Sequence[LaunchRecord], decided: Sequence[tuple[int, Decided]]) -> None:
    """Check that the launches of a record are those that the schedules choose."""
    expected = [launch_of(machine.code, threads, kernel) for threads, kernel in decided]
    for one, other in itertools.zip_longest(recorded, expected):
        if one != other:
            raise PackError(f"its launch is {_said(one)}, and the schedules choose {_said(other)}")


def _without_packers(launch: LaunchRecord) -> LaunchRecord:
    """A launch without the integers of what packs its inputs: they may have those of other sizes, which pack the same."""
    return launch._replace(owned=tuple(one._replace(scalars=(), temporaries=()) for one in launch.owned))


def _said(launch: LaunchRecord | None) -> str:
    if launch is None:
        return "missing"
    packed = f" and packed {list(launch.owned)}" if launch.owned else ""
    return f"kernel {launch.kernel.hex()}{_on(launch.threads)} with {list(launch.scalars)} and {list(launch.temporaries)}{packed}"


def _too_much(one: _Ready) -> str:
    """Why an operation that could be run here is not run."""
    try:
        kernel_for(one.desc.canonical(), one.machine, one.shared)
    except Unsupported as error:  # a tensor is larger than the device lets a kernel see
        return str(error)
    tensors = sum(
        max(tensor.span, tensor.element_count) * tensor.data_type.bits // 8
        for _, tensor in one.desc.tensors()
        if tensor is not None
    )
    besides = max(
        sum(count * np.dtype(dtype).itemsize for dtype, count in kernel.temporaries) + sum(packed.nbytes for packed in kernel.owned)
        for _, kernel in one.kernels
    )
    return f"it takes more than {MAX_BYTES >> 20} MiB" if tensors + besides > MAX_BYTES else ""
