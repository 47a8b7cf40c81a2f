"""Many sizes at once: each gets the kernel and the integers that the schedule chooses for it alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tvmdml
from tvmdml.graph.building import finished
from tvmdml.graph.by_size import BySize
from tvmdml.graph.sizes import Choice, Sizes
from tvmdml.scheduling import kernel_for
from tvmdml.targets import elsewhere


def _graph(n: int, kind: str) -> Any:
    graph = tvmdml.Graph()
    x = graph.input((4, n, 64), name="x")
    row = graph.input((4, 1, 64), name="row")
    whole = graph.input((4, n), "int32", name="whole")
    joined = tvmdml.join([x, row], axis=1)
    weights = graph.constant(np.full((64, 48), 0.5, np.float32))
    kernel = graph.constant(np.full((16, 64, 3), 0.5, np.float32))
    made: dict[str, Callable[[], Any]] = {
        "join": lambda: joined,
        "scores": lambda: tvmdml.gemm(row, joined, trans_b="transpose") * 0.125 - 1,
        "softmax": lambda: tvmdml.activation_softmax(tvmdml.gemm(row, joined, trans_b="transpose"), axes=[2]),
        "values": lambda: tvmdml.gemm(tvmdml.activation_softmax(tvmdml.gemm(row, joined, trans_b="transpose"), axes=[2]), joined),
        "rows": lambda: tvmdml.activation_gelu(x.reshape(4 * n, 64) @ weights),
        "square": lambda: tvmdml.gemm(x, x, trans_b="transpose"),
        "transposed": lambda: x.transpose(0, 2, 1) + 1,
        "copied": lambda: tvmdml.identity(x.transpose(2, 1, 0)),
        "repeated": lambda: tvmdml.identity(x.reshape(4, 1, n, 64).broadcast((4, 3, n, 64))),
        "sums": lambda: tvmdml.reduce(x, function="sum", axes=[1]),
        "extremes": lambda: tvmdml.reduce(x, function="argmax", axes=[1, 2]),
        "scan": lambda: tvmdml.cumulative_summation(x, axis=1),
        "normalized": lambda: tvmdml.mean_variance_normalization(x, axes=[1, 2]),
        "cast": lambda: tvmdml.cast(x, "int32"),
        "gathered": lambda: tvmdml.gather(graph.constant(np.zeros((9, 32), np.float32)), whole, axis=0),
        "best": lambda: tvmdml.top_k(x, 3, axis=1).values,
        "attention": lambda: tvmdml.multihead_attention(row, joined, joined, head_count=2),
        "images": lambda: tvmdml.convolution(x.transpose(0, 2, 1), kernel, start_padding=[1], end_padding=[1]),
        "reversed": lambda: x[:, ::-1] if kind == "" else x[:, n - 1 :],
        "padded": lambda: tvmdml.padding(x, start_padding=[0, 2, 0], end_padding=[0, n, 0]),
    }
    return graph, made


_KINDS = tuple(_graph(3, "x")[1])


@pytest.mark.full
@pytest.mark.some(9)
@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("name", ["cpu", "cuda:sm_80", "vulkan:core"])
def test_kernels(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that decides about launches is as it is for each size alone, where kernels change, too."""
    monkeypatch.setenv("TVMDML_NUM_THREADS", "3")
    (target,) = elsewhere(name)
    programs = {}
    for n in (3, 4, 7, 90, 301):
        graph, made = _graph(n, kind)
        programs[n] = finished(graph, [made[kind]()], target)
    function = BySize.through(programs)
    varying = [one for one in function.descs if one.varies]
    assert varying
    sizes = range(3, 302)
    found = Sizes(target, sizes)
    for one in varying:
        kinds = set()
        for n in sizes:
            desc = one.at(n)
            kernel = kernel_for(desc.canonical(), target, ())
            if (choice := found.choice(one, (), n)) is not None:
                kinds.add(kernel.identity)
                assert choice == Choice.of(desc, (), kernel), n
        assert kinds, "each was looked at alone"


def test_there_may_be_more_sizes_than_memory_can_hold() -> None:
    (target,) = elsewhere("cpu")
    programs = {}
    for n in (3, 4, 7, 90, 301):
        graph, made = _graph(n, _KINDS[0])
        programs[n] = finished(graph, [made[_KINDS[0]]()], target)
    one = next(one for one in BySize.through(programs).descs if one.varies)
    found = Sizes(target, range(3, 1 << 60))
    assert found.choice(one, (), 90) == Sizes(target, range(3, 302)).choice(one, (), 90)
    assert found.choice(one, (), 1 << 61) is None
