"""Compiled graphs: what they take and return, what they refuse, threads, and what is measured."""

from __future__ import annotations

import gc
import json
import re
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tvmdml
from tvmdml import Graph, targets
from tvmdml.graph import kernels
from tvmdml.library import finding


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_views_are_not_kernels() -> None:
    graph = Graph()
    x = graph.input((4, 6), name="x")
    y = -x
    outputs = [y.reshape(24), y[1], y.reshape(2, 12), y.T[::2, None, 1:], y.broadcast(2, 4, 6), y.reinterpret((24,), dtype="int32")]
    compiled = graph.compile([tvmdml.abs(one) if one.dtype == np.float32 else one for one in outputs])
    assert compiled.kernel_count == len(outputs), "the bytes as integers are a result as they are"
    given = normal(4, 6)
    found = compiled({"x": given})
    y = -given
    right = [y.reshape(24), y[1], y.reshape(2, 12), y.T[::2, None, 1:], np.broadcast_to(y, (2, 4, 6))]
    assert all(np.array_equal(one, np.abs(other)) for one, other in zip(found, right, strict=False))
    assert np.array_equal(found[-1], y.reshape(24).view(np.int32))


def test_an_output_may_be_a_view_of_an_equal_one(target: targets.Target, tmp_path: Path) -> None:
    """Equal calls are one; their results are still two, in other shapes and types."""

    def outputs(graph: Graph) -> list[Any]:
        x = graph.input((2, 3), name="x")
        several = [-x for _ in range(4)]
        mask = [tvmdml.greater_than(x, 0) for _ in range(2)]
        return [
            *(several[0], several[1].reshape(3, 2), several[2].reinterpret((2, 3), dtype="int32"), several[3].reshape(6)),
            *(mask[0], mask[1].view("bool").reshape(3, 1, 2)),
        ]

    graph = Graph()
    compiled = graph.compile(outputs(graph), target)
    given = normal(2, 3)
    y, mask = -given, given > 0
    right = [y, y.reshape(3, 2), y.view(np.int32), y.reshape(6), mask.view(np.uint8), mask.reshape(3, 1, 2)]
    bound = [
        target.empty(one.shape, one.dtype) if target.moves else np.empty(one.shape, one.dtype) for one in compiled({"x": given})
    ]
    compiled.bind([target.asarray(given) if target.moves else given], bound)()
    if target.moves:
        target.wait()
    for found in (compiled({"x": given}), [one.numpy() if target.moves else one for one in bound]):
        for one, other in zip(found, right, strict=False):
            assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def test_expressions_know_what_they_are() -> None:
    graph = Graph()
    x = graph.input((4, 6), "float16", name="x")
    assert (x.shape, x.dtype, x.strides, x.size, x.ndim, len(x)) == ((4, 6), np.float16, None, 24, 2, 4)
    assert x.T.strides == (1, 6)
    assert x[0, 0].shape == ()
    assert tvmdml.greater_than(x, 0).dtype == np.uint8
    assert "float16[4, 6] of input x" in repr(x)
    for wrong in (lambda: bool(x), lambda: x[7], lambda: x.reshape(5, 5), lambda: x[::-1], lambda: x.broadcast(3, 6), lambda: x[x]):
        with pytest.raises((tvmdml.InvalidArgument, TypeError, IndexError)):
            wrong()
    with pytest.raises(tvmdml.InvalidArgument, match="48 bytes"):
        x.reinterpret((5, 5))
    with pytest.raises(tvmdml.InvalidArgument, match="out: given"):
        tvmdml.abs(x, out=np.empty((4, 6), np.float16))


def test_errors_are_raised_where_the_program_is_wrong() -> None:
    graph, other = Graph(), Graph()
    x = graph.input((4, 6), name="x")
    with pytest.raises(tvmdml.InvalidArgument, match=r"tvmdml.add: .*\(5, 6\)"):
        tvmdml.add(x, graph.input((5, 6)))
    with pytest.raises(tvmdml.InvalidArgument, match="another graph"):
        tvmdml.add(x, other.input((4, 6)))
    with pytest.raises(tvmdml.InvalidArgument, match="no other input"):
        graph.input((4, 6), name="x")
    with pytest.raises(tvmdml.InvalidArgument, match="another graph"):
        other.compile([x])
    with pytest.raises(tvmdml.InvalidArgument, match="at least one"):
        graph.compile([])
    with pytest.raises(tvmdml.Unsupported, match=r"nonzero_coordinates.*depends on the elements"):
        tvmdml.nonzero_coordinates(x)


def test_kinds_of_arrays() -> None:
    graph = Graph()
    x, mask, scalar = graph.input((4, 6), name="x"), graph.input((4, 6), "bool", name="mask"), graph.input((), "int32", name="n")
    compiled = graph.compile([tvmdml.where(mask, x, 0.0), mask, scalar + 1, graph.input((0, 3), name="none")])
    wide = normal(4, 12)
    given = {"x": wide[:, ::2], "mask": wide[:, ::2] > 0, "n": np.array(3, np.int32), "none": np.empty((0, 3), np.float32)}
    found = compiled(given)
    assert np.array_equal(found[0], np.maximum(wide[:, ::2], 0))
    assert found[1].dtype == np.bool_
    assert np.array_equal(found[1], given["mask"])
    assert found[2] == 4
    assert found[2].shape == ()
    assert found[3].shape == (0, 3)
    big_endian = {**given, "x": np.ascontiguousarray(given["x"]).astype(">f4")}
    assert np.array_equal(compiled(big_endian)[0], found[0])


def test_inputs_with_strides_are_read_where_they_are() -> None:
    graph = Graph()
    x = graph.input((3, 4), strides=(1, 3), name="x")
    compiled = graph.compile(tvmdml.exp(x))
    out = np.empty((3, 4), np.float32)
    given = np.asfortranarray(normal(3, 4))
    compiled.bind([given], [out])()
    assert np.array_equal(out, tvmdml.exp(given))
    with pytest.raises(tvmdml.InvalidArgument, match="other strides"):
        compiled.bind([np.ascontiguousarray(given)], [out])
    assert np.array_equal(compiled([np.ascontiguousarray(given)])[0], out)


def test_a_bound_graph_reads_its_arrays_at_each_call() -> None:
    graph = Graph()
    x = graph.input((8,))
    compiled = graph.compile([x * 2, graph.constant(np.ones(2, np.float32))])
    given, twice, ones = np.arange(8, dtype=np.float32), np.empty(8, np.float32), np.empty(2, np.float32)
    run = compiled.bind([given], [twice, ones])
    for _ in range(3):
        given += 1
        run()
        assert np.array_equal(twice, given * 2)
        assert np.array_equal(ones, np.ones(2))
    with pytest.raises(tvmdml.InvalidArgument, match="overlaps"):
        compiled.bind([given], [given, ones])
    with pytest.raises(tvmdml.InvalidArgument, match="float64"):
        compiled.bind([given], [np.empty(8), ones])
    weights = np.ones(8, np.float32)  # read in each run
    with pytest.raises(tvmdml.InvalidArgument, match="overlaps"):
        graph.compile([x + graph.constant(weights)]).bind([given], [weights])


def test_owned_inputs_are_given_once() -> None:
    graph = Graph()
    x, w = graph.input((3, 4), name="x"), graph.input((4, 5), owned=True, name="w")
    compiled = graph.compile(tvmdml.gemm(x, w))
    weights, given = normal(4, 5), normal(3, 4, seed=1)
    with pytest.raises(tvmdml.InvalidArgument, match=r"initialize\(…\) first, with w"):
        compiled({"x": given})
    assert not compiled.initialized
    compiled.initialize({"w": weights})
    right = tvmdml.gemm(given, weights)
    weights[:] = 0  # a copy was kept
    assert np.array_equal(compiled({"x": given})[0], right)
    assert compiled.persistent_size >= 80
    with pytest.raises(tvmdml.InvalidArgument, match="'w'; allowed: x"):
        compiled({"x": given, "w": weights})


def test_threads_run_one_graph() -> None:
    graph = Graph()
    x = graph.input((64, 64), name="x")
    y = x
    for _ in range(6):
        y = tvmdml.tanh(tvmdml.gemm(y, x))
    compiled = graph.compile(y)
    given = [normal(64, 64, seed=i) * np.float32(0.1) for i in range(4)]
    right = [compiled([one])[0].copy() for one in given]
    wrong: list[int] = []

    def work(i: int) -> None:
        wrong.extend(i for _ in range(30) if not np.array_equal(compiled([given[i]])[0], right[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for one in threads:
        one.start()
    del graph, x, y
    gc.collect()
    for one in threads:
        one.join()
    assert not wrong


def test_a_graph_and_its_constants_are_dropped_with_it() -> None:
    class Kept(np.ndarray):
        """An array that can be watched."""

    weights = normal(4, 5).view(Kept)
    watched = weakref.ref(weights)
    graph = Graph()
    compiled = graph.compile(tvmdml.gemm(graph.input((3, 4)), graph.constant(weights)))
    del graph, weights
    compiled([normal(3, 4)])
    del compiled
    gc.collect()
    assert watched() is None


@pytest.mark.full
def test_thousands_of_nodes() -> None:
    graph = Graph()
    x = graph.input((16,), name="x")
    y = x
    for i in range(1500):
        y = tvmdml.max(y, 0.5) * 0.75 if i % 2 else tvmdml.join([y[8:], y[:8]], axis=0)
    compiled = graph.compile(y)
    value = given = normal(16)
    for i in range(1500):
        value = np.maximum(value, np.float32(0.5)) * np.float32(0.75) if i % 2 else np.concatenate([value[8:], value[:8]])
    assert np.array_equal(compiled([given])[0], value)
    assert compiled.temporary_size < 20 * 256


@pytest.mark.full
@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize("threads", [1, 3])
def test_missing_kernels_are_compiled(threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernels, "_threads", lambda target, count: threads)
    graph, told, before = Graph(), list[tuple[int, int]](), finding.compiled_count
    x = graph.input((4, 4))
    results = [tvmdml.gemm(x, x), tvmdml.top_k(x, 1).indices]
    found = graph.compile(results, progress=lambda done, total: told.append((done, total)))([normal(4, 4)])
    assert np.array_equal(found[1], normal(4, 4).argmax(-1, keepdims=True))
    assert told == [(0, 2), (1, 2), (2, 2)]
    assert finding.compiled_count - before == 2


@pytest.mark.full
@pytest.mark.usefixtures("forget")
def test_each_kernel_is_compiled_by_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt in one ends the others after what they compile, and a kernel that does not compile says so to the caller."""
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path))
    graph = Graph()
    x = graph.input((4, 4))
    results = [tvmdml.abs(x), tvmdml.top_k(x, 1).indices, tvmdml.round(x), tvmdml.gemm(x, x)]
    asked = list[str]()
    find, both = finding.find, threading.Barrier(2, timeout=60)

    def interrupted(kernel: Any, target: Any) -> Any:
        asked.append(kernel.name)
        both.wait()
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return find(kernel, target)

    monkeypatch.setattr(kernels, "_threads", lambda target, count: 2)
    monkeypatch.setattr(kernels, "find", interrupted)
    with pytest.raises(KeyboardInterrupt):
        graph.compile(results)
    assert len(asked) == 2

    def refused(kernel: Any, target: Any) -> Any:
        raise tvmdml.CompileError(kernel.name)

    before = finding.compiled_count
    monkeypatch.setattr(kernels, "find", refused)
    graph.compile(results)
    assert finding.compiled_count - before in (3, 4), "of the interrupted run, at most one was compiled"


def test_the_kernels_of_an_operator_are_written_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution and the kernel that packs its filters are written by the same object."""
    threads: dict[str, list[tuple[int, int]]] = {}

    def find(kernel: Any, target: Any) -> None:
        time.sleep(0.01)
        threads.setdefault(kernel.name, []).append((threading.get_ident(), kernel.identity[1]))

    def missing(desc: Any, target: Any, shared: Any) -> list[Any]:
        return [SimpleNamespace(name=desc, identity=(desc, i)) for i in range(3)]

    monkeypatch.setattr(kernels, "_threads", lambda target, count: count)
    monkeypatch.setattr(kernels, "find", find)
    monkeypatch.setattr(kernels, "missing", missing)
    names: Any = ["a", "b", "c", "a"]
    kernels.compile_all([(name, ()) for name in names], targets.resolve("cpu"), None)
    assert sorted(threads) == ["a", "b", "c"]
    for calls in threads.values():
        assert [number for _, number in calls] == [0, 1, 2]
        assert len({thread for thread, _ in calls}) == 1


def test_an_explanation_names_every_call(tmp_path: Any) -> None:
    graph = Graph("small")
    x = graph.input((4, 4), name="x")
    compiled = graph.compile(tvmdml.abs(x) @ graph.constant(np.eye(4, dtype=np.float32), name="eye"))
    text = str(compiled.explain())
    assert "ELEMENT_WISE_ABS (test_compiled_graph.py:" in text
    assert "2 calls, 2 kernels" in text
    rows = Graph("open")
    scaled = rows.compile(tvmdml.abs(rows.input(("n", 4), name="x")) @ rows.constant(np.eye(4, dtype=np.float32), name="eye"))
    fates = [fate for _, fate in compiled.explain().lines]
    assert (
        [fate for _, fate in scaled.at(n=4).explain().lines]
        == fates
        == ["kernel 0: lines of ELEMENT_WISE_ABS", "kernel 1: tiles of GEMM"]
    )
    kept, packed = re.findall(r"(\d+) bytes of constants, (\d+) of packed weights", text)[0]
    assert int(kept) + int(packed) == compiled.persistent_size >= 64
    assert compiled.explain().dot().startswith('digraph "small" {')
    times = compiled.profile([normal(4, 4)])
    assert [one.name.partition(" ")[0] for one in times] == ["ELEMENT_WISE_ABS", "GEMM"]
    assert all(one.nanoseconds > 0 for one in times)
    compiled.trace([normal(4, 4)], tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [one["cat"] for one in events] == [one.kernel for one in times]
    assert events[1]["ts"] == events[0]["dur"]
    assert events[0]["args"]["input_tensor"] == "float32[4, 4]"


@pytest.mark.full
@pytest.mark.parametrize("target", ["cuda", "vulkan"])
def test_on_a_device(target: str) -> None:
    graph = Graph()
    x = graph.input((16, 24), name="x")
    weights = normal(24, 8)
    y = tvmdml.gemm(tvmdml.abs(x.T).T, weights)
    best = tvmdml.top_k(y, 3)
    compiled = graph.compile([y, best.indices, y], target=target)
    given = normal(16, 24, seed=2)
    found = compiled([given])
    assert isinstance(found[0], np.ndarray)
    assert np.allclose(found[0], np.abs(given) @ weights, atol=1e-4)
    assert np.array_equal(found[0], found[2])
    assert np.array_equal(found[1], np.argsort(-found[0], axis=1, kind="stable")[:, :3])
    there = compiled([tvmdml.asarray(given, device=target)])
    assert isinstance(there[0], tvmdml.DeviceArray)
    assert np.array_equal(there[0].numpy(), found[0])
    apart = tvmdml.asarray(given.repeat(2, 1), device=target)[:, ::2]  # a copy of it would not follow what is written later
    assert np.array_equal(compiled([apart])[0].numpy(), found[0])
    for array, wrong in ((apart, "other strides"), (given, "of the CPU")):
        with pytest.raises(tvmdml.InvalidArgument, match=f"bind x: given an array {'with ' * (array is apart)}{wrong}"):
            compiled.bind([array], there)
