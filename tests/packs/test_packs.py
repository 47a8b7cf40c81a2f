"""Packs: built, loaded, and used as the only source of kernels."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import packs as small
import pytest
from click.testing import CliRunner
from folders import TESTS
from support import IN_PLACE, reference, round_desc, tensor, top_k_desc

import tvmdml
from tvmdml import CompileError, PackError, compiler, knobs, packs, targets
from tvmdml.cli import main
from tvmdml.kernels.kernel import Kernel
from tvmdml.packs import files, lines, recording, shelf, spec, work
from tvmdml.packs import format as container
from tvmdml.targets import Target
from tvmdml.targets.cpu import PACKED_THREADS, CpuTarget


@pytest.fixture(scope="session")
def pack_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Target], Path]:
    """The pack for a target, built when a test first asks."""
    built: dict[str, Path] = {}

    def make(target: Target) -> Path:
        name = small.name_for(target)
        if name not in built:
            built[name] = small.build(tmp_path_factory.mktemp("pack"), name)
        return built[name]

    return make


@pytest.fixture(scope="session")
def cpu_pack(pack_for: Callable[[Target], Path]) -> Path:
    return pack_for(targets.resolve("cpu"))


@pytest.fixture(scope="session")
def few_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pack") / "few.tvmdml"
    packs.build(small.few_for("cpu:x86-64-v2"), path, jobs=1)
    return path


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: None) -> Path:
    """As on another machine: nothing is on disk, nothing in memory."""
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(shelf, "_libraries", {})
    return tmp_path / "cache"


def assert_all_served(device: str) -> None:
    """Every operation of the small spec runs, and is right."""
    x = small.inputs()
    assert np.array_equal(tvmdml.round(x, device=device), np.rint(x))
    values, indices = tvmdml.top_k(x, 5, device=device)
    assert np.array_equal(values, -np.sort(-x, axis=1)[:, :5])
    assert np.array_equal(np.take_along_axis(x, indices.astype(np.int64), 1), values)
    assert np.array_equal(tvmdml.nonzero_coordinates(x, device=device), np.argwhere(x))
    for desc in small.descs():
        given = x if desc.tensors() and next(iter(desc.tensors()))[1].sizes == small.ROWS else np.arange(7, dtype=np.float16) / 3  # type: ignore[union-attr]
        outputs = [np.empty(out.sizes, out.data_type.numpy) for out in desc.outputs()]
        tvmdml.compile(desc, device)(given, *outputs)
        assert desc.mismatch(tuple(outputs), reference(desc, given)) == ""
    there = tvmdml.asarray(x, device) if targets.resolve(device).moves else x.copy()
    tvmdml.round(there, out=there)
    assert np.array_equal(there.numpy() if targets.resolve(device).moves else there, np.rint(x))


# -- Loading ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("elsewhere")
def test_a_pack_is_all_it_takes(target: Target, pack_for: Callable[[Target], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = pack_for(target)
    monkeypatch.setattr(type(target), "build", lambda *_: pytest.fail("something was compiled"))
    with tvmdml.load_pack(path, strict=True):
        assert_all_served(target.kind)


@pytest.mark.usefixtures("elsewhere")
def test_there_is_a_kernel_for_every_number_of_threads(cpu_pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = packs.Pack(cpu_pack)
    assert any(len(operation.launches) > 1 for operation in pack.operations()), "kernels depend on the number of threads"
    assert {launch.threads for operation in pack.operations() for launch in operation.launches} <= set(PACKED_THREADS)
    pack.close()
    with tvmdml.load_pack(cpu_pack, strict=True):
        for threads in (1, 2, 7, 20):
            monkeypatch.setenv("TVMDML_NUM_THREADS", str(threads))
            assert_all_served("cpu")


@pytest.mark.usefixtures("elsewhere")
def test_what_a_strict_pack_lacks_is_an_error_with_the_line_to_add(cpu_pack: Path, tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.int64).reshape(3, 4)
    with (
        tvmdml.load_pack(cpu_pack, strict=True),
        pytest.raises(CompileError, match="add this line to the kernels of its spec") as caught,
    ):
        tvmdml.top_k(x, 2)
    line = str(caught.value).partition("spec: ")[2]
    wanted = spec.parse(f"kernels = [{line}]", "the line")
    packs.build(wanted, tmp_path / "more.tvmdml", targets=["cpu:x86-64-v2"])
    with tvmdml.load_pack(cpu_pack, strict=True), tvmdml.load_pack(tmp_path / "more.tvmdml"):
        assert tvmdml.top_k(x, 2).indices.tolist() == [[3, 2]] * 3
        assert tvmdml.round(np.float32([0.5, 1.5])).tolist() == [0, 2]


@pytest.mark.usefixtures("elsewhere")
def test_a_pack_that_is_not_strict_leaves_the_rest_to_the_compiler(cpu_pack: Path) -> None:
    with tvmdml.load_pack(cpu_pack):
        before = compiler.compiled_count
        tvmdml.round(np.float32([0.5]))
        assert compiler.compiled_count == before
        tvmdml.top_k(np.arange(4, dtype=np.uint8), 2)
        assert compiler.compiled_count == before + 1


@pytest.mark.usefixtures("elsewhere")
def test_what_was_planned_before_a_pack_came_is_planned_anew(cpu_pack: Path) -> None:
    x = np.arange(4, dtype=np.uint8)
    tvmdml.top_k(x, 2)
    with tvmdml.load_pack(cpu_pack, strict=True), pytest.raises(CompileError):
        tvmdml.top_k(x, 2)
    tvmdml.top_k(x, 2)


@pytest.mark.usefixtures("elsewhere")
def test_what_was_compiled_of_a_pack_outlives_it(cpu_pack: Path) -> None:
    with tvmdml.load_pack(cpu_pack, strict=True):
        desc = next(small.descs())
        rounded = tvmdml.compile(desc)
    x = small.inputs()
    out = np.empty_like(x)
    rounded(x, out)
    assert np.array_equal(out, np.rint(x))


def test_libraries_are_unpacked_once(cpu_pack: Path, elsewhere: Path) -> None:
    def unpacked() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in elsewhere.rglob("*.so")}

    with tvmdml.load_pack(cpu_pack, strict=True):
        tvmdml.round(small.inputs())
        first = unpacked()
        assert len(first) == 1  # not those of the other operators
    with tvmdml.load_pack(cpu_pack, strict=True):
        tvmdml.round(small.inputs())
    assert unpacked() == first
    (path,) = first
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with tvmdml.load_pack(cpu_pack, strict=True):
        assert np.array_equal(tvmdml.round(small.inputs()), np.rint(small.inputs()))
    assert len(unpacked()) == 1


def test_a_folder_that_cannot_be_written_is_no_obstacle(cpu_pack: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = elsewhere / "a file"
    elsewhere.mkdir()
    blocked.write_text("")
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(blocked))
    with tvmdml.load_pack(cpu_pack, strict=True):
        assert np.array_equal(tvmdml.round(small.inputs()), np.rint(small.inputs()))


# -- The environment ----------------------------------------------------------------------------------------------

_RUN = """
import numpy as np, sys, tvmdml
assert tvmdml.round(np.float32([0.5, 1.5])).tolist() == [0, 2]
print("tvm" in sys.modules)
try:
    tvmdml.top_k(np.arange(4, dtype=np.uint8), 2)
except tvmdml.CompileError as error:
    print(type(error).__name__)
"""


def _run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False, timeout=120)


def test_packs_are_named_by_the_environment(cpu_pack: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.tvmdml"
    packs.build(
        spec.Spec((), (spec.Wanted(top_k_desc(tensor("uint8", (4,)), 0, 2, "decreasing")),)), more, targets=["cpu:x86-64-v2"]
    )
    cache = str(tmp_path / "cache")
    done = _run(_RUN, TVMDML_PACKS=str(cpu_pack), TVMDML_DISABLE_JIT="1", TVMDML_CACHE_DIR=cache)
    assert (done.stdout.split(), done.stderr) == (["False", "CompileError"], "")
    done = _run(_RUN, TVMDML_PACKS=f"{cpu_pack}{os.pathsep}{more}", TVMDML_DISABLE_JIT="1", TVMDML_CACHE_DIR=cache)
    assert (done.stdout.split(), done.stderr) == (["False"], "")
    done = _run(_RUN, TVMDML_PACKS="/nowhere.tvmdml")
    assert "TVMDML_PACKS: /nowhere.tvmdml: cannot be read: No such file" in done.stderr


def test_models_run_from_a_pack(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: Path) -> None:
    path = tmp_path / "model.tvmdml"
    model = TESTS / "models" / "top_k1.json"
    done = CliRunner().invoke(main, ["pack", "build", str(model), "-o", str(path), "--target", small.name_for(target)])
    assert done.exit_code == 0, done.output
    monkeypatch.setenv("TVMDML_PACKS", str(path))
    monkeypatch.setenv("TVMDML_DISABLE_JIT", "1")
    done = CliRunner().invoke(main, ["run", str(model), "--device", target.kind])
    assert done.exit_code == 0, done.output
    assert "Resource 'column indices': 2, 2, 0, 0, 1, 1, 1, 1" in done.output


# -- Versions -----------------------------------------------------------------------------------------------------


def _changed(path: Path, to: Path, **head: Any) -> Path:
    pack = packs.Pack(path)
    contents = pack.contents()
    container.write(to, contents._replace(head={**contents.head, **head}))
    pack.close()
    return to


@pytest.mark.usefixtures("elsewhere")
def test_a_pack_of_other_schedules_is_passed_over(cpu_pack: Path, tmp_path: Path) -> None:
    other = _changed(cpu_pack, tmp_path / "other.tvmdml", sources={"cpu element_wise_round": "0123456789abcdef"})
    before = compiler.compiled_count
    with (
        tvmdml.load_pack(other),
        pytest.warns(RuntimeWarning, match="its cpu kernels for element_wise_round were built from other schedules"),
    ):
        tvmdml.round(small.inputs())
    assert compiler.compiled_count == before + 1
    with tvmdml.load_pack(other, strict=True), pytest.raises(CompileError, match=r"other schedules.*by tvmdml"):
        tvmdml.round(small.inputs())


@pytest.mark.usefixtures("elsewhere")
def test_a_library_that_lacks_a_kernel_says_so(cpu_pack: Path, tmp_path: Path) -> None:
    pack = packs.Pack(cpu_pack)
    contents = pack.contents()
    pack.close()
    last = len(contents.parts) - 1
    kernels = [kernel._replace(part=last - kernel.part) for kernel in contents.kernels]
    container.write(tmp_path / "mixed.tvmdml", contents._replace(kernels=kernels))
    with tvmdml.load_pack(tmp_path / "mixed.tvmdml", strict=True), pytest.raises(PackError, match="which its index lists"):
        tvmdml.round(small.inputs())


# -- Building -----------------------------------------------------------------------------------------------------


def test_two_builds_are_the_same_bytes(target: Target, pack_for: Callable[[Target], Path], tmp_path: Path) -> None:
    """In another process, another folder, with nothing kept from the first."""
    name = small.name_for(target)
    code = f"sys.path.insert(0, {str(TESTS)!r}); import packs; packs.build(pathlib.Path({str(tmp_path)!r}), {name!r})"
    done = _run(f"import sys, pathlib; {code}", TVMDML_CACHE_DIR=str(tmp_path / "cache"), PYTHONHASHSEED="5")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "small.tvmdml").read_bytes() == pack_for(target).read_bytes()


@pytest.mark.usefixtures("elsewhere")
def test_an_interrupted_build_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "late.tvmdml"
    wanted = small.few_for("cpu:x86-64-v2")

    def interrupt(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        packs.build(wanted, path, jobs=1, progress=interrupt)
    assert not path.exists()
    seen = []
    built = packs.build(wanted, path, jobs=1, progress=lambda done, total: seen.append((done, total)))
    assert (built.compiled, built.kernels) == (built.kernels - 3, seen[-1][1])
    assert seen[0] == (3, built.kernels)
    assert seen[-1] == (built.kernels, built.kernels)
    assert packs.build(wanted, path, jobs=1).compiled == 0


@pytest.fixture
def twenty(tmp_path: Path) -> str:
    """A spec that takes some seconds."""
    table = """
        targets = ["cpu:x86-64-v2"]
        [[operators]]
        operator = "TOP_K1"
        types = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"]
        sizes = [4, 50]
        Axis = 1
        K = 3
        AxisDirection = ["INCREASING", "DECREASING"]
    """
    (tmp_path / "twenty.toml").write_text(table)
    return str(tmp_path / "twenty.toml")


def _kept(folder: Path) -> int:
    """How many kernels a cache has, while folders in it may come and go."""
    return sum(name.endswith(".json") for _, _, names in os.walk(folder) for name in names)


def test_an_interrupt_keeps_what_processes_have_compiled(tmp_path: Path, twenty: str) -> None:
    command = [str(Path(sys.executable).with_name("tvmdml")), "pack", "build", twenty, "-j", "2", "-o"]
    environment = {**os.environ, "TVMDML_CACHE_DIR": str(tmp_path / "cache")}
    running = subprocess.Popen([*command, str(tmp_path / "a.tvmdml")], env=environment, stderr=subprocess.PIPE, text=True)
    while not _kept(tmp_path / "cache") and running.poll() is None:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=300)
    kept = re.search(r"interrupted: (\d+) kernels are kept; run the same command to continue", said)
    assert kept is not None, said
    assert running.returncode == 130
    assert int(kept[1]) == _kept(tmp_path / "cache") > 0
    assert not (tmp_path / "a.tvmdml").exists()
    done = subprocess.run([*command, str(tmp_path / "a.tvmdml")], env=environment, capture_output=True, text=True, check=True)
    kernels, compiled = re.search(r"(\d+) kernels \((\d+) compiled\)", done.stdout).groups()  # type: ignore[union-attr]
    assert int(kernels) - int(compiled) == int(kept[1])


def test_no_process_is_left_of_a_build_that_is_killed(tmp_path: Path, twenty: str) -> None:
    """It was started deaf to Ctrl-C, as a shell without job control starts what it puts in the background, and stays so."""
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "tvmdml", "pack", "build", "-j", "2"]
    command += [twenty, "-o", str(tmp_path / "a.tvmdml")]
    environment = {**os.environ, "TVMDML_CACHE_DIR": str(tmp_path / "cache")}

    def more(than: int = 0) -> int:
        """How many kernels there are, when there are more."""
        while (count := _kept(tmp_path / "cache")) <= than and running.poll() is None:
            time.sleep(0.05)
        return count

    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        before = more()
        running.send_signal(signal.SIGINT)
        more(than=before)
        running.kill()
        running.communicate(timeout=300)  # until all processes that hold these pipes have ended
    assert running.returncode == -signal.SIGKILL


@pytest.mark.usefixtures("elsewhere")
def test_processes_do_the_work(few_pack: Path, tmp_path: Path) -> None:
    built = packs.build(small.few_for("cpu:x86-64-v2"), tmp_path / "pack.tvmdml", jobs=2)
    assert built.compiled == built.kernels
    assert (tmp_path / "pack.tvmdml").read_bytes() == few_pack.read_bytes()


def _spawned() -> Iterator[Executor]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        yield executor


def _dask() -> Iterator[Executor]:
    distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True) as cluster,
        distributed.Client(cluster) as client,
        client.get_executor() as executor,
    ):
        yield executor


@pytest.mark.parametrize("make", [_spawned, _dask], ids=["processes", "dask"])
@pytest.mark.usefixtures("elsewhere")
def test_any_executor_will_do(make: Callable[[], Iterator[Executor]], few_pack: Path, tmp_path: Path) -> None:
    for executor in make():
        built = packs.build(small.few_for("cpu:x86-64-v2"), tmp_path / "pack.tvmdml", executor=executor)
        assert built.compiled == built.kernels
    assert (tmp_path / "pack.tvmdml").read_bytes() == few_pack.read_bytes()


@pytest.mark.usefixtures("elsewhere")
def test_a_kernel_that_does_not_compile_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = small.few_for("cpu:x86-64-v2")
    unit, calls = CpuTarget.unit, []

    def fail_once(target: CpuTarget, function: Any, symbol: str) -> bytes:
        calls.append(symbol)
        if len(calls) == 2:
            raise CompileError("no such luck")
        return unit(target, function, symbol)

    monkeypatch.setattr(CpuTarget, "unit", fail_once)
    with pytest.raises(
        CompileError, match=r"1 of \d+ kernels do not compile; the first: \w+ for cpu:x86-64-v2: CompileError: no such luck"
    ):
        packs.build(wanted, tmp_path / "pack.tvmdml", jobs=1)
    assert not (tmp_path / "pack.tvmdml").exists()
    assert packs.build(wanted, tmp_path / "pack.tvmdml", jobs=1).compiled == 1


def test_a_worker_of_another_version_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    desc = next(small.descs())
    (machine,) = targets.elsewhere("cpu:x86-64-v2")
    job = work.Job(lines.of(desc), (), machine.name, machine.code, 1, {}, "another version's stamp", bytes(16))
    (unit,) = work.compile_units([job])
    assert "another version of tvmdml" in unit.problem
    assert unit.content == b""


@pytest.mark.usefixtures("elsewhere")
def test_what_a_target_lacks_is_left_out_and_said(vulkan: Target, tmp_path: Path) -> None:
    wanted = spec.Spec((), (spec.Wanted(round_desc(tensor("float64", (4,)), "toward_zero")), spec.Wanted(next(small.descs()))))
    built = packs.build(wanted, tmp_path / "pack.tvmdml", targets=["vulkan:desktop"])
    assert (built.operations, len(built.skipped)) == (1, 1)
    assert "shaderFloat64" in built.skipped[0]


def test_a_spec_without_operations_or_targets_is_refused(tmp_path: Path) -> None:
    for wanted, said in (
        (spec.Spec(("cpu:x86-64",)), "pack spec: given no operations"),
        (small.spec_for(), "pack targets: given none"),
    ):
        with pytest.raises(tvmdml.InvalidArgument, match=said):
            packs.build(wanted, tmp_path / "pack.tvmdml")


@pytest.mark.parametrize("path", ["missing/pack.tvmdml", "."])
def test_a_place_that_no_file_can_be_written_to_is_refused_first(tmp_path: Path, path: str) -> None:
    with pytest.raises(tvmdml.InvalidArgument, match="output: given"):
        packs.build(small.spec_for("cpu:x86-64"), tmp_path / path, progress=lambda *_: pytest.fail("work was done"))
    for command in (["build", "spec.toml"], ["record", "--", "no such program"]):
        done = CliRunner().invoke(main, ["pack", command[0], "-o", str(tmp_path / path), *command[1:]])
        assert (done.exit_code, "output: given" in done.output) == (2 if path == "." else 1, path != "."), done.output


_NO_COMPILER = """
import sys
class Gone:
    def find_spec(self, name, path, target=None):
        if name == "tvm":
            raise ModuleNotFoundError("No module named 'tvm'", name="tvm")
sys.meta_path.insert(0, Gone())
import numpy as np, tvmdml
try:
    tvmdml.round(np.float32([0.5]))
except tvmdml.CompileError as error:
    print(error)
"""


def test_where_there_is_no_compiler_the_error_names_the_operator_and_what_to_do(tmp_path: Path) -> None:
    done = _run(_NO_COMPILER, TVMDML_CACHE_DIR=str(tmp_path))
    assert "ELEMENT_WISE_ROUND on cpu:" in done.stdout, done.stderr
    assert re.search(r"`pip install .*\[compiler\]'`", done.stdout)
    assert "add this line to the kernels of its spec" in done.stdout


# -- Recording ----------------------------------------------------------------------------------------------------


def test_what_runs_is_recorded(tmp_path: Path) -> None:
    x = small.inputs()
    tvmdml.round(x)  # planned before, but recorded nevertheless
    with packs.record() as recorded:
        tvmdml.round(x)
        tvmdml.round(x)
        tvmdml.top_k(x, 5)
        y = x.copy()
        tvmdml.round(y, out=y)
    tvmdml.nonzero_coordinates(x)
    found = recorded.spec
    assert [(wanted.desc.NAME, wanted.shared) for wanted in found.wanted] == [
        ("ELEMENT_WISE_ROUND", ()),
        ("TOP_K1", ()),
        ("ELEMENT_WISE_ROUND", IN_PLACE),
    ]
    assert found.targets == (targets.resolve("cpu").name,)
    recorded.write(tmp_path / "spec.toml")
    assert spec.read(tmp_path / "spec.toml") == found


@pytest.mark.usefixtures("elsewhere")
def test_kernels_of_every_form_of_an_operator_are_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of updates, and of an image that is enlarged as a resampling."""
    x, places = np.arange(24, dtype=np.float32).reshape(1, 1, 4, 6), np.array([2, 0])

    def run() -> list[Any]:
        return [
            tvmdml.upsample_2d(x, scale_size=[2, 3], interpolation_mode="linear"),
            tvmdml.scatter_elements(x, np.array([[[[2, 0, 1, 3, 2, 0]]]]), x[:, :, :1], axis=2),
            tvmdml.scatter_nd(x[0, 0], places[:, None], x[0, 0, 2:], input_dimension_count=2, indices_dimension_count=2),
        ]

    with packs.record() as recorded:
        wanted = run()
    packs.build(recorded.spec, tmp_path / "forms.pack", jobs=1)
    monkeypatch.setattr(CpuTarget, "build", lambda *_: pytest.fail("something was compiled"))
    with tvmdml.load_pack(tmp_path / "forms.pack", strict=True):
        assert all(map(np.array_equal, run(), wanted))


def test_a_kernel_with_a_name_that_no_pack_takes_is_not_written() -> None:
    target = targets.resolve("cpu")
    for module, name in (("_gather", "rows"), ("gather", "by rows"), ("gather", "")):
        with pytest.raises(ValueError, match="is no name"):
            Kernel(module, name, (), lambda: pytest.fail("built")).written(target)


def test_a_program_and_its_children_are_recorded(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(
        "import multiprocessing, os, sys, numpy, tvmdml\n"
        "def child():\n"
        "    tvmdml.top_k(numpy.arange(4, dtype='uint8'), 2)\n"
        "if __name__ == '__main__':\n"
        "    tvmdml.round(numpy.ones(3))\n"
        "    process = multiprocessing.get_context('spawn').Process(target=child)\n"
        "    process.start(), process.join()\n"
        "    print(sys.argv[1:])\n"
        "    sys.stdout.flush(), os._exit(3)\n"  # ends the program without any cleanup
    )
    command = [
        str(Path(sys.executable).with_name("tvmdml")),
        "pack",
        "record",
        "-o",
        str(tmp_path / "spec.toml"),
        "--",
        sys.executable,
        str(app),
    ]
    done = subprocess.run([*command, "-o", "own"], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (3, "['-o', 'own']\n"), done.stderr
    assert sorted(wanted.desc.NAME for wanted in spec.read(tmp_path / "spec.toml").wanted) == ["ELEMENT_WISE_ROUND", "TOP_K1"]


def test_a_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    desc = next(small.descs())
    recording.append(str(tmp_path), desc, targets.resolve("cpu"), ())
    (path,) = tmp_path.glob("*.jsonl")
    path.write_text(path.read_text() + json.dumps([lines.of(desc), True])[:20])
    assert len(recording.gather(tmp_path).wanted) == 1


# -- What went wrong once -----------------------------------------------------------------------------------------

_FORK = """
import os, threading, time
import numpy as np, tvmdml
from tvmdml.packs import shelf
opened = shelf.LoadedPack._open
def slow(*arguments):
    entered.set()
    time.sleep(1)
    return opened(*arguments)
shelf.LoadedPack._open, entered = slow, threading.Event()
thread = threading.Thread(target=tvmdml.round, args=(np.ones(3, np.float32),))
thread.start()
entered.wait()
child = os.fork()
tvmdml.round(np.ones(3, np.float32))
if child == 0:
    os._exit(0)
thread.join()
print(os.waitpid(child, 0)[1])
"""


def test_a_child_that_is_forked_while_a_part_is_opened_goes_on(cpu_pack: Path, tmp_path: Path) -> None:
    done = _run(_FORK, TVMDML_PACKS=str(cpu_pack), TVMDML_CACHE_DIR=str(tmp_path))
    assert done.stdout == "0\n", done.stderr


@pytest.mark.usefixtures("elsewhere")
def test_knobs_that_there_are_none_of_matter_to_nobody_in_a_pack_of_other_schedules(cpu_pack: Path, tmp_path: Path) -> None:
    knobs = {"pointwise": {"abacus": 3}}
    stamps = {"cpu element_wise_round": "0123456789abcdef"}
    with tvmdml.load_pack(_changed(cpu_pack, tmp_path / "a", sources=stamps, knobs=knobs)), pytest.warns(RuntimeWarning):
        assert tvmdml.round(np.float32([0.5])).tolist() == [0]
    odd = _changed(cpu_pack, tmp_path / "b", knobs=knobs)
    with tvmdml.load_pack(odd), pytest.raises(PackError, match="its schedules do not have its knobs"):
        tvmdml.round(np.float32([0.5]))


@pytest.mark.usefixtures("elsewhere")
def test_knobs_of_a_pack_hold_for_each_level(tmp_path: Path) -> None:
    desc = top_k_desc(tensor("float32", (4, 100)), 1, 7, "decreasing")
    knobs = {"top_k": {"algorithm": "sort"}, "pointwise": {}}
    round_ = round_desc(tensor("float32", (64,)), "toward_zero")
    packs.build(spec.Spec(("cpu:x86-64-v2",), (spec.Wanted(desc),), knobs), tmp_path / "v2", jobs=1)
    packs.build(spec.Spec(("cpu:x86-64",), (spec.Wanted(round_),), knobs), tmp_path / "v1", jobs=1)
    done = CliRunner().invoke(main, ["pack", "merge", str(tmp_path / "v1"), str(tmp_path / "v2"), "-o", str(tmp_path / "both")])
    assert done.exit_code == 0, done.output
    with tvmdml.load_pack(tmp_path / "both", strict=True):
        tvmdml.compile(desc)
        tvmdml.compile(round_)


@pytest.mark.usefixtures("elsewhere")
def test_knobs_that_are_in_force_are_built_in(tmp_path: Path) -> None:
    desc = top_k_desc(tensor("float32", (4, 100)), 1, 7, "decreasing")
    with knobs.using(top_k={"algorithm": "sort"}):
        packs.build(spec.Spec(("cpu:x86-64",), (spec.Wanted(desc),)), tmp_path / "sorting", jobs=1)
    pack = packs.Pack(tmp_path / "sorting")
    assert {kernel.kernel for kernel in pack.kernels()} == {"sort"}
    pack.close()
    x = np.random.default_rng(3).standard_normal((4, 100)).astype(np.float32)
    with tvmdml.load_pack(tmp_path / "sorting", strict=True):
        assert np.array_equal(tvmdml.top_k(x, 7).values, -np.sort(-x, axis=1)[:, :7])


@pytest.mark.usefixtures("elsewhere")
def test_what_runs_in_place_needs_no_line_of_its_own(tmp_path: Path) -> None:
    wanted = spec.Wanted(round_desc(tensor("float32", (64,)), "toward_zero"), IN_PLACE)
    packs.build(spec.Spec(("cpu:x86-64",), (wanted,)), tmp_path / "in_place", jobs=1)
    x = np.linspace(-9, 9, 64, dtype=np.float32)
    expected = np.trunc(x)
    with tvmdml.load_pack(tmp_path / "in_place", strict=True):
        tvmdml.round(x, rounding_mode="toward_zero", out=x)
    assert np.array_equal(x, expected)


class _Odd(ThreadPoolExecutor):
    """An executor that gives something else than it was asked for."""

    def __init__(self, change: Callable[[list[work.Unit]], Any]) -> None:
        super().__init__(1)
        self.change = change

    def submit(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return super().submit(lambda: self.change(function(*arguments, **named)))


def _fail(units: list[work.Unit]) -> None:
    raise RuntimeError("out of paper")


ODD: dict[str, tuple[Callable[..., Any], str]] = {
    "less": (lambda units: units[1:], "were not returned"),
    "junk": (lambda units: [unit._replace(content=b"junk") for unit in units], "something that is not this kernel"),
    "others": (lambda units: [unit._replace(key=units[0].key) for unit in units], "something that is not this kernel"),
    "unknown": (lambda units: [unit._replace(key=bytes(16)) for unit in units], "something other than the requested kernels"),
    "none": (lambda units: [None], "something other than the requested kernels"),
    "failure": (_fail, "RuntimeError: out of paper"),
}


@pytest.mark.usefixtures("elsewhere")
def test_an_executor_that_gives_something_else_spoils_nothing(few_pack: Path, tmp_path: Path) -> None:
    path = tmp_path / "pack.tvmdml"
    for change, said in ODD.values():
        with pytest.raises(CompileError, match=said), _Odd(change) as executor:
            packs.build(small.few_for("cpu:x86-64-v2"), path, executor=executor)
        assert not path.exists()
    packs.build(small.few_for("cpu:x86-64-v2"), path, jobs=1)
    assert path.read_bytes() == few_pack.read_bytes()


@pytest.mark.usefixtures("elsewhere")
def test_no_file_is_written_over_for_nothing(vulkan: Target, tmp_path: Path) -> None:
    source, kept = tmp_path / "spec.toml", tmp_path / "kept.tvmdml"
    kept.write_text("precious")
    spec.write(source, [spec.Wanted(round_desc(tensor("float64", (4,)), "toward_zero"))], ["vulkan:desktop"])
    text = source.read_text()
    for output, said in ((kept, "no target supports any operation"), (source, "another file than the spec")):
        done = CliRunner().invoke(main, ["pack", "build", str(source), "-o", str(output)])
        assert (done.exit_code, said in done.output) == (1, True), done.output
    assert (kept.read_text(), source.read_text()) == ("precious", text)


def test_a_link_is_followed_and_what_is_no_file_stays(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    files.replace(tmp_path / "link", [b"content"])
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"content"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(tvmdml.InvalidArgument, match="which exists and is not a file"):
        files.replace(tmp_path / "pipe", [b""])


@pytest.mark.usefixtures("elsewhere")
def test_a_library_that_the_system_refuses_is_named_and_leaks_nothing(cpu_pack: Path, tmp_path: Path) -> None:
    pack = packs.Pack(cpu_pack)
    contents = pack.contents()
    parts = []
    for part in contents.parts:
        content = bytearray(part.content)
        content[56:58] = bytes(2)  # no segments
        parts.append(part._replace(content=bytes(content)))
    container.write(tmp_path / "junk", contents._replace(parts=[part._replace(content=b"no library" * 9) for part in parts]))
    with tvmdml.load_pack(tmp_path / "junk", strict=True), pytest.raises(PackError, match="cannot be loaded: it is"):
        tvmdml.round(small.inputs())
    container.write(tmp_path / "odd", contents._replace(parts=parts))
    before = len(os.listdir("/proc/self/fd"))
    with tvmdml.load_pack(tmp_path / "odd", strict=True):
        for _ in range(20):
            with pytest.raises(PackError, match="a library of a pack cannot be loaded"):
                tvmdml.round(small.inputs())
    assert len(os.listdir("/proc/self/fd")) <= before + 2


@pytest.mark.usefixtures("elsewhere")
def test_loading_again_and_again_leaves_nothing_behind(cpu_pack: Path) -> None:
    def cycle() -> tuple[int, int]:
        with tvmdml.load_pack(cpu_pack, strict=True):
            tvmdml.round(small.inputs())
        return len(os.listdir("/proc/self/fd")), len(Path("/proc/self/maps").read_text().splitlines())

    first = [cycle() for _ in range(5)][-1]
    last = [cycle() for _ in range(30)][-1]
    assert last[0] <= first[0] + 2
    assert last[1] <= first[1] + 20


@pytest.mark.usefixtures("elsewhere")
def test_a_plan_that_is_made_while_a_pack_comes_is_not_kept(cpu_pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(4, dtype=np.uint8)
    started, go_on = threading.Event(), threading.Event()
    ready = compiler.ready

    def slow(*arguments: Any) -> Any:
        found = ready(*arguments)
        started.set()
        go_on.wait(100)
        return found

    monkeypatch.setattr(compiler, "ready", slow)
    thread = threading.Thread(target=tvmdml.top_k, args=(x, 2))
    thread.start()
    started.wait(100)
    monkeypatch.setattr(compiler, "ready", ready)
    with tvmdml.load_pack(cpu_pack, strict=True):
        go_on.set()
        thread.join()
        with pytest.raises(CompileError):
            tvmdml.top_k(x, 2)


def test_a_pack_that_was_closed_is_not_entered_again(cpu_pack: Path) -> None:
    pack = tvmdml.load_pack(cpu_pack)
    pack.close()
    pack.close()
    with pytest.raises(PackError, match="was closed"), pack:
        pass


def test_a_program_that_builds_need_not_guard_its_main_part(tmp_path: Path) -> None:
    """The processes that compile do not import the program again."""
    lines = [
        "import sys",
        "sys.path.insert(0, sys.argv[1])",
        "import packs as small",
        "from tvmdml import packs",
        "print(packs.build(small.few_for('cpu:x86-64-v2'), sys.argv[2], jobs=2).kernels)",
    ]
    (tmp_path / "program.py").write_text("\n".join(lines))
    command = [sys.executable, str(tmp_path / "program.py"), str(TESTS), str(tmp_path / "a.tvmdml")]
    environment = {**os.environ, "TVMDML_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 4
