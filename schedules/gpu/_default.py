"""The schedule of operators that have none of their own: the operator's computation, with one independent item per thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tvmdml.kernels import tensorir as T
from tvmdml.kernels.kernel import Kernel
from tvmdml.operators import Operator
from tvmdml.operators._contract import Shared
from tvmdml.schedules.gpu import Numbers, checked, groups_for, position, refuse, require, strided
from tvmdml.targets._device import DeviceTarget

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

THREADS = 64


def kernel(desc: Operator, target: DeviceTarget, shared: Shared) -> Kernel:
    """A kernel for exactly these sizes, strides and attributes."""
    tensors = [tensor for _, tensor in desc.tensors() if tensor is not None]
    numbers = Numbers(max(max(tensor.span, tensor.element_count, *tensor.layout) for tensor in tensors))
    require(desc, target, numbers, *sorted(desc.stored_types()))
    most_items = 1

    @contextmanager
    def each(items: int) -> Iterator[Any]:
        nonlocal most_items
        groups = groups_for(items, THREADS, target, target.max_groups)  # an item may take long, so a thread gets few
        most_items = max(most_items, -(-items // (groups * THREADS)))
        with (
            T.launch(groups, THREADS) as (group, thread),
            strided(position(group, thread, THREADS, numbers.dtype), T.index(items), T.index(groups * THREADS)) as item,
        ):
            yield item

    def build() -> PrimFunc:
        with T.on_device(), T.counting(numbers.dtype), T.rounds_counted() as rounds:
            function = desc.computation(each, shared)
        total = (rounds.total + 1) * most_items  # the loop over items makes rounds, too
        if target.max_rounds is not None and total > target.max_rounds:
            given = f"{total} rounds of loops in a thread on {target.name}"
            refuse(desc.where("loops"), given, f"up to {target.max_rounds}, after which the device's driver leaves loops")
        return function

    # `exactly` contains every size, stride and attribute, so everything that the code is generated from.
    parameters = (("desc", desc.exactly()), ("groups", target.tasks()), ("shared", shared), *numbers.parameters)
    module, *also = desc.modules()
    built = Kernel(module, "default", parameters, build, temporaries=desc.scratch(), also=tuple(also))
    found: Kernel = checked(desc, target, built)
    return found
