"""What passes ask schedules: which kernel serves a call. The answer decides how fast a graph is, and never what it computes."""

from __future__ import annotations

from tvmdml.graph.templates import Template
from tvmdml.kernels.kernel import Kernel, Offers
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators._contract import Operator
from tvmdml.targets import Target
from tvmdml.tensors.sizes import is_open


def kernel_in_this_case(desc: Operator, target: Target) -> Kernel:
    """The kernel of a call in the case at hand. Sizes that are open are asked nothing: a launch of other sizes may have another.

    Raises:
        Unsupported: there is none.
    """
    tensors = (tensor for _, tensor in desc.tensors() if tensor is not None)
    if any(is_open(n) for tensor in tensors for n in (*tensor.sizes, *(tensor.strides or ()))):
        desc = Template(desc).filled(lambda size: size.value)
    return kernel_for(desc, target)


def offered(desc: Operator, target: Target) -> Offers:
    """What the kernel of a call offers in the case at hand.

    Raises:
        Unsupported: there is none.
    """
    return kernel_in_this_case(desc, target).offers
