"""Inputs with bounds, such as indices: what they hold where kernels are tried."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import specimens

import tvmdml
from tvmdml import TensorDesc
from tvmdml.operators._trial import OperatorTrial, mostly_within
from tvmdml.proof.conformance.fills import FILLS

LENGTH = 20


def pick(dtype: str, count: int = 4000) -> specimens.Pick:
    x, indices = TensorDesc("float32", (LENGTH,)), TensorDesc(dtype, (count,))  # type: ignore[arg-type]
    return specimens.Pick(input_tensor=x, indices_tensor=indices, output_tensor=TensorDesc("float32", (count,)))


def tried(dtype: str, fill: str, **more: Any) -> tuple[specimens.Pick, OperatorTrial]:
    desc = pick(dtype)
    return desc, OperatorTrial(desc, (), functools.partial(FILLS[fill], np.random.default_rng(3)), **more)


@pytest.mark.parametrize("fill", ["mixed", "zeros"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_indices_are_mostly_in_range_and_some_are_past_it(dtype: str, fill: str) -> None:
    _, trial = tried(dtype, fill)
    indices = trial.places()["indices_tensor"].array
    least = 0 if dtype.startswith("u") else -LENGTH
    inside = (indices >= least) & (indices < LENGTH)
    assert 0.85 < inside.mean() < 0.999
    assert {least, LENGTH - 1, LENGTH} <= set(indices.tolist())
    assert set(range(least, LENGTH)) <= set(indices.tolist())
    assert np.iinfo(dtype).max in indices


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64"])
def test_a_kernel_with_an_index_input_agrees(dtype: str) -> None:
    desc, trial = tried(dtype, "mixed")
    places = trial.places()
    tvmdml.compile(desc)(*trial.arguments(places))
    assert trial.problem(places) == ""


def test_the_other_inputs_have_the_fill_alone() -> None:
    _, trial = tried("int32", "all NaN")
    assert np.isnan(trial.places()["input_tensor"].array).all()


def test_inputs_that_come_with_expected_outputs_are_not_changed() -> None:
    _, trial = tried("int32", "all NaN", expected=(np.zeros(4000, np.float32),))
    assert (trial.places()["indices_tensor"].array == np.iinfo(np.int32).max).all()


def test_the_values_are_the_seed() -> None:
    one, other = np.arange(100, dtype=np.int16), np.arange(1, 101, dtype=np.int16)
    assert np.array_equal(mostly_within(one, -3, 3), mostly_within(one.copy(), -3, 3))
    assert not np.array_equal(mostly_within(one, -3, 3), mostly_within(other, -3, 3))


def test_bounds_beyond_the_type_are_cut_off() -> None:
    found = mostly_within(np.zeros(1000, np.uint8), -1000, 1000)
    assert (found.min(), found.max()) == (0, 255)
    assert mostly_within(np.zeros(0, np.float32), 0, 3).dtype == np.float32
