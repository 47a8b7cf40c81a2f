"""Products in matrix tiles (AMX): exact, inside of their arrays, and with tiles that each thread gives back."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import amx
import fenced
import numpy as np
import pytest
import test_few_bits
from fenced import Place, Work, run
from programs import python
from support import Array, assert_outputs_agree, assert_same_bits, bytes_of, desc_of, ready, seeded

import tvmdml
from tvmdml import TensorDesc, knobs, packs, targets
from tvmdml.library.scheduling import kernel_for
from tvmdml.library.spec import Spec, Wanted
from tvmdml.operators import Operator
from tvmdml.targets.cpu import host

pytestmark = pytest.mark.skipif(bool(amx.missing()), reason=amx.missing())

SIGNS = list(itertools.product(("uint8", "int8"), repeat=2))
ENDS = (Place(at_end=True), Place(at_end=False))
BEYOND = "cpu:x86-64-v4+amx-bf16+amx-int8+amx-tile+avx512vnni"


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[amx.Tiles]:
    with amx.tiles(monkeypatch) as found, knobs.using(matrix={"few_rows_of_bytes": 0}):
        yield found


def turned(array: Array) -> Array:
    return np.asfortranarray(array)


def is_in_tiles(desc: Operator, target: targets.Target) -> bool:
    kernel = kernel_for(desc.canonical(), target)
    return kernel.name == "tile_lanes" or str(dict(kernel.parameters).get("arithmetic")).startswith("Tile")


def checked(tiles: amx.Tiles, desc: Any, inputs: list[Array | None], owned: tuple[str, ...] = ()) -> tuple[Array, ...]:
    """Run between guard pages, in both places; the results, which agree with the reference."""
    target = targets.resolve(tiles.name)
    assert is_in_tiles(desc, target)
    before, expected = tiles.products(), desc.reference(*inputs)
    flags = {name: dataclasses.replace(getattr(desc, name), flags="OWNED_BY_DML") for name in owned}
    given = dataclasses.replace(desc, **flags)
    for source, result in (ENDS, ENDS[::-1]):
        found = run(Work(given, target), inputs, "kernel", source, result)
        assert_outputs_agree(desc, found, expected)
    assert tiles.products() == before == () or sum(tiles.products()) > sum(before)
    return found


SHAPES: dict[str, tuple[int, int, int]] = {
    "a row": (1, 130, 64),
    "one tile": (16, 64, 16),
    "less than a tile": (5, 7, 21),
    "edges": (70, 300, 101),
    "several blocks": (33, 2100, 65),
}


@pytest.mark.parametrize(("a_type", "b_type"), SIGNS)
@pytest.mark.drawn("shape", list(SHAPES), 1)
def test_products_are_exact(shape: str, a_type: str, b_type: str, tiles: amx.Tiles) -> None:
    rows, depth, columns = SHAPES[shape]
    a, b = bytes_of(a_type, (rows, depth), 0), bytes_of(b_type, (depth, columns), 1)
    before = tiles.products()
    zeros = a[:, :1].copy(), b[:1].copy()
    for one, other, own in ((a, b, zeros), (turned(a), turned(b), zeros), (a, turned(b), (None, None))):
        inputs = [one, own[0], other, own[1]]
        desc = tvmdml.MatrixMultiplyInteger.of(*(array if array is None else desc_of(array) for array in inputs))
        checked(tiles, desc, inputs)
    used = [after > earlier for earlier, after in zip(before, tiles.products(), strict=True)]
    expected = [*(signs == (a_type, b_type) for signs in SIGNS), False]
    assert not used or used == expected, "the instruction is that of the signs"


@pytest.mark.parametrize("names", [("b_tensor",), ("a_tensor", "b_tensor"), ("b_tensor", "b_zero_point_tensor")], ids=str)
def test_factors_that_never_change_are_packed_once(names: tuple[str, ...], tiles: amx.Tiles) -> None:
    a, b = bytes_of("int8", (3, 40, 200), names), bytes_of("uint8", (3, 200, 50), names)
    inputs: list[Array | None] = [a, a[:1, :, :1].copy(), b, b[:1, :1].copy()]
    checked(tiles, tvmdml.MatrixMultiplyInteger.of(*(desc_of(one) for one in inputs if one is not None)), inputs, names)


def halves_of(sizes: tuple[int, ...], seed: object, like_integers: bool) -> Array:
    random = seeded(sizes, seed)
    return (random.integers(-5, 6, sizes) if like_integers else random.standard_normal(sizes)).astype(np.float16)


@pytest.mark.parametrize("shape", [(5, 33, 21), (40, 64, 48), (33, 1100, 70), (70, 31, 16)], ids=str)
@pytest.mark.parametrize(("trans_b", "owned"), [("none", ()), ("transpose", ()), ("none", ("b_tensor",))], ids=str)
def test_products_of_float16(shape: tuple[int, int, int], trans_b: str, owned: tuple[str, ...], tiles: amx.Tiles) -> None:
    """Two bfloat16 have all bits of a float16: integers are exact, and results within the bounds. Infinities are those of IEEE."""
    rows, depth, columns = shape
    for kind in ("integers", "any", "infinite"):
        a = halves_of((2, rows, depth), kind, kind == "integers")
        b = halves_of((2, columns, depth) if trans_b == "transpose" else (2, depth, columns), 1, kind == "integers")
        if kind == "infinite":
            a[0, 0, -1], a[1, 4, 0], a[1, 1, 2], b[0, 3, 3], b[1, 2, 0] = np.inf, np.nan, -np.inf, -np.inf, 0
        desc = tvmdml.Gemm.of(desc_of(a), desc_of(b), trans_b=trans_b)
        found = checked(tiles, desc, [a, b, None], owned)[0]
        if kind == "integers":
            product = a.astype(np.float32) @ (b.swapaxes(1, 2) if trans_b == "transpose" else b).astype(np.float32)
            assert np.array_equal(found, product.astype(np.float16))


@pytest.mark.parametrize("sizes", [(9, 40, 21), (40, 344, 48), (33, 1100, 70)], ids=str)
@pytest.mark.parametrize("form", [(4, 32, "bits", False), (4, 16, "none", True), (2, 64, "bits", True)], ids=str)
def test_products_of_float16_and_few_bits(form: tuple[int, int, str, bool], sizes: tuple[int, int, int], tiles: amx.Tiles) -> None:
    """Two bfloat16 have all bits of elements times their scales, too: integers are exact. Infinities are those of IEEE."""
    rows, places, columns = sizes
    for kind in ("integers", "any", "infinite"):
        desc, inputs = test_few_bits.given(rows, columns, places, *form, "float16")
        x, matrix, scale, zero = inputs
        assert x is not None
        assert scale is not None
        if kind == "integers":
            x[...], scale[...] = halves_of(x.shape, kind, True), 1
        if kind == "infinite":
            x[0, -1], x[1, 2], scale[3, 0] = np.inf, np.nan, -np.inf
        found = checked(tiles, desc, [x, matrix, scale, zero])[0]
        if kind == "integers":
            assert_same_bits(found, desc.reference(*inputs)[0].values.astype(np.float16))


@pytest.mark.parametrize("form", [(4, 32, "none", False), (8, 64, "floats", True), (2, 16, "bits", True)], ids=str)
def test_rows_that_may_be_rounded_have_sixteen_bits(form: tuple[int, int, str, bool], tiles: amx.Tiles) -> None:
    """Of float32, few rows have bytes, which are less work; without the permission nothing is rounded."""
    desc, inputs = test_few_bits.given(33, 70, 344, *form, "float32")
    few, many = (dataclasses.replace(test_few_bits.given(n, 70, 344, *form, "float32")[0], may_round=True) for n in (8, 33))
    assert not any(is_in_tiles(one, targets.resolve(tiles.name)) for one in (desc, few))
    found = checked(tiles, many, inputs)[0]
    exact = desc.reference(*inputs)[0].values
    assert np.abs(found - exact).max() < 2**-12 * np.abs(exact).max(), "bytes would be off by more"


def test_bits_do_not_depend_on_what_was_in_memory(tiles: amx.Tiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of few rows leave the others of a block as they were: what is not a number there says nothing of the sums."""
    found = []
    for byte in (0, 255):
        monkeypatch.setattr(fenced, "_PATTERN", byte)
        a, b = 64 * halves_of((5, 300), "a", False), 64 * halves_of((300, 64), "b", False)
        a, b = np.concatenate([a, a], 1), np.concatenate([b, -b])  # what is left is what was rounded
        found.append(checked(tiles, tvmdml.Gemm.of(desc_of(a), desc_of(b)), [a, b, None])[0].copy())
    assert_same_bits(*found)


def test_strides_that_no_vector_reads(tiles: amx.Tiles) -> None:
    a, b = bytes_of("uint8", (40, 140), 2)[::2, ::2], bytes_of("int8", (140, 80), 3)[::2, ::2]
    checked(tiles, tvmdml.MatrixMultiplyInteger.of(desc_of(a), None, desc_of(b)), [a, None, b, None])


@pytest.mark.parametrize("name", ["MATRIX_MULTIPLY_INTEGER_TO_FLOAT", "QUANTIZED_LINEAR_MATRIX_MULTIPLY"])
def test_what_becomes_of_sums(name: str, tiles: amx.Tiles) -> None:
    """With zero points, scales and a bias: the bits are those of the kernel without tiles."""
    a, b = bytes_of("uint8", (40, 130), name), bytes_of("int8", (130, 70), name)
    scale, scales = np.full((1, 1), 0.003, np.float32), seeded(name).uniform(0.001, 0.01, (1, 70)).astype(np.float32)
    zeros = np.full((1, 1), 130, np.uint8), bytes_of("int8", (1, 70), name) // 8
    bias = np.broadcast_to(seeded(name).standard_normal((1, 70)).astype(np.float32), (40, 70))
    inputs: list[Array | None] = [a, scale, zeros[0], b, scales, zeros[1], bias]
    if name.startswith("QUANTIZED"):
        inputs[6:] = [np.full((1, 1), 0.2, np.float32), np.full((1, 1), 120, np.uint8)]
    desc = tvmdml.operators.by_name(name).of(*(one if one is None else desc_of(one) for one in inputs))
    found = checked(tiles, desc, inputs)
    other = [np.empty(one.sizes, one.data_type.numpy) for one in desc.outputs()]
    ready(desc, targets.resolve("cpu:x86-64-v4+avx512vnni"))(*inputs, *other)
    assert_same_bits(found[0], other[0])


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "several runs": ((2, 70, 6, 35), (40, 70, 3, 3), {"start_padding": (1, 1), "end_padding": (1, 1)}),
    "stride and groups": ((1, 3 * 33, 9, 13), (3 * 20, 33, 3, 2), {"strides": (2, 2), "end_padding": (0, 3), "group_count": 3}),
    "a row": ((1, 130, 40), (130, 130, 5), {"dilations": (3,), "start_padding": (4,)}),
    "less than a vector of places": ((1, 64, 3, 3), (16, 64, 3, 3), {"start_padding": (1, 0)}),
    "planes": ((1, 20, 3, 4, 17), (70, 20, 2, 2, 2), {"strides": (1, 1, 2), "end_padding": (1, 0, 1)}),
}


def convolved(shape: str) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Sizes of the image and of filters, and numbers."""
    image, filters, own = CONVOLUTIONS[shape]
    pair = tuple(0 for _ in image[2:])
    ones = tuple(1 for _ in pair)
    usual = {"strides": ones, "dilations": ones, "start_padding": pair, "end_padding": pair, "group_count": 1}
    return image, filters, {**usual, **own}


@pytest.mark.usefixtures("in_parallel")
@pytest.mark.parametrize(("x_type", "w_type"), SIGNS)
@pytest.mark.drawn("shape", list(CONVOLUTIONS), 1)
def test_convolutions_are_exact(shape: str, x_type: str, w_type: str, tiles: amx.Tiles) -> None:
    """With zero points and without, of images with any strides, with filters given in a call and before."""
    image, filters, numbers = convolved(shape)
    x, w = bytes_of(x_type, image, 0), bytes_of(w_type, filters, 1)
    ones = (1,) * len(image)
    zeros = bytes_of(x_type, ones, 2), bytes_of(w_type, (filters[0], *ones[1:])[: len(image)], 3).reshape(1, -1, *ones[2:])
    with knobs.using(matrix={"task_image_products": 1 << 10}):
        for one, own, owned in ((x, zeros, ()), (turned(x), (None, None), ("filter_tensor",)), (x, (None, zeros[1]), ())):
            inputs = [one, own[0], w, own[1]]
            desc = tvmdml.ConvolutionInteger.of(*(array if array is None else desc_of(array) for array in inputs), **numbers)
            checked(tiles, desc, inputs, owned)


def test_quantized_convolutions_have_the_bits_of_others(tiles: amx.Tiles) -> None:
    image, filters, numbers = convolved("several runs")
    x, w, one, each = bytes_of("uint8", image, 5), bytes_of("int8", filters, 6), (1, 1, 1, 1), (1, filters[0], 1, 1)
    inputs: list[Array | None] = [x, np.full(one, 0.02, np.float32), np.full(one, 120, np.uint8)]
    inputs += [w, seeded("scales").uniform(0.001, 0.01, each).astype(np.float32), None]
    inputs += [seeded("bias").integers(-999, 999, each, np.int32), np.full(one, 9.5, np.float32), np.full(one, 99, np.uint8)]
    desc = tvmdml.QuantizedLinearConvolution.of(*(array if array is None else desc_of(array) for array in inputs), **numbers)
    found = checked(tiles, desc, inputs)
    other = [np.empty(one.sizes, one.data_type.numpy) for one in desc.outputs()]
    ready(desc, targets.resolve("cpu:x86-64-v4+avx512vnni"))(*inputs, *other)
    assert_same_bits(found[0], other[0])


@pytest.mark.usefixtures("in_parallel")
def test_threads_have_tiles_of_their_own(tiles: amx.Tiles) -> None:
    """Several tasks of a product, of several products at once; afterwards no thread has tiles."""
    a, b = bytes_of("uint8", (150, 700), 4), bytes_of("int8", (700, 150), 5)
    with knobs.using(matrix={"task_products": 1 << 10, "row_bytes": 1 << 13, "column_bytes": 1 << 14}):
        desc = tvmdml.MatrixMultiplyInteger.of(desc_of(a), None, desc_of(b))
        assert kernel_for(desc.canonical(), targets.resolve(tiles.name)).scalars[0] > 1, "tasks"
        operator = tvmdml.compile(desc, target=tiles.name)
        amx.assert_faults_are_delivered()

    def once(number: int) -> bool:
        found = np.full((150, 150), -1, np.int32)
        operator(np.roll(a, number, 0), None, b, None, found)
        return np.array_equal(found, np.roll(a, number, 0).astype(np.int64) @ b)

    tvmdml.gemm(np.ones((300, 300), np.float32), np.ones((300, 300), np.float32))  # the pool's threads begin
    amx.assert_faults_are_delivered()
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(once, range(12)))


def test_inner_loops_load_no_tile_twice() -> None:
    """For 32 rows and columns a step has four loads and four products, and nothing is spilled."""
    (target,) = targets.elsewhere(BEYOND)
    a, b = TensorDesc("uint8", (512, 512)), TensorDesc("int8", (512, 512))
    code = target.source(kernel_for(tvmdml.MatrixMultiplyInteger.of(a, None, b), target).build(), "asm")
    steps = code.count("\ttdpbusd\t") // 4
    assert steps > 0
    assert code.count("\ttdpbusd\t") == 4 * steps
    assert code.count("\ttileloadd\t") == 2 * steps + 4, "of columns, and the sums of a block before"
    assert code.count("\ttileloaddt1\t") == 2 * steps
    assert (code.count("\ttilezero\t"), code.count("\ttilestored\t")) == (4, 4)
    assert code.count("\tldtilecfg\t") == code.count("\ttilerelease") > 0


# -- Where there is no AMX ----------------------------------------------------------------------------------------

FLAGS = "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 avx avx2 bmi1 bmi2 f16c fma abm movbe xsave "
FLAGS += "avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni amx_tile amx_int8 amx_bf16"


def test_a_processor_with_tiles_is_known_by_its_flags() -> None:
    found = host.read(f"flags : {FLAGS}\n", "x86_64")
    assert found.features == (*amx.FEATURES, "avx512vnni")
    assert {"amx_tile", "amx_int8"} <= set(found.words)
    assert found.runs(host.parse("x86-64-v4+avx512vnni", here=False))
    assert not host.parse("x86-64-v4+avx512vnni", here=False).runs(found)


@pytest.mark.skipif(not amx.missing() and amx.has_own(), reason="the system lets this process use its tiles")
def test_tiles_that_the_system_refuses_are_not_used() -> None:
    """Here the system refuses, because there are none."""
    script = f"""
from tvmdml.targets.cpu import host
host._cpuinfo = lambda: "flags : {FLAGS}"
assert host.host().features == ("avx512vnni",), host.host()
from tvmdml.proof.doctor import checks
found = [one.words for one in checks._processor()]
assert any("does not let this process use them" in one for one in found), found
"""
    python(script, may_complain=True)


@pytest.mark.skipif(not amx.missing() and amx.has_own(), reason="this processor runs them")
def test_packs_for_tiles_do_not_run_without(tmp_path: Path) -> None:
    a, b = bytes_of("uint8", (33, 130), 6), bytes_of("int8", (130, 40), 7)
    desc = tvmdml.MatrixMultiplyInteger.of(TensorDesc("uint8", a.shape), None, TensorDesc("int8", b.shape))
    for levels in ((BEYOND,), (BEYOND, "cpu:x86-64-v3")):
        path = tmp_path / f"{len(levels)}.tvmdml"
        packs.build(Spec(levels, (Wanted(desc),), {}), path, jobs=1)
    script = f"""
import numpy as np, tvmdml
from tvmdml import packs
a, b = (np.frombuffer(bytes.fromhex(text), kind).reshape(sizes) for text, kind, sizes in (
    ({a.tobytes().hex()!r}, np.uint8, (33, 130)), ({b.tobytes().hex()!r}, np.int8, (130, 40))))
packs.load_pack({str(tmp_path / "1.tvmdml")!r})
try:
    tvmdml.matrix_multiply_integer(a, b)
except tvmdml.CompileError as error:
    assert "amx-int8" in str(error) and "does not run here" in str(error), error
else:
    raise AssertionError("it ran")
packs.load_pack({str(tmp_path / "2.tvmdml")!r})
assert np.array_equal(tvmdml.matrix_multiply_integer(a, b), a.astype(int) @ b)
"""
    python(script, may_complain=True, TVMDML_DISABLE_JIT="1", TVMDML_CACHE_DIR=str(tmp_path / "empty"))
