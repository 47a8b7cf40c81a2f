"""Words for expressions that are written once, for scalars and vectors alike, and give the same bits on every target.

Use it as ``from tvmdml.kernels import tensorir_values as T``; it has all names of ``tensorir``, too. The steps are exact: no sum is
contracted with a product (``rounded``), conversions saturate, no division traps, and constants are safe from TVM's simplifier.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvmdml.kernels import extremes, scaling, tables
from tvmdml.kernels import fused as fused_in_steps
from tvmdml.kernels import tensorir as T
from tvmdml.kernels.launched import Word
from tvmdml.kernels.seldom import seldom


def __getattr__(name: str) -> Any:
    return getattr(T, name)


# -- Types and constants ------------------------------------------------------------------------------------------


def scalar_type(value: Any) -> str:
    """The data type of a value's lanes: ``float32`` for ``float32x16``."""
    return T.type_of(value).partition("x")[0]


def expression(value: Any) -> Any:
    """The value itself, of a comparison with ``==`` or ``!=`` too, which TVM gives as an object that is not an expression yet."""
    return value.asobject() if hasattr(value, "asobject") else value


def is_float(value: Any) -> bool:
    """Whether it is a value of a floating-point type."""
    return scalar_type(value).startswith("float")


def bits_of(value: Any) -> int:
    """The number of bits of each lane."""
    width: int = value.ty.dtype.bits
    return width


def like(value: Any, number: int | float | Word) -> Any:
    """A constant with the type and the lanes of a value. A number is converted as by DirectML's CAST: toward zero, saturating."""
    is_word, dtype, many = isinstance(number, Word), scalar_type(value), T.lanes(value)
    one = cast(number.expression(), dtype) if is_word else _constant(number, dtype)  # type: ignore[union-attr,arg-type]
    return _splat(one, many)


def hidden(value: Any, number: int | float) -> Any:
    """``like`` an integer, for arithmetic that may overflow: LLVM assumes that it does not, and concludes from constants."""
    found = like(value, number)
    if is_float(value) or bits_of(value) < 32 or T.is_on_device() or saturated(number, scalar_type(value)) == 0:
        return found
    return found ^ (value ^ wrapped(value))  # which is 0; of a fenced constant LLVM knows the class as a float, and so bits


def _splat(value: Any, many: int) -> Any:
    return T.splat(value, many) if many > 1 else value


def _constant(number: int | float, dtype: str) -> Any:
    if dtype.startswith("float"):
        return _zero(number, dtype) if number == 0 else T.const(float(number), dtype)
    whole = saturated(number, dtype)
    return T.word(whole, 64) if dtype == "uint64" else T.const(whole, dtype)


def _zero(number: float, dtype: str) -> Any:
    """A zero that TVM's simplifier does not see: it drops products and sums with 0, which is wrong for NaN, infinities and -0."""
    width = int(dtype[5:])
    negative = T.reinterpret(dtype, T.word(1 << (width - 1), width))
    if math.copysign(1, number) < 0:
        return negative
    # TVM cannot translate the bits of 0 to LLVM.
    return T.reinterpret(dtype, T.word(0, width)) if T.is_on_device() else negative * T.const(-1, dtype)


def saturated(number: int | float, dtype: str) -> int:
    """A Python number as an integer of a type: toward zero, the nearest limit beyond the range, and 0 for NaN."""
    limits = np.iinfo(dtype)
    if isinstance(number, float) and not math.isfinite(number):
        return 0 if math.isnan(number) else int(limits.max if number > 0 else limits.min)
    return min(max(math.trunc(number), int(limits.min)), int(limits.max))


# -- Conversions --------------------------------------------------------------------------------------------------


def cast(value: Any, dtype: str) -> Any:
    """The value in another type, with the same lanes: of an integer the low bits; of a float only what is in range."""
    if scalar_type(value) == dtype:
        return value
    many = T.lanes(value)
    return T.cast(value, f"{dtype}x{many}" if many > 1 else dtype)


def reinterpret(value: Any, dtype: str) -> Any:
    """The same bits as another type of the same width."""
    if scalar_type(value) == dtype:
        return value
    many = T.lanes(value)
    number = T.constant(value)
    if number is not None and ("int" in dtype or number == 0):  # TVM cannot translate a reinterpreted 0 to LLVM
        return _splat(_zero(0.0, dtype) if "float" in dtype else T.word_as(number, dtype), many)
    # Not a conversion of integers: TVM's simplifier takes their range along, and then sees no negative numbers.
    return T.reinterpret(f"{dtype}x{many}" if many > 1 else dtype, value)


def to(value: Any, dtype: str) -> Any:
    """The value in another type, converted as by DirectML's CAST.

    A float becomes an integer toward zero, saturating, and 0 for NaN; an integer becomes another one by its low bits; everything
    else is rounded once, halves to even. A truth value becomes 1 or 0, and a number becomes a truth value by not being 0.
    """
    value = expression(value)
    own = scalar_type(value)
    if own == dtype:
        return value
    if dtype == "bool":
        return or_nan(value != like(value, 0), value)
    if own == "bool":
        many = T.lanes(value)
        one, zero = (T.splat(T.const(n, dtype), many) if many > 1 else T.const(n, dtype) for n in (1, 0))
        return T.Select(value, one, zero)
    if own.startswith("float") and not dtype.startswith("float"):
        return _to_integer(wide(value), dtype)
    if (own, dtype) == ("float64", "float16"):
        return cast(_to_odd(value), dtype)
    if dtype == "float16" and own != "float32":
        # Integers that float32 would round are larger than the largest float16 anyway.
        return cast(cast(value, "float32"), dtype)
    return cast(value, dtype)


def _to_integer(value: Any, dtype: str) -> Any:
    limits = np.iinfo(dtype)
    low = like(value, float(limits.min))
    number = select(is_nan(value), 0, value) if limits.min < 0 else value
    bounded = _not_below(number, low)  # 0 of NaN if the type is unsigned
    # Processors convert vectors to 32 bits.
    through = "int32" if limits.bits < 32 else dtype
    if limits.bits < np.finfo(scalar_type(value)).nmant:  # the float type has the greatest integer, too
        high = like(value, float(limits.max))
        return cast(cast(_not_above(bounded, high), through), dtype)
    fits = bounded < like(value, float(limits.max + 1))  # a power of two, and so exact
    return select(fits, cast(select(fits, bounded, 0), through), limits.max)


def _not_below(value: Any, low: Any) -> Any:
    """The float, or the constant if that is greater or the float is NaN."""
    if T.is_on_device():
        return T.Select(value > low, value, low)
    # One instruction; of a choice in a vector of several registers LLVM makes masks of bytes, and a blend by them.
    return T.call_llvm_pure_intrin(T.type_of(value), "llvm.maxnum", value, low)


def _not_above(value: Any, high: Any) -> Any:
    """The float, or the constant if that is less or the float is NaN."""
    if T.is_on_device():
        return T.Select(value < high, value, high)
    return T.call_llvm_pure_intrin(T.type_of(value), "llvm.minnum", value, high)


def _to_odd(value: Any) -> Any:
    """A float64 as float32, inexact ones as the neighbour whose last bit is odd: rounding that again is like rounding once."""
    near = cast(value, "float32")
    back, bits = cast(near, "float64"), reinterpret(near, "int32")
    too_far = T.abs(back) > T.abs(value)
    inexact = too_far | (T.abs(back) < T.abs(value))
    toward_zero = select(too_far, bits - like(bits, 1), bits)
    return reinterpret(select(inexact, toward_zero | like(bits, 1), bits), "float32")


def wide(value: Any) -> Any:
    """A float16 as float32, in which it is computed until the one rounding at the end; other values stay as they are."""
    if scalar_type(value) != "float16":
        return value
    found = cast(value, "float32")
    # Otherwise LLVM computes some functions on the float16 itself, element by element.
    return rounded(found) if T.lanes(found) > 1 else found


def in_float32(compute: Callable[[Any], Any], value: Any) -> Any:
    """The result of a computation on a float; for a float16 it is computed in float32 and rounded once."""
    return to(compute(wide(value)), scalar_type(value))


def repeated(value: Any, lanes: int) -> Any:
    """A vector with the value in each lane."""
    if scalar_type(value) != "float16" or T.is_on_device():
        return T.splat(value, lanes)
    # x86 loads a float16 into a part of a register, which so depends on what was there before; its bits are loaded into all lanes.
    return reinterpret(T.splat(reinterpret(value, "uint16"), lanes), "float16")


class Cell:
    """A variable for a scalar or a vector."""

    def __init__(self, value: Any) -> None:
        self._lanes = T.lanes(value)
        self._buffer = T.local(scalar_type(value), self._lanes)
        self.set(value)

    @property
    def _place(self) -> Any:
        return T.run(T.i64(0), self._lanes) if self._lanes > 1 else T.i64(0)

    @property
    def value(self) -> Any:
        """The current value."""
        return self._buffer[self._place]

    def set(self, value: Any) -> None:
        """Write to it."""
        T.store(self._buffer, self._place, value)


# -- Choices and tests --------------------------------------------------------------------------------------------


def select(condition: Any, a: Any, b: Any) -> Any:
    """The first value where the condition holds, otherwise the second. One of them may be a Python number."""
    if isinstance(a, (int, float)):
        a = like(b, a)
    elif isinstance(b, (int, float)):
        b = like(a, b)
    condition = expression(condition)
    if T.lanes(a) > 1 == T.lanes(condition):
        condition = T.splat(condition, T.lanes(a))
    return T.Select(condition, a, b)


def any_lane(condition: Any) -> Any:
    """Whether a condition holds in any lane."""
    count = T.lanes(condition)
    if count == 1:
        return condition
    if not T.is_on_device():
        return T.call_llvm_pure_intrin("bool", "llvm.vector.reduce.or", condition)
    number = T.hold(to(condition, "int32"))
    return functools.reduce(operator.or_, (T.Shuffle([number], [i]) for i in range(count))) != T.const(0, "int32")


def is_nan(value: Any) -> Any:
    """Whether a float is NaN, quiet or signalling."""
    return T.isnan(value)


def is_infinite(value: Any) -> Any:
    """Whether a float is one of the infinities."""
    return expression(T.abs(value) == like(value, math.inf))


def maximum(a: Any, b: Any) -> Any:
    """``a`` if it is greater or NaN, otherwise ``b``: a NaN in either is kept, and of two zeros the result is ``b``."""
    return _extreme("greater", a, b)


def minimum(a: Any, b: Any) -> Any:
    """``a`` if it is less or NaN, otherwise ``b``: a NaN in either is kept, and of two zeros the result is ``b``."""
    return _extreme("less", a, b)


def _extreme(step: str, a: Any, b: Any) -> Any:
    dtype, lanes = scalar_type(a), T.lanes(a)
    if lanes > 1 and dtype in ("float32", "float64") and T.has_instructions("x86"):
        own = T.call_imported(T.type_of(a), extremes.name(step, dtype, lanes), extremes.source(step, dtype, lanes), a, b)
        return T.Select(is_nan(a), a, own)
    return T.Select(or_nan(a > b if step == "greater" else a < b, a), a, b)


def or_nan(condition: Any, value: Any) -> Any:
    """Whether the condition holds, or the value is NaN."""
    return condition | is_nan(value) if is_float(value) else condition


# -- Floats -------------------------------------------------------------------------------------------------------


def rounded(product: Any) -> Any:
    """A product after its own rounding, to which something is added: LLVM would contract both. Integers stay as they are."""
    return T.rounded(product) if is_float(product) else product


def fused(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` with one rounding, of float32 or float64, neither next to the largest nor below the normal numbers.

    A processor without such an instruction takes 40 others (``fused.py``), and so does Vulkan, which does not promise a right one.
    """
    if T.is_on_device():
        return T.fma(a, b, c)
    if fuses():
        return T.call_llvm_pure_intrin(T.type_of(a), "llvm.fma", a, b, c)
    kind = scalar_type(a), T.lanes(a)
    return T.call_imported(T.type_of(a), fused_in_steps.name(*kind), fused_in_steps.source(*kind), a, b, c)


def fuses() -> bool:
    """Whether the kernel that is written now is for a processor whose vectors have ``fused`` as an instruction."""
    return not T.is_on_device() and (T.has_instructions("fma") or not T.has_instructions("x86"))  # every other processor has it


def by_instruction(step: str, *values: Any) -> Any:
    """A step of ``scaling.py``; ``None`` where there is no such instruction, or for a scalar."""
    dtype, many = scalar_type(values[0]), T.lanes(values[0])
    if many % scaling.lanes_of(dtype) or not T.has_instructions("avx512dq"):
        return None
    kind = step, dtype, many
    return T.call_imported(T.type_of(values[0]), scaling.name(*kind), scaling.source(*kind), *values)


def looked_up(index: Any, columns: Sequence[tuple[float, ...]]) -> list[Any]:
    """The elements of tables of eight float32 for each lane of an index of UINT32.

    The index's lowest three bits count, and the fourth is 0. The CPU has each table in a register; a device has no registers with
    lanes.
    """
    if T.is_on_device():
        return T.looked_up(columns, T.hold(index & like(index, tables.SIZE - 1)))
    many = T.lanes(index)
    registers = (register for register, feature in ((16, "avx512f"), (8, "avx2")) if T.has_instructions(feature))
    kind = many, next((register for register in registers if many % register == 0), 0)
    dtype = f"float32x{many}" if many > 1 else "float32"
    return [T.call_imported(dtype, tables.name(table, *kind), tables.source(table, *kind), index) for table in columns]


def round_even(value: Any) -> Any:
    """A float32 or float64 rounded to an integral value, halves to even, whatever the calling thread's rounding mode is."""
    if T.is_on_device():
        return T.nearbyint(value)
    return T.call_llvm_pure_intrin(T.type_of(value), "llvm.roundeven", value)


def absolute(value: Any) -> Any:
    """The absolute value, without the sign of a zero or a NaN; the least integer stays as it is."""
    if scalar_type(value) == "float16":  # LLVM would take a vector apart, or convert it
        bits = reinterpret(value, "uint16")
        return reinterpret(bits & like(bits, 0x7FFF), "float16")
    if is_float(value):
        return T.abs(value)
    return value if scalar_type(value).startswith("uint") else select(value < like(value, 0), negative(value), value)


def negative(value: Any) -> Any:
    """The value with the other sign, zeros and NaN included; the least integer stays as it is."""
    if scalar_type(value) == "float16":
        bits = reinterpret(value, "uint16")
        return reinterpret(bits ^ like(bits, 0x8000), "float16")
    return value * like(value, -1) if not scalar_type(value).startswith("uint") else ~value + like(value, 1)


def with_sign_of(value: Any, sign: Any) -> Any:
    """The value with the sign of another float, zeros included."""
    own, width = scalar_type(value), bits_of(value)
    bits, other = (reinterpret(one, f"uint{width}") for one in (value, sign))
    mask = like(bits, 1 << (width - 1))
    return reinterpret((bits & ~mask) | (other & mask), own)


# -- Integers -----------------------------------------------------------------------------------------------------


def wrapped(value: Any) -> Any:
    """The result of arithmetic on integers that may have overflowed, before it is compared or divided.

    TVM and LLVM assume that integers of 32 and 64 bits do not overflow, and so that ``x * 2 < 0`` means ``x < 0``. This hides from
    them how the value was computed. It costs no instruction in vectors.
    """
    own = scalar_type(value)
    if is_float(value) or bits_of(value) < 32:
        return value
    if T.is_on_device():
        return reinterpret(reinterpret(value, own.removeprefix("u") if own.startswith("u") else f"u{own}"), own)
    return reinterpret(T.rounded(reinterpret(value, f"float{bits_of(value)}")), own)


def settled(value: Any) -> Any:
    """An operator's result, before another operator computes with it: neither a product's rounding nor an overflow is lost."""
    return T.rounded(value) if scalar_type(value) in ("float32", "float64") else wrapped(value)


def quotient(a: Any, b: Any) -> Any:
    """The quotient of two integers toward zero: 0 for a divisor of 0, and the least integer divided by -1 is itself."""
    zero = b == like(b, 0)
    if scalar_type(a).startswith("uint"):
        return select(zero, 0, _divided(a, select(zero, 1, b)))
    minus = b == like(b, -1)
    return select(zero, 0, select(minus, negative(a), _divided(a, select(zero | minus, 1, b))))


def _divided(a: Any, b: Any) -> Any:
    """For a divisor that is neither 0 nor -1."""
    width, own = bits_of(a), scalar_type(a)
    if T.is_on_device() or T.lanes(a) == 1 or width == 64:
        return T.truncdiv(a, b)
    # Processors divide vectors of floats only. The quotient is too far from the next integer to be rounded to it.
    through, middle = ("float64", "int64" if own == "uint32" else "int32") if width == 32 else ("float32", "int32")
    return cast(cast(T.trunc(cast(a, through) / cast(b, through)), middle), own)


def remainder(a: Any, b: Any) -> Any:
    """What the quotient toward zero leaves of ``a``, exactly, with the sign of ``a``; of an integer and a divisor of 0 it is 0."""
    if is_float(a):
        return _float_remainder(a, b)
    none = b == like(b, 0)
    if not scalar_type(a).startswith("uint"):
        none = none | (b == like(b, -1))
    divisor = select(none, 1, b)
    return select(none, 0, a - divisor * _divided(a, divisor))


def _float_remainder(a: Any, b: Any) -> Any:
    """C's fmod. Vectors of processors have no instruction for it: what a whole quotient leaves is exact with one rounding.

    A quotient is rounded up to the next integer at most, so that one correction is enough. Lanes with a quotient too large to be
    whole, and those without one, are left to C, one by one.
    """
    if T.lanes(a) == 1 or bits_of(a) < 32 or not fuses():
        return T.truncmod(a, b)
    x, y = T.hold(absolute(a)), T.hold(absolute(b))
    whole = T.hold(T.trunc(x / y))
    rest = T.hold(fused(negative(whole), y, x))
    rest = T.hold(select(rest < like(rest, 0), rest + y, rest))
    near = (whole < like(whole, 2.0 ** (22 if bits_of(a) == 32 else 51))) & (y < like(y, math.inf))
    found = Cell(with_sign_of(rest, a))
    with seldom(any_lane(~near)):
        found.set(T.truncmod(a, b))
    return found.value


def floor_remainder(a: Any, b: Any) -> Any:
    """What the quotient rounded down leaves of ``a``, with the sign of ``b``; of an integer and a divisor of 0 it is 0.

    Of floats it is the sum of ``remainder`` and ``b``, rounded, where the signs differ.
    """
    rest = remainder(a, b)
    if is_float(a):
        rest = T.hold(rest)
        zero = like(rest, 0)
        below = select(rest < zero, b > zero, (rest > zero) & (b < zero))
        return select(rest == zero, with_sign_of(rest, b), select(below, rest + b, rest))
    if scalar_type(a).startswith("uint"):
        return rest
    differ = (rest ^ b) < like(b, 0)
    return select(differ & (rest != like(rest, 0)), rest + b, rest)


def mean(a: Any, b: Any) -> Any:
    """Half of the sum of two integers, toward zero; the sum does not overflow."""
    odd = a ^ b
    down = wrapped((a & b) + (odd >> like(a, 1)))  # the half rounded down
    return down if scalar_type(a).startswith("uint") else down + select(down < like(down, 0), odd & like(a, 1), 0)


def power(x: Any, exponent: Any) -> Any:
    """An integer to the power of an integer of any type or of a Python integer, modulo 2 to the width of ``x``.

    Of a negative exponent it is the true value cut toward zero: 0 unless ``x`` is 1 or -1, and 0 for 0.
    """
    bits, own = bits_of(x), scalar_type(x)
    unit = x == like(x, 1) if own.startswith("uint") else (x == like(x, 1)) | (x == like(x, -1))
    if isinstance(exponent, int):
        if exponent < 0:
            return select(unit, x if exponent % 2 else like(x, 1), 0)
        return reinterpret(_constant_power(cast(x, f"uint{bits}"), _same_power(exponent, bits)), own)
    is_signed = not scalar_type(exponent).startswith("uint")
    lost = None
    if is_signed:
        below = exponent < like(exponent, 0)
        lost, exponent = below & ~unit, select(below, exponent & like(exponent, 1), exponent)
    if bits_of(exponent) - is_signed > bits:
        far = exponent >= like(exponent, bits)
        near = ((exponent - like(exponent, bits)) & like(exponent, (1 << (bits - 2)) - 1)) + like(exponent, bits)
        exponent = select(far, near, exponent)
    first, count = (cast(one, f"uint{bits}") for one in (x, exponent))
    found, base, rest = (T.Variable(T.type_of(first), one) for one in (like(first, 1), first, count))

    def more() -> Any:
        return to(any_lane(expression(rest.value != like(rest.value, 0))), "int32")

    again = T.Variable("int32", more())
    with T.loop_while(again.value != T.const(0, "int32")):
        odd = (rest.value & like(rest.value, 1)) != like(rest.value, 0)
        found.set(select(odd, found.value * base.value, found.value))
        base.set(base.value * base.value)
        rest.set(rest.value >> like(rest.value, 1))
        again.set(more())
    result = reinterpret(found.value, own)
    return result if lost is None else select(lost, 0, result)


def _constant_power(x: Any, exponent: int) -> Any:
    found = None
    while exponent:
        if exponent % 2:
            found = x if found is None else T.hold(found * x)
        exponent //= 2
        x = T.hold(x * x) if exponent else x
    return like(x, 1) if found is None else found


def _same_power(exponent: int, bits: int) -> int:
    """A small exponent with the same powers: an odd number's repeat, and those of an even one are 0 from there on."""
    return exponent if exponent < bits else (exponent - bits) % (1 << (bits - 2)) + bits


def greater(value: Any, number: int) -> Any:
    """Whether an integer is greater than a number, which need not be in its type's range."""
    limits = np.iinfo(scalar_type(value))
    return value >= like(value, limits.min) if number < limits.min else value > like(value, number)


def less(value: Any, number: int) -> Any:
    """Whether an integer is less than a number, which need not be in its type's range."""
    limits = np.iinfo(scalar_type(value))
    return value <= like(value, limits.max) if number > limits.max else value < like(value, number)


def shift_left(a: Any, count: Any) -> Any:
    """The bits of an unsigned integer moved up; 0 if the count is not less than the width."""
    fits, some = _shifted_by(a, count)
    return select(fits, a << some, 0)


def shift_right(a: Any, count: Any) -> Any:
    """The bits of an unsigned integer moved down; 0 if the count is not less than the width."""
    fits, some = _shifted_by(a, count)
    return select(fits, a >> some, 0)


def _shifted_by(a: Any, count: Any) -> tuple[Any, Any]:
    width = bits_of(a)
    return count < like(count, width), count & like(count, width - 1)


def bit_count(value: Any) -> Any:
    """The number of set bits of an unsigned integer, as a value of its type."""
    return T.popcount(value)


# -- 4-bit elements -----------------------------------------------------------------------------------------------


def load(tensor: Any, buffer: Any, offset: Any) -> Any:
    """The element of a tensor at an offset in elements; a 4-bit one as INT8 or UINT8.

    Args:
        tensor: the ``TensorDesc``, or its class of shapes.
        buffer: its buffer; that of a 4-bit tensor has bytes, each with two elements.
        offset: the offset, counted as by strides.
    """
    if not tensor.data_type.is_nibble:
        return buffer[offset]
    place, shift = _nibble(offset)
    nibble = (T.cast(buffer[place], "int32") >> shift) & T.const(15, "int32")
    if tensor.data_type.is_signed:
        return T.cast((nibble ^ T.const(8, "int32")) - T.const(8, "int32"), "int8")
    return T.cast(nibble, "uint8")


def store_each(each: T.Each, tensor: Any, buffer: Any, value: Callable[[list[Any]], Any]) -> None:
    """Compute and store every element of an output, in any order, in parallel.

    Two 4-bit elements share a byte, so an item is then a byte and not an element: no two threads write to the same one.

    Args:
        each: the target's way to run independent items.
        tensor: the output; a 4-bit one needs sizes and strides that are Python integers.
        buffer: its buffer.
        value: returns the element at some coordinates, in the tensor's type; for a 4-bit tensor an integer that lies in its range.
    """
    if not tensor.data_type.is_nibble:
        with T.elements(each, tensor.sizes) as at:
            T.store(buffer, T.dot(at, tensor.layout), value(at))
        return
    layout = zip(tensor.layout, tensor.sizes, range(tensor.rank), strict=True)
    steps = sorted(dimension for dimension in layout if dimension[1] > 1)
    reaches = [sum((size - 1) * step for step, size, _ in steps[:i]) for i in range(len(steps))]
    if all(step > reach for (step, _, _), reach in zip(steps, reaches, strict=True)):
        with each((tensor.span + 1) // 2) as item:
            _store_byte(T.let(item), tensor, buffer, value, [*reversed(steps)])
        return
    with each(1) as first, T.loop(first * 0 + T.index(tensor.element_count)) as element:  # dimensions are interleaved: one by one
        at = T.unravel(element, tensor.sizes)
        place, shift = _nibble(T.let(T.dot(at, tensor.layout)))
        T.store(buffer, place, T.cast(_put(T.cast(buffer[place], "int32"), value(at), shift), "uint8"))


def _store_byte(place: Any, tensor: Any, buffer: Any, value: Callable[[list[Any]], Any], steps: list[tuple[int, int, int]]) -> None:
    """Store the elements of a byte. ``steps`` are stride, size and axis of the dimensions, the largest stride first.

    If there are gaps between the elements, a byte without an element is not written to, and bits of no element keep their values:
    a device then also has the contents that the caller's memory had.
    """
    is_dense = tensor.span == tensor.element_count
    byte = T.Variable("int32", T.const(0, "int32") if is_dense else T.cast(buffer[place], "int32"))
    used = T.Variable("int32", T.const(int(is_dense), "int32"))
    with T.loop(T.index(2)) as half:
        rest = T.let(place * 2 + half)
        at = [T.index(0)] * tensor.rank
        inside: Any = T.const(True, "bool")
        for step, size, axis in steps:
            at[axis] = T.hold(T.truncdiv(rest, T.index(step)))
            inside = inside & (at[axis] < T.index(size))
            rest = T.let(rest - at[axis] * T.index(step))
        with T.when(inside & (rest == T.index(0))):
            byte.set(_put(byte.value, value(at), T.cast(half, "int32") * T.const(4, "int32")))
            used.set(T.const(1, "int32"))
    with T.when(used.value != T.const(0, "int32")):
        T.store(buffer, place, T.cast(byte.value, "uint8"))


def _nibble(offset: Any) -> tuple[Any, Any]:
    """The byte of a 4-bit element, and the number of bits below it there."""
    one = T.const(1, T.type_of(offset))
    return offset >> one, T.cast(offset & one, "int32") * T.const(4, "int32")


def _put(byte: Any, value: Any, shift: Any) -> Any:
    """A byte with a 4-bit element in it, ``shift`` bits from the bottom."""
    low = T.const(15, "int32")
    return (byte & (low << (T.const(4, "int32") - shift))) | ((T.cast(value, "int32") & low) << shift)
