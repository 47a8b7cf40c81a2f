"""Kernels for as many elements as a tensor may have, with sizes as constants: only written, and translated for a device."""

from __future__ import annotations

import pytest

import tvmdml
from tvmdml import Operator, TensorDesc, targets
from tvmdml.library.scheduling import kernel_for
from tvmdml.schedules import gpu

SIZES = ((65535, 65537), (2, 2**31 - 1), (2**31 - 1, 2), (3, 5, 17 * 257, 65537))
"""2^32 - 1 elements, and two fewer."""


def _described(dtype: str, sizes: tuple[int, ...]) -> list[Operator]:
    x = TensorDesc(dtype, sizes)
    apart = TensorDesc(dtype, sizes, [2 * step for step in x.layout])
    turned = TensorDesc(dtype, sizes, [*x.layout[:-2], 1, sizes[-2]])
    band = {"value": 1, "diagonal_fill_begin": 0, "diagonal_fill_end": 3}
    return [
        *(tvmdml.DiagonalMatrix1.of(one, **band, output_tensor=x) for one in (x, apart, turned)),
        *(tvmdml.ElementWiseIdentity.of(one, output_tensor=x) for one in (x, apart, turned)),
        *(tvmdml.FillValueSequence.of(value_start=0, value_delta=1, output_tensor=one) for one in (x, apart)),
    ]


@pytest.mark.full(first=1)
@pytest.mark.parametrize(("name", "kind"), [("cuda:sm_90", "cuda"), ("vulkan:desktop", "spirv")])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_kernels_are_translated(name: str, kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_PUSH_BYTES", 0)
    (target,) = targets.elsewhere(name)
    for sizes in SIZES:
        for desc in _described(dtype, sizes):
            assert target.source(kernel_for(desc, target).build(), kind)
