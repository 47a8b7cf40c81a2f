"""Devices that take subnormals for 0: how a device is asked, and which results are right then."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import tvmdml
from tvmdml import TensorDesc, operators, targets
from tvmdml.operators import Operator, _accuracy
from tvmdml.operators._trial import OperatorTrial, flushing
from tvmdml.targets.vulkan import subnormals
from tvmdml.targets.vulkan.capabilities import PROFILES, Capabilities

FLAT = frozenset({"float32"})
X = TensorDesc("float32", (6,))
ZERO, LEAST, NORMAL, ONE, NAN = 0.0, 2.0**-149, 2.0**-126, 1.0, float("nan")


def test_a_device_answers_as_it_adds(vulkan: targets.Target) -> None:
    for dtype in ("float32", "float64"):
        x = np.full(4, np.finfo(dtype).smallest_subnormal)
        try:
            is_zero = (np.asarray(tvmdml.add(x, x, device=vulkan)) == 0).all()
        except tvmdml.errors.Unsupported:
            continue
        assert is_zero == (dtype in vulkan.flushed())


def test_a_device_that_must_keep_them_does(vulkan: Any) -> None:
    kept = {f"float{bits}" for bits in vulkan.capabilities.keep_denormals}
    assert not kept & vulkan.flushed()
    assert targets.target_class("vulkan").elsewhere("desktop")[0].flushed() == frozenset()


def test_one_wrong_answer_is_enough(vulkan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = subnormals.questions(vulkan.capabilities)
    for place, one in enumerate(asked):

        def answered(device: Any, code: bytes, words: Any, wrong: int = place) -> Any:
            rows = [subnormals._words(q.dtype, 0.0 if n == wrong else q.right) for n, q in enumerate(asked)]
            return np.concatenate([np.append(row, row) for row in rows])

        monkeypatch.setattr(subnormals, "_answers", answered)
        assert subnormals.flushed.__wrapped__(vulkan.info) == {one.dtype}


@pytest.mark.parametrize(
    "capabilities",
    [*PROFILES.values(), Capabilities(storage16=True), Capabilities(float16=True, float64=True, keep_denormals=(16, 32, 64))],
)
def test_its_shader_is_valid(capabilities: Capabilities) -> None:
    asked = subnormals.questions(capabilities)
    code = subnormals.shader(asked, capabilities)
    assert {one.dtype for one in asked} >= {"float32"}
    if (tool := shutil.which("spirv-val")) is None:
        pytest.skip("spirv-val is not here")
    done = subprocess.run([tool, "--target-env", "vulkan1.2", "-"], input=code, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def judged(desc: Operator, inputs: list[list[float]], found: Any, flushed: frozenset[str] = FLAT) -> str:
    """What is wrong with an output."""
    given = iter(inputs)
    trial = OperatorTrial(desc, (), lambda kind, sizes: np.array(next(given), kind.numpy), flushed=flushed)
    places = trial.places()
    places["output_tensor"].array[:] = found
    return trial.problem(places)


ADD = operators.by_name("ELEMENT_WISE_ADD")(a_tensor=X, b_tensor=X, output_tensor=X)
SIGN, LOG = (operators.by_name(f"ELEMENT_WISE_{name}")(input_tensor=X, output_tensor=X) for name in ("SIGN", "LOG"))


@pytest.mark.parametrize("sign", [1, -1])
def test_results_may_be_those_of_zeros(sign: int) -> None:
    a, b = [sign * LEAST, NORMAL, ONE, -NORMAL, ZERO, NAN], [sign * LEAST, -NORMAL * 1.5, LEAST, LEAST, ZERO, LEAST]
    exact = (np.array(a, "f4") + np.array(b, "f4")).tolist()
    assert not judged(ADD, [a, b], exact, frozenset())
    assert not judged(ADD, [a, b], exact)
    flat = [sign * ZERO, -ZERO, ONE, -NORMAL, ZERO, NAN]
    assert judged(ADD, [a, b], flat, frozenset())
    assert judged(ADD, [a, b], flat, frozenset({"float64"}))
    assert not judged(ADD, [a, b], flat)
    for place, wrong in ((0, -sign * ZERO), (1, ZERO), (2, ONE + 2**-23), (3, -2 * NORMAL), (4, ONE), (5, ZERO)):
        assert f"({place},)" in judged(ADD, [a, b], [wrong if n == place else one for n, one in enumerate(flat)]), place


def test_of_inputs_that_are_zeros_integers_are_right_and_nothing_else() -> None:
    x = [LEAST, -LEAST, ONE, -NORMAL, ZERO, -2.0]
    for found in ([1, -1, 1, -1, 0, -1], [0, 0, 1, -1, 0, -1], [1, 0, 1, -1, 0, -1]):
        assert not judged(SIGN, [x], found)
    for found in ([-1, -1, 1, -1, 0, -1], [0, 0, 0, -1, 0, -1], [0, 0, 1, 0, 0, -1], [0, -0.0, 1, -1, 0, -1]):
        assert judged(SIGN, [x], found)


def test_of_a_logarithm_both_are_right_and_nothing_between(vulkan: targets.Target) -> None:
    x = [LEAST, 2.0**-130, NORMAL, ONE, ZERO, 2.0]
    exact, flat = ([*first, -87.33654475, 0.0, -np.inf, 0.6931472] for first in ((-103.278929, -90.10913), (-np.inf, -np.inf)))
    assert not judged(LOG, [x], exact, frozenset())
    assert judged(LOG, [x], flat, frozenset())
    assert not judged(LOG, [x], flat)
    assert judged(LOG, [x], [-104.665, *flat[1:]])
    assert not judged(LOG, [x], np.asarray(tvmdml.log(np.array(x, "f4"), device=vulkan)), vulkan.flushed())


def test_sums_of_products_may_lose_some_near_zero() -> None:
    values, none = np.array([1.5 * NORMAL, 1.5]), np.zeros(2)
    near = _accuracy.within_steps(values, "float32", 1)
    for found, is_good in ((none, [True, False]), (values + 15 * NORMAL, [True, True]), (values - 20 * NORMAL, [False, True])):
        settled = _accuracy.settled(found.astype("f4"), near, near, flushes=True)
        assert (settled == values.astype("f4")).tolist() == is_good, found


def test_numpy_can_compute_as_such_a_device() -> None:
    least, normal = (np.full(9, number, "f4") for number in (LEAST, NORMAL))
    with flushing():
        flat = [(least + least)[8], (normal * np.float32(0.5))[8], (-least * np.float32(1))[8]]
    assert np.copysign(1, flat).tolist() == [1, 1, -1]
    if platform.machine() in ("x86_64", "aarch64") and sys.platform == "linux":
        assert flat == [0, 0, 0]
    assert (least + least)[8] == 2 * LEAST, "it stays so"
    with pytest.raises(ZeroDivisionError), flushing():
        raise ZeroDivisionError
    assert (normal * np.float32(0.5))[8] == NORMAL / 2
