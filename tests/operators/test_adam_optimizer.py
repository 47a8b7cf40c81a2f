"""ADAM_OPTIMIZER: its formula in higher precision, the bias correction in particular; in place."""

from __future__ import annotations

import numpy as np
import pytest
from support import Array, reference, run, seeded

import tvmdml
from tvmdml import InvalidArgument, TensorDesc
from tvmdml.targets import Target


def alpha(beta1: float, beta2: float, step: int) -> float:
    less = [float(-np.expm1(step * np.log(np.longdouble(np.float32(beta))))) for beta in (beta1, beta2)]
    return np.sqrt(less[1]) / less[0] if step else 1.0


def given(dtype: str = "float32") -> list[Array]:
    rng = seeded("adam", dtype)
    x, m, gradient = rng.standard_normal((3, 2, 50)).astype(dtype)
    return [x, m, np.abs(rng.standard_normal((2, 50))).astype(dtype), gradient]


@pytest.mark.full(first=1)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_a_step(dtype: str, target: Target) -> None:
    if dtype == "float64" and target.kind != "cpu":
        return
    x, m, v, gradient = given(dtype)
    new = tvmdml.adam_optimizer(x, m, v, gradient, np.uint32([3]), learning_rate=0.125, device=target.name)
    rate = 0.125 * alpha(0.9, 0.999, 3)
    b1, b2 = np.float32([0.9, 0.999]).astype(np.float64)
    first = b1 * m.astype(float) + (1 - b1) * gradient.astype(float)
    second = b2 * v.astype(float) + (1 - b2) * gradient.astype(float) ** 2
    tolerance = {"float32": 1e-6, "float16": 2e-3, "float64": 1e-7}[dtype]
    np.testing.assert_allclose(new.first_moment, first, tolerance, tolerance)
    np.testing.assert_allclose(new.second_moment, second, tolerance, tolerance)
    np.testing.assert_allclose(new.parameters, x - rate * first / (np.sqrt(second) + 1e-8), tolerance, tolerance)


@pytest.mark.full
def test_the_bias_correction_is_within_its_bound(target: Target) -> None:
    rng, one = seeded("alpha"), np.ones(1, np.float32)
    for _ in range(40 if target.kind == "cpu" else 6):
        beta1, beta2 = (float(np.float32(1 - 10 ** rng.uniform(-7, -0.02))) for _ in range(2))
        step = int(10 ** rng.uniform(0, 7))
        x, m, v = tvmdml.adam_optimizer(
            one * 0, one, one, one, np.uint32([step]), learning_rate=1.0, beta1=beta1, beta2=beta2, epsilon=0.0, device=target.name
        )
        wanted = alpha(beta1, beta2, step)
        assert abs(float(-x[0] * np.sqrt(v[0]) / m[0]) - wanted) <= 8 * np.spacing(np.float32(wanted))


def test_step_0_is_not_corrected(target: Target) -> None:
    one = np.ones(3, np.float32)
    x, _, _ = tvmdml.adam_optimizer(one, one, one, one, np.uint32([0]), learning_rate=0.5, epsilon=0.0, device=target.name)
    np.testing.assert_allclose(x, [0.5] * 3, 1e-6)


def test_a_denormal_product_that_is_divided_has_few_digits(target: Target) -> None:
    small = np.float32(np.linspace(0.5, 2, 64) * 1e-38)
    arrays = small * 0, small, small * 0, -small, np.uint32([7])
    tensors = [TensorDesc(one.dtype, one.shape) for one in arrays]
    desc = tvmdml.AdamOptimizer.of(*tensors, learning_rate=0.01, beta1=0.9, beta2=0.999, epsilon=1e-8)
    assert desc.mismatch(run(desc, target, *arrays), reference(desc, *arrays)) == ""


@pytest.mark.full
def test_each_output_may_take_the_place_of_any_input(target: Target) -> None:
    step = np.uint32([2])
    expected = tvmdml.adam_optimizer(*given(), step, learning_rate=0.1, device=target.name)
    for order in ((0, 1, 2), (1, 2, 0), (3, 0, 1), (2, 3, 1)):
        arrays = given()
        tvmdml.adam_optimizer(*arrays, step, learning_rate=0.1, out=tuple(arrays[i] for i in order), device=target.name)
        for i, wanted in zip(order, expected, strict=True):
            assert np.array_equal(arrays[i], wanted)


def test_the_step_is_one_number() -> None:
    with pytest.raises(InvalidArgument, match="training_step"):
        tvmdml.adam_optimizer(*given(), np.uint32([1, 2]), learning_rate=0.1)
