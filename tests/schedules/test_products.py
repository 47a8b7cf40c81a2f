"""Products of matrices on the CPU: the same bits whatever the tile, the blocks, the number of tasks and the level are."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from fenced import Place, Work, run
from support import assert_outputs_agree, bytes_of, desc_of, reference, seeded

import tvmdml
from tvmdml import knobs, targets
from tvmdml.kernels import tiles
from tvmdml.library.scheduling import kernel_for
from tvmdml.schedules.cpu._gemm import ProductLoops
from tvmdml.targets.cpu import host

FMA = host.host().has("fma") or not host.host().has("x86")
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "small blocks": ("cpu", {"row_bytes": 1 << 13, "column_bytes": 1 << 14}),
    "deep blocks": ("cpu", {"depth_blocks": 4}),
    "twelve rows": ("cpu", {"tile": "12x2"}),
    "six rows": ("cpu", {"tile": "6x4"}),
    "two rows": ("cpu", {"tile": "2x4", "task_products": 1 << 10}),
    "level 3": ("cpu:x86-64-v3", {}),
    "level 3, other tile": ("cpu:x86-64-v3", {"tile": "4x3", "task_products": 1 << 10}),
}


@pytest.mark.full
@pytest.mark.usefixtures("in_parallel")
@pytest.mark.parametrize("sizes", [(3, 700, 40), (61, 300, 100), (70, 1100, 49)], ids=str)
@pytest.mark.skipif(not FMA, reason="without fused multiply-adds sums have other bits")
def test_bits_of_sums_do_not_depend_on_the_way(sizes: tuple[int, int, int]) -> None:
    rows, depth, columns = sizes
    random = seeded(str(sizes))
    a = random.standard_normal((rows, depth)).astype(np.float32)
    b = random.standard_normal((depth, columns)).astype(np.float32)
    whole = tvmdml.gemm(a, b)
    assert np.allclose(whole, a.astype(np.float64) @ b, rtol=0, atol=1e-4)
    desc = tvmdml.Gemm.of(tvmdml.TensorDesc("float32", a.shape), tvmdml.TensorDesc("float32", b.shape))
    launches = set()
    for where, given in WAYS.values():
        if where != "cpu" and not host.host().has("avx2"):
            continue
        with knobs.using(matrix={"few_rows": 0, **given}):  # functions would use a kernel of an earlier call
            kernel = kernel_for(desc, targets.resolve(where))
            launches.add((where, kernel.parameters, kernel.scalars))
            found = np.full_like(whole, np.nan)
            tvmdml.compile(desc, target=where)(a, b, output_tensor=found)
        assert np.array_equal(found, whole), given
        assert kernel.name == "tiles"
    assert len(launches) > (1 if rows < 4 else 5), "a few rows have few ways"
    assert rows < 4 or any(tasks > 1 for _, _, (tasks, *_) in launches)
    for where in ("cpu", "cpu:x86-64-v3") if host.host().has("avx2") else ("cpu",):
        turned = tvmdml.gemm(np.asfortranarray(a), np.ascontiguousarray(b.T), trans_b="transpose", device=where)
        assert np.array_equal(turned, whole), where
    assert np.array_equal(np.concatenate([tvmdml.gemm(one[None], b) for one in a]), whole), "row by row"


@pytest.mark.usefixtures("in_parallel")
@pytest.mark.parametrize("padding", [0, 512])
@pytest.mark.skipif(not FMA, reason="without fused multiply-adds sums have other bits")
def test_one_row_over_long_columns_has_the_same_bits(padding: int) -> None:
    """Columns so many bytes apart that few sets of a cache have all: their blocks are lanes, where all lanes have one."""
    random = seeded(str(padding))
    for depth, columns in ((8192, 35), (2048, 16), (2048 + 256, 17)):
        a = random.standard_normal((1, depth)).astype(np.float32)
        b = random.standard_normal((columns, depth + padding)).astype(np.float32)[:, :depth]
        whole = tvmdml.gemm(a, np.ascontiguousarray(b.T))
        for where in ("cpu", "cpu:x86-64-v3") if host.host().has("avx2") else ("cpu",):
            assert np.array_equal(tvmdml.gemm(a, b, trans_b="transpose", device=where), whole), (where, depth)
    descs = (tvmdml.TensorDesc("float32", (1, 8192)), tvmdml.TensorDesc("float32", (35, 8192)))
    assert dict(kernel_for(tvmdml.Gemm.of(*descs, trans_b="transpose"), targets.resolve("cpu")).parameters)["form"] == "blocks"


@pytest.mark.usefixtures("in_parallel")
@pytest.mark.parametrize("columns", [16, 17, 31, 33, 40, 47])
@pytest.mark.skipif(not (FMA and host.chosen().has("avx512f")), reason="the processor has no vectors of 16 floats")
def test_a_panel_of_fewer_columns_has_the_same_bits(columns: int) -> None:
    """Its last vector begins within the one before, however the factors lie; nothing beside them is read or written."""
    target = targets.resolve("cpu")
    random = seeded(str(columns))
    for depth, ways in ((11, "along"), (300, "across"), (600, "single")):
        a, b, c = (random.standard_normal(one).astype(np.float32) for one in ((29, depth), (depth, columns), (29, columns)))
        options = {"trans_b": "transpose" if ways == "along" else "none", "fused_activation": tvmdml.ActivationRelu.fused()}
        given = b.T.copy() if ways == "along" else b
        given = np.repeat(given, 2, 1)[:, ::2] if ways == "single" else given
        inputs = [a, given, c]
        desc = tvmdml.Gemm.of(*map(desc_of, inputs), beta=1.0, **options)
        parameters = dict(kernel_for(desc.canonical(), target).parameters)
        assert parameters["short"] == (columns > 16)
        assert parameters["forms"].split()[1] == ways
        (found,) = run(Work(desc, target), inputs, "kernel", Place(at_end=True), Place(at_end=True))
        whole = tvmdml.gemm(*inputs, beta=1.0, device="cpu:x86-64-v3", **options)
        assert np.array_equal(found.reshape(whole.shape), whole), ways
    a, b, zeros = (random.integers(-100, 100, one, np.int16) for one in ((29, 300), (300, columns), (columns,)))
    one, scales = np.ones(1, np.float32), random.standard_normal(columns).astype(np.float32)
    numbers = [a, one, None, b, scales, zeros, None]
    product = tvmdml.MatrixMultiplyIntegerToFloat.of(*(None if x is None else desc_of(x) for x in numbers))
    assert dict(kernel_for(product.canonical(), target).parameters)["short"] == (columns > 16)
    results = run(Work(product, target), numbers, "kernel", Place(at_end=True), Place(at_end=True))
    assert_outputs_agree(product, results, reference(product, *numbers))


@pytest.mark.full(first=1)
@pytest.mark.usefixtures("in_parallel")
@pytest.mark.parametrize("sizes", [(30, 1100, 700), (5, 600, 97)], ids=str)
def test_columns_that_are_packed_once_in_several_blocks_have_the_same_bits(sizes: tuple[int, int, int]) -> None:
    rows, depth, columns = sizes
    random = seeded(str(sizes))
    a, b = (random.standard_normal(one).astype(np.float32) for one in ((rows, depth), (depth, columns)))
    whole = tvmdml.gemm(a, b)
    with knobs.using(matrix={"column_bytes": 1 << 14, "row_bytes": 1 << 13, "task_products": 1 << 10}):
        desc = tvmdml.Gemm.of(desc_of(a), tvmdml.TensorDesc("float32", b.shape, flags="OWNED_BY_DML"))
        assert dict(kernel_for(desc.canonical(), targets.resolve("cpu")).parameters)["asks_for_columns"]
        graph = tvmdml.Graph()
        compiled = graph.compile([tvmdml.gemm(graph.input(a.shape, "float32", name="a"), b)])
        assert np.array_equal(compiled({"a": a})[0], whole)


@pytest.mark.full(first=1)
@pytest.mark.parametrize("sizes", [(1, 70, 100), (3, 33, 35), (29, 300, 67), (67, 65, 70)], ids=str)
def test_panels_of_nan_reach_only_their_own_rows_and_columns(sizes: tuple[int, int, int]) -> None:
    """What is beside the edges of a panel, or repeated there, comes into no other sum."""
    rows, depth, columns = sizes
    random = seeded(str(sizes))
    a, b = (random.standard_normal(one).astype(np.float32) for one in ((rows, depth), (depth, columns)))
    whole = tvmdml.gemm(a, b)
    for side in (0, 1):
        size = sizes[2 * side]
        for some in (slice(None), slice(size // 2, None), slice(0, size // 2), slice(size - 1, None)):
            factors = [a.copy(), b.copy()]
            line = (some, slice(None))[:: 1 - 2 * side]
            factors[side][line] = np.nan
            expected = whole.copy()
            expected[line] = np.nan
            found = tvmdml.gemm(*factors)
            assert np.array_equal(np.isnan(found), np.isnan(expected))
            assert np.array_equal(found, expected, equal_nan=True)


@pytest.mark.full
@pytest.mark.parametrize(("a_type", "b_type"), [("uint8", "int8"), ("int8", "uint8"), ("int8", "int8"), ("uint8", "uint8")])
def test_products_of_bytes_are_exact_at_every_level(a_type: str, b_type: str) -> None:
    random = seeded(a_type + b_type)
    for rows, depth, columns in ((9, 71, 35), (20, 1030, 16), (16, 1030, 400), (2, 6, 5)):
        a, b = (
            random.integers(np.iinfo(kind).min, np.iinfo(kind).max, sizes, kind, endpoint=True)
            for kind, sizes in ((a_type, (rows, depth)), (b_type, (depth, columns)))
        )
        zeros = a[:, :1].copy(), b[:1].copy()
        right = (a.astype(np.int64) - zeros[0]) @ (b.astype(np.int64) - zeros[1])
        for where in ("cpu", "cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:x86-64-v2"):
            if where != "cpu" and not host.host().runs(host.parse(where.removeprefix("cpu:"), here=False)):
                continue
            found = tvmdml.matrix_multiply_integer(a, b, *zeros, device=where)
            assert np.array_equal(found, right.astype(np.int32)), (where, rows)


BYTES = ("uint8", "int8")
FEW_OF_BYTES: dict[str, tuple[int, int, int]] = {
    "a row": (1, 768, 192),
    "a row, edges": (1, 71, 35),
    "less than a vector": (2, 5, 16),
    "the most rows": (4, 1030, 77),
    "a step": (3, 16, 64),
}


@pytest.mark.usefixtures("in_parallel")
@pytest.mark.skipif(not host.chosen().has("avx512vnni"), reason="the processor has no products of four bytes")
@pytest.mark.parametrize("signs", list(itertools.product(BYTES, repeat=2)), ids=str)
@pytest.mark.drawn("shape", list(FEW_OF_BYTES), 2)
def test_few_rows_of_bytes_are_exact_and_packed_nowhere(shape: str, signs: tuple[str, str]) -> None:
    """With zero points of rows, of columns, of both and of none, for factors that lie in any way; nothing beside them is read."""
    rows, depth, columns = FEW_OF_BYTES[shape]
    a, b = bytes_of(signs[0], (rows, depth), "a"), bytes_of(signs[1], (depth, columns), "b")
    target = targets.resolve("cpu")
    with knobs.using(matrix={"task_products": 1 << 10}):
        for way, (with_a, with_b) in enumerate(itertools.product((False, True), repeat=2)):
            turned = np.asfortranarray if way in (1, 2) else np.ascontiguousarray
            other = np.asfortranarray if way in (1, 3) else np.ascontiguousarray
            zeros = a[:, :1].copy() if with_a else None, b[:1].copy() if with_b else None
            inputs = [turned(a), zeros[0], other(b), zeros[1]]
            desc = tvmdml.MatrixMultiplyInteger.of(*(one if one is None else desc_of(one) for one in inputs))
            kernel = kernel_for(desc.canonical(), target)
            short = depth < 16 and other is np.asfortranarray  # columns without a whole vector of bytes
            assert kernel.name == ("tiles" if short else "rows")
            found = run(Work(desc, target), inputs, "kernel", Place(at_end=True), Place(at_end=way < 2))
            assert_outputs_agree(desc, found, desc.reference(*inputs))


def test_which_kernels_serve_which_products() -> None:
    def name(*sizes: int, flags: str = "none", **more: Any) -> str:
        a = tvmdml.TensorDesc("float32", sizes[:2])
        b = tvmdml.TensorDesc("float32", sizes[3:1:-1] if more else sizes[2:], flags=flags)
        return kernel_for(tvmdml.Gemm.of(a, b, **more), targets.resolve("cpu")).name

    assert name(64, 32, 32, 48) == "tiles"
    assert name(4, 300, 300, 48) == "rows"
    assert name(48, 300, 300, 1) == "rows", "one column is one row of the other factor"
    assert name(1, 300, 300, 4096, trans_b="transpose") == "rows"
    assert name(1, 300, 300, 4096, flags="OWNED_BY_DML") == "rows"
    assert name(1, 300, 300, 4096, trans_b="transpose", flags="OWNED_BY_DML") == "tiles", "panels need no transposing"


@pytest.mark.parametrize("columns", [240, 480, 672])
def test_tasks_have_rows_where_the_other_factor_is_packed_and_small(columns: int) -> None:
    rows, vectors, lanes = tiles.of_product(196, columns, 16, "auto", True, False, (False, True))
    widths = ProductLoops.row_width(rows, packed=False), vectors * lanes
    assert tiles.parts_of_product(1, 196, columns, widths, 2, (tiles.PACKED, tiles.READ)) == (2, 1), (
        "kernels of networks divide places alike"
    )
    assert tiles.parts_of_product(1, 196, 4 * columns, widths, 2) == (1, 2), "less is packed twice"
