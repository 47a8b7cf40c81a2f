"""The check of indices before a call, for callers who ask for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmdml import functions
from tvmdml.errors import IndexOutOfRange, message
from tvmdml.functions import Describe
from tvmdml.operators._contract import Role, called_by
from tvmdml.tensors import arrays
from tvmdml.tensors.arrays.device_array import DeviceArray


def check_indices(describe: Describe, inputs: tuple[Any, ...], attributes: tuple[Any, ...]) -> None:
    """Read the indices of a call, on a device as on the CPU.

    Raises:
        IndexOutOfRange: one of them is out of range; the message has the first one.
    """
    names = [functions.input_name(describe, i) for i in range(len(inputs))]
    views = [arrays.view(array, name) for array, name in zip(inputs, names, strict=True)]
    read = [view.numpy() if type(view) is DeviceArray else view for view in views]
    descs = [functions.describe_array(array, name) for array, name in zip(read, names, strict=True)]
    with called_by(functions.name_of(describe)):
        desc: Any = functions.described(describe, descs, attributes).desc
    tensors = [name for name, _ in desc.tensors(Role.INPUT)]
    for tensor, name, array in zip(tensors, names, read, strict=True):
        if tensor in desc.INDICES and (bad := desc.first_bad(np.asarray(array))) is not None:
            at, value, size = bad
            where = f"{name}[{', '.join(map(str, at))}]"
            low = -size if array.dtype.kind == "i" else 0
            raise IndexOutOfRange(message(where, value, f"{low} to {size - 1}"))
