"""What an array must be to be bound to a tensor of a compiled operator."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmdml import arrays
from tvmdml.arrays import NumpyArray
from tvmdml.errors import InvalidArgument, message
from tvmdml.operators import Operator
from tvmdml.targets import Form, Target
from tvmdml.tensors import TensorDesc


class Expected:
    """The required form of one tensor of a compiled operator."""

    __slots__ = ("desc", "dtype", "form", "name", "operator", "output", "shape", "span", "strides", "target", "where")

    def __init__(self, operator: Operator, name: str, desc: TensorDesc | None, output: bool, target: Target) -> None:
        self.operator, self.name, self.desc, self.output, self.target = operator.NAME, name, desc, output, target
        self.form: Form = None
        self.where = f"{operator.NAME} {name}"
        if desc is not None:
            stored = desc.stored
            self.dtype = stored.data_type.numpy
            self.shape = stored.sizes
            self.strides = tuple(s * self.dtype.itemsize for s in stored.layout)
            self.span = stored.span_in_bytes
            self.form = (self.dtype, self.shape, self.strides, output)

    def check(self, tensor: Any) -> NumpyArray:
        """A NumPy view of the array, if it has the required form."""
        if tensor is None or self.desc is None:
            given, allowed = ("None", str(self.desc)) if tensor is None else ("a tensor", "None: the descriptor has no such tensor")
            raise InvalidArgument(message(f"{self.operator} {self.name}", given, allowed))
        if type(tensor) is not np.ndarray:
            tensor = arrays.view(tensor, self.where, write=self.output)
        array: NumpyArray = tensor
        arrays.require_on(array, self.target, self.where)
        if (array.dtype, array.shape, array.strides) != (self.dtype, self.shape, self.strides):
            self._check_loosely(array)
        flags = array.flags
        if not flags.aligned:
            raise InvalidArgument(
                message(
                    f"{self.operator} {self.name}",
                    "memory that is not aligned to its element size",
                    f"an address that is a multiple of {self.dtype.itemsize} bytes",
                    "Copy it first.",
                )
            )
        if self.output and not flags.writeable:
            raise InvalidArgument(message(f"{self.operator} {self.name}", "a read-only array", "a writable one: it is an output"))
        return array

    def _check_loosely(self, array: NumpyArray) -> None:
        """Raise an error for any difference, except in strides of dimensions of size 1."""
        where = f"{self.operator} {self.name}"
        if array.dtype != self.dtype and not (array.dtype == np.bool_ and self.dtype == np.uint8):
            raise InvalidArgument(message(where, f"data type {array.dtype}", str(self.dtype), self._advice("")))
        if array.shape != self.shape:
            advice = self._advice(
                "An array must have the sizes and strides of its TensorDesc; numpy.lib.stride_tricks.as_strided makes such a view."
            )
            raise InvalidArgument(message(where, f"shape {array.shape}", str(self.shape), advice))
        if any(n > 1 and a != b for n, a, b in zip(self.shape, array.strides, self.strides, strict=True)):
            itemsize = self.dtype.itemsize
            given, allowed = (
                str(tuple(s / itemsize if s % itemsize else s // itemsize for s in strides))
                for strides in (array.strides, self.strides)
            )
            raise InvalidArgument(
                message(where, f"strides {given} in elements", allowed, "Give these strides to its TensorDesc, or copy the array.")
            )

    def _advice(self, otherwise: str) -> str:
        """The advice for an array of a 4-bit tensor that is not its bytes."""
        if self.desc is None or not self.desc.data_type.is_nibble:
            return otherwise
        return f"An array of {self.desc} has its bytes, each with two elements: TensorDesc.pack makes it."
