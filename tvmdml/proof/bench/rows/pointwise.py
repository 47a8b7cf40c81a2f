"""The pointwise family: all work that only passes through memory, in one or several types.

Float32 at every size, the narrow types at some, inputs that are repeated or transposed, and the ways to call. Operators that are
not here have the rows of ``_every.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tvmdml.proof.bench.cases import LAUNCH, MOVES, Case, Group, K, M
from tvmdml.proof.bench.task import Kind
from tvmdml.proof.bench.work import Operand, Work

SINGLE = Group("pointwise f32")
NARROW = Group("pointwise narrow", 3.0)
"""Types of 8 and 16 bits, on either side; and comparisons, whose results are bytes."""
CALLS = Group("pointwise calls")
"""So little work that the call counts."""
REPEATED = 0.9
"""Goal for inputs that are repeated: of the speed on packed ones."""
TRANSPOSED = 0.5
"""Goal for a transposed input: within twice the time on packed ones."""
SIZES = (("64", 64), ("4K", 4 * K), ("64K", 64 * K), ("1M", M), ("16M", 16 * M))

KIND = Kind(close=True)

Make = Callable[[int], Work]


def unary(operator: str, *sizes: int, door: str = "bound", data: str = "normal", dtype: str = "float32", **attributes: Any) -> Work:
    """An operator of one input."""
    return Work.on(operator, Operand(sizes, dtype, data), door=door, **attributes)


def binary(
    operator: str,
    *sizes: int,
    other: Operand | None = None,
    in_place: bool = False,
    door: str = "bound",
    data: str = "normal",
    dtype: str = "float32",
    **attributes: Any,
) -> Work:
    """An operator of two inputs: of the same form, unless the second is given."""
    first = Operand(sizes, dtype, data)
    return Work.on(operator, first, other or first, in_place=in_place, door=door, **attributes)


def add(*sizes: int, **fields: Any) -> Work:
    """ELEMENT_WISE_ADD."""
    return binary("ELEMENT_WISE_ADD", *sizes, **fields)


def _single() -> Iterator[Case]:
    """Float32: at least as fast as the best peer from 64K elements on."""
    every: tuple[tuple[str, Make, tuple[str, ...]], ...] = (
        ("abs f32", partial(unary, "ELEMENT_WISE_ABS"), ("64K", "1M")),
        ("add f32", add, ("64", "64K", "1M", "16M")),
    )
    for row, make, quick in every:
        for point, size in SIZES:
            goal, group = (1.0, SINGLE) if size >= 64 * K else (None, CALLS)
            yield Case(row, point, make(size), goal, point in quick, group=group)
    rest: tuple[tuple[str, Make], ...] = (
        ("sqrt f32", partial(unary, "ELEMENT_WISE_SQRT", data="positive")),
        ("divide f32", partial(binary, "ELEMENT_WISE_DIVIDE", data="positive")),
        ("clip f32", partial(unary, "ELEMENT_WISE_CLIP1", min=-50.0, max=100.0)),
        ("where f32", _where),
        ("add in place f32", partial(add, in_place=True)),
    )
    for row, make in rest:
        for point, size in SIZES[3:]:
            yield Case(row, point, make(size), 1.0, size == M, group=SINGLE)


def _where(size: int) -> Work:
    values = Operand((size,))
    return Work.on("ELEMENT_WISE_IF", Operand((size,), "uint8", "50 %"), values, values)


def _quantized(operator: str, dtype: str, quantized: str, size: int) -> Work:
    """One scale and one zero point for the whole tensor: 1 and 0, with which all libraries round alike."""
    parameters = (Operand((1,), "float32", "constant"), Operand((1,), quantized, "zeros"))
    return Work.on(operator, Operand((size,), dtype), *parameters)


def _narrow() -> Iterator[Case]:
    works: list[tuple[str, Make]] = [
        ("abs f16", partial(unary, "ELEMENT_WISE_ABS", dtype="float16")),
        ("add f16", partial(add, dtype="float16")),
        ("add int8", partial(add, dtype="int8")),
        ("add int16", partial(add, dtype="int16")),
        ("greater than f32", partial(binary, "ELEMENT_WISE_LOGICAL_GREATER_THAN")),
        ("cast f32 to f16", partial(unary, "CAST", output_tensor="float16")),
        ("cast f32 to uint8", partial(unary, "CAST", data="positive", output_tensor="uint8")),
        ("cast uint8 to f32", partial(unary, "CAST", dtype="uint8", output_tensor="float32")),
    ]
    for kind in ("uint8", "int8"):
        works += [
            (f"quantize f32 to {kind}", partial(_quantized, "ELEMENT_WISE_QUANTIZE_LINEAR", "float32", kind)),
            (f"dequantize {kind} to f32", partial(_quantized, "ELEMENT_WISE_DEQUANTIZE_LINEAR", kind, kind)),
        ]
    for row, make in works:
        for point, size in SIZES[2:]:
            yield Case(row, point, make(size), quick=size == M, group=NARROW)


def _repeated(side: int = K) -> Iterator[Case]:
    packed = add(side, side)
    for point, sizes in (("row", (1, side)), ("column", (side, 1)), ("scalar", (1, 1))):
        work = add(side, side, other=Operand(sizes))
        yield Case("add f32, broadcast", point, work, REPEATED, True, baseline=packed)
    work = add(side, side, other=dataclasses.replace(packed.first, layout="transposed"))
    yield Case("strided", "add f32, one transposed", work, TRANSPOSED, True, baseline=packed)


def _doors() -> Iterator[Case]:
    """Ways to call that do more work than a bound call: for comparison, without a goal. ADD1 has the function."""
    for door in ("operator", "function"):
        quick = door == "function"
        yield Case("doors: abs f32", f"{door}, 64", unary("ELEMENT_WISE_ABS", 64, door=door), quick=quick, group=CALLS)
        yield Case("doors: add f32", f"{door}, 64", binary("ELEMENT_WISE_ADD1", 64, door=door), quick=quick, group=CALLS)


def _on_cuda() -> Iterator[Case]:
    """Small work within 1.2 launches, large work at the rate of memory."""
    works: tuple[tuple[str, Make], ...] = (
        ("abs f32", partial(unary, "ELEMENT_WISE_ABS")),
        ("add f32", add),
        ("abs f16", partial(unary, "ELEMENT_WISE_ABS", dtype="float16")),
        ("add f16", partial(add, dtype="float16")),
        ("add int8", partial(add, dtype="int8")),
        ("add in place f32", partial(add, in_place=True)),
        ("greater than f32", partial(binary, "ELEMENT_WISE_LOGICAL_GREATER_THAN")),
        ("cast f32 to f16", partial(unary, "CAST", output_tensor="float16")),
        ("where f32", _where),
    )
    for row, make in works[:2]:
        for point, size in SIZES[:3]:
            yield Case(row, point, make(size), quick=size == 64, share=LAUNCH)
    for row, make in works:
        yield Case(row, "64M", make(64 * M), quick=row in ("add f32", "add f16"), share=MOVES)


CASES = (*_single(), *_narrow(), *_repeated(), *_doors())
CASES_ON = {"cuda": (*_on_cuda(), *_repeated(8 * K), *_doors())}
