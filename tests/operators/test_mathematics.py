"""exp, log, sin … and the activations made of them: within the contract's bounds, and the same bits on every target."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import Array, reference, run, seeded, special_values, with_subnormals

import tvmdml
from tvmdml import TensorDataType, TensorDesc, operators, targets
from tvmdml.errors import TvmdmlError
from tvmdml.operators import Operator
from tvmdml.operators._pointwise import Pointwise
from tvmdml.proof.conformance.cases import described
from tvmdml.targets import Target

Draw = Callable[..., list[Any]]
FUNCTIONS = {
    name: cls
    for name, cls in operators.all_operators().items()
    if issubclass(cls, Pointwise) and cls.STEPS and len(cls.SUPPORT[0].tensors) == 2
}
"""All operators of one input whose results are not exact, by name."""
every = pytest.mark.parametrize("name", FUNCTIONS)
LEVELS = ("cpu:x86-64", "cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4")


def desc_of(name: str, x: Array) -> Operator:
    """The operator with usual attributes, for an array."""
    found: Operator = described(name)(TensorDesc(str(x.dtype), x.shape))
    return found


def told(desc: Operator, x: Array, actual: Array) -> str:
    """What is wrong with a result; empty if nothing is."""
    return desc.mismatch((actual,), reference(desc, x))


@functools.cache
def patterns(dtype: str, count: int, seed: int = 0) -> Array:
    """Bit patterns from all over a type, those around each power of two, usual numbers, and special values."""
    width = np.dtype(dtype).itemsize * 8
    stride, fraction = 2**width // count, np.finfo(dtype).nmant
    rng = seeded("patterns", dtype, count, seed)
    strided = (
        [stride * i + int(rng.integers(stride, dtype=np.uint64)) for i in range(count)]
        if width == 64
        else (np.arange(count, dtype=np.uint64) * stride + rng.integers(stride, size=count, dtype=np.uint64))
    )
    edges = [((exponent << fraction) + near) % 2**width for exponent in range(2 ** (width - fraction)) for near in (-1, 0, 1)]
    usual = [rng.standard_normal(count // 4) * scale for scale in (1e-3, 0.3, 1, 5, 90)]
    found = [np.array(some, f"u{width // 8}").view(dtype) for some in (strided, edges)]
    return np.concatenate([*found, *(some.astype(dtype) for some in usual), special_values(TensorDataType.of(dtype, ""))])


@pytest.mark.full(first=1)
@every
def test_every_float16_is_within_a_step(name: str) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    desc = desc_of(name, x)
    assert told(desc, x, run(desc, targets.resolve("cpu"), x)[0]) == ""


@pytest.mark.full(first=1)
@pytest.mark.some(20)
@every
@pytest.mark.parametrize(("dtype", "count"), [("float32", 1 << 16), ("float64", 1 << 12)])
def test_results_are_within_the_bound(name: str, dtype: str, count: int) -> None:
    x = patterns(dtype, count)
    desc = desc_of(name, x)
    assert told(desc, x, run(desc, targets.resolve("cpu"), x)[0]) == ""


@pytest.mark.exhaustive
@every
def test_every_float32_is_within_the_bound(name: str) -> None:
    block = 1 << 24
    for start in range(0, 1 << 32, block):
        x = np.arange(start, start + block, dtype=np.uint64).astype(np.uint32).view(np.float32)
        desc = desc_of(name, x)
        assert told(desc, x, run(desc, targets.resolve("cpu"), x)[0]) == ""


@pytest.mark.full
@pytest.mark.some(12)
@every
def test_every_processor_gives_the_same_bits(name: str, draw: Draw) -> None:
    for dtype in draw(("float32", "float16", "float64")):
        x = np.concatenate([patterns(dtype, 1 << 12), np.float64([0.1, 0.7]).astype(dtype)])
        desc = desc_of(name, x)
        least, *others = _levels()
        (first,) = run(desc, least, x)
        for other in draw(others):
            _assert_same(first, run(desc, other, x)[0])


@pytest.mark.full(first=1)
@pytest.mark.drawn("name", FUNCTIONS, 10)
def test_every_device_gives_the_processors_bits(name: str, device: Target, draw: Draw) -> None:
    for dtype in draw(with_subnormals(device, ["float32", "float16", "float64"])):
        x = patterns(dtype, 1 << 11)
        desc = desc_of(name, x)
        _assert_same(run(desc, targets.resolve("cpu"), x)[0], run(desc, device, x)[0])


@pytest.mark.parametrize("name", ["ELEMENT_WISE_EXP", "ACTIVATION_SIGMOID", "ACTIVATION_SWISH"])
def test_lanes_without_a_result_are_left_out(name: str) -> None:
    try:
        target = targets.resolve("cpu:x86-64-v4")
    except TvmdmlError:
        pytest.skip("needs AVX-512")
    code = tvmdml.compile(desc_of(name, np.zeros(64, np.float32)), target).source("asm")
    scales = [line for line in code.splitlines() if "\tvscalef" in line]
    assert scales
    assert all("{z}" in line for line in scales), scales


def _levels() -> list[Target]:
    """The levels that this processor has."""
    found = []
    with contextlib.suppress(TvmdmlError):
        found.extend(targets.resolve(level) for level in LEVELS)
    return found


def _assert_same(a: Array, b: Array) -> None:
    differ = (a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}")) & ~(np.isnan(a) & np.isnan(b))
    assert not differ.any(), (int(differ.sum()), a[differ][:3], b[differ][:3])


INF, NAN = np.inf, np.nan
HALF_PI = np.pi / 2
SPECIAL: dict[str, tuple[list[float], list[float]]] = {
    "ELEMENT_WISE_EXP": ([-INF, INF, 0.0, -0.0], [0.0, INF, 1, 1]),
    "ELEMENT_WISE_LOG": ([-1, -INF, 0.0, -0.0, INF, 1], [NAN, NAN, -INF, -INF, INF, 0.0]),
    "ELEMENT_WISE_SIN": ([INF, -INF, 0.0, -0.0], [NAN, NAN, 0.0, -0.0]),
    "ELEMENT_WISE_COS": ([INF, -INF, 0.0, -0.0], [NAN, NAN, 1, 1]),
    "ELEMENT_WISE_TAN": ([INF, -INF, 0.0, -0.0], [NAN, NAN, 0.0, -0.0]),
    "ELEMENT_WISE_ASIN": ([1.5, -INF, 0.0, -0.0], [NAN, NAN, 0.0, -0.0]),
    "ELEMENT_WISE_ACOS": ([1.5, -INF, 1], [NAN, NAN, 0.0]),
    "ELEMENT_WISE_ATAN": ([INF, -INF, 0.0, -0.0], [HALF_PI, -HALF_PI, 0.0, -0.0]),
    "ELEMENT_WISE_SINH": ([INF, -INF, 0.0, -0.0], [INF, -INF, 0.0, -0.0]),
    "ELEMENT_WISE_COSH": ([INF, -INF, 0.0, -0.0], [INF, INF, 1, 1]),
    "ELEMENT_WISE_TANH": ([INF, -INF, 0.0, -0.0], [1, -1, 0.0, -0.0]),
    "ELEMENT_WISE_ERF": ([INF, -INF, 0.0, -0.0], [1, -1, 0.0, -0.0]),
    "ELEMENT_WISE_ASINH": ([INF, -INF, 0.0, -0.0], [INF, -INF, 0.0, -0.0]),
    "ELEMENT_WISE_ACOSH": ([0.5, -INF, INF, 1], [NAN, NAN, INF, 0.0]),
    "ELEMENT_WISE_ATANH": ([1, -1, 1.5, -INF, 0.0, -0.0], [INF, -INF, NAN, NAN, 0.0, -0.0]),
    "ACTIVATION_SIGMOID": ([-INF, INF, 0.0, -0.0], [0.0, 1, 0.5, 0.5]),
    "ACTIVATION_TANH": ([INF, -INF, 0.0, -0.0], [1, -1, 0.0, -0.0]),
    "ACTIVATION_SOFTPLUS": ([INF, -INF], [INF, 0.0]),
    "ACTIVATION_GELU": ([INF, -INF], [INF, NAN]),
    "ACTIVATION_SWISH": ([INF, -INF], [INF, NAN]),
}


@pytest.mark.full(first=1)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(name: str, dtype: str) -> None:
    given, expected = (np.array(some, dtype) for some in SPECIAL[name])
    given = np.concatenate([given, np.array([NAN], dtype)])
    (actual,) = run(desc_of(name, given), targets.resolve("cpu"), given)
    _assert_same(actual, np.concatenate([expected, np.array([NAN], dtype)]))


ANGLES = [
    (0.0, 1, 0.0), (-0.0, 1, -0.0), (0.0, 0.0, 0.0), (-0.0, 0.0, -0.0), (0.0, -1, np.pi), (-0.0, -1, -np.pi), (0.0, -0.0, np.pi),
    (-0.0, -0.0, -np.pi), (2, 0.0, HALF_PI), (-2, -0.0, -HALF_PI), (INF, 5, HALF_PI), (-INF, -5, -HALF_PI), (3, INF, 0.0),
    (-3, INF, -0.0), (3, -INF, np.pi), (INF, INF, np.pi / 4), (INF, -INF, 3 * np.pi / 4), (-INF, INF, -np.pi / 4), (NAN, 1, NAN),
    (1, NAN, NAN), (NAN, INF, NAN),
]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_angles_of_points(dtype: str, target: Target) -> None:
    """Zeros and infinities as in C; points all over the plane within the bound; and the processor's bits."""
    with_subnormals(target, [dtype])
    y, x, angle = (np.array(some, dtype) for some in zip(*ANGLES, strict=True))
    _assert_same(tvmdml.atan_yx(y, x, device=target.name), angle)
    some = patterns(dtype, 1 << 11)
    y, x = np.concatenate([some, some]), np.concatenate([some[::-1], np.roll(some, 3)])
    desc = described("ELEMENT_WISE_ATAN_YX")(TensorDesc(dtype, y.shape))
    (actual,) = run(desc, target, y, x)
    assert desc.mismatch((actual,), reference(desc, y, x)) == ""
    _assert_same(actual, run(desc, targets.resolve("cpu"), y, x)[0])


RANGES: dict[str, tuple[float, float]] = {
    "ELEMENT_WISE_TANH": (-1, 1), "ELEMENT_WISE_ERF": (-1, 1), "ACTIVATION_SIGMOID": (0, 1), "ACTIVATION_TANH": (-1, 1),
    "ELEMENT_WISE_SIN": (-1, 1), "ELEMENT_WISE_COS": (-1, 1),
    "ELEMENT_WISE_EXP": (0, INF),
}  # fmt: skip


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", RANGES)
def test_results_stay_in_range(name: str) -> None:
    x = patterns("float32", 1 << 16)
    (actual,) = run(desc_of(name, x), targets.resolve("cpu"), x)
    low, high = RANGES[name]
    assert np.all(np.isnan(actual) | ((actual >= low) & (actual <= high)))


FIXED = {
    "ELEMENT_WISE_EXP": 0, "ELEMENT_WISE_LOG": 1, "ELEMENT_WISE_SINH": 0, "ELEMENT_WISE_TANH": 0, "ELEMENT_WISE_ASINH": 0,
    "ELEMENT_WISE_ATANH": 0, "ELEMENT_WISE_ACOSH": 1, "ELEMENT_WISE_SIN": 0, "ELEMENT_WISE_TAN": 0, "ELEMENT_WISE_ASIN": 1,
    "ELEMENT_WISE_ACOS": 1, "ELEMENT_WISE_ATAN": 0, "ELEMENT_WISE_ERF": 0, "ELEMENT_WISE_COSH": 0, "ELEMENT_WISE_COS": 0,
    "ACTIVATION_SIGMOID": 0,
}  # fmt: skip
"""Where a function has a value that is known exactly."""


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", FIXED)
def test_functions_are_monotone_near_fixed_points(name: str) -> None:
    """Next numbers have next results, or the same ones; around 0 at several sizes."""
    starts = [0, *(int(np.float32(2.0**e).view(np.int32)) for e in range(-120, -4, 6))]
    starts = starts if FIXED[name] == 0 else [int(np.float32(1).view(np.int32)) - 1500]
    runs = np.add.outer(starts, np.arange(3000)).astype(np.int32).view(np.float32)
    (found,) = run(desc_of(name, runs), targets.resolve("cpu"), runs)
    steps = np.diff(found) * (-1 if name.endswith(("_COS", "_ACOS")) else 1)
    assert not (steps < 0).any()


MPMATH: dict[str, str] = {
    "ELEMENT_WISE_EXP": "exp", "ELEMENT_WISE_LOG": "log", "ELEMENT_WISE_ERF": "erf", "ELEMENT_WISE_SINH": "sinh",
    "ELEMENT_WISE_COSH": "cosh", "ELEMENT_WISE_TANH": "tanh", "ELEMENT_WISE_ASINH": "asinh", "ELEMENT_WISE_ACOSH": "acosh",
    "ELEMENT_WISE_ATANH": "atanh", "ELEMENT_WISE_ASIN": "asin", "ELEMENT_WISE_ACOS": "acos", "ELEMENT_WISE_ATAN": "atan",
    "ELEMENT_WISE_SIN": "sin", "ELEMENT_WISE_COS": "cos", "ELEMENT_WISE_TAN": "tan",
}  # fmt: skip


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", MPMATH)
def test_float64_is_mpmaths_within_the_bound(name: str) -> None:
    mpmath = pytest.importorskip("mpmath", reason="mpmath is not installed")
    rng = seeded("mpmath", name)
    x = np.concatenate([rng.standard_normal(300) * scale for scale in (1e-6, 0.1, 1, 10, 300)])
    desc = desc_of(name, x)
    (actual,) = run(desc, targets.resolve("cpu"), x)
    wanted = np.array([_exactly(getattr(mpmath, MPMATH[name]), one) for one in x])
    away = np.abs(_places(actual) - _places(wanted))
    assert np.array_equal(np.isnan(actual), np.isnan(wanted))
    assert away[~np.isnan(wanted)].max() <= FUNCTIONS[name].STEPS


def test_float64_gelu_is_mpmaths_within_the_bound() -> None:
    mpmath = pytest.importorskip("mpmath", reason="mpmath is not installed")
    rng = seeded("mpmath", "gelu")
    x = np.concatenate([rng.standard_normal(300) * scale for scale in (1e-6, 0.1, 1, 4)])
    (actual,) = run(desc_of("ACTIVATION_GELU", x), targets.resolve("cpu"), x)
    with mpmath.workdps(40):
        wanted = np.array([float(mpmath.mpf(one) / 2 * mpmath.erfc(-mpmath.mpf(one) / mpmath.sqrt(2))) for one in x])
    away = np.abs(actual - wanted)
    assert (away <= 4 * np.spacing(np.abs(wanted)) + np.finfo(x.dtype).eps * np.abs(x)).all()


def _places(x: Array) -> Any:
    """The numbers of float64 in order: neighbours differ by 1."""
    bits = x.view(np.int64)
    return np.where(bits < 0, -(bits & (2**63 - 1)), bits)


def _exactly(function: Any, x: float) -> float:
    found = function(x)
    return float(found) if getattr(found, "imag", 0) == 0 else NAN
