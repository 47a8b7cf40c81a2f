"""``Arithmetic``: TensorIR's operations as single instructions, on values of one lane.

Integers of 8 and 16 bits are computed in 32 bits, as most processors do anyway, and reduced to their range after each step that may
leave it. So no device needs narrow arithmetic, and there is only one implementation. If a device lacks float16, it is computed in
float32 and rounded after each step, which gives the same bits. If it lacks integers of 64 bits, they are pairs of words
(``spirv_pairs``).
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tvmdml.targets.vulkan import spirv_exact, spirv_rounding
from tvmdml.targets.vulkan.spirv_module import Module, pattern
from tvmdml.targets.vulkan.spirv_pairs import Pairs
from tvmdml.targets.vulkan.spirv_tables import (
    BINARY,
    BOOL,
    COMPARE,
    EXACT_MATH,
    FLOAT,
    LEAVES_RANGE,
    MATH,
    SCALED_MATH,
    UINT,
    Scalar,
)

_HALF = Scalar("float", 16)
_WORD = Scalar("int", 32)


class Value(NamedTuple):
    """The value of an expression: its type, and an id for each lane."""

    scalar: Scalar
    lanes: tuple[int, ...]


def each(compute: Callable[..., int], *values: tuple[int, ...]) -> tuple[int, ...]:
    """A result for each lane; lanes with equal operands share one."""
    if len(values[0]) == 1:
        return (compute(*(lanes[0] for lanes in values)),)
    found: dict[tuple[int, ...], int] = {}
    for operands in zip(*values, strict=True):
        if operands not in found:
            found[operands] = compute(*operands)
    return tuple(found[operands] for operands in zip(*values, strict=True))


_ZEROS: dict[str, Callable[[int, int], int]] = {
    "Add": min,
    "Sub": min,
    "Mul": operator.add,
    "BitwiseAnd": max,
    "BitwiseOr": min,
    "BitwiseXor": min,
}
"""The number of trailing zero bits of a result, given those of the operands."""

_ONE = {16: 0x3C00, 32: 0x3F800000, 64: 0x3FF0000000000000}
"""The bits of 1 in each float type."""


class Arithmetic:
    """Emits code into a module. Arguments and results are ids of values in registers; types are TensorIR's."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.converted: dict[int, int] = {}
        """Values that were converted to float16: a store may have to do the conversion itself."""
        self._zeros: dict[int, int] = {}
        self._shifts: dict[int, int] = {}
        self._patterns: dict[int, int] = {}
        self._pairs = Pairs(self)

    # -- Types

    def _is_pair(self, scalar: Scalar) -> bool:
        """Whether a value of this type is a pair of words."""
        return scalar.bits == 64 and scalar.kind != "float" and not self.module.device.int64

    def held(self, scalar: Scalar) -> Scalar:
        """The type of a register that holds a value of this type."""
        if scalar.is_narrow:
            return UINT
        return FLOAT if scalar == _HALF and not self.module.device.float16 else scalar

    def type(self, scalar: Scalar) -> int:
        """The type of that register, for uses beyond load, conversion and store."""
        held = self.held(scalar)
        if held == _HALF:
            self.module.require("Float16")
        return self.module.type(held)

    def constant(self, scalar: Scalar, value: float | int | bool) -> int:
        """A constant."""
        if scalar.is_narrow:
            value = self._wrapped(scalar, int(value))
        if scalar == _HALF:
            self.type(scalar)
            (value,) = struct.unpack("<e", struct.pack("<H", pattern(_HALF, value)))  # rounded, also where a float32 holds it
        number = self.module.constant(self.held(scalar), value)
        self._patterns[number] = bits = pattern(self.held(scalar), value)
        if self._is_pair(scalar):
            self._pairs.know(number, *(self.constant(UINT, word) for word in (bits & 0xFFFFFFFF, bits >> 32)))
        if scalar.kind in ("int", "uint"):
            self._shifts[number] = int(value)
            self._zeros[number] = (value & -value).bit_length() - 1 if value else 64  # type: ignore[operator]
        return number

    def zeros(self, value: int) -> int:
        """How many of an integer's lowest bits are known to be zero: it is a multiple of that power of two."""
        return self._zeros.get(value, 0)

    def know_zeros(self, value: int, zeros: int) -> None:
        """Record this number of zero bits."""
        if zeros:
            self._zeros[value] = zeros

    def from_memory(self, scalar: Scalar, memory: Scalar, value: int) -> int:
        """A loaded value, as a register holds it."""
        if scalar.kind == "bool":
            if memory.kind == "bool":
                return value
            if memory != UINT:
                value = self.module.pure("UConvert", self.module.type(UINT), value)
            return self._compare("INotEqual", value, self.module.constant(UINT, 0))
        held = self.held(scalar)
        if held.bits == memory.bits:
            return value
        convert = "FConvert" if held.kind == "float" else "SConvert" if scalar.kind == "int" else "UConvert"
        return self.module.pure(convert, self.module.type(held), value)

    def to_memory(self, scalar: Scalar, memory: Scalar, value: int) -> int:
        """A register's value, as it is stored in memory."""
        if scalar.kind == "bool":
            if memory.kind == "bool":
                return value
            value = self.module.pure(
                "Select", self.module.type(UINT), value, self.module.constant(UINT, 1), self.module.constant(UINT, 0)
            )
            scalar = UINT
        if self.held(scalar).bits == memory.bits:
            return value
        return self.module.pure("FConvert" if memory.kind == "float" else "UConvert", self.module.type(memory), value)

    def in_range(self, scalar: Scalar, value: int) -> int:
        """The result of 32-bit arithmetic for a narrow integer, reduced to the type's range. Other values stay the same."""
        if not scalar.is_narrow:
            return value
        if scalar.kind == "uint":
            return self.module.pure("BitwiseAnd", self.module.type(UINT), value, self.module.constant(UINT, (1 << scalar.bits) - 1))
        ends = self.module.constant(UINT, 0), self.module.constant(UINT, scalar.bits)
        return self.module.pure("BitFieldSExtract", self.module.type(UINT), value, *ends)

    def unpack(self, scalar: Scalar, words: Sequence[int]) -> list[int]:
        """The values that are packed in words of memory."""
        module = self.module
        if scalar.bits == 32:
            return [self._reinterpret_lane(UINT, scalar, word) for word in words]
        if scalar.bits == 64:
            return [self._of_halves(scalar, *both) for both in zip(words[::2], words[1::2], strict=True)]
        values = []
        for word in words:
            if scalar.kind == "float":
                both = module.pure("Bitcast", module.vector(scalar, 2), word)
                values += [module.pure("CompositeExtract", self.type(scalar), both, lane) for lane in (0, 1)]
                continue
            name = "BitFieldSExtract" if scalar.kind == "int" else "BitFieldUExtract"
            count = module.constant(UINT, scalar.bits)
            for offset in range(0, 32, scalar.bits):
                values.append(module.pure(name, module.type(UINT), word, module.constant(UINT, offset), count))
        if scalar.kind == "bool":
            return [self.cast(UINT, BOOL, value) for value in values]
        return values

    def pack(self, scalar: Scalar, values: Sequence[int]) -> list[int]:
        """The words of memory that values are packed into."""
        module = self.module
        if scalar.bits == 32:
            return [self._reinterpret_lane(scalar, UINT, value) for value in values]
        if scalar.bits == 64:
            return [word for value in values for word in self._halves(scalar, value)]
        if scalar.kind == "float":
            self.type(scalar)
            pair = module.vector(scalar, 2)
            pairs = zip(values[::2], values[1::2], strict=True)
            return [module.pure("Bitcast", module.type(UINT), module.pure("CompositeConstruct", pair, *both)) for both in pairs]
        if scalar.kind == "bool":
            values = [self.cast(BOOL, UINT, value) for value in values]
        count, each = module.constant(UINT, scalar.bits), 32 // scalar.bits
        words = []
        for first in range(0, len(values), each):
            word = values[first]
            for lane in range(1, each):
                offset = module.constant(UINT, lane * scalar.bits)
                word = module.pure("BitFieldInsert", module.type(UINT), word, values[first + lane], offset, count)
            words.append(word)
        return words

    # -- Operators

    def binary(self, node: str, scalar: Scalar, a: int, b: int) -> int:
        """``Add``, ``Max``, ``BitwiseOr`` …: a binary operation; operands and result have one type."""
        if node in ("Min", "Max"):
            # As in TVM's LLVM code: if one is NaN, the result is the second.
            return self.select(scalar, self.compare("LT" if node == "Min" else "GT", scalar, a, b), a, b)
        if node == "Mod" and scalar.kind == "float":
            return self._float_remainder(scalar, a, b)
        if node == "Mod" and scalar.kind == "int":
            # Vulkan leaves OpSRem undefined for negative operands.
            return self.binary("Sub", scalar, a, self.binary("Mul", scalar, self.binary("Div", scalar, a, b), b))
        if node == "Div" and scalar == _HALF:  # a float16 of a float32 quotient is correctly rounded
            return self.cast(FLOAT, _HALF, spirv_exact.quotient(self, self._wide(a), self._wide(b)))
        if node == "Div" and scalar == FLOAT:
            return spirv_exact.quotient(self, a, b)
        if scalar.kind == "float" and node in ("Add", "Mul"):
            for value, other in ((a, b), (b, a)):
                if (zero := self._zero_sign(scalar, other)) is not None:
                    return self._with_zero(node, scalar, value, zero)
        name = "UMod" if node == "Mod" else BINARY.get(node, {}).get(scalar.kind)
        if name is None:
            self.module.refuse(f"cannot translate {node} of {scalar.name} to SPIR-V")
        if self._is_pair(scalar) and not node.startswith("Bitwise"):
            number = self._pairs.binary(node, scalar, a, b)
        else:
            number = self._computed(name, scalar, a, b)
        if scalar.kind in ("int", "uint"):
            rule = _ZEROS.get(node)
            if rule is not None:
                self.know_zeros(number, rule(self.zeros(a), self.zeros(b)))
            elif node == "LShift" and b in self._shifts:
                self.know_zeros(number, self.zeros(a) + self._shifts[b])
        return number

    def _zero_sign(self, scalar: Scalar, value: int) -> int | None:
        """The sign bit of a constant zero of a float type; ``None`` for any other value."""
        bits = self._patterns.get(value)
        shift = self.held(scalar).bits - 1
        return None if bits is None or bits & ((1 << shift) - 1) else bits >> shift

    def _with_zero(self, node: str, scalar: Scalar, value: int, negative: int) -> int:
        """A product or a sum with a constant zero. Mesa's driver for the CPU takes the product for 0 and the sum for the value."""
        if node == "Add":
            if negative:
                return value
            zero = self.constant(scalar, 0.0)
            return self.select(scalar, self.compare("EQ", scalar, value, zero), zero, value)
        signed = self.copy_sign(scalar, self.constant(scalar, 0.0), value)
        if negative:
            signed = self.module.pure("FNegate", self.type(scalar), signed)
        finite = self.compare("LT", scalar, self.math("fabs", scalar, value), self.constant(scalar, math.inf))
        return self.select(scalar, finite, signed, self.constant(scalar, math.nan))

    def compare(self, node: str, scalar: Scalar, a: int, b: int) -> int:
        """``LT``, ``EQ`` …: compare two values of one type; the result is a bool."""
        if self._is_pair(scalar):
            return self._pairs.compare(node, scalar, a, b)
        name = COMPARE[node].get(scalar.kind)
        if name is None:  # the order of bools: false before true
            a, b = (self.cast(scalar, UINT, value) for value in (a, b))
            name = COMPARE[node]["uint"]
        elif scalar == _HALF:
            self.type(scalar)
        return self._compare(name, a, b)

    def negation(self, truth: int) -> int:
        """Not."""
        return self.module.pure("LogicalNot", self.module.type(BOOL), truth)

    def inverse(self, scalar: Scalar, value: int) -> int:
        """Every bit flipped."""
        return self.negation(value) if scalar.kind == "bool" else self._computed("Not", scalar, value)

    def select(self, scalar: Scalar, condition: int, a: int, b: int) -> int:
        """The first value if the condition holds, otherwise the second."""
        if self._may_lose_sign(self.held(scalar), a, b):
            return self._select_bits(self.held(scalar), condition, a, b)
        number = self.module.pure("Select", self.type(scalar), condition, a, b)
        self.know_zeros(number, min(self.zeros(a), self.zeros(b)))
        return number

    def _may_lose_sign(self, held: Scalar, a: int, b: int) -> bool:
        """Whether these are the constants 1 and 0 of a float type, with any signs, or integers with the same bits.

        Mesa 22.3 treats a select between them as a converted bool, or its negative, and loses the sign of zero.
        """
        one, other = self._patterns.get(a), self._patterns.get(b)
        if one is None or other is None or held.bits not in _ONE:
            return False
        sign = 1 << held.bits - 1
        magnitudes = {one & ~sign, other & ~sign}
        return magnitudes == {0, _ONE[held.bits]} and bool((one | other) & sign)

    def _select_bits(self, held: Scalar, condition: int, a: int, b: int) -> int:
        """Select between two constants by way of two other constants, each with one bit changed."""
        if held == _HALF:  # the device may have no 16-bit constants except float16
            wide = (self.constant(FLOAT, struct.unpack("<e", struct.pack("<H", self._patterns[value]))[0]) for value in (a, b))
            return self.cast(FLOAT, _HALF, self.select(FLOAT, condition, *wide))
        module, word = self.module, Scalar("uint", held.bits)
        one, other = (module.constant(word, self._patterns[value] ^ 1) for value in (a, b))
        changed = module.pure("Select", module.type(word), condition, one, other)
        number = module.pure("BitwiseXor", module.type(word), changed, module.constant(word, 1))
        return module.pure("Bitcast", module.type(held), number) if held.kind == "float" else number

    # -- Conversions

    def cast(self, source: Scalar, target: Scalar, value: int) -> int:
        """The value converted to another type."""
        if source == target:
            return value
        if target.kind == "bool":
            if source == _HALF:
                source, value = FLOAT, self._wide(value)
            if source.kind == "float":  # an unordered comparison: NaN is true
                return self._compare("FUnordNotEqual", value, self.constant(source, 0))
            return self.compare("NE", source, value, self.constant(source, 0))
        if source.kind == "bool":
            if target == _HALF:
                return self.cast(FLOAT, target, self.cast(source, FLOAT, value))
            return self.select(target, value, self.constant(target, 1), self.constant(target, 0))
        if source.kind == "float":
            return self._cast_float(source, target, value)
        if target.kind == "float":
            if target == _HALF:  # values beyond float32's range become infinite
                return self.cast(FLOAT, target, self.cast(source, FLOAT, value))
            if self._is_pair(source):
                return self._pairs.to_float(source, target, value)
            return self.module.pure("ConvertSToF" if source.kind == "int" else "ConvertUToF", self.type(target), value)
        number = value
        if self.held(source).bits != self.held(target).bits:
            if self._is_pair(source):
                number, _ = self._pairs.split(value)
            elif self._is_pair(target):
                number = self._pairs.widened(value, source.kind == "int")
            elif source.kind == "int" and target.bits == 64:
                number = self._sign_extended(target, value)
            else:
                number = self.module.pure("UConvert", self.type(target), value)
        fits = source.bits < target.bits and (source.kind == "uint" or target.kind == "int")
        number = number if fits else self.in_range(target, number)
        self.know_zeros(number, self.zeros(value))
        return number

    def reinterpret(self, source: Scalar, target: Scalar, values: Sequence[int]) -> tuple[int, ...]:
        """The same bits as values of another type; the first lane has the lowest bits."""
        if source.bits == target.bits:
            return tuple(self._reinterpret_lane(source, target, value) for value in values)
        whole, part = (source, target) if source.bits > target.bits else (target, source)
        bits, piece = Scalar("uint", whole.bits), Scalar("uint", part.bits)
        words = [self._reinterpret_lane(source, Scalar("uint", source.bits), value) for value in values]
        ratio = whole.bits // part.bits
        shifts = [self.constant(bits, lane * part.bits) for lane in range(ratio)]
        pieces: list[int] = []
        if whole is source:
            for word in words:
                pieces += [self.cast(bits, piece, self.binary("RShift", bits, word, shift)) for shift in shifts]
        else:
            for first in range(0, len(words), ratio):
                total = self.cast(piece, bits, words[first])
                for shift, word in zip(shifts[1:], words[first + 1 : first + ratio], strict=True):
                    total = self.binary("BitwiseOr", bits, total, self.binary("LShift", bits, self.cast(piece, bits, word), shift))
                pieces.append(total)
        return tuple(self._reinterpret_lane(Scalar("uint", target.bits), target, word) for word in pieces)

    # -- Functions

    def is_nan(self, scalar: Scalar, value: int) -> int:
        """Whether a float is NaN."""
        self.type(scalar)
        return self.module.pure("IsNan", self.module.type(BOOL), value)

    def is_infinite(self, scalar: Scalar, value: int) -> int:
        """Whether a float is infinite."""
        self.type(scalar)
        return self.module.pure("IsInf", self.module.type(BOOL), value)

    def bit_count(self, scalar: Scalar, value: int) -> int:
        """The number of set bits, as a value of the same type."""
        if scalar.bits == 64:  # the instruction works on 32 bits
            low, high = (self.bit_count(UINT, half) for half in self._halves(scalar, value))
            return self.cast(UINT, scalar, self.binary("Add", UINT, low, high))
        if scalar.kind == "int" and scalar.is_narrow:
            value = self.cast(scalar, Scalar("uint", scalar.bits), value)
        return self.module.pure("BitCount", self.module.type(UINT), value)

    def leading_zeros(self, scalar: Scalar, value: int) -> int:
        """The number of zero bits above the highest set bit, as an int32."""
        if scalar.bits == 64:
            low, high = self._halves(scalar, value)
            empty = self.compare("EQ", UINT, high, self.constant(UINT, 0))
            below = self.binary("Add", UINT, self.leading_zeros(UINT, low), self.constant(UINT, 32))
            return self.select(UINT, empty, below, self.leading_zeros(UINT, high))
        if scalar.kind == "int" and scalar.is_narrow:
            value = self.cast(scalar, Scalar("uint", scalar.bits), value)
        highest = self.module.extended("FindUMsb", self.module.type(UINT), value)  # -1 if no bit is set
        return self.binary("Sub", _WORD, self.constant(_WORD, scalar.bits - 1), highest)

    def copy_sign(self, scalar: Scalar, magnitude: int, sign: int) -> int:
        """The first float with the second one's sign."""
        positive = self.math("fabs", scalar, magnitude)
        if scalar.bits == 64:  # a device may have no 64-bit integers for its bits
            halves = self.module.pure("Bitcast", self.module.vector(UINT, 2), sign)
            bits = self.module.pure("CompositeExtract", self.module.type(UINT), halves, 1)
        else:
            bits = self.module.pure("Bitcast", self.module.type(UINT), self._wide(sign) if scalar == _HALF else sign)
        negative = self.compare("LT", _WORD, bits, self.constant(_WORD, 0))
        return self.select(scalar, negative, self.module.pure("FNegate", self.type(scalar), positive), positive)

    def math(self, name: str, scalar: Scalar, *values: int) -> int:
        """A float function, by C's name without a suffix."""
        if scalar.kind != "float" or name not in (*EXACT_MATH, *MATH, *SCALED_MATH):
            self.module.refuse(f"cannot translate {name} of {scalar.name} to SPIR-V")
        if scalar.bits == 64 and EXACT_MATH.get(name) in spirv_rounding.ROUNDINGS:
            return spirv_rounding.rounded(self, EXACT_MATH[name], scalar, *values)
        if name in ("sqrt", "rsqrt") and scalar.bits < 64:
            return self._root(name, scalar, *values)
        if name == "fma" and scalar.bits > 16:
            return spirv_exact.fused(self, scalar, *values)
        if name in EXACT_MATH:
            return self._rounded(scalar, self.module.extended(EXACT_MATH[name], self.type(scalar), *values))
        if scalar.bits == 64:
            self.module.refuse(f"{name} of float64: Vulkan supports it only up to 32 bits")
        if scalar == _HALF:  # computed in float32, as in TVM's LLVM code
            return self.cast(FLOAT, scalar, self.math(name, FLOAT, *(self._wide(value) for value in values)))
        if name in MATH:
            return self.module.extended(MATH[name], self.type(scalar), *values)
        (value,) = values
        name, before, after = SCALED_MATH[name]
        if before is not None:
            value = self.binary("Mul", scalar, value, self.constant(scalar, before))
        value = self.math(name, scalar, value)
        return value if after is None else self.binary("Mul", scalar, value, self.constant(scalar, after))

    # -- Steps of `spirv_exact`

    def bits(self, source: Scalar, target: Scalar, value: int) -> int:
        """The same bits as another type of the same width."""
        return self._reinterpret_lane(source, target, value)

    def words(self, value: int) -> tuple[int, int]:
        """The low and the high 32 bits of a float64."""
        return self._pairs.split(self.module.pure("Bitcast", self.module.vector(UINT, 2), value))

    def of_words(self, low: int, high: int) -> int:
        """The float64 with these bits."""
        return self._of_halves(Scalar("float", 64), low, high)

    def both(self, a: int, b: int) -> int:
        """Whether both truth values hold."""
        return self.module.pure("LogicalAnd", self.module.type(BOOL), a, b)

    def any(self, a: int, b: int) -> int:
        """Whether one of two truth values holds."""
        return self.module.pure("LogicalOr", self.module.type(BOOL), a, b)

    def approximate_quotient(self, a: int, b: int) -> int:
        """The device's quotient of two float32."""
        return self.module.pure("FDiv", self.module.type(FLOAT), a, b)

    def approximate_root(self, value: int) -> int:
        """The device's square root of a float32."""
        return self.module.extended("Sqrt", self.module.type(FLOAT), value)

    # -- Within

    def _root(self, name: str, scalar: Scalar, value: int) -> int:
        """A square root, or the quotient of 1 and a square root."""
        if scalar == _HALF:
            return self.cast(FLOAT, _HALF, self._root(name, FLOAT, self._wide(value)))
        found = spirv_exact.root(self, value)
        return found if name == "sqrt" else spirv_exact.quotient(self, self.constant(FLOAT, 1.0), found)

    def _compare(self, name: str, a: int, b: int) -> int:
        return self.module.pure(name, self.module.type(BOOL), a, b)

    def _computed(self, name: str, scalar: Scalar, *values: int) -> int:
        """An instruction's result, reduced to the type's range."""
        number = self.module.pure(name, self.type(scalar), *values)
        if scalar.kind == "float":
            return self._rounded(scalar, number)
        return self.in_range(scalar, number) if name in LEAVES_RANGE else number

    def _wrapped(self, scalar: Scalar, value: int) -> int:
        value &= (1 << scalar.bits) - 1
        return value - (1 << scalar.bits) if scalar.kind == "int" and value >> (scalar.bits - 1) else value

    def _rounded(self, scalar: Scalar, value: int) -> int:
        """Round a float32 that represents a float16 to the nearest one."""
        if scalar != _HALF or self.held(scalar) == _HALF:
            return value
        return self._wide(self.module.pure("FConvert", self.module.type(_HALF), value), exact=False)

    def _wide(self, value: int, exact: bool = True) -> int:
        """A float16 as a float32."""
        if exact and self.held(_HALF) == FLOAT:
            return value
        return self.module.pure("FConvert", self.module.type(FLOAT), value)

    def _sign_extended(self, target: Scalar, value: int) -> int:
        """A 32-bit integer sign-extended to 64 bits. Made from words: Mesa 22.3 miscompiles comparisons of an SConvert."""
        module = self.module
        sign = module.pure("ShiftRightArithmetic", module.type(UINT), value, module.constant(UINT, 31))
        return self._of_halves(target, value, sign)

    def _cast_float(self, source: Scalar, target: Scalar, value: int) -> int:
        if target.kind == "float":
            if target == _HALF:
                if source.bits == 64:
                    value = spirv_rounding.odd_float32(self, source, value)
                half = self.module.pure("FConvert", self.module.type(_HALF), value)
                if self.held(_HALF) == FLOAT:
                    return self._wide(half, exact=False)
                self.converted[half] = value
                return half
            if self.held(source) == target:
                return value
            return self.module.pure("FConvert", self.module.type(target), value)
        if source == _HALF:
            source, value = FLOAT, self._wide(value)
        if self._is_pair(target):
            return self._pairs.of_float(source, value)
        name = "ConvertFToS" if target.kind == "int" else "ConvertFToU"
        return self.in_range(target, self.module.pure(name, self.type(target), value))

    def _reinterpret_lane(self, source: Scalar, target: Scalar, value: int) -> int:
        if source.kind == target.kind:
            return value
        if target.kind == "bool" or source.kind == "bool":
            return self.cast(source, target, value)
        if "float" not in (source.kind, target.kind):
            return self.in_range(target, value)
        if source == _HALF:
            return self.in_range(target, self._half_bits(value))
        if target == _HALF:
            return self._half_of_bits(value)
        number = self.module.pure("Bitcast", self.type(target), value)
        if value in self._patterns:
            self._patterns[number] = self._patterns[value]
        return number

    # A vector of two float16 has as many bits as a register, so no device needs 16-bit integers.
    def _half_bits(self, value: int) -> int:
        if self.held(_HALF) == _HALF:
            pair_type = self.module.vector(_HALF, 2)
            pair = self.module.pure("CompositeConstruct", pair_type, value, self.constant(_HALF, 0.0))
            return self.module.pure("Bitcast", self.module.type(UINT), pair)
        pair = self.module.pure("CompositeConstruct", self.module.vector(FLOAT, 2), value, self.module.constant(FLOAT, 0.0))
        return self.module.extended("PackHalf2x16", self.module.type(UINT), pair)

    def _half_of_bits(self, value: int) -> int:
        if self.held(_HALF) == _HALF:
            self.module.require("Float16")
            pair = self.module.pure("Bitcast", self.module.vector(_HALF, 2), value)
            return self.module.pure("CompositeExtract", self.module.type(_HALF), pair, 0)
        pair = self.module.extended("UnpackHalf2x16", self.module.vector(FLOAT, 2), value)
        return self.module.pure("CompositeExtract", self.module.type(FLOAT), pair, 0)

    def _halves(self, scalar: Scalar, value: int) -> tuple[int, int]:
        if not self._is_pair(scalar):
            value = self.module.pure("Bitcast", self.module.vector(UINT, 2), value)
        return self._pairs.split(value)

    def _of_halves(self, scalar: Scalar, low: int, high: int) -> int:
        pair = self._pairs.join(low, high)
        return pair if self._is_pair(scalar) else self.module.pure("Bitcast", self.type(scalar), pair)

    def _float_remainder(self, scalar: Scalar, a: int, b: int) -> int:
        """C's fmod, exact: OpFRem divides and rounds, so it is wrong by a whole ``b`` when the quotient is large.

        This is binary long division: ``b`` is doubled up to the size of ``a``, and subtracted on the way back. No step rounds.
        """
        if scalar == _HALF:
            return self.cast(FLOAT, scalar, self._float_remainder(FLOAT, self._wide(a), self._wide(b)))
        x, y = self.math("fabs", scalar, a), self.math("fabs", scalar, b)
        half, infinity = self.constant(scalar, 0.5), self.constant(scalar, float("inf"))
        is_finite = self.compare("LT", scalar, x, infinity)
        is_divided = self._all(
            is_finite, self.compare("LT", scalar, y, infinity), self.compare("GT", scalar, y, self.constant(scalar, 0.0))
        )
        kind = self.type(scalar)
        (largest,) = self.module.repeat(
            [kind],
            [y],
            lambda t: self._all(is_divided, self.compare("LE", scalar, t, self.binary("Mul", scalar, x, half))),
            lambda t: [self.binary("Add", scalar, t, t)],
        )
        rest, _ = self.module.repeat(
            [kind, kind],
            [x, largest],
            lambda r, t: self._all(is_divided, self.compare("GE", scalar, t, y)),
            lambda r, t: [
                self.select(scalar, self.compare("GE", scalar, r, t), self.binary("Sub", scalar, r, t), r),
                self.binary("Mul", scalar, t, half),
            ],
        )
        is_whole = self._all(is_finite, self.compare("EQ", scalar, y, infinity))
        other = self.select(scalar, is_whole, a, self.constant(scalar, float("nan")))
        return self.select(scalar, is_divided, self.copy_sign(scalar, rest, a), other)

    def _all(self, *truths: int) -> int:
        result = truths[0]
        for truth in truths[1:]:
            result = self.binary("And", BOOL, result, truth)
        return result
