"""Activations that are made of exp, tanh and erf."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvmdml.proof.bench.cases import Case, Group, K, M
from tvmdml.proof.bench.work import Operand, Work

SINGLE = Group("smooth activations f32", 1.5)
NARROW = Group("smooth activations f16", 1.5)
FUSED = Group("gelu, softplus, swish f32", 2.0)
"""What peers compute in several passes, or by a slow function."""
FUSED_NARROW = Group("gelu, softplus, swish f16", 2.0)
SIZES = (("4K", 4 * K), ("64K", 64 * K), ("1M", M), ("16M", 16 * M))
NAMES: dict[str, dict[str, Any]] = {
    "sigmoid": {}, "elu": {"alpha": 1.0}, "gelu": {}, "softplus": {"steepness": 1.0}, "swish": {"sigmoid_input_scale": 1.0},
}  # fmt: skip


def _cases() -> Iterator[Case]:
    for name, given in NAMES.items():
        single, narrow = (FUSED, FUSED_NARROW) if name in ("gelu", "softplus", "swish") else (SINGLE, NARROW)
        for short, dtype, group in (("f32", "float32", single), ("f16", "float16", narrow)):
            for point, size in SIZES:
                work = Work.on(f"ACTIVATION_{name.upper()}", Operand((size,), dtype, "usual"), **given)
                yield Case(f"{name} {short}", point, work, quick=(point, short) == ("64K", "f32"), group=group)


CASES = tuple(_cases())
