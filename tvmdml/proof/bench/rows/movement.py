"""The movement family: what copies whole rows, and what takes them apart. Goals from 64K elements on.

Operators that are not here have the rows of ``_every.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tvmdml.proof.bench.cases import Case, Group, K, M
from tvmdml.proof.bench.task import Kind
from tvmdml.proof.bench.work import Operand, Work

ROWS = Group("movement, rows")
"""Rows that are copied as they are."""
PARTS = Group("movement, elements")
"""Elements that are moved one by one."""
SUMS = Group("movement, sums of updates")
"""Updates that meet, and are combined in their order."""
OF_COPY = 0.9
"""Goal of large rows: the share of the rate at which memory is copied."""
SIDES = (("64K", 256), ("1M", K), ("16M", 4 * K))
KIND = Kind(close=True)

Make = Callable[..., Work]


def split(side: int, *widths: int, dtype: str = "float32") -> Work:
    """Parts side by side; two halves unless the widths are given."""
    widths = widths or (side // 2, side // 2)
    rows = side * side // sum(widths)
    return Work.on("SPLIT", Operand((rows, sum(widths)), dtype), axis=1, output_tensors=tuple(_out(rows, n, dtype) for n in widths))


def _out(rows: int, columns: int, dtype: str) -> Operand:
    return Operand((rows, columns), dtype, "")


def join(side: int, dtype: str = "float32") -> Work:
    """Two matrices, side by side."""
    half = Operand((side, side // 2), dtype)
    return Work.on("JOIN", (half, half), axis=1)


def window(side: int, step: int = 1, dtype: str = "float32") -> Work:
    """The left half of a matrix, or every second of its columns."""
    part = {"input_window_sizes": (side, side // 2 if step == 1 else side), "input_window_strides": (1, step)}
    return Work.on("SLICE1", Operand((side, side), dtype), input_window_offsets=(0, 0), **part)  # type: ignore[arg-type]


def tile(side: int, dtype: str = "float32") -> Work:
    """A matrix, twice in both dimensions."""
    return Work.on("TILE", Operand((side // 2, side // 2), dtype), repeats=(2, 2))


def padding(side: int, dtype: str = "float32") -> Work:
    """Images with a frame of zeros."""
    frame = (0, 0, 3, 3)
    return Work.on("PADDING1", Operand((1, side // 16, 16, side), dtype), start_padding=frame, end_padding=frame)


def gather(side: int, dtype: str = "float32") -> Work:
    """Rows of a matrix."""
    return Work.on("GATHER", Operand((side, side), dtype), Operand((1, side), "int64"), axis=0, index_dimensions=1)


def gather_elements(side: int, axis: int = 1, dtype: str = "float32") -> Work:
    """An element for each place of a matrix."""
    return Work.on("GATHER_ELEMENTS", Operand((side, side), dtype), Operand((side, side), "int64"), axis=axis)


def gather_nd(side: int, dtype: str = "float32") -> Work:
    """Elements of a matrix, by pairs of indices."""
    counts: dict[str, Any] = {"input_dimension_count": 2, "indices_dimension_count": 2, "batch_dimension_count": 0}
    return Work.on("GATHER_ND1", Operand((side, side), dtype), Operand((side * side, 2), "int64"), **counts)


def scatter(*sizes: int, axis: int = 0, data: str = "permuted", dtype: str = "float32") -> Work:
    """An update for each element."""
    x = Operand(sizes, dtype)
    return Work.on("SCATTER", x, Operand(sizes, "int64", data), x, axis=axis)


def scatter_nd(side: int, dtype: str = "float32") -> Work:
    """A quarter of a matrix' rows."""
    x = Operand((side, side), dtype)
    counts: dict[str, Any] = {"input_dimension_count": 2, "indices_dimension_count": 2}
    return Work.on("SCATTER_ND", x, Operand((side // 4, 1), "int64", "permuted"), Operand((side // 4, side), dtype), **counts)


def combined(count: int, width: int, dtype: str = "float32") -> Work:
    """Sums of rows: an eighth as many as there are updates."""
    counts: dict[str, Any] = {"input_dimension_count": 2, "indices_dimension_count": 2}
    given = Operand((count // 8, width), dtype), Operand((count, 1), "int64"), Operand((count, width), dtype)
    return Work.on("FUSED_SCATTER_ND", *given, **counts, function="sum")


def combined_elements(count: int, width: int, dtype: str = "float32") -> Work:
    """The same with an index for each element."""
    given = Operand((count // 8, width), dtype), Operand((count, width), "int64"), Operand((count, width), dtype)
    return Work.on("FUSED_SCATTER", *given, axis=0, function="sum")


def one_hot(side: int) -> Work:
    """Eight classes."""
    given = Operand((1, 1, side * side // 8, 1), "int64"), Operand((1, 1, 1, 2), data="ascending")
    return Work.on("ONE_HOT", *given, axis=3, output_tensor=Operand((1, 1, side * side // 8, 8), data=""))


def fold(side: int) -> Work:
    """Windows of four elements in rows that are as long as there are windows."""
    numbers: dict[str, Any] = {"window_sizes": (4,), "strides": (1,), "dilations": (1,), "start_padding": (0,), "end_padding": (3,)}
    return Work.on("FOLD", Operand((side, 4, side // 4)), output_tensor=Operand((side, 1, side // 4), data=""), **numbers)


def unfold(side: int, dtype: str = "float32") -> Work:
    """Windows of three by three, with a frame: nine times the image."""
    ones: dict[str, Any] = dict.fromkeys(("strides", "dilations", "start_padding", "end_padding"), (1, 1))
    image = Operand((1, side * side // 8192 or 1, 32, 32), dtype)
    return Work.on("UNFOLD", image, window_sizes=(3, 3), **ones)


def to_space(side: int, order: str = "column_row_depth", dtype: str = "float32") -> Work:
    """Blocks of two by two from eight channels."""
    images = Operand((side * side // (8 * 64 * 64), 8, 64, 64), dtype)
    return Work.on("DEPTH_TO_SPACE1", images, block_size=2, order=order)


def to_depth(side: int, order: str = "depth_column_row", dtype: str = "float32") -> Work:
    """Small images of many channels."""
    return Work.on("SPACE_TO_DEPTH1", Operand((1, side * side // 64, 8, 8), dtype), block_size=2, order=order)


def _whole_rows() -> Iterator[Case]:
    """Rows: as fast as memory is copied from 16 MB on, and never slower than the best peer."""
    works: tuple[tuple[str, Make], ...] = (
        ("slice", window),
        ("split", split),
        ("join", join),
        ("tile", tile),
        ("padding", padding),
    )
    for name, make in works:
        for point, side in SIDES:
            large = side > K
            yield Case(f"{name} f32", point, make(side), 1.0, side == K, share=OF_COPY if large else None, group=ROWS)
        for dtype in ("float16", "int8"):
            yield Case(f"{name}, narrow", dtype, make(K, dtype=dtype), 1.0, group=ROWS)
    for point, side in SIDES:
        yield Case("gather rows f32", point, gather(side), 1.2, side == K, group=ROWS)
    yield Case("gather rows, narrow", "float16", gather(K, dtype="float16"), 1.2, group=ROWS)
    for point, side in SIDES[1:]:
        yield Case("split f32, short rows", point, split(side, 3, 5), 1.0, group=PARTS)
        yield Case("slice f32, every second", point, window(side, 2), 1.0, group=PARTS)


def _elements() -> Iterator[Case]:
    for order, short in (("column_row_depth", "CRD"), ("depth_column_row", "DCR")):
        for point, side in SIDES:
            yield Case(
                "depth to space f32", f"{short} {point}", to_space(side, order), 2.0, (short, side) == ("CRD", K), group=PARTS
            )
    for dtype in ("float16", "int8"):
        yield Case("depth to space, narrow", dtype, to_space(K, dtype=dtype), 2.0, group=PARTS)
    others: tuple[tuple[str, Make, float | None], ...] = (
        ("space to depth f32", to_depth, 2.0),
        ("unfold f32", unfold, 1.0),
        ("gather elements f32", gather_elements, 2.0),
        ("gather elements f32, axis 0", partial(gather_elements, axis=0), 2.0),
        ("gather nd f32", gather_nd, 2.0),
        ("scatter nd f32, rows", scatter_nd, 1.5),
        ("one hot", one_hot, 1.0),
        ("fold f32", fold, None),
    )
    for name, make, goal in others:
        for point, side in SIDES:
            quick = side == K and name in ("unfold f32", "gather elements f32", "gather nd f32")
            yield Case(name, point, make(side), goal, quick, group=PARTS if goal else None)
    for dtype in ("float16", "int8"):
        yield Case("gather elements, narrow", dtype, gather_elements(K, dtype=dtype), 2.0, group=PARTS)
    yield Case("unfold, narrow", "float16", unfold(K, dtype="float16"), 1.0, group=PARTS)
    for point, size in (("64K", 64 * K), ("1M", M), ("16M", 16 * M)):
        yield Case("scatter f32", f"({point},)", scatter(size), 1.5, size == M, group=PARTS)
    yield Case("scatter f32", "(1M,), updates that meet", scatter(M, data="normal"), 1.5, group=PARTS)
    for axis in (0, 1):
        yield Case("scatter f32", f"{(K, K)}, axis {axis}", scatter(K, K, axis=axis), 1.5, group=PARTS)
    for width in (1, 16, 64, 256):
        for point, count in (("1K", K), ("10K", 10 * K), ("100K", 100 * K), ("1M", M)):
            quick = (width, point) == (16, "100K")
            yield Case(f"sums of rows f32, {width} wide", point, combined(count, width), 1.0, quick, group=SUMS)
    yield Case("sums of rows f32, 1 wide", "10M", combined(10 * M, 1), 1.0, group=SUMS)
    yield Case("sums of rows f32, 16 wide", "10M", combined(10 * M, 16), 1.0, group=SUMS)
    for width in (1, 16):
        yield Case(f"sums of elements f32, {width} wide", "100K", combined_elements(100 * K, width), 1.0, group=SUMS)
    yield Case("scatter, narrow", f"float16 {(K, K)}", scatter(K, K, axis=1, dtype="float16"), 1.5, group=PARTS)


CASES = (*_whole_rows(), *_elements())
