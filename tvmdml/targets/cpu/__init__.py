"""The CPU: LLVM compiles kernels, which are loaded as shared libraries and run on the process's thread pool."""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from tvmdml.errors import CompileError, InvalidArgument, message
from tvmdml.system import imports, not_collected
from tvmdml.targets import Build, Launch, Launcher, Machine, ReadySequence, SequenceStep, Target
from tvmdml.targets.cpu import caches, elf, host, link, threads
from tvmdml.targets.cpu.files import in_memory, load_from_memory, load_library
from tvmdml.targets.cpu.thread_count import thread_count

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from tvmdml.system.disk.stores import Artifact

_SYMBOL = "main"
PACKED_THREADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""A schedule may depend on the number of threads: a pack has kernels for these numbers, and the actual number is rounded down."""
# Passes that take up to half of the compile time, and change nothing in kernels written like ours.
_NOT_NEEDED = [
    *("s_tir.CompactBufferAllocation", "s_tir.HoistIfThenElse", "s_tir.RenormalizeSplitPattern", "s_tir.StmtSimplify"),
    *("s_tir.InjectPermutedLayout", "s_tir.InjectVirtualThread", "tirx.RemoveNoOp"),
    # For blocks, and what is asked for by annotations: schedules write loops.
    *("s_tir.PlanAndUpdateBufferAllocationLocation", "s_tir.LowerInitBlock", "s_tir.LowerMatchBuffer", "s_tir.LowerAutoCopy"),
    *("s_tir.InjectDoubleBuffer", "s_tir.InjectSoftwarePipeline", "s_tir.LoopPartition", "s_tir.AnnotateIrregularLoop"),
    # For threads and memory of GPUs.
    *("s_tir.LiftThreadBinding", "s_tir.UnifyThreadBinding", "s_tir.LowerCrossThreadReduction", "s_tir.LowerThreadAllreduce"),
    *("s_tir.ThreadSync", "s_tir.InferFragment", "s_tir.MergeSharedMemoryAllocations", "s_tir.TransformMmaBufferLayout"),
    *("s_tir.ManifestSharedMemoryLocalStage", "s_tir.LowerVtcmAlloc", "s_tir.VerifyVTCMLimit", "tirx.VerifyMemory"),
    # Sizes have 64 bits: few integers can be shown to need less, and LLVM finds those.
    "tirx.NarrowDataType",
]
_WORKSPACE = b"__TVMBackendAllocWorkspace"
# The name of each form of code in `source`, and TVM's name of it.
_SOURCES = {"llvm": "ll", "asm": "asm"}


class CpuTarget(Target):
    """A processor level, such as ``cpu:x86-64-v4+gfni``."""

    kind: ClassVar[str] = "cpu"
    schedules: ClassVar[str] = "cpu"
    joins: ClassVar[bool] = True

    def __init__(self, processor: host.Processor, threads: int = 0) -> None:
        super().__init__(f"cpu:{processor.name}")
        self.processor = processor
        self._threads = threads

    @property
    def suffixes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Shared libraries, and objects if there is a loader for them."""
        return (".so", ".o") if link.object_loader() else (".so",)

    @classmethod
    def parse(cls, text: str) -> CpuTarget:
        """``""`` and ``"0"`` are this processor; other texts are a level with features."""
        return cls(host.parse("" if text == "0" else text))

    @classmethod
    def devices(cls) -> list[dict[str, str]]:
        """One row: the processor, its threads, and how compiled kernels are loaded."""
        if link.linker():
            how = f"links with {link.linker()}"
        elif link.object_loader():
            how = "loads objects with tvm_ffi_orcjit"
        else:
            how = "no linker: every process compiles its kernels again (install binutils, or tvmdml[orcjit])"
        return [
            {
                "target": cls.parse("").name,
                "device": f"{host.model_name()}, {thread_count()} threads",
                "state": f"ready; {how}; {threads.state()}",
            }
        ]

    def tasks(self) -> int:
        """One task for each thread."""
        if self._threads:
            return self._threads
        count = thread_count()
        if (extension := threads.native()) is not None:
            extension.set_limit(count)
        return count

    @property
    def caches(self) -> caches.Caches:
        """This machine's; for a pack fixed ones, so that every build of it makes the same decisions."""
        return caches.GENERIC if self._threads else caches.here()

    def machine(self) -> Machine:
        """This machine's processor, even if code is compiled for another level."""
        return Machine(self.name, host.processor_name(), self.tasks())

    def handover(self) -> int:
        """The thread pool in C starts a task in a microsecond, the one in Python in a hundred."""
        return 64 if threads.native() is None and not self._threads else 1

    @classmethod
    def elsewhere(cls, text: str) -> tuple[CpuTarget, ...]:
        """Any level, of this machine's processor family or another."""
        return (cls(host.parse(text, here=False)),)

    def variants(self) -> Iterator[tuple[int, Target]]:
        """The target with each number of threads for which a pack has kernels."""
        for count in PACKED_THREADS:
            variant = CpuTarget(self.processor, count)
            variant.knobs, variant.logs = self.knobs, self.logs
            yield count, variant

    def relatives(self, codes: Iterable[str]) -> Iterator[Target]:
        """The highest levels first. For these, schedules decide as they did when the pack was built."""
        count = max(known for known in PACKED_THREADS if known <= self.tasks())
        found = (host.known(code.removeprefix("cpu:")) for code in codes if code.startswith("cpu:"))
        usable = [processor for processor in found if processor is not None and self.processor.runs(processor)]
        for processor in sorted(usable, key=lambda processor: processor.rank, reverse=True):
            yield _relative(processor, count)

    def takes(self, name: str) -> bool:
        """Kernels for the same level, with this processor's features or some of them; those of lower levels have short vectors."""
        kind, _, rest = name.partition(":")
        other = host.known(rest) if kind == self.kind else None
        return other is not None and other.level == self.processor.level and self.processor.runs(other)

    def unit(self, function: PrimFunc, symbol: str) -> bytes:
        """An object file."""
        return _CpuBuild(self._compile(function, symbol)).object()

    def is_unit(self, content: bytes, symbol: str) -> bool:
        """Whether it is an object file with the function."""
        return content.startswith(b"\x7fELF") and f"__tvm_ffi_{symbol}".encode() in content

    def require_join(self) -> None:
        """A compiler for the pool."""
        from tvmdml.targets.cpu import bundle

        bundle.require(self.processor)

    def join(self, units: Mapping[str, bytes]) -> bytes:
        """A shared library, with the thread pool that its kernels need."""
        from tvmdml.targets.cpu import bundle

        return bundle.link(units, self.processor)

    def open(self, artifact: Artifact) -> Any:
        """Load a library of kernels."""
        problem = elf.problem(artifact.content, self.processor.machine)
        if problem:
            raise CompileError(f"{self.name}: a library of a pack cannot be loaded: {problem}.")
        try:
            return _opened(artifact.content)
        except Exception as error:  # any error that the system reports
            raise CompileError(f"{self.name}: a library of a pack cannot be loaded: {error}") from None

    def entry(self, opened: Any, symbol: str) -> Launcher:
        """A function of the library."""
        try:
            return _entry(opened, symbol)
        except AttributeError:
            raise CompileError(f"{self.name}: a library of a pack has no {symbol}, which its index lists.") from None

    def build(self, function: PrimFunc) -> Build:
        """Compile with LLVM."""
        return _CpuBuild(self._compile(function))

    def load(self, artifact: Artifact) -> Launcher:
        """Load a shared library, or an object if its loader is installed.

        Raises:
            CompileError: the system cannot load it.
        """
        is_elf = artifact.suffix == ".so" and artifact.content.startswith(b"\x7fELF")
        if is_elf and (problem := elf.problem(artifact.content, self.processor.machine)):
            raise CompileError(f"{self.name}: a stored kernel cannot be loaded: {problem}.")
        try:
            if artifact.suffix == ".o":
                orcjit = importlib.import_module("tvm_ffi_orcjit")
                with threads.everywhere():
                    module = orcjit.default_session().load_module(artifact.content)
                return _entry(_Library(module, threads.is_parallel(artifact.content)))
            return _entry(_opened(artifact.content))
        except (RuntimeError, AttributeError, OSError) as error:  # it is not a library, or has no kernel
            raise CompileError(f"{self.name}: a stored kernel cannot be loaded: {error}.") from error

    def launch(self, launcher: Launcher, scalars: Sequence[int], temporaries: Sequence[tuple[str, int]]) -> Launch:
        """With the C extension if it was built, else in Python."""
        if (extension := threads.connected()) is None:
            return super().launch(runtime_function(launcher), scalars, temporaries)
        if type(launcher) is not extension.Kernel:
            threads.joined()
        sizes = tuple(count * np.dtype(dtype).itemsize for dtype, count in temporaries)
        try:
            found: Launch = extension.Launch(launcher, tuple(scalars), sizes)
        except ValueError:  # larger than the C extension's limits
            return super().launch(runtime_function(launcher), scalars, temporaries)
        return found

    def sequence(self, steps: Sequence[SequenceStep], slots: int) -> ReadySequence:
        """In C, if all of its launches are the C extension's; else in Python."""
        extension = threads.connected()
        if extension is None or any(type(step.launch) is not extension.Launch for step in steps):
            return super().sequence(steps, slots)
        try:
            found: ReadySequence = extension.Sequence(tuple(step.short() for step in steps), slots)
        except ValueError:  # larger than the C extension's limits, or wrong: then it is refused here
            return super().sequence(steps, slots)
        return found

    def source(self, function: PrimFunc, kind: str) -> str:
        """``llvm`` or ``asm``."""
        if kind not in _SOURCES:
            raise InvalidArgument(message("source kind", repr(kind), ", ".join(("tir", *_SOURCES))))
        return self._compile(function).mod.inspect_source(_SOURCES[kind])

    def _compile(self, function: PrimFunc, symbol: str = _SYMBOL) -> Any:
        tvm = imports.tvm()
        try:
            # Python checks the arguments.
            with not_collected(), tvm.transform.PassContext(config={"tirx.disable_assert": True}, disabled_pass=_NOT_NEEDED):
                if "calling_conv" in (function.attrs or {}):  # it has the form of a call; TVM gives the others form and name
                    symbol = f"__tvm_ffi_{symbol}"
                module = tvm.IRModule({symbol: function.with_attr("global_symbol", symbol)})
                return tvm.compile(module, target=_tvm_target(self.processor))
        except Exception as error:
            raise CompileError(f"{self.name}: TVM could not compile the kernel: {error}") from error


class _Library(NamedTuple):
    """A library that TVM's runtime has loaded."""

    module: Any
    parallel: bool
    """Whether its kernels need the pool of this process."""


class _CpuBuild(Build):
    def __init__(self, executable: Any) -> None:
        self._executable = executable

    def write(self, folder: Path) -> Path | None:
        content = self.object()
        obj = folder / "kernel.o"
        obj.write_bytes(content)
        return link.link(obj) or (obj if link.object_loader() else None)

    def launcher(self) -> Launcher:
        with threads.everywhere():
            return _entry(_Library(self._executable.jit(), threads.is_parallel(self.object())))

    def object(self) -> bytes:
        """The object file."""
        with in_memory() as path:  # on a full disk, LLVM would end the process
            self._executable.mod.write_to_file(path, "o")
            content = Path(path).read_bytes()
        if _WORKSPACE in content:  # only TVM's full runtime has this function; without it, the kernel would crash
            raise CompileError(
                "the kernel requests a workspace from the runtime: a schedule must declare scratch memory as temporaries"
            )
        return content


def _opened(content: bytes) -> Any:
    """A library of kernels, loaded: by the C extension if there is one, else by TVM's runtime."""
    if (extension := threads.native()) is not None:
        try:
            return load_from_memory(content, extension.Library)
        except OSError:
            return load_library(content, extension.Library)
    own_pool = threads.has_pool(content)
    parallel = threads.is_parallel(content) and not own_pool

    def load(path: str) -> _Library:
        module = imports.tvm_ffi().get_global_func("ffi.Module.load_from_file.so")(path, "so")
        if parallel:
            threads.attach(path)
        if own_pool:
            threads.limit(ctypes.CDLL(path))
        return _Library(module, parallel)

    return load_library(content, load)


def _entry(opened: Any, symbol: str = _SYMBOL) -> Launcher:
    """A kernel of a library.

    Raises:
        AttributeError: there is none.
    """
    if not isinstance(opened, _Library):
        return opened.kernel(symbol)
    entry: Launcher = opened.module[symbol]
    if opened.parallel and threads.native() is None:
        from tvmdml.targets.cpu import python_pool

        return python_pool.shielded(entry)
    return entry


def runtime_function(launcher: Launcher) -> Launcher:
    """A kernel as a function of TVM's runtime, which Python can call."""
    extension = threads.native()
    if extension is None or type(launcher) is not extension.Kernel:
        return launcher
    return imports.tvm_ffi().Function.__from_extern_c__(launcher.address, keep_alive_object=launcher)


@functools.cache
def _relative(processor: host.Processor, count: int) -> CpuTarget:
    return CpuTarget(processor, count)


@functools.cache
def _tvm_target(processor: host.Processor) -> Any:
    options = {"kind": "llvm", "mtriple": processor.triple, "mcpu": processor.cpu, "mattr": processor.attributes}
    return imports.tvm().target.Target({k: v for k, v in options.items() if v})


TARGET = CpuTarget
