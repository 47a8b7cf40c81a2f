"""nvcc and NVRTC: which is used and how, what they make of texts, and their failures."""

from __future__ import annotations

import functools
import itertools
import operator
import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import cubin
import kernels
import pytest
from cuda_compilers import ARCHITECTURES, COMPILERS, need_disassembler, use
from expressions import AWKWARD, FLOATS, TYPES, Written, extremes, number_of, written

from tvmdml import tensorir as T
from tvmdml.errors import CompileError, InvalidArgument
from tvmdml.targets._lower import lower
from tvmdml.targets.cuda import compilers, prelude, source, terms
from tvmdml.targets.cuda import cubin as product


@pytest.fixture(params=COMPILERS)
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return use(request.param, monkeypatch)


def unit(**examples: Written) -> tuple[str, dict[str, source.Emitted]]:
    """A text of several kernels."""
    emitted = {name: source.emit(kernel.function.with_attr("global_symbol", name)) for name, kernel in examples.items()}
    return source.unit(list(emitted.values())), emitted


def compiled(text: str, *names: str) -> dict[str, bytes]:
    return {image.form: image.content for image in compilers.compile_text(text, names)}


PLAIN = 'extern "C" __global__ void __launch_bounds__(64) kernel(int *x) { *x = 5; }'


# -- What they make of kernels ------------------------------------------------------------------------------------------


@pytest.mark.full
def test_there_is_an_image_for_each_architecture(compiler: str) -> None:
    found = compilers.compile_text(PLAIN, ARCHITECTURES)
    assert [image.form for image in found] == [*ARCHITECTURES, "compute_120"]
    for image in found[:-1]:
        architecture, made = cubin.read(image.content)
        assert architecture == image.form
        assert [*made] == ["kernel"]
        assert made["kernel"].parameters == ((0, 8),)
    text = found[-1].content.rstrip(b"\0").decode()
    assert re.search(r"^\.target sm_120$", text, re.MULTILINE)
    assert ".visible .entry kernel(" in text


MANY = """extern "C" __global__ void __launch_bounds__(64, 16) many(const float *x, float *y, int n) {
  float own[96];
#pragma unroll
  for (int j = 0; j < 96; ++j) own[j] = x[j * 64 + threadIdx.x];
  for (int k = 0; k < n; ++k) {
#pragma unroll
    for (int j = 0; j < 96; ++j) own[j] = own[j] * x[k] + own[(j + 1) % 96];
  }
#pragma unroll
  for (int j = 0; j < 96; ++j) y[j * 64 + threadIdx.x] = own[j];
}
"""
"""More values than there are registers if 16 groups are to fit, and fewer than a thread can have."""
INDEXED = """extern "C" __global__ void __launch_bounds__(64, 16) indexed(const int *x, float *y) {
  float own[32];
  for (int j = 0; j < 32; ++j) own[j] = y[j];
  for (int j = 0; j < 99; ++j) own[x[j] & 31] += y[x[j]];
  for (int j = 0; j < 32; ++j) y[j] = own[j];
}
"""
"""An array that is in memory in any case."""
FEW = 'extern "C" __global__ void __launch_bounds__(64, 16) few(int *x) { *x = 5; }\n'


@pytest.mark.full
def test_what_would_spill_is_not_told_how_many_groups_are_to_fit(compiler: str) -> None:
    name, text = "compute_90", "\n".join([MANY, INDEXED, FEW])
    plain = cubin.read(compilers._compiler()[1](text, "sm_90"))[1]
    assert plain["many"].stack > 0
    assert plain["indexed"].stack >= 128
    found = compiled(text, "sm_80", "sm_90")
    for form in ("sm_80", "sm_90"):
        _, made = cubin.read(found[form])
        assert made["many"].stack == 0
        assert 96 < made["many"].registers <= 255
        assert made["indexed"].stack == plain["indexed"].stack
    _, *kernels = found[name].decode().split(".visible .entry ")
    bounded = {kernel.partition("(")[0]: ".minnctapersm" in kernel for kernel in kernels}
    assert bounded == {"many": False, "indexed": True, "few": True}


@pytest.mark.full
def test_a_text_is_compiled_again_only_if_it_spills(compiler: str) -> None:
    compile_one, given = compilers._compiler()[1], []

    def counted(text: str, form: str) -> bytes:
        given.append(text)
        return compile_one(text, form)

    assert compilers.machine_code(counted, FEW, "sm_90") == (compile_one(FEW, "sm_90"), FEW)
    assert given == [FEW]
    assert compilers.machine_code(counted, INDEXED, "sm_90")[1] == INDEXED
    assert len(given) == 3
    assert compilers.machine_code(counted, MANY.replace("64, 16", "64"), "sm_90")[1] in given
    assert len(given) == 4


def test_what_is_not_a_cubin_says_nothing_about_stacks(any_compiler: str) -> None:
    whole = compilers._compiler()[1](MANY, "sm_90")
    assert product.stacks(whole)["many"] > 0
    for content in (b"", b"the text", b"\x7fELF" + bytes(60), *(whole[:size] for size in range(0, len(whole), 97))):
        assert product.stacks(content) in ({}, product.stacks(whole))


def _every_feature() -> dict[str, Written]:
    """Kernels with everything in them that the generator writes."""

    def functions(i: Any, *buffers: Any) -> None:
        for dtype, buffer in zip(FLOATS, buffers, strict=True):
            x = T.let(buffer[i])
            for name in sorted(terms.MATH - ({"nextafter"} if dtype == "float16" else set())):
                many = {**dict.fromkeys(("atan2", "copysign", "fmax", "fmod", "hypot", "nextafter", "pow"), 2), "fma": 3}.get(
                    name, 1
                )
                given = [x, T.const(3, "int32")] if name == "ldexp" else [x] * many
                T.store(buffer, i, buffer[i] + T.call_pure_extern(dtype, name, *given))
            T.store(buffer, i, buffer[i] + T.rsqrt(x) + T.Cast(dtype, T.isnan(x)))

    def float_atomics(i: Any, *buffers: Any) -> None:
        for dtype, buffer in zip(FLOATS, buffers, strict=True):
            T.atomic_do("add", buffer, 0, T.const(1, dtype))
            T.atomic_do("sub", buffer, 1, T.const(1, dtype))
        T.atomic_do("exchange", buffers[1], 2, T.const(1, "float32"))
        T.store(buffers[2], i, T.atomic("load", buffers[2], 3))

    def aliases(i: Any, x: Any, y: Any) -> None:
        own, shared = T.local("uint8", 16), T.alloc_buffer((256,), "uint8", scope="shared")
        for memory in (x, own, shared):
            words = T.decl_buffer((64,), "uint32", data=memory.data)
            T.store(words, i % 4, y[i])
            T.store(y, i, words[i % 4 + 1] ^ T.Cast("uint32", memory[i % 16]))

    def constants(i: Any, *buffers: Any) -> None:
        for dtype, buffer in zip(TYPES, buffers, strict=True):
            for place, number in enumerate(extremes(dtype)):
                T.store(buffer, i + 64 * place, number_of(dtype, number))
                T.store(buffer, i, T.Select(i < place, buffer[i + place], number_of(dtype, number)))

    def casts(i: Any, *buffers: Any) -> None:
        for one, other in itertools.product(range(len(TYPES)), repeat=2):
            T.store(buffers[other], i + one * 64, T.Cast(TYPES[other], buffers[one][i]))

    def order(i: Any, *buffers: Any) -> None:
        for buffer in buffers:
            T.store(
                buffer,
                i,
                T.Select(T.NE(buffer[i], buffer[i + 1]), T.max(buffer[i], buffer[i + 2]), T.min(buffer[i], buffer[i + 3])),
            )

    def weights(i: Any, x: Any, y: Any) -> None:
        T.store(y, i, T.halves(T.near_exp2(x[i]), T.near_exp2(x[i + 1])))

    found = {
        "weights": written({"x*": "float32", "y*": "uint32"}, weights),
        "aliases": written({"x*": "float16", "y*": "uint32"}, aliases),
        "order": written({f"{dtype}*": dtype for dtype in TYPES}, order),
        "functions": written({f"{dtype}*": dtype for dtype in FLOATS}, functions),
        "float_atomics": written({f"{dtype}*": dtype for dtype in FLOATS}, float_atomics),
        "constants": written({f"{dtype}*": dtype for dtype in TYPES}, constants),
        "casts": written({f"{dtype}*": dtype for dtype in TYPES}, casts),
        **{make.__name__: make().kernel for make in (kernels.loops, kernels.leaving, kernels.own_memory, kernels.group_scan)},
        **{make.__name__: make().kernel for make in (kernels.scalars, kernels.token, kernels.mixed_access, kernels.ramps)},
        **{make.__name__: make().kernel for make in (kernels.copies, kernels.pairs)},
        "votes": kernels.votes(32).kernel,
        **{f"tiles_{a}_{b}": kernels.tiles(a, b).kernel for a, b in kernels.TILES},
    }
    for dtype in TYPES:
        found |= {f"exchanges_{dtype}": kernels.exchanges(dtype, 32).kernel, f"lanes_{dtype}": kernels.lanes(dtype, 4).kernel}
    for dtype, scope in itertools.product(("int32", "uint32", "int64", "uint64"), ("buffer", "shared")):
        found[f"atomics_{dtype}_{scope}"] = kernels.atomics(dtype, scope).kernel
    for number, (one, other) in enumerate(kernels.CUTS):
        found[f"cut_{number}"] = kernels.cut(one, other).kernel
    return found


@pytest.mark.full
def test_everything_compiles_that_the_generator_writes(compiler: str) -> None:
    text, emitted = unit(**_every_feature())
    assert {piece for one in emitted.values() for piece in one.uses} | {"integers"} == {*prelude.PIECES}
    _, made = cubin.read(compiled(text, "sm_75")["sm_75"])
    assert made.keys() == emitted.keys()
    for name, kernel in made.items():
        # The addresses first, and each number where it is written to.
        addresses = [(8 * place, 8) for place in range(len(emitted[name].buffers))]
        sizes = [terms.SIZES[source._PASSED.get(dtype, dtype)] for _, dtype in emitted[name].scalars]
        numbers = [(8 * len(addresses) + offset, size) for (offset, _), size in zip(emitted[name].block, sizes, strict=True)]
        assert [*kernel.parameters] == [*addresses, *numbers], name
        assert kernel.threads == emitted[name].threads, name


@pytest.mark.full(first=1)
def test_any_name_compiles(compiler: str) -> None:
    """Also those of all macros that a compiler has by itself, or from its headers."""
    names = [*AWKWARD]
    if compiler == "nvcc":
        found = compilers.nvcc()
        assert found is not None
        command = [
            found,
            "-E",
            "-Xcompiler",
            "-dM",
            "-x",
            "cu",
            "--std=c++17",
            "-arch=sm_90",
            "-include",
            "cuda_fp16.h",
            os.devnull,
        ]
        said = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        names += re.findall(r"^#define (\w+) \S", said, re.MULTILINE)
    texts = []
    for number, start in enumerate(range(0, len(names), 400)):
        with T.function() as f:
            buffers = [f.buffer(name, "float32") for name in names[start : start + 400]]
            with T.launch_thread("blockIdx.x", 1), T.launch_thread("threadIdx.x", 64) as i:
                for buffer in buffers:
                    T.store(buffer, i, T.Cast("float32", i))
        (function,) = lower(f.result()).functions.values()
        texts.append(source.emit(function.with_attr("global_symbol", f"kernel_{number}")))
    compiled(source.unit(texts), "sm_90")


def _arithmetic() -> tuple[str, dict[str, source.Emitted]]:
    def plain(i: Any, a: Any, b: Any, y: Any) -> None:
        x = T.let(a[i])
        T.store(y, i, T.Div(x * b[i] + x, x - b[i] * b[i]) + T.sqrt(x * x + b[i]) + T.rsqrt(x) * x)

    def fused(i: Any, a: Any, b: Any, y: Any) -> None:
        T.store(y, i, T.fma(a[i], b[i], a[i]))

    bodies = {"plain": plain, "fused": fused}
    found = {
        f"{name}_{dtype}": written({"a*": dtype, "b*": dtype, "y*": dtype}, body)
        for (name, body), dtype in itertools.product(bodies.items(), FLOATS)
    }
    return unit(**found)


def _functions(ptx: str) -> dict[str, str]:
    """The text of each kernel."""
    pieces = re.split(r"\.visible \.entry (\w+)\(", ptx)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


@pytest.mark.full
def test_nothing_is_approximated(compiler: str) -> None:
    text, _ = _arithmetic()
    kernels = _functions(compiled(text, "sm_80")["compute_80"].decode())
    assert len(kernels) == 2 * len(FLOATS)
    for name, kernel in kernels.items():
        assert ".ftz" not in kernel, name
        assert ".approx" not in kernel, name
        kind = "f64" if name.endswith("64") else "f32"  # a float16 is computed in float32
        if name.startswith("plain"):
            assert "fma." not in kernel, name
            assert len(re.findall(rf"\bdiv\.rn\.{kind}", kernel)) + len(re.findall(rf"\brcp\.rn\.{kind}", kernel)) == 2, name
            assert len(re.findall(rf"\bsqrt\.rn\.{kind}", kernel)) == 2, name
            assert len(re.findall(r"\bmul(?:\.rn)?\.f(?:32|64)", kernel)) == 4, name
        else:
            assert len(re.findall(rf"\bfma\.rn\.{kind}", kernel)) == 1, name


def _sass(text: str) -> str:
    """The listing for sm_80."""
    need_disassembler()
    return compilers.sass(compiled(text, "sm_80")["sm_80"])


@pytest.mark.full
def test_machine_code_is_as_exact(compiler: str) -> None:
    """The assembler fuses nothing either. (In a division there is much that is fused, and it has to be.)"""

    def body(i: Any, a: Any, b: Any, y: Any) -> None:
        T.store(y, i, a[i] * b[i] + a[i])

    text, _ = unit(**{dtype: written({"a*": dtype, "b*": dtype, "y*": dtype}, body) for dtype in ("float32", "float64")})
    listing = _sass(text)
    assert not re.search(r"\b[FD]FMA\b|\.FTZ", listing)
    assert all(re.search(rf"\b{name}\b", listing) for name in ("FMUL", "FADD", "DMUL", "DADD"))


@pytest.mark.full
def test_what_an_index_finds_in_several_tables_is_loaded_at_once(compiler: str) -> None:
    def body(i: Any, x: Any, y: Any) -> None:
        T.store(
            y, i, functools.reduce(operator.add, T.looked_up([[8.0 * column + n for n in range(8)] for column in range(7)], x[i]))
        )

    listing = _sass(unit(kernel=written({"x*": "uint32", "y*": "float32"}, body))[0])
    assert len(re.findall(r"\bLDG\.E\.128\.CONSTANT\b", listing)) == 2
    assert len(re.findall(r"\bLDG\b", listing)) == 3
    assert not re.search(r"\bF?SEL\b|\bLDL\b", listing)


@pytest.mark.full
def test_without_its_options_a_compiler_would_fuse(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So what the tests above look for can be found."""
    monkeypatch.setattr(compilers, "_COMMON", ("--std=c++17", "--use_fast_math"))
    text, _ = _arithmetic()
    ptx = compiled(text, "sm_80")["compute_80"].decode()
    assert "fma." in _functions(ptx)["plain_float32"]
    assert ".ftz" in ptx
    assert ".approx" in ptx


@pytest.mark.full
def test_a_refused_text_is_shown_with_what_is_wrong_in_it(compiler: str) -> None:
    with pytest.raises(CompileError, match=rf"(?s)^cuda: {'nvcc' if compiler == 'nvcc' else 'NVRTC'} failed: .*nonsense") as caught:
        compilers.compile_text(PLAIN.replace("5", "nonsense"), ["sm_90"])
    assert len(str(caught.value)) < 5000
    with pytest.raises(CompileError, match="failed: "):
        compilers.compile_text(PLAIN, ["sm_999"])
    with pytest.raises(CompileError, match="failed: ") as caught:
        compilers.compile_text("\n".join(f"int a = {name};" for name in range(2000)), ["sm_90"])
    assert len(str(caught.value)) < 5000


# -- How they are called ------------------------------------------------------------------------------------------------


def program(path: Path, script: str) -> Path:
    """An executable of Python."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{script}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


RECORD = """
import pathlib, sys
here = pathlib.Path(__file__)
with here.with_suffix(".log").open("a") as log:
    log.write("\\0".join(sys.argv[1:]) + "\\n")
out = sys.argv[sys.argv.index("-o") + 1]
pathlib.Path(out).write_text(here.as_posix())
assert pathlib.Path(sys.argv[-1]).read_text() == "the text"
"""
EXACT = {"--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"}


def _inexact(options: list[str]) -> list[str]:
    return [o for o in options if re.search(r"fast|fmad(?!=false)|ftz(?!=false)|prec-\w+(?!=true|[\w=])|-G|-O0", o)]


def test_nvcc_is_told_to_be_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = program(tmp_path / "nvcc", RECORD)
    monkeypatch.setenv("TVMDML_NVCC", str(fake))
    monkeypatch.setenv("TVMDML_CUDA_COMPILER", "nvcc")
    found = compilers.compile_text("the text", ["sm_80", "sm_90"])
    assert [image.form for image in found] == ["sm_80", "sm_90", "compute_90"]
    assert {image.content for image in found} == {str(fake).encode()}
    calls = sorted(line.split("\0") for line in (tmp_path / "nvcc.log").read_text().splitlines())
    assert [call[:2] for call in calls] == [["-cubin", "-arch=sm_80"], ["-cubin", "-arch=sm_90"], ["-ptx", "-arch=compute_90"]]
    for call in calls:
        assert set(call) >= EXACT
        assert "--std=c++17" in call
        assert not _inexact(call)
        assert not Path(call[-1]).exists()  # no files remain


def _fake_nvrtc(monkeypatch: pytest.MonkeyPatch, code: int = 0) -> list[list[str]]:
    """A stand-in for the library, which notes its options."""
    noted: list[list[str]] = []

    def compile_program(program: object, count: int, options: list[bytes]) -> tuple[int]:
        assert count == len(options)
        noted.append([option.decode() for option in options])
        return (code,)

    fake = ModuleType("cuda.bindings.nvrtc")
    fake.__dict__.update(
        nvrtcVersion=lambda: (0, 13, 0),
        nvrtcResult=SimpleNamespace(NVRTC_SUCCESS=0),
        nvrtcCreateProgram=lambda text, name, count, headers, names: (0, text),
        nvrtcCompileProgram=compile_program,
        nvrtcGetProgramLogSize=lambda program: (0, 1),
        nvrtcGetProgramLog=lambda program, log: (0,),
        nvrtcGetPTXSize=lambda program: (0, 3),
        nvrtcGetCUBINSize=lambda program: (0, 5),
        nvrtcGetPTX=lambda program, content: (0,),
        nvrtcGetCUBIN=lambda program, content: (0,),
        nvrtcDestroyProgram=lambda program: (0,),
    )
    package, bindings = ModuleType("cuda"), ModuleType("cuda.bindings")
    package.bindings, bindings.nvrtc = bindings, fake  # type: ignore[attr-defined]
    for module in (package, bindings, fake):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(compilers, "_headers", lambda: ["/headers", "/more"])
    monkeypatch.setenv("TVMDML_CUDA_COMPILER", "nvrtc")
    return noted


def test_nvrtc_is_told_to_be_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = _fake_nvrtc(monkeypatch)
    found = compilers.compile_text("the text", ["sm_80"])
    assert [(image.form, len(image.content)) for image in found] == [("sm_80", 5), ("compute_80", 3)]
    assert sorted(call[0] for call in noted) == ["--gpu-architecture=compute_80", "--gpu-architecture=sm_80"]
    for call in noted:
        assert set(call) >= EXACT
        assert {"--std=c++17", "-I/headers", "-I/more"} < set(call)
        assert not _inexact(call)


def test_what_nvrtc_answers_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_nvrtc(monkeypatch, code=6)
    with pytest.raises(CompileError, match=r"^cuda: NVRTC failed: 6$"):
        compilers.compile_text("the text", ["sm_80"])


# -- Which is used --------------------------------------------------------------------------------------------------------


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No compiler is here: on no path, nor where the environment says, nor among pip's packages. Gives a folder that is on it."""
    for name in ("TVMDML_NVCC", "TVMDML_CUDA_COMPILER", "CUDA_HOME", "CUDA_PATH", "NVCC_CCBIN"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("cuda", "cuda.bindings", "cuda.bindings.nvrtc", "cuda.pathfinder"):
        monkeypatch.setitem(sys.modules, name, None)
    return folder


def test_without_a_compiler_it_is_said_how_to_get_one(nothing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for asked, words in (("", "nvcc, or NVRTC, was not found"), ("nvcc", "nvcc was not found"), ("nvrtc", "nvrtc was not found")):
        monkeypatch.setenv("TVMDML_CUDA_COMPILER", asked)
        for call in (compilers.describe, lambda: compilers.compile_text(PLAIN, ["sm_90"])):
            with pytest.raises(
                CompileError, match=rf"^cuda: {words}\. Install CUDA's toolkit, or `pip install .*\[cuda\]'`, which"
            ):
                call()
    monkeypatch.setenv("TVMDML_CUDA_COMPILER", "clang")
    with pytest.raises(InvalidArgument, match="TVMDML_CUDA_COMPILER: given 'clang'; allowed: nvcc, nvrtc"):
        compilers.describe()
    with pytest.raises(CompileError, match=r"nvdisasm or cuobjdump, and neither was found\..*pip install nvidia-cuda-nvdisasm"):
        compilers.sass(b"")


def test_compilers_are_looked_for_in_this_order(nothing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finder, package = ModuleType("cuda.pathfinder"), ModuleType("cuda")
    finder.find_nvidia_binary_utility = {"nvcc": str(tmp_path / "pips")}.get  # type: ignore[attr-defined]
    package.pathfinder = finder  # type: ignore[attr-defined]
    for module in (package, finder):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    host = program(nothing / "g++", "")
    assert compilers.nvcc() == str(tmp_path / "pips")
    on_path = program(nothing / "nvcc", RECORD)
    assert compilers.describe() == f"nvcc ({on_path})"
    host.unlink()
    _fake_nvrtc(monkeypatch)
    monkeypatch.delenv("TVMDML_CUDA_COMPILER")
    assert compilers.nvcc() is None, "without a compiler for the host"
    assert compilers.describe() == "NVRTC"
    monkeypatch.setenv("NVCC_CCBIN", "/somewhere/else")
    assert compilers.nvcc() == str(on_path)
    toolkit = program(tmp_path / "toolkit" / "bin" / "nvcc", RECORD)
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "empty"))
        assert compilers.nvcc() == str(on_path)
        monkeypatch.setenv(variable, str(tmp_path / "toolkit"))
        assert compilers.nvcc() == str(toolkit)
        monkeypatch.delenv(variable)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    named = program(tmp_path / "my nvcc", RECORD)
    monkeypatch.setenv("TVMDML_NVCC", str(named))
    assert compilers.compile_text("the text", ["sm_90"])[0].content == str(named).encode()
    monkeypatch.setenv("TVMDML_CUDA_COMPILER", "nvrtc")
    assert compilers.describe() == "NVRTC"


# -- What goes wrong --------------------------------------------------------------------------------------------------------


WRONG: dict[str, tuple[str, str]] = {
    "complains": ("import sys; sys.exit('no such\\nthing')", r"nvcc failed: no such\nthing$"),
    "prints": ("print('on stdout'); raise SystemExit(2)", "nvcc failed: on stdout$"),
    "says nothing": ("raise SystemExit(3)", "nvcc failed: exit status 3$"),
    "says no text": ("import os; os.write(2, bytes(range(128, 256)) * 90); raise SystemExit(1)", "nvcc failed: \ufffd{4000}$"),
    "is killed": ("import os; os.kill(os.getpid(), 9)", "nvcc failed: exit status -9$"),
    "writes nothing": ("print('all is well')", ".*/nvcc wrote no output file; its messages: all is well$"),
    "reads": ("import sys; assert sys.stdin.read() == ''; sys.exit('read')", "nvcc failed: read$"),
}


@pytest.mark.full
def test_what_goes_wrong_in_nvcc_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_CUDA_COMPILER", "nvcc")
    (tmp_path / "text").write_text("no program")
    cases = [(program(tmp_path / case / "nvcc", script), words) for case, (script, words) in WRONG.items()]
    cases += [(path, f"{path.name} could not be run: ") for path in (tmp_path / "missing", tmp_path / "text", tmp_path)]
    for path, words in cases:
        monkeypatch.setenv("TVMDML_NVCC", str(path))
        with pytest.raises(CompileError, match=f"^cuda: {words}"):
            compilers.compile_text(PLAIN, ["sm_90"])


def test_an_nvcc_that_hangs_is_stopped_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(
        f"#!/bin/sh\nsleep 600 &\necho $! > '{tmp_path}/pid'\nsleep 600\n"
    )  # a shell starts soon on a busy machine, too
    nvcc.chmod(0o700)
    monkeypatch.setenv("TVMDML_NVCC", str(nvcc))
    monkeypatch.setenv("TVMDML_CUDA_COMPILER", "nvcc")
    monkeypatch.setattr(compilers, "_TIMEOUT", 1)
    began = time.monotonic()
    with pytest.raises(CompileError, match=r"^cuda: nvcc was stopped: it ran for more than 1 seconds$"):
        compilers._by_nvcc(PLAIN, "sm_90")
    assert time.monotonic() - began < 300
    stat_file = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")
    for _ in range(1000):  # until the system has ended the process
        if not stat_file.exists() or stat_file.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("what it started still runs")
