"""Convolutions and windows at their edges: padding that nodes leave out, integers in 3-D, images of nothing, places."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import differences, result, results  # noqa: E402 - they need ONNX

F = np.float32


def transposed(kernel: int, stride: int, mode: str, more: int = 0) -> Any:
    w = (10.0 ** np.arange(kernel)).astype(F).reshape(1, 1, -1)
    x = np.array([[[1, 2, 3]]], F)
    return result("ConvTranspose", [x, w], opset=11, strides=[stride], auto_pad=mode, output_padding=[more])


@pytest.mark.full
def test_padding_to_whole_strides() -> None:
    """With fewer elements than steps nothing is added; more that are computed are cut with the rest. As in ONNX Runtime."""
    assert not differences({
        "a kernel of one": (transposed(1, 2, "SAME_UPPER"), np.array([[[1, 0, 2, 0, 3]]], F)),
        "a small kernel": (transposed(2, 3, "SAME_LOWER"), np.array([[[1, 10, 0, 2, 20, 0, 3, 30]]], F)),
        "one more": (transposed(3, 2, "SAME_UPPER", 1), np.array([[[10, 102, 20, 203, 30, 300]]], F)),
        "one more below": (transposed(3, 2, "SAME_LOWER", 1), np.array([[[10, 102, 20, 203, 30, 300]]], F)),
    })  # fmt: skip


@pytest.mark.full
def test_a_result_may_be_smaller_than_the_input() -> None:
    """Of a size that the node states: what is cut is one more in front, unless the padding is that of SAME_UPPER."""
    x, w = np.array([[[1, 2, 3, 4]]], F), np.array([[[1, 10, 100]]], F)
    whole = result("ConvTranspose", [x, w], opset=11)
    assert not differences({
        f"{mode} {n}": (result("ConvTranspose", [x, w], opset=11, output_shape=[n], auto_pad=mode), whole[..., skip : skip + n])
        for mode, n, skip in (("NOTSET", 3, 2), ("NOTSET", 2, 2), ("NOTSET", 1, 3), ("SAME_LOWER", 3, 2), ("SAME_UPPER", 3, 1))
    })  # fmt: skip


def convolved(x: Any, w: Any, groups: int, stride: int) -> Any:
    """A convolution of integers, exactly."""
    space = x.ndim - 2
    out = [(n - k) // stride + 1 for n, k in zip(x.shape[2:], w.shape[2:], strict=True)]
    found = np.zeros((len(x), len(w), *out), np.int64)
    own = x.shape[1] // groups
    for place in itertools.product(*map(range, out)):
        window = x[
            (slice(None), slice(None), *(slice(o * stride, o * stride + k) for o, k in zip(place, w.shape[2:], strict=True)))
        ]
        for filters in range(len(w)):
            first = filters // (len(w) // groups) * own
            found[(slice(None), filters, *place)] = (window[:, first : first + own] * w[filters]).sum(tuple(range(1, space + 2)))
    return found


@pytest.mark.full
@pytest.mark.parametrize("space", [1, 3])
def test_integers_of_any_number_of_dimensions(space: int) -> None:
    rng = np.random.default_rng(6)
    x, w = rng.integers(0, 256, (1, 4, *[4] * space)), rng.integers(-128, 128, (4, 2, *[2] * space))
    about = {"group": 2, "strides": [2] * space, "opset": 10}
    small, zeros, bias = (x.astype(np.uint8), w.astype(np.int8)), np.arange(4, dtype=np.int8), np.array([9, -9, 5000, 0], np.int32)
    sums = convolved(x - 7, w - zeros.reshape(-1, 1, *[1] * space), 2, 2)
    exact = result("ConvInteger", [*small, np.array(7, np.uint8), zeros], known=[1, 2, 3], **about)
    scales = np.array([0.02, 0.01, 0.03, 0.02], F)
    each = (1, 4, *[1] * space)
    rounded = np.round((sums + bias.reshape(each)) * (0.1 * scales / 3).reshape(each)).astype(int) + 100
    given = [
        small[0],
        np.array(0.1, F),
        np.array(7, np.uint8),
        small[1],
        scales,
        zeros,
        np.array(3, F),
        np.array(100, np.uint8),
        bias,
    ]
    found = result("QLinearConv", given, known=range(1, 9), **about)
    assert np.array_equal(exact, sums.astype(np.int32))
    assert found.dtype == np.uint8
    assert np.abs(found.astype(int) - rounded.clip(0, 255)).max() <= 1
    assert np.count_nonzero(found != rounded.clip(0, 255)) <= 1


def test_sums_of_nothing_are_the_bias() -> None:
    bias = np.array([1, -2, 3], F)
    w = np.ones((3, 2, 2, 2), F)
    wide = np.broadcast_to(bias.reshape(1, 3, 1, 1), (1, 3, 4, 3))
    byte = np.zeros((1, 2, 5, 0), np.uint8)
    assert not differences({
        "no columns": (result("Conv", [np.zeros((1, 2, 5, 0), F), w, bias], pads=[0, 2, 0, 2]), wide),
        "no bias": (result("Conv", [np.zeros((1, 2, 5, 0), F), w], pads=[0, 2, 0, 2]), 0 * wide),
        "no channels": (
            result("Conv", [np.zeros((1, 0, 5, 4), F), np.zeros((3, 0, 2, 2), F), bias]),
            np.broadcast_to(bias.reshape(1, 3, 1, 1), (1, 3, 4, 3)),
        ),
        "no images": (result("Conv", [np.zeros((0, 2, 5, 5), F), w, bias]), np.zeros((0, 3, 4, 4), F)),
        "transposed": (
            result("ConvTranspose", [np.zeros((1, 0, 5, 5), F), np.zeros((0, 3, 2, 2), F)]),
            np.zeros((1, 3, 6, 6), F),
        ),
        "integers": (
            result("ConvInteger", [byte, w.astype(np.uint8)], pads=[0, 2, 0, 2], opset=10),
            np.zeros((1, 3, 4, 3), np.int32),
        ),
    })  # fmt: skip


@pytest.mark.full(first=1)
@pytest.mark.parametrize("space", [1, 2, 3])
def test_places_of_the_largest_that_count_columns_first(space: int) -> None:
    x = np.random.default_rng(7).permutation(2 * np.prod(range(4, 4 + space))).astype(F).reshape(1, 2, *range(4, 4 + space))
    _, found = results("MaxPool", [x], outputs=2, opset=12, kernel_shape=[2] * space, storage_order=1)
    _, usual = results("MaxPool", [x], outputs=2, opset=12, kernel_shape=[2] * space)
    size = x[0, 0].size
    places = np.unravel_index(usual % size, x.shape[2:])
    assert np.array_equal(found, usual // size * size + np.ravel_multi_index(places, x.shape[2:], order="F"))


@pytest.mark.full(first=1)
@pytest.mark.parametrize("space", [1, 2, 3])
def test_the_largest_return_to_their_places(space: int) -> None:
    """Elsewhere is 0, also in what a stated size has more than the windows."""
    sizes = (4, 6, 2)[:space]
    x = np.random.default_rng(8).permutation(2 * np.prod(sizes)).astype(F).reshape(1, 2, *sizes) + 1
    about = {"opset": 11, "kernel_shape": [2] * space, "strides": [2] * space}
    largest, places = results("MaxPool", [x], outputs=2, **about)
    wanted = np.where(np.isin(x, largest), x, 0)
    more = np.pad(wanted, [(0, 0), (0, 0)] + [(0, 1)] * space)
    assert not differences({
        "the size of windows": (result("MaxUnpool", [largest, places], **about), wanted),
        "that size, stated": (result("MaxUnpool", [largest, places, np.array(wanted.shape)], known=[2], **about), wanted),
        "a larger one": (result("MaxUnpool", [largest, places, np.array(more.shape)], known=[2], **about), more),
    })  # fmt: skip
