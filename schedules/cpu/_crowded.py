"""Register tiles whose sums, and what a step reads, take every register: LLVM is told the order, and what to read from memory.

Left alone, LLVM would read the next row's scalar before the last product of a row, and one vector once for all rows. For each of
these it would need one register more, and keep sums in memory. Nothing here is an instruction but a vector's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmdml.kernels import tensorir_values as T

_PLACES = """
define i64 @tvmdml_place_of(ptr %p) alwaysinline {
  %place = ptrtoint ptr %p to i64
  ret i64 %place
}
define i64 @tvmdml_once_more(i64 %place) alwaysinline {
  %same = call i64 asm "", "=r,0"(i64 %place)
  ret i64 %same
}
define <16 x float> @tvmdml_vector_at(i64 %place) alwaysinline {
  %p = inttoptr i64 %place to ptr
  %vector = load <16 x float>, ptr %p, align 4
  ret <16 x float> %vector
}
define float @tvmdml_element_at(i64 %place, i64 %offset) alwaysinline {
  %p = inttoptr i64 %place to ptr
  %at = getelementptr float, ptr %p, i64 %offset
  %element = load float, ptr %at, align 4
  ret float %element
}
"""


def place_of(buffer: Any, at: Any) -> Any:
    """Where an element is in memory."""
    return T.let(T.call_imported("int64", "tvmdml_place_of", _PLACES, T.address_of(buffer[at])))


def once_more(place: Any) -> Any:
    """The same place, as LLVM does not know."""
    return T.let(T.call_imported("int64", "tvmdml_once_more", _PLACES, place))


def vector_at(place: Any) -> Any:
    """The 16 float32 that are there."""
    return T.let(T.call_imported("float32x16", "tvmdml_vector_at", _PLACES, place))


def element_at(place: Any, offset: Any) -> Any:
    """The float32 that is so many elements behind."""
    return T.let(T.call_imported("float32", "tvmdml_element_at", _PLACES, place, T.i64(offset)))


def after(place: Any, sums: Sequence[Any]) -> Any:
    """The same integer, which LLVM knows once these sums of float32 are computed."""
    lanes = T.lanes(sums[0])
    given = "".join(f", <{lanes} x float> %s{i}" for i in range(len(sums)))
    name = f"tvmdml_after{len(sums)}_{lanes}"
    source = f"""
define i64 @{name}(i64 %place{given}) alwaysinline {{
  %same = call i64 asm "", "=r,0{",v" * len(sums)}"(i64 %place{given})
  ret i64 %same
}}
"""
    return T.let(T.call_imported("int64", name, source, place, *sums))
