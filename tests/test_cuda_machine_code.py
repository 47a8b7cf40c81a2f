"""CUDA's compilers: what they are told, that nothing is approximated, and that every kernel becomes machine code everywhere."""

from __future__ import annotations

import itertools
import os
import re
import struct
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ALL, diagonal_desc
from test_gpu_features import OPERATORS

import tvmdml
from tvmdml import CompileError, InvalidArgument, TensorDesc, knobs, targets
from tvmdml import tensorir as T
from tvmdml.targets._lower import lower
from tvmdml.targets.cuda import CudaTarget, architectures, compilers, translate
from tvmdml.targets.cuda.source import Emitted, emit, unit

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100")
_CUDA_MACHINE = 190


@pytest.fixture(params=["nvcc", "nvrtc"])
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each compiler of NVIDIA's; the emulator's is not one."""
    name: str = request.param
    monkeypatch.delenv("TVMDML_NVCC", raising=False)
    monkeypatch.setenv("TVMDML_CUDA_COMPILER", name)
    try:
        compilers.describe()
    except CompileError as error:
        if os.environ.get(f"TVMDML_EXPECT_{name.upper()}") == "1":
            raise
        pytest.skip(str(error))
    return name


@pytest.fixture
def nvcc(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """NVIDIA's own."""
    monkeypatch.delenv("TVMDML_NVCC", raising=False)
    found = compilers.nvcc()
    if found is None:
        assert os.environ.get("TVMDML_EXPECT_NVCC") != "1", "nvcc is not here"
        pytest.skip("no nvcc here")
    return found


def arithmetic(dtype: str) -> str:
    """The text of a kernel with everything that a compiler could do quickly and wrong."""
    with T.on_device(), T.function() as f:
        a, b = f.buffer("a", dtype), f.buffer("b", dtype)
        with T.launch(1, 32) as (_, thread):
            x, y = T.let(a[thread]), T.let(b[thread])
            T.store(b, thread, T.sqrt(x * y + x) / y + T.nearbyint(x) * y)
    return translate(f.result())[0]


# -- What they are told


def test_nothing_is_approximated(compiler: str) -> None:
    """Read from PTX: no fused multiply-add, no denormals taken for zero, division and roots rounded to the nearest."""
    for dtype, short in (("float16", "f32"), ("float32", "f32"), ("float64", "f64")):
        ptx = compilers.compile_text(arithmetic(dtype), ("sm_80",))[-1].content.decode()
        code = ptx[ptx.index(".entry") :]
        assert f"sqrt.rn.{short}" in code
        assert f"div.rn.{short}" in code
        assert f"mul.rn.{short}" in code
        assert f"add.rn.{short}" in code
        assert not re.search(r"\b(fma|mad)\b", code), dtype
        assert not re.search(r"\.ftz|\.approx|\.full", code), dtype


def test_the_flags_of_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = tmp_path / "said"
    script = tmp_path / "nvcc"
    script.write_text(f'#!/bin/sh\necho "$@" >> {said}\nfor last; do :; done\ncp "$last" "$(dirname "$last")/kernel.out"\n')
    script.chmod(0o755)
    monkeypatch.setenv("TVMDML_NVCC", str(script))
    monkeypatch.setenv("TVMDML_CUDA_COMPILER", "nvcc")
    images = compilers.compile_text("text", ("sm_80", "sm_90"))
    assert [(image.form, image.content) for image in images] == [(form, b"text") for form in ("sm_80", "sm_90", "compute_90")]
    lines = said.read_text().splitlines()
    assert sorted(line.split()[0] for line in lines) == ["-cubin", "-cubin", "-ptx"]
    for line in lines:
        assert {"--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "--std=c++17"} <= set(line.split())
        assert "fast" not in line
    assert {re.search(r"-arch=(\S+)", line)[1] for line in lines} == {"sm_80", "sm_90", "compute_90"}  # type: ignore[index]


def test_the_flags_of_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    said: list[set[str]] = []
    compile_program = nvrtc.nvrtcCompileProgram

    def compile_(program: Any, count: int, options: list[bytes]) -> Any:
        said.append({option.decode() for option in options})
        return compile_program(program, count, options)

    monkeypatch.setattr(nvrtc, "nvrtcCompileProgram", compile_)
    monkeypatch.setenv("TVMDML_CUDA_COMPILER", "nvrtc")
    compilers.compile_text('extern "C" __global__ void k() {}', ("sm_80",))
    assert len(said) == 2
    for options in said:
        assert {"--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "--std=c++17"} <= options
        assert not any("fast" in option for option in options)


# -- What they make


def test_one_kernel_has_code_for_several_architectures(compiler: str) -> None:
    target = targets.resolve("cuda:sm_75,sm_90")
    desc = TensorDesc("float16", (3, 40))
    kernel = target.kernel(tvmdml.ElementWiseRound(input_tensor=desc, output_tensor=desc, rounding_mode="toward_infinity"))
    build: Any = target.build(kernel.build())
    images = {image.form: image.content for image in build.launcher().program.images}
    assert list(images) == ["sm_75", "sm_90", "compute_90"]
    for form, content in list(images.items())[:2]:
        assert content.startswith(b"\x7fELF")
        assert struct.unpack_from("<H", content, 18)[0] == _CUDA_MACHINE
        (flags,) = struct.unpack_from("<I", content, 48)
        assert architectures.number(form) in (flags & 0xFF, flags >> 8 & 0xFF)  # older tools have it in the lowest byte
    assert re.search(rb"^\.target sm_90$", images["compute_90"], re.MULTILINE)


def test_the_code_can_be_read(compiler: str) -> None:
    desc = TensorDesc("float32", (64,))
    operator = tvmdml.compile(
        tvmdml.ElementWiseRound(input_tensor=desc, output_tensor=desc, rounding_mode="toward_zero"), "cuda:sm_80,sm_90"
    )
    assert 'extern "C" __global__ void' in operator.source("cuda")
    assert ".target sm_90" in operator.source("ptx")
    assert "LDG" in operator.source("sass")
    with pytest.raises(InvalidArgument, match="allowed: tir, cuda, ptx, sass"):
        operator.source("spirv")


# What ptxas says about a kernel: its name, bytes of stack, of those spilled, and what it uses.
_PROPERTIES = re.compile(
    r"Function properties for (\w+)\n\s*(\d+) bytes stack frame, (\d+) bytes spill stores[^\n]*\n(?:ptxas info\s*: )([^\n]*)"
)


def _everything() -> Iterator[Emitted]:
    """Every device function of every operator, in every way, type and layout that its schedule tells apart."""
    target = targets.resolve("cuda:sm_90")
    known: set[object] = set()
    for name, (descs, algorithms) in OPERATORS.items():
        for data_type, algorithm in itertools.product(ALL, algorithms or ("",)):
            with knobs.using(**{name: {"algorithm": algorithm} if algorithm else {}}):
                for desc in descs(data_type):
                    kernel = target.kernel(desc)
                    if kernel.identity in known:
                        continue
                    known.add(kernel.identity)
                    for function in lower(kernel.build()).functions.values():
                        found = emit(function)
                        own = f"kernel_{len(known)}_{found.name}"
                        yield found._replace(name=own, text=found.text.replace(f" {found.name}(", f" {own}(", 1))


def test_every_kernel_becomes_machine_code_for_every_architecture(nvcc: str, tmp_path: Path) -> None:
    """And takes no more of a processor than it has: registers for all threads, shared memory; and none spills."""
    functions = list(_everything())
    assert len(functions) > 150
    count = 8
    jobs = []
    for part in range(count):
        path = tmp_path / f"part{part}.cu"
        path.write_text(unit(functions[part::count]))
        jobs += [(path, architecture) for architecture in ARCHITECTURES]

    def assembled(path: Path, architecture: str) -> str:
        options = [f"-arch={architecture}", "--std=c++17", *compilers.EXACT, "-diag-suppress=177", "-Xptxas=-v"]
        command = [nvcc, "-cubin", *options, "-o", str(path.with_suffix(f".{architecture}")), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:4000]
        return done.stderr

    with ThreadPoolExecutor(2) as pool:
        said = dict(zip(jobs, pool.map(lambda job: assembled(*job), jobs), strict=True))
    threads = {function.name: function.threads[0] * function.threads[1] * function.threads[2] for function in functions}
    seen = 0
    for (_, architecture), text in said.items():
        for name, stack, spilled, rest in _PROPERTIES.findall(text):
            registers = int(re.search(r"Used (\d+) registers", rest)[1])  # type: ignore[index]
            shared = re.search(r"(\d+) bytes smem", rest)
            assert registers * threads[name] <= 1 << 16, (name, architecture)
            assert int(shared[1] if shared else 0) <= CudaTarget.max_shared_bytes, (name, architecture)
            assert (int(stack), int(spilled)) == (0, 0), (name, architecture)
            seen += 1
    assert seen == len(functions) * len(ARCHITECTURES)


def test_launches_of_the_largest_tensors_keep_to_the_limits() -> None:
    target = targets.resolve("cuda:sm_90")
    sizes = ((1 << 31) - 1,), (1 << 16, 1 << 15), (3, 1 << 20, 5, 64)
    for size in sizes:
        desc = TensorDesc("uint8", size)
        coordinates = TensorDesc("uint32", (desc.element_count, len(size))) if len(size) == 1 else None
        descs: list[Any] = [diagonal_desc(desc, 1, 0, 1, has_input=False)] if len(size) > 1 else []
        if coordinates is not None:
            count = TensorDesc("uint32", (1,))
            descs.append(
                tvmdml.NonzeroCoordinates(input_tensor=desc, output_count_tensor=count, output_coordinates_tensor=coordinates)
            )
        k = TensorDesc("uint8", (*size[:-1], 7)), TensorDesc("uint32", (*size[:-1], 7))
        if size[-1] < 1 << 30:
            descs.append(
                tvmdml.TopK1(
                    input_tensor=desc,
                    output_value_tensor=k[0],
                    output_index_tensor=k[1],
                    axis=len(size) - 1,
                    k=7,
                    axis_direction="decreasing",
                )
            )
        for one in descs:
            kernel = target.kernel(one)
            _, program = translate(kernel.build())
            for launch in program.launches(kernel.scalars):
                x, y, z = launch.groups
                assert 0 < x < 1 << 31
                assert y == z == 1
                function = program.functions[launch.function]
                assert function.threads[0] <= 1024
                assert 8 * function.buffers + function.scalar_bytes <= 4096


# -- Which one


def test_a_compiler_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_CUDA_COMPILER", "gcc")
    with pytest.raises(InvalidArgument, match="TVMDML_CUDA_COMPILER: given 'gcc'; allowed: nvcc, nvrtc"):
        compilers.compile_text("", ("sm_80",))
    monkeypatch.setattr(compilers, "_COMPILERS", {name: (lambda: False, run) for name, (_, run) in compilers._COMPILERS.items()})
    monkeypatch.setenv("TVMDML_CUDA_COMPILER", "nvrtc")
    with pytest.raises(CompileError, match=r"nvrtc is not here\. Install CUDA's toolkit, or"):
        compilers.compile_text("", ("sm_80",))
    monkeypatch.delenv("TVMDML_CUDA_COMPILER")
    with pytest.raises(CompileError, match="nvcc, or NVRTC, is not here"):
        compilers.describe()


def test_nvcc_comes_before_nvrtc(nvcc: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TVMDML_CUDA_COMPILER", raising=False)
    assert compilers.describe() == f"nvcc ({nvcc})"
    monkeypatch.setenv("TVMDML_CUDA_COMPILER", "nvrtc")
    if compilers._has_nvrtc():
        assert compilers.describe() == "NVRTC"


def test_the_toolkit_that_the_environment_names_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "bin" / "nvcc"
    own.parent.mkdir()
    own.write_text("#!/bin/sh\nexit 3\n")
    own.chmod(0o755)
    for name in ("TVMDML_NVCC", "TVMDML_CUDA_COMPILER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert compilers.nvcc() == str(own)
    with pytest.raises(CompileError, match="nvcc failed"):
        compilers.compile_text("", ("sm_80",))


def test_what_a_compiler_refuses_is_shown(compiler: str) -> None:
    with pytest.raises(CompileError, match=r'(?s)cuda: (nvcc|NVRTC) failed: .*identifier "nonsense" is undefined'):
        compilers.compile_text('extern "C" __global__ void k(int *a) { a[0] = nonsense; }', ("sm_80",))


@pytest.mark.parametrize("content", ["", "not a program", None])
def test_what_is_no_nvcc_is_an_error(content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "nvcc"
    if content is not None:
        path.write_text(content)
        path.chmod(0o755)
    monkeypatch.setenv("TVMDML_NVCC", str(path))
    monkeypatch.setenv("TVMDML_CUDA_COMPILER", "nvcc")
    with pytest.raises(CompileError, match="nvcc"):
        compilers.compile_text("", ("sm_80",))


def test_an_nvcc_that_does_not_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "nvcc"
    path.write_text("#!/bin/sh\nexec sleep 60\n")
    path.chmod(0o755)
    monkeypatch.setenv("TVMDML_NVCC", str(path))
    monkeypatch.setenv("TVMDML_CUDA_COMPILER", "nvcc")
    monkeypatch.setattr(compilers, "_TIMEOUT", 0.2)
    with pytest.raises(CompileError, match="was stopped: it ran for more than"):
        compilers.compile_text("", ("sm_80",))


# -- Architectures


def test_architectures_are_parsed() -> None:
    assert architectures.parse("sm_90, sm_80,sm_90") == ("sm_80", "sm_90")
    assert targets.resolve("cuda:sm_100,sm_75").name == "cuda:sm_75,sm_100"
    for wrong in ("sm_9", "sm_70", "sm_90a", "compute_90", "", "sm_80,", "sm_80;sm_90", "sm_٩٠"):
        with pytest.raises(InvalidArgument, match="target architecture: given"):
            architectures.parse(wrong)


@given(
    st.lists(st.sampled_from([75, 80, 86, 89, 90, 100, 120]), min_size=1, unique=True), st.sampled_from([75, 80, 87, 90, 103, 121])
)
def test_the_best_code_for_a_device_is_chosen(compiled: list[int], device: int) -> None:
    forms = [*(f"sm_{n}" for n in compiled), f"compute_{max(compiled)}"]
    found = architectures.best(forms, f"sm_{device}")
    machine = [
        n for n in compiled if n == device or (n // 10 == device // 10 and n <= device and device != 87)
    ]  # Orin's is its own
    if machine:
        assert found == f"sm_{max(machine)}"
    else:
        assert found == (f"compute_{max(compiled)}" if max(compiled) <= device else None)


@given(st.integers(75, 999))
def test_an_architecture_that_is_newer_than_this_package_is_taken_for_the_newest(number: int) -> None:
    assert architectures.of([f"sm_{number}"]).threads in (1024, 1536, 2048)
