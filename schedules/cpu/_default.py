"""The schedule of an operator that has none of its own: its computation, with independent items run in parallel."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tvmdml.kernels import tensorir as T
from tvmdml.kernels.kernel import Kernel, Offers
from tvmdml.kernels.open_shapes import OpenShapes
from tvmdml.operators import Operator
from tvmdml.operators._contract import Shared
from tvmdml.targets import Target

LEAST_PARALLEL_ITEMS = 1 << 16
"""With fewer items than this, starting threads costs more than it saves."""


def kernel(desc: Operator, target: Target, shared: Shared) -> Kernel:
    """A kernel for a class of shapes; for exactly these sizes and strides if the computation needs them as constants."""
    most = max(tensor.element_count for _, tensor in desc.tensors() if tensor is not None)
    parallel = most >= LEAST_PARALLEL_ITEMS or bool(desc.CONSTANT_SHAPES)

    def each(items: Any) -> AbstractContextManager[Any]:
        many = not isinstance(items, int) or items >= LEAST_PARALLEL_ITEMS
        return T.loop(T.i64(items) if isinstance(items, int) else items, parallel=parallel and many)

    # Whether and which elements share a byte of a 4-bit output follows from its strides.
    constant = bool(desc.CONSTANT_SHAPES) or any(tensor.data_type.is_nibble for tensor in desc.outputs())
    shapes = OpenShapes()
    wanted = desc if constant else desc.with_tensors(shapes.open)

    def build() -> T.PrimFunc:
        own = desc if constant else desc.with_tensors(OpenShapes().open)  # each build declares its own integers
        return own.computation(each, shared)

    # The text contains every attribute, and what is constant of every size and stride: everything that the code is generated from.
    parameters = (("desc", wanted.exactly_in_code()), ("parallel", parallel), ("shared", shared))
    module, *also = wanted.modules()
    return Kernel(module, "default", parameters, build, shapes.scalars, desc.scratch(), tuple(also), offers=Offers.NOTHING)
