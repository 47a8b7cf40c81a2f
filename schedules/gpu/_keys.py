"""Sort keys: unsigned numbers for which smaller means first, for every type and direction of sorting.

-0 and +0 have the same key, and all NaN have one key, above infinity. Elements are read and written as plain bits, so no device
needs to support their type. Keys have 32 bits, or 64 for elements of that size; narrow elements use the low bits.
"""

from __future__ import annotations

from typing import Any

from tvmdml.enums import AxisDirection
from tvmdml.kernels import tensorir as T
from tvmdml.tensors import TensorDataType


class Keys:
    """Converts elements of one type to keys."""

    def __init__(self, data_type: TensorDataType, direction: AxisDirection) -> None:
        self.bits = 8 * data_type.itemsize
        """The number of a key's bits that are used."""
        self.form = "float" if data_type.is_float else "signed" if data_type.is_signed else "unsigned"
        self.decreasing = direction is AxisDirection.DECREASING
        self.element = f"int{self.bits}"
        """The type in which elements are read and written."""
        self.wide = "int64" if self.bits == 64 else "int32"
        """The type in which they are computed."""
        self.word = f"u{self.wide}"
        """The type of keys."""
        self.bytes = 8 if self.bits == 64 else 4
        self._least, self._most = -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1
        self._infinity = {16: 0x7C00, 32: 0x7F800000, 64: 0x7FF0000000000000}.get(self.bits, 0)

    @property
    def parameters(self) -> tuple[tuple[str, int | str | bool], ...]:
        """The parameters that a key's code depends on."""
        return (("bits", self.bits), ("form", self.form), ("decreasing", self.decreasing))

    def key(self, element: Any) -> Any:
        """The key of an element."""

        def const(value: int) -> Any:
            return T.const(value, self.wide)

        signed = T.hold(T.cast(element, self.wide))
        if self.form == "unsigned":
            signed = signed ^ const(self._least)
        elif self.form == "float":
            magnitude = T.let(signed & const(self._most))
            sign = T.let(signed >> const(self.bits - 1))  # 0, or all bits set
            number = (magnitude ^ sign) - sign  # the negated magnitude if the sign is set, so -0 becomes 0
            signed = T.Select(magnitude > const(self._infinity), const(self._most), number)
        # As a signed number, larger means larger here. This step makes the element that sorts first the smallest unsigned key.
        turned = signed ^ const(self._most if self.decreasing else self._least)
        if self.bits < 32:
            turned = turned & const((1 << self.bits) - 1)
        return T.reinterpret(self.word, turned)

    def last(self) -> Any:
        """The key that sorts last."""
        return T.word(-1, 8 * self.bytes)

    def digit(self, key: Any, shift: Any, bins: int) -> Any:
        """The bits of a key (or of a position) from ``shift`` up that form a digit, as an index."""
        return T.cast(self.above(key, shift) & T.const(bins - 1, T.type_of(key)), "int32")

    def above(self, key: Any, shift: Any) -> Any:
        """The bits of a key (or of a position) above ``shift``."""
        return key >> T.cast(shift, T.type_of(key))
