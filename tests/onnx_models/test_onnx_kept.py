"""What the cache keeps of models: a warm load gives the bits of a cold one, and nothing that changed is taken for what it was."""

from __future__ import annotations

import gc
import itertools
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import python

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import INT64, N, info, model  # noqa: E402 - they need ONNX

import tvmdml  # noqa: E402
import tvmdml.onnx  # noqa: E402 - it needs ONNX
from tvmdml.graph.stored import cache  # noqa: E402
from tvmdml.library import finding  # noqa: E402
from tvmdml.onnx.origin import Origin  # noqa: E402
from tvmdml.system.disk import plans, stores  # noqa: E402
from tvmdml.targets.cpu import threads  # noqa: E402

SIZE = struct.Struct("<Q")
_rng = np.random.default_rng(3)
W = _rng.standard_normal((32, 1200), np.float32)
V = _rng.standard_normal((1200, 40), np.float32)
X = _rng.standard_normal((5, 32), np.float32)


def network(rows: Any = "n", weights: Any = W) -> Any:
    """A product whose weights kernels pack, an output that is known, and one that is an input's copy."""
    nodes = [
        N("MatMul", ["x", "w"], ["a"]),
        N("Relu", ["a"], ["b"]),
        N("MatMul", ["b", "v"], ["c"]),
        N("Softmax", ["c"], ["y"]),
        N("Shape", ["x"], ["s"]),
        N("Identity", ["y"], ["z"]),
    ]
    outputs = [info("y", [rows, 40]), info("s", [2], INT64), info("z", [rows, 40])]
    return model(nodes, [info("x", [rows, 32])], outputs, {"w": weights, "v": V})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose cache gets the kernels of this module."""
    found = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finding, "_memory", {})
        patch.setenv("TVMDML_CACHE_DIR", str(found / "cache"))
        yield found


@pytest.fixture
def place(folder: Path) -> Path:
    """The file of a model, with a cache that has no plans."""
    plans_folder = folder / "cache" / "plans"
    if plans_folder.is_file():  # another test's
        plans_folder.unlink()
    shutil.rmtree(plans_folder, ignore_errors=True)
    path = folder / "m.onnx"
    onnx.save(network(), path)
    return path


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same with an empty cache."""
    monkeypatch.setattr(finding, "_memory", {})
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "m.onnx"
    onnx.save(network(), path)
    return path


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The shapes that were converted from now on."""
    seen: list[Any] = []

    def noting(whole: Any) -> Any:
        def noted(self: Origin, shapes: Any, *others: Any) -> Any:
            seen.append(dict(shapes))
            return whole(self, shapes, *others)

        return noted

    monkeypatch.setattr(Origin, "recording", noting(Origin.recording))
    return seen


def run(path: Any, x: Any = X, **options: Any) -> list[bytes]:
    """The bits of a freshly loaded model's results."""
    gc.collect()  # what is mapped by nobody is read again
    return [one.tobytes() for one in tvmdml.onnx.load(path, **options)(x=x)]


def files(path: Path, suffix: str = "*") -> list[Path]:
    return sorted((path.parent / "cache" / "plans").rglob(f"*.{suffix}"))


PATHS = os.environ.get("PYTHONPATH", "")
"""As in this process: other folders of modules give another plan."""
ALONE = """
import json, sys
for name in sys.argv[3:]:
    sys.modules[name] = None  # an import would fail
import numpy as np, tvmdml.onnx
session = tvmdml.onnx.InferenceSession(sys.argv[1])
x = np.load(sys.argv[2])
found = session.run(None, {"x": x})
graph = session.compiled(x=x.shape)
operators = sorted(name for name in sys.modules if name.startswith(("tvmdml.operators", "tvmdml.schedules")))
said = [one.name.partition(" ")[0] for one in graph.profile([x])]
print(json.dumps([[one.tobytes().hex() for one in found], graph.explain().dot()[:7], said, operators,
    [one.shape for one in session.get_inputs()], session.get_modelmeta().graph_name]))
"""


def test_a_recording_of_the_cache_is_explained_as_a_new_one(place: Path) -> None:
    texts = []
    for _ in range(2):
        session = tvmdml.onnx.InferenceSession(place)
        session.run(None, {"x": X})
        lines = dict(session.explain().lines)
        assert "a_tensor float32[n, 32]" in lines["GEMM (Relu of 'b')"]
        assert lines["recorded with x [n, 32]"] == ""
        assert lines["holds for"].startswith("2 <= n <= ")
        texts.append(str(session.explain()))
    assert texts[0] == texts[1]
    assert texts[0].endswith("1 recording, 1 combination of sizes with a plan")


@pytest.mark.full
def test_a_warm_load_needs_neither_compiler_nor_runtime_nor_onnx(place: Path) -> None:
    cold = run(place)
    np.save(place.with_name("x.npy"), X)
    without = ["onnx", "tvm", *(f"tvmdml.{name}" for name in ("enums", "tuning.logs", "onnx.own_operators", "onnx.tail"))]
    without += [] if threads.native() is None else ["tvm_ffi", "importlib.metadata", "tempfile"]
    printed = python(ALONE, place, place.with_name("x.npy"), *without, may_complain=True, TVMDML_DISABLE_JIT="1", PYTHONPATH=PATHS)
    found, dot, said, operators, shape, name = json.loads(printed)
    assert [bytes.fromhex(one) for one in found] == cold
    assert dot == "digraph"
    assert "ACTIVATION_SOFTMAX" in " ".join(said)
    assert operators == []
    assert (shape, name) == ([["n", 32]], network().graph.name)


PLANNED = """
import sys
from pathlib import Path
from tvmdml.graph import surroundings
for folder in surroundings._APART:
    assert (Path(surroundings.__file__).parents[1] / folder).is_dir(), folder
    sys.modules["tvmdml." + folder.rstrip("/")] = None  # an import would fail
import numpy as np, tvmdml.onnx
tvmdml.onnx.load(sys.argv[1])(x=np.load(sys.argv[2]))
"""


@pytest.mark.full
def test_what_is_no_part_of_the_stamp_takes_no_part_in_planning(place: Path) -> None:
    np.save(place.with_name("x.npy"), X)
    python(PLANNED, place, place.with_name("x.npy"), may_complain=True)
    assert files(place)


@pytest.mark.full
def test_everything_that_decides_gives_another_plan(place: Path, compiled: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    cold = run(place)
    assert run(place) == cold
    assert run(place.read_bytes()) == cold, "the same content"
    moved = place.rename(place.with_name("moved.onnx"))  # found by what it contains
    assert run(moved) == cold
    assert compiled == [{"x": (5, 32)}]
    run(moved, X[:3])
    run(moved, X[:3], sizes={"n": 3})
    assert len(compiled) == 3, "for its kernels; and where sizes are given, none is open"
    with tvmdml.knobs.using(top_k={}):
        assert run(moved) == cold
    monkeypatch.setenv("TVMDML_NUM_THREADS", "1")
    assert len(run(moved)) == 3
    monkeypatch.setenv("TVMDML_DISABLE_PLANS", "1")
    assert len(run(moved)) == 3
    assert len(compiled) == 6


@pytest.mark.full
def test_a_changed_byte_of_a_weight_is_seen(place: Path, compiled: list[Any]) -> None:
    cold, times = run(place), place.stat()
    content = bytearray(place.read_bytes())
    at = content.index(W.tobytes()[:64])
    for i in range(3):
        content[at + 4 * i + 2] ^= 0x40
        place.write_bytes(content)
        os.utime(place, ns=(times.st_atime_ns, times.st_mtime_ns))  # the same size and time, and the same tick of the clock
        assert run(place)[0] != cold[0]
        assert len(compiled) == i + 2
    onnx.save(network(), place)
    assert run(place) == cold
    assert len(compiled) == 4


@pytest.mark.full
def test_weights_in_other_files_are_part_of_the_content(place: Path, compiled: list[Any]) -> None:
    onnx.save_model(network(), place, save_as_external_data=True, location="m.data", size_threshold=0)
    cold = run(place)
    assert run(place) == cold
    assert len(compiled) == 1
    data = place.with_name("m.data")
    whole = data.read_bytes()
    content = bytearray(whole)
    content[content.index(W.tobytes()[:64]) + 2] ^= 0x40
    data.write_bytes(content)
    changed = run(place)
    assert changed[0] != cold[0]
    for same, expected in ((whole, cold), (content, changed)):  # weights at the same place are two in the cache
        data.write_bytes(same)
        assert run(place) == expected
    assert len(compiled) == 2
    data.unlink()
    with pytest.raises(tvmdml.ModelError, match=r"m\.data"):
        run(place)


def _flip(content: bytearray) -> bytearray:
    content[len(content) * 2 // 3] ^= 1
    return content


DAMAGE: dict[str, Callable[[bytearray], bytearray]] = {
    "a bit": _flip,
    "cut off": lambda content: content[: len(content) // 2],
    "empty": lambda content: content[:0],
    "longer": lambda content: content + content,
    "zeros": lambda content: bytearray(len(content)),
}


@pytest.mark.full
@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_files_are_made_again(place: Path, how: str, compiled: list[Any]) -> None:
    cold = run(place)
    whole = {path: path.read_bytes() for path in files(place)}
    assert len(whole) >= 3, "of the model, of its plan, of its weights"
    for path, content in whole.items():
        gc.collect()
        path.write_bytes(DAMAGE[how](bytearray(content)))
        assert run(place) == cold
        del compiled[:]
        assert run(place) == cold
        assert not compiled, "it was made again"
        path.unlink()
        assert run(place) == cold


@pytest.mark.full
def test_kernels_that_went_away_are_compiled_again(apart: Path, compiled: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    cold = run(apart)
    for entry in stores.DiskStore().entries():
        entry.path.unlink()
    for memory in ("_memory", "_stored_before"):
        monkeypatch.setattr(finding, memory, {})
    assert run(apart) == cold
    assert run(apart) == cold
    assert len(compiled) == 2


def test_sizes_share_weights(place: Path) -> None:
    rows = np.resize(X, (48, 32))  # a multiple of the rows of every tile, so that both sizes have the same one
    run(place, rows)
    (data,) = files(place, "data")
    run(place, rows[:24])  # in another session
    more = [path for path in files(place, "data") if path != data]
    assert sum(path.stat().st_size for path in more) < data.stat().st_size


def test_weights_of_the_file_are_hashed_with_it_only(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    own = cache.bytes_of

    def noted(array: Any) -> Any:
        hashed.append(array.nbytes)
        return own(array)

    monkeypatch.setattr(cache, "bytes_of", noted)
    monkeypatch.setattr(cache, "laid", lambda head, *_: [head])  # nothing is written
    added: list[Any] = []
    monkeypatch.setattr(plans.PlanStore, "add", lambda *given: added.append(given) or True)
    run(place)
    assert added
    assert max(hashed, default=0) < V.nbytes


@pytest.mark.full
def test_a_file_that_changed_is_not_read_later(place: Path) -> None:
    cold = run(place)
    warm = tvmdml.onnx.load(place)
    place.write_bytes(network(weights=2 * W).SerializeToString())
    assert [one.tobytes() for one in warm(x=X)] == cold
    with pytest.raises(tvmdml.ModelError, match="changed after it was loaded"):
        warm(x=X[:2])
    assert run(place)[0] != cold[0]
    again = tvmdml.onnx.load(place)
    expected = run(place, X[:2])
    for path in files(place, "plan"):
        path.unlink()
    place.unlink()  # the open file is still there
    assert [one.tobytes() for one in again(x=X[:2])] == expected


def test_where_nothing_can_be_kept_it_is_converted(place: Path, compiled: list[Any]) -> None:
    cold = run(place)
    for path in files(place):
        path.unlink()
    folder = place.parent / "cache" / "plans"
    for path in (*folder.iterdir(), folder):
        path.rmdir()
    folder.write_text("no folder")
    assert run(place) == cold
    assert run(place) == cold
    assert len(compiled) == 3


@pytest.mark.full
def test_the_limit_counts_plans_which_go_first(apart: Path) -> None:
    cold = run(apart)
    store = stores.DiskStore()
    kernels, plans = len(store.entries()), sum(path.stat().st_size for path in files(apart))
    total = plans + sum(entry.size for entry in store.entries())
    assert store.prune(total) == 0
    assert sum(path.stat().st_size for path in files(apart)) == plans
    assert store.prune(total - plans // 2) == 0
    assert len(store.entries()) == kernels
    assert 2 * sum(path.stat().st_size for path in files(apart)) <= total
    assert run(apart) == cold
    assert store.clear() == kernels
    assert not files(apart)


TWO = """
import sys, numpy as np, tvmdml.onnx
print([one.tobytes().hex() for one in tvmdml.onnx.load(sys.argv[1])(x=np.load(sys.argv[2]))])
"""


@pytest.mark.full
def test_two_processes_at_once(place: Path) -> None:
    np.save(place.with_name("x.npy"), X)
    command = [sys.executable, "-c", TWO, str(place), str(place.with_name("x.npy"))]
    several = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [one.communicate()[0] for one in several]
    assert said[0] == said[1] != ""
    assert said[0].strip() == str([one.hex() for one in run(place)])
    assert not [path for path in files(place) if path.name.startswith(".")]


def test_a_forked_process_does_not_wait_for_a_thread_that_it_does_not_have(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, known = tvmdml.onnx.load(place), run(place)
    assert [one.tobytes() for one in loaded(x=X)] == known
    begun, done = threading.Event(), threading.Event()

    def waits(*_: Any) -> Any:
        begun.set()
        done.wait(60)
        raise tvmdml.Unsupported("enough")

    monkeypatch.setattr(Origin, "recording", waits)

    def calls() -> None:
        with pytest.raises(tvmdml.Unsupported):
            loaded(x=X[:1])

    other = threading.Thread(target=calls)
    other.start()
    assert begun.wait(60)
    try:
        if not (child := os.fork()):
            signal.alarm(100)
            os._exit([one.tobytes() for one in loaded(x=X)] != known)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        done.set()
        other.join()


def _forged(path: Path, change: Callable[[Any], object]) -> None:
    """Change what a plan says, and its checksum."""
    content = path.read_bytes()[plans.ALIGNMENT :]
    (size,) = SIZE.unpack_from(content)
    end = SIZE.size + size
    plan = json.loads(zlib.decompress(content[SIZE.size : end]))
    change(plan)
    changed = zlib.compress(json.dumps(plan).encode())
    head = SIZE.pack(len(changed)) + changed
    rest = content[-(-end // plans.ALIGNMENT) * plans.ALIGNMENT :]
    assert plans.PlanStore().add(path.stem, [head + bytes(-len(head) % plans.ALIGNMENT) + rest])


def _said(path: Path) -> Any:
    content = path.read_bytes()[plans.ALIGNMENT :]
    try:
        return json.loads(zlib.decompress(content[SIZE.size : SIZE.size + SIZE.unpack_from(content)[0]]))["described"]
    except (zlib.error, KeyError, struct.error):
        return {}


def _function(recording: Any) -> Any:
    return recording["plan"]["function"]


# What somebody may write in a recording.
FORGED: dict[str, Callable[[Any], object]] = {
    "behind a buffer": lambda one: _function(one)[4].__setitem__(slice(1, None), [1 << 30] * (len(_function(one)[4]) - 1)),
    "before a buffer": lambda one: _function(one)[4].__setitem__(slice(1, None), [-64] * (len(_function(one)[4]) - 1)),
    "no polynomial": lambda one: _function(one)[4].__setitem__(1, "a0"),
    "code": lambda one: _function(one)[4].__setitem__(1, [[["a0"], 1]]),
    "an atom that is not there": lambda one: _function(one)[4].__setitem__(1, [[[99], 1]]),
    "no conditions": lambda one: _function(one).__setitem__(2, [[[[[0], 1]], "x", None, []]]),
    "another choice": lambda one: _function(one)[3].append(["os:system", [["is", "x"]], 0]),
    "a function that is no choice": lambda one: _function(one)[3].append(["tvmdml.schedules.cpu:split", [], 0]),
    "no number": lambda one: one["plan"]["launchings"][0][2][0].__setitem__(3, 1 << 20),
    "no group": lambda one: one["plan"]["launchings"][0].__setitem__(0, 99),
    "no kind": lambda one: one["plan"]["launchings"][0][2][0].__setitem__(0, "stack"),
    "no piece": lambda one: one["plan"]["order"].pop(),
    "a piece on itself": lambda one: one["plan"]["order"][0].__setitem__(1, [0]),
    "an output of a later one": lambda one: one["plan"]["results"][-1].__setitem__(slice(2, 4), [None, 7]),
    "an output of objects": lambda one: one["plan"]["results"][0].__setitem__(0, "O"),
    "an input of the other order of bytes": lambda one: one["plan"]["inputs"][0].__setitem__(2, ">f4"),
    "an input of fewer elements": lambda one: one["plan"]["inputs"][0].__setitem__(3, [0] * len(one["plan"]["inputs"][0][3])),
    "a sum of nothing": lambda one: _function(one)[4].__setitem__(1, []),
    "a quotient below the first atom": lambda one: _function(one)[1].append([-1, [[[0], 1]], 2]),
    "another input": lambda one: one["reads"].__setitem__(0, "w"),
    "an output that is not there": lambda one: one.__setitem__("known", [[9, 9]]),
}


@pytest.mark.full(first=2)
@pytest.mark.parametrize("how", FORGED)
def test_recordings_that_fit_nothing_are_made_again(place: Path, how: str, compiled: list[Any]) -> None:
    cold = run(place)
    (path,) = (path for path in files(place, "plan") if "plan" in _said(path))
    _forged(path, lambda plan: FORGED[how](plan["described"]))
    assert run(place) == cold
    assert len(compiled) == 2, "it was made again"


@pytest.mark.full
def test_a_new_size_needs_neither_compiler_nor_onnx_nor_schedules(place: Path) -> None:
    """The kernels of the size are there, and what schedules answered for another size holds for it."""
    rows = np.resize(X, (48, 32))
    run(place, rows[:24])
    cold = run(place, rows)
    run(place, rows[:25])
    np.save(place.with_name("x.npy"), rows)
    without = ("onnx", "tvm", "tvmdml.library.scheduling", "tvmdml.onnx.origin")
    printed = python(ALONE, place, place.with_name("x.npy"), *without, may_complain=True, TVMDML_DISABLE_JIT="1", PYTHONPATH=PATHS)
    found, _, _, operators, *_ = json.loads(printed)
    assert [bytes.fromhex(one) for one in found] == cold
    assert operators == []


@pytest.mark.full
def test_kept_plans_hold_no_descriptors(place: Path) -> None:
    """Of several sizes: the model's own file is open, once. (Kernels that are loaded hold some, half of all at most.)"""
    cold = [run(place, X[:n]) for n in (1, 2, 5)]
    gc.collect()
    model = tvmdml.onnx.load(place)
    assert [[one.tobytes() for one in model(x=X[:n])] for n in (1, 2, 5)] == cold
    opened = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    assert [path for path in opened if path.startswith(os.path.realpath(place.parent))] == [os.path.realpath(place)]


def test_housekeeping_fails_no_call(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a process has no descriptors left."""

    def failing(self: Any) -> Any:
        raise OSError(24, "Too many open files")

    cold = run(place)
    monkeypatch.setattr(stores.DiskStore, "_plans", failing)
    monkeypatch.setattr(stores, "_added_since_prune", {})
    for path in files(place):
        path.unlink()
    assert run(place) == cold
    assert files(place, "plan")


def test_a_file_whose_rows_changed_places_is_damaged(place: Path) -> None:
    """Rows of what is summed up are 4096 bytes; those here differ in signs alone, of one number or of all."""
    rows = np.ones((5, 1024), np.float32)
    rows[1], rows[2, 1::2], rows[3, 0], rows[4, 1] = -1, -1, -1, -1
    store = plans.PlanStore()
    assert store.add("some", [rows.tobytes()])
    path = next(path for path in files(place) if path.name == "some.plan")
    whole = path.read_bytes()
    assert store.find("some").tobytes() == rows.tobytes()
    for one, other in itertools.combinations(range(5), 2):
        changed = rows.copy()
        changed[[one, other]] = rows[[other, one]]
        path.write_bytes(whole[: plans.ALIGNMENT] + changed.tobytes())
        assert store.find("some") is None, (one, other)
        path.write_bytes(whole)
