"""AffineGrid, GridSample and RoiAlign at their edges: single images and elements, places far away, empty regions, the mode max."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import differences, result  # noqa: E402 - they need ONNX

from tvmdml.errors import Unsupported  # noqa: E402

F = np.float32
IMAGE = np.arange(64, dtype=F).reshape(1, 1, 8, 8)
FIRST = np.zeros(1, np.int64)


def affine(theta: Any, sizes: Any, corners: int) -> Any:
    return result("AffineGrid", [theta, np.array(sizes)], known=[1], opset=20, align_corners=corners)


def grid(theta: Any, sizes: Any, corners: int) -> Any:
    rows = [np.linspace(-1, 1, n) if corners and n > 1 else (2 * np.arange(n) + 1) / n - 1 for n in sizes[2:]]
    points = np.stack([*np.meshgrid(*rows, indexing="ij")[::-1], np.ones(sizes[2:])], -1)
    return np.einsum("...k,njk->n...j", points, theta).astype(F)


@pytest.mark.full
def test_grids_of_one_image_and_of_one_element() -> None:
    """The only element of a dimension whose corners are aligned is in the middle, as in PyTorch."""
    cases = {}
    for corners, sizes in itertools.product((0, 1), ((1, 3, 4, 5), (2, 3, 1, 4), (1, 1, 1, 1), (2, 1, 1, 3, 2))):
        space = len(sizes) - 2
        theta = np.random.default_rng(4).standard_normal((sizes[0], space, space + 1)).astype(F)
        cases[f"{sizes}, align_corners={corners}"] = (affine(theta, sizes, corners), grid(theta, sizes, corners))
    assert not differences(cases)


def sampled(x: Any, places: Any, **about: Any) -> Any:
    points = np.zeros((1, 1, len(places), 2), F)
    points[0, 0, :, 0] = places
    return result("GridSample", [x, points], opset=20, **about).reshape(-1).tolist()


@pytest.mark.full
def test_integers_are_weighed_as_floats_and_cut() -> None:
    x, places = np.array([1, 100, -30, 4]), [0.25, -0.5, 1]
    for dtype in ("int8", "int16", "int32", "int64", "float32"):
        found = sampled(x.astype(dtype).reshape(1, 1, 1, 4), places, mode="linear", align_corners=1)
        assert np.allclose(found, [-13.75, 75.25, 4] if dtype == "float32" else [-13, 75, 4]), dtype
        assert sampled(x.astype(dtype).reshape(1, 1, 1, 4), places, mode="nearest", align_corners=1) == [-30, 100, 4], dtype
    with pytest.raises(Unsupported, match="bool"):
        sampled((x > 0).reshape(1, 1, 1, 4), places, mode="linear")


FAR = [np.inf, -np.inf, 1e30, -1e30, np.nan]
AT = {"zeros": [0, 0, 0, 0, 1], "border": [3, 1, 3, 1, 1]}
"""What is far away, and at what is no number, which is -1, as in PyTorch."""


def far(mode: str, padding: str) -> Any:
    return sampled(np.array([[1, 2, 3]], F).reshape(1, 1, 1, 3), FAR, mode=mode, padding_mode=padding, align_corners=1)


@pytest.mark.full
def test_places_at_infinity_are_far_outside() -> None:
    assert far("linear", "zeros") == AT["zeros"]
    assert far("nearest", "border") == AT["border"]


@pytest.mark.full
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_places_at_infinity_in_each_mode(mode: str) -> None:
    for padding, right in AT.items():
        assert np.allclose(far(mode, padding), right), padding
    assert np.isfinite(far(mode, "reflection")).all()


def aligned(regions: Any, opset: int = 16, x: Any = IMAGE, known: Any = (), **about: Any) -> Any:
    numbers = {"output_height": 1, "output_width": 2, "sampling_ratio": 2, **about}
    given = [x, np.array(regions, F), np.zeros(len(regions), np.int64)]
    return result("RoiAlign", given, opset=opset, known=known, **numbers).reshape(len(regions), -1).tolist()


def test_regions_without_a_shift_are_at_least_one_element() -> None:
    about = {"coordinate_transformation_mode": "output_half_pixel"}
    regions = [[2, 2, 2.25, 2.25], [3, 3, 1, 1], [1, 1, 5, 5]]
    right = [[22.25, 22.75], [31.25, 31.75], [26, 28]]
    assert np.allclose(aligned(regions, **about), right)
    assert np.allclose(aligned(regions, opset=10), right)
    assert np.allclose(aligned([[4, 4, 4.5, 4.5]], spatial_scale=0.5, **about), [[22.25, 22.75]])


@pytest.mark.full(first=1)
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_a_side_of_one_element_has_one_sample(mode: str, dtype: Any) -> None:
    """Also where its ends, which are rounded, are a little farther apart."""
    one, rough = dtype(1), 1e-2 if dtype == np.float16 else 1e-5
    start = next(s for s in np.random.default_rng(7).uniform(0.1, 4, 99).astype(dtype) if (s + one) - s > one)
    x = np.random.default_rng(6).standard_normal((1, 1, 8, 8)).astype(dtype)
    about = {"mode": mode, "coordinate_transformation_mode": "output_half_pixel", "output_width": 2, "output_height": 1}
    region = np.array([[start, start, start + 0.25, start]], dtype)
    several, single = (
        result("RoiAlign", [x, region, FIRST], opset=16, sampling_ratio=n, **about).astype(np.float64) for n in (0, 1)
    )
    assert np.allclose(several, single, rough, rough)


@pytest.mark.full
def test_places_of_64_bits_are_computed_in_64_bits() -> None:
    """A third of an element has 16 digits."""
    x, third = np.array([[0.0, 3.0, 0.0]]).reshape(1, 1, 1, 3), 1 / 3
    w, offset, zero = np.ones((1, 1, 1, 1)), np.zeros((1, 2, 1, 3)), np.zeros((1, 1, 1, 2))
    offset[:, 1], zero[..., 0] = third, -1 + third
    regions = np.array([[0, 0, 2 * third, 2 * third]])
    about = {"sampling_ratio": 1, "mode": "max", "coordinate_transformation_mode": "output_half_pixel"}
    wide = np.array([[[1.0, 0, third], [0, 1, 0]]])
    found = {
        "DeformConv": (result("DeformConv", [x, w, offset], opset=19), [1, 2, 0]),
        "GridSample": (result("GridSample", [x, zero], opset=20, align_corners=1), [1]),
        "AffineGrid": (affine(wide, [1, 1, 1, 2], 1), [third - 1, 0, third + 1, 0]),
        "RoiAlign": (result("RoiAlign", [x.reshape(1, 1, 1, 3) + 0, regions, FIRST], opset=16, **about), [1.5]),
    }  # fmt: skip
    assert {name: one.dtype for name, (one, _) in found.items()} == dict.fromkeys(found, np.float64)
    assert not {name: (one, right) for name, (one, right) in found.items() if np.abs(one.reshape(-1) - right).max() > 1e-14}


def test_empty_regions_that_choose_their_samples_have_none() -> None:
    found = aligned([[1, 1, 1, 1], [1, 1, 1, 4], [3, 3, 1, 1], [1, 1, 4, 4]], sampling_ratio=0)
    assert found[:3] == [[0, 0]] * 3
    assert found[3] != [0, 0]


def weighed(x: Any, y: float, z: float) -> float:
    """The largest of the four elements around a place, each with its weight."""
    height, width = x.shape
    if not (-1 <= y <= height and -1 <= z <= width):
        return 0.0
    y, z = min(max(y, 0), height - 1), min(max(z, 0), width - 1)
    a, b = int(y), int(z)
    return max(
        float(x[min(a + i, height - 1), min(b + k, width - 1)] * abs(1 - i - (y - a)) * abs(1 - k - (z - b)))
        for i in (0, 1)
        for k in (0, 1)
    )


@pytest.mark.full
@pytest.mark.parametrize("ratio", [2, 0])
def test_the_mode_max_takes_the_largest_weighed_element(ratio: int) -> None:
    """As ONNX Runtime does, and not the largest sample."""
    x = np.random.default_rng(5).standard_normal((1, 1, 6, 6)).astype(F)
    regions, right = [[1, 1, 4, 4], [-3, -2, 9, 9], [0, 2, 5, 3]], []
    for x1, y1, x2, y2 in regions:
        rows, columns = (ratio or int(np.ceil(n / part)) for n, part in ((y2 - y1, 1), (x2 - x1, 2)))
        for column in range(2):
            places = [
                (y1 - 0.5 + (y2 - y1) * (i + 0.5) / rows, x1 - 0.5 + (x2 - x1) / 2 * (column + (k + 0.5) / columns))
                for i in range(rows)
                for k in range(columns)
            ]
            right.append(max(weighed(x[0, 0], *place) for place in places))
    found = aligned(regions, x=x, mode="max", sampling_ratio=ratio, known=[] if ratio else [1])
    assert np.allclose(np.array(found).reshape(-1), right, atol=1e-5)
