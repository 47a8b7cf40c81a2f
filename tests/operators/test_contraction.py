"""No product and sum are contracted to a fused multiply-add, whatever the processor has: results are the same bits everywhere."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from support import assert_same_bits, seeded

import tvmdml
from tvmdml import targets
from tvmdml import tensorir as T
from tvmdml.library.scheduling import kernel_for
from tvmdml.targets import Target

LEVELS = ("cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4", "cpu:aarch64")
FUSED = re.compile(r"^\s*(v?fn?m(?:add|sub|la|ls)[\w.]*)", re.MULTILINE)
"""Every fused multiply-add of x86-64 (vfmadd213ps, vfnmsub…) and of 64-bit Arm (fmla, fmadd, fnmsub…) in assembly."""


def scaled(dtype: str, lanes: int, rounded: bool) -> Any:
    """``o = a * 0.1 + b``, and ``a / b - a * b`` after it, for 1024 elements."""
    with T.function() as f:
        a, b, o = (f.buffer(name, dtype) for name in "abo")

        def splat(value: float) -> Any:
            found = T.const(value, dtype)
            return found if lanes == 1 else T.splat(found, lanes)

        hold = T.rounded if rounded else lambda product: product
        with T.loop(T.i64(1024 // lanes)) as i:
            at = i if lanes == 1 else T.run(i * lanes, lanes)
            first = hold(a[at] * splat(0.1)) + b[at]
            T.store(o, at, hold(first * first) - hold(a[at] * b[at]))
    return f.result()


@pytest.mark.full(first=1)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_rounded_product_is_not_contracted_at_any_level(dtype: str, lanes: int, level: str) -> None:
    (target,) = targets.elsewhere(level)
    assert not FUSED.findall(target.source(scaled(dtype, lanes, rounded=True), "asm"))
    contracted = FUSED.findall(target.source(scaled(dtype, lanes, rounded=False), "asm"))
    assert bool(contracted) == (level != "cpu:x86-64-v2"), "this test can see a contraction where there is one"


def test_vectors_keep_the_width_of_the_processors_registers() -> None:
    (target,) = targets.elsewhere("cpu:x86-64-v4")
    text = target.source(scaled("float32", 16, rounded=True), "asm")
    assert re.search(r"vmulps\s.*zmm", text)
    assert re.search(r"vaddps\s.*zmm", text)


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_results_are_those_of_separate_steps(dtype: str, lanes: int) -> None:
    target = targets.resolve("cpu")
    a, b = seeded(dtype).standard_normal((2, 1024)).astype(dtype)
    found = np.empty_like(a)
    launch = target.launch(target.build(scaled(dtype, lanes, rounded=True)).launcher(), (), ())
    launch(a, b, found)
    first = a * a.dtype.type(0.1) + b
    assert_same_bits(found, first * first - a * b)


@pytest.fixture(scope="module", params=["cpu:x86-64-v3", "cpu:x86-64-v4", "cpu:aarch64"])
def level(request: pytest.FixtureRequest) -> Target:
    (target,) = targets.elsewhere(request.param)
    found: Target = target
    return found


@pytest.mark.full
def test_no_kernel_of_the_package_has_a_fused_multiply_add(level: Target) -> None:
    x = tvmdml.TensorDesc("float32", (64, 1000))
    descs: list[tvmdml.Operator] = [
        tvmdml.ElementWiseRound(input_tensor=x, output_tensor=x, rounding_mode=mode) for mode in tvmdml.RoundingMode
    ]
    best, places = tvmdml.TensorDesc("float32", (64, 8)), tvmdml.TensorDesc("uint32", (64, 8))
    descs.append(tvmdml.TopK(input_tensor=x, output_value_tensor=best, output_index_tensor=places, axis=1, k=8))
    pair = tvmdml.ActivationLinear.of(x, alpha=0.3, beta=-1.7), tvmdml.ActivationHardSwish.of(x)
    descs += [*pair, tvmdml.ElementWiseAdd1.of(x, x, fused_activation=tvmdml.ActivationLinear.fused(alpha=0.3, beta=-1.7))]
    descs += [tvmdml.ElementWiseIdentity.of(x, scale_bias=(0.3, -1.7)), tvmdml.ElementWiseDifferenceSquare.of(x, x)]
    for desc in descs:
        wanted = desc.canonical()
        assert not FUSED.findall(level.source(kernel_for(wanted, level).build(), "asm")), desc


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("images", [1, 3])
def test_without_a_batch_there_is_nothing_to_exchange(groups: int, images: int) -> None:
    """Two exchanges are none, so that what has no batch is left as it is."""
    given = {"strides": [1, 1], "dilations": [1, 1], "start_padding": [1, 0], "end_padding": [1, 0], "output_padding": [0, 0]}
    x, w = tvmdml.TensorDesc("float32", (images, 4, 6, 5)), tvmdml.TensorDesc("float32", (8, 4 // groups, 3, 1))
    desc: Any = tvmdml.Convolution.of(x, w, mode="cross_correlation", direction="forward", group_count=groups, **given)
    found = desc.contraction().simplified()
    assert found.exchanged().exchanged() == found
    assert found._with_batch_in_rows().exchanged()._with_batch_in_rows().exchanged() == found
