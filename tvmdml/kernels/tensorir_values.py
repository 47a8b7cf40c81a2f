"""Words for expressions that are written once, for scalars and vectors alike, and give the same bits on every target.

Use it as ``from tvmdml.kernels import tensorir_values as T``; it has all names of ``tensorir_types`` and ``tensorir``, too. The
steps are exact: no sum is contracted with a product (``rounded``), conversions saturate, no division traps, and constants are safe
from TVM's simplifier.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvmdml.kernels import fused as fused_in_steps
from tvmdml.kernels import scaling, tables
from tvmdml.kernels import tensorir_types as T
from tvmdml.kernels.seldom import seldom


def __getattr__(name: str) -> Any:
    return getattr(T, name)


# -- Floats -------------------------------------------------------------------------------------------------------


def rounded(product: Any) -> Any:
    """A product after its own rounding, to which something is added: LLVM would contract both. Integers stay as they are."""
    return T.rounded(product) if T.is_float(product) else product


def fused(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` with one rounding, of float32 or float64, neither next to the largest nor below the normal numbers.

    A processor without such an instruction takes 40 others (``fused.py``), and so does Vulkan, which does not promise a right one.
    """
    if T.is_on_device():
        return T.fma(a, b, c)
    if fuses():
        return T.call_llvm_pure_intrin(T.type_of(a), "llvm.fma", a, b, c)
    kind = T.scalar_type(a), T.lanes(a)
    return T.call_imported(T.type_of(a), fused_in_steps.name(*kind), fused_in_steps.source(*kind), a, b, c)


def fuses() -> bool:
    """Whether the kernel that is written now is for a processor whose vectors have ``fused`` as an instruction."""
    return not T.is_on_device() and (T.has_instructions("fma") or not T.has_instructions("x86"))  # every other processor has it


def has_steps(value: Any) -> bool:
    """Whether there are instructions for the steps of ``scaling.py`` on a value."""
    return not T.lanes(value) % scaling.lanes_of(T.scalar_type(value)) and T.has_instructions("avx512dq")


def by_instruction(step: str, *values: Any) -> Any:
    """A step of ``scaling.py``; ``None`` where there is no such instruction, or for a scalar."""
    if not has_steps(values[0]):
        return None
    kind = step, T.scalar_type(values[0]), T.lanes(values[0])
    return T.call_imported(T.type_of(values[0]), scaling.name(*kind), scaling.source(*kind), *values)


def looked_up(index: Any, columns: Sequence[tuple[float, ...]]) -> list[Any]:
    """The elements of tables of eight float32 for each lane of an index of UINT32.

    The index's lowest three bits count, and the fourth is 0. The CPU has each table in a register; a device has no registers with
    lanes. On the CPU tables may have 16 elements: then the lowest four bits count.
    """
    if T.is_on_device():
        return T.looked_up(columns, T.hold(index & T.like(index, tables.SIZE - 1)))
    many = T.lanes(index)
    registers = (register for register, feature in ((16, "avx512f"), (8, "avx2")) if T.has_instructions(feature))
    kind = many, next((register for register in registers if many % register == 0 and register >= len(columns[0])), 0)
    dtype = f"float32x{many}" if many > 1 else "float32"
    return [T.call_imported(dtype, tables.name(table, *kind), tables.source(table, *kind), index) for table in columns]


def round_even(value: Any) -> Any:
    """A float32 or float64 rounded to an integral value, halves to even, whatever the calling thread's rounding mode is."""
    if T.is_on_device():
        return T.nearbyint(value)
    return T.call_llvm_pure_intrin(T.type_of(value), "llvm.roundeven", value)


def absolute(value: Any) -> Any:
    """The absolute value, without the sign of a zero or a NaN; the least integer stays as it is."""
    if T.scalar_type(value) == "float16":  # LLVM would take a vector apart, or convert it
        bits = T.reinterpret(value, "uint16")
        return T.reinterpret(bits & T.like(bits, 0x7FFF), "float16")
    if T.is_float(value):
        return T.abs(value)
    return value if T.scalar_type(value).startswith("uint") else T.select(value < T.like(value, 0), negative(value), value)


def negative(value: Any) -> Any:
    """The value with the other sign, zeros and NaN included; the least integer stays as it is."""
    if T.scalar_type(value) == "float16":
        bits = T.reinterpret(value, "uint16")
        return T.reinterpret(bits ^ T.like(bits, 0x8000), "float16")
    return value * T.like(value, -1) if not T.scalar_type(value).startswith("uint") else ~value + T.like(value, 1)


def with_sign_of(value: Any, sign: Any) -> Any:
    """The value with the sign of another float, zeros included."""
    own, width = T.scalar_type(value), T.bits_of(value)
    bits, other = (T.reinterpret(one, f"uint{width}") for one in (value, sign))
    mask = T.like(bits, 1 << (width - 1))
    return T.reinterpret((bits & ~mask) | (other & mask), own)


# -- Integers -----------------------------------------------------------------------------------------------------


def wrapped(value: Any) -> Any:
    """The result of arithmetic on integers that may have overflowed, before it is compared or divided.

    TVM and LLVM assume that integers of 32 and 64 bits do not overflow, and so that ``x * 2 < 0`` means ``x < 0``. This hides from
    them how the value was computed. It costs no instruction in vectors.
    """
    own = T.scalar_type(value)
    if T.is_float(value) or T.bits_of(value) < 32:
        return value
    if T.is_on_device():
        return T.reinterpret(T.reinterpret(value, own.removeprefix("u") if own.startswith("u") else f"u{own}"), own)
    return T.reinterpret(T.rounded(T.reinterpret(value, f"float{T.bits_of(value)}")), own)


def hidden(value: Any, number: int | float) -> Any:
    """``like`` an integer, for arithmetic that may overflow: LLVM assumes that it does not, and concludes from constants."""
    found = T.like(value, number)
    if T.is_float(value) or T.bits_of(value) < 32 or T.is_on_device() or T.saturated(number, T.scalar_type(value)) == 0:
        return found
    # 0. Of a fenced constant, which a value is in an unrolled loop, LLVM knows the class as a float, and so the first bit
    return found ^ ((value ^ wrapped(value)) << T.like(value, 1))


def settled(value: Any) -> Any:
    """An operator's result, before another operator computes with it: neither a product's rounding nor an overflow is lost."""
    if T.scalar_type(value) == "float16":  # vectors are computed in float32 (``wide``), and scalars where no instruction does
        native = T.lanes(value) == 1 and any(map(T.has_instructions, ("avx512fp16", "fullfp16")))
        return T.rounded(value) if native else value
    return T.rounded(value) if T.is_float(value) else wrapped(value)


def quotient(a: Any, b: Any) -> Any:
    """The quotient of two integers toward zero: 0 for a divisor of 0, and the least integer divided by -1 is itself."""
    zero = b == T.like(b, 0)
    if T.scalar_type(a).startswith("uint"):
        return T.select(zero, 0, _divided(a, T.select(zero, 1, b)))
    minus = b == T.like(b, -1)
    return T.select(zero, 0, T.select(minus, negative(a), _divided(a, T.select(zero | minus, 1, b))))


def _divided(a: Any, b: Any) -> Any:
    """For a divisor that is neither 0 nor -1."""
    width, own = T.bits_of(a), T.scalar_type(a)
    if T.is_on_device() or T.lanes(a) == 1 or width == 64:
        return T.truncdiv(a, b)
    # Processors divide vectors of floats only. The quotient is too far from the next integer to be rounded to it.
    through, middle = ("float64", "int64" if own == "uint32" else "int32") if width == 32 else ("float32", "int32")
    return T.cast(T.cast(T.trunc(T.cast(a, through) / T.cast(b, through)), middle), own)


def remainder(a: Any, b: Any) -> Any:
    """What the quotient toward zero leaves of ``a``, exactly, with the sign of ``a``; of an integer and a divisor of 0 it is 0."""
    if T.is_float(a):
        return _float_remainder(a, b)
    none = b == T.like(b, 0)
    if not T.scalar_type(a).startswith("uint"):
        none = none | (b == T.like(b, -1))
    divisor = T.select(none, 1, b)
    return T.hold(T.select(none, 0, a - divisor * _divided(a, divisor)))


def _float_remainder(a: Any, b: Any) -> Any:
    """C's fmod. Vectors of processors have no instruction for it: what a whole quotient leaves is exact with one rounding.

    A quotient is rounded up to the next integer at most, so that one correction is enough. Lanes with a quotient too large to be
    whole, and those without one, are left to C, one by one.
    """
    if T.lanes(a) == 1 or T.bits_of(a) < 32 or not fuses():
        return T.truncmod(a, b)
    x, y = T.hold(absolute(a)), T.hold(absolute(b))
    whole = T.hold(T.trunc(x / y))
    rest = T.hold(fused(negative(whole), y, x))
    rest = T.hold(T.select(rest < T.like(rest, 0), rest + y, rest))
    near = (whole < T.like(whole, 2.0 ** (22 if T.bits_of(a) == 32 else 51))) & (y < T.like(y, math.inf))
    found = T.Cell(with_sign_of(rest, a))
    with seldom(T.any_lane(~near)):
        found.set(T.truncmod(a, b))
    return found.value


def floor_remainder(a: Any, b: Any) -> Any:
    """What the quotient rounded down leaves of ``a``, with the sign of ``b``; of an integer and a divisor of 0 it is 0.

    Of floats it is the sum of ``remainder`` and ``b``, rounded, where the signs differ.
    """
    rest = remainder(a, b)
    if T.is_float(a):
        rest = T.hold(rest)
        zero = T.like(rest, 0)
        below = T.select(rest < zero, b > zero, (rest > zero) & (b < zero))
        return T.select(rest == zero, with_sign_of(rest, b), T.select(below, rest + b, rest))
    if T.scalar_type(a).startswith("uint"):
        return rest
    differ = (rest ^ b) < T.like(b, 0)
    return T.select(differ & (rest != T.like(rest, 0)), rest + b, rest)


def mean(a: Any, b: Any) -> Any:
    """Half of the sum of two integers, toward zero; the sum does not overflow."""
    odd = a ^ b
    down = wrapped((a & b) + (odd >> T.like(a, 1)))  # the half rounded down
    return down if T.scalar_type(a).startswith("uint") else down + T.select(down < T.like(down, 0), odd & T.like(a, 1), 0)


def power(x: Any, exponent: Any) -> Any:
    """An integer to the power of an integer of any type or of a Python integer, modulo 2 to the width of ``x``.

    Of a negative exponent it is the true value cut toward zero: 0 unless ``x`` is 1 or -1, and 0 for 0.
    """
    bits, own = T.bits_of(x), T.scalar_type(x)
    unit = x == T.like(x, 1) if own.startswith("uint") else (x == T.like(x, 1)) | (x == T.like(x, -1))
    if isinstance(exponent, int):
        if exponent < 0:
            return T.select(unit, x if exponent % 2 else T.like(x, 1), 0)
        return T.reinterpret(_constant_power(T.cast(x, f"uint{bits}"), _same_power(exponent, bits)), own)
    is_signed = not T.scalar_type(exponent).startswith("uint")
    lost = None
    if is_signed:
        below = exponent < T.like(exponent, 0)
        lost, exponent = below & ~unit, T.select(below, exponent & T.like(exponent, 1), exponent)
    if T.bits_of(exponent) - is_signed > bits:
        far = exponent >= T.like(exponent, bits)
        near = ((exponent - T.like(exponent, bits)) & T.like(exponent, (1 << (bits - 2)) - 1)) + T.like(exponent, bits)
        exponent = T.select(far, near, exponent)
    first, count = (T.cast(one, f"uint{bits}") for one in (x, exponent))
    found, base, rest = (T.Variable(T.type_of(first), one) for one in (T.like(first, 1), first, count))

    def more() -> Any:
        return T.to(T.any_lane(T.expression(rest.value != T.like(rest.value, 0))), "int32")

    again = T.Variable("int32", more())
    with T.loop_while(again.value != T.const(0, "int32")):
        odd = (rest.value & T.like(rest.value, 1)) != T.like(rest.value, 0)
        found.set(T.select(odd, found.value * base.value, found.value))
        base.set(base.value * base.value)
        rest.set(rest.value >> T.like(rest.value, 1))
        again.set(more())
    result = T.reinterpret(found.value, own)
    return result if lost is None else T.select(lost, 0, result)


def _constant_power(x: Any, exponent: int) -> Any:
    found = None
    while exponent:
        if exponent % 2:
            found = x if found is None else T.hold(found * x)
        exponent //= 2
        x = T.hold(x * x) if exponent else x
    return T.like(x, 1) if found is None else found


def _same_power(exponent: int, bits: int) -> int:
    """A small exponent with the same powers: an odd number's repeat, and those of an even one are 0 from there on."""
    return exponent if exponent < bits else (exponent - bits) % (1 << (bits - 2)) + bits


def greater(value: Any, number: int) -> Any:
    """Whether an integer is greater than a number, which need not be in its type's range."""
    limits = np.iinfo(T.scalar_type(value))
    return value >= T.like(value, limits.min) if number < limits.min else value > T.like(value, number)


def less(value: Any, number: int) -> Any:
    """Whether an integer is less than a number, which need not be in its type's range."""
    limits = np.iinfo(T.scalar_type(value))
    return value <= T.like(value, limits.max) if number > limits.max else value < T.like(value, number)


def shift_left(a: Any, count: Any) -> Any:
    """The bits of an unsigned integer moved up; 0 if the count is not less than the width."""
    fits, some = _shifted_by(a, count)
    return T.select(fits, a << some, 0)


def shift_right(a: Any, count: Any) -> Any:
    """The bits of an unsigned integer moved down; 0 if the count is not less than the width."""
    fits, some = _shifted_by(a, count)
    return T.select(fits, a >> some, 0)


def _shifted_by(a: Any, count: Any) -> tuple[Any, Any]:
    width = T.bits_of(a)
    return count < T.like(count, width), count & T.like(count, width - 1)


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
