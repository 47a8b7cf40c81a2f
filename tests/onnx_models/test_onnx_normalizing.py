"""Normalizations of elements far from 0, with what may be asked for beside the result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import results  # noqa: E402 - they need ONNX

FAR = np.float32([[10000, 10001, 10002, 10003], [-20000, -20001, -20003, -20006]])
ONES, ZEROS = np.ones(4, np.float32), np.zeros(4, np.float32)


def normal(x: Any, axis: Any, epsilon: float = 1e-5) -> tuple[Any, Any, Any]:
    """The result, the mean, and one over the deviation."""
    x = x.astype(np.float64)
    mean, deviation = x.mean(axis, keepdims=True), np.sqrt(x.var(axis, keepdims=True) + epsilon)
    return (x - mean) / deviation, mean, 1 / deviation


def near(found: Any, wanted: Any) -> bool:
    return bool(np.allclose(found, wanted, rtol=1e-3 if np.asarray(found).dtype == np.float16 else 1e-5, atol=1e-5))


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_statistics_that_are_asked_for_change_nothing(domain: str) -> None:
    """The variance is that of differences from the mean, and not a difference of large numbers."""
    wanted = normal(FAR, 1)
    (alone,) = results("LayerNormalization", [FAR, ONES], opset=17, domain=domain)
    found = results("LayerNormalization", [FAR, ONES], outputs=3, opset=17, domain=domain)
    assert np.array_equal(found[0], alone)
    assert all(near(one, other) for one, other in zip(found, wanted, strict=True))
    half = (FAR / 100).astype(np.float16)
    found = results("LayerNormalization", [half, ONES.astype(np.float16)], outputs=3, opset=17, domain=domain)
    assert [one.dtype for one in found] == [np.float16, np.float32, np.float32]
    assert all(near(one, other) for one, other in zip(found[1:], normal(half, 1)[1:], strict=True))


def test_normalizations_that_add_first_give_their_statistics() -> None:
    skip = np.float32([[1, 0, 1, 0], [0, 2, 0, 1]])
    found = results("SkipLayerNormalization", [FAR, skip, ONES, ZEROS], outputs=4, domain="com.microsoft", epsilon=1e-5)
    wanted = (*normal(FAR + skip, 1), FAR + skip)
    assert all(near(one, other) for one, other in zip(found, wanted, strict=True))
    kind, one = "SkipSimplifiedLayerNormalization", {"domain": "com.microsoft", "epsilon": 1e-5}
    found = results(kind, [FAR, skip, ONES], outputs=4, absent=(1,), **one)
    root = np.sqrt(((FAR + skip).astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-5)
    assert near(found[0], (FAR + skip) / root)
    assert near(found[1] * root, 1)


def test_groups_of_versions_18_to_20_have_a_scale_each() -> None:
    x = np.stack([FAR, FAR[::-1] + 3]).reshape(1, 4, 4)
    scale, bias = np.float32([1, 2]), np.float32([0, 1])
    parts = normal(x.reshape(1, 2, 8), 2)[0]
    wanted = (parts * scale[:, None] + bias[:, None]).reshape(x.shape)
    for opset in (18, 20):
        assert near(results("GroupNormalization", [x, scale, bias], opset=opset, num_groups=2)[0], wanted)
    wanted = parts.reshape(x.shape) * ONES[:, None] + np.arange(4)[:, None]
    assert near(results("GroupNormalization", [x, ONES, np.arange(4, dtype=np.float32)], num_groups=2)[0], wanted)
    first = results("GroupNorm", [x, ONES, np.arange(4, dtype=np.float32)], domain="com.microsoft", groups=2, channels_last=0)[0]
    assert near(first, wanted)


def test_statistics_may_be_wider_than_a_batch() -> None:
    x = np.array([[1, 2], [3, 5]], np.float16)
    scale, bias = np.array([1, 2], np.float16), np.array([0, 1], np.float16)
    mean, variance = np.float32([0, 1e-3]), np.float32([1, 4])
    (found,) = results("BatchNormalization", [x, scale, bias, mean, variance], epsilon=0.0)
    assert found.dtype == np.float16
    assert near(found, (x - mean) / np.sqrt(variance) * scale + bias)
    found = results("BatchNormalization", [x, scale, bias, mean, variance], outputs=3, training_mode=1, momentum=0.5)
    assert [one.dtype for one in found] == [np.float16, np.float32, np.float32]
    assert near(found[1], mean / 2 + x.mean(0) / 2)
    assert near(found[2], variance / 2 + x.astype(np.float32).var(0) / 2)


def test_deviations_may_be_small() -> None:
    """ONNX adds 1e-9 to a deviation, and not to a variance."""
    for size in (2e-4, 2e-6):
        (found,) = results("MeanVarianceNormalization", [np.float32([0, size])], opset=13, axes=[0])
        np.testing.assert_allclose(found, [-1, 1], rtol=2e-3)


@pytest.mark.full(first=1)
@pytest.mark.parametrize(("p", "dtype"), [(2, "float32"), (1, "float32"), (2, "float64"), (2, "float16")])
def test_norms_of_small_and_large_numbers_are_those_of_the_type(p: int, dtype: str) -> None:
    """What a row is divided by has no least but 0; a norm that the type rounds to 0 makes a row of zeros."""
    limits = np.finfo(dtype)
    tiny, root = limits.smallest_subnormal, np.sqrt(np.sqrt(limits.smallest_normal))
    x = np.array([[0, 0], [-0.0, 0], [tiny, tiny], [3 * root, -4 * root], [0.25, 0], [np.nan, 0]], dtype)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float32 if dtype == "float16" else dtype)
        norm = (np.abs(wide) ** p).sum(1, keepdims=True) ** (1 / p)
        wanted = np.where(norm == 0, 0, wide / norm)
    (found,) = results("LpNormalization", [x], p=p)
    assert np.allclose(found, wanted, rtol=1e-3 if dtype == "float16" else 1e-6, atol=0, equal_nan=True)


@pytest.mark.full
def test_responses_of_channels_in_any_number_of_dimensions() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 4, 3, 1)
    squares = np.pad(x.astype(np.float64) ** 2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    wanted = x / (1 + (squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]) / 3) ** 0.75
    for shape in ((2, 4, 3, 1), (2, 4, 3), (2, 4, 1, 3, 1), (6, 4)):
        order = (0, 2, 1, 3) if len(shape) == 2 else (0, 1, 2, 3)
        given, right = (one.transpose(order).reshape(shape) for one in (x, wanted))
        assert near(results("LRN", [given], size=3, alpha=1.0)[0], right), shape
