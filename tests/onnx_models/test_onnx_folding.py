"""What is computed while a model is converted is what kernels compute: constants and inputs give the same bits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import N, model, result  # noqa: E402 - they need ONNX

import tvmdml.onnx  # noqa: E402 - it needs ONNX

FLOATS, INTEGERS = ("float32", "float16", "float64"), tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
EDGES = [0.0, -0.0, 1, -1, 1.5, -2.5, 3e9, -3e9, 1e20, -1e20, np.inf, -np.inf, np.nan, 300, 255.5, -129, 65504, 1e-30]


def edges(dtype: str) -> Any:
    """Numbers at which rules differ."""
    if dtype in FLOATS:
        with np.errstate(all="ignore"):
            return np.array(EDGES).astype(dtype)
    limits = np.iinfo(dtype)
    return np.array([0, 1, 2, 3, 5, 100, limits.max, limits.max - 1, limits.min, limits.min + 1], dtype)


def pairs(dtype: str) -> list[Any]:
    x = edges(dtype)
    return [np.repeat(x, x.size), np.tile(x, x.size)]


def differences(kind: str, arrays: Sequence[Any], *, mixed: bool = True, **attributes: Any) -> list[str]:
    """Whether constants change a bit of a node's result: all inputs, and with ``mixed`` each of them alone."""
    formal = onnx.defs.get_schema(kind, 21).inputs
    types = [{"float32": "float", "float64": "double"}.get(one.dtype.name, one.dtype.name) for one in arrays]
    if any(f"tensor({name})" not in formal[min(i, len(formal) - 1)].types for i, name in enumerate(types)):
        return []  # ONNX has not this type here
    every = range(len(arrays))
    known = [i for i in every if kind.startswith("Reduce") and i == 1]  # axes decide
    run = result(kind, arrays, known=known, **attributes)
    found = []
    for constants in {tuple(every), *((i, *known) for i in every if mixed and i not in known)}:
        other = result(kind, arrays, known=constants, **attributes)
        same = (run.dtype, run.shape) == (other.dtype, other.shape) and np.array_equal(
            *(np.where(np.isnan(one), 0, one).tobytes() if one.dtype.kind == "f" else one.tobytes() for one in (run, other))
        )
        nans = [np.isnan(one) for one in (run, other)] if run.dtype.kind == "f" else [0, 0]
        if not same or not np.array_equal(*nans):
            found.append(f"{kind} of {arrays[0].dtype} {attributes}, constants {constants}: {run.ravel()} and {other.ravel()}")
    return found


def cast(dtype: str, to: str) -> list[str]:
    return differences("Cast", [edges(dtype)], to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(to)))


@pytest.mark.full
def test_casts_divisions_and_powers_of_constants_are_those_of_inputs() -> None:
    found = [one for to in ("int8", "uint32", "int64") for one in cast("float32", to)]
    found += differences("Div", pairs("int32"), mixed=False)
    x = np.concatenate([edges("float32"), np.random.default_rng(0).standard_normal(500).astype(np.float32)])
    for exponent in (2, 0.5):
        found += differences("Pow", [x, np.array(exponent, np.float32)])
    found += differences("Gather", [np.arange(5), np.array([0, -1, 4, 5, 9, -5, -6])], mixed=False)
    found += differences("Gather", [np.arange(5), np.array(7)])
    found += differences("ReduceSum", [x[18:].reshape(10, 50), np.array([1])], mixed=False)
    assert not found, "\n".join(found)


def test_quotients_by_0_and_casts_beyond_the_range_are_directmls() -> None:
    """Integers divided by 0 are 0; floats become the nearest integer that there is, and NaN becomes 0."""
    zero = np.zeros(2, np.int32)
    for kind in ("Div", "Mod"):
        for constants in ((), (0, 1)):
            assert not result(kind, [np.int32([7, -7]), zero], known=constants).any()
    x = np.float32([-1, 300, np.nan, np.inf, -np.inf])
    for constants in ((), (0,)):
        assert result("Cast", [x], known=constants, to=2).tolist() == [0, 255, 0, 255, 0]


@pytest.mark.full
@pytest.mark.drawn("dtype", [*FLOATS, *INTEGERS], 5)
def test_all_that_is_folded_is_what_kernels_compute(dtype: str) -> None:
    found = []
    rng = np.random.default_rng(0)
    x, (a, b) = edges(dtype), pairs(dtype)
    is_float = dtype in FLOATS
    for to in (*FLOATS, *INTEGERS, "bool"):
        found += cast(dtype, to) if to != dtype else []
    compared = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    powers = is_float or dtype in ("int32", "int64")
    for kind in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", *compared, *(["Pow"] if powers else [])):
        found += differences(kind, [a, b])
    found += differences("Mod", [a, b], fmod=1) + ([] if is_float else differences("Mod", [a, b]))
    found += differences("Where", [a > b, a, b])
    for kind in ("Abs", *(("Ceil", "Floor", "Sqrt") if is_float else ()), *(("Neg",) if dtype[0] != "u" else ())):
        found += differences(kind, [x])
    rows = (rng.standard_normal((3, 50)) * 10).astype(dtype) if is_float else rng.integers(0, 100, (3, 50)).astype(dtype)
    sums = ("ReduceSum", "ReduceProd") if is_float or dtype.endswith(("32", "64")) else ()
    for kind, (many, axis) in itertools.product((*sums, "ReduceMax", "ReduceMin"), ((rows, 1), (np.stack([x, x[::-1]]), 0))):
        found += differences(kind, [many, np.array([axis])])
    found += differences("Gather", [x, np.array([0, -1, x.size - 1, x.size, x.size + 5, -x.size, -x.size - 1])])
    for exponent in ((2, 0.5, 3, -1, 0) if is_float else (2, 3, -1)) if powers else ():
        found += differences("Pow", [x, np.array(exponent, dtype)])
    assert not found, "\n".join(found)


@pytest.mark.parametrize("kind", ["And", "Or", "Xor"])
def test_bits_are_folded_as_kernels_compute_them(kind: str) -> None:
    bits = np.array([True, False])
    assert not differences(kind, [np.repeat(bits, 2), np.tile(bits, 2)])


@pytest.mark.parametrize("dtype", ["float32", "int64", "int16"])
@pytest.mark.parametrize("known", ["", "sl", "sld"])
def test_a_range_without_a_number_of_elements_is_refused(dtype: str, known: str) -> None:
    """ONNX's inference says that it has none."""
    for delta in (0, *([np.nan] if dtype == "float32" else [])):
        arrays = {"s": np.array(2, dtype), "l": np.array(5, dtype), "d": np.array(delta, dtype)}
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        given = {name: one for name, one in arrays.items() if name not in known}
        inputs = [onnx.helper.make_tensor_value_info(name, kind, []) for name in given]
        y = onnx.helper.make_tensor_value_info("y", kind, None)
        made = model([N("Range", ["s", "l", "d"], ["y"])], inputs, [y], {name: arrays[name] for name in known})
        with pytest.raises(tvmdml.Unsupported, match=r"goes from 2(\.0)? to 5(\.0)? by (0|nan).*: the delta may not be 0"):
            tvmdml.onnx.load(made)(given)
        if given:
            (nothing,) = tvmdml.onnx.load(made)({**given, "d": np.array(-1, dtype)})
            assert nothing.shape == (0,)


X = np.ones((1, 1, 2, 3), np.float32)
MAKES_NOTHING: dict[str, tuple[str, list[Any], str]] = {
    "sizes below 0": ("Pad", [X, np.array([0, 0, -2, 0, 0, 0, -1, 0])], r"its pads are .*: none may become less than 0"),
    "a scale of 0": ("Resize", [X, np.zeros(0, np.float32), np.array([1, 1, 0, 1], np.float32)], r"its scales are \[1.0, 1.0, 0.0"),
    "a window beyond the image": (
        "Conv",
        [X, np.ones((1, 1, 3, 3), np.float32)],
        r"sizes\[2\]: given 3, over 3; allowed: within 2",
    ),
}


def of_the_first(kind: str, arrays: list[Any], **more: Any) -> Any:
    """The result of a node that has one input, and else constants."""
    return result(kind, arrays, known=range(1, len(arrays)), **more)


@pytest.mark.parametrize("name", MAKES_NOTHING)
def test_nothing_is_not_made_of_something_by_a_mistake(name: str) -> None:
    """ONNX's inference says that these results have no elements."""
    kind, arrays, said = MAKES_NOTHING[name]
    with pytest.raises(tvmdml.Unsupported, match=said):
        of_the_first(kind, arrays)


def test_nothing_is_made_of_something_by_right() -> None:
    scales = np.array([1, 1, 0.25, 1], np.float32)
    for mode in ("nearest", "linear"):
        assert of_the_first("Resize", [X, np.zeros(0, np.float32), scales], mode=mode).shape == (1, 1, 0, 3)
    assert of_the_first("Pad", [X, np.array([0, 0, -1, 0, 0, 0, -1, 0])]).shape == (1, 1, 0, 3)
