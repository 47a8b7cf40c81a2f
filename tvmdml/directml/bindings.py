"""How arrays and Buffers are bound to a graph's inputs: what fits, and what is converted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvmdml.directml.devices import Buffer, Device, placed
from tvmdml.directml.enums import TensorFlags
from tvmdml.directml.expressions import Expression
from tvmdml.directml.tensors import TensorDesc, check_cast, flat, numpy_type


def check_count(value: Any, sizes: Sequence[int], what: str) -> None:
    """An array must have as many elements as a tensor has.

    Raises:
        ValueError: it has not.
    """
    if value.size != math.prod(sizes):
        kind = "a Buffer" if isinstance(value, Buffer) else "an array"
        raise ValueError(f"{kind} of {value.size} elements does not fill {what}")


class Slot:
    """One input of a graph."""

    def __init__(self, index: int, desc: TensorDesc, name: str | None) -> None:
        self.index, self.name = index, name
        self.token = object()
        """What its expression is known by."""
        self.owned = desc.flags is TensorFlags.OWNED_BY_DML
        self.constant = False
        """Whether the graph had its elements until it was compiled first."""
        self.dtype = numpy_type(desc.data_type)
        self.sizes = desc.sizes
        self.strided = desc.strides is not None
        self.bytes = desc.span_in_bytes
        self.count = -(-self.bytes // self.dtype.itemsize)
        """The elements of its memory."""
        self._by_bytes = self.strided or self.count != math.prod(self.sizes)

    def __str__(self) -> str:
        """For messages: ``input 0 'x' (float32 [1, 1, 2, 2])``."""
        name = "" if self.name is None else f" {self.name!r}"
        return f"input {self.index}{name} ({self.dtype.name} {self.sizes})"

    def memory(self, value: Any, device: Device) -> Any:
        """The array on the device that is bound for an array or a Buffer.

        Raises:
            ValueError: it does not fit.
        """
        if isinstance(value, Buffer):
            if value.device is not device:
                raise ValueError(f"{self}: the Buffer is of a different device")
            if value.dtype != self.dtype:
                raise ValueError(f"{self}: a Buffer of {value.dtype}; Buffers are not converted")
            self._check_size(value)
            return value.memory[: self.count]
        array = value if type(value) is np.ndarray else np.asarray(value)
        if array.dtype != self.dtype:
            check_cast(array, self.dtype, str(self))
        self._check_size(array)
        return placed(device, flat(array, self.dtype)[: self.count])

    def _check_size(self, value: Any) -> None:
        if not self._by_bytes:
            if value.size != self.count:
                check_count(value, self.sizes, str(self))
        elif value.size < self.count:
            given = value.size * self.dtype.itemsize
            raise ValueError(f"{self}: an array of {given} bytes does not fill its {self.bytes} bytes")


class Slots:
    """The inputs of a graph, in the order in which they were made."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.all = list(slots)
        self._by_token = {slot.token: slot for slot in slots}
        self._by_name = {slot.name: slot for slot in slots if slot.name is not None}

    def of(self, key: object, verb: str) -> Slot:
        """The input of a key.

        Raises:
            ValueError: there is none.
            TypeError: it is neither an expression nor a name.
        """
        if isinstance(key, Expression):
            slot = self._by_token.get(key.token)
            if slot is None:
                raise ValueError(f"{key!r} is not an input of this graph")
        elif isinstance(key, str):
            slot = self._by_name.get(key)
            if slot is None:
                raise ValueError(f"this graph has no input named {key!r}")
        else:
            raise TypeError(f"the keys of {verb}() are Expressions or names of inputs, not {type(key).__name__}")
        return slot

    def given(self, values: Any, verb: str) -> dict[int, Any]:
        """What was given for each input, by its index.

        Raises:
            ValueError: a key is no input of the graph, is not for this verb, or is bound twice.
            TypeError: the values are no dict, or a key is neither an expression nor a name.
        """
        if values is None:
            return {}
        if not isinstance(values, Mapping):
            raise TypeError(f"{verb}() takes a dict of inputs, not {type(values).__name__}")
        bound: dict[int, Any] = {}
        owned = verb == "initialize"
        for key, value in values.items():
            slot = self.of(key, verb)
            if slot.owned != owned:
                right = "dispatch it" if owned else "give it to initialize()"
                raise ValueError(f"{slot} is {'not ' if owned else ''}owned by DirectML: {right}")
            if slot.index in bound:
                raise ValueError(f"{slot} is bound twice")
            bound[slot.index] = value
        return bound
