"""Packs: built from specs and from records of what ran, interrupted and resumed."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import packs as small
import pytest
from commands import call
from folders import TESTS
from support import IN_PLACE, round_desc, tensor

import tvmdml
from tvmdml import CompileError, packs, targets
from tvmdml.kernels.kernel import Kernel
from tvmdml.library import lines, recording, spec
from tvmdml.packs import work
from tvmdml.targets import Target
from tvmdml.targets.cpu import CpuTarget, bundle

# -- Building -----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_two_builds_are_the_same_bytes(target: Target, pack_for: Callable[[Target], Path], tmp_path: Path) -> None:
    """In another process, another folder, with nothing kept from the first."""
    name = small.name_for(target)
    code = f"sys.path.insert(0, {str(TESTS)!r}); import packs; packs.build(pathlib.Path({str(tmp_path)!r}), {name!r})"
    done = small.run_alone(f"import sys, pathlib; {code}", TVMDML_CACHE_DIR=str(tmp_path / "cache"), PYTHONHASHSEED="5")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "small.tvmdml").read_bytes() == pack_for(target).read_bytes()


@pytest.mark.full
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


@pytest.mark.full
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


@pytest.mark.full
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


@pytest.mark.full
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


@pytest.mark.full
@pytest.mark.parametrize("make", [_spawned, _dask], ids=["processes", "dask"])
@pytest.mark.usefixtures("elsewhere")
def test_any_executor_will_do(make: Callable[[], Iterator[Executor]], few_pack: Path, tmp_path: Path) -> None:
    for executor in make():
        built = packs.build(small.few_for("cpu:x86-64-v2"), tmp_path / "pack.tvmdml", executor=executor)
        assert built.compiled == built.kernels
    assert (tmp_path / "pack.tvmdml").read_bytes() == few_pack.read_bytes()


@pytest.mark.full
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


@pytest.mark.usefixtures("elsewhere")
def test_a_processor_that_nothing_here_links_for_is_refused_before_kernels_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "_compilers", lambda machine: [])
    monkeypatch.setattr(CpuTarget, "unit", lambda *_: pytest.fail("a kernel was compiled"))
    bundle._tools.cache_clear()
    try:
        with pytest.raises(CompileError, match=r"for aarch64 needs a C compiler.* Install"):
            packs.build(small.few_for("vulkan:desktop", "cpu:aarch64"), tmp_path / "pack.tvmdml", jobs=1)
    finally:
        bundle._tools.cache_clear()


def test_a_worker_of_another_version_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    desc = next(small.descs())
    (machine,) = targets.elsewhere("cpu:x86-64-v2")
    job = work.CompileJob(lines.of(desc), (), machine.name, machine.code, 1, {}, "another version's stamp", bytes(16))
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
        done = call("pack", command[0], "-o", tmp_path / path, *command[1:])
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


@pytest.mark.full
def test_where_there_is_no_compiler_the_error_names_the_operator_and_what_to_do(tmp_path: Path) -> None:
    done = small.run_alone(_NO_COMPILER, TVMDML_CACHE_DIR=str(tmp_path))
    assert "ELEMENT_WISE_ROUND on cpu:" in done.stdout, done.stderr
    assert re.search(r"`pip install .*\[compiler\]'`", done.stdout)
    assert "add this line to the kernels of its spec" in done.stdout


# -- Recording ----------------------------------------------------------------------------------------------------


@pytest.mark.full
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


@pytest.mark.full
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


@pytest.mark.full
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
