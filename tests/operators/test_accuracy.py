"""The single function that compares with a reference: exact bits, a number of ULPs, or a fraction of the sum of magnitudes."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from support import seeded

from tvmdml.operators._accuracy import Near, as_array, difference, within_steps, within_sum

Array = np.ndarray[Any, np.dtype[Any]]
FLOATS = ("float16", "float32", "float64")
floats = pytest.mark.parametrize("dtype", FLOATS)
MAX = {dtype: float(np.finfo(dtype).max) for dtype in FLOATS}


def moved(x: Array, steps: int) -> Array:
    """Numbers so many representable ones further from zero."""
    return (x.view(f"i{x.itemsize}") + steps).view(x.dtype)


@floats
def test_bits_are_compared_where_an_array_is_expected(dtype: str) -> None:
    x = np.array([0.0, 1.0, np.nan, np.inf], dtype)
    assert difference(x, x.copy()) == ""
    assert difference(moved(x, 1)[1:2], x[1:2]).startswith("1 of 1 elements differ, first at (0,): 1.0")
    assert "-0.0 (0x8" in difference(np.array([-0.0], dtype), x[:1])
    assert difference(moved(x, 1)[2:3], x[2:3]) != ""
    assert difference(moved(x, 1)[2:3], x[2:3], any_nan=True) == ""


@floats
@pytest.mark.parametrize("steps", [1, 4])
def test_results_may_be_so_many_representable_numbers_away_and_no_further(dtype: str, steps: int) -> None:
    x = np.array([1.0, 1.999, -3.0, 2.0**-12, 60000.0], dtype)
    near = within_steps(x.astype(np.longdouble), dtype, steps)
    for by in range(-steps, steps + 1):
        assert difference(moved(x, by), near) == ""
    for by in (-steps - 1, steps + 1):
        assert f"5 of 5 elements differ, first at (0,): {moved(x, by)[0]}" in difference(moved(x, by), near)
        assert f"allowed: {steps} representable numbers" in difference(moved(x, by), near)


@floats
def test_infinity_is_the_neighbour_of_the_largest_number(dtype: str) -> None:
    largest, inf = np.array([MAX[dtype]], dtype), np.array([np.inf], dtype)
    near = within_steps(largest.astype(np.longdouble), dtype, 1)
    assert difference(largest, near) == difference(inf, near) == ""
    assert difference(-inf, near) != ""
    assert difference(moved(largest, -2), near) != ""
    exactly_infinite = within_steps(np.array([np.inf]), dtype, 1)
    assert difference(inf, exactly_infinite) == ""
    assert difference(-inf, exactly_infinite) != ""
    assert difference(moved(largest, -1), exactly_infinite) != ""


@floats
def test_nan_must_be_nan_with_any_payload_and_zeros_are_equal(dtype: str) -> None:
    near = within_steps(np.array([np.nan, 0.0, -0.0]), dtype, 2)
    nan = moved(np.array([np.nan], dtype), 1)[0]
    assert difference(np.array([nan, -0.0, 0.0], dtype), near) == ""
    assert difference(np.array([1.0, 0.0, 0.0], dtype), near) != ""
    assert difference(np.array([np.nan, np.nan, 0.0], dtype), near) != ""
    assert difference(np.array([np.nan, 1.0, 0.0], dtype), near) != ""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_below_the_smallest_normal_number_may_be_flushed_to_zero(dtype: str) -> None:
    tiny = float(np.finfo(dtype).tiny)
    near = within_steps(np.array([tiny / 2, -tiny / 2, tiny]), dtype, 1)
    assert difference(np.array([0.0, -0.0, tiny], dtype), near) == ""
    assert difference(np.array([0.0, -0.0, 3 * tiny], dtype), near) != ""


def test_an_absolute_term_counts_beside_the_steps() -> None:
    near = within_steps(np.array([1e-3]), "float32", 1, absolute=1e-6)
    assert difference(np.array([1e-3 + 9e-7], np.float32), near) == ""
    assert difference(np.array([1e-3 + 2e-6], np.float32), near) != ""
    assert "1 representable numbers or an error of 1e-06" in difference(np.array([1e-3 + 2e-6], np.float32), near)


# -- Sums --------------------------------------------------------------------------------------------------------------


def factor(n: int) -> float:
    """What adding n terms in a tree may cost, in rounding errors of the sum of magnitudes."""
    return min(n / 2, 32 + 4 * np.ceil(np.log2(max(n, 2))))


def data(kind: str, n: int) -> Array:
    x = seeded(kind, n).standard_normal(n)
    return {"0.1": np.full(n, 0.1), "normal": x, "100": 100 + x, "alternating": (10000 + x) * (-1.0) ** np.arange(n)}[kind]


def summed(x: Array, accumulator: str, output: str, width: int) -> Array:
    """Sums in ``width`` chains of the accumulator's type, which are added in a tree."""
    padded = np.zeros(-(-x.size // width) * width, accumulator)
    padded[: x.size] = x
    chains = np.cumsum(padded.reshape(-1, width), axis=0, dtype=accumulator)[-1]  # one after the other
    while chains.size > 1:
        chains = (chains[::2] + chains[1::2]).astype(accumulator)
    return chains.astype(output)


@pytest.mark.parametrize("n", [1, 2, 3, 17, 64, 1000, 4096, 65537])
@pytest.mark.parametrize("kind", ["0.1", "normal", "100", "alternating"])
@pytest.mark.parametrize("output", ["float16", "float32"])
def test_sums_in_chains_and_a_tree_are_near(kind: str, n: int, output: str) -> None:
    x = data(kind, n).astype(output)
    wide = x.astype(np.float64)
    near = within_sum(wide.sum(keepdims=True), output, factor(n), np.abs(wide).sum(keepdims=True))
    width = 1 << max(0, int(np.ceil(np.log2(n / 32))))
    with np.errstate(over="ignore"):
        found = summed(x, "float32", output, width)
    assert difference(found, near) == ""


@pytest.mark.parametrize(
    ("accumulator", "output", "n"), [("float16", "float16", 64), ("float16", "float16", 4096), ("float32", "float32", 65536)]
)
def test_sloppy_sums_are_not(accumulator: str, output: str, n: int) -> None:
    x = data("0.1", n).astype(output)
    wide = x.astype(np.float64)
    near = within_sum(wide.sum(keepdims=True), output, factor(n), np.abs(wide).sum(keepdims=True))
    assert "1 of 1 elements differ" in difference(summed(x, accumulator, output, 1), near)


def test_a_float16_sum_may_be_infinite_only_where_its_error_reaches_past_the_largest() -> None:
    inf = np.array([np.inf], np.float16)
    assert difference(inf, within_sum(np.array([65510.0]), "float16", 1e4, np.array([65510.0]))) == ""
    assert difference(inf, within_sum(np.array([60000.0]), "float16", 1, np.array([60000.0]))) != ""
    assert difference(np.array([65504], np.float16), within_sum(np.array([70000.0]), "float16", 1, np.array([70000.0]))) != ""


def test_an_array_is_itself_and_a_near_value_is_rounded_once() -> None:
    x = np.array([1.0, 2.0])
    assert as_array(x) is x
    near = within_steps(np.array([1 + 2.0**-24 + 2.0**-40, 1e300]), "float32", 1)
    assert as_array(near).tolist() == [1 + 2.0**-23, np.inf]
    assert near.shape == (2,)


@hypothesis.given(st.floats(width=32), st.floats(width=32), st.integers(0, 10))
def test_a_bound_of_steps_is_symmetric_and_grows(a: float, b: float, steps: int) -> None:
    one, other = np.array([a], np.float32), np.array([b], np.float32)

    def near(x: Array, n: int) -> Near:
        return within_steps(x.astype(np.float64), "float32", n)

    forth, back = (difference(one, near(other, steps)) == ""), (difference(other, near(one, steps)) == "")
    assert forth == back
    assert not forth or difference(one, near(other, steps + 1)) == ""
