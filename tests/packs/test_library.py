"""The library of kernels: what its wheel has, and who is served by it."""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import random
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import packs as small
import pytest
from commands import call
from folders import TOP

import tvmdml
from tvmdml import InvalidArgument, targets
from tvmdml.enums import FeatureLevel
from tvmdml.errors import Unsupported
from tvmdml.kernels.kernel import Kernel
from tvmdml.library import finding, notices, signing, spec, stamps
from tvmdml.library import installed as library
from tvmdml.library.scheduling import kernel_for
from tvmdml.packs import listed, wheel
from tvmdml.proof.doctor import checks
from tvmdml.proof.doctor.terms import ABSENT, LIMITED, OK
from tvmdml.targets import Target
from tvmdml.targets.cpu import CpuTarget, host

LEVEL = f"cpu:{host.chosen().level}"
"""The target of the tests, without features beyond its level."""
X = np.arange(-12, 12, dtype=np.float32).reshape(4, 6) / 4


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a library of roundings."""
    folder = tmp_path_factory.mktemp("library")
    spec.write(folder / "spec.toml", small.few_for().wanted, [LEVEL])
    return wheel.build([folder / "spec.toml"], folder, jobs=1).path


@pytest.fixture(scope="module")
def site(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the wheel is installed in."""
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(built).extractall(folder)
    return folder


@pytest.fixture
def installed(site: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """This process has the library, and nothing else."""
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(library, "_opened", {})
    looks = library.folder, library.files
    for look in looks:
        look.cache_clear()
    yield site / library.PACKAGE
    for look in looks:
        look.cache_clear()


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be compiled."""
    monkeypatch.setattr(CpuTarget, "build", lambda *_: pytest.fail("something was compiled"))


def rounded() -> bool:
    return np.array_equal(tvmdml.round(X), np.rint(X))


# -- Found, and run


@pytest.mark.usefixtures("installed", "uncompiled")
def test_operators_of_other_sizes_run_kernels_of_the_library() -> None:
    assert rounded()
    assert np.array_equal(tvmdml.round(np.float32([[2.5]] * 3), rounding_mode="toward_zero"), [[2]] * 3)


_MODEL = """
import sys
import numpy as np
import tvmdml.onnx
from tvmdml.library import finding
x = np.linspace(-3, 3, 5 * 32, dtype=np.float32).reshape(5, 32)
(y,) = tvmdml.onnx.load(sys.argv[1] if len(sys.argv) > 1 else MODEL)(x)
print("tvm" in sys.modules, "tvmdml.library.scheduling" in sys.modules, finding.compiled_count, y.tobytes().hex())
"""


def test_networks_load_and_answer_without_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a first process, whose cache is empty, and in a second one, which has the plan of the first."""
    own: Any = pytest.importorskip("onnx_nodes", reason="ONNX is not installed")
    weights = np.random.default_rng(1).standard_normal((32, 24), np.float32)
    nodes = [own.N("MatMul", ["x", "w"], ["a"]), own.N("Relu", ["a"], ["y"])]
    made = own.model(nodes, [own.info("x", ["n", 32])], [own.info("y", ["n", 24])], {"w": weights}, 17, ir_version=8)
    path = tmp_path / "net.onnx"
    own.onnx.save(made, path)
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path / "cache"))
    wanted = list(listed.planned(str(path), {"x": np.zeros((5, 32), np.float32)}, targets.resolve("cpu")))
    assert [one.desc.NAME for one in wanted] == ["GEMM"]
    spec.write(tmp_path / "spec.toml", wanted, [LEVEL])
    site = tmp_path / "site"
    zipfile.ZipFile(wheel.build([tmp_path / "spec.toml"], tmp_path, jobs=1).path).extractall(site)
    code = _MODEL.replace("MODEL", repr(str(path)))
    places = os.pathsep.join([str(site), str(TOP), *filter(None, [os.environ.get("PYTHONPATH")])])
    seen = []
    for folder, libraries in (("with", places), ("with", places), ("without", os.environ.get("PYTHONPATH", str(TOP)))):
        done = small.run_alone(code, PYTHONPATH=libraries, TVMDML_CACHE_DIR=str(tmp_path / folder))
        assert done.returncode == 0, done.stderr
        seen.append(done.stdout.split())
    assert [one[:3] for one in seen] == [["False", "True", "0"], ["False", "False", "0"], ["True", "True", "2"]]
    assert len({one[3] for one in seen}) == 1, "other bits"


def test_what_is_not_there_is_compiled(installed: Path) -> None:
    before = finding.compiled_count
    assert tvmdml.top_k(X, 1).values.shape == (4, 1)
    assert finding.compiled_count > before


# -- Not used


def test_kernels_of_other_sources_are_compiled_and_a_warning_says_so(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "source_stamp", lambda module, target: f"another {module}")
    before = finding.compiled_count
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        assert rounded()
        assert np.array_equal(tvmdml.round(X, rounding_mode="toward_zero"), np.trunc(X))
    assert [one.category for one in given] == [RuntimeWarning]
    assert "kernels such as those of element_wise_round were built from other sources" in str(given[0].message)
    assert finding.compiled_count == before + 2


@pytest.mark.parametrize("cut", [True, False], ids=["cut off", "a part is damaged"])
def test_a_damaged_library_is_left_alone(installed: Path, cut: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = installed.glob(f"*{library.SUFFIX}")
    content = bytearray(path.read_bytes())
    content[-100] ^= 255
    other = tmp_path / path.name
    other.write_bytes(content[:-1000] if cut else content)
    monkeypatch.setattr(library, "files", lambda: ((LEVEL, other),))
    with pytest.warns(RuntimeWarning, match=library.PACKAGE):
        assert rounded()


@pytest.mark.usefixtures("installed")
def test_an_unsigned_library_is_not_used_where_keys_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cryptography")
    signing.generate(tmp_path / "private.pem", tmp_path / "public.pem")
    monkeypatch.setenv("TVMDML_TRUSTED_KEYS", str(tmp_path / "public.pem"))
    with pytest.warns(RuntimeWarning, match=f"{library.PACKAGE} is not used"):
        assert rounded()


@pytest.mark.usefixtures("installed")
def test_a_place_in_a_library_that_is_gone_is_none() -> None:
    cpu = targets.resolve("cpu")
    kernel = kernel_for(small.few_for().wanted[0].desc.canonical(), cpu)
    place = library.place(kernel, cpu)
    assert library.at(place, cpu) is not None
    for other in ("", "0" * 48, place[:16] + "0" * 32, "0" * 16 + place[16:], place[:-1], f"{place}0", "../" + place[3:]):
        assert library.at(other, cpu) is None


_OF_LEVELS = {
    ("x86-64-v4+avx512vbmi+avx512vnni", "cpu:x86-64-v4"): True,
    ("x86-64-v4+avx512vbmi+avx512vnni", "cpu:x86-64-v4+avx512vnni"): True,
    ("x86-64-v4+avx512vbmi", "cpu:x86-64-v4+avx512vnni"): False,
    ("x86-64-v4", "cpu:x86-64-v3"): False,  # vectors of half the length
    ("x86-64-v3", "cpu:x86-64-v4"): False,
    ("x86-64-v3", "cpu:x86-64-v3"): True,
    ("aarch64+dotprod", "cpu:aarch64"): True,
    ("aarch64", "cpu:x86-64"): False,
    ("x86-64-v3", "cpu:"): False,
    ("x86-64-v3", "cpu:nothing"): False,
    ("x86-64-v3", "vulkan:core"): False,
}


@pytest.mark.parametrize(("pair", "taken"), _OF_LEVELS.items(), ids=map(" and ".join, _OF_LEVELS))
def test_a_processor_takes_kernels_of_its_level_with_features_that_it_has(pair: tuple[str, str], taken: bool) -> None:
    processor = host.known(pair[0])
    assert processor is not None
    assert CpuTarget(processor).takes(pair[1]) is taken


_DIFFERING = ("CONVOLUTION", "CONVOLUTION_INTEGER", "ELEMENT_WISE_ROUND", "GEMM", "MATRIX_MULTIPLY_INTEGER", "REDUCE", "TOP_K1")
"""Operators whose kernels depend on the processor, and one whose do not."""


def _chosen(desc: Any, shared: Any, target: Target) -> Kernel | None:
    try:
        return kernel_for(desc.canonical(), target, shared)
    except Unsupported:
        return None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("cpu:x86-64-v4", "cpu:x86-64-v4+avx512bitalg+avx512vbmi+avx512vbmi2+avx512vnni+avx512vpopcntdq+gfni"),
        ("cpu:x86-64-v4+avx512vnni", "cpu:x86-64-v4+amx-bf16+amx-int8+amx-tile+avx512fp16+avx512vnni"),
        ("cpu:aarch64", "cpu:aarch64+dotprod+fullfp16+i8mm+sve+sve2"),
    ],
    ids=["AVX-512", "AMX", "Arm"],
)
def test_equal_kernels_of_a_level_are_launched_alike(one: str, other: str) -> None:
    """Kernels are found by their names and parameters: code for less features takes the same integers, memory and packed inputs."""
    from tvmdml.proof.conformance import references

    (less,), (more,) = targets.elsewhere(one), targets.elsewhere(other)
    checks = list(references.checks(_DIFFERING, FeatureLevel.of(None)))
    compared = 0
    for check in random.Random(5).sample(checks, 400):
        desc, _, shared = check.case
        mine, theirs = _chosen(desc, shared, less), _chosen(desc, shared, more)
        if mine is not None and theirs is not None and mine.identity == theirs.identity:
            packers = [[(each[:-1], each.packer.identity) for each in kernel.owned] for kernel in (mine, theirs)]
            assert (mine.scalars, mine.temporaries, packers[0]) == (theirs.scalars, theirs.temporaries, packers[1]), check.what
            compared += 1
    assert compared > 100


# -- The wheel


def test_a_wheel_is_what_pip_installs(built: Path) -> None:
    """Its record names every file with its hash, and the version has the stamps of the sources."""
    archive = zipfile.ZipFile(built)
    (info,) = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    rows = [line.split(",") for line in archive.read(f"{info}/RECORD").decode().splitlines()]
    assert [row[0] for row in rows] == archive.namelist()
    for name, digest, size in rows[:-1]:
        content = archive.read(name)
        assert digest == f"sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()}"
        assert int(size) == len(content)
    assert built.name.startswith(f"tvmdml_kernels-{tvmdml.__version__}+s")
    assert f"{library.PACKAGE}/{library.file_name(LEVEL)}" in archive.namelist()


def test_the_same_spec_gives_the_same_wheel(built: Path, tmp_path: Path) -> None:
    again = wheel.build([built.parent / "spec.toml"], tmp_path, jobs=1)
    assert again.path.read_bytes() == built.read_bytes()
    assert [one.operations for one in again.packs.values()] == [0]


def test_a_target_has_no_kernels_that_one_with_less_features_has(tmp_path: Path) -> None:
    spec.write(tmp_path / "spec.toml", small.few_for().wanted[:1])
    names = ["cpu:x86-64-v4+avx512vnni", "cpu:x86-64-v3", "cpu:x86-64-v4"]
    where = itertools.chain(*(("--target", n) for n in names))
    result = call("pack", "wheel", tmp_path / "spec.toml", "-o", tmp_path / "dist", *where)
    assert result.exit_code == 0, result.output
    assert [path.suffix for path in (tmp_path / "dist").iterdir()] == [".whl"]
    counts = dict(line.split(" kernels")[0].rsplit(": ", 1) for line in result.output.splitlines()[:3])
    assert counts == dict(zip(names, "011", strict=True))


@pytest.mark.parametrize(
    ("text", "names", "said"),
    [
        ("cases = ['float99']", [LEVEL], "float99"),
        ("networks = ['no such model*']", [LEVEL], "titles"),
        ("", [LEVEL], "without operations"),
        ("cases = ['float32']", [], "targets"),
        ("cases = ['float32']", ["cpu:x86-64-v3", "cpu:aarch64"], "one family"),
        ("cases = ['float32']", ["cpu:nothing"], "nothing"),
    ],
)
def test_a_spec_that_cannot_be_a_library_is_refused(text: str, names: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(text)
    with pytest.raises(InvalidArgument, match=said):
        wheel.build([tmp_path / "spec.toml"], tmp_path, names)


@pytest.mark.full
def test_cases_stand_for_their_operations() -> None:
    found = listed.complete(spec.parse("cases = ['uint8']", "spec"))
    firsts = [next(tensor for _, tensor in one.desc.tensors() if tensor is not None) for one in found.wanted]
    assert {first.data_type.tvm for first in firsts} == {"uint8"}
    assert len({one.desc.NAME for one in found.wanted}) > 30
    assert len({one.line for one in found.wanted}) == len(found.wanted)
    assert not found.cases


def test_the_library_of_the_repository_is_a_spec() -> None:
    found = spec.read(wheel.SPEC)
    assert {name.partition("+")[0] for name in found.targets} == {"cpu:x86-64-v3", "cpu:x86-64-v4"}
    assert found.networks == ("*",)
    for name in found.targets:
        assert targets.elsewhere(name)


def test_what_is_listed_is_not_compiled(monkeypatch: pytest.MonkeyPatch, uncompiled: None, elsewhere: Path) -> None:
    graph = tvmdml.Graph()
    with notices.listing() as found, pytest.raises(notices.ListedGraph):
        graph.compile([tvmdml.round(graph.input((7, 5)))])
    assert [desc.NAME for desc, _ in found] == ["ELEMENT_WISE_ROUND"]


# -- Said


def test_doctor_and_cache_info_show_it(installed: Path) -> None:
    result = call("cache", "info")
    assert f"6 kernels for {LEVEL}" in result.output
    (check,) = (one for one in checks.CHECKS if one.name == "library")
    assert [(one.state, one.words) for one in check.look()] == [(OK, f"{library.PACKAGE} has 6 kernels for {LEVEL}")]


def test_doctor_says_what_is_not_used(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = (one for one in checks.CHECKS if one.name == "library")
    ((_, path),) = library.files()
    with monkeypatch.context() as other:
        other.setattr(library, "files", lambda: (("cpu:x86-64-v1", path),))
        there, found = check.look()
    assert (there.state, found.state) == (OK, LIMITED)
    assert "cpu:x86-64-v1 is not cpu:" in found.words
    monkeypatch.setattr(stamps, "source_stamp", lambda module, target: "another")
    (found,) = check.look()
    assert found.state == LIMITED
    assert "kernels for cpu element_wise_round were built from other sources" in found.words
    monkeypatch.setattr(library, "files", lambda: ())
    assert [one.state for one in check.look()] == [ABSENT]
