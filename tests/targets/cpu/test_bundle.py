"""Libraries of many kernels: reproducible bytes, only kernels exported, and a thread pool without dependencies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tvm_ffi.libinfo as info
from programs import python
from support import round_desc

from tvmdml import NonzeroCoordinates, TensorDesc, targets
from tvmdml.errors import CompileError
from tvmdml.library.scheduling import kernel_for
from tvmdml.targets.cpu import bundle, host, link

pytestmark = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler here")

LEVEL = "aarch64" if host.host().level == "aarch64" else "x86-64"
PROCESSOR = host.Processor(LEVEL, ())


@pytest.fixture(scope="module")
def objects() -> dict[str, bytes]:
    """A parallel kernel, and one that is not."""
    found = {}
    for name, desc in {
        "large": round_desc(TensorDesc("float32", (300, 1001))),
        "small": NonzeroCoordinates.of(TensorDesc("float32", (4, 3))),
    }.items():
        *_, (_, variant) = targets.resolve(f"cpu:{LEVEL}").variants()
        found[name] = variant.unit(kernel_for(desc, variant).build(), name)
    return found


@pytest.mark.full
def test_the_same_objects_are_the_same_library(objects: dict[str, bytes], tmp_path: Path) -> None:
    for name, content in objects.items():
        (tmp_path / name).write_bytes(content)
    code = (
        "import sys; from pathlib import Path; from tvmdml.targets.cpu import bundle, host\n"
        "objects = {path.name: path.read_bytes() for path in sorted(Path(sys.argv[1]).iterdir(), reverse=True)}\n"
        "sys.stdout.buffer.write(bundle.link(objects, host.Processor(sys.argv[2], ())))"
    )
    elsewhere = tmp_path.parent / "another folder"
    elsewhere.mkdir()
    command = [sys.executable, "-c", code, str(tmp_path), LEVEL]
    environment = {**os.environ, "TMPDIR": str(elsewhere)}
    other = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, check=True).stdout
    assert bundle.link(objects, PROCESSOR) == other
    assert not list(elsewhere.iterdir())


@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm here")
def test_a_library_shows_its_kernels_and_the_pool_that_they_need(objects: dict[str, bytes], tmp_path: Path) -> None:
    pool = {"__TVMBackendParallelLaunch", "tvmdml_pool_launch", "tvmdml_pool_set_limit"}
    assert exports(bundle.link(objects, PROCESSOR), tmp_path) == {"__tvm_ffi_large", "__tvm_ffi_small"} | pool
    assert exports(bundle.link({"small": objects["small"]}, PROCESSOR), tmp_path) == {"__tvm_ffi_small"}


@pytest.mark.skipif(not link.linker() or shutil.which("nm") is None, reason="no linker, or no nm here")
def test_a_kernel_alone_needs_nothing_but_the_pool(objects: dict[str, bytes], tmp_path: Path) -> None:
    """The extension loads it without TVM's runtime, and sets this pointer only."""
    for name, others in {"large": {"__TVMBackendParallelLaunch"}, "small": set[str]()}.items():
        (tmp_path / "one.o").write_bytes(objects[name])
        linked = link.link(tmp_path / "one.o")
        assert linked is not None
        own = exports(linked.read_bytes(), tmp_path) - {"__truncsfhf2", "__extendhfsf2"}
        assert own == {f"__tvm_ffi_{name}", "__tvm_ffi_main"} | others


def exports(content: bytes, folder: Path) -> set[str]:
    library = folder / "library.so"
    library.write_bytes(content)
    listed = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in listed.splitlines()}


# Launches with only the library's own pool, before and after a fork; then its threads are listed.
POOL = """
import ctypes, os, sys, time
library = ctypes.CDLL(sys.argv[1])
task = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
pointer = ctypes.c_void_p.in_dll(library, "__TVMBackendParallelLaunch").value
assert pointer == ctypes.cast(library.tvmdml_pool_launch, ctypes.c_void_p).value
launch = ctypes.CFUNCTYPE(ctypes.c_int, task, ctypes.c_void_p, ctypes.c_int)(pointer)
def once(bad):
    seen = []
    work = task(lambda number, group, data: seen.append(number) or -(number == bad))
    assert launch(work, None, 20) == (-1 if 0 <= bad else 0)
    assert sorted(seen) == list(range(20))
def both():
    once(-1), once(7), once(-1)
def started():
    names = []
    for _ in range(5000):  # a thread has its name a little after it was started
        names = [open(f"/proc/self/task/{one}/comm").read().strip() for one in os.listdir("/proc/self/task")]
        if names.count("tvmdml") >= 2:
            break
        time.sleep(0.01)
    return names.count("tvmdml")
both()
if (child := os.fork()) == 0:
    both()
    os._exit(started())
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), started(), library.tvmdml_pool_set_limit(0))
"""


@pytest.mark.full(first=1)
@pytest.mark.skipif(sys.platform != "linux", reason="threads are listed as Linux does")
@pytest.mark.parametrize("runtime", [False, True], ids=["alone", "with libtvm_ffi"])
def test_the_pool_of_a_library_needs_nobody(objects: dict[str, bytes], tmp_path: Path, runtime: bool) -> None:
    library = tmp_path / "large.so"
    library.write_bytes(bundle.link(objects, PROCESSOR))
    before = f"import ctypes; ctypes.CDLL({info.find_libtvm_ffi()!r}, ctypes.RTLD_GLOBAL)" if runtime else ""
    assert python(before + POOL, library, may_complain=True, TVMDML_NUM_THREADS="3") == "2 2 3\n"


def test_without_a_compiler_it_says_what_to_install(objects: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    bundle._tools.cache_clear()
    monkeypatch.setattr(bundle, "_compilers", lambda machine: [])
    with pytest.raises(CompileError, match=r"none was found here. Install gcc or clang, or `pip install ziglang`\."):
        bundle.link(objects, PROCESSOR)
    monkeypatch.setattr(bundle, "_compilers", lambda machine: [("/bin/false",)])
    with pytest.raises(CompileError, match=r"could not be compiled.*/bin/false: exit status 1.*pip install ziglang"):
        bundle.link(objects, PROCESSOR)
    bundle._tools.cache_clear()


def test_an_object_that_is_none_is_an_error(objects: dict[str, bytes]) -> None:
    with pytest.raises(CompileError, match="could not be linked"):
        bundle.link({"large": objects["large"][:1000]}, PROCESSOR)
