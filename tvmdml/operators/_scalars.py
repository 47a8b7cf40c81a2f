"""Numbers of ``DML_SCALAR_UNION``: a value of a type that another field states."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tvmdml.operators._accuracy import NumpyArray
from tvmdml.tensors import TensorDataType

if TYPE_CHECKING:
    from tvmdml.operators._contract import Operator


def element(value: int | float, data_type: TensorDataType) -> NumpyArray:
    """The number in a type, as a 0-d array."""
    with np.errstate(all="ignore"):  # a value outside the range of a float type becomes infinite or zero, a signaling NaN quiet
        return np.array(value).astype(data_type.numpy) if isinstance(value, float) else np.array(value, data_type.numpy)


def require_number(desc: Operator, name: str, data_type: TensorDataType, truncate: bool = False) -> None:
    """Refuse a number that its type cannot hold.

    Args:
        desc: the operator.
        name: the number's field.
        data_type: the type.
        truncate: whether a fraction is allowed for an integer type, which drops it.

    Raises:
        InvalidArgument: the type cannot hold it.
    """
    value = getattr(desc, name)
    if data_type.is_float:
        try:
            float(value)
        except OverflowError:
            desc.require(False, name, value, "a number in the range of a float")
        return
    limits = np.iinfo(data_type.tvm)
    finite = isinstance(value, int) or math.isfinite(value)
    whole = finite and (truncate or value == math.trunc(value))
    fits = whole and limits.min <= math.trunc(value) <= limits.max
    desc.require(fits, name, value, f"an integer from {limits.min} to {limits.max}, for {data_type.tvm}")
