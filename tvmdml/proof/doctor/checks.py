"""The checks of ``tvmdml doctor``: a function for each, and the table of all checks."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import tvmdml
from tvmdml.errors import CompileError, NoDevice, TvmdmlError, counted
from tvmdml.library.scheduling import kernel_for
from tvmdml.proof.doctor import settings
from tvmdml.proof.doctor.terms import ABSENT, BROKEN, LIMITED, OK, CheckFinding, MachineCheck
from tvmdml.system import imports, installing
from tvmdml.system.console import shown_bytes
from tvmdml.system.disk import stores

if TYPE_CHECKING:
    from tvmdml.library.format import Pack
    from tvmdml.operators import Operator
    from tvmdml.targets import Target

FFI = ((0, 1, 14), (0, 1, 15))
"""The supported versions of apache-tvm-ffi: from the first (included) to the second (excluded)."""
TVM = ((0, 27), (0, 28))
TORCH = (2, 4)
"""The oldest version that ``tvmdml.torch`` supports."""
_LEAST_ROOM = 64 << 20
"""If the cache's disk has fewer free bytes than this, there will soon be no space for kernels."""
_MOST_READ = 128 << 20
"""The most bytes of the cache that are compared with their checksums, beginning with the most recently used."""


# -- Installation -------------------------------------------------------------------------------------------------


def _versions() -> Iterator[CheckFinding]:
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    here = Path(tvmdml.__file__).resolve().parent
    words = f"tvmdml {tvmdml.__version__} in {here}, Python {platform.python_version()}, {system}"
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        yield CheckFinding(LIMITED, words, "tvmdml supports Linux on x86-64 and 64-bit Arm processors.")
    else:
        yield CheckFinding(OK, words)
    for installed in importlib.metadata.distributions(name="tvmdml"):
        other = Path(str(installed.locate_file("tvmdml"))).resolve()
        if other != here and other.is_dir():
            advice = "Start Python in another folder, or install the clone: `pip install -e .`."
            yield CheckFinding(LIMITED, f"tvmdml is also installed in {other}; Python used the copy in the current folder", advice)
    import numpy as np

    yield CheckFinding(OK, f"NumPy {np.__version__}")


def _runtime() -> Iterator[CheckFinding]:
    yield _in_range("apache-tvm-ffi", *FFI, "TVM 0.27 can crash with 0.1.15.")


def _in_range(name: str, least: tuple[int, ...], below: tuple[int, ...], why: str = "") -> CheckFinding:
    version = imports.version(name)
    wanted = f"'{name}>={_dotted(least)},<{_dotted(below)}'"
    if not version:
        return CheckFinding(BROKEN, f"{name} is not installed", f"`pip install {wanted}`.")
    if least <= _numbers(version) < below:
        return CheckFinding(OK, f"{name} {version}")
    return CheckFinding(BROKEN, f"{name} {version} does not work with this package. {why}".strip(), f"`pip install {wanted}`.")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


def _compiler() -> Iterator[CheckFinding]:
    """The compiler alone, without the cache and packs."""
    from tvmdml import targets

    if not imports.version("apache-tvm"):
        words = "apache-tvm is not installed: only kernels from a pack or the cache can run"
        yield CheckFinding(ABSENT, words, f"{installing.command('compiler')}.")
        return
    yield _in_range("apache-tvm", *TVM)
    target, desc = targets.resolve("cpu"), _operation()
    start = time.perf_counter()
    imports.tvm()
    imported = time.perf_counter()
    kernel = kernel_for(desc.canonical(), target)
    launch = target.launch(target.build(kernel.written(target)).launcher(), kernel.scalars, kernel.temporaries)
    yield _tried(desc, launch, f"loaded in {imported - start:.1f} s, a kernel compiled in {time.perf_counter() - imported:.1f} s")


def _extension() -> Iterator[CheckFinding]:
    from tvmdml.targets.cpu import threads

    words, advice = threads.state(), ""
    if threads.native() is None:
        advice = (
            "Everything works without it, but each call takes a few microseconds longer, and only large arrays use several threads."
        )
    yield CheckFinding(OK if threads.native() else LIMITED, words, advice)


# -- The processor ------------------------------------------------------------------------------------------------


def _processor() -> Iterator[CheckFinding]:
    from tvmdml.targets.cpu import cgroups, host
    from tvmdml.targets.cpu.thread_count import thread_count

    yield CheckFinding(OK, f"{host.model_name()}: kernels are compiled for {host.chosen().name}")
    if (state := host.state_of_tiles()) == host.REFUSED:
        words = "it has matrix tiles (AMX), but the system does not let this process use them: products of bytes take longer"
        yield CheckFinding(LIMITED, words, "Allow arch_prctl(ARCH_REQ_XCOMP_PERM): a container's seccomp profile may forbid it.")
    else:
        yield CheckFinding(OK, f"matrix tiles (AMX), for products of bytes: {state}")
    chosen = f", TVMDML_NUM_THREADS={text}" if (text := os.environ.get("TVMDML_NUM_THREADS", "")) else ""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    granted = f", the container's limit is {limit} processors" if (limit := cgroups.processors()) else ""
    here = f"{os.cpu_count()} processors; the process may use {usable}{granted}{chosen}"
    yield CheckFinding(OK, f"kernels run on up to {thread_count()} threads ({here})")


def _linker() -> Iterator[CheckFinding]:
    from tvmdml.targets.cpu import link

    if found := link.linker():
        yield CheckFinding(OK, f"kernels are linked by {found}")
    elif link.object_loader():
        yield CheckFinding(OK, "there is no linker; kernels are stored as object files, and loaded by tvm_ffi_orcjit")
    elif not imports.version("apache-tvm"):
        yield CheckFinding(ABSENT, "there is no linker, and without a compiler none is needed")
    else:
        advice = f"Install binutils (Debian, Ubuntu: apt-get install binutils), or {installing.command('orcjit')}."
        yield CheckFinding(
            LIMITED, "there is no linker (ld, ld.lld, cc, gcc, clang): every process compiles its kernels again", advice
        )


def _cpu_kernel() -> Iterator[CheckFinding]:
    """A kernel as programs get it: from a pack, from the cache, or compiled."""
    try:
        yield _run_on("cpu", _operation())
    except CompileError as error:
        for desc in _packed():
            yield _run_on("cpu", desc)
            return
        advice = f"{installing.command('compiler')}, or set TVMDML_PACKS to a pack."
        if not imports.version("apache-tvm") and any(_codes(pack) for pack in map(_opened, _pack_paths())):
            words = "nothing was run: the packs have no small operation of certain sizes"
            yield CheckFinding(LIMITED, words, "`tvmdml pack verify PACK` runs the kernels of a pack.", runs=True)
        elif imports.version("apache-tvm") or _pack_paths():
            yield CheckFinding(BROKEN, f"no kernel is available: {error}", advice)
        elif count := len(stores.DiskStore().entries()):
            words = f"nothing was run: there is no compiler and no pack; only the {counted(count, 'kernel')} in the cache can run"
            yield CheckFinding(LIMITED, words, advice, runs=True)
        else:
            yield CheckFinding(LIMITED, "no kernel can run: there is no compiler, no pack, and nothing in the cache", advice)


def _codes(pack: Pack) -> set[str]:
    """The targets of a pack that this processor runs."""
    from tvmdml import targets

    return {relative.code for relative in targets.resolve("cpu").relatives(pack.head["targets"])}


def _packed() -> Iterator[Operator]:
    """Small operations in the loaded packs with kernels for this processor."""
    from tvmdml.library import lines

    for pack in map(_opened, _pack_paths()):
        codes = _codes(pack)
        for operation in pack.operations():
            if operation.target in codes and not operation.in_place:
                desc = lines.read(operation.line, "the record")
                if all(tensor is None or tensor.span < 1 << 20 for _, tensor in desc.tensors()):
                    yield desc


# -- Running a kernel ---------------------------------------------------------------------------------------------


def _operation() -> Operator:
    from tvmdml import ElementWiseRound, RoundingMode, TensorDesc

    tensor = TensorDesc("float32", (97,))
    return ElementWiseRound(input_tensor=tensor, output_tensor=tensor, rounding_mode=RoundingMode.HALVES_TO_NEAREST_EVEN)


def _run_on(target: Target | str, desc: Operator) -> CheckFinding:
    """Find or compile an operation's kernel, run it, and compare the result with the reference."""
    from tvmdml import compiler
    from tvmdml.library import finding

    before, start = finding.compiled_count, time.perf_counter()
    operator = compiler.compile(desc, target)
    how = "compiled" if finding.compiled_count > before else "taken from a pack or the cache"
    return _tried(desc, operator, f"{target}: {desc.NAME} {how} in {time.perf_counter() - start:.2f} s")


def _tried(desc: Operator, run: Callable[..., object], words: str) -> CheckFinding:
    import numpy as np

    from tvmdml.operators._contract import Role
    from tvmdml.tensors.arrays.guarded import GuardedTensor

    rng, inputs = np.random.default_rng(0), dict(desc.tensors(Role.INPUT))
    places = {name: None if tensor is None else GuardedTensor(tensor) for name, tensor in desc.tensors()}
    for name, tensor in inputs.items():
        if tensor is not None and (place := places[name]) is not None:
            place.holding(rng.integers(0, 13, tensor.stored.sizes) / (2 if tensor.data_type.is_float else 1))
    arrays = {name: None if place is None else place.array for name, place in places.items()}
    expected = desc.reference(*(arrays[name] for name in inputs))
    run(*arrays.values())
    problem = desc.mismatch(tuple(a for name, a in arrays.items() if name not in inputs and a is not None), expected)
    if not problem and not all(place is None or place.is_guarded() for place in places.values()):
        problem = "it wrote to memory outside its tensors"
    if problem:
        advice = "Run `tvmdml cache clear`, so that kernels are compiled again. If that fails, update drivers, and report it."
        return CheckFinding(BROKEN, f"{words}, but the result is WRONG: {problem}", advice)
    return CheckFinding(OK, f"{words}, result correct", runs=True)


# -- Kernels on disk ----------------------------------------------------------------------------------------------


def _cache() -> Iterator[CheckFinding]:
    from tvmdml.system.disk.stores import DiskStore, Untrusted

    store = DiskStore(limit=0)
    root = store.root
    other = "Kernels are kept in memory only, and every process compiles its own. Set TVMDML_CACHE_DIR to another folder."
    try:
        with store.staging("d0" * 20) as folder:
            (folder / "written").write_bytes(b"x")
    except Untrusted as error:
        yield CheckFinding(LIMITED, f"{error.problem}, so the cache is not used: it may contain another user's code", error.advice)
        return
    except OSError as error:
        yield CheckFinding(LIMITED, f"{root} cannot be written: {error.strerror or error}", other)
        return
    finally:
        with contextlib.suppress(OSError):
            (root / "d0").rmdir()
    yield CheckFinding(OK, f"{root} can be written")
    free = shutil.disk_usage(root).free
    if free < _LEAST_ROOM:
        yield CheckFinding(LIMITED, f"its disk has only {shown_bytes(free)} free", other)
    yield _locks(root)


def _locks(root: Path) -> CheckFinding:
    from tvmdml.system.disk.locks import locked

    path = root / ".doctor.lock"
    try:
        with locked(path, timeout=5):
            pass
    except OSError as error:
        advice = "Processes that start together compile the same kernels twice. Use a folder on a local disk, which supports locks."
        return CheckFinding(LIMITED, f"files cannot be locked in {root}: {error}", advice)
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
    return CheckFinding(OK, "file locks work in it")


def _contents() -> Iterator[CheckFinding]:
    from tvmdml.system.disk.stores import DiskStore

    store = DiskStore()
    entries = store.entries()
    total = sum(entry.size for entry in entries)
    yield CheckFinding(OK, f"{len(entries)} kernels, {shown_bytes(total)} of at most {shown_bytes(store.limit)}")
    if damaged := store.damaged(_MOST_READ):
        words = f"{counted(len(damaged), 'damaged kernel')}, such as {damaged[0].name}; ignored, and compiled again when needed"
        yield CheckFinding(LIMITED, words, "You need not do anything. If it happens again, check the disk.")


# -- Packs and tuning ---------------------------------------------------------------------------------------------


def _pack_paths() -> list[str]:
    return [path for path in os.environ.get("TVMDML_PACKS", "").split(os.pathsep) if path]


def _opened(path: str) -> Pack:
    from tvmdml.library.opened import OpenedPack

    return OpenedPack(path).pack


def _packs() -> Iterator[CheckFinding]:
    if not _pack_paths():
        yield CheckFinding(ABSENT, "TVMDML_PACKS names no pack")
    for path in _pack_paths():
        try:
            pack = _opened(path)
        except TvmdmlError as error:
            yield CheckFinding(
                BROKEN, str(error), "Every call fails until it is loaded: correct TVMDML_PACKS, or build the pack again."
            )
            continue
        if other := _of_other_schedules(pack):
            made = pack.head["producer"].get("tvmdml")
            words = f"{path}: its kernels for {', '.join(other)} were built from other schedules (tvmdml {made}) and are ignored"
            yield CheckFinding(LIMITED, words, "Build it again with the installed version.")
        else:
            yield CheckFinding(OK, f"{path}: {pack.count} records, for {', '.join(sorted(pack.head['targets'].values()))}")


def _library() -> Iterator[CheckFinding]:
    from tvmdml import targets
    from tvmdml.library import installed

    if not installed.files():
        yield CheckFinding(ABSENT, f"{installed.PACKAGE} is not installed: kernels that are not on disk are compiled")
    for name, path in installed.files():
        if (opened := installed.opened(path)) is None:
            yield CheckFinding(LIMITED, f"{path} cannot be used", installed.BUILD)
        elif other := _of_other_schedules(opened.pack):
            yield CheckFinding(LIMITED, f"{path}: kernels for {', '.join(other)} were built from other sources", installed.BUILD)
        else:
            yield CheckFinding(OK, f"{installed.PACKAGE} has {counted(opened.pack.count, 'kernel')} for {name}")
    processor = targets.resolve("cpu")
    names = [name for name, _ in installed.files() if name.startswith("cpu")]
    if names and not any(map(processor.takes, names)):
        words = f"none of its kernels is for this processor's level: {', '.join(names)} is not {processor}"
        yield CheckFinding(LIMITED, words, "Build it with --target cpu:LEVEL for this level, or set TVMDML_CPU to one that it has.")


def _of_other_schedules(pack: Pack) -> list[str]:
    """The target kinds and operators whose kernels in a pack come from schedules other than the installed ones."""
    from tvmdml import targets
    from tvmdml.library.stamps import source_stamp

    found = set()
    for name in pack.head["targets"].values():
        with contextlib.suppress(TvmdmlError):
            target = targets.elsewhere(name)[0]
            for about, stamp in pack.head["sources"].items():
                kind, _, module = about.partition(" ")
                if kind == target.kind and stamp != source_stamp(module, target):
                    found.add(about)
    return sorted(found)


def _keys() -> Iterator[CheckFinding]:
    from tvmdml.library import signing

    trusted = signing.trusted_keys()
    if trusted is None:
        yield CheckFinding(OK, f"any pack may be loaded: {signing.VARIABLE} is not set")
    else:
        yield CheckFinding(OK, f"only packs signed with one of {len(trusted)} trusted keys may be loaded")
        if not imports.version("cryptography"):
            words = "no pack can be loaded: the package cryptography, which checks signatures, is not installed"
            yield CheckFinding(BROKEN, words, f"{installing.command('sign')}.")


def _tuning() -> Iterator[CheckFinding]:
    from tvmdml import targets
    from tvmdml.library import log_files, log_folders, logs

    if logs.are_off():
        yield CheckFinding(OK, "TVMDML_TUNING=0: no log is used")
        return
    folders = log_folders.folders()
    machine = targets.resolve("cpu").machine()
    mine = [record for record in logs.installed().records if record.machine == machine]
    words = f"{len(mine)} of {len(logs.installed().records)} records are for this processor and number of threads"
    yield CheckFinding(OK, f"{words}, in {', '.join(map(str, folders))}")
    lines = log_files.read_all(path for folder in folders for path in log_folders.files(folder))
    if bad := [line for line in lines if line.record is None]:
        advice = "`tvmdml tuning validate` lists them, `tvmdml tuning prune` removes them."
        yield CheckFinding(LIMITED, f"{len(bad)} lines are ignored, such as {bad[0].where}: {bad[0].problem}", advice)


# -- Devices ------------------------------------------------------------------------------------------------------


def _cuda() -> Iterator[CheckFinding]:
    from tvmdml.targets.cuda import compilers, driver, loader

    try:
        compiler = compilers.describe()
    except CompileError as error:
        yield CheckFinding(ABSENT, str(error).removeprefix("cuda: "))
    else:
        yield _cuda_compiler(compiler)
    try:
        found = driver.devices()
    except NoDevice as error:
        yield CheckFinding(ABSENT, str(error).removeprefix("cuda: "))
        return
    yield CheckFinding(OK, f"the NVIDIA driver supports CUDA {loader.version_text(loader.cuda().version)}")
    for info in found:
        about = f"cuda:{info.index}, {info.name} ({info.arch}, {shown_bytes(info.memory)})"
        yield from _device("cuda", info.index, about, info.problem)


def _cuda_compiler(name: str) -> CheckFinding:
    """The compiler that was found, and its version; asking for the version shows whether it runs."""
    from tvmdml.targets.cuda import compilers

    try:
        return CheckFinding(OK, f"kernels are compiled by {name}, version {compilers.version()}")
    except CompileError as error:
        words = f"{name} was selected to compile kernels, but it does not work: {str(error).removeprefix('cuda: ')}"
        return CheckFinding(
            LIMITED,
            words,
            "Correct TVMDML_NVCC or the installation of the CUDA toolkit, or set TVMDML_CUDA_COMPILER=nvrtc to use NVRTC.",
        )


def _vulkan() -> Iterator[CheckFinding]:
    from tvmdml.targets.vulkan import driver, loader

    try:
        found = driver.devices()
    except NoDevice as error:
        yield CheckFinding(ABSENT, str(error))
        return
    layer = "is installed" if loader.has_validation_layer() else "is not installed; only developers need it"
    yield CheckFinding(OK, f"the Vulkan loader is installed; the Khronos validation layer {layer}")
    for info in found:
        lacking = [name for name in ("float64", "int64", "float16") if not getattr(info.capabilities, name)]
        lacks = f"; without {' and '.join(lacking)}" if lacking and not info.problem else ""
        about = f"vulkan:{info.index}, {info.name} ({info.type}, Vulkan {info.api}, {info.driver}{lacks})"
        yield from _device("vulkan", info.index, about, info.problem)


def _device(kind: str, index: int, about: str, problem: str) -> Iterator[CheckFinding]:
    from tvmdml import targets

    if problem:
        yield CheckFinding(LIMITED, f"{about} cannot be used: {problem}")
        return
    yield CheckFinding(OK, about)
    try:
        yield _run_on(targets.resolve(f"{kind}:{index}"), _operation())
    except CompileError as error:
        words = f"{kind}:{index}: no kernel is available: {error}"
        yield CheckFinding(
            LIMITED, words, "Kernels from packs still run. To compile others, install or allow what the reason names."
        )


# -- Other packages -----------------------------------------------------------------------------------------------

_LIBRARIES = ("torch", "cupy", "cupy-cuda12x", "cupy-cuda13x", "onnx", "onnxruntime", "matplotlib")
_EXTRAS = {
    "compiler": "compiles kernels that are not in a pack or the cache",
    "cuda": "compiles for CUDA without the CUDA toolkit",
    "onnx": "reads ONNX models",
    "genai": "reads tokenizers and chat templates of language models",
    "dxdispatch": "runs JSON models with serialized graphs and images",
    "sign": "signs packs, and checks signatures",
    "tune": "searches for faster knobs",
    "bench": "compares speed with other libraries, with plots",
    "orcjit": "stores kernels without a linker",
}
"""The purpose of each extra."""


def _libraries() -> Iterator[CheckFinding]:
    found = {name: version for name in _LIBRARIES if (version := imports.version(name))}
    here = ", ".join(f"{name} {version}" for name, version in found.items())
    yield (
        CheckFinding(OK, here)
        if here
        else CheckFinding(ABSENT, f"none of {', '.join(_LIBRARIES)} is installed, and none is needed")
    )
    if "torch" in found and _numbers(found["torch"]) < TORCH:
        words = f"tvmdml.torch does not work with PyTorch {found['torch']}; functions still accept its tensors"
        yield CheckFinding(LIMITED, words, f"`pip install -U torch`: {_dotted(TORCH)} or later.")


def _extras() -> Iterator[CheckFinding]:
    wanted: dict[str, list[str]] = {name: [] for name in _EXTRAS}
    try:
        required = importlib.metadata.requires("tvmdml") or ()
    except importlib.metadata.PackageNotFoundError:
        words = f"tvmdml runs from {Path(tvmdml.__file__).parent} and was not installed by pip: its dependencies are unknown"
        yield CheckFinding(LIMITED, words, f"{installing.command('compiler')}.")
        return
    for line in required:
        of = re.fullmatch(r"([\w.-]+).*extra\s*==\s*['\"]([\w-]+)['\"].*", line)
        if of and of[2] in wanted:
            wanted[of[2]].append(of[1])
    for extra, what in _EXTRAS.items():
        if missing := [name for name in wanted[extra] if not imports.version(name)]:
            yield CheckFinding(ABSENT, f"{extra} ({what}): {', '.join(missing)} not installed", f"{installing.command(extra)}.")
        else:
            yield CheckFinding(OK, f"{extra} ({what})")


CHECKS = (
    MachineCheck("Installation", "settings", settings.findings),
    MachineCheck("Installation", "versions", _versions),
    MachineCheck("Installation", "runtime", _runtime),
    MachineCheck("Installation", "compiler", _compiler, apart=True),
    MachineCheck("Installation", "C extension", _extension),
    MachineCheck("Processor", "processor", _processor),
    MachineCheck("Processor", "linker", _linker),
    MachineCheck("Processor", "kernel", _cpu_kernel, apart=True),
    MachineCheck("Kernels on disk", "cache", _cache),
    MachineCheck("Kernels on disk", "contents", _contents),
    MachineCheck("Packs", "packs", _packs),
    MachineCheck("Packs", "library", _library),
    MachineCheck("Packs", "trust", _keys),
    MachineCheck("Tuning", "logs", _tuning),
    MachineCheck("CUDA", "CUDA", _cuda, apart=True),
    MachineCheck("Vulkan", "Vulkan", _vulkan, apart=True),
    MachineCheck("Other packages", "libraries", _libraries),
    MachineCheck("Other packages", "extras", _extras),
)
"""All checks, in the order in which they are shown."""
