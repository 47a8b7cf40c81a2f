"""Packs in C and C++: the header compiles without a warning, and its functions give the reference's results, bit for bit."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tvm_ffi.libinfo as info
from c_programs import ASAN, SANITIZED, compiled, said
from folders import C as SOURCES
from support import IN_PLACE, diagonal_desc, nonzero_desc, round_desc, seeded, special_values, top_k_desc

from tvmdml import MaxUnpooling, Operator, TensorDesc, packs
from tvmdml.errors import InvalidArgument, PackError, TvmdmlError
from tvmdml.library import format as container
from tvmdml.library import lines, records
from tvmdml.library.format import Pack
from tvmdml.library.spec import Spec, Wanted
from tvmdml.operators._contract import Role
from tvmdml.packs import header
from tvmdml.targets.cpu import bundle, host

Array = np.ndarray[Any, np.dtype[Any]]

pytestmark = pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("g++")), reason="no gcc and g++ here")

LEVELS = ("aarch64",) if host.host().level == "aarch64" else ("x86-64", "x86-64-v3")
ROUND_IN_PLACE = Wanted(round_desc(TensorDesc("float32", (4, 3)), "halves_to_nearest_even"), IN_PLACE)
ROUND = Wanted(ROUND_IN_PLACE.desc)


def unpooling_desc() -> MaxUnpooling:
    one = (1, 1, 1, 1)
    return MaxUnpooling(
        input_tensor=TensorDesc("float32", one),
        indices_tensor=TensorDesc("uint32", one),
        output_tensor=TensorDesc("float32", (1, 2, 3, 70)),
    )


WANTED = (
    ROUND_IN_PLACE,
    ROUND,
    Wanted(round_desc(TensorDesc("float32", (300, 1001)))),
    Wanted(round_desc(TensorDesc("float16", (5, 3), (7, 2)))),
    Wanted(round_desc(TensorDesc("float16", (5, 3)))),
    Wanted(top_k_desc(TensorDesc("float32", (4, 1000)), 1, 3, "decreasing")),
    Wanted(top_k_desc(TensorDesc("float16", (64, 1600)), 1, 50, "increasing")),
    Wanted(top_k_desc(TensorDesc("int8", (6, 5)), 0, 3, "increasing", "uint64")),
    Wanted(nonzero_desc(TensorDesc("float32", (256, 1024)))),
    Wanted(nonzero_desc(TensorDesc("uint8", (3, 4)))),
    Wanted(unpooling_desc()),
    Wanted(diagonal_desc(TensorDesc("float16", (256, 1024)), 2.0, -3, 2)),
    Wanted(diagonal_desc(TensorDesc("int64", (6, 7)), -5, 0, 1, has_input=False)),
)
SOME = (ROUND_IN_PLACE, WANTED[2], WANTED[5], WANTED[8], WANTED[10])


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """A pack of these operations for two levels."""
    path = tmp_path_factory.mktemp("pack") / "ops.tvmdml"
    names = [f"cpu:{level}" for level in LEVELS if host.host().runs(host.parse(level, here=False))]
    packs.build(Spec(targets=tuple(names), wanted=WANTED, knobs={}), path, jobs=1)
    return Pack(path)


@pytest.fixture(scope="module")
def folder(pack: Pack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its header and libraries."""
    found = tmp_path_factory.mktemp("header")
    header.write(pack, found)
    return found


@pytest.fixture(scope="module")
def check(folder: Path) -> Path:
    """The program that runs jobs."""
    return compiled("gcc", SOURCES / "check.c", folder, "-std=c99", "-pthread", "-ldl")


# -- Jobs: what goes in, and what has to come out -----------------------------------------------------------------


class Tensor(NamedTuple):
    desc: TensorDesc
    values: Array
    output: bool


def memory_of(desc: TensorDesc, values: Array | None) -> Array:
    """The elements where they lie in memory, and something else between them."""
    memory = np.frombuffer(b"\xa5" * (desc.span * desc.data_type.itemsize), desc.data_type.numpy).copy()
    if values is not None:
        strides = [stride * desc.data_type.itemsize for stride in desc.layout]
        np.lib.stride_tricks.as_strided(memory, desc.sizes, strides)[...] = values
    return memory


def values_for(desc: TensorDesc, key: object) -> Array:
    random = seeded(key)
    if not desc.data_type.is_float:
        return random.integers(0, 3, desc.sizes).astype(desc.data_type.numpy)
    values = (random.standard_normal(desc.sizes) * 10).astype(desc.data_type.numpy)
    values[random.random(desc.sizes) < 0.5] = 0
    special = special_values(desc.data_type)
    values.ravel()[: special.size] = special[: values.size]
    return values


def tensors_of(wanted: Wanted) -> list[Tensor]:
    """The operation's tensors with what they are to hold in the end, by the reference."""
    desc: Operator = wanted.desc.canonical()
    inputs = [None if t is None else values_for(t, (wanted.line, name)) for name, t in desc.tensors(Role.INPUT)]
    with np.errstate(invalid="ignore"):
        outputs = desc.reference(*inputs)
    both = zip([t for _, t in desc.tensors()], [*inputs, *outputs], strict=True)
    found = [Tensor(t, v, i >= len(inputs)) for i, (t, v) in enumerate(both) if t is not None and v is not None]
    return found[1:] if wanted.shared else found


def write_jobs(folder: Path, wanted: Sequence[Wanted] = WANTED) -> Path:
    text = []
    for number, one in enumerate(wanted):
        text.append(one.line)
        source = next(iter(one.desc.tensors()))[1]
        tensors = tensors_of(one)
        for i, tensor in enumerate(tensors):
            path = folder / f"{number}.{i}"
            given = None if tensor.output else tensor.values
            if one.shared:
                assert source is not None
                given = values_for(source, (one.line, "input_tensor"))
            path.write_bytes(memory_of(tensor.desc, given).tobytes())
            text.append(str(path))
    jobs = folder / "jobs"
    jobs.write_text("\n".join(text) + "\n")
    return jobs


def assert_done(folder: Path, wanted: Sequence[Wanted] = WANTED) -> None:
    """The files of the jobs hold what the reference gives, bit for bit, and nothing else was written."""
    for number, one in enumerate(wanted):
        tensors = tensors_of(one)
        for i, tensor in enumerate(tensors):
            found, right = (folder / f"{number}.{i}").read_bytes(), memory_of(tensor.desc, tensor.values).tobytes()
            assert found == right, f"{one.line}: tensor {i}"


# -- The tests ----------------------------------------------------------------------------------------------------


@pytest.mark.full(first=1)
@pytest.mark.parametrize(("way", "threads"), [("run", 1), ("run", 3), ("callers", 8), ("fork", 3), ("errors", 3)])
def test_c_gives_what_the_reference_gives(check: Path, folder: Path, tmp_path: Path, way: str, threads: int) -> None:
    jobs = write_jobs(tmp_path)
    assert f"{threads} threads" in said(check, way, folder, jobs, TVMDML_NUM_THREADS=str(threads))
    assert_done(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted as Linux does")
@pytest.mark.parametrize("threads", [1, 3])
def test_all_libraries_share_one_pool(check: Path, folder: Path, tmp_path: Path, threads: int) -> None:
    assert f"it took {threads}\n" in said(check, "run", folder, write_jobs(tmp_path), TVMDML_NUM_THREADS=str(threads))


def test_the_check_can_fail(check: Path, folder: Path, tmp_path: Path) -> None:
    jobs = write_jobs(tmp_path)
    said(check, "run", folder, jobs)
    changed = tmp_path / f"{next(i for i, one in enumerate(WANTED) if one.desc.NAME == 'TOP_K1')}.1"
    changed.write_bytes(bytes([changed.read_bytes()[0] ^ 1]) + changed.read_bytes()[1:])
    with pytest.raises(AssertionError, match=r"TOP_K1.* tensor 1"):
        assert_done(tmp_path)


@pytest.mark.full
@pytest.mark.parametrize(("compiler", "standard"), [("gcc", "c99"), ("g++", "c++11")])
def test_sanitizers_find_nothing(folder: Path, tmp_path: Path, compiler: str, standard: str) -> None:
    options = [f"-std={standard}", "-pthread", "-ldl", *SANITIZED]
    program = compiled(compiler, SOURCES / "check.c", folder, *options, name=f"sanitized_{standard}")
    jobs = write_jobs(tmp_path)
    said(program, "errors", folder, jobs, ASAN_OPTIONS=ASAN, TVMDML_NUM_THREADS="2")
    assert_done(tmp_path)


def expected_example() -> str:
    scores = ((np.arange(4000) * 7919 % 10007) / 8).astype(np.float32).reshape(4, 1000)
    values, indices = WANTED[5].desc.reference(scores)
    return "".join(f"{value:g} at {index}\n" for value, index in zip(values.ravel(), indices.ravel(), strict=True))


@pytest.mark.full(first=1)
@pytest.mark.parametrize("sanitized", [(), SANITIZED], ids=["as it is", "sanitized"])
def test_the_example_in_c(folder: Path, sanitized: tuple[str, ...]) -> None:
    program = compiled("gcc", SOURCES / "example.c", folder, "-std=c99", "-ldl", *sanitized)
    found = said(program, folder, ASAN_OPTIONS=ASAN)
    best = [float(line.split()[0]) for line in expected_example().splitlines()]
    assert found == expected_example() + "".join(f"{np.rint(value):g}\n" for value in best)


@pytest.mark.full
def test_the_example_in_cpp(pack: Pack, folder: Path) -> None:
    runtime = Path(info.find_libtvm_ffi())
    linked = (f"-L{runtime.parent}", "-ltvm_ffi", f"-Wl,-rpath,{runtime.parent}", "-ldl")
    program = compiled("g++", SOURCES / "example.cpp", folder, "-std=c++17", *linked)
    target = f"cpu:{LEVELS[0]}"
    operation = pack.operation(records.operation_key(target, lines.of(ROUND.desc), False))
    assert operation is not None
    launch = operation.launches[0]
    library = folder / f"ops-{LEVELS[0]}-element_wise_round.so"
    rounded = ROUND.desc.reference((np.arange(12, dtype=np.float32) / 2 - 3).reshape(4, 3))[0].ravel()
    found = said(program, folder, library, f"tvmdml_{launch.kernel.hex()}", *launch.scalars)
    assert found == expected_example() + "".join(f"{value:g}\n" for value in rounded)
    assert "example:" in said(program, folder, library, "no_such_kernel", ok=False)


def test_a_folder_or_library_that_is_not_there(check: Path, folder: Path, tmp_path: Path) -> None:
    assert re.search(r"open: .*/none/ops-.*\.so: cannot open", said(check, "open", tmp_path / "none", ok=False))
    assert "too long" in said(check, "open", "/" + "long" * 2000, ok=False)
    for file in folder.glob("*.so"):
        if "top_k" not in file.name:
            shutil.copy(file, tmp_path)
    assert re.search(r"open: .*-top_k\.so: cannot open", said(check, "open", tmp_path, ok=False))


def test_another_packs_library_is_refused(check: Path, folder: Path, tmp_path: Path) -> None:
    for file in folder.glob("*.so"):
        shutil.copy(folder / file.name.replace("top_k", "nonzero_coordinates"), tmp_path / file.name)
    assert "a library does not belong to this header" in said(check, "open", tmp_path, ok=False)


X86_64_V3 = "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"


FLAGS = {
    f"flags\t\t: fpu {X86_64_V3} sse\n": "x86-64-v3",
    f"flags\t\t: fpu {X86_64_V3}": "x86-64-v3",
    f"flags\t\t: fpu {X86_64_V3} sse\n".replace(" avx2 ", " avx22 avx512f "): "x86-64",
    "flags\t\t:\n": "x86-64",
    f"bugs\t\t: {X86_64_V3}\n": "x86-64",
}


@pytest.mark.skipif(len(LEVELS) < 2, reason="this family has one level")
def test_the_level_is_the_best_that_runs(folder: Path, tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    program = compiled("gcc", SOURCES / "check.c", folder, "-std=c99", f'-DOPS_CPUINFO="{info}"', "-pthread", "-ldl", name="level")
    assert said(program, "open", folder).startswith("x86-64, "), "nothing is known of this processor"
    for flags, level in FLAGS.items():
        if host.host().runs(host.parse(level, here=False)):
            info.write_text(f"processor\t: 0\nvendor_id\t: none\n{flags}")
            assert said(program, "open", folder).startswith(f"{level}, ")


def rewritten(pack: Pack, path: Path, **changes: Any) -> Pack:
    container.write(path, pack.contents()._replace(**changes))
    return Pack(path)


@pytest.mark.skipif(len(LEVELS) < 2 or host.state_of_tiles() == host.USED, reason="it is about x86-64 without matrix tiles")
@pytest.mark.parametrize(("word", "level"), [("fpu", 1), ("amx_tile", 0)])
def test_the_system_is_asked_for_matrix_tiles(
    word: str, level: int, pack: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses, since the processor has none, whatever the flags say; then a lower level is the best one."""
    words = host.Processor.words.fget  # type: ignore[attr-defined]
    more = property(lambda processor: (*words(processor), *[word] * (processor.level != LEVELS[0])))
    monkeypatch.setattr(host.Processor, "words", more)
    header.write(pack, tmp_path)
    info = tmp_path / "cpuinfo"
    info.write_text(f"flags : fpu amx_tile {X86_64_V3}\n")
    program = compiled(
        "gcc", SOURCES / "check.c", tmp_path, "-std=c99", f'-DOPS_CPUINFO="{info}"', "-pthread", "-ldl", name="level"
    )
    if host.host().runs(host.parse(LEVELS[1], here=False)):
        assert said(program, "open", tmp_path).startswith(f"{LEVELS[level]}, ")


def test_a_level_that_is_not_there(pack: Pack, tmp_path: Path) -> None:
    """A header for other processors compiles here, and says so when it is opened."""
    other = "cpu:x86-64-v4" if platform.machine() == "aarch64" else "cpu:aarch64"
    contents = pack.contents()
    keys = {kernel.key: kernel._replace(target=other).key for kernel in contents.kernels}
    kernels = [k._replace(target=other) for k in contents.kernels if k.target == f"cpu:{LEVELS[0]}"]
    operations = [
        operation._replace(target=other, launches=tuple(one._replace(kernel=keys[one.kernel]) for one in operation.launches))
        for operation in contents.operations
        if operation.target == f"cpu:{LEVELS[0]}"
    ]
    header.write(rewritten(pack, tmp_path / "ops.tvmdml", kernels=kernels, operations=operations), tmp_path)
    program = compiled("gcc", SOURCES / "check.c", tmp_path, "-std=c99", "-pthread", "-ldl")
    message = f"open: this processor ({platform.machine()}) is not one of those that the pack was built for: {other[4:]}\n"
    assert message in said(program, "open", tmp_path, ok=False)


@pytest.mark.full
@pytest.mark.skipif(len(LEVELS) < 2, reason="this family has one level")
def test_what_a_level_lacks_a_lower_one_does(pack: Pack, tmp_path: Path) -> None:
    contents = pack.contents()
    left = [one for one in contents.operations if one.target == "cpu:x86-64" or one.line["operator"] != "TOP_K1"]
    assert len(left) < len(contents.operations)
    header.write(rewritten(pack, tmp_path / "ops.tvmdml", operations=left), tmp_path)
    program = compiled("gcc", SOURCES / "check.c", tmp_path, "-std=c99", "-pthread", "-ldl")
    jobs = write_jobs(tmp_path)
    said(program, "run", tmp_path, jobs)
    assert_done(tmp_path)


@pytest.mark.full(first=1)
@pytest.mark.parametrize("way", ["fork", "run", "callers", "errors"])
def test_what_is_built_for_another_machine_runs_there(tmp_path: Path, way: str) -> None:
    """In an emulator of it."""
    other = "x86_64" if host.host().level == "aarch64" else "aarch64"
    system = Path(os.environ.get("QEMU_LD_PREFIX", f"/usr/{other.replace('_', '-')}-linux-gnu"))
    emulator, compilers = shutil.which(f"qemu-{other}-static"), bundle._compilers(other)
    if not (emulator and system.is_dir() and compilers):
        pytest.skip(f"no emulator, no C library or no compiler for {other} here")
    level = "x86-64" if other == "x86_64" else other
    packs.build(Spec(targets=(f"cpu:{level}",), wanted=SOME, knobs={}), tmp_path / "ops.tvmdml", jobs=1)
    header.write(Pack(tmp_path / "ops.tvmdml"), tmp_path)
    command, *options = compilers[0]
    program = compiled(command, SOURCES / "check.c", tmp_path, "-std=c99", "-pthread", "-ldl", before=options)
    jobs = write_jobs(tmp_path, SOME)
    found = said(Path(emulator), "-L", system, program, way, tmp_path, jobs, TVMDML_NUM_THREADS="3")
    assert_done(tmp_path, SOME)
    assert found.startswith(f"{level}, 3 threads")
    assert_done(tmp_path, SOME)


def test_the_same_pack_gives_the_same_files(pack: Pack, folder: Path, tmp_path: Path) -> None:
    written = header.write(pack, tmp_path / "deep" / "er")
    assert [path.name for path in written] == ["ops.h", *sorted(path.name for path in written[1:])]
    assert all(path.read_bytes() == (folder / path.name).read_bytes() for path in written)
    found = header.functions(written[0])
    assert len(set(found)) == len(found) >= 2
    assert all(name.startswith("ops_") and f"int {name}(" in written[0].read_text() for name in found)


def test_two_headers_in_one_program(pack: Pack, tmp_path: Path) -> None:
    for name in ("first_pack_x", "PACK_2"):
        header.write(pack, tmp_path, name)
    source = tmp_path / "both.c"
    source.write_text("""
        #define FIRST_PACK_X_IMPLEMENTATION
        #include "first_pack_x.h"
        #include "PACK_2.h"
        #define PACK_2_IMPLEMENTATION
        #include "PACK_2.h"
        #include "PACK_2.h"
        int main(int count, char **arguments) {
            return count != 2 || first_pack_x_open(arguments[1]) != 0 || PACK_2_open(arguments[1]) != 0;
        }
    """)
    said(compiled("gcc", source, tmp_path, "-std=c99", "-ldl"), tmp_path)


def test_names_are_readable_and_differ(pack: Pack, folder: Path) -> None:
    text = (folder / "ops.h").read_text()
    names = re.findall(r"^static inline int (\w+)\(", text, re.MULTILINE)
    assert len(set(names)) == len(names) == len(WANTED)
    assert "ops_top_k1_f16_64x1600_axis1_k50_increasing" in names
    assert "ops_element_wise_round_f32_4x3_halves_to_nearest_even_in_place" in names
    assert "ops_diagonal_matrix1_f16_256x1024_value2p0_beginm3_end2" in names
    alike = [name for name in names if name.startswith("ops_element_wise_round_f16_5x3_")]
    assert sorted(bool(re.fullmatch(r".*_toward_zero_[0-9a-f]{10}", name)) for name in alike) == [False, True]  # strided
    assert all(one.line.replace('"', '\\"') in text for one in WANTED)


@pytest.mark.parametrize("name", ["a-b", "1st", "a b", "../a", "a\n", "é"])
def test_a_name_that_is_none_in_c_is_refused(pack: Pack, tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgument, match="name of a header"):
        header.write(pack, tmp_path, name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("stem", ["2 my-pack", "...", "größe"])
def test_the_name_of_any_file_is_made_one(pack: Pack, tmp_path: Path, stem: str) -> None:
    written = header.write(rewritten(pack, tmp_path / f"{stem}.tvmdml"), tmp_path / "to")
    assert re.fullmatch(r"[A-Za-z]\w*\.h", written[0].name, re.ASCII)


@pytest.mark.parametrize("change", [{"operator": "../../up"}, {"operator": "Up"}, {"target": "cpu:../../up"}, {"target": "cpu:"}])
def test_nothing_leads_out_of_the_folder(
    pack: Pack, tmp_path: Path, change: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = [kernel._replace(**change) for kernel in pack.kernels()]  # type: ignore[arg-type]
    monkeypatch.setattr(pack, "kernels", lambda: kernels)  # whatever invalid content a pack allows
    with pytest.raises(PackError, match="this pack is damaged"):
        header.write(pack, tmp_path / "in" / "here")
    assert not list(tmp_path.rglob("*"))


def test_a_line_that_is_no_descriptor_is_refused(pack: Pack, tmp_path: Path) -> None:
    operation = pack.operations()[0]
    for line in ({**operation.line, "*/ int x; /*": 1}, {"operator": "*/"}, {**operation.line, "operator": 3}):
        hostile = rewritten(pack, tmp_path / "ops.tvmdml", operations=[operation._replace(line=line)])
        with pytest.raises(TvmdmlError):
            header.write(hostile, tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_a_pack_without_cpus_or_kernels_is_refused(pack: Pack, tmp_path: Path) -> None:
    with pytest.raises(PackError, match="nothing for CPUs"):
        header.write(rewritten(pack, tmp_path / "ops.tvmdml", operations=[]), tmp_path / "to")
    with pytest.raises(PackError, match="lacks a kernel of"):
        header.write(rewritten(pack, tmp_path / "ops.tvmdml", kernels=pack.kernels()[1:]), tmp_path / "to")


@pytest.mark.parametrize(
    "change", [{"threads": -1}, {"threads": 1 << 40}, {"temporaries": (("S3", 1),)}, {"temporaries": (("int8", 1 << 60),)}]
)
def test_a_launch_that_cannot_be_is_refused(
    pack: Pack, tmp_path: Path, change: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    operations = [one._replace(launches=(one.launches[0]._replace(**change),)) for one in pack.operations()]
    monkeypatch.setattr(pack, "operations", lambda: operations)
    with pytest.raises(PackError, match=r"this pack is damaged: it has a (launch|temporary) of"):
        header.write(pack, tmp_path / "to")


def test_any_integer_can_be_written(pack: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extremes = (-(1 << 63), (1 << 63) - 1)
    operations = [one._replace(launches=(one.launches[0]._replace(scalars=extremes),)) for one in pack.operations()]
    monkeypatch.setattr(pack, "operations", lambda: operations)
    header.write(pack, tmp_path)
    program = compiled("gcc", SOURCES / "check.c", tmp_path, "-std=c99", "-pthread", "-ldl")
    said(program, "open", tmp_path)


def test_a_setting_that_is_no_number_of_threads_is_passed_over(check: Path, folder: Path) -> None:
    processors = len(os.sched_getaffinity(0))
    for setting in ("0", "1025", "4x", " ", "99999999999999999999", ""):
        assert f" {processors} threads" in said(check, "open", folder, TVMDML_NUM_THREADS=setting)
