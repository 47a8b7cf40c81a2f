"""Resampling and regions: the contract's examples, PyTorch, and hostile numbers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from drawn import DEFAULT, OWN, Drawn
from fenced import Place, Work, run
from support import Array, assert_outputs_agree, desc_of, seeded

import tvmdml
from tvmdml.compiler import CompiledOperator
from tvmdml.enums import ReduceFunction
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators import by_name
from tvmdml.operators._accuracy import difference
from tvmdml.operators._resampling import grid_of
from tvmdml.operators._resampling_reference import AxisMapping
from tvmdml.operators.resample import Resample1, Resample3, ResampleGrad
from tvmdml.operators.roi_align import RoiAlign, RoiAlignGrad
from tvmdml.proof.bench.rows.movement import fold
from tvmdml.proof.bench.rows.roi_align import aligned
from tvmdml.proof.conformance.cases import Case
from tvmdml.proof.conformance.cases.roi_align import described
from tvmdml.targets import Target, resolve
from tvmdml.tensors import TensorDesc
from tvmdml.tensors.sizes import Record

f32 = np.float32
PLACES: dict[str, dict[str, Any]] = {
    "up": {},
    "down": {"rounding_direction": "decreasing"},
    "half": {"rounding_direction": "decreasing", "input_pixel_offsets": (0.0,)},
}


@pytest.mark.full(first=1)
@pytest.mark.parametrize(
    ("sizes", "way", "wanted"),
    [
        ((3, 6), "half", [0, 0, 1, 1, 2, 2]),
        ((3, 6), "up", [0, 1, 1, 2, 2, 2]),
        ((3, 6), "down", [0, 0, 0, 1, 1, 2]),
        ((6, 3), "half", [1, 3, 5]),
        ((6, 3), "down", [0, 2, 4]),
        ((20, 6), "half", [1, 5, 8, 11, 15, 18]),
        ((20, 6), "up", [2, 5, 8, 12, 15, 18]),
        ((20, 6), "down", [1, 4, 7, 11, 14, 17]),
    ],
)
def test_ties_between_elements_are_exact(sizes: tuple[int, int], way: str, wanted: list[int]) -> None:
    n, m = sizes
    found = tvmdml.resample(np.arange(n, dtype=f32), (m,), interpolation_mode="nearest_neighbor", **PLACES[way])
    assert found.tolist() == wanted


def test_the_examples_of_the_contract() -> None:
    x = f32([10, 20, 30])
    assert tvmdml.resample(x, (6,), interpolation_mode="linear").tolist() == [10, 12.5, 17.5, 22.5, 27.5, 30]
    zero = {"input_pixel_offsets": (0,), "output_pixel_offsets": (0,)}
    assert tvmdml.resample(x, (6,), interpolation_mode="linear", **zero).tolist() == [10, 15, 20, 25, 30, 30]
    assert tvmdml.resample(x, (4,), interpolation_mode="linear", scales=(2,)).tolist() == [10, 12.5, 17.5, 22.5]
    squares = np.arange(8, dtype=f32) ** 2
    assert tvmdml.resample(squares, (2,), interpolation_mode="linear", antialiased=True).tolist() == [4.78125, 30.59375]
    given = {"scales": (0.5, 1.5), "input_pixel_offsets": (0.5, 0.5), "output_pixel_offsets": (0, 0)}
    assert tvmdml.resample_grad(f32([[4, 5, 6]]), (2, 2), interpolation_mode="nearest_neighbor", **given).tolist() == [
        [9, 6],
        [0, 0],
    ]


@pytest.mark.parametrize("given", [{}, {"scales": [1.0, 2.0, 2.0]}])
def test_images_without_elements(given: dict[str, Any]) -> None:
    none = np.ones((0, 4, 4), np.float32)
    assert tvmdml.resample(none, (0, 8, 8), interpolation_mode="linear", **given).shape == (0, 8, 8)
    assert tvmdml.resample(np.ones((2, 4, 4), np.float32), (2, 0, 8), interpolation_mode="nearest_neighbor", **given).shape == (
        2,
        0,
        8,
    )
    assert not tvmdml.resample_grad(none, (2, 4, 4), interpolation_mode="linear", **given).any()
    assert tvmdml.resample_grad(none, (0, 2, 2), interpolation_mode="linear", **given).shape == (0, 2, 2)
    with pytest.raises(tvmdml.InvalidArgument, match=r"input\.sizes: given \(0, 4, 4\); allowed: sizes with elements"):
        tvmdml.resample(none, (2, 8, 8), interpolation_mode="linear", **given)


@pytest.mark.parametrize("sizes", [None, 3, ()])
def test_sizes_of_a_result_are_a_sequence(sizes: Any) -> None:
    x = np.ones((1, 1, 2, 2), np.float32)
    window = {"input_window_offsets": [0] * 4, "input_window_sizes": x.shape, "input_window_strides": [1] * 4}
    with pytest.raises(tvmdml.InvalidArgument, match=f"sizes: given {'0 dimensions' if sizes == () else sizes}"):
        tvmdml.slice_grad(x, output_gradient_sizes=sizes, **window)
    with pytest.raises(tvmdml.InvalidArgument, match=f"sizes: given {'0 dimensions' if sizes == () else sizes}"):
        tvmdml.max_unpooling(x, x.astype(np.uint32), output_sizes=sizes)


def test_an_element_that_is_met_exactly_is_alone() -> None:
    x = f32([[1, np.inf, 3, np.nan, 5]])
    found = tvmdml.resample(
        x, (1, 9), interpolation_mode="linear", scales=(1, 2), input_pixel_offsets=(0, 0), output_pixel_offsets=(0, 0)
    )
    np.testing.assert_array_equal(found[0, [0, 2, 4, 8]], x[0, [0, 1, 2, 4]])


@pytest.mark.full(first=1)
@pytest.mark.parametrize("kind", ["float32", "float16", "float64"])
@pytest.mark.parametrize("height", [1, 7, 40])
@pytest.mark.parametrize("width", [1, 2, 15, 16, 50])
def test_elements_that_are_met_exactly_keep_their_bits_in_rows_of_all_lengths(kind: str, height: int, width: int) -> None:
    """Between NaN, infinities and zeros of both signs; the others are as in the reference."""
    x = seeded(kind, height, width).choice(np.array([1, -0.0, 0.0, np.inf, -np.inf, np.nan, 2.0**-24, 5], kind), (3, height, width))
    rule = {"interpolation_mode": "linear", "input_pixel_offsets": (0,) * 3, "output_pixel_offsets": (0,) * 3}
    for step in (2, 3):
        large = tvmdml.resample(x, (3, 2 * height, step * width), scales=(1, 2, step), **rule)
        assert large[:, ::2, ::step].tobytes() == x.tobytes()
        small = tvmdml.resample(large, x.shape, scales=(1, 0.5, width / large.shape[2]), **rule)
        assert small.tobytes() == x.tobytes()


@pytest.mark.full
@pytest.mark.parametrize("kind", ["float32", "float16", "uint8"])
@pytest.mark.parametrize("mode", ["linear", "nearest_neighbor"])
@pytest.mark.parametrize("channels", [2, 3, 4, 9, 16, 21])
def test_images_whose_channels_are_last(kind: str, mode: str, channels: int) -> None:
    """As the reference, and nothing outside of the images is read: in images with more channels, too."""
    cpu = resolve("cpu")
    rng = seeded(kind, mode, channels)
    for (height, width), to in (((7, 9), (14, 20)), ((7, 40), (3, 11)), ((1, 6), (4, 1)), ((5, 4), (5, 9)), ((30, 3), (11, 3))):
        for wider in (0, 1):
            ends = [
                TensorDesc(kind, (2, channels, h, w), strides=(h * w * n, 1, w * n, n))
                for (h, w), n in (((height, width), channels + wider), (to, channels + 2 * wider))
            ]
            scales = (1, 1, to[0] / height, to[1] / width)
            rule = {"interpolation_mode": mode, "rounding_direction": "decreasing", "antialiased": False}
            offsets = {"input_pixel_offsets": (0.5,) * 4, "output_pixel_offsets": (-0.5,) * 4}
            desc = Resample3(input_tensor=ends[0], output_tensor=ends[1], scales=scales, **rule, **offsets)
            x = laid(ends[0])
            x[...] = rng.choice(np.array([0, 1, 200, 7] if kind == "uint8" else [np.inf, 1, -0.0, 5, 2**-14, -3], kind), x.shape)
            found = run(Work(desc, cpu), [x], "kernel", Place(at_end=True), Place(at_end=True))
            assert_outputs_agree(desc, found, desc.reference(x))


@pytest.mark.parametrize("channels", [3, 16])
def test_elements_of_many_channels_that_are_met_exactly_keep_their_bits(channels: int) -> None:
    x = seeded(channels).choice(f32([1, -0.0, 0.0, np.inf, -np.inf, np.nan, 2.0**-24, 5]), (7, 9, channels))
    rule = {"interpolation_mode": "linear", "input_pixel_offsets": (0,) * 3, "output_pixel_offsets": (0,) * 3}
    large = tvmdml.resample(x, (14, 27, channels), scales=(2, 3, 1), **rule)
    assert large[::2, ::3].tobytes() == x.tobytes()
    assert tvmdml.resample(large, x.shape, scales=(0.5, 1 / 3, 1), **rule).tobytes() == x.tobytes()


@pytest.mark.full(first=1)
@pytest.mark.parametrize("kind", ["uint8", "float16", "float32", "float64"])
@pytest.mark.parametrize("times", [2, 3, 4, 5])
def test_elements_that_are_repeated(kind: str, times: int) -> None:
    """In rows of all lengths; with places that begin elsewhere they are not the same number for all elements."""
    for width in (1, 15, 16, 40):
        x = seeded(kind, width).integers(0, 99, (2, 3, width)).astype(kind)
        given = {"interpolation_mode": "nearest_neighbor", "input_pixel_offsets": (0,) * 3, "rounding_direction": "decreasing"}
        found = tvmdml.resample(x, (2, 6, times * width), output_pixel_offsets=(-0.5,) * 3, **given)
        assert found.tobytes() == x.repeat(2, 1).repeat(times, 2).tobytes()
        moved = tvmdml.resample(x, (2, 6, times * width), output_pixel_offsets=(-0.5, -0.5, -1.5), **given)
        ahead = np.minimum((np.arange(times * width) * 2 + 3) // (2 * times), width - 1)
        assert moved.tobytes() == x.repeat(2, 1)[:, :, ahead].tobytes()


def test_large_numbers_in_all_dimensions() -> None:
    """TVM's arithmetic on the constants of a kernel overflowed."""
    x = seeded("numbers").standard_normal((2, 2, 35, 38)).astype(f32)
    given = {"input_pixel_offsets": (-0.0609024241566658,) * 4, "output_pixel_offsets": (1.3056927919387817,) * 4}
    scales = (1.0, 1.0, 1.2180734872817993, 0.7305689454078674)
    desc = by_name("RESAMPLE3").of(
        TensorDesc("float32", x.shape), output_tensor=TensorDesc("float32", (2, 2, 11, 36)),
        interpolation_mode="linear", rounding_direction="increasing", scales=scales, antialiased=False, **given,
    )  # fmt: skip
    (wanted,), out = desc.reference(x), np.empty((2, 2, 11, 36), f32)
    CompiledOperator(desc, resolve("cpu"))(x, out)
    assert not difference(out, wanted)


@pytest.mark.parametrize("scale", [3.4e38, 1e-38, 1e-20, 0.1, 7.7])
@pytest.mark.parametrize("offset", [0.5, -1e30, 1e30, 1e-30, 0.3])
def test_numbers_of_a_grid_stay_small(scale: float, offset: float) -> None:
    for linear in (True, False):
        rule = AxisMapping(linear, "" if linear else "half", float(f32(scale)), float(f32(offset)), -0.5, False)
        for n, m in ((1, 1), (1, 7), (1 << 20, 3), (5, 1 << 24)):
            grid = grid_of(rule, n, m)
            assert grid.span < 1 << 62
            assert 0 <= grid.first <= grid.last <= m
            assert grid.step > 0


def test_no_element_has_a_part_in_more_places_than_its_grid_says() -> None:
    rng, tight = seeded("uses"), 0
    for _ in range(2000):
        (inputs, outputs), linear = (int(n) for n in rng.integers(1, 60, 2)), bool(rng.integers(2))
        scale = float(np.float32(rng.choice([outputs / inputs, 0.25, 0.5, 1, 1.5, 2, 3, rng.uniform(0.1, 6)])))
        before, after = float(rng.choice([0, 0.5, -0.5, 0.25, 3, -7])), float(rng.choice([0, -0.5, 0.5, 2]))
        rounding = "" if linear else str(rng.choice(["up", "down", "half"]))
        grid = grid_of(AxisMapping(linear, rounding, scale, before, after, False), inputs, outputs)
        found = max(grid.reached(i + 1) - grid.reached(i - linear) for i in range(inputs))
        assert grid.most_uses(linear) >= found
        tight += grid.most_uses(linear) == max(found, 1)
    assert tight > 1900


@pytest.mark.parametrize("sizes", [(13, 40), (3, 5), (7, 20)])
def test_pytorch_agrees(sizes: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(2, 3, 7, 20, dtype=torch.float64, requires_grad=True)
    wanted = torch.nn.functional.interpolate(x, sizes, mode="bilinear")
    gradient = torch.randn_like(wanted)
    (back,) = torch.autograd.grad(wanted, x, gradient)
    mine = x.detach().clone().requires_grad_()
    pytest.importorskip("tvmdml.torch")
    found = torch.ops.tvmdml.resample(mine, (2, 3, *sizes), interpolation_mode="linear")
    plain = tvmdml.resample(x.detach(), (2, 3, *sizes), interpolation_mode="linear")
    torch.testing.assert_close(plain, wanted.detach())
    torch.testing.assert_close(tvmdml.resample_grad(gradient, tuple(x.shape), interpolation_mode="linear"), back)
    torch.testing.assert_close(torch.autograd.grad(found, mine, gradient)[0], back)
    exact = torch.nn.functional.interpolate(x.detach(), sizes, mode="nearest-exact")
    half = {"rounding_direction": "decreasing", "input_pixel_offsets": (0.0,) * 4}
    assert torch.equal(tvmdml.resample(x.detach(), (2, 3, *sizes), interpolation_mode="nearest_neighbor", **half), exact)


@pytest.mark.parametrize(("window", "stride", "padding"), [(3, 1, 1), (3, 2, 1), (4, 4, 0), (5, 3, 2)])
def test_pytorch_sums_the_same_windows(window: int, stride: int, padding: int) -> None:
    torch = pytest.importorskip("torch")
    columns = torch.nn.functional.unfold(torch.randn(2, 3, 12, 44, dtype=torch.float64), window, 1, padding, stride)
    wanted = torch.nn.functional.fold(columns, (12, 44), window, 1, padding, stride)
    numbers = {"strides": (stride,) * 2, "start_padding": (padding,) * 2, "end_padding": (padding,) * 2}
    found = tvmdml.fold(columns.numpy(), output_sizes=(2, 3, 12, 44), window_sizes=(window,) * 2, **numbers)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-14, atol=1e-14)


IMAGE = {"interpolation_mode": "linear", "scales": (1, 1, 2.5, 3)}
GIVEN: dict[str, tuple[int, dict[str, Any]]] = {
    "RESAMPLE": (1, IMAGE),
    "RESAMPLE_GRAD": (-1, {**IMAGE, "input_pixel_offsets": (0.5,) * 4, "output_pixel_offsets": (-0.5,) * 4}),
    "UPSAMPLE_2D": (2, {"interpolation_mode": "linear", "scale_size": (2, 2)}),
}
"""By how much an image becomes larger, and the other fields."""


def enlarged(name: str, height: int, width: int) -> Any:
    """A descriptor for an image of a size."""
    grows, fields = GIVEN[name]
    small, large = (2, 3, height, width), (2, 3, 2 * height, 2 * width + (0 if grows == 2 else 1))
    given, made = (large, small) if grows < 0 else (small, large)
    cls = by_name(name)
    names = [field.name for field in cls.fields() if field.name.endswith("tensor")]
    return cls(**dict(zip(names, (TensorDesc("float32", given), TensorDesc("float32", made)), strict=True)), **fields)


@pytest.mark.parametrize("device", ["cuda:sm_90", "vulkan:0"])
def test_devices_take_sizes_at_launch(device: str) -> None:
    """What they compute then is what conformance tests."""
    target = resolve(device)
    some = [lambda n, m, name=name: enlarged(name, n, m) for name in GIVEN]
    some.append(lambda n, m: aligned((2, 3, n, m), n, 7, None).describe())
    some.append(lambda n, m: fold(4 * n).describe())
    for made in some:
        first, second = (kernel_for(made(*sizes), target) for sizes in ((20, 31), (28, 45)))
        assert first.identity == second.identity
        assert first.scalars != second.scalars


ROWS = [(1 << 31, 5), (5, 1 << 31), (1 << 31, (1 << 32) - 1)]
"""Elements of a row, and of its result."""


@pytest.mark.parametrize(("inputs", "outputs"), ROWS)
def test_rows_past_2_to_the_31_are_counted_in_64_bits(inputs: int, outputs: int) -> None:
    for cls, ends in (
        (Resample1, ("input_tensor", "output_tensor")),
        (ResampleGrad, ("output_gradient_tensor", "input_gradient_tensor")),
    ):
        sizes = zip(ends, (inputs, outputs), strict=True)
        tensors = {name: TensorDesc("float16", (1, 1, 1, size)) for name, size in sizes}
        offsets = {"input_pixel_offsets": [0.5] * 4, "output_pixel_offsets": [-0.5] * 4}
        desc = cls(**tensors, interpolation_mode="linear", scales=[1, 1, 1, outputs / inputs], **offsets)
        kernel = kernel_for(desc.canonical(), resolve("cuda:sm_90"))
        assert dict(kernel.parameters)["counted in"] == "int64"


def test_a_row_that_a_device_cannot_hold_is_refused_before_there_is_memory_for_it(vulkan: Target) -> None:
    """A driver's limit is at most 2^32 - 1 bytes."""
    there = vulkan.asarray(np.ones((1, 1, 1, 5), f32))
    with pytest.raises(tvmdml.Unsupported, match=r"given 8589934592 bytes on vulkan.*; allowed: up to [0-9]*, the device's max"):
        tvmdml.resample(there, (1, 1, 1, 1 << 31), interpolation_mode="linear")


# -- Regions --------------------------------------------------------------------------------------------------------


def align(x: Array, regions: Any, **changed: Any) -> Any:
    """ROI_ALIGN of the first image, with one sample."""
    given: dict[str, Any] = {
        "reduction_function": "average", "interpolation_mode": "linear", "spatial_scale_x": 1, "spatial_scale_y": 1,
        "input_pixel_offset": 0.5, "output_pixel_offset": -0.5, "out_of_bounds_input_value": -1,
        "minimum_samples_per_output": 1, "maximum_samples_per_output": 1, "align_regions_to_corners": False,
        "output_height": 2, "output_width": 2,
    }  # fmt: skip
    batch = changed.pop("batch", np.zeros(len(regions), np.uint32))
    return tvmdml.roi_align(x, f32(regions), batch, **{**given, **changed})


@pytest.mark.full
def test_regions_of_the_contract(target: Target) -> None:
    x = np.arange(16, dtype=f32).reshape(1, 1, 4, 4)
    regions = [[1, 1, 3, 3], [3, 3, 1, 1], [-1, 0, 1, 2], [-9, -9, -8, -8]]
    found = align(x, regions, device=target.name).reshape(4, 4).tolist()
    assert found == [[5, 6, 9, 10], [10, 9, 6, 5], [0, 0, 4, 4], [-1, -1, -1, -1]]
    corners = {"input_pixel_offset": 0, "output_pixel_offset": 0, "align_regions_to_corners": True}
    found = align(x, regions[:3], device=target.name, **corners).reshape(3, 4).tolist()
    assert found == [[5, 7, 13, 15], [15, 13, 7, 5], [0, 1, 8, 9]]
    for function, wanted in (("average", [2.5, 4.5, 10.5, 12.5]), ("max", [5, 7, 13, 15])):
        many = {"reduction_function": function, "maximum_samples_per_output": 2**32 - 1}
        assert align(x, [[0, 0, 4, 4]], device=target.name, **many).ravel().tolist() == wanted


@pytest.mark.full(first=1)
def test_hostile_regions_and_indices_read_nothing(target: Target) -> None:
    x = seeded("hostile").standard_normal((2, 1, 4, 4)).astype(f32)
    regions = [[np.nan, 0, 1, 1], [0, np.inf, 1, 1], [-3e38, 0, 3e38, 1], [0, 0, 1, 1], [1e30, 1e30, 2e30, 2e30]]
    batch = np.array([0, 1, 0, 2**32 - 1, 1], np.uint32)
    found = align(x, regions, batch=batch, maximum_samples_per_output=2**32 - 1, device=target.name)
    assert (found == -1).all()


def laid(tensor: TensorDesc) -> Array:
    """Zeros with a tensor's strides."""
    memory = np.zeros(tensor.span, tensor.data_type.numpy)
    return np.lib.stride_tricks.as_strided(memory, tensor.sizes, [step * memory.itemsize for step in tensor.layout])


@pytest.mark.full
def test_gradients_are_derivatives() -> None:
    rng = seeded("derivatives")
    x, regions = rng.standard_normal((2, 2, 9, 8)), rng.uniform(0, 7, (3, 4))
    batch = np.array([1, 0, 1], np.uint32)
    for corners, function in ((False, "average"), (True, "max")):
        given = {
            "reduction_function": function, "interpolation_mode": "linear", "spatial_scale_x": 0.9, "spatial_scale_y": 1.1,
            "input_pixel_offset": 0.5, "output_pixel_offset": -0.5, "minimum_samples_per_output": 2,
            "maximum_samples_per_output": 2, "align_regions_to_corners": corners,
        }  # fmt: skip

        def forward(x: Array, regions: Array, given: Any = given) -> Any:
            more = {"out_of_bounds_input_value": 0, "output_height": 2, "output_width": 3}
            return tvmdml.roi_align(x, regions, batch, **more, **given)

        gradient = rng.standard_normal(forward(x, regions).shape)
        of_images, of_regions = tvmdml.roi_align_grad(x, gradient, regions, batch, **given)
        for moved, found in ((0, of_images), (1, of_regions)):
            way = rng.standard_normal(found.shape)
            ends = [[x, regions], [x, regions]]
            ends[0][moved], ends[1][moved] = ends[0][moved] + 1e-6 * way, ends[1][moved] - 1e-6 * way
            slope = ((forward(*ends[0]) - forward(*ends[1])) * gradient).sum() / 2e-6
            assert slope == pytest.approx((found * way).sum(), abs=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("function", ["average", "max"])
@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_gradients_of_images_are_those_of_the_computation_for_any_number_of_threads(kind: str, function: str) -> None:
    rng, cpu = seeded(kind + function), resolve("cpu")
    changed = {"reduction_function": ReduceFunction[function.upper()], "outputs": (True, False)}
    desc: Any = described(RoiAlignGrad, TensorDesc(kind, (2, 3, 63, 41)), 9, (7, 5), "padded", **changed)
    start = rng.uniform(-3, 50, (9, 2))
    given = {
        "input_tensor": rng.standard_normal((2, 3, 63, 41)), "input_gradient_tensor": rng.standard_normal((9, 3, 7, 5)),
        "roi_tensor": np.concatenate([start, start + rng.uniform(-9, 40, (9, 2))], 1)[None],
    }  # fmt: skip
    arrays = {name: one.astype(kind) for name, one in given.items() if getattr(desc, name) is not None}
    arrays["input_gradient_tensor"] = laid(desc.input_gradient_tensor)
    arrays["input_gradient_tensor"][...] = given["input_gradient_tensor"]
    arrays["batch_indices_tensor"] = np.array([[0, 1, 0, 0, 5, 1, 0, 1, 0]], np.uint32)
    found = []
    for schedule, threads in ((DEFAULT, 0), (OWN, 1), (OWN, 3)):
        with Drawn(Case(desc), cpu, schedule, threads).in_force():
            out = laid(desc.output_gradient_tensor)
            CompiledOperator(desc, cpu)(**arrays, output_gradient_tensor=out)
            found.append((kernel_for(desc, cpu).name, out))
    assert [name for name, _ in found] == ["default", "spread", "spread"]
    assert found[0][1].any()
    assert all(out.tobytes() == found[0][1].tobytes() for _, out in found)


@pytest.mark.full
@pytest.mark.parametrize("both", [False, True])
def test_gradients_of_images_of_any_width_stay_inside_of_them(both: bool) -> None:
    """A kernel for wide images is none for narrow ones; for 15 and 16 only the vectors of images differ, not those of regions."""
    rng, cpu = seeded("widths"), resolve("cpu")
    for width in (40, 4, 16, 15, 1):
        x, gradient = rng.standard_normal((2, 2, 5, width)).astype(f32), rng.standard_normal((3, 2, 2, 3)).astype(f32)
        start = rng.uniform(-1, width, (3, 2))
        regions = np.concatenate([start, start + rng.uniform(-1, width, (3, 2))], 1).astype(f32)
        batch = np.array([1, 0, 1], np.uint32)
        image, parts, places, numbers = (desc_of(one) for one in (x, gradient, regions, batch))
        desc = RoiAlignGrad(
            input_tensor=image, input_gradient_tensor=parts, roi_tensor=places, batch_indices_tensor=numbers,
            output_gradient_tensor=image, output_roi_gradient_tensor=places if both else None,
            reduction_function="average", interpolation_mode="linear", spatial_scale_x=0.9, spatial_scale_y=1.1,
            input_pixel_offset=0.5, output_pixel_offset=-0.5, minimum_samples_per_output=1, maximum_samples_per_output=3,
            align_regions_to_corners=False,
        )  # fmt: skip
        given = [x, gradient, regions, batch]
        found = run(Work(desc, cpu), given, "kernel", Place(at_end=True), Place(at_end=False))
        assert_outputs_agree(desc, found, desc.reference(*given))


@pytest.mark.full
@pytest.mark.parametrize("kind", ["float32", "float16", "float64"])
@pytest.mark.parametrize("corners", [False, True])
def test_gradients_of_regions_of_averages(kind: str, corners: bool) -> None:
    """Rows of less than a vector, of a vector and one element, and of several; with an infinity in the first image."""
    rng = seeded(f"{kind} {corners}")
    for height, width in ((6, 2), (5, 17), (19, 40)):
        x = rng.standard_normal((2, 3, height, width)).astype(kind)
        x[0, :, 3, width // 2] = np.inf
        sides = np.array([width, height])
        start = rng.uniform(-1, 0.9 * sides, (9, 2))
        regions = np.concatenate([start, start + rng.uniform(-0.5 * sides, sides, (9, 2))], 1).astype(kind)
        gradient = rng.standard_normal((9, 3, 5, 4)).astype(kind)
        batch = np.array([0, 1, 0, 0, 5, 1, 0, 1, 1], np.uint32)
        descs = [TensorDesc(str(one.dtype), one.shape) for one in (x, gradient, regions, batch)]
        names = ("input_tensor", "input_gradient_tensor", "roi_tensor", "batch_indices_tensor")
        desc = RoiAlignGrad(
            **dict(zip(names, descs, strict=True)), output_roi_gradient_tensor=descs[2],
            reduction_function="average", interpolation_mode="linear", spatial_scale_x=0.9, spatial_scale_y=1.1,
            input_pixel_offset=0.5, output_pixel_offset=-0.5, minimum_samples_per_output=1, maximum_samples_per_output=3,
            align_regions_to_corners=corners,
        )  # fmt: skip
        (wanted,), out = desc.reference(x, gradient, regions, batch), np.empty_like(regions)
        CompiledOperator(desc, resolve("cpu"))(
            **dict(zip(names, (x, gradient, regions, batch), strict=True)), output_roi_gradient_tensor=out
        )
        assert out[np.isfinite(out)].any()
        assert not difference(out, wanted)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["float32", "float16", "float64"])
@pytest.mark.parametrize("mode", ["linear", "nearest_neighbor"])
def test_regions_of_many_channels(kind: str, mode: str) -> None:
    """Averages of all sizes of regions, one of them around an infinity, and one turned."""
    rng = seeded(kind + mode)
    x = rng.standard_normal((2, 70, 19, 23)).astype(kind)
    x[1, :, 9, 11] = np.inf
    start = rng.uniform(-3, 18, (9, 2))
    regions = np.concatenate([start, start + rng.uniform(0, 14, (9, 2))], 1).astype(kind)
    regions[3] = regions[3, [2, 3, 0, 1]]
    batch = np.array([0, 1, 0, 0, 5, 1, 0, 1, 0], np.uint32)
    desc = RoiAlign.of(
        *(TensorDesc(str(one.dtype), one.shape) for one in (x, regions, batch)),
        output_tensor=TensorDesc(kind, (9, 70, 5, 3)), reduction_function="average", interpolation_mode=mode,
        spatial_scale_x=1.1, spatial_scale_y=0.9, out_of_bounds_input_value=-1.5,
        minimum_samples_per_output=1, maximum_samples_per_output=3,
    )  # fmt: skip
    (wanted,), out = desc.reference(x, regions, batch), np.empty((9, 70, 5, 3), kind)
    CompiledOperator(desc, resolve("cpu"))(x, regions, batch, out)
    assert not difference(out, wanted)


def test_rows_that_tables_of_32_bits_cannot_say_have_the_default_kernel() -> None:
    """Without running them: they have 2^31 elements or more."""
    cpu, long = resolve("cpu"), (1 << 31) + 3

    def kernels(sizes: tuple[int, ...], wanted: tuple[int, ...], **given: Any) -> set[str]:
        moved = by_name("RESAMPLE3").of(
            TensorDesc("uint8", sizes),
            output_tensor=TensorDesc("uint8", wanted),
            scales=[b / a for a, b in zip(sizes, wanted, strict=True)],
            interpolation_mode="nearest_neighbor",
            rounding_direction="increasing",
            input_pixel_offsets=[0.5] * len(sizes),
            output_pixel_offsets=[-0.5] * len(sizes),
            antialiased=False,
        )
        back = by_name("RESAMPLE_GRAD").of(
            TensorDesc("float32", wanted),
            output_gradient_tensor=TensorDesc("float32", sizes),
            scales=[b / a for a, b in zip(sizes, wanted, strict=True)],
            interpolation_mode="linear",
            input_pixel_offsets=[0.5] * len(sizes),
            output_pixel_offsets=[-0.5] * len(sizes),
        )
        return {kernel_for(desc, cpu).name for desc in (moved, back)}

    assert kernels((7, 100), (7, 150)) == {"rows", "sums"}
    assert not kernels((1, long), (1, long + 5)) & {"rows", "sums"}
    assert not kernels((1, 5), (1, long)) & {"rows", "sums"}
    assert not kernels((1, long), (1, 5)) & {"rows", "sums"}


def test_a_scale_is_that_of_sizes_whose_ratio_rounds_to_it() -> None:
    """By integers, which may be open, and not by a quotient of floats."""
    draw = random.Random(4)
    for _ in range(3000):
        inputs, outputs = (draw.randint(1, draw.choice((50, 5000, 1 << 24))) for _ in range(2))
        near = outputs / inputs * (1 + draw.choice((-1, 1)) * 2.0 ** -draw.randint(20, 28))
        for scale in (outputs / inputs, float(np.float32(outputs / inputs)), near, 1.5):
            rule = AxisMapping(True, "half", scale, 0.0, 0.0, False)
            assert rule.is_ratio(inputs, outputs) == (np.float32(outputs / inputs) == np.float32(scale)), (inputs, outputs, scale)
    for scale in (1e39, 3.4e38, 1e-45):
        assert not AxisMapping(True, "half", scale, 0.0, 0.0, False).is_ratio(3, 4)


@pytest.mark.parametrize("value", [14, 13])
def test_the_places_of_an_open_axis_leave_it_open(value: int) -> None:
    """Whether the scale is that of the sizes is a guard."""
    record = Record()
    size = record.symbol("n", value, 1, 4096)
    assert (size % 2 == 0) is (value % 2 == 0)
    rule = AxisMapping(True, "half", 1.5, 0.5, -0.5, False)
    found, right = grid_of(rule, size, 3 * size // 2), grid_of(rule, value, 3 * value // 2)
    assert not record.specialized
    assert all(one == other for one, other in zip(found, right, strict=True))
