"""The schedule of operators that have none of their own: the operator's computation, with one independent item per thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tvmdml import operators
from tvmdml import tensorir as T
from tvmdml.kernel import Kernel
from tvmdml.operators import Operator
from tvmdml.schedules.gpu import groups_for, position, require, strided
from tvmdml.targets._device import DeviceTarget

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

THREADS = 64


def kernel(desc: Operator, target: DeviceTarget, in_place: bool) -> Kernel:
    """A kernel for exactly these sizes, strides and attributes."""
    require(desc, target, None, *(tensor.data_type.tvm for _, tensor in desc.tensors() if tensor is not None))

    @contextmanager
    def each(items: int) -> Iterator[Any]:
        groups = groups_for(items, THREADS, target, target.max_groups)  # an item may take long, so a thread gets few
        with (
            T.launch(groups, THREADS) as (group, thread),
            strided(position(group, thread, THREADS, "int64"), T.i64(items), T.i64(groups * THREADS)) as item,
        ):
            yield item

    def build() -> PrimFunc:
        with T.on_device():
            return desc.computation(each, in_place)

    # `exactly` contains every size, stride and attribute, so everything that the code is generated from.
    parameters = (("desc", desc.exactly()), ("groups", target.tasks()), ("in_place", in_place))
    return Kernel(operators.module_of(type(desc)), "default", parameters, build)
