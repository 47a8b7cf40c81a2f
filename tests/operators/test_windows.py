"""Windows: the contract's examples, PyTorch, the order of sums, and windows in the padding."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from support import Array, assert_same_bits, desc_of, seeded

import tvmdml
from tvmdml import TensorDesc, knobs, operators, targets
from tvmdml.compiler import CompiledOperator
from tvmdml.library.scheduling import kernel_for
from tvmdml.targets import Target

f32, nan, inf = np.float32, np.nan, np.inf
NONE = np.uint32(2**32 - 1)


def image(values: Any, *sizes: int) -> Array:
    return np.array(values, f32).reshape(sizes)


def near(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(found, np.float64).ravel(), np.ravel(wanted), rtol=3e-6, atol=1e-7)


# -- The contract's examples --------------------------------------------------------------------------------------


@pytest.mark.full
def test_examples_of_averages_and_norms(target: Target) -> None:
    x = image(range(1, 17), 1, 1, 4, 4)
    window: dict[str, Any] = {"window_sizes": (3, 3), "strides": (2, 2), "start_padding": (1, 1), "end_padding": (1, 1)}
    for padded, wanted in (
        (False, [3.5, 5, 6, 9.5, 11, 12, 13.5, 15, 16]),
        (True, [14 / 9, 10 / 3, 2, 19 / 3, 11, 6, 4.5, 7.5, 4]),
    ):
        given = {**window, "include_padding": padded, "device": target.name}
        near(tvmdml.average_pooling(x, output_sizes=(1, 1, 3, 3), **given), wanted)
        near(tvmdml.average_pooling(x, **given), np.reshape(wanted, (3, 3))[:2, :2])
    row = image([-3, 4, 0, -12], 1, 1, 1, 4)
    for p, wanted in ((1, [7, 12]), (2, [5, 12]), (3, [4.4979414, 12])):
        near(tvmdml.lp_pooling(row, window_sizes=(1, 2), strides=(1, 2), p=p, device=target.name), wanted)
    gradient = image([1, 2, 3, 4], 1, 1, 2, 2)
    found = tvmdml.average_pooling_grad(gradient, output_gradient_sizes=(1, 1, 3, 3), window_sizes=(2, 2), device=target.name)
    near(found, [0.25, 0.75, 0.5, 1, 2.5, 1.5, 0.75, 1.75, 1])


@pytest.mark.full
def test_examples_of_maxima(target: Target) -> None:
    given: dict[str, Any]
    for x, given, values, indices in (
        (image(range(1, 9), 1, 2, 1, 4), {"window_sizes": (1, 2), "strides": (1, 2)}, [2, 4, 6, 8], [1, 3, 5, 7]),
        (
            image([3, 1, 4, 1, 5, 9], 1, 1, 6),
            {"window_sizes": (2,), "dilations": (2,), "start_padding": (1,), "end_padding": (1,)},
            *([1, 4, 1, 5, 9, 5], [1, 2, 1, 4, 5, 4]),
        ),
        (image([1, nan, 3, 2, 2, 0], 1, 1, 1, 6), {"window_sizes": (1, 2), "strides": (1, 2)}, [nan, 3, 2], [1, 2, 4]),
        (
            image([5], 1, 1, 1),
            {"window_sizes": (2,), "dilations": (2,), "start_padding": (1,), "end_padding": (1,)},
            [-inf],
            [NONE],
        ),
        (image([-inf, -inf], 1, 1, 2), {"window_sizes": (2,)}, [-inf], [0]),
    ):
        found = tvmdml.max_pooling(x, output_indices=True, device=target.name, **given)
        assert_same_bits(found.values.ravel(), np.array(values, f32), any_nan=True)
        assert found.indices.ravel().tolist() == indices
    x, gradient = image([1, 2, 3, 2, 4, 2, 5, 6, 7], 1, 1, 3, 3), image([1, 2, 4, 5], 1, 1, 2, 2)
    found = tvmdml.max_pooling_grad(x, gradient, window_sizes=(2, 2), device=target.name)
    assert found.ravel().tolist() == [0, 0, 0, 0, 3, 0, 0, 4, 5]


@pytest.mark.full
def test_examples_of_the_others(target: Target) -> None:
    given: dict[str, Any] = {"cross_channel": True, "alpha": 1, "beta": 1, "bias": 1, "device": target.name}
    x = image(range(1, 6), 1, 5, 1, 1)
    for size, wanted in (
        (3, [0.375, 0.35294118, 0.28125, 0.22641509, 0.34090909]),
        (2, [0.28571429, 0.26666667, 0.22222222, 0.18604651, 0.37037037]),
    ):
        near(tvmdml.local_response_normalization(x, local_size=size, **given), wanted)
    found = tvmdml.local_response_normalization_grad(x[:, :3], np.ones((1, 3, 1, 1), f32), local_size=3, **given)
    near(found, [0.23972751, -0.23469939, -0.14800497])
    x = image(range(16), 1, 1, 4, 4)
    for scale, region, wanted in (
        (1, (0, 0, 0, 2, 2), [5, 6, 9, 10]),
        (0.5, (0, 1, 1, 5, 5), [10, 11, 14, 15]),
        (1, (0, 9, 9, 12, 12), [0] * 4),
        (1, (1, 0, 0, 2, 2), [0] * 4),
        (1, (0, nan, 0, 2, 2), [0] * 4),
    ):
        bins = tvmdml.roi_pooling(x, image(region, 1, 1, 1, 5), spatial_scale=scale, pooled_size=(2, 2), device=target.name)
        assert bins.ravel().tolist() == wanted
    lowest = np.full((1, 3, 2, 2), -np.inf, f32)  # is an element: only a bin without one gives 0
    bins = tvmdml.roi_pooling(lowest, image((0, 1, 0, 2, 1), 1, 1, 1, 5), pooled_size=(2, 1), device=target.name)
    assert bins.ravel().tolist() == [-np.inf, 0] * 3
    q, (zero, other) = np.array([10, 20, 30, 40], np.uint8).reshape(1, 1, 2, 2), np.array([[10], [5]], np.uint8)
    found = tvmdml.quantized_linear_average_pooling(q, 0.5, 0.25, zero, other, window_sizes=(2, 2), device=target.name)
    assert found.ravel().tolist() == [35]


def test_unpooling_puts_back_what_pooling_took(target: Target) -> None:
    x = seeded("unpool").standard_normal((2, 3, 6, 8)).astype(f32)
    values, indices = tvmdml.max_pooling(x, window_sizes=(2, 2), strides=(2, 2), output_indices=True, device=target.name)
    found = tvmdml.max_unpooling(values, indices, output_sizes=x.shape, device=target.name)
    assert_same_bits(found, np.where(np.isin(np.arange(x.size).reshape(x.shape), indices), x, f32(0)))
    far = np.where(indices % 2 == 0, indices, NONE)
    found = tvmdml.max_unpooling(values, far, output_sizes=x.shape, device=target.name)
    assert_same_bits(found, np.where(np.isin(np.arange(x.size).reshape(x.shape), far), x, f32(0)))


# -- Sums ---------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_large_windows_keep_the_bound(dtype: Any, target: Target) -> None:
    rng = seeded("bound", dtype)
    sizes = (1, 2, 3, 17, 64, 1000, 4096, 65537) if target.kind == "cpu" else (17, 1000)
    for n in sizes:
        normal = rng.standard_normal(n)
        for x in (np.full(n, 0.1), normal, 100 + normal, (10000 + normal) * (-1.0) ** np.arange(n)):
            given = x.astype(dtype).reshape(1, 1, 1, n)
            exact, size = given.astype(np.float64).sum() / n, np.abs(given.astype(np.float64)).sum() / n
            growth = 2.0**-23 * (0 if n == 1 else min(n / 2, 32 + 4 * np.ceil(np.log2(n))))
            error = growth * size + 4 * 2.0**-23 * abs(exact)
            error += 2.0**-11 * (abs(exact) + error) + 2.0**-25 if dtype == np.float16 else 2.0**-126
            for shape in ((1, 1, 1, n), (1, 1, n, 1)):
                found = tvmdml.average_pooling(given.reshape(shape), window_sizes=shape[2:], device=target.name)
                assert abs(float(found.ravel()[0]) - exact) <= error


@pytest.mark.full
def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    x = seeded("threads").standard_normal((3, 5, 31, 37)).astype(f32)
    found = []
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("TVMDML_NUM_THREADS", threads)
        tvmdml.functions.forget_plans()
        with tvmdml.knobs.using(window={"task_elements": 1}):
            found.append([
                tvmdml.average_pooling(x, window_sizes=(3, 3), strides=(2, 2), start_padding=(1, 1)),
                tvmdml.average_pooling(x, window_sizes=(31, 37)),
                tvmdml.lp_pooling(x, window_sizes=(4, 5), p=3),
                tvmdml.local_response_normalization(x, cross_channel=True, local_size=3),
            ])  # fmt: skip
    tvmdml.functions.forget_plans()
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert_same_bits(one, other)


@pytest.mark.full
def test_of_zeros_the_first_is_taken_and_every_nan_is_kept(target: Target) -> None:
    rng = seeded("zeros")
    x = np.where(rng.random((2, 3, 70, 40)) < 0.5, f32(-0.0), f32(0))
    x[rng.random(x.shape) < 0.01] = np.nan
    for window, strides, padding in (((70, 40), (1, 1), 0), ((3, 3), (2, 2), 1), ((2, 5), (1, 3), 0), ((3, 3), (1, 1), 1)):
        given: dict[str, Any] = {"window_sizes": window, "strides": strides, "start_padding": (padding,) * 2, "device": target.name}
        values, indices = tvmdml.max_pooling(x, output_indices=True, **given)
        assert_same_bits(values, x.ravel()[indices])
        last = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        for one in (x, last):
            assert_same_bits(tvmdml.max_pooling(one, **given), values)


# -- Other libraries ----------------------------------------------------------------------------------------------

FORMS = (
    ((3, 3), (2, 2), (1, 1), (1, 1)),
    ((2, 3), (1, 2), (0, 1), (2, 1)),
    ((5, 1), (3, 1), (2, 0), (1, 3)),
    ((1, 4), (1, 4), (0, 2), (1, 1)),
)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pooling_is_pytorchs_with_its_gradients(dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import tvmdml.torch

    own, theirs = torch.ops.tvmdml, torch.nn.functional
    rng = seeded("torch", dtype)
    for (window, strides, padding, dilations), ceil in itertools.product(FORMS, (False, True)):
        x = torch.from_numpy(rng.permutation(2 * 3 * 11 * 19).reshape(2, 3, 11, 19).astype(dtype) / 7).requires_grad_()
        numbers = {"strides": strides, "start_padding": padding, "end_padding": padding}
        wanted, places = theirs.max_pool2d(x, window, strides, padding, dilations, ceil, return_indices=True)
        weights = torch.from_numpy(rng.standard_normal(wanted.shape).astype(dtype))
        found = own.max_pooling(x, window_sizes=window, dilations=dilations, output_sizes=wanted.shape, **numbers)
        assert torch.equal(found, wanted)
        torch.testing.assert_close(*(torch.autograd.grad((one * weights).sum(), x)[0] for one in (found, wanted)))
        _, indices = tvmdml.max_pooling(
            x.detach(), window_sizes=window, dilations=dilations, output_sizes=wanted.shape, output_indices=True, **numbers
        )
        assert torch.equal(indices, places + torch.arange(6).reshape(2, 3, 1, 1) * 11 * 19)
        for padded in (False, True):
            wanted = theirs.avg_pool2d(x, window, strides, padding, ceil, padded)
            found = own.average_pooling(x, window_sizes=window, include_padding=padded, output_sizes=wanted.shape, **numbers)
            torch.testing.assert_close(found, wanted)
            weights = torch.from_numpy(rng.standard_normal(wanted.shape).astype(dtype))
            torch.testing.assert_close(*(torch.autograd.grad((one * weights).sum(), x)[0] for one in (found, wanted)))
    x = x.detach().abs() / 100
    torch.testing.assert_close(
        own.lp_pooling(x, window_sizes=(3, 2), strides=(2, 1)), theirs.lp_pool2d(x, 2.0, (3, 2), (2, 1)), rtol=1e-5, atol=1e-5
    )


def test_responses_are_pytorchs_with_their_gradients() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import tvmdml.torch  # noqa: F401

    x = torch.randn(2, 7, 3, 4, dtype=torch.float64, requires_grad=True)
    for size, alpha, beta, bias in ((5, 0.7, 0.75, 1.0), (3, 2.0, 1.3, 0.5)):
        found = torch.ops.tvmdml.local_response_normalization(
            x, cross_channel=True, local_size=size, alpha=alpha, beta=beta, bias=bias
        )
        wanted = torch.nn.functional.local_response_norm(x, size, alpha, beta, bias)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(*(torch.autograd.grad(one.sum(), x)[0] for one in (found, wanted)), rtol=1e-6, atol=1e-6)


def test_a_gradient_of_dilated_averages_is_refused() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import tvmdml.torch

    x = torch.randn(1, 1, 5, 5, requires_grad=True)
    found = torch.ops.tvmdml.average_pooling(x, window_sizes=(2, 2), dilations=(2, 1))
    with pytest.raises(tvmdml.Unsupported, match=r"dilations \(2, 1\)"):
        found.sum().backward()


# -- Rules --------------------------------------------------------------------------------------------------------


def test_a_function_names_its_own_keywords_in_errors() -> None:
    x = np.zeros((1, 1, 4, 4), f32)
    for call, text in (
        (lambda: tvmdml.average_pooling(x, window_sizes=(5, 1)), "tvmdml.average_pooling: window_sizes[0]: given 5, over 5"),
        (lambda: tvmdml.max_pooling(x, window_sizes=(5, 1)), "tvmdml.max_pooling: window_sizes[0]: given 5, over 5"),
        (lambda: tvmdml.lp_pooling(x, window_sizes=(2,)), "tvmdml.lp_pooling: window_sizes: given 1 number; allowed: 2"),
        (lambda: tvmdml.max_pooling(x[:, :, :0], window_sizes=(1, 1), end_padding=(3, 3)), "input.sizes[2]: given 0"),
        (
            lambda: tvmdml.max_pooling(x, window_sizes=(2, 2), output_sizes=(1, 1, 5, 3)),
            "output.sizes[2]: given 5; allowed: 1 to 3",
        ),
    ):
        with pytest.raises(tvmdml.InvalidArgument) as caught:
            call()
        assert text in str(caught.value)


def test_no_batch_and_no_channels_are_no_elements() -> None:
    for sizes in ((0, 2, 4, 4), (2, 0, 4, 4)):
        assert tvmdml.max_pooling(np.zeros(sizes, f32), window_sizes=(2, 2)).shape == (*sizes[:2], 3, 3)


@pytest.mark.full(first=1)
def test_numbers_of_any_size_are_no_danger(target: Target) -> None:
    huge = 2**32 - 1
    x = image([1, 2, 3, 4], 1, 1, 1, 4)
    given: dict[str, Any] = {"strides": (1, huge), "start_padding": (0, huge), "end_padding": (0, huge), "device": target.name}
    try:
        found = tvmdml.max_pooling(x, window_sizes=(1, huge), output_indices=True, **given)
    except tvmdml.Unsupported:  # a device without integers of 64 bits
        return
    assert found.values.ravel().tolist() == [-inf, 4][: found.values.size]
    near(tvmdml.average_pooling(x, window_sizes=(1, huge), **given), [0, 2.5][: found.values.size])


@pytest.mark.full(first=1)
@pytest.mark.parametrize("padding", [(0, 5), (5, 0), (40, 3), (2, 5000)])
def test_windows_far_over_an_edge_are_those_of_a_padded_image(padding: tuple[int, int], target: Target) -> None:
    start, end = padding
    given: dict[str, Any] = {"start_padding": (0, start), "end_padding": (0, end), "device": target.name}
    wrong = []
    for width in (17, 29, 45) if target.kind == "cpu" else (45,):
        x = seeded("far", width).standard_normal((1, 2, 3, width)).astype(f32)
        for window in (2, 3):
            padded, zeros = (np.pad(x, [(0, 0)] * 3 + [padding], constant_values=value) for value in (-inf, 0))
            count = padded.shape[3] - window + 1
            wanted = np.maximum.reduce([padded[..., i : i + count] for i in range(window)])
            found = tvmdml.max_pooling(x, window_sizes=(1, window), **given)
            total = np.add.reduce([zeros[..., i : i + count] for i in range(window)], dtype=np.float64)
            average = tvmdml.average_pooling(x, window_sizes=(1, window), include_padding=True, **given)
            if not np.array_equal(found, wanted) or not np.allclose(average, total / window, atol=1e-6):
                wrong.append((width, window))
    assert not wrong


def test_gradients_of_windows_far_over_an_edge_take_no_memory_for_the_padding(target: Target) -> None:
    far = 1 << 29
    x, gradient = np.ones((1, 1, 4, 32), f32), np.ones((1, 1, 3, 1), f32)
    given: dict[str, Any] = {"start_padding": (0, far), "end_padding": (0, 0)}
    desc = operators.by_name("MAX_POOLING_GRAD").of(
        *map(desc_of, (x, gradient)), strides=(1, 1), dilations=(1, 1), window_size=(2, 2), **given
    )
    assert sum(count for _, count in kernel_for(desc, target).temporaries) < 1 << 20
    assert not tvmdml.max_pooling_grad(x, gradient, window_sizes=(2, 2), device=target.name, **given).any()
    tall: dict[str, Any] = {"window_sizes": (far, 2), "start_padding": (0, 0), "end_padding": (far, 0), "device": target.name}
    found = tvmdml.max_pooling_grad(x, np.ones((1, 1, 1, 31), f32), **tall)
    assert found.tolist() == [[[[1.0] * 31 + [0.0]] + [[0.0] * 32] * 3]]


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_windows_give_to_their_elements_in_row_major_order(dtype: str) -> None:
    x, gradient = (seeded(f"give {dtype}").standard_normal(sizes).astype(dtype) for sizes in ((2, 3, 13, 17), (2, 3, 7, 9)))
    numbers: dict[str, Any] = {"strides": (2, 2), "start_padding": (1, 1), "end_padding": (1, 1)}
    average, largest = np.zeros_like(x), np.zeros_like(x)
    for place in np.ndindex(gradient.shape):
        *image_of, row, column = place
        own: Any = (*image_of, slice(max(2 * row - 1, 0), 2 * row + 2), slice(max(2 * column - 1, 0), 2 * column + 2))
        average[own] += gradient[place] / gradient.dtype.type(x[own].size)
        at = np.unravel_index(x[own].argmax(), x[own].shape)
        largest[own][at] += gradient[place]
    found = tvmdml.average_pooling_grad(gradient, output_gradient_sizes=x.shape, window_sizes=(3, 3), **numbers)
    assert_same_bits(found, average)
    assert_same_bits(tvmdml.max_pooling_grad(x, gradient, window_sizes=(3, 3), **numbers), largest)


GIVEN: tuple[dict[str, Any], ...] = (
    {"window_size": (3, 3), "strides": (1, 1), "start_padding": (1, 1), "end_padding": (1, 1)},
    {"window_size": (3, 4), "strides": (2, 3), "start_padding": (0, 2), "end_padding": (2, 1)},
    {"window_size": (2, 2), "strides": (3, 4), "start_padding": (1, 0), "end_padding": (0, 0)},
    {"window_size": (2, 1, 3), "strides": (1, 2, 2), "start_padding": (1, 0, 2), "end_padding": (0, 1, 2)},
)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.some(2)
@pytest.mark.parametrize("given", GIVEN)
def test_gradients_by_rows_are_those_of_elements(dtype: str, given: dict[str, Any]) -> None:
    rng, rank = seeded(f"rows {dtype} {given}"), len(given["strides"])
    sizes = (2, 2, *rng.integers(3, 40, rank - 1), int(rng.integers(16, 80)))
    x = rng.integers(-9, 9, sizes).astype(dtype)
    for value, part in ((nan, 0.05), (-inf, 0.3)):
        x[rng.random(sizes) < part] = value
    dilations = tuple(rng.integers(1, 3, rank))
    for name, more in (("AVERAGE", {"include_padding": bool(rng.integers(2))}), ("MAX", {"dilations": dilations})):
        wide: Any = more.get("dilations", (1,) * rank)
        numbers = (given[one] for one in ("start_padding", "end_padding", "window_size", "strides"))
        ends = zip(sizes[2:], *numbers, wide, strict=True)
        counts = [(n + a + b - (k - 1) * d - 1) // s + 1 for n, a, b, k, s, d in ends]
        gradient = rng.standard_normal((2, 2, *counts)).astype(dtype)
        gradient[rng.random(gradient.shape) < 0.2] = -0.0
        inputs = (gradient,) if name == "AVERAGE" else (x, gradient)
        apart = np.zeros((*sizes, 2), dtype)[..., 0]
        for result, least in ((apart, 1 << 23), (np.zeros(sizes, dtype), 1 << 23), (np.zeros(sizes, dtype), 1)):
            to = {"output_gradient_tensor": desc_of(result)}
            desc = operators.by_name(f"{name}_POOLING_GRAD").of(*map(desc_of, inputs), **to, **given, **more)
            with knobs.using(window={"task_elements": least}):  # many tasks, or one
                CompiledOperator(desc, targets.resolve("cpu"))(*inputs, result)
            assert_same_bits(result, apart, any_nan=True)


def test_gradients_have_vectors_where_rows_are_long() -> None:
    for name in ("MAX_POOLING_GRAD", "AVERAGE_POOLING_GRAD"):
        for dtype in ("float16", "float32", "float64"):
            assert kernel_of(name, TensorDesc(dtype, (1, 1, 8, 8))) == "shifted"
        assert kernel_of(name, TensorDesc("float32", (1, 1, 8, 6))) == "spread"
        assert kernel_of(name, TensorDesc("float16", (1, 1, 8, 6))) == "default", "a float16 is summed in float32"


def kernel_of(name: str, image_of: TensorDesc) -> str:
    """The kernel that a gradient of 2 x 2 windows has on the processor."""
    pooled = image_of.with_sizes((*image_of.sizes[:2], *(n // 2 for n in image_of.sizes[2:])))
    given: dict[str, Any] = {"strides": (2, 2), "window_size": (2, 2), "start_padding": (0, 0), "end_padding": (0, 0)}
    if name == "MAX_POOLING_GRAD":
        desc = operators.by_name(name).of(image_of, pooled, dilations=(1, 1), **given)
    else:
        desc = operators.by_name(name).of(pooled, output_gradient_tensor=image_of, include_padding=False, **given)
    return kernel_for(desc, targets.resolve("cpu")).name
