"""Compile CUDA C++ to machine code and PTX: by nvcc, or by NVRTC from pip. Neither needs a GPU or its driver.

Nothing is approximated: subnormals are kept, division and square root are correctly rounded, and there is no FMA contraction.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from tvmdml.errors import CompileError, InvalidArgument, message
from tvmdml.system import installing
from tvmdml.targets._program import Image
from tvmdml.targets.cuda import cubin
from tvmdml.targets.cuda.architectures import is_one, number

EXACT = ("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
"""Both compilers accept these options."""
_COMMON = ("--std=c++17", *EXACT, "-diag-suppress=177")
"""177: the warning that something is declared and never used."""
_TIMEOUT = 600
"""The time limit for one run of nvcc, in seconds."""


def compile_text(text: str, architectures: Sequence[str]) -> tuple[Image, ...]:
    """Machine code for each architecture (``sm_90``), and PTX for the newest (``compute_90``), which later architectures can run.

    A kernel whose registers have no room for everything, if the groups that it names are to fit, is compiled without that number.

    Raises:
        CompileError: there is no compiler, or it rejects the text.
    """
    name, compiler = _compiler()
    newest = max(architectures, key=number)
    portable = f"compute_{number(newest)}"
    with ThreadPoolExecutor(len(architectures) + 1, f"tvmdml {name}") as pool:
        ptx = pool.submit(compiler, text, portable)
        found = dict(zip(architectures, pool.map(lambda form: machine_code(compiler, text, form), architectures), strict=True))
        images = [Image(form, content) for form, (content, _) in found.items()]
        # What a driver makes of PTX is not known here: it is told what the newest architecture's machine code was.
        last = found[newest][1]
        return (*images, Image(portable, ptx.result() if last == text else compiler(last, portable)))


def machine_code(compiler: Callable[[str, str], bytes], text: str, form: str) -> tuple[bytes, str]:
    """Machine code for an architecture, and the text that it was made of: with the groups that are to fit where nothing is spilled.

    Some compilers spill a few bytes to meet that number where they would need fewer registers without it.
    """
    content = compiler(text, form)
    spilled = {kernel: stack for kernel, stack in cubin.stacks(content).items() if stack}
    freed = [*spilled]
    while (freer := _freed(text, freed)) != text:
        other = compiler(freer, form)
        stacks = cubin.stacks(other)
        better = [kernel for kernel in freed if stacks.get(kernel, 0) < spilled[kernel]]
        if better == freed:
            return other, freer
        freed = better  # the others need memory anyway, such as for an array that is indexed by what is not known
    return content, text


def _freed(text: str, kernels: Sequence[str]) -> str:
    """The text, with nothing said about how many groups of these kernels are to fit in a multiprocessor."""
    bounds = re.compile(rf"(__launch_bounds__\(\d+), \d+(\) (?:{'|'.join(map(re.escape, kernels))})\()")
    return bounds.sub(r"\1\2", text) if kernels else text


def describe() -> str:
    """The compiler that is used here, for display.

    Raises:
        CompileError: there is no compiler.
    """
    name, _ = _compiler()
    return f"nvcc ({nvcc()})" if name == "nvcc" else "NVRTC"


def version() -> str:
    """The version that the compiler reports when it runs.

    Raises:
        CompileError: there is no compiler, or it does not run.
    """
    name, _ = _compiler()
    if name == "nvcc":
        found = nvcc()
        assert found is not None
        release = re.search(rb"release ([\d.]+)", _run([found, "--version"]))
        if release is None:
            raise CompileError(f"cuda: {found} runs, but does not answer --version as nvcc does")
        return release[1].decode()
    import cuda.bindings.nvrtc as nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    return f"{major}.{minor}"


def supported() -> tuple[str, ...]:
    """The architectures that the compiler makes machine code for and kernels support, the oldest first, without their variants.

    Raises:
        CompileError: there is no compiler, or it does not run.
    """
    if _compiler()[0] == "nvcc":
        found = nvcc()
        assert found is not None
        names = _run([found, "--list-gpu-code"]).decode().split()
    else:
        import cuda.bindings.nvrtc as nvrtc

        names = [f"sm_{one}" for one in _checked(nvrtc.nvrtcGetSupportedArchs())]
    return tuple(sorted(filter(is_one, names), key=number))


def sass(cubin: bytes) -> str:
    """Disassemble machine code, with nvdisasm or cuobjdump.

    Raises:
        CompileError: neither tool was found.
    """
    for tool, options in (("nvdisasm", ()), ("cuobjdump", ("-sass",))):
        if (found := _tool(tool)) is not None:
            with tempfile.TemporaryDirectory(prefix="tvmdml-") as folder:
                path = Path(folder) / "kernel.cubin"
                path.write_bytes(cubin)
                return _run([found, *options, str(path)]).decode()
    raise CompileError(
        "cuda: machine code is disassembled by nvdisasm or cuobjdump, and neither was found. "
        "Install CUDA's toolkit, or `pip install nvidia-cuda-nvdisasm`."
    )


def nvcc() -> str | None:
    """The path of nvcc, if it is installed together with the C++ compiler that it calls."""
    named = os.environ.get("TVMDML_NVCC")
    if named:
        return named
    if not any(map(shutil.which, ("g++", "gcc", "clang++", "cl"))) and not os.environ.get("NVCC_CCBIN"):
        return None
    return _tool("nvcc")


def _compiler() -> tuple[str, Callable[[str, str], bytes]]:
    asked = os.environ.get("TVMDML_CUDA_COMPILER", "")
    if asked not in ("", *_COMPILERS):
        raise InvalidArgument(message("TVMDML_CUDA_COMPILER", repr(asked), ", ".join(_COMPILERS)))
    for name, (is_here, compiler) in _COMPILERS.items():
        if asked in ("", name) and is_here():
            return name, compiler
    advice = f"Install CUDA's toolkit, or {installing.command('cuda')}, which brings NVRTC."
    raise CompileError(f"cuda: {asked or 'nvcc, or NVRTC,'} was not found. {advice}")


# -- nvcc


def _by_nvcc(text: str, form: str) -> bytes:
    found = nvcc()
    assert found is not None
    with tempfile.TemporaryDirectory(prefix="tvmdml-") as folder:
        source, result = Path(folder) / "kernel.cu", Path(folder) / "kernel.out"
        source.write_text(text, encoding="utf-8")
        kind = "-ptx" if form.startswith("compute_") else "-cubin"
        said = _run([found, kind, f"-arch={form}", *_COMMON, "-o", str(result), str(source)])
        if not result.is_file():
            raise CompileError(f"cuda: {found} wrote no output file; its messages: {_shown(said) or 'none'}")
        return result.read_bytes()


def _run(command: list[str]) -> bytes:
    """Run a program and return its output. The processes that it starts end with it, whatever happens here."""
    name, pipe = Path(command[0]).name, subprocess.PIPE
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True)
    except OSError as error:
        whose = " TVMDML_NVCC names it." if command[0] == os.environ.get("TVMDML_NVCC") else ""
        raise CompileError(f"cuda: {name} could not be run: {error}.{whose}") from error
    try:
        printed, complained = process.communicate(timeout=_TIMEOUT)
    except BaseException as error:
        _kill(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise CompileError(f"cuda: {name} was stopped: it ran for more than {_TIMEOUT} seconds") from error
        raise
    if process.returncode:
        raise CompileError(f"cuda: {name} failed: {_shown(complained or printed) or f'exit status {process.returncode}'}")
    return printed


def _kill(process: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg"):
        with suppress(OSError):  # the processes have already ended
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def _shown(said: bytes) -> str:
    return said.decode(errors="replace").strip(" \t\r\n\0")[:4000]


# -- NVRTC


def _has_nvrtc() -> bool:
    try:
        import cuda.bindings.nvrtc as nvrtc

        nvrtc.nvrtcVersion()  # the call loads the library itself
    except Exception:
        return False
    return True


def _by_nvrtc(text: str, form: str) -> bytes:
    import cuda.bindings.nvrtc as nvrtc

    options = [f"--gpu-architecture={form}", *_COMMON, *(f"-I{folder}" for folder in _headers())]
    program = _checked(nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, [], []))
    try:
        (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            said = bytes(_checked(nvrtc.nvrtcGetProgramLogSize(program)))  # filled in by the call
            nvrtc.nvrtcGetProgramLog(program, said)
            raise CompileError(f"cuda: NVRTC failed: {_shown(said) or result}")
        portable = form.startswith("compute_")
        size = _checked((nvrtc.nvrtcGetPTXSize if portable else nvrtc.nvrtcGetCUBINSize)(program))
        content = bytes(size)  # filled in by the call
        _checked((nvrtc.nvrtcGetPTX if portable else nvrtc.nvrtcGetCUBIN)(program, content))
        return content
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _checked(answer: tuple[Any, ...]) -> Any:
    result, *values = answer
    if int(result):
        raise CompileError(f"cuda: NVRTC failed: {result}")
    return values[0] if values else None


def _headers() -> list[str]:
    """The folders of ``cuda_fp16.h``, and of the headers that it includes."""
    from cuda import pathfinder

    found = []
    for library in ("cudart", "cccl"):
        with suppress(Exception):  # without includes none is needed; otherwise the compiler's error names the missing file
            folder = pathfinder.find_nvidia_header_directory(library)
            found += [folder] if folder else []
    return found


def _tool(name: str) -> str | None:
    """A program of the toolkit: from the environment variables, the path, or pip's packages."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if (root := os.environ.get(variable)) and (found := shutil.which(name, path=str(Path(root) / "bin"))):
            return found
    if found := shutil.which(name):
        return found
    with suppress(Exception):  # the package is not installed, or does not have the program
        from cuda import pathfinder

        found = pathfinder.find_nvidia_binary_utility(name)
        return str(found) if found else None
    return None


_COMPILERS: dict[str, tuple[Callable[[], bool], Callable[[str, str], bytes]]] = {
    "nvcc": (lambda: nvcc() is not None, _by_nvcc),
    "nvrtc": (_has_nvrtc, _by_nvrtc),
}
