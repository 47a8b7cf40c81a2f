"""A matrix of few bits in blocks, as it is stored, read by a device's threads: bits become floats in registers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import KC
from tvmdml.kernels.few_bits import FewBits
from tvmdml.operators._matrix import Matrix
from tvmdml.operators._matrix_blocks_fused import BlockwiseGemm
from tvmdml.schedules.gpu._words import load, words

_BYTES = ("b_tensor", "zero_point_tensor")
"""Tensors that may have bytes, which are read in words where they can be."""


class BitMatrix(FewBits):
    """How the second factor of an operator is stored; in a launch, what reads it.

    Args:
        own: the operator.
        most: the most words that are read together.
    """

    _stored: Any
    _scales: Any
    _zeros: Any
    _words: Any
    _zero_words: Any

    def __init__(self, own: BlockwiseGemm, most: int = 1) -> None:
        self.bits, self.is_signed, self.block = own.bits, own.is_signed, own.block_size
        scale, zero = own.scale_tensor, own.zero_point_tensor
        self.zero = "" if zero is None else "floats" if own.zeros_are_floats else "bits"
        places = own.a_tensor.sizes[-1]
        self.row_bytes = own.b_tensor.sizes[1]
        self.run = _run(own.b_tensor, 4 * most) // 4
        """The words that are read together; 0 if a row begins within one."""
        while self.run > 1 and self.block % self.places and self.places % self.block:
            self.run //= 2
        self.in_words = self.run > 0 and self._has_words(own.b_tensor, places)
        """Whether each element is in a word that a row has as a whole."""
        self.zero_in_words = zero is not None and self.zero == "bits" and _run(zero, 4) == 4 and self._has_words(zero, own.blocks)
        self.numbers = (*own.steps_of("scale_tensor"), *((0, 0) if zero is None else own.steps_of("zero_point_tensor")))
        """Steps of scales and of zero points, from one column's to the next one's, and from one block's."""
        self.spans = [one.span for one in (own.b_tensor, scale, zero) if one is not None] + [places * own.bits]
        """The largest numbers that are computed."""

    def __str__(self) -> str:
        """What the code depends on, beside the operator's attributes."""
        return f"{self.run} {self.in_words} {self.zero} {self.zero_in_words}"

    def _has_words(self, tensor: Any, elements: int) -> bool:
        return int(tensor.sizes[1]) // 4 >= -(-elements // self.per_word)

    @property
    def places(self) -> int:
        """The elements that are read together."""
        return self.run * self.per_word

    @property
    def raising(self) -> tuple[int, ...]:
        """The first bits of the float to which elements add their values.

        They are passed at launch: with two constants, a mask and these bits would be two instructions on some devices.
        """
        return (self.start,)

    @property
    def period(self) -> int:
        """The most products, 16 or more, whose sum may be multiplied by a scale; 0 where steps do not divide a block's products, or
        elements are no integers.
        """
        block = self.block
        return 0 if block < 16 or block & (block - 1) or self.zero == "floats" else min(block, KC)

    def types(self, desc: Matrix) -> set[str]:
        """The types in which the operator's elements are read and written."""
        tensors = [(name, tensor) for name, tensor in desc.tensors() if tensor is not None]
        found = {tensor.data_type.tvm for name, tensor in tensors if name not in _BYTES or tensor.data_type.is_float}
        return found if self.in_words and (self.zero != "bits" or self.zero_in_words) else found | {"uint8"}

    def whole(self, depth: int) -> int:
        """How many runs a row has whose elements are all places of a sum."""
        return min(depth // self.places, self.row_bytes // (4 * self.run)) if self.run else 0

    # -- In a launch

    def begin(self, buffers: dict[str, Any], steps: Sequence[Any], depth: Any, raising: Sequence[Any]) -> None:
        """With the kernel's buffers, the launch's integers for ``numbers``, the places of a sum, and the words of ``raising``."""
        self._stored, self._scales, self._zeros = (buffers.get(name) for name in ("b_tensor", "scale_tensor", "zero_point_tensor"))
        self._words = words(self._stored) if self.run else None
        self._zero_words = words(self._zeros) if self.zero_in_words else None
        self._raising = self.starts(T.reinterpret(raising[0], "uint32"))
        self._steps, self._dtype, self._last = steps, T.type_of(depth), T.let(depth - 1)

    def column(self, number: Any) -> tuple[Any, Any]:
        """Where the scales and the zero points of a column begin."""
        return T.let(number * self._steps[0]), T.let(number * self._steps[2]) if self.zero else None

    def number(self, value: int) -> Any:
        """A constant of the places' type."""
        return T.const(value, self._dtype)

    def block_of(self, place: Any) -> Any:
        """The block of a place."""
        return T.let(T.truncdiv(place, self.number(self.block)))

    def scale(self, column: Any, block: Any) -> Any:
        """A block's scale."""
        return T.let(T.cast(T.wide(self._scales[T.let(column[0] + block * self._steps[1])]), "float32"))

    def zero_point(self, column: Any, block: Any) -> Any:
        """A block's zero point as it is stored: bits as uint32, a float as float32; ``None`` where there is none."""
        if not self.zero:
            return None
        if self.zero == "floats":
            return T.let(T.cast(T.wide(self._zeros[T.let(column[1] + block * self._steps[3])]), "float32"))
        return self._element(self._zero_words, self._zeros, column[1], block, self._steps[3])

    def run_of(self, base: Any, number: Any) -> list[Any]:
        """The words of a run, by its number in the row that begins at a byte."""
        first = T.let(T.multiple((base >> self.number(2)) + number * self.run, self.run))
        return [self.signless(word) for word in load(self._words, first, self.run)]

    def word(self, base: Any, number: Any) -> Any:
        """A word of a row, by its number: what is behind the row's last place is anything."""
        if self.in_words:
            last = T.let(T.truncdiv(self._last, self.number(self.per_word)))
            return self.signless(self._words[T.let((base >> self.number(2)) + T.min(number, last))])
        found, last = None, T.let(T.truncdiv(self._last, self.number(8 // self.bits)))
        for i in range(4):
            at = T.let(base + T.min(number * 4 + i, last))
            byte = T.cast(self._stored[at], "uint32") << T.const(8 * i, "uint32")
            found = byte if found is None else found | byte
        return self.signless(T.let(found))

    def difference(self, base: Any, place: Any, zero: Any) -> Any:
        """An element of a row less its zero point."""
        element = self._element(self._words if self.in_words else None, self._stored, base, place, 1)
        found = T.cast(T.let(T.cast(self.plain(element), "int32") - T.const(self.offset, "int32")), "float32")
        if zero is None:
            return T.let(found)
        if self.zero == "floats":
            return T.let(found - zero)
        return T.let(found - T.cast(T.cast(self.plain(zero), "int32") - T.const(self.offset, "int32"), "float32"))

    def floats(self, word: Any, less: Sequence[Any], own: Any, starts: Sequence[Any] = ()) -> list[Any]:
        """As everywhere, with the launch's words."""
        return super().floats(word, less, own, starts or self._raising)

    def _element(self, wide: Any, narrow: Any, base: Any, place: Any, step: Any) -> Any:
        """An element of few bits, as they are stored, from words or from bytes, which are a step apart."""
        shift = 5 if wide is not None else 3
        at = T.let(place * self.bits)
        number = at >> self.number(shift)
        if wide is not None:
            word = wide[T.let((base >> self.number(2)) + number)]
        else:
            word = T.cast(narrow[T.let(base + number * step)], "uint32")
        own = T.cast(at & self.number((1 << shift) - 1), "uint32")
        return T.let((T.let(word) >> own) & T.const((1 << self.bits) - 1, "uint32"))


def of_bits(desc: Matrix) -> BlockwiseGemm | None:
    """The operator whose second factor has few bits, if it is one."""
    head = desc.head()
    return head if isinstance(head, BlockwiseGemm) else None


def serves(own: BlockwiseGemm) -> bool:
    """Whether no word has elements of two blocks, or of several columns, and bytes of a row are neighbours."""
    return (
        not own.is_across and own.block_size % (32 // own.bits) == 0 and (own.b_tensor.sizes[1] == 1 or own.b_tensor.layout[1] == 1)
    )


def _run(tensor: Any, most: int) -> int:
    """How many bytes are aligned together, wherever in a row a run of so many begins."""
    rows, count = tensor.sizes
    return math.gcd(tensor.layout[0] if rows > 1 else 0, most) if count == 1 or tensor.layout[1] == 1 else 1
