"""Products on a GPU by tensor cores or subgroups' matrices, and copies that go on meanwhile: tiles, layouts, ways of moving."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import programs
import pytest
from spirv_words import declared, instructions, widths
from support import Array, assert_outputs_agree, assert_same_bits, reference, seeded

import tvmdml
from tvmdml import knobs, targets
from tvmdml.library.scheduling import kernel_for
from tvmdml.schedules.gpu._matrix_tiles import TILES
from tvmdml.targets import Target
from tvmdml.targets.vulkan import VulkanTarget, compile_function
from tvmdml.targets.vulkan.capabilities import PROFILES
from tvmdml.targets.vulkan.spirv_tables import MEMORY_MODEL, MEMORY_OPERANDS, SIGNED, STORAGE_CLASS, SUBGROUP, WORKGROUP

F16, F32 = np.float16, np.float32
CASES: dict[str, tuple[tuple[int, int, int], str, str, dict[str, Any]]] = {
    "whole runs": ((24, 264, 40), "nn", "half single", {"tile": "32x32"}),
    "whole runs, turned": ((24, 40, 72), "tt", "half byte", {"tile": "32x64", "stages": 4}),
    "pairs": ((20, 34, 6), "nt", "half", {"tile": "16x16", "stages": 2}),
    "one by one": ((17, 33, 65), "tn", "half byte single", {"tile": "64x16", "depth": 8}),
    "one stage": ((33, 40, 36), "nt", "half", {"tile": "64x64", "stages": 1}),
    "blocks": ((16, 600, 20), "nn", "half byte", {"tile": "16x64", "algorithm": "blocks"}),
    "a row": ((1, 40, 48), "nn", "half", {"depth": 32}),
}
HELD: dict[str, tuple[tuple[int, int, int], str, str, dict[str, Any]]] = {
    "long sums": ((20, 600, 36), "nn", "half", {"tile": "32x32", "algorithm": "tiles"}),
    "long sums, turned": ((36, 530, 20), "tt", "half", {"tile": "16x16", "algorithm": "tiles", "stages": 1}),
}
"""Sizes, whether factors are turned (t), types, and knobs."""


def product(device: Target, desc: tvmdml.Operator, given: dict[str, Any], *arrays: Array | None) -> tuple[str, Array]:
    """A product with these knobs, and how it is computed and moved."""
    with knobs.using(matrix=given):
        kernel = kernel_for(desc.canonical(), device)
        out = device.empty(*(desc.output_tensor.sizes, desc.output_tensor.data_type.numpy))  # type: ignore[attr-defined]
        tvmdml.compile(desc, target=device)(*(None if one is None else device.place(one) for one in arrays), out)
    parameters = dict(kernel.parameters)
    return f"{kernel.name} {parameters.get('leaf')} {parameters.get('moved')}", np.asarray(out.numpy())


def turned(x: Array, how: str) -> Array:
    """The same matrix, with neighbours in memory along its columns."""
    return np.asfortranarray(x) if how == "t" else x


def described(*arrays: Array) -> list[tvmdml.TensorDesc]:
    """How they lie in memory."""
    return [tvmdml.TensorDesc(x.dtype, x.shape, [step // x.itemsize for step in x.strides]) for x in arrays]


@pytest.mark.full
def test_small_integers_are_exact_in_every_way(cuda: Target) -> None:
    ways = set()
    for name, ((m, k, n), how, types, given) in CASES.items():
        rng = seeded("products", name)
        a, b, c = (rng.integers(-3, 4, one) for one in ((m, k), (k, n), (m, n)))
        for kind in types.split():
            if kind == "byte":
                x, y = turned(a.astype(np.int8), how[0]), turned((b + 100).astype(np.uint8), how[1])
                zeros = (x[:, :1].copy() if m > 20 else x[:1, :1].copy()), (y[:1].copy() if n > 30 else y[:1, :1].copy())
                arrays: tuple[Array, ...] = (x, zeros[0], y, zeros[1])
                desc: tvmdml.Operator = tvmdml.MatrixMultiplyInteger.of(*described(*arrays))
                wanted = (x.astype(int) - zeros[0]) @ (y.astype(int) - zeros[1])
            else:
                dtype = F16 if kind == "half" else F32
                arrays = (turned(a.astype(dtype), how[0]), turned(b.astype(dtype), how[1]), c.astype(dtype))
                relu = tvmdml.ActivationRelu.fused() if name == "pairs" else None
                desc = tvmdml.Gemm.of(*described(*arrays), alpha=2.0, beta=-1.0, fused_activation=relu)
                wanted = 2 * (a @ b) - c
                wanted = wanted if relu is None else np.maximum(wanted, 0)
            way, found = product(cuda, desc, given, *arrays)
            assert (found == wanted).all(), (name, kind)
            ways.add(way)
    for one, other in (
        ("cores", "copied"),
        ("plain", "copied"),
        ("cores", "crossed"),
        ("cores", "'own 1'"),
        ("blocks", "cores"),
        ("each", "None"),
    ):
        assert any(one in way and other in way for way in ways), (one, other)


@pytest.mark.full
@pytest.mark.parametrize("zeros", [False, True])
def test_rows_of_bytes_begin_anywhere(cuda: Target, zeros: bool) -> None:
    """Words are made of those around, but none is read behind the end of a factor: that of every size lies elsewhere in a word.

    In the emulator nobody may read behind 256 bytes, or a multiple, which the factors of two sizes have.
    """
    rng, ways = seeded("loose", zeros), set()
    for m, k, n in (
        (17, 33, 65),
        (19, 3, 17),
        (33, 47, 35),
        (20, 77, 333),
        (21, 1, 18),
        (18, 16, 21),
        (18, 37, 36),
        (18, 36, 36),
        (256, 33, 19),
        (17, 256, 19),
    ):
        x, y = rng.integers(0, 256, (m, k)).astype(np.uint8), rng.integers(-128, 128, (k, n)).astype(np.int8)
        a, b = (rng.integers(1, 100, size).astype(kind) for size, kind in (((m, 1), np.uint8), ((1, n), np.int8)))
        arrays = (x, a, y, b) if zeros else (x, None, y, None)
        desc = tvmdml.MatrixMultiplyInteger.of(*(None if one is None else described(one)[0] for one in arrays))
        way, found = product(cuda, desc, {}, *arrays)
        assert (found == ((x - a.astype(int)) @ (y - b.astype(int)) if zeros else x.astype(int) @ y)).all(), (m, k, n)
        ways.add(way)
    for one in ("'inner 16 loose'", "'own 4 crossed loose'", "'own 4 crossed'", "'own 4 crossed even'"):
        assert any(one in way for way in ways), (one, ways)


@pytest.mark.full
def test_filters_whose_products_lie_in_any_order_are_read_so(cuda: Target) -> None:
    rng = seeded("filters in any order")
    x, w = (np.asfortranarray(rng.integers(-128, 128, size).astype(np.int8)) for size in ((2, 3, 5, 7), (2, 3, 2, 2)))
    zeros = [np.full((1, 1, 1), value, np.int8) for value in (5, 7)]
    more = {"strides": [3, 3], "dilations": [2, 2], "start_padding": [0, 0], "end_padding": [3, 3], "group_count": 1}
    for one in (w, np.asfortranarray(np.repeat(w, 2, 0)), np.ascontiguousarray(w)):
        arrays = (x, zeros[0], one, zeros[1])
        desc = tvmdml.ConvolutionInteger.of(*described(*arrays), **more)
        _, found = product(cuda, desc, {}, *arrays)
        assert_outputs_agree(desc, (found,), reference(desc, *arrays))


@pytest.mark.full
def test_sums_of_float16_have_one_order(cuda: Target) -> None:
    """Whatever the tile, the step, the stages, the layout and the number of groups that share a sum."""
    rng = seeded("order of float16")
    a, b = rng.normal(size=(20, 328)).astype(F16), rng.normal(size=(328, 24)).astype(F16)
    desc = tvmdml.Gemm.of(tvmdml.TensorDesc("float16", a.shape), tvmdml.TensorDesc("float16", b.shape), alpha=2.0**-12)
    found = [
        product(cuda, desc, given, a * F16(2**6), b * F16(2**6), None)[1]
        for given in (
            {"tile": "128x128", "algorithm": "tiles"},
            {"tile": "16x16", "algorithm": "blocks"},
            {"depth": 8, "stages": 2},
        )
    ]
    wanted = a.astype(np.float64) @ b
    limit = (1.01 * 328 + 4) * 2.0**-24 * (np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))) + 2.0**-11 * np.abs(wanted)
    assert (np.abs(found[0] - wanted) <= limit + 2.0**-25).all()
    for one in found[1:]:
        assert_same_bits(one, found[0])


def need_matrices(device: VulkanTarget, dtype: str) -> None:
    if device.matrices(dtype) is None:
        pytest.skip(f"{device.info.driver if device.info else device} has no VK_KHR_cooperative_matrix for {dtype}")


def test_matrices_of_subgroups_are_exact_in_every_way(vulkan: VulkanTarget) -> None:
    need_matrices(vulkan, "float16")
    ways = set()
    for name, ((m, k, n), how, types, given) in {**CASES, **HELD}.items():
        if "half" not in types:
            continue
        rng = seeded("matrices", name)
        a, b, c = (rng.integers(-3, 4, one) for one in ((m, k), (k, n), (m, n)))
        arrays = (turned(a.astype(F16), how[0]), turned(b.astype(F16), how[1]), c.astype(F16))
        desc = tvmdml.Gemm.of(*described(*arrays), alpha=2.0, beta=-1.0, fused_activation=tvmdml.ActivationRelu.fused())
        way, found = product(vulkan, desc, given, *arrays)
        assert (found == np.maximum(2 * (a @ b) - c, 0)).all(), name
        ways.add(way)
    for one in ("tiles held", "blocks held", "'own 1'", "'own 8'", "'inner 8'", "each"):
        assert any(one in way for way in ways), (one, ways)


def test_matrices_of_bytes_are_exact_with_all_signs_and_zero_points(vulkan: VulkanTarget, draw: Any) -> None:
    """All bytes, in tiles and blocks; zero points that there are not, of all, and of each row or column."""
    need_matrices(vulkan, "int8")
    signs, kinds, ways = (np.int8, np.uint8), (0, 1, 2), set()
    factors = [*itertools.product(signs, signs, kinds, kinds)]
    names = [name for name in CASES if name != "a row"]
    for name, (one, other, left, right) in ((name, drawn) for name in names for drawn in draw(factors, 2)):
        (m, k, n), how, _, given = CASES[name]
        rng = seeded("matrices of bytes", name)
        a, b = (rng.integers(0, 256, sizes, np.uint8) for sizes in ((m, k), (k, n)))
        x, y = turned(a.view(one), how[0]), turned(b.view(other), how[1])
        zeros = [
            None if kind == 0 else rng.integers(0, 256, sizes[kind - 1], np.uint8).view(dtype)
            for kind, dtype, sizes in ((left, one, ((1, 1), (m, 1))), (right, other, ((1, 1), (1, n))))
        ]
        given_arrays = (x, zeros[0], y, zeros[1])
        desc = tvmdml.MatrixMultiplyInteger.of(*(None if array is None else described(array)[0] for array in given_arrays))
        way, found = product(vulkan, desc, given, *given_arrays)
        wanted = (x - np.int64(0 if zeros[0] is None else zeros[0])) @ (y - np.int64(0 if zeros[1] is None else zeros[1]))
        assert (found == wanted).all(), (name, one, other, left, right)
        ways.add(way)
    for word in ("tiles held", "blocks held", "'own 1'", "'inner 1'", "'own 8'", "'inner 8'"):
        assert any(word in way for way in ways), (word, ways)


@pytest.mark.parametrize(
    ("dtype", "small"), [("float16", (16, 8, 16)), ("int8", (16, 16, 32)), ("uint8", (16, 8, 32))], ids=["float16", "int8", "uint8"]
)
def test_a_kernel_with_matrices_has_the_memory_model_that_they_need(dtype: str, small: tuple[int, int, int]) -> None:
    """It multiplies words, and elements without a zero point of their own if bytes have signs."""
    name, held = "x".join(map(str, small)), "float16" if dtype == "float16" else "int8"
    able = PROFILES["desktop"]._replace(subgroup=("basic",), matrices=(f"{held}x{name}",))
    a = tvmdml.TensorDesc(dtype, (256, 256))
    desc = tvmdml.Gemm.of(a, a) if dtype == "float16" else tvmdml.MatrixMultiplyInteger.of(a, None, a)
    kernel = kernel_for(desc.canonical(), VulkanTarget("able", able, None))
    assert dict(kernel.parameters)["leaf"] == f"held {name} by 32"
    rows, columns, depth = small
    (image,) = compile_function(kernel.build(), able).images
    code = [*instructions(image.content)]
    assert {"CooperativeMatrixKHR", "VulkanMemoryModel", held.capitalize()} <= declared(image.content)
    assert [operands for name, operands in code if name == "MemoryModel"] == [(0, MEMORY_MODEL["Vulkan"])]
    constants = {operands[1]: operands[2] for name, operands in code if name == "Constant"}
    types = [tuple(constants[one] for one in operands[2:]) for name, operands in code if name == "TypeCooperativeMatrixKHR"]
    assert sorted(types) == sorted([(SUBGROUP, rows, depth, 0), (SUBGROUP, depth, columns, 1), (SUBGROUP, rows, columns, 2)])
    products = [operands[5:] for name, operands in code if name == "CooperativeMatrixMulAddKHR"]
    assert set(products) == {() if dtype == "float16" else (SIGNED,)}
    ones = sum(name == "ConstantComposite" and constants.get(operands[2]) == 1 for name, operands in code)
    assert ones == (2 if dtype == "uint8" else 0)
    shared = {operands[0] for name, operands in code if name == "TypePointer" and operands[1] == STORAGE_CLASS["Workgroup"]}
    places = {operands[1] for name, operands in code if name == "AccessChain" and operands[0] in shared}
    seen = {"Load": 0, "Store": 0, "CooperativeMatrixLoadKHR": 0, "CooperativeMatrixStoreKHR": 0}
    for name, operands in code:
        if name in seen and operands[0 if "Store" in name else 2] in places:
            seen[name] += 1
            side = "Available" if "Store" in name else "Visible"
            assert operands[-2] == MEMORY_OPERANDS[f"MakePointer{side}|NonPrivatePointer"]
            assert constants[operands[-1]] == WORKGROUP
    assert all(seen.values()), seen


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_100", "sm_107", "sm_110", "sm_75,sm_90"])
def test_what_an_architecture_has_is_used(architecture: str) -> None:
    """Of several, what one of them has."""
    target = targets.resolve(f"cuda:{architecture}")
    packed = "plain packed" if architecture in ("sm_100", "sm_107") else "plain"
    for dtype, leaf in (("float16", "cores"), ("float32", packed), ("float64", "plain")):
        a = tvmdml.TensorDesc(dtype, (256, 256))
        parameters = dict(kernel_for(tvmdml.Gemm.of(a, a).canonical(), target).parameters)
        assert parameters["leaf"] == leaf
        assert all("copied" in way for way in parameters["moved"]) == (architecture != "sm_75")


LISTED = """
import os
import numpy as np, tvmdml
rng = np.random.default_rng(7)
a, b = rng.normal(size=(40, 300)).astype("float32"), rng.normal(size=(300, 72)).astype("float32")
x, y = (rng.integers(-100, 100, size).astype("int8") for size in ((40, 320), (320, 64)))
image, weights = (rng.normal(size=size).astype("float32") for size in ((1, 6, 19, 21), (20, 6, 3, 3)))
around = dict(strides=[1, 2], dilations=[2, 1], start_padding=[2, 1], end_padding=[1, 0], group_count=1)
plain = dict(mode="cross_correlation", direction="forward", output_padding=[0, 0], **around)
few, some = (abs(image) * 50).astype("uint8"), (weights * 20).astype("int8")
for cls, given, more in (
    (tvmdml.Gemm, (a, b, None), {}),
    (tvmdml.MatrixMultiplyInteger, (x, None, y, None), {}),
    (tvmdml.MatrixMultiplyInteger, (x[:, :301].copy(), None, y[:301, :63].copy(), None), {}),
    (tvmdml.Convolution, (image, weights, None), plain),
    (tvmdml.ConvolutionInteger, (few, None, some, None), around),
):
    descs = [None if one is None else tvmdml.TensorDesc(one.dtype, one.shape) for one in given]
    desc = cls.of(*descs, **more)
    out = np.zeros(desc.output_tensor.sizes, desc.output_tensor.data_type.numpy)
    tvmdml.compile(desc, os.environ["TARGET"])(*given, out)
    print(out.tobytes().hex())
"""


@pytest.mark.full
def test_what_one_architecture_of_a_list_has_changes_no_bit(cuda: Target) -> None:
    if "emulator" not in str(cuda.machine()):
        pytest.skip("a GPU has one architecture")
    runs = [
        ("90", "cuda:0"),
        ("90", "cuda:sm_75,sm_90"),
        ("75", "cuda:sm_75,sm_90"),
        ("100", "cuda:0"),
        ("90", "cuda:sm_90,sm_100"),
    ]
    found = {programs.python(LISTED, TVMDML_EMULATED_ARCH=number, TARGET=target) for number, target in runs}
    assert len(found) == 1


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", sorted(TILES, key=lambda name: name != "32x32"))
def test_tiles_of_floats_are_exact_and_moved_in_vectors(vulkan: VulkanTarget, name: str) -> None:
    """Four neighbours at once in a group's memory, and from a tensor where they are aligned, whatever they are neighbours along."""
    rng, given, tile = seeded(name), {"tile": name, "algorithm": "tiles"}, TILES[name]
    for depth, columns in ((270, 132), (270, 131), (272, 131)):
        a, b = (rng.integers(-8, 9, size).astype(F32) for size in ((70, depth), (depth, columns)))
        desc = tvmdml.Gemm.of(*described(a, b))
        way, got = product(vulkan, desc, given, a, b, None)
        assert_same_bits(got, a @ b, way)
        with knobs.using(matrix=given):
            function = kernel_for(desc.canonical(), vulkan).build()
        code = compile_function(function, vulkan.capabilities).images[0].content
        aligned, turned = columns % 4 == 0, depth % 4 == 0
        assert (4 in widths(code)) is (aligned or turned)
        assert widths(code, "Workgroup").count(4) >= tile.own_rows // 4 + tile.own_columns // 4 + aligned + 4 * turned


def test_loads_for_the_multiplications_of_a_large_tile(vulkan: VulkanTarget) -> None:
    """A thread of a GPU has 8 x 8 sums; that of a CPU has 16 x 16, as its registers are memory anyway."""
    desc = tvmdml.Gemm.of(*described(np.zeros((128, 64), F32), np.zeros((64, 128), F32)))
    for (_, target), staged, read in zip(vulkan.variants(), (6, 16), (32, 16), strict=True):
        with knobs.using(matrix={"tile": "128x128", "algorithm": "tiles"}):
            function = kernel_for(desc.canonical(), target).build()
        code = compile_function(function, target.capabilities).images[0].content
        assert [name for name, _ in instructions(code)].count("FMul") == 512
        assert widths(code, "Workgroup").count(4) == staged + read


def test_threads_with_several_sums_of_a_row_or_a_column(vulkan: VulkanTarget) -> None:
    """Also where they are not whole: the last sums of a few threads are not there."""
    rng = seeded()
    x, w = (rng.integers(-8, 9, size).astype(F32) for size in ((1, 8, 33, 35), (8, 1, 3, 3)))
    given: dict[str, Any] = {"group_count": 8, "start_padding": (1, 1), "end_padding": (1, 1)}
    found = tvmdml.convolution(x, w, device=vulkan, **given)
    assert_same_bits(np.asarray(found), np.asarray(tvmdml.convolution(x, w, device="cpu", **given)))
    a, b = (rng.integers(-8, 9, size).astype(F32) for size in ((5, 9001), (5, 2)))
    a = a.T
    desc = tvmdml.Gemm.of(*described(a, b))
    way, got = product(vulkan, desc, {}, a, b, None)
    assert way.startswith("each")
    assert_same_bits(got, a @ b)


@pytest.mark.full
def test_a_long_product_is_refused_for_the_rounds_that_it_has_only(vulkan: Target) -> None:
    """Mesa's software device leaves a thread's loops after 65,535 rounds: products that are unrolled are no rounds."""
    a, b = np.zeros((512, 64000), np.float32), np.zeros((512, 64000), np.float32)
    a[3], b[7] = 1, np.arange(64000) % 5
    a[3, -1] = 2.0
    (y,) = np.nonzero(result := tvmdml.gemm(a, b, trans_b="transpose", device=vulkan.name)[3])
    assert y.tolist() == [7]
    assert result[7] == b[7].sum() + b[7, -1]
