"""Nodes that only move elements, at their edges: results without dimensions, sizes that do not fit, large steps, bool padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import differences, result, single  # noqa: E402 - they need ONNX

import tvmdml.onnx  # noqa: E402 - it needs ONNX
from tvmdml.errors import Unsupported  # noqa: E402

F = np.float32
X = np.arange(24, dtype=F).reshape(2, 3, 4)


@pytest.mark.parametrize("known", [[], [1], [0, 1]], ids=["inputs", "constant indices", "constants"])
def test_an_element_has_no_dimensions(known: list[int]) -> None:
    assert not differences({
        "of three": (result("GatherND", [X, np.array([1, 0, 2])], known=known), X[1, 0, 2]),
        "of one": (result("GatherND", [X[0, 0], np.array([-1])], known=known), X[0, 0, -1]),
        "a row": (result("GatherND", [X, np.array([1, 0])], known=known), X[1, 0]),
        "of batches": (result("GatherND", [X[:, :, 0], np.array([[1], [2]])], known=known, batch_dims=1), X[[0, 1], [1, 2], 0]),
    })  # fmt: skip


@pytest.mark.parametrize("known", [[], [1], [0, 1]], ids=["inputs", "constant sizes", "constants"])
def test_elements_are_not_lost_in_a_shape(known: list[int]) -> None:
    """A size of 0 is 0 if it is allowed, and then there must be no elements."""
    for sizes in ([0, 2], [0], [2, 0, 3]):
        made, feeds = single("Reshape", [np.ones((3, 2), F), np.array(sizes)], known=known, allowzero=1)
        with pytest.raises(Unsupported, match="its 6 elements cannot have the sizes"):
            tvmdml.onnx.load(made)(feeds)
    none = result("Reshape", [np.ones((0, 3), F), np.array([3, 0])], known=known, allowzero=1)
    assert none.shape == (3, 0)


def test_steps_of_any_size() -> None:
    row = np.arange(1, 4, dtype=F)
    cases = {}
    for step in (2**63 - 1, 2**62, 2**32, 2**31, 3):
        for begin, right in ((0, [1]), (1, [2])):
            bounds = [np.array([n]) for n in (begin, 2**63 - 1, 0, step)]
            cases[f"{begin}, {step}"] = (result("Slice", [row, *bounds], known=range(1, 5)), np.array(right, F))
            bounds = [np.array([n]) for n in (2 - begin, -(2**63), 0, -step)]
            back = np.array([3 - begin], F)
            cases[f"{begin}, -{step}"] = (result("Slice", [row, *bounds], known=range(1, 5)), back)
    assert not differences(cases)


@pytest.mark.parametrize("known", [[1], [1, 2], [0, 1, 2]], ids=["a value", "a constant value", "constants"])
def test_bool_is_padded_with_a_value(known: list[int]) -> None:
    x, pads = np.array([[False, True]]), np.array([0, 1, 1, 0])
    for value in (False, True):
        found = result("Pad", [x, pads, np.array(value)], known=known)
        assert not differences({str(value): (found, np.pad(x, ((0, 1), (1, 0)), constant_values=value))})


def test_limits_that_are_not_there_are_the_largest_numbers() -> None:
    """So says ONNX, and so ONNX Runtime has it."""
    x, most = np.array([np.inf, -np.inf, np.nan, 1], F), np.finfo(F).max
    assert not differences({
        "none": (result("Clip", [x]), np.array([most, -most, np.nan, 1], F)),
        "one": (result("Clip", [x, np.array(0, F)], known=[1]), np.array([most, 0, np.nan, 1], F)),
        "one that an input gives": (result("Clip", [x, np.array(0, F)]), np.array([most, 0, np.nan, 1], F)),
        "of version 7": (result("Clip", [x], opset=7), np.array([most, -most, np.nan, 1], F)),
    })  # fmt: skip
