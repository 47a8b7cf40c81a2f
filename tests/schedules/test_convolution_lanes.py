"""Convolutions by vectors of filters: bytes are exact, floats have the bits of other ways, and nothing outside is touched."""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import fenced
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support import Array, assert_outputs_agree, reference, seeded

import tvmdml
from tvmdml import TensorDesc, knobs, targets
from tvmdml.kernels.kernel import Kernel
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators import Operator
from tvmdml.schedules.cpu import _convolution_last as last
from tvmdml.schedules.cpu import _convolution_register_tile as lanes
from tvmdml.schedules.cpu import convolution
from tvmdml.targets.cpu import host

T = TensorDesc
CPU = targets.resolve("cpu:" + "+".join(one for one in host.host().name.split("+") if not one.startswith("amx-")))
"""This processor without matrix tiles, which have kernels and tests of their own."""
pytestmark = pytest.mark.skipif(not host.chosen().has("avx512vnni"), reason="these kernels need AVX-512 and its VNNI")
TILES = ((7, 1, 3), (3, 2, 2), (2, 3, 1), (12, 1, 2))
NUMBERS = ("strides", "dilations", "start_padding", "end_padding")


@st.composite
def geometries(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """The sizes of an image and its filters, and numbers."""
    rank = draw(st.integers(1, 2))
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    channels, filters = draw(st.integers(1, 40)), draw(st.integers(16, 70))
    each = [draw(st.tuples(*(st.integers(1, most) for most in (5, 3, 2)))) for _ in range(rank)]
    kernel, strides, dilations = zip(*each, strict=True)
    padding = [[draw(st.integers(0, 2)) for _ in range(rank)] for _ in range(2)]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    image = [max(1, span - p - q) + draw(st.integers(0, 20)) for span, p, q in zip(spans, *padding, strict=True)]
    numbers = dict(zip(NUMBERS, (strides, dilations, *map(tuple, padding)), strict=True))
    sizes = (draw(st.integers(1, 2)), groups * channels, *image)
    return sizes, (groups * filters, channels, *kernel), {**numbers, "group_count": groups}


def desc_of(array: Array | None) -> TensorDesc | None:
    return None if array is None else T(array.dtype, array.shape)


def whole(random: np.random.Generator, dtype: str, sizes: tuple[int, ...]) -> Array:
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max, sizes, dtype, endpoint=True)


def owning(desc: Operator, *names: str) -> Any:
    flags = {name: dataclasses.replace(getattr(desc, name), flags="OWNED_BY_DML") for name in names}
    return dataclasses.replace(desc, **flags)  # type: ignore[type-var]


def in_all_places(desc: Operator, inputs: tuple[Array | None, ...], expected: Any) -> None:
    """Between fences, with the filter given in a call, and before."""
    for one in (desc, owning(desc, "filter_tensor")):
        for source, result in ((True, False), (False, True)):
            work = fenced.Work(one, CPU)
            found = fenced.run(work, inputs, "kernel", fenced.Place(at_end=source), fenced.Place(at_end=result))
            assert_outputs_agree(desc, found, expected)


@st.composite
def blocks(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The sizes of an image, of filters that meet each place once, and of those of the output."""
    rank = draw(st.integers(1, 3))
    kernel = (*(draw(st.integers(1, 3)) for _ in range(rank - 1)), draw(st.sampled_from([1, 2, 4])))
    width = draw(st.integers(16, 40))
    image = (*(draw(st.integers(1, 4)) for _ in range(rank - 1)), width if rank > 1 else 48 + width)
    groups, channels, filters = draw(st.sampled_from([1, 2])), draw(st.integers(1, 30)), draw(st.integers(8, 30))
    return (draw(st.integers(1, 2)), groups * channels, *image), (groups * channels, filters, *kernel), (groups, *kernel)


@pytest.mark.usefixtures("in_parallel")
@settings(max_examples=8)
@given(blocks(), st.sampled_from([0, 1, 600]))
def test_blocks_have_the_bits_of_other_ways(sizes: Any, more: int) -> None:
    """Steps as large as filters; ``more``: channels, of which sums have several blocks."""
    image, filters, (groups, *kernel) = sizes
    image, filters = ((*image[:1], image[1] + groups * more, *image[2:]), (filters[0] + groups * more, *filters[1:]))
    zeros, random = (0,) * len(kernel), seeded(str(sizes), more)
    x, w = (random.standard_normal(one).astype(np.float32) for one in (image, filters))
    bias = random.standard_normal((1, groups * filters[1], *(1 for _ in kernel))).astype(np.float32)
    numbers = dict(zip(NUMBERS, (tuple(kernel), tuple(1 for _ in kernel), zeros, zeros), strict=True))
    usual = {"mode": "cross_correlation", "direction": "backward", "output_padding": zeros, "group_count": groups}
    desc = tvmdml.Convolution.of(*map(desc_of, (x, w, bias)), **usual, **numbers, fused_activation=tvmdml.ActivationElu.fused())
    wanted = [np.empty(one.sizes, one.data_type.numpy) for one in desc.outputs()]
    tvmdml.compile(desc, target=targets.resolve("cpu:x86-64-v3").name)(x, w, bias, *wanted)
    assume(math.prod(image[2:]) >= 48)
    with knobs.using(matrix={"task_image_products": 1 << 10}):
        assert kernel_for(desc, CPU).name == "spread" or math.prod(kernel) == 1
        in_all_places(desc, (x, w, bias), tuple(wanted))


@settings(max_examples=12)
@given(geometries(), st.sampled_from(["uint8", "int8"]), st.sampled_from(["uint8", "int8"]), st.sampled_from([0, 1, 2]))
def test_bytes_are_exact(geometry: Any, x_type: str, w_type: str, zeros: int) -> None:
    sizes, filters, numbers = geometry
    random = seeded(str(geometry), x_type, w_type)
    x, w = whole(random, x_type, sizes), whole(random, w_type, filters)
    ones = (1,) * len(sizes)
    x_zero = whole(random, x_type, ones) if zeros else None
    w_zero = whole(random, w_type, (1, filters[0], *ones[2:]) if zeros == 2 else ones) if zeros else None
    inputs = x, x_zero, w, w_zero
    desc = tvmdml.ConvolutionInteger.of(*map(desc_of, inputs), **numbers)
    if matrix_serves(desc):
        return
    assert kernel_for(desc, CPU).name == "lanes"
    in_all_places(desc, inputs, reference(desc, *inputs))


@settings(max_examples=10)
@given(geometries(), st.sampled_from(["float32", "float16"]), st.booleans(), st.booleans(), st.booleans())
def test_floats_have_the_bits_of_other_ways(geometry: Any, dtype: str, biased: bool, backward: bool, turned: bool) -> None:
    sizes, filters, numbers = geometry
    count, _, *kernel = filters
    if backward:
        spans = zip(sizes[2:], kernel, *(numbers[name] for name in NUMBERS), strict=True)
        assume(all((size - 1) * s + (k - 1) * d + 1 > p + q for size, k, s, d, p, q in spans))
        filters = (sizes[1], count // numbers["group_count"], *kernel)
    random = seeded(str(geometry), dtype)
    x, w = (random.standard_normal(one).astype(dtype) for one in (sizes, filters))
    bias = random.standard_normal((1, count, *(1 for _ in kernel))).astype(dtype) if biased else None
    usual = {
        "mode": "convolution" if turned else "cross_correlation",
        "direction": "backward" if backward else "forward",
        "output_padding": (0,) * len(kernel),
    }
    desc = tvmdml.Convolution.of(*map(desc_of, (x, w, bias)), **usual, **numbers, fused_activation=tvmdml.ActivationRelu.fused())
    wanted = [np.empty(one.sizes, one.data_type.numpy) for one in desc.outputs()]
    without = targets.resolve("cpu:x86-64-v3")
    assert kernel_for(desc, without).name != "lanes"
    tvmdml.compile(desc, target=without.name)(x, w, bias, *wanted)
    in_all_places(desc, (x, w, bias), tuple(wanted))


def channels_last(tensor: TensorDesc) -> TensorDesc:
    _, channels, *places = tensor.sizes
    steps = [channels * math.prod(places[i + 1 :]) for i in range(len(places))]
    return dataclasses.replace(tensor, strides=(channels * math.prod(places), 1, *steps), total_tensor_size_in_bytes=None)


@settings(max_examples=6)
@given(geometries(), st.booleans(), st.booleans(), st.booleans())
def test_channels_last_have_the_bits_of_channels_first(geometry: Any, reads: bool, writes: bool, biased: bool) -> None:
    sizes, filters, numbers = geometry
    random = seeded(str(geometry), reads, writes)
    x, w = (random.standard_normal(one).astype(np.float32) for one in (sizes, filters))
    bias = random.standard_normal((1, filters[0], *(1 for _ in sizes[2:]))).astype(np.float32) if biased else None
    usual = {"mode": "cross_correlation", "direction": "forward", "output_padding": (0,) * (len(sizes) - 2)}
    desc: Any = tvmdml.Convolution.of(
        *map(desc_of, (x, w, bias)), **usual, **numbers, fused_activation=tvmdml.ActivationRelu.fused()
    )
    wanted = [np.empty(one.sizes, one.data_type.numpy) for one in desc.outputs()]
    tvmdml.compile(desc)(x, w, bias, *wanted)
    image = channels_last(desc.input_tensor) if reads else desc.input_tensor
    output = channels_last(desc.output_tensor) if writes else desc.output_tensor
    turned = dataclasses.replace(desc, input_tensor=image, output_tensor=output)
    if not matrix_serves(turned):
        assert kernel_for(owning(turned, "filter_tensor"), CPU).name == "last"
    in_all_places(turned, (x, w, bias), tuple(wanted))


@pytest.mark.usefixtures("in_parallel")
@pytest.mark.parametrize("tile", [*TILES[:2], (7, 1, 4)], ids=str)
def test_channels_last_do_not_depend_on_tiles_and_tasks(tile: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    random = seeded("last")
    numbers: dict[str, Any] = dict(zip(NUMBERS, ((1, 2), (1, 1), (1, 0), (1, 1)), strict=True))
    usual: dict[str, Any] = {"mode": "cross_correlation", "direction": "forward", "output_padding": (0, 0), "group_count": 1}
    inputs = (*(random.standard_normal(one).astype(np.float32) for one in ((1, 45, 13, 19), (70, 45, 3, 3))), None)
    desc: Any = tvmdml.Convolution.of(*map(desc_of, inputs), **usual, **numbers)
    wanted = [np.empty(one.sizes, one.data_type.numpy) for one in desc.outputs()]
    tvmdml.compile(desc)(*inputs, *wanted)
    turned = dataclasses.replace(desc, output_tensor=channels_last(desc.output_tensor))
    for width, wide in ((8, turned), (16, turned), (16, desc)):
        with monkeypatch.context() as patch:
            patch.setattr(last, "lanes_of", lambda target, width=width: width)
            with knobs.using(matrix=wanting(tile, order="filters" if width == 8 else "places", block=2 * width, follow=4)):
                kernel = kernel_for(owning(wide, "filter_tensor"), CPU)
                assert (kernel.name, tasks_of(kernel) > 1) == ("last", True)
                in_all_places(wide, inputs, tuple(wanted))


@pytest.mark.usefixtures("in_parallel")
@pytest.mark.parametrize("writes", [True, False], ids=["channels last", "channels first"])
@pytest.mark.parametrize(
    ("sizes", "filters", "geometry"),
    [
        ((2, 21, 43, 7), (34, 21, 3, 3), ((1, 1), (1, 1), (1, 1), (1, 1))),
        ((1, 40, 90, 9), (32, 20, 4, 2), ((3, 2), (1, 2), (5, 0), (2, 1))),
        ((1, 17, 36, 5), (19, 17, 2, 1), ((1, 1), (3, 1), (0, 0), (9, 0))),
    ],
    ids=["two images", "groups and strides", "far padding"],
)
def test_bands_of_a_large_image_have_the_sums_of_the_whole(
    sizes: tuple[int, ...], filters: tuple[int, ...], geometry: Any, writes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, numbers = seeded("bands", sizes), dict(zip(NUMBERS, geometry, strict=True))
    usual: dict[str, Any] = {"mode": "cross_correlation", "direction": "forward", "output_padding": (0, 0)}
    inputs = (*(random.standard_normal(one).astype(np.float32) for one in (sizes, filters)), None)
    desc: Any = tvmdml.Convolution.of(*map(desc_of, inputs), **usual, **numbers, group_count=sizes[1] // filters[1])
    wanted = [np.empty(one.sizes, one.data_type.numpy) for one in desc.outputs()]
    tvmdml.compile(desc)(*inputs, *wanted)
    turned = dataclasses.replace(desc, output_tensor=channels_last(desc.output_tensor)) if writes else desc
    for most, bands in ((1 << 30, 1), (1, 3)):
        monkeypatch.setattr(last, "_BAND", most)
        kernel = kernel_for(owning(turned, "filter_tensor"), CPU)
        assert kernel.name == "last"
        assert kernel.scalars[last._NUMBERS.index("bands")] >= bands
        in_all_places(turned, inputs, tuple(wanted))


@pytest.mark.parametrize(
    ("places", "filters", "way"), [((4, 4), 130, "last"), ((7, 7), 395, "last"), ((2, 2), 395, ""), ((7, 7), 390, "")]
)
def test_many_filters_of_one_tap_are_read_once(places: tuple[int, int], filters: int, way: str) -> None:
    random = seeded(places, filters)
    numbers: dict[str, Any] = dict(zip(NUMBERS, ((1, 1), (1, 1), (0, 0), (0, 0)), strict=True))
    usual: dict[str, Any] = {"mode": "cross_correlation", "direction": "forward", "output_padding": (0, 0), "group_count": 1}
    x, w = (random.standard_normal(one).astype(np.float32) for one in ((2, 300, *places), (filters, 300, 1, 1)))
    bias = random.standard_normal((1, filters, 1, 1)).astype(np.float32)
    desc: Any = tvmdml.Convolution.of(*map(desc_of, (x, w, bias)), **usual, **numbers)
    wanted = [np.empty(one.sizes, one.data_type.numpy) for one in desc.outputs()]
    tvmdml.compile(desc)(x, w, bias, *wanted)
    turned = dataclasses.replace(
        desc, input_tensor=channels_last(desc.input_tensor), output_tensor=channels_last(desc.output_tensor)
    )
    assert (kernel_for(owning(turned, "filter_tensor"), CPU).name == "last") == bool(way)
    in_all_places(turned, (x, w, bias), tuple(wanted))


def matrix_serves(desc: Any) -> bool:
    return convolution.matrix.plain(desc.contraction().simplified()) is not None


@pytest.mark.usefixtures("in_parallel")
@pytest.mark.some(3)
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("kind", ["float32", "uint8"])
def test_bits_do_not_depend_on_tiles_and_tasks(tile: tuple[int, int, int], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    random = seeded(kind)
    numbers: dict[str, Any] = dict(zip(NUMBERS, ((1, 2), (1, 1), (1, 0), (1, 1)), strict=True))
    for sizes, filters in (((1, 40, 13, 19), (50, 40, 3, 3)), ((2, 6, 5, 30), (33, 6, 2, 3))):
        if kind == "uint8":
            inputs: tuple[Any, ...] = whole(random, kind, sizes), None, whole(random, "int8", filters), None
            desc: Any = tvmdml.ConvolutionInteger.of(*map(desc_of, inputs), **numbers, group_count=1)
        else:
            inputs = (*(random.standard_normal(one).astype(kind) for one in (sizes, filters)), None)
            desc = tvmdml.Convolution.of(
                *map(desc_of, inputs),
                mode="cross_correlation",
                direction="forward",
                output_padding=(0, 0),
                **numbers,
                group_count=1,
            )
        wanted = [np.empty(one.sizes, one.data_type.numpy) for one in desc.outputs()]
        tvmdml.compile(desc)(*inputs, *wanted)
        with monkeypatch.context() as patch:
            patch.setattr(lanes, "suits", lambda desc, plan, target: True)
            with knobs.using(matrix=wanting(tile)):
                kernel = kernel_for(owning(desc, "filter_tensor"), CPU)
                run = min(tile[0], desc.output_tensor.sizes[-1])
                if kind == "uint8":
                    assert (kernel.name, dict(kernel.parameters)["tile"]) == ("lanes", str((run, *tile[1:])))
                else:
                    choices = {name: ast.literal_eval(dict(kernel.parameters)[name]) for name in ("tile", "lanes")}
                    assert kernel.name == "last"
                    assert choices["tile"] in nearest(tile[0], tile[2], last.TILES[choices["lanes"]])
                assert tasks_of(kernel) > 1
                in_all_places(desc, inputs, tuple(wanted))


@pytest.mark.parametrize(
    ("image", "filters", "padding"),
    [
        ((1, 30, 80, 80), (64, 30, 3, 3), 1),
        ((20, 60, 14, 14), (64, 30, 3, 3), 1),
        ((3, 300, 14, 14), (64, 300, 1, 1), 0),
    ],
    ids=["one image in parts", "several images at a time, in groups", "images that are read as they are"],
)
def test_filters_given_in_a_call_serve_many_tiles(image: Any, filters: Any, padding: int) -> None:
    pair, random = (padding, padding), seeded("parts", padding)
    numbers: dict[str, Any] = dict(zip(NUMBERS, ((1, 1), (1, 1), pair, pair), strict=True))
    inputs = (*(random.standard_normal(one).astype(np.float32) for one in (image, filters)), None)
    usual: dict[str, Any] = {"mode": "cross_correlation", "direction": "forward", "output_padding": (0, 0)}
    desc: Any = tvmdml.Convolution.of(*map(desc_of, inputs), **usual, **numbers, group_count=image[1] // filters[1])
    wanted = [np.empty(one.sizes, one.data_type.numpy) for one in desc.outputs()]
    with knobs.using(matrix={"order": "places"}):
        assert dict(kernel_for(desc, CPU).parameters)["late"] == "False"
        tvmdml.compile(desc)(*inputs, *wanted)
    assert dict(kernel_for(desc, CPU).parameters)["late"] == "True"
    in_all_places(desc, inputs, tuple(wanted))
    with knobs.using(matrix={"task_image_products": 1 << 20}):
        found = [np.empty_like(one) for one in wanted]
        tvmdml.compile(desc)(*inputs, *found)
        assert_outputs_agree(desc, tuple(found), tuple(wanted))


def tasks_of(kernel: Kernel) -> int:
    """The number of tasks, an integer of the launch."""
    return kernel.scalars[-3 if kernel.name == "lanes" else len(last._NUMBERS) + 5]


def nearest(run: int, vectors: int, tiles: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The tiles of places that follow each other that are nearest to what knobs want; their cost decides between equals."""
    distances = {tile: abs(tile[0] - run) + abs(tile[1] - vectors) for tile in tiles}
    return [tile for tile, distance in distances.items() if distance == min(distances.values())]


def wanting(tile: tuple[int, int, int], **more: Any) -> dict[str, Any]:
    """Knobs for a tile, and for several tasks."""
    return {**dict(zip(("run", "lines", "vectors"), tile, strict=True)), "task_image_products": 1 << 10, **more}


def test_quantized_convolutions_are_right() -> None:
    random = seeded("quantized")
    for output, image in (("uint8", (9, 11)), ("int8", (9, 11)), ("int8", (1, 1))):
        sizes, filters, one, each = (1, 30, *image), (40, 30, 3, 3), (1, 1, 1, 1), (1, 40, 1, 1)
        inputs = (
            *(whole(random, "int8", sizes), np.full(one, 0.02, np.float32), np.full(one, 20, np.int8)),
            *(whole(random, "int8", filters), random.uniform(0.01, 0.02, each).astype(np.float32), None),
            *(random.integers(-999, 999, each, np.int32), np.full(one, 9.5, np.float32), np.full(one, 9, output)),
        )
        numbers = dict(zip(NUMBERS, ((1, 1), (1, 1), (1, 1), (1, 1)), strict=True))
        desc = tvmdml.QuantizedLinearConvolution.of(*map(desc_of, inputs), **numbers, group_count=1)
        assert kernel_for(desc, CPU).name == "lanes"
        in_all_places(desc, inputs, reference(desc, *inputs))


def test_what_serves_what() -> None:
    def name(channels: int, size: int, filters: int, kernel: int, **given: Any) -> str:
        x = T("float32", (1, channels, size, size))
        w = T("float32", (filters, channels, kernel, kernel), flags=given.pop("flags", "OWNED_BY_DML"))
        numbers = {name: ((0, 0) if "padding" in name else (1, 1)) for name in NUMBERS}
        usual = {"mode": "cross_correlation", "direction": "forward", "output_padding": (0, 0), "group_count": 1}
        desc = tvmdml.Convolution.of(x, w, None, **{**usual, **numbers, **given})
        return kernel_for(desc, CPU).name

    assert name(64, 9, 64, 3) == name(64, 64, 64, 3) == name(3, 64, 64, 5) == "last"
    assert name(64, 9, 64, 3, mode="convolution") == "lanes", "turned"
    assert name(64, 9, 64, 3, direction="backward") == "lanes", "transposed"
    assert name(64, 16, 64, 2, direction="backward", strides=(2, 2)) == "spread", "transposed, and each place is a block"
    assert name(64, 9, 8, 3) == "direct", "few filters"
    assert name(64, 16, 64, 1) == "tiles", "one tap"
    assert name(256, 14, 256, 1, flags="NONE") == "lanes", "one tap, and many channels on few pages"
    assert name(256, 28, 128, 1, flags="NONE") == "tiles", "on many pages"
    assert name(64, 9, 64, 1) == "last", "one tap, and places that fill few vectors"
    assert name(64, 9, 64, 1, flags="NONE") == "lanes", "the same with filters that are given in a call"
    assert name(64, 64, 64, 3, flags="NONE") == "lanes", "filters that are given in a call"
    assert name(64, 64, 40, 3, flags="NONE") == "direct", "the same that do not fill vectors"
    assert name(256, 16, 64, 1, flags="NONE") == "lanes", "the same with one tap and many channels"
