"""Resize and Upsample: sizes that follow from scales, nearest elements, corners, parts of the input, and integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import differences, result, single  # noqa: E402 - they need ONNX

import tvmdml.onnx  # noqa: E402 - it needs ONNX
from tvmdml.errors import Unsupported  # noqa: E402

F = np.float32
NONE = np.zeros(0, F)


def scaled(x: Any, *scales: float, **about: Any) -> Any:
    return result("Resize", [x, NONE, np.array(scales, F)], known=[1, 2], **about)


def sized(x: Any, *sizes: int, **about: Any) -> Any:
    return result("Resize", [x, NONE, NONE, np.array(sizes)], known=[1, 2, 3], **about)


def row(*numbers: Any) -> Any:
    return np.array(numbers, F)


SIZES = (
    (20, 1.3, 26),
    (10, 1.1, 11),
    (30, 0.1, 3),
    (100, 0.29, 29),
    (5, 2.6, 13),
    (50, 1.1, 55),
    (15, 1.4, 21),
    (20, 0.7, 14),
    (7, 1.7, 11),
)


def test_sizes_of_scales_are_products_of_float32() -> None:
    """As in ONNX Runtime and PyTorch: the float32 that is nearest to 1.3 is a little less, and 20 times that is 26."""
    given = {f"{n} x {scale}": (scaled(np.arange(n, dtype=F), scale).size, right) for n, scale, right in SIZES}
    assert not {name: pair for name, pair in given.items() if pair[0] != pair[1]}


CORNERS = {
    "floor": [0, 3, 6],
    "ceil": [0, 3, 6],
    "round_prefer_floor": [0, 3, 6],
    "round_prefer_ceil": [0, 3, 6],
}


def test_the_nearest_elements_of_aligned_corners_are_those_at_exact_places() -> None:
    """A place that is a whole number is that element, and one between two is rounded as the mode says."""
    about = {"coordinate_transformation_mode": "align_corners"}
    cases = {mode: (sized(np.arange(7, dtype=F), 3, nearest_mode=mode, **about), row(*right)) for mode, right in CORNERS.items()}
    six = np.arange(6, dtype=F)
    for mode, right in (("floor", [0, 0, 1, 1, 2, 3, 3, 4, 5]), ("round_prefer_ceil", [0, 1, 1, 2, 3, 3, 4, 4, 5])):
        cases[f"6 to 9, {mode}"] = (sized(six, 9, nearest_mode=mode, **about), row(*right))
    ten = [n * 9 // 24 for n in range(25)]
    cases["10 to 25"] = (sized(np.arange(10, dtype=F), 25, nearest_mode="floor", **about), row(*ten))
    assert not differences(cases)


def test_the_nearest_element_of_a_fractional_scale_is_that_of_a_float32() -> None:
    """17 / 1.7 is 10, as in ONNX Runtime and PyTorch; with the float32 that is nearest to 1.7 it is less."""
    about = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    assert scaled(np.arange(19, dtype=F), 1.7, **about)[17] == 10


def test_corners_are_those_of_the_result() -> None:
    """The result of 4 x 1.7 has 6 elements, and the last one is the last one, as in PyTorch and ONNX Runtime."""
    about = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    x = row(0, 1, 2, 3)
    cases = {"linear": (scaled(x, 1.7, **about), row(0, 0.6, 1.2, 1.8, 2.4, 3)), "one": (sized(x, 1, **about), row(0))}
    cubic = scaled(x, 1.7, mode="cubic", coordinate_transformation_mode="align_corners")
    assert not differences(cases)
    assert np.allclose(cubic[[0, -1]], [0, 3])


def cropped(x: Any, low: float, high: float, n: int, mode: str, **about: Any) -> Any:
    given = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", **about}
    return result("Resize", [x, row(low, high), NONE, np.array([n])], known=[1, 2, 3], opset=19, **given)


def test_parts_of_the_input_are_resized() -> None:
    """One element is from the middle of the part. Places outside of the input have the value of extrapolation."""
    x = row(1, 2, 3, 4)
    assert not differences({
        "one": (cropped(x, 0, 1, 1, "linear"), row(2.5)),
        "one of a part": (cropped(x, 0.5, 1, 1, "linear"), row(3.25)),
        "one, to the nearest": (cropped(x, 0.5, 1, 1, "nearest"), row(3)),
        "outside, to the nearest": (cropped(x, -0.5, 1.5, 5, "nearest"), row(0, 1, 2, 4, 0)),
        "outside, with a value": (cropped(x, -0.5, 1.5, 5, "nearest", extrapolation_value=9.0), row(9, 1, 2, 4, 9)),
        "outside, weighed": (cropped(x, -0.5, 1.5, 5, "linear"), row(0, 1, 2.5, 4, 0)),
        "turned": (cropped(x, 1, 0, 4, "nearest"), row(4, 3, 2, 1)),
    })  # fmt: skip


@pytest.mark.full
def test_antialiased_integers_are_rounded() -> None:
    about = {"mode": "linear", "antialias": 1}
    assert not differences({
        "uint8": (scaled(np.array([0, 0, 255, 255], np.uint8), 0.5, **about), np.array([32, 223], np.uint8)),
        "6 to 4": (sized(np.array([10, 21, 32, 43, 54, 66], np.uint8), 4, **about), np.array([14, 30, 45, 62], np.uint8)),
        "int8": (scaled(np.array([0, 0, -128, -128], np.int8), 0.5, **about), np.array([-16, -112], np.int8)),
        "int32": (scaled(np.array([0, 0, 1000, 1000], np.int32), 0.5, **about), np.array([125, 875], np.int32)),
    })  # fmt: skip


@pytest.mark.full
def test_antialiasing_has_the_scale_of_the_sizes() -> None:
    """Also where places have another one: those of corners, of a part, and of one element."""
    x, about = row(1, 2, 5, 11), {"mode": "linear", "antialias": 1, "opset": 19}
    one, corners = "pytorch_half_pixel", "align_corners"
    assert not differences({
        "one": (sized(x, 1, coordinate_transformation_mode=one, **about), row(2.3125)),
        "a corner": (sized(x, 1, coordinate_transformation_mode=corners, **about), row(2.3125)),
        "corners": (sized(x, 2, coordinate_transformation_mode=corners, **about), row(1.25, 9.5)),
        "a part": (cropped(x, 0, 1, 2, "linear", antialias=1), row(1.25, 9.5)),
    })  # fmt: skip


def test_cubic_integers_are_rounded_and_stay_in_their_type() -> None:
    x = row(0, 0, 255, 255)
    exact = sized(x, 8, mode="cubic")
    assert exact.min() < 0
    assert exact.max() > 255
    assert sized(x.astype(np.uint8), 8, mode="cubic").tolist() == np.floor(exact + 0.5).clip(0, 255).tolist()


TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool", "float16", "float64")


@pytest.mark.full(first=1)
@pytest.mark.parametrize("known", [[1], [0, 1]], ids=["input", "constant"])
def test_elements_of_every_type_are_moved(known: list[int]) -> None:
    cases = {}
    for kind in TYPES:
        limits = (0, 1) if kind == "bool" else (np.finfo if kind.startswith("float") else np.iinfo)(kind)
        x = np.array(limits if isinstance(limits, tuple) else (limits.min, limits.max), kind)
        found = result("Upsample", [x, row(2)], known=known, opset=9)
        cases[kind] = (found.view(f"u{found.dtype.itemsize}"), x.repeat(2).view(f"u{found.dtype.itemsize}"))
    wide = np.array([2**62 + 1, -(2**62) - 1])
    cases["gathered"] = (sized(wide, 3, coordinate_transformation_mode="align_corners"), wide[[0, 0, 1]])
    assert not {name: pair for name, pair in cases.items() if not np.array_equal(*pair)}


def test_bool_is_not_weighed() -> None:
    made, _ = single("Resize", [np.array([True, False]), NONE, row(2)], known=[1, 2], mode="linear")
    with pytest.raises(Unsupported, match="bool"):
        tvmdml.onnx.load(made)


def test_what_keeps_its_aspect_has_rounded_sizes() -> None:
    x = np.arange(24, dtype=F).reshape(6, 4)
    for policy, right in (("not_larger", (7, 5)), ("not_smaller", (8, 5))):
        found = sized(x, 7, 5, keep_aspect_ratio_policy=policy, axes=[0, 1])
        assert found.shape == right, policy


def test_scales_that_do_not_fit_are_refused() -> None:
    x = row(1, 2, 3)
    for scales, said in (
        ((2.0, 2.0), "rank"),
        ((-1.0,), "scales"),
        ((np.nan,), "scales"),
        ((np.inf,), "scales"),
    ):
        made, _ = single("Resize", [x, NONE, np.array(scales, F)], known=[1, 2])
        with pytest.raises((Unsupported, tvmdml.errors.ModelError), match=said):
            tvmdml.onnx.load(made)
