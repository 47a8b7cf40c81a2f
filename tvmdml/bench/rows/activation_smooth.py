"""Activations that are made of exp, tanh and erf."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvmdml.bench.cases import Case, Group, K, M
from tvmdml.bench.work import Operand, Work

SINGLE = Group("smooth activations f32", 1.5)
NAMES = ("sigmoid", "elu", "gelu", "softplus", "swish")


def _cases() -> Iterator[Case]:
    for name in NAMES:
        given: dict[str, Any] = _ATTRIBUTES.get(name, {})
        for point, size in (("4K", 4 * K), ("64K", 64 * K), ("1M", M), ("16M", 16 * M)):
            work = Work.on(f"ACTIVATION_{name.upper()}", Operand((size,), "float32", "usual"), **given)
            yield Case(f"{name} f32", point, work, quick=size == 64 * K, group=SINGLE)


_ATTRIBUTES: dict[str, dict[str, Any]] = {
    "elu": {"alpha": 1.0}, "softplus": {"steepness": 1.0}, "swish": {"sigmoid_input_scale": 1.0},
}  # fmt: skip
CASES = tuple(_cases())
