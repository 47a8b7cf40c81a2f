"""Convolutions: the contract's examples, PyTorch, exact sums, layouts, threads, and numbers of any size."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import Array, assert_same_bits, seeded

import tvmdml
from tvmdml import knobs
from tvmdml.proof.conformance.cases.convolution import channels_last
from tvmdml.targets import Target
from tvmdml.tensors import TensorDesc

f32 = np.float32


def line(*values: float, channels: int = 1, dtype: Any = f32) -> Array:
    return np.array(values, dtype).reshape(1, channels, -1)


# -- The contract's examples --------------------------------------------------------------------------------------


@pytest.mark.full
def test_examples(target: Target) -> None:
    x, w = line(1, 2, 3, 4), line(1, 10, 100)
    backward: dict[str, Any] = {"direction": "BACKWARD", "strides": (2,)}
    cut: dict[str, Any] = {**backward, "start_padding": (1,), "end_padding": (1,)}
    wide: dict[str, Any] = {"strides": (2,), "dilations": (2,), "start_padding": (1,), "end_padding": (2,)}
    for image, given, wanted in (
        (x, {}, [321, 432]),
        (x, {"mode": "CONVOLUTION"}, [123, 234]),
        (x, wide, [420, 42]),
        (x[..., :2], backward, [1, 10, 102, 20, 200]),
        (x[..., :2], {**backward, "mode": "CONVOLUTION"}, [100, 10, 201, 20, 2]),
        (x[..., :2], cut, [10, 102, 20]),
        (x[..., :2], {**cut, "output_sizes": (1, 1, 4)}, [10, 102, 20, 200]),
        (x[..., :2], {**cut, "output_padding": (1,)}, [10, 102, 20, 0]),
    ):
        assert tvmdml.convolution(image, w, device=target.name, **given).ravel().tolist() == wanted
    grouped = tvmdml.convolution(
        line(1, 2, 3, 4, channels=2), np.array([[[1, 1]], [[10, 10]]], f32), group_count=2, device=target.name
    )
    assert grouped.ravel().tolist() == [3, 70]
    image = np.arange(1, 10, dtype=f32).reshape(1, 1, 3, 3)
    found = tvmdml.convolution(image, np.full((1, 1, 2, 2), 0.5, f32), device=target.name)
    assert found.ravel().tolist() == [6, 8, 12, 14]


def test_examples_of_integers(target: Target) -> None:
    x, w, zero = line(5, 6, 7, dtype=np.uint8), line(1, 1, dtype=np.uint8), np.array([5], np.uint8)
    found = tvmdml.convolution_integer(x, w, zero, start_padding=(1,), device=target.name)
    assert found.ravel().tolist() == [0, 1, 3]
    x, scales, zero = line(50, 0, 51, 100, 200, dtype=np.uint8), np.array([0.5], f32), np.array([50], np.uint8)
    one, three = line(1, dtype=np.int8), np.array([3], np.uint8)
    found = tvmdml.quantized_linear_convolution(
        x, scales, one, np.array([1], f32), np.array([0.1], f32), zero, output_zero_point=three, device=target.name
    )
    assert found.ravel().tolist() == [3, 0, 8, 253, 255]


@pytest.mark.full
def test_padding_at_the_end_is_not_what_lies_behind_a_row(target: Target) -> None:
    for sizes, taps in (((1, 8, 100), (4,)), ((1, 2, 36, 18), (1, 2)), ((2, 3, 1, 40), (1, 3)), ((1, 2, 5, 18), (2, 1))):
        whole = np.full((*sizes[:-1], sizes[-1] + 6), np.nan, f32)
        for x in (np.ones(sizes, f32), whole[..., : sizes[-1]]):
            x[...] = 1
            more = [tap - 1 for tap in taps]
            found = tvmdml.convolution(x, np.ones((16, sizes[1], *taps), f32), end_padding=more, device=target.name)
            counts = [np.minimum(tap, np.arange(size, 0, -1)) for tap, size in zip(taps, sizes[2:], strict=True)]
            assert found.shape == (sizes[0], 16, *sizes[2:])
            assert np.array_equal(found, np.broadcast_to(sizes[1] * functools.reduce(np.multiply.outer, counts), found.shape))


@pytest.mark.full(first=1)
@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "start", "groups", "phases"),
    [(24, 2, 2, 0, 1, 4), (6, 6, 3, 3, 2, 9), (3, 4, 2, 1, 1, 1), (4, 3, 2, 0, 1, 1), (65, 2, 2, 0, 1, 1)],
)
def test_transposed_filters_of_whole_strides_have_phases(
    target: Target, channels: int, kernel: int, stride: int, start: int, groups: int, phases: int
) -> None:
    """A sum has only products that exist, and the same bits; not if it is one of several blocks."""
    rng = seeded(kernel, stride)
    x, w = (rng.integers(-9, 9, size).astype("f4") for size in ((2, channels, 4, 5), (channels, 3, kernel, kernel)))
    given: Any = {"strides": (stride, stride), "start_padding": (start, start), "group_count": groups, "direction": "backward"}
    relu = {"fused_activation": tvmdml.ActivationRelu.fused()}
    for mode, more in (("cross_correlation", {}), ("convolution", relu), ("cross_correlation", {"output_padding": (1, 1)})):
        whole = {**given, **more, "mode": mode}
        desc: Any = tvmdml.Convolution.of_call(*(TensorDesc("float32", one.shape) for one in (x, w)), None, **whole)
        reached = 1 if "output_padding" in more else phases
        assert math.prod(desc.in_phases().inner) * reached == math.prod(desc.contraction().inner)
        reference = np.asarray(tvmdml.convolution(x.astype("f8"), w.astype("f8"), device="cpu", **whole))
        assert_same_bits(np.asarray(tvmdml.convolution(x, w, device=target, **whole)), reference.astype("f4"))


def test_a_bias_and_an_activation_are_added_to_padding_too(target: Target) -> None:
    x, w, bias = line(1, 2), line(1, 10, 100), np.array([-2], f32)
    given: dict[str, Any] = {"direction": "BACKWARD", "strides": (2,), "output_padding": (2,), "device": target.name}
    assert tvmdml.convolution(x, w, bias, **given).ravel().tolist() == [-1, 8, 100, 18, 198, -2, -2]
    relu = tvmdml.ActivationRelu.fused()
    assert tvmdml.convolution(x, w, bias, fused_activation=relu, **given).ravel().tolist() == [0, 8, 100, 18, 198, 0, 0]


# -- PyTorch ------------------------------------------------------------------------------------------------------


def drawn(number: int, dtype: str = "float32") -> tuple[Any, Any, Any, dict[str, Any], Any]:
    """A convolution with drawn numbers: image, filter, bias, numbers, and PyTorch's result in float64."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    rng = seeded("drawn", number)

    def some(low: int, high: int, count: int) -> list[int]:
        return [int(one) for one in rng.integers(low, high + 1, count)]

    k, (groups, filters, channels), backward = int(rng.integers(1, 4)), some(1, 4, 3), bool(rng.integers(0, 2))
    if rng.random() < 0.3:
        groups, filters, channels = int(rng.integers(2, 9)), 1, 1
    strides, dilations, padding, kernel = (some(low, high, k) for low, high in ((1, 3), (1, 3), (0, 3), (1, 4)))
    sizes = some(1, (40, 12, 7)[k - 1], k)
    batch = int(rng.integers(1, 3))
    x = rng.integers(-8, 9, (batch, groups * channels, *sizes)).astype(dtype)
    first = (groups * channels, filters) if backward else (groups * filters, channels)
    w = rng.integers(-8, 9, (*first, *kernel)).astype(dtype)
    bias = rng.integers(-8, 9, (1, groups * filters, *[1] * k)).astype(dtype)
    functional, wide = torch.nn.functional, [torch.from_numpy(one.astype(np.float64)) for one in (x, w, bias.ravel())]
    numbers = {"strides": strides, "dilations": dilations, "start_padding": padding, "end_padding": padding, "group_count": groups}
    try:
        if backward:
            more = [int(rng.integers(0, max(pair))) for pair in zip(strides, dilations, strict=True)]
            which = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[k - 1]
            wanted = which(*wide, strides, padding, more, groups, dilations).numpy()
        else:
            which = (functional.conv1d, functional.conv2d, functional.conv3d)[k - 1]
            wanted = which(*wide, strides, padding, dilations, groups).numpy()
    except RuntimeError:  # the filter does not fit
        return drawn(number + 10_000, dtype)
    usual = [
        (n - 1) * s + (m - 1) * d + 1 - 2 * p for n, s, m, d, p in zip(sizes, strides, kernel, dilations, padding, strict=True)
    ]
    if 0 in wanted.shape or (backward and min(usual) < 1):
        return drawn(number + 10_000, dtype)
    return x, w, bias, {**numbers, "direction": "BACKWARD" if backward else "FORWARD", "output_sizes": wanted.shape}, wanted


@pytest.mark.some(12)
@pytest.mark.parametrize("number", range(40))
def test_sums_of_integers_are_pytorchs_and_exact(number: int) -> None:
    x, w, bias, given, wanted = drawn(number)
    for dtype in (f32, np.float64):
        found = tvmdml.convolution(x.astype(dtype), w.astype(dtype), bias.astype(dtype), **given)
        assert_same_bits(found, wanted.astype(dtype) + dtype(0))
    turned = np.flip(w, tuple(range(2, w.ndim))).copy()
    assert_same_bits(tvmdml.convolution(x, turned, bias, mode="CONVOLUTION", **given), wanted.astype(f32) + f32(0))


@pytest.mark.parametrize("number", range(3))
def test_sums_of_integers_are_exact_on_every_target(number: int, target: Target) -> None:
    x, w, bias, given, wanted = drawn(100 + number)
    assert_same_bits(tvmdml.convolution(x, w, bias, device=target.name, **given), wanted.astype(f32) + f32(0))


@pytest.mark.some(5)
@pytest.mark.parametrize("number", range(12))
def test_gradients_are_pytorchs(number: int) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import tvmdml.torch  # noqa: F401

    x, w, bias, given, wanted = drawn(200 + number, "float64")
    own = [torch.from_numpy(one).requires_grad_() for one in (x, w, bias)]
    theirs = [torch.from_numpy(one).requires_grad_() for one in (x, w, bias.ravel())]
    functional, k = torch.nn.functional, x.ndim - 2
    numbers = (given["strides"], given["start_padding"])
    if given["direction"] == "BACKWARD":
        which = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[k - 1]
        usual = which(*theirs, *numbers, 0, given["group_count"], given["dilations"]).shape
        more = [n - m for n, m in zip(wanted.shape[2:], usual[2:], strict=True)]
        result = which(*theirs, *numbers, more, given["group_count"], given["dilations"])
    else:
        which = (functional.conv1d, functional.conv2d, functional.conv3d)[k - 1]
        result = which(*theirs, *numbers, given["dilations"], given["group_count"])
    found = torch.ops.tvmdml.convolution(*own, **{**given, "direction": given["direction"].lower()})
    torch.testing.assert_close(found, result)
    weights = torch.from_numpy(seeded("weights", number).standard_normal(wanted.shape))
    for mine, other in zip(
        *(torch.autograd.grad((y * weights).sum(), z) for y, z in ((found, own), (result, theirs))), strict=True
    ):
        torch.testing.assert_close(mine.reshape(other.shape), other)


# -- Sums ---------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_long_sums_keep_the_bound_and_most_of_their_bits(dtype: str) -> None:
    rng = seeded("sums", dtype)
    for channels, kernel, size in ((30, 3, 6), (300, 3, 9), (2000, 1, 5)):
        for uniform in (False, True):
            draw = lambda *sizes, uniform=uniform: rng.random(sizes) if uniform else rng.standard_normal(sizes)  # noqa: E731
            x, w = draw(1, channels, size, size).astype(dtype), draw(13, channels, kernel, kernel).astype(dtype)
            found = tvmdml.convolution(x, w).astype(np.float64)
            wide = [one.astype(np.float64) for one in (x, w)]
            exact, size_of = tvmdml.convolution(*wide), tvmdml.convolution(*map(np.abs, wide))
            k = channels * kernel * kernel
            bound = (4 + np.sqrt(k)) * 2.0**-24 * size_of
            bound += 2.0**-11 * np.abs(exact) + 2.0**-25 if dtype == "float16" else 0
            assert (np.abs(found - exact) <= bound).all(), (channels, kernel)


@pytest.mark.full
def test_threads_tiles_and_orders_change_no_bit(monkeypatch: pytest.MonkeyPatch, draw: Callable[..., list[Any]]) -> None:
    from tvmdml.schedules.cpu import convolution

    rng = seeded("threads")
    x, w, deep = (rng.standard_normal(sizes).astype(f32) for sizes in ((2, 40, 19, 23), (30, 40, 3, 3), (40, 1, 3, 3)))
    found = []
    tiles = sorted({f"{one[0]}x{one[1]}" for some in convolution.TILES.values() for one in some})
    for threads, tile, order in draw(itertools.product(("1", "3"), tiles, ("filters", "places")), 5):
        monkeypatch.setenv("TVMDML_NUM_THREADS", threads)
        tvmdml.functions.forget_plans()
        with knobs.using(matrix={"task_image_products": 1 << 10, "tile": tile, "order": order}):
            found.append([
                tvmdml.convolution(x, w, strides=(2, 1), start_padding=(1, 1)),
                tvmdml.convolution(x, w[..., :1, :1].copy()),
                tvmdml.convolution(x, w.swapaxes(0, 1).copy(), direction="BACKWARD", strides=(2, 2)),
                tvmdml.convolution(x, deep, group_count=40, start_padding=(2, 1)),
            ])  # fmt: skip
    tvmdml.functions.forget_plans()
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert_same_bits(one, other)


@pytest.mark.full
@pytest.mark.parametrize("groups", [1, 12])
def test_channels_may_be_last_in_memory(groups: int) -> None:
    rng = seeded("last", groups)
    x = np.ascontiguousarray(rng.integers(-9, 9, (2, 9, 11, 12))).astype(f32).transpose(0, 3, 1, 2)
    w = rng.integers(-9, 9, (24, 12 // groups, 3, 3)).astype(f32)
    given: dict[str, Any] = {"strides": (2, 1), "start_padding": (1, 1), "end_padding": (1, 0), "group_count": groups}
    wanted = tvmdml.convolution(np.ascontiguousarray(x), w, **given)
    assert_same_bits(tvmdml.convolution(x, w, **given), wanted)
    out = np.zeros((2, *wanted.shape[2:], 24), f32).transpose(0, 3, 1, 2)
    tvmdml.convolution(x, w, out=out, **given)
    assert_same_bits(np.ascontiguousarray(out), wanted)


# -- Rules --------------------------------------------------------------------------------------------------------


def test_a_function_names_its_own_keywords_in_errors() -> None:
    x, w = np.zeros((1, 4, 5, 5), f32), np.zeros((2, 4, 3, 3), f32)
    for given, text in (
        ({"strides": (1,)}, "tvmdml.convolution: strides: given 1 number; allowed: 2, one for each spatial dimension"),
        ({"group_count": 2}, "tvmdml.convolution: filter.sizes[1]: given 4; allowed: 2, the input's channels of a group"),
        ({"dilations": (3, 1)}, "tvmdml.convolution: filter.sizes[2]: given 3, over 7; allowed: within 5 elements"),
        ({"output_sizes": (1, 2, 3, 4)}, "tvmdml.convolution: output.sizes[3]: given 4; allowed: 3"),
        ({"direction": "BACKWARD"}, "tvmdml.convolution: filter.sizes[0]: given 2; allowed: 4, the input's channels"),
    ):
        with pytest.raises(tvmdml.InvalidArgument) as caught:
            tvmdml.convolution(x, w, **given)
        assert text in str(caught.value)


def test_a_descriptor_needs_the_numbers_that_a_function_has_usual_ones_for() -> None:
    x, w = tvmdml.TensorDesc("float32", (1, 4, 5, 5)), tvmdml.TensorDesc("float32", (2, 4, 3, 3))
    with pytest.raises(tvmdml.InvalidArgument, match="CONVOLUTION strides: given nothing; allowed: a sequence of integers"):
        tvmdml.Convolution.of(x, w)


def test_no_batch_no_channels_and_no_filters() -> None:
    x, w = np.ones((2, 3, 4, 4), f32), np.ones((5, 3, 2, 2), f32)
    assert tvmdml.convolution(x[:0], w).shape == (0, 5, 3, 3)
    assert tvmdml.convolution(x, w[:0]).shape == (2, 0, 3, 3)
    bias = np.full((1, 5, 1, 1), 7, f32)
    assert (tvmdml.convolution(x[:, :0], w[:, :0], bias) == 7).all()


@pytest.mark.full
def test_numbers_of_any_size_are_no_danger(target: Target) -> None:
    huge = 2**32 - 1
    x, w = line(1, 2, 3, 4), line(1, 10)
    for given, wanted in (
        ({"strides": (huge,), "start_padding": (0,), "end_padding": (0,)}, [21]),
        ({"strides": (huge,), "start_padding": (1,), "end_padding": (huge,)}, [10, 0]),
        ({"dilations": (huge,), "start_padding": (huge,), "end_padding": (0,)}, [10, 20, 30, 40]),
        ({"dilations": (huge - 7,), "start_padding": (3,), "end_padding": (huge - 12,)}, None),
    ):
        try:
            found = tvmdml.convolution(x, w, device=target.name, **given)
        except tvmdml.Unsupported:  # a device without integers of 64 bits
            return
        assert wanted is None or found.ravel().tolist() == wanted
    backward: dict[str, Any] = {"direction": "BACKWARD", "strides": (huge,), "start_padding": (0,), "device": target.name}
    found = tvmdml.convolution(x[..., :1], w, end_padding=(0,), output_sizes=(1, 1, 9), **backward)
    assert found.ravel().tolist() == [1, 10, 0, 0, 0, 0, 0, 0, 0]


def test_a_descriptor_may_have_channels_last() -> None:
    x, w = TensorDesc("float32", (1, 3, 4, 5)), TensorDesc("float32", (2, 3, 2, 2))
    numbers: dict[str, Any] = dict.fromkeys(("start_padding", "end_padding", "output_padding"), (0, 0))
    desc = tvmdml.Convolution.of(x, w, strides=(1, 1), dilations=(1, 1), group_count=1, **numbers)
    assert channels_last(desc).outputs()[0].layout == (24, 1, 8, 2)
