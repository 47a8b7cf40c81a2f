"""Order by keys: a larger key comes first in the result, whatever the type and direction of the sorted elements.

Keys are signed integers. -0 and +0 have the same key. All NaN have the same key, above infinity. Only keys are compared; the
results are copied from the input by position.
"""

from __future__ import annotations

from typing import Any

from tvmdml.enums import AxisDirection
from tvmdml.kernels import tensorir as T
from tvmdml.tensors import TensorDataType


class Order:
    """How elements of a type are converted to keys: signed integers of the same width."""

    def __init__(self, data_type: TensorDataType, direction: AxisDirection) -> None:
        self.bits = 8 * data_type.itemsize
        self.form = "float" if data_type.is_float else "signed" if data_type.is_signed else "unsigned"
        self.decreasing = direction is AxisDirection.DECREASING
        self.word = f"int{self.bits}"
        """The type of keys, and of elements as they are loaded, without conversion of their bits."""
        self.lanes = 512 // self.bits
        """Keys in 64 bytes: one AVX-512 register, two AVX2 registers, or one cache line."""
        self._infinity = {16: 0x7C00, 32: 0x7F800000, 64: 0x7FF0000000000000}.get(self.bits, 0)

    @property
    def parameters(self) -> tuple[tuple[str, int | str | bool], ...]:
        """Everything that the generated code for keys depends on."""
        return (("bits", self.bits), ("form", self.form), ("decreasing", self.decreasing))

    def least(self) -> Any:
        """The smallest possible key."""
        return T.const(-(1 << (self.bits - 1)), self.word)

    def most(self) -> Any:
        """The largest possible key."""
        return T.const((1 << (self.bits - 1)) - 1, self.word)

    def key(self, word: Any) -> Any:
        """The key for the bits of an element, or for a vector of them."""
        if self.form == "signed":
            key = word
        elif self.form == "unsigned":
            key = word ^ self.least()
        else:
            magnitude = word & self.most()
            sign = word >> T.const(self.bits - 1, self.word)  # 0, or all ones
            key = (magnitude ^ sign) - sign  # minus the magnitude if the sign is set: so -0 becomes 0
            many = T.lanes(word)
            most = self.most() if many == 1 else T.splat(self.most(), many)
            key = T.Select(magnitude > T.const(self._infinity, self.word), most, key)
        return key if self.decreasing else ~key

    def ascending(self, key: Any) -> Any:
        """The key as an unsigned number, smaller first: a radix sort takes its digits from this number."""
        return T.reinterpret(f"uint{self.bits}", key ^ self.most())

    @property
    def has_float_registers(self) -> bool:
        """Whether processors compare values of the type directly. (Few do for float16.)"""
        return self.form == "float" and self.bits >= 32

    def as_float(self, words: Any) -> Any:
        """The bits of elements as floats."""
        return T.reinterpret(f"float{self.bits}x{T.lanes(words)}", words)

    def as_word(self, floats: Any) -> Any:
        """Floats as bits."""
        return T.reinterpret(f"{self.word}x{T.lanes(floats)}", floats)

    def better_float(self, a: Any, b: Any) -> Any:
        """The float that comes first, lane by lane, if neither is NaN."""
        return T.Select(a > b, a, b) if self.decreasing else T.Select(a < b, a, b)

    def is_number(self, key: Any) -> Any:
        """Whether a key belongs to a float that is not NaN."""
        key = key if self.decreasing else ~key
        return key <= T.const(self._infinity, self.word)

    def float_of(self, key: Any) -> Any:
        """The float that has a key."""
        key = key if self.decreasing else ~key
        negative = (-key) | self.least()
        return T.reinterpret(f"float{self.bits}", T.Select(key < T.const(0, self.word), negative, key))
