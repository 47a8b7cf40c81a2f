"""Matrix tiles of x86 processors (AMX) in kernels: registers of 16 rows of 64 bytes, and instructions that multiply them.

A block of ``rows`` by ``columns`` tiles has sums of int32 or float32. A step adds the products of as many tiles of bytes, or of
bfloat16 in one or two parts. A thread configures tiles before, and releases them afterwards: until then its context has 8 KiB more.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir_values as T

SIDE = 16
"""Rows of a tile, and its columns of int32."""
_LINE = 64  # bytes of a tile's row, and of a cache line
_TILE_REGISTERS = 8
_KINDS = {(False, False): "uud", (False, True): "usd", (True, False): "sud", (True, True): "ssd"}
"""The instruction's name by which side's bytes are signed."""


class AmxBlock(NamedTuple):
    """Sums in tiles, and the bytes that are multiplied."""

    rows: int
    columns: int
    signed: tuple[bool, bool] | None
    """Which factor's bytes are signed; ``None`` for bfloat16."""
    streamed: int | None = None
    """The factor that need not stay in the first cache, which then has room for the other one."""
    parts: int = 1
    """Of how many bfloat16 a value is the sum: 1 or 2."""

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
            b: that of rows with ``columns`` tiles beside each other; four neighbouring bytes, or two bfloat16, are of one column.

        Of values in two parts, the tiles of all second parts follow those of the first ones; each part is multiplied by each.
        """
        self._do("tvmdml_tiles_step", a, b)

    def ask(self, b: Any) -> None:
        """Ask for the bytes of the second factor that a later step reads; they may be outside of its memory."""
        self._do("tvmdml_tiles_ask", b)

    def _do(self, name: str, *values: Any) -> None:
        T.do_imported(name, _source(self), *values)


@functools.cache
def _source(block: AmxBlock) -> str:
    """The functions, in LLVM IR. Sums have the first tile registers, then come the first factor's and the second one's."""
    rows, columns = block.rows, block.columns
    sums = rows * columns
    dot = f"llvm.x86.tdpb{_KINDS[block.signed] if block.signed else 'f16ps'}"
    a_registers, products = _order(block)

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
    step, loads = "", 0

    def loaded(register: int, base: str, offset: int, width: int) -> str:
        nonlocal loads
        loads += 1
        own = "tileloaddt164" if block.streamed == "ab".index(base) else "tileloadd64"
        return (
            address(f"t{loads}", base, offset) + f"  call void @llvm.x86.{own}(i8 {register}, ptr %t{loads}, i64 {width * _LINE})\n"
        )

    for (i, part_a), a, new_a, (j, part_b), b, new_b in products:
        if new_b:
            step += loaded(sums + a_registers + b, "b", part_b * SIDE * columns * _LINE + j * _LINE, columns)
        if new_a:
            step += loaded(sums + a, "a", (part_a * rows + i) * SIDE * _LINE, 1)
        step += f"  call void @{dot}(i8 {i * columns + j}, i8 {sums + a}, i8 {sums + a_registers + b})\n"
    lines = range(0, columns * SIDE * _LINE, _LINE)
    ask = "".join(address(f"p{i}", "b", i) + f"  call void @llvm.prefetch.p0(ptr %p{i}, i32 0, i32 2, i32 1)\n" for i in lines)
    return f"""
@tvmdml_tiles_forms = internal constant [1024 x i8] c"{_forms(sums + a_registers)}", align 64
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8 immarg)
declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)
declare void @llvm.x86.tileloaddt164(i8 immarg, ptr, i64)
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


def _order(block: AmxBlock) -> tuple[int, list[tuple[Any, ...]]]:
    """How many registers the first factor's tiles have, and the products of a step.

    These name of each factor the tile's number and part, its register, and whether it is loaded before.
    """
    rows, columns = block.rows, block.columns
    left = _TILE_REGISTERS - rows * columns
    if block.parts == 1:
        a_registers, parts = rows, [(0, 0)]
    else:  # next to each other are different sums, which need not wait for each other
        a_registers, parts = min(2 * rows, left - 2), [(0, 0), (0, 1), (1, 1), (1, 0)]
    tiles = [((i, part_a), (j, part_b)) for part_a, part_b in parts for j in range(columns) for i in range(rows)]
    a = _registers([one for one, _ in tiles], a_registers)
    b = _registers([other for _, other in tiles], left - a_registers)
    return a_registers, [(one, *own, other, *its) for (one, other), own, its in zip(tiles, a, b, strict=True)]


def _registers(wanted: list[tuple[int, int]], count: int) -> list[tuple[int, bool]]:
    """For each tile its register, and whether it is loaded: in place of the one that is not needed for the longest time."""
    held: list[tuple[int, int] | None] = [None] * count
    found = []
    for at, one in enumerate(wanted):
        new = one not in held
        if new:
            later = wanted[at:]
            farthest = max(held, key=lambda own: later.index(own) if own in later else len(later) + (own is None))
            held[held.index(farthest)] = one
        found.append((held.index(one), new))
    return found


def _forms(of_rows: int) -> str:
    """The configuration for each number of rows; the first tile registers have so many, the others all."""
    text = ""
    for rows in range(1, SIDE + 1):
        # As LDTILECFG reads it: palette 1, 15 bytes of 0; bytes a row of 16 registers (8 exist), as int16; rows of each, as int8.
        form = [1, *[0] * 15, *[_LINE, 0] * _TILE_REGISTERS, *[0] * 16]
        form += [rows] * of_rows + [SIDE] * (_TILE_REGISTERS - of_rows) + [0] * 8
        text += "".join(f"\\{byte:02x}" for byte in form)
    return text
