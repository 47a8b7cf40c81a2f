"""The schedule of operators that have none of their own: the operator's computation, with one independent item per thread."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tvmdml.kernels import tensorir as T
from tvmdml.kernels.kernel import Kernel, Offers
from tvmdml.kernels.open_shapes import OpenShapes
from tvmdml.operators import Operator
from tvmdml.operators._contract import Shared
from tvmdml.schedules.gpu import Numbers, checked, each_item, groups_for, require, require_few_rounds
from tvmdml.targets._device import DeviceTarget

THREADS = 64


def kernel(desc: Operator, target: DeviceTarget, shared: Shared) -> Kernel:
    """A kernel for a class of shapes, if the operator allows that; or else for exactly these sizes and strides."""
    tensors = [tensor for _, tensor in desc.tensors() if tensor is not None]
    numbers = Numbers(max(max(tensor.span, tensor.element_count, *tensor.layout) for tensor in tensors))
    require(desc, target, *sorted(desc.stored_types()))
    shapes = OpenShapes()
    opened = desc.with_tensors(shapes.open) if desc.LAUNCHED_SHAPES else None
    if opened is not None and numbers.have_room(shapes.scalars):
        if target.max_rounds is not None:
            _written(desc, target, shared, numbers)  # which counts the rounds of loops
        build: Callable[[], T.PrimFunc] = functools.partial(_written, desc, target, shared, numbers, True)
        wanted: Any = opened
    else:
        build, wanted, shapes = functools.partial(_written, desc, target, shared, numbers), desc, OpenShapes()
    # `exactly` contains every attribute, and each size and stride that is not passed: everything that the code is generated from.
    parameters = (("desc", wanted.exactly_in_code()), ("groups", target.tasks()), ("shared", shared), *numbers.parameters)
    module, *also = desc.modules()
    built = Kernel(module, "default", parameters, build, shapes.scalars, desc.scratch(), tuple(also), offers=Offers.NOTHING)
    return checked(desc, target, built)


def _written(desc: Operator, target: DeviceTarget, shared: Shared, numbers: Numbers, opened: bool = False) -> T.PrimFunc:
    """The function; with ``opened``, for a class of shapes."""
    most_items = 1

    @contextmanager
    def each(items: Any) -> Iterator[Any]:
        nonlocal most_items
        groups: Any
        if isinstance(items, int):
            groups = groups_for(items, THREADS, target, target.max_groups)  # an item may take long, so a thread gets few
            most_items = max(most_items, -(-items // (groups * THREADS)))
        else:
            enough = T.truncdiv(items + numbers.const(THREADS - 1), numbers.const(THREADS))
            groups = T.max(T.min(enough, numbers.const(target.max_groups)), numbers.const(1))
        with each_item(groups, THREADS, numbers.dtype, T.index(items), T.index(groups * THREADS)) as item:
            yield item

    own = desc.with_tensors(OpenShapes().open) if opened else desc
    with T.on_device(), T.counting(numbers.dtype), T.rounds_counted() as rounds:
        function = own.computation(each, shared)
    total = (rounds.total + 1) * most_items  # the loop over items makes rounds, too
    require_few_rounds(desc, target, total)
    return function
