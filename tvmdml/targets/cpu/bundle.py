"""Link many kernels into one shared library with its own thread pool, for programs that load kernels without tvmdml."""

from __future__ import annotations

import functools
import importlib.util
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tvmdml.errors import CompileError, naming
from tvmdml.targets.cpu import host, threads

_NATIVE = Path(__file__).parent / "native"
_SOURCES = ("pool.h", "pool.c", "carried.c")
_POOL = ("__TVMBackendParallelLaunch", "tvmdml_pool_launch", "tvmdml_pool_set_limit")
"""The symbols of the pool that are exported."""
_COMPILE = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-ident", "-pthread", "-Wno-missing-field-initializers")
_LINK = (
    *("-shared", "-s", "-pthread"),
    "-Wl,--version-script=exports.map,--build-id=none,--hash-style=gnu,--as-needed",
    "-Wl,-z,noexecstack,-z,now,-z,relro",
)
_STAYS = "-Wl,-z,nodelete"  # the pool's threads run its code until the process ends
_MACHINES = {"arm64": "aarch64", "amd64": "x86_64"}
# The system that Zig links for: its libraries then load wherever TVM's own libraries do.
_ZIG_SYSTEM = "linux-gnu.2.17"


class _Tools(NamedTuple):
    """A working compiler, and the pool compiled with it."""

    command: tuple[str, ...]
    pool: bytes


def require(processor: host.Processor) -> _Tools:
    """What links for a processor.

    Raises:
        CompileError: this machine has no C compiler for it.
    """
    return _tools(processor.triple.partition("-")[0])


def link(objects: Mapping[str, bytes], processor: host.Processor) -> bytes:
    """Link objects, each with one kernel and given by its symbol, into a shared library. Equal objects give equal bytes.

    Only the kernels' functions and the pool's few are exported. Without a parallel kernel the pool is left out.

    Raises:
        CompileError: this machine has no C compiler for the processor, or the compiler failed.
    """
    tools = require(processor)
    parallel = any(threads.is_parallel(content) for content in objects.values())
    with tempfile.TemporaryDirectory(prefix="tvmdml-") as name, naming(name):
        folder = Path(name)
        symbols = sorted(objects)
        pieces = [objects[symbol] for symbol in symbols]
        names = []
        for number, content in enumerate([tools.pool, *pieces] if parallel else pieces):
            names.append(f"{number}.o")
            (folder / names[-1]).write_bytes(content)
        exported = [*(f"__tvm_ffi_{symbol}" for symbol in symbols), *(_POOL if parallel else ())]
        (folder / "exports.map").write_text(f"{{ global: {'; '.join(exported)}; local: *; }};\n")
        (folder / "objects").write_text("\n".join(names))
        failed = _run([*tools.command, *_LINK, *([_STAYS] if parallel else []), "-o", "library.so", "@objects", "-lm"], folder)
        if failed:
            raise CompileError(f"{processor.name}: the kernels could not be linked: {failed}")
        return (folder / "library.so").read_bytes()


@functools.cache
def guard(machine: str) -> bytes:
    """A library with the pool that keeps TVM's stock RPC server alive whatever a tried kernel does (``native/guard.c``).

    Args:
        machine: ``x86_64`` or ``aarch64``.

    Raises:
        CompileError: as ``link``.
    """
    tools = _tools(machine)
    with tempfile.TemporaryDirectory(prefix="tvmdml-") as name:
        folder = Path(name)
        for source in (*_SOURCES, "guard.c"):
            shutil.copyfile(_NATIVE / source, folder / source)
        options = (*_COMPILE, "-shared", "-s", "-Wl,-z,noexecstack", _STAYS)
        if failed := _run([*tools.command, *options, "-o", "guard.so", "guard.c"], folder):
            raise CompileError(f"the guard for RPC servers could not be compiled for {machine}: {failed}")
        return (folder / "guard.so").read_bytes()


@functools.cache
def _tools(machine: str) -> _Tools:
    """The first compiler for a machine that can compile the pool."""
    failures = []
    for command in _compilers(machine):
        with tempfile.TemporaryDirectory(prefix="tvmdml-") as name:
            folder = Path(name)
            for source in _SOURCES:  # in one folder, under the same names everywhere
                shutil.copyfile(_NATIVE / source, folder / source)
            failed = _run([*command, *_COMPILE, "-c", "-o", "carried.o", "carried.c"], folder)
            if not failed:
                return _Tools(command, (folder / "carried.o").read_bytes())
            failures.append(failed)
    install = "gcc or clang" if machine == _here() else f"gcc-{machine.replace('_', '-')}-linux-gnu"
    advice = f"Install {install}, or `pip install ziglang`."
    if failures:
        raise CompileError(f"the thread pool could not be compiled for {machine}: {'; '.join(failures)}. {advice}")
    raise CompileError(f"a library of kernels for {machine} needs a C compiler, and none was found here. {advice}")


def _compilers(machine: str) -> list[tuple[str, ...]]:
    """The commands here that might compile for a machine, the best first."""
    here = machine == _here()
    programs: Sequence[tuple[str, ...]] = [("cc",), ("gcc",), ("clang",)] if here else [(f"{machine}-linux-gnu-gcc",)]
    found = [(path, *rest) for name, *rest in programs if (path := shutil.which(name))]
    if importlib.util.find_spec("ziglang") is not None:
        found.append((sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-{_ZIG_SYSTEM}"))
    if not here and (clang := shutil.which("clang")) and shutil.which("ld.lld"):
        found.append((clang, f"--target={machine}-linux-gnu", "-fuse-ld=lld"))
    return found


def _here() -> str:
    machine = platform.machine().lower()
    return _MACHINES.get(machine, machine)


def _run(command: Sequence[str], folder: Path) -> str:
    """Run a program in a folder; returns the error text, empty if it succeeded."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{command[0]}: {error.strerror or error}"
    return "" if done.returncode == 0 else f"{command[0]}: {done.stderr.strip() or f'exit status {done.returncode}'}"
