"""Order by keys: unsigned numbers in whose order the smaller comes first, whatever the type and direction of what is sorted.

-0 and +0 have one key, and so have all NaN, above infinity. Elements are read and written as plain bits, so that no device needs
to know their type. Keys have 32 bits, or 64 for elements of that size; narrow elements use the lower ones.
"""

from __future__ import annotations

from typing import Any

from tvmdml import tensorir as T
from tvmdml.enums import AxisDirection
from tvmdml.tensors import TensorDataType


class Keys:
    """How elements of a type become keys."""

    def __init__(self, data_type: TensorDataType, direction: AxisDirection) -> None:
        self.bits = 8 * data_type.itemsize
        """Of a key's bits, those that are ever set."""
        self.form = "float" if data_type.is_float else "signed" if data_type.is_signed else "unsigned"
        self.decreasing = direction is AxisDirection.DECREASING
        self.element = f"int{self.bits}"
        """The type that elements are read and written as."""
        self.wide = "int64" if self.bits == 64 else "int32"
        """The type that they are reckoned with in."""
        self.word = f"u{self.wide}"
        """The type of keys."""
        self.bytes = 8 if self.bits == 64 else 4
        self._least, self._most = -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1
        self._infinity = {16: 0x7C00, 32: 0x7F800000, 64: 0x7FF0000000000000}.get(self.bits, 0)

    @property
    def parameters(self) -> tuple[tuple[str, int | str | bool], ...]:
        """What the code of a key depends on."""
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
            sign = T.let(signed >> const(self.bits - 1))  # 0, or all ones
            number = (magnitude ^ sign) - sign  # minus the magnitude where the sign is set: so -0 is 0
            signed = T.Select(magnitude > const(self._infinity), const(self._most), number)
        # As a signed number the larger is now above. Turned round or not, the first becomes 0.
        turned = signed ^ const(self._most if self.decreasing else self._least)
        if self.bits < 32:
            turned = turned & const((1 << self.bits) - 1)
        return T.reinterpret(self.word, turned)

    def last(self) -> Any:
        """The key that no other comes after."""
        return T.word(-1, 8 * self.bytes)

    def digit(self, key: Any, shift: Any, bins: int) -> Any:
        """Some bits of a key (or of a position) from ``shift`` up, as an index."""
        return T.cast(self.above(key, shift) & T.const(bins - 1, T.type_of(key)), "int32")

    def above(self, key: Any, shift: Any) -> Any:
        """The bits of a key (or of a position) from ``shift`` up."""
        return key >> T.cast(shift, T.type_of(key))
