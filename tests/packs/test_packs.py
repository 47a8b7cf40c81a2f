"""Packs: loaded, and used as the only source of kernels."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import packs as small
import pytest
from commands import call, succeed
from folders import TESTS
from support import IN_PLACE, reference, round_desc, tensor, top_k_desc

import tvmdml
from tvmdml import CompileError, PackError, functions, knobs, packs, targets
from tvmdml.library import files, finding, spec
from tvmdml.library import format as container
from tvmdml.packs import work
from tvmdml.packs.change import merge
from tvmdml.targets import Target
from tvmdml.targets.cpu import PACKED_THREADS


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


@pytest.mark.full
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


@pytest.mark.full
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
        before = finding.compiled_count
        tvmdml.round(np.float32([0.5]))
        assert finding.compiled_count == before
        tvmdml.top_k(np.arange(4, dtype=np.uint8), 2)
        assert finding.compiled_count == before + 1


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


@pytest.mark.full
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


@pytest.mark.full
def test_packs_are_named_by_the_environment(cpu_pack: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.tvmdml"
    packs.build(
        spec.Spec((), (spec.Wanted(top_k_desc(tensor("uint8", (4,)), 0, 2, "decreasing")),)), more, targets=["cpu:x86-64-v2"]
    )
    cache = str(tmp_path / "cache")
    done = small.run_alone(_RUN, TVMDML_PACKS=str(cpu_pack), TVMDML_DISABLE_JIT="1", TVMDML_CACHE_DIR=cache)
    assert (done.stdout.split(), done.stderr) == (["False", "CompileError"], "")
    done = small.run_alone(_RUN, TVMDML_PACKS=f"{cpu_pack}{os.pathsep}{more}", TVMDML_DISABLE_JIT="1", TVMDML_CACHE_DIR=cache)
    assert (done.stdout.split(), done.stderr) == (["False"], "")
    done = small.run_alone(_RUN, TVMDML_PACKS="/nowhere.tvmdml")
    assert "TVMDML_PACKS: /nowhere.tvmdml: cannot be read: No such file" in done.stderr


@pytest.mark.full
def test_models_run_from_a_pack(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: Path) -> None:
    path = tmp_path / "model.tvmdml"
    model = TESTS / "models" / "top_k1.json"
    done = succeed("pack", "build", model, "-o", path, "--target", small.name_for(target))
    monkeypatch.setenv("TVMDML_PACKS", str(path))
    monkeypatch.setenv("TVMDML_DISABLE_JIT", "1")
    done = succeed("run", model, "--device", target.kind)
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
    before = finding.compiled_count
    with (
        tvmdml.load_pack(other),
        pytest.warns(RuntimeWarning, match="its cpu kernels for element_wise_round were built from other schedules"),
    ):
        tvmdml.round(small.inputs())
    assert finding.compiled_count == before + 1
    with tvmdml.load_pack(other, strict=True), pytest.raises(CompileError, match=r"other schedules.*by tvmdml"):
        tvmdml.round(small.inputs())


@pytest.mark.usefixtures("elsewhere")
def test_names_of_packs_send_a_terminal_nothing(cpu_pack: Path, tmp_path: Path) -> None:
    other = _changed(cpu_pack, tmp_path / "an\x1b[2J\u202eother.tvmdml", sources={"cpu element_wise_round": "0123456789abcdef"})
    with tvmdml.load_pack(other), pytest.warns(RuntimeWarning, match="other schedules") as warned:
        tvmdml.round(small.inputs())
    with tvmdml.load_pack(other, strict=True) as pack, pytest.raises(CompileError) as lacking:
        tvmdml.round(small.inputs())
    with pytest.raises(PackError) as closed, pack:
        pass
    with pytest.raises(PackError) as merged:
        merge([other, _changed(cpu_pack, tmp_path / "more.tvmdml", knobs={"top_k": {}})], tmp_path / "merged.tvmdml")
    said = repr(pack), str(lacking.value), str(closed.value), str(merged.value), *(str(one.message) for one in warned)
    for text in said:
        assert text.isprintable(), text
        assert r"an\x1b[2J\u202eother.tvmdml" in text


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


# -- What went wrong once -----------------------------------------------------------------------------------------

_FORK = """
import os, threading, time
import numpy as np, tvmdml
from tvmdml.library import shelf
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


@pytest.mark.full
def test_a_child_that_is_forked_while_a_part_is_opened_goes_on(cpu_pack: Path, tmp_path: Path) -> None:
    done = small.run_alone(_FORK, TVMDML_PACKS=str(cpu_pack), TVMDML_CACHE_DIR=str(tmp_path))
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
    succeed("pack", "merge", tmp_path / "v1", tmp_path / "v2", "-o", tmp_path / "both")
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

    def __init__(self, change: Callable[[list[work.CompiledUnit]], Any]) -> None:
        super().__init__(1)
        self.change = change

    def submit(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return super().submit(lambda: self.change(function(*arguments, **named)))


def _fail(units: list[work.CompiledUnit]) -> None:
    raise RuntimeError("out of paper")


ODD: dict[str, tuple[Callable[..., Any], str]] = {
    "less": (lambda units: units[1:], "were not returned"),
    "junk": (lambda units: [unit._replace(content=b"junk") for unit in units], "something that is not this kernel"),
    "others": (lambda units: [unit._replace(key=units[0].key) for unit in units], "something that is not this kernel"),
    "unknown": (lambda units: [unit._replace(key=bytes(16)) for unit in units], "something other than the requested kernels"),
    "none": (lambda units: [None], "something other than the requested kernels"),
    "failure": (_fail, "RuntimeError: out of paper"),
}


@pytest.mark.full
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
        done = call("pack", "build", source, "-o", output)
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
    ready = functions._ready()

    def slow(*arguments: Any) -> Any:
        launch = ready(*arguments)
        started.set()
        go_on.wait(100)
        return launch

    monkeypatch.setattr(functions, "_ready", lambda: slow)
    thread = threading.Thread(target=tvmdml.top_k, args=(x, 2))
    thread.start()
    assert started.wait(100)
    monkeypatch.setattr(functions, "_ready", lambda: ready)
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


@pytest.mark.full
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
