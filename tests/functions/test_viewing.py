"""Views: the same memory as another tensor, without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvmdml


def test_reinterpret_and_broadcast_share_memory() -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    flat = tvmdml.reinterpret(x, (24,))
    assert np.shares_memory(flat, x)
    assert np.array_equal(tvmdml.reinterpret(x, (6, 4), (1, 6)), x.T)
    assert np.array_equal(tvmdml.reinterpret(x, (4, 12), dtype="uint16"), x.view(np.uint16))
    assert np.array_equal(tvmdml.reinterpret(x, (2, 24), (0, 1)), np.stack([x.ravel()] * 2))
    assert tvmdml.reinterpret(x, ()) == 0
    row = tvmdml.broadcast(x[:, 1:2], (3, 4, 6))
    assert np.shares_memory(row, x)
    assert np.array_equal(row, np.broadcast_to(x[:, 1:2], (3, 4, 6)))
    assert np.array_equal(tvmdml.add(row, 1), np.broadcast_to(x[:, 1:2], (3, 4, 6)) + 1)


def test_on_devices_and_in_other_libraries() -> None:
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.arange(6.0)
    y = tvmdml.reinterpret(x, (3, 2), (1, 3))
    x[0] = 7
    assert y.tolist() == [[7, 3], [1, 4], [2, 5]]
    assert tvmdml.broadcast(x, (2, 6)).stride() == (0, 1)


@pytest.mark.parametrize("device", ["cuda", "vulkan"])
def test_views_on_a_device(device: str) -> None:
    x = tvmdml.asarray(np.arange(6, dtype=np.float32), device=device)
    assert tvmdml.reinterpret(x, (3, 2), (1, 3)).numpy().tolist() == [[0, 3], [1, 4], [2, 5]]
    assert np.array_equal(tvmdml.abs(tvmdml.broadcast(x, (2, 6))).numpy(), np.tile(np.arange(6, dtype=np.float32), (2, 1)))


def test_expressions_have_the_same_views() -> None:
    graph = tvmdml.Graph()
    x = graph.input((4, 6))
    compiled = graph.compile([tvmdml.reinterpret(-x, (6, 4), (1, 6)), tvmdml.broadcast(x, (2, 4, 6))])
    given = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)
    found = compiled([given])
    assert np.array_equal(found[0], -given.T)
    assert np.array_equal(found[1], np.broadcast_to(given, (2, 4, 6)))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: tvmdml.reinterpret(x, (25,)), "inside of the input's 96 bytes"),
        (lambda x: tvmdml.reinterpret(x.T, (24,)), "without gaps"),
        (lambda x: tvmdml.reinterpret(x, (24,), dtype="float64"), "192 bytes"),
        (lambda x: tvmdml.reinterpret(x, (2,) * 9), "9 dimensions"),
        (lambda x: tvmdml.broadcast(x, (6,)), "can be repeated to"),
        (lambda x: tvmdml.broadcast(x, (3, 6)), "can be repeated to"),
        (lambda x: tvmdml.broadcast(x, (2.0, 4, 6)), "can be repeated to"),
        (lambda x: tvmdml.broadcast([1], (2,)), "given list"),
    ],
)
def test_views_that_cannot_be_are_refused(call: Any, said: str) -> None:
    with pytest.raises(tvmdml.InvalidArgument, match=said):
        call(np.zeros((4, 6), np.float32))
