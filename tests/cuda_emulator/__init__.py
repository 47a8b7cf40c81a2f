"""A stand-in for an NVIDIA GPU: a driver that runs kernels on the CPU, and an nvcc that compiles them for it.

``python -m tests.cuda_emulator`` builds it and prints the environment variables that make tvmdml use it, as a shell reads them.
Kernels that a GPU may run wrong do not run here: the emulator stops at barriers that not all threads come to, at reads and writes
beyond an array, at addresses that are not aligned, at a missing lane of a warp, at arithmetic that C++ leaves undefined; and says
so on stderr.

    TVMDML_EMULATED_DEVICES   how many devices there are (1)
    TVMDML_EMULATED_ARCH      their compute capability (90)
    TVMDML_EMULATED_MEMORY    bytes that each has, also as 512M or 4G (4G)
    TVMDML_EMULATED_LAZY      1: streams do their work when something waits for it, not at once
    TVMDML_EMULATED_ORDER     a seed for the order of groups and threads; without it they come by their numbers
    TVMDML_EMULATED_WORKERS   groups that run at once (2); with 1, a launch runs the same way every time
    TVMDML_EMULATED_TIMEOUT   seconds that a launch may take (60)
    TVMDML_EMULATED_CXX       the C++ compiler (g++)
    TVMDML_EMULATED_CXXFLAGS  more options for it, when it compiles kernels
    TVMDML_EMULATED_TOOLKIT   the folder of NVIDIA's headers; "none": do without (cuda_fp16.h is looked for in the usual places)

A group that waits for another one has to be ordered behind it by more than its number, as on a GPU: by a ticket from an atomic
counter. What is not emulated: memory's order between groups is this computer's, so that a missing fence rarely shows; a float that
is too large for an integer becomes what this computer makes of it; clocks, textures, dynamic shared memory.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_HERE = Path(__file__).parent
_LIBRARY = "libcuda.so.1"


def build() -> Path | None:
    """The driver, built when it is not there yet; ``None`` where it cannot be: ``missing`` says why."""
    return None if missing() else _build(_compiler(), _toolkit()) / _LIBRARY


def missing() -> str:
    """What is missing here to build it; empty when nothing is."""
    if not sys.platform.startswith("linux"):
        return "the CUDA emulator is for Linux"
    return "" if shutil.which(_compiler()) else f"the CUDA emulator needs a C++ compiler ({_compiler()})"


def environment() -> dict[str, str]:
    """The variables that make tvmdml use it, for processes to start.

    Raises:
        RuntimeError: it cannot be built here.
    """
    library = build()
    if library is None:
        raise RuntimeError(missing())
    return {"TVMDML_CUDA_LIBRARY": str(library), "TVMDML_NVCC": str(library.parent / "nvcc"), "TVMDML_CUDA_COMPILER": "nvcc"}


def install() -> None:
    """Make this process use it. tvmdml must not have looked for a driver yet."""
    os.environ.update(environment())


def _compiler() -> str:
    return os.environ.get("TVMDML_EMULATED_CXX") or "g++"


def _toolkit() -> Path | None:
    """The folder of ``cuda_fp16.h``."""
    asked = os.environ.get("TVMDML_EMULATED_TOOLKIT", "")
    if asked == "none":
        return None
    for folder in [Path(asked)] if asked else _usual_places():
        if (folder / "cuda_fp16.h").is_file() and (folder / "nv/target").exists():
            return folder.resolve()
    return None


def _usual_places() -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(variable):
            yield Path(root) / "include"
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        # A script in PATH may start the real one: the usual place is looked at below.
        yield Path(nvcc).resolve().parent.parent / "include"
    yield Path("/usr/local/cuda/include")
    packages = Path(sysconfig.get_path("purelib")) / "nvidia"
    yield from (packages / name / "include" for name in ("cu13", "cu12", "cuda_runtime"))


@functools.cache
def _build(compiler: str, toolkit: Path | None) -> Path:
    """The folder of what is built of these sources by this compiler. Whoever comes first builds it; others may at the same time."""
    sources = sorted(path for path in _HERE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc"))
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    parts = [version, str(toolkit).encode(), str(os.getuid()).encode()]
    for path in sources:
        parts += [str(path.relative_to(_HERE)).encode(), path.read_bytes()]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"tvmdml-cuda-emulator-{digest}"
    if folder.is_dir() and folder.stat().st_uid == os.getuid():
        return folder
    made = Path(tempfile.mkdtemp(prefix="tvmdml-cuda-emulator-"))
    try:
        _fill(made, sources, compiler, toolkit)
        made.rename(folder)
    except OSError:
        if not folder.is_dir() or folder.stat().st_uid != os.getuid():
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)  # another process was quicker
    return folder


def _fill(folder: Path, sources: list[Path], compiler: str, toolkit: Path | None) -> None:
    for path in sources:
        target = folder / path.relative_to(_HERE)
        target.parent.mkdir(exist_ok=True)
        shutil.copy(path, target)
    if toolkit is not None:
        (folder / "toolkit").symlink_to(toolkit)
    headers = "headers" if toolkit is None else "toolkit"
    parts = sorted(folder.glob("*.cpp"))
    commands = [
        *([compiler, "-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread", "-c", part.name] for part in parts),
        # What every kernel begins with, read once.
        *(
            [compiler, "@flags", "-isystem", "stubs", "-isystem", headers, "-x", "c++-header", header, "-o", f"{header}.gch"]
            for header in ("emulator.hpp", "emulator_half.hpp")
        ),
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda command: _run(command, folder), commands))
    objects = [part.with_suffix(".o").name for part in parts]
    _run([compiler, "-shared", "-pthread", f"-Wl,-soname,{_LIBRARY}", *objects, "-ldl", "-o", _LIBRARY], folder)


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the CUDA emulator is not built: {' '.join(command)}:\n{done.stderr}")
