"""Matrix tiles of x86 processors (AMX) in kernels: registers of 16 rows of 64 bytes, and instructions that multiply them.

A block of ``rows`` by ``columns`` tiles has sums of int32. A step adds the products of as many tiles of bytes. A thread configures
tiles before, and releases them afterwards: until then its context has 8 KiB more.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir_values as T

SIDE = 16
"""Rows of a tile, and its columns of int32."""
_LINE = 64
_TILE_REGISTERS = 8
_KINDS = {(False, False): "uud", (False, True): "usd", (True, False): "sud", (True, True): "ssd"}
"""The instruction's name by which side's bytes are signed."""


class Block(NamedTuple):
    """Sums in tiles, and the bytes that are multiplied."""

    rows: int
    columns: int
    signed: tuple[bool, bool]

    # -- In a kernel

    def configure(self, rows: Any) -> None:
        """Configure tiles, whose first factor has 1 to 16 rows."""
        self._do("tvmdml_tiles_configure", rows)

    def release(self) -> None:
        """Give the tiles back."""
        self._do("tvmdml_tiles_release")

    def clear(self) -> None:
        """Set the sums to 0."""
        self._do("tvmdml_tiles_clear")

    def load(self, buffer: Any, at: Any) -> None:
        """Read the sums: a row of them after the other."""
        self._do("tvmdml_tiles_load", T.address_of(buffer[at]))

    def store(self, buffer: Any, at: Any) -> None:
        """Write the sums."""
        self._do("tvmdml_tiles_store", T.address_of(buffer[at]))

    def step(self, a: Any, b: Any) -> None:
        """Add products.

        Args:
            a: the address of ``rows`` tiles after one another.
            b: that of rows with ``columns`` tiles beside each other; four neighbouring bytes belong to one column.
        """
        self._do("tvmdml_tiles_step", a, b)

    def ask(self, b: Any) -> None:
        """Ask for the bytes of the second factor that a later step reads; they may be outside of its memory."""
        self._do("tvmdml_tiles_ask", b)

    def _do(self, name: str, *values: Any) -> None:
        T.do_imported(name, _source(self), *values)


@functools.cache
def _source(block: Block) -> str:
    """The functions, in LLVM IR. Sums have the first tile registers, then come the first factor's and the second one's."""
    rows, columns = block.rows, block.columns
    sums = rows * columns
    b_registers = _TILE_REGISTERS - sums - rows
    dot = f"llvm.x86.tdpb{_KINDS[block.signed]}"

    def address(name: str, base: str, offset: int) -> str:
        return f"  %{name} = getelementptr i8, ptr %{base}, i64 {offset}\n"

    clear = "".join(f"  call void @llvm.x86.tilezero(i8 {i})\n" for i in range(sums))
    places = [(i * columns + j, i * SIDE * columns * _LINE + j * _LINE) for i in range(rows) for j in range(columns)]
    load, store = (
        "".join(
            address(f"p{i}", "p", offset) + f"  call void @llvm.x86.tile{one}64(i8 {i}, ptr %p{i}, i64 {columns * _LINE})\n"
            for i, offset in places
        )
        for one in ("loadd", "stored")
    )
    step = ""
    for j in range(columns):
        b = sums + rows + j % b_registers
        step += address(f"b{j}", "b", j * _LINE)
        step += f"  call void @llvm.x86.tileloadd64(i8 {b}, ptr %b{j}, i64 {columns * _LINE})\n"
        for i in range(rows):
            a = sums + i
            if j == 0:
                step += address(f"a{i}", "a", i * SIDE * _LINE)
                step += f"  call void @llvm.x86.tileloadd64(i8 {a}, ptr %a{i}, i64 {_LINE})\n"
            step += f"  call void @{dot}(i8 {i * columns + j}, i8 {a}, i8 {b})\n"
    lines = range(0, columns * SIDE * _LINE, _LINE)
    ask = "".join(address(f"p{i}", "b", i) + f"  call void @llvm.prefetch.p0(ptr %p{i}, i32 0, i32 2, i32 1)\n" for i in lines)
    return f"""
@tvmdml_tiles_forms = internal constant [1024 x i8] c"{_forms(sums + rows)}", align 64
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8 immarg)
declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)
declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)
declare void @{dot}(i8 immarg, i8 immarg, i8 immarg)
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define void @tvmdml_tiles_configure(i64 %rows) alwaysinline {{
  %number = sub i64 %rows, 1
  %form = getelementptr [64 x i8], ptr @tvmdml_tiles_forms, i64 %number
  call void @llvm.x86.ldtilecfg(ptr %form)
  ret void
}}
define void @tvmdml_tiles_release() alwaysinline {{
  call void @llvm.x86.tilerelease()
  ret void
}}
define void @tvmdml_tiles_clear() alwaysinline {{
{clear}  ret void
}}
define void @tvmdml_tiles_load(ptr %p) alwaysinline {{
{load}  ret void
}}
define void @tvmdml_tiles_store(ptr %p) alwaysinline {{
{store}  ret void
}}
define void @tvmdml_tiles_step(ptr %a, ptr %b) alwaysinline {{
{step}  ret void
}}
define void @tvmdml_tiles_ask(ptr %b) alwaysinline {{
{ask}  ret void
}}
"""


def _forms(of_rows: int) -> str:
    """The configuration for each number of rows; the first tile registers have so many, the others all."""
    text = ""
    for rows in range(1, SIDE + 1):
        form = [1, *[0] * 15, *[_LINE, 0] * _TILE_REGISTERS, *[0] * 16]
        form += [rows] * of_rows + [SIDE] * (_TILE_REGISTERS - of_rows) + [0] * 8
        text += "".join(f"\\{byte:02x}" for byte in form)
    return text
