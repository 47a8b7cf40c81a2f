"""The operators of ``operators/activation_softmax.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tvmdml.operators import Operator
from tvmdml.operators.activation_softmax import (
    ActivationHardmax,
    ActivationHardmax1,
    ActivationLogSoftmax,
    ActivationLogSoftmax1,
    ActivationSoftmax,
    ActivationSoftmax1,
)
from tvmdml.proof.conformance.cases._common import FLOATING, Broken, Case, change, tensor
from tvmdml.proof.conformance.cases._reduction import axes_rules, cases, output_rules
from tvmdml.tensors import TensorDesc as T

_OLDER: tuple[Any, ...] = (ActivationSoftmax, ActivationLogSoftmax, ActivationHardmax)
_NEWER: tuple[Any, ...] = (ActivationSoftmax1, ActivationLogSoftmax1, ActivationHardmax1)


def along(cls: Any, x: T, axes: tuple[int, ...] = (0,), way: int = 0, layout: str = "packed") -> Operator:
    """Along axes, or the last dimension."""
    own = {"axes": axes} if cls in _NEWER else {}
    return cls(input_tensor=x, output_tensor=tensor(x.data_type, x.sizes, layout), **own)


DESCRIBED: dict[type[Operator], Callable[[T], Operator]] = {
    **{cls: lambda x, cls=cls: along(cls, T(x.data_type, (1,) * (x.rank - 2) + x.sizes[-2:])) for cls in _OLDER},  # type: ignore[misc]
    **{cls: partial(along, cls) for cls in _NEWER},
}

X = T("float32", (2, 3, 4, 5))
BROKEN: dict[str, Broken] = {}
for _cls in _NEWER:
    _good = along(_cls, X)
    BROKEN |= axes_rules(_cls.NAME, _good) | output_rules(_cls.NAME, _good)
for _cls in _OLDER:
    _good = along(_cls, T("float32", (1, 1, 4, 5)))
    BROKEN |= output_rules(_cls.NAME, _good, (1, 1, 4, 5))
    BROKEN[f"{_cls.NAME} of four dimensions"] = Broken(
        change(_good, input_tensor=X, output_tensor=X),
        *(f"{_cls.NAME} input_tensor.sizes", "(2, 3, 4, 5)", "sizes of 1 before the last two dimensions"),
        advice=f"Use {_cls.NAME}1, which has axes.",
    )


def _flat(cls: Any, x: T, axes: tuple[int, ...], way: int, layout: str) -> Operator:
    flat = len(x.sizes) > 2
    return along(cls, T(x.data_type, (1,) * (x.rank - 2) + x.sizes[-2:]) if flat else x, axes, way, layout)


def reference(cls: type[Operator]) -> Iterator[Case]:
    """All axes, or the last one."""
    fills = ("normal", "mixed", "special", "zeros", "constant")
    if cls in _NEWER:
        yield from cases(partial(along, cls), FLOATING, fills)
    else:
        yield from cases(partial(_flat, cls), FLOATING, fills, lambda rank: (rank - 1,))
