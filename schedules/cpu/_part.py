"""Some neighbouring lanes of a vector from or to memory: nothing is read or written beside them."""

from __future__ import annotations

import functools
from typing import Any

from tvmdml.kernels import tensorir_values as T

_TYPES = {
    "float16": ("half", "f16"), "float32": ("float", "f32"), "float64": ("double", "f64"),
    **{f"{sign}int{bits}": (f"i{bits}", f"i{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip


@functools.cache
def _source(dtype: str, lanes: int) -> str:
    """Both functions. The mask has the lanes from ``first`` on that are before ``end``."""
    own, short = _TYPES[dtype]
    order = ", ".join(f"i32 {i}" for i in range(lanes))
    x, i, m = f"<{lanes} x {own}>", f"<{lanes} x i32>", f"<{lanes} x i1>"
    kind, name = f"v{lanes}{short}.p0", f"{dtype}x{lanes}"
    # LLVM stores a single lane, known to it, of integers that were just narrowed with the width that they had before.
    hide = 'call i32 asm "", "=r,0"(i32 %end)' if own.startswith("i") else "add i32 %end, 0"
    mask = f"""  %last = {hide}
  %f0 = insertelement {i} poison, i32 %first, i32 0
  %f = shufflevector {i} %f0, {i} poison, {i} zeroinitializer
  %e0 = insertelement {i} poison, i32 %last, i32 0
  %e = shufflevector {i} %e0, {i} poison, {i} zeroinitializer
  %a = icmp sle {i} %f, <{order}>
  %b = icmp sgt {i} %e, <{order}>
  %m = and {m} %a, %b
"""

    def twice(first: int, other: int | None = None) -> str:
        """Half of the lanes, each followed by itself or by another one."""
        pairs = ((one, one if other is None else other) for one in range(first, first + lanes // 2))
        return ", ".join(f"i32 {one}" for pair in pairs for one in pair)

    align = {"half": 2, "float": 4, "double": 8, "i8": 1, "i16": 2, "i32": 4, "i64": 8}[own]
    return f"""
declare {x} @llvm.masked.load.{kind}(ptr, i32, {m}, {x})
declare void @llvm.masked.store.{kind}({x}, ptr, i32, {m})
define {x} @tvmdml_load_part_{name}(ptr %p, i32 %first, i32 %end, {x} %other) alwaysinline {{
{mask}  %r = call {x} @llvm.masked.load.{kind}(ptr %p, i32 {align}, {m} %m, {x} %other)
  ret {x} %r
}}
define void @tvmdml_store_part_{name}(ptr %p, i32 %first, i32 %end, {x} %x) alwaysinline {{
{mask}  call void @llvm.masked.store.{kind}({x} %x, ptr %p, i32 {align}, {m} %m)
  ret void
}}
define void @tvmdml_store_part_{name}_by_2(ptr %p, i32 %first, i32 %end, {x} %x) alwaysinline {{
{mask}  %x0 = shufflevector {x} %x, {x} poison, {i} <{twice(0)}>
  %x1 = shufflevector {x} %x, {x} poison, {i} <{twice(lanes // 2)}>
  %m0 = shufflevector {m} %m, {m} zeroinitializer, {i} <{twice(0, lanes)}>
  %m1 = shufflevector {m} %m, {m} zeroinitializer, {i} <{twice(lanes // 2, lanes)}>
  %q = getelementptr {x}, ptr %p, i64 1
  call void @llvm.masked.store.{kind}({x} %x0, ptr %p, i32 {align}, {m} %m0)
  call void @llvm.masked.store.{kind}({x} %x1, ptr %q, i32 {align}, {m} %m1)
  ret void
}}
"""


def load_part(buffer: Any, at: Any, first: Any, end: Any, other: Any) -> Any:
    """The lanes from ``first`` on before ``end``; the others are those of another vector."""
    lanes = T.lanes(other)
    pointer = T.address_of(buffer[at])
    name = f"{buffer.dtype}x{lanes}"
    return T.call_imported(name, f"tvmdml_load_part_{name}", _source(str(buffer.dtype), lanes), pointer, first, end, other)


def store_part(buffer: Any, at: Any, first: Any, end: Any, value: Any, by: int = 1) -> None:
    """Store these lanes, next to each other or every second one (``by``); the memory of others stays as it is."""
    lanes = T.lanes(value)
    name = f"{buffer.dtype}x{lanes}"
    pointer = T.address_of(buffer[at])
    T.do_imported(
        f"tvmdml_store_part_{name}{'_by_2' if by == 2 else ''}", _source(str(buffer.dtype), lanes), pointer, first, end, value
    )
