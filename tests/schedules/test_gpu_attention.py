"""Attention on tensor cores: every way of moving queries, keys and values, and which numbers a kernel has at launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import Array, seeded

from tvmdml import MultiheadAttention, MultiheadAttention1, Operator, knobs, targets
from tvmdml.enums import MultiheadAttentionMaskType as MaskType
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators._trial import OperatorTrial
from tvmdml.proof.conformance.cases.multihead_attention import attention
from tvmdml.proof.conformance.references import tried
from tvmdml.targets import Target


def half(cls: Any, *arguments: Any, **more: Any) -> Operator:
    """An attention of float16."""
    return attention(cls, "float16", *arguments, scale=more.pop("scale", 0.125), **more)


ONE, GROUPED = MultiheadAttention, MultiheadAttention1
CASES: dict[str, tuple[Operator, str]] = {
    "copied": (half(ONE, (2, 70, 130, 0), (2, 2), (64, 64)), "8, 8, 8, True"),
    "after earlier rows": (half(GROUPED, (1, 40, 90, 70), (4, 2), (36, 64), optional="past positions"), "4, 4, 8, True"),
    "in parts": (half(GROUPED, (2, 3, 3, 300), (6, 2), (80, 128), optional="past present lengths", room=310), "8, 8, 8, True"),
    "with a bias": (half(ONE, (1, 20, 33, 5), (3, 3), (20, 33), optional="bias past", scale=0.0), "1, 1, 1, False"),
    "masked": (
        half(ONE, (2, 33, 66, 0), (2, 2), (160, 192), mask=MaskType.BOOLEAN, repeated=(1,), filtered=-3.4e38),
        "8, 8, 8, True",
    ),
    "stacked": (half(ONE, (2, 17, 17, 0), (2, 2), (16, 16), "all", 5, mask=MaskType.KEY_QUERY_SEQUENCE_LENGTH_START_END), "True"),
}
"""Attentions, and how queries, keys and values are moved: elements at once, and whether meanwhile."""


@pytest.mark.full
@pytest.mark.some(3)
@pytest.mark.parametrize("name", CASES)
def test_every_way_is_as_the_reference_says(cuda: Target, name: str) -> None:
    desc, moved = CASES[name]
    rng, is_special = seeded("attention", name), False

    def values(data_type: Any, sizes: tuple[int, ...]) -> Array:
        if not data_type.is_float:
            return rng.integers(-3, 80, sizes, dtype=data_type.numpy)
        found = rng.standard_normal(sizes)
        if is_special:
            some = rng.integers(0, found.size, found.size // 500 + 1)
            found.reshape(-1)[some] = rng.choice([np.inf, -np.inf, np.nan, -0.0, 6e-8, 65504], some.shape)
        return np.asarray(found, data_type.numpy)

    with knobs.using(attention={"part_keys": 64}):
        kernel = kernel_for(desc, cuda)
        way = str(dict(kernel.parameters)["way"])
        assert "cores" in way, way
        assert moved in way or not cuda.has("async_copies"), way
        assert (kernel.name == "parts") == (desc.sizes().total > 64), kernel.name  # type: ignore[attr-defined]
        for is_special in (False, True):  # noqa: B007 - values looks at it
            assert not tried(desc, cuda, OperatorTrial(desc, (), values))


def test_lengths_are_numbers_of_the_launch() -> None:
    """One kernel serves all prompts, and another one all lengths of the past of a row."""
    (target,) = targets.elsewhere("cuda:sm_80")
    prompts = [half(ONE, (2, rows, rows, 0), (8, 8), (64, 64)) for rows in (64, 100, 512, 1000)]
    rows = [half(GROUPED, (1, 1, 1, past), (8, 2), (64, 64), optional="past present") for past in (600, 601, 4096)]
    for some in (prompts, rows):
        assert len({kernel_for(one.canonical(), target).identity for one in some}) == 1
