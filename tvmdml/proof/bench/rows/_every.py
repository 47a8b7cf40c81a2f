"""Two rows for every operator that has none: 64K and 16M elements of the first type of its support table.

The descriptors are those of the conformance cases, which have correct attributes. They have no goal, and are not in the quick set.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from tvmdml import operators
from tvmdml.operators import Operator
from tvmdml.operators._contract import Role
from tvmdml.operators._support import CODES, Allows
from tvmdml.proof.bench import rows, work
from tvmdml.proof.bench.cases import Case, Group, K, M
from tvmdml.proof.bench.work import Work
from tvmdml.proof.conformance import cases
from tvmdml.tensors import TensorDataType, TensorDesc

GROUP = Group("all operators")
SIZES = (("64K", 64 * K), ("16M", 16 * M))
MOST = 8
"""A tensor with more elements than this many times the first one's needs rows that say why."""


def _named() -> set[str]:
    """The operators that have rows."""
    found = (case for name in rows.modules() if not name.startswith("_") for case in rows.load(name).CASES)
    return {case.work.operator for case in found}


def _work(cls: type[Operator], size: int) -> Work | None:
    """The work of an operator on this many elements; ``None`` if it needs rows of its own."""
    allows = next(iter(cls.SUPPORT[0].tensors.values()))
    first = TensorDataType.UINT8 if _is_truth(next(iter(cls.SUPPORT[-1].tensors.values()))) else allows.types[0]
    side = 1 << (size.bit_length() - 1) // 2
    sizes = (size,) if allows.min_rank == 1 else (*[1] * (allows.min_rank - 2), size // side, side)
    assert math.prod(sizes) == size
    try:
        desc = cases.described(cls.NAME)(TensorDesc(first, sizes))
        found = work.of(desc, newest=False)
    except Exception:  # whatever is wrong with one operator, the others are measured; a test asks for its rows
        return None
    if found is None:
        return None
    most = max(math.prod(tensor.sizes) for _, tensor in desc.tensors() if tensor is not None)
    return _with_truths(found, cls) if most <= MOST * size else None


def _is_truth(allows: Allows) -> bool:
    """Whether a tensor has truth values only, by its types."""
    return set(allows.types) <= set(CODES["B"])


def _with_truths(found: Work, cls: type[Operator]) -> Work:
    """Truth values are bytes: 0 and 1 in inputs, and the usual type in outputs."""
    truths = {name for name, allows in cls.SUPPORT[-1].tensors.items() if _is_truth(allows)}
    names = [field.name for field in cls.fields() if field.role is Role.INPUT]
    given: list[Any] = [
        dataclasses.replace(one, data="50 %") if name in truths and isinstance(one, work.Operand) else one
        for name, one in zip(names, found.inputs, strict=False)
    ]
    return Work.on(cls.NAME, *given, **{name: value for name, value in found.attributes if name not in truths})  # type: ignore[arg-type]


def _cases() -> Iterator[Case]:
    named = _named()
    for name, cls in operators.all_operators().items():
        for point, size in SIZES:
            if name not in named and (found := _work(cls, size)) is not None:
                yield Case("all operators", f"{name.lower().replace('_', ' ')} {found.dtype}: {point}", found, group=GROUP)


CASES = tuple(_cases())
