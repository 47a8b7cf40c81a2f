"""The schedule of an operator that has none of its own: its computation, with independent items run in parallel."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tvmdml import operators
from tvmdml import tensorir as T
from tvmdml.kernel import Kernel
from tvmdml.operators import Operator
from tvmdml.targets import Target

LEAST_PARALLEL_ITEMS = 1 << 16
"""With fewer items than this, starting threads costs more than it saves."""


def kernel(desc: Operator, target: Target, in_place: bool) -> Kernel:
    """A kernel for exactly these sizes, strides and attributes."""
    parallel = target.tasks() > 1

    def each(items: int) -> AbstractContextManager[Any]:
        frame: AbstractContextManager[Any] = T.loop(T.i64(items), parallel=parallel and items >= LEAST_PARALLEL_ITEMS)
        return frame

    # The text contains every size, stride and attribute, and so everything that the code is generated from.
    parameters = (("desc", desc.exactly()), ("parallel", parallel), ("in_place", in_place))
    return Kernel(operators.module_of(type(desc)), "default", parameters, lambda: desc.computation(each, in_place))
