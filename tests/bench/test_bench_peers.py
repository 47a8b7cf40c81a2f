"""The bench's peers on a CUDA device, tested without one: each does the operator's work, on arrays on the device."""

from __future__ import annotations

import gc
import importlib.machinery
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tvmdml.proof.bench import blas, checks, peers, rows, runner, tables
from tvmdml.proof.bench.peers import _arrays
from tvmdml.proof.bench.rows.element_wise_round import rounding
from tvmdml.proof.bench.rows.top_k import top_k
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work

SMALL = 9
FILES = [rows.load(name) for name in rows.modules() if not name.startswith("_")]
OPERATORS = sorted({case.work.operator for file in FILES for case in getattr(file, "CASES_ON", {}).get("cuda", ()) if case.quick})
STREAM = 77


class Said:
    """What the libraries were told."""

    def __init__(self) -> None:
        self.devices: list[tuple[str, int]] = []
        self.moved: list[str] = []
        self.released: list[str] = []
        self.handles: list[int] = []


def module(name: str, found: Callable[[str], Any] | None = None, **attributes: Any) -> ModuleType:
    """A module that is installed, for all that anybody can tell."""
    made = ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(made).update(attributes)
    if found is not None:
        made.__getattr__ = found  # type: ignore[method-assign]
    return made


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def torch_on_cuda(monkeypatch: pytest.MonkeyPatch, said: Said) -> Any:
    """PyTorch, which takes the processor for a CUDA device."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def cuda(tensor: Any) -> Any:
        said.moved.append("torch")
        return tensor.clone()

    monkeypatch.setattr(torch.Tensor, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: said.devices.append(("torch", index)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=STREAM))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: said.released.append("torch"))
    return torch


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, said: Said) -> ModuleType:
    """CuPy, as NumPy."""

    def asarray(array: Any) -> Any:
        said.moved.append("cupy")
        return np.array(array)

    def kernel(inputs: str, outputs: str, body: str, name: str) -> Callable[..., Any]:
        assert "truncf(x + copysignf(half, x))" in body
        return lambda x, half, out: np.trunc(x + np.copysign(half, x), out)

    def device(index: int) -> Any:
        return SimpleNamespace(use=lambda: said.devices.append(("cupy", index)))

    stream = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=STREAM), Device=device)
    pool = SimpleNamespace(free_all_blocks=lambda: said.released.append("cupy"))
    made = module(
        "cupy", lambda name: getattr(np, name), asarray=asarray, asnumpy=np.array, is_available=lambda: True, cuda=stream,
        get_default_memory_pool=lambda: pool, ElementwiseKernel=kernel,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "cupy", made)
    return made


@pytest.fixture
def raft(monkeypatch: pytest.MonkeyPatch, cupy: ModuleType, said: Said) -> None:
    """RAFT, which gives its selections in no order."""

    def select_k(dataset: Any, k: int, distances: Any, indices: Any, select_min: bool, handle: Any) -> None:
        order = np.argsort(dataset if select_min else -dataset, 1, "stable")[:, :k][:, ::-1]
        indices[...], distances[...] = order, np.take_along_axis(dataset, order, 1)

    def resources(stream: int) -> Any:
        said.handles.append(stream)
        return SimpleNamespace(sync=lambda: None)

    for made in (
        module("pylibraft"),
        module("pylibraft.matrix", select_k=select_k),
        module("pylibraft.common", DeviceResources=resources),
    ):
        monkeypatch.setitem(sys.modules, made.__name__, made)


def small(operator: str) -> set[Work]:
    table = (*tables.of("cuda"), *tables.of("cpu"))
    return {case.work.at_most(SMALL) for case in table if case.work.operator == operator and case.baseline is None}


# -- Who takes part -----------------------------------------------------------------------------------------------


def test_every_peer_says_where_it_runs_and_comes_from_a_library_there() -> None:
    for where, libraries in peers.LIBRARIES.items():
        for operator in {case.work.operator for case in tables.of(where)}:
            found = peers.every(operator, where)
            assert found
            assert {peer.where for peer in found} == {where}
            assert {peer.library for peer in found} <= set(libraries)


def test_every_case_has_peers_on_the_device_or_a_baseline() -> None:
    for case in tables.of("cuda"):
        known = {peer.library for peer in peers.every(case.work.operator, "cuda") if peer.when(case.work)}
        assert case.baseline or "torch" in known, case


def test_on_the_device_no_peer_of_the_processor_takes_part(torch_on_cuda: Any, cupy: ModuleType, raft: None) -> None:
    work = top_k(4, 9, k=3)
    found = peers.of(work, thorough=True, where="cuda")
    assert {peer.where for peer in found} == {"cuda"}
    assert {peer.library for peer in found} == {"torch", "cupy", "raft"}
    assert {peer.library for peer in peers.of(work, thorough=False, where="cuda")} == {"torch", "cupy"}, "RAFT stands aside"
    assert peers.absent("cuda") == []


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]
    assert peers.absent("cuda") == ["torch", "cupy", "raft"]
    assert peers.of(rounding(8), thorough=True, where="cuda") == []


def test_a_library_without_cuda_says_what_it_lacks(torch_on_cuda: Any, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_on_cuda.cuda, "is_available", lambda: False)

    def broken() -> bool:
        raise ImportError("libcudart.so.13:\n cannot open shared object file")

    monkeypatch.setattr(cupy, "is_available", broken)
    assert peers.missing("torch", "cuda") == ["a build with CUDA, and a device for it"]
    assert peers.missing("torch") == [], "on the processor it takes part"
    assert peers.absent("cuda")[:2] == [
        "torch (a build with CUDA, and a device for it)",
        "cupy (libcudart.so.13: cannot open shared object file)",
    ]
    peers.use(0)  # unusable libraries are ignored


# -- What they do -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", OPERATORS)
def test_everyone_agrees_with_the_reference(operator: str, torch_on_cuda: Any, cupy: ModuleType, raft: None, said: Said) -> None:
    did = set()
    for work in small(operator):
        task = Task(work)
        said.moved.clear()
        for peer in peers.of(work, thorough=True, where="cuda"):
            attempt = peer.make(task, 1)
            assert attempt.stream == STREAM, "the stream that the library works on"
            assert checks.peer(task, attempt.results()) == "", f"{work}: {peer.library} {peer.name}"
            moved = list(said.moved)
            attempt.call()
            assert said.moved == moved, "everything lies on the device before it is timed"
            did.add((peer.library, peer.name))
        if operator in ("ELEMENT_WISE_ROUND", "TOP_K1", "NONZERO_COORDINATES"):
            assert said.moved.count("torch") <= 1, "all of a library's attempts share one input"
            assert said.moved.count("cupy") <= 1
    can = [peer for peer in peers.every(operator, "cuda") if any(map(peer.when, small(operator)))]
    every = {(peer.library, peer.name) for peer in can}
    assert did == every


def test_outputs_that_differ_are_found(torch_on_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_on_cuda, "round", torch_on_cuda.trunc)
    task = Task(rounding(64))
    (peer,) = (p for p in peers.every("ELEMENT_WISE_ROUND", "cuda") if p.name == "round out=" and p.library == "torch")
    assert "elements differ" in checks.peer(task, peer.make(task, 1).results())


def test_a_single_row_is_sorted_as_one_dimension(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks: list[int] = []
    argsort = np.argsort
    cupy.argsort = lambda x, axis: ranks.append(x.ndim) or argsort(x, axis)
    for sizes in ((1, 9), (2, 9)):
        task = Task(top_k(*sizes, k=3))
        for peer in peers.every("TOP_K1", "cuda"):
            if peer.name == "argsort + take_along_axis":
                assert checks.peer(task, peer.make(task, 1).results()) == ""
    assert ranks == [1, 2]


def test_raft_works_on_the_stream_of_the_others(raft: None, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(top_k(4, 9, k=3))
    (peer,) = (p for p in peers.every("TOP_K1", "cuda") if p.library == "raft")
    peer.make(task, 1)
    monkeypatch.setattr(sys.modules["cupy"].cuda, "get_current_stream", lambda: SimpleNamespace(ptr=0))
    peer.make(task, 1)
    assert said.handles == [STREAM, 1], "0 could mean another default stream than the legacy one"


def test_libraries_are_told_the_device_and_give_memory_back(torch_on_cuda: Any, cupy: ModuleType, said: Said) -> None:
    peers.use(3)
    assert said.devices == [("torch", 3), ("cupy", 3)]
    peers.release()
    assert said.released == ["torch", "cupy"]


def test_inputs_on_the_device_go_with_their_task(cupy: ModuleType) -> None:
    task = Task(rounding(8))
    before = len(_arrays.CUPY.held)
    _arrays.CUPY.input(task)
    assert len(_arrays.CUPY.held) == before + 1
    del task
    gc.collect()
    assert len(_arrays.CUPY.held) == before


def test_numpy_is_limited_too() -> None:
    functions = blas._functions()
    if functions is None:
        pytest.skip("this NumPy has no OpenBLAS of its own that can be told its threads")
    before = functions[0]()
    with runner.limited(1):
        assert functions[0]() == 1
    assert functions[0]() == before
