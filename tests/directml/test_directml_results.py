"""What particular functions of the package's interface compute: modes, quantized numbers, and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tvmdml.directml as dml


@pytest.fixture(scope="module")
def device() -> dml.Device:
    return dml.Device()


def computed(device: dml.Device, function: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    """The results of a function of inputs."""
    graph = dml.Graph(device)
    inputs = [graph.input(array.shape, array.dtype) for array in arrays]
    found = function(*inputs)
    several = [found] if isinstance(found, dml.Expression) else [one for one in found if one is not None]
    return graph.compile(several)(dict(zip(inputs, arrays, strict=True)))


def shaped(values: Any, dtype: Any = np.float32) -> np.ndarray:
    array = np.asarray(values, dtype)
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


@pytest.mark.parametrize(
    ("mode", "right"),
    [("HALVES_TO_NEAREST_EVEN", [0, 2, -2, 2]), ("TOWARD_ZERO", [0, 1, -1, 2]), ("TOWARD_INFINITY", [1, 2, -2, 2])],
)
def test_modes_of_rounding(device: dml.Device, mode: str, right: list[float]) -> None:
    given = shaped([0.5, 1.5, -1.5, 2.4])
    (found,) = computed(device, lambda x: dml.round(x, rounding_mode=dml.RoundingMode[mode]), given)
    assert found.ravel().tolist() == right


@pytest.mark.parametrize(("mode", "right"), [("EITHER", [0, 1, 1, 0]), ("POSITIVE", [0, 1, 0, 0]), ("NEGATIVE", [0, 0, 1, 0])])
def test_modes_of_infinity(device: dml.Device, mode: str, right: list[int]) -> None:
    given = shaped([1, np.inf, -np.inf, np.nan])
    (found,) = computed(device, lambda x: dml.is_infinity(x, infinity_mode=dml.IsInfinityMode[mode]), given)
    assert found.ravel().tolist() == right


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", dml.ReduceFunction.__members__)
def test_reductions(device: dml.Device, name: str) -> None:
    given = np.random.default_rng(1).uniform(0.5, 2, (1, 2, 3, 4)).astype(np.float32)
    right = {
        "ARGMAX": given.argmax(3), "ARGMIN": given.argmin(3), "AVERAGE": given.mean(3), "L1": np.abs(given).sum(3),
        "L2": np.sqrt((given**2).sum(3)), "LOG_SUM": np.log(given.sum(3)), "LOG_SUM_EXP": np.log(np.exp(given).sum(3)),
        "MAX": given.max(3), "MIN": given.min(3), "MULTIPLY": given.prod(3), "SUM": given.sum(3), "SUM_SQUARE": (given**2).sum(3),
    }[name]  # fmt: skip
    function = dml.ReduceFunction[name]
    (found,) = computed(device, lambda x: dml.reduce(x, function=function, axes=[3]), given)
    assert found.shape == (1, 2, 3, 1)
    assert found.dtype == (np.uint32 if name.startswith("ARG") else np.float32)
    np.testing.assert_allclose(found[..., 0], right, rtol=1e-4, atol=1e-5)


# -- Quantized numbers


def test_blocks_of_quantized_numbers(device: dml.Device) -> None:
    both, scale = dml.QuantizationType.SCALE_ZERO_POINT, dml.QuantizationType.SCALE
    given, scales = shaped([0, 2, 4, 6], np.uint8), shaped([1.0, 10.0])
    (found,) = computed(
        device, lambda x, s, z: dml.dequantize(x, [s, z], quantization_type=both), given, scales, shaped([1, 2], np.uint8)
    )
    assert found.ravel().tolist() == [-1, 1, 20, 40]
    (found,) = computed(device, lambda x, s: dml.dequantize(x, [s], quantization_type=scale), given, scales.astype(np.float16))
    assert found.dtype == np.float16
    assert found.ravel().tolist() == [-128, -126, -1240, -1220]  # an unsigned number without a zero point is centred
    (found,) = computed(device, lambda x, s: dml.dequantize(x, [s], quantization_type=scale), given.astype(np.int8), scales)
    assert found.ravel().tolist() == [0, 2, 40, 60]


IMAGE, FILTER = shaped(np.arange(1, 10).reshape(3, 3), np.uint8), shaped([[1, 0], [0, 2]], np.uint8)


def windows(image: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The sums of the products in each window."""
    parts = np.lib.stride_tricks.sliding_window_view(image.astype(np.int64)[0, 0], (2, 2))
    return np.einsum("ijkl,fkl->fij", parts, weights.astype(np.int64)[:, 0])[None]


@pytest.mark.full
def test_quantized_sums(device: dml.Device) -> None:
    unit, four = shaped([1.0]), shaped([4.0])
    weights = np.concatenate([FILTER, np.ones_like(FILTER)])
    scales = np.array([1.0, 2.0], np.float32).reshape(1, 2, 1, 1)
    (found,) = computed(
        device,
        lambda x, xs, f, fs, os: dml.quantized_linear_convolution(x, xs, f, fs, os, output_dtype=np.uint8),
        *(IMAGE, unit, weights, scales, four),
    )
    assert np.array_equal(found, np.round(windows(IMAGE, weights) * scales / 4))  # halves to even
    (found,) = computed(
        device,
        lambda x, xs, f, fs, os, b, z: dml.quantized_linear_convolution(
            x, xs, f, fs, os, bias=b, output_zero_point=z, output_dtype=dml.TensorDataType.UINT8
        ),
        *(IMAGE, unit, FILTER, unit, four, shaped([100], np.int32), shaped([3], np.uint8)),
    )
    assert np.array_equal(found, np.round((windows(IMAGE, FILTER) + 100) / 4) + 3)  # the bias is added before scaling


# -- Gradients


def adjoint(device: dml.Device, forward: Any, backward: Any, x: np.ndarray, gradient: np.ndarray) -> None:
    """``<forward(x), gradient>`` is ``<x, backward(gradient)>``, exactly, for small integers."""
    (there,), (back,) = computed(device, forward, x), computed(device, backward, gradient)
    assert back.shape == x.shape
    assert (there * gradient).sum() == (x * back).sum()


@pytest.mark.full
def test_gradients_of_slices_and_samples(device: dml.Device) -> None:
    x, gradient = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4), shaped([[1, 2], [3, 4]])
    window = {"input_window_offsets": [0, 0, 1, 0], "input_window_sizes": [1, 1, 2, 3], "input_window_strides": [1, 1, 1, 2]}
    sizes = {"output_gradient_sizes": [1, 1, 4, 4]}
    adjoint(device, lambda x: dml.slice(x, **window), lambda g: dml.slice_grad(g, **window, **sizes), x, gradient)
    for name in ("NEAREST_NEIGHBOR", "LINEAR"):
        mode = dml.InterpolationMode[name]
        adjoint(
            device,
            lambda x, mode=mode: dml.resample(x, output_sizes=[1, 1, 4, 4], mode=mode),
            lambda g, mode=mode: dml.resample_grad(g, output_sizes=[1, 1, 2, 2], mode=mode),
            gradient,
            x,
        )


def test_statistics_of_a_batch(device: dml.Device) -> None:
    x, scale, bias, more = (
        np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2),
        shaped([2.0]),
        shaped([1.0]),
        shaped([[100, 0], [0, 7]]),
    )
    normal = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
    output, mean, variance = computed(device, dml.batch_normalization_training, x, scale, bias, more)
    np.testing.assert_allclose(output, 2 * normal + 1 + more, rtol=1e-5, atol=1e-5)  # what is added does not reach the statistics
    np.testing.assert_allclose([mean.item(), variance.item()], [x.mean(), x.var()], rtol=1e-6)
    gradient = shaped([[1.0, 0.5], [-0.5, 2.0]])
    inverse = 2 / np.sqrt(variance + 1e-5)
    held = gradient * inverse
    moved = inverse / 4 * (4 * gradient - gradient.sum() - normal * (gradient * normal).sum())
    for function, right in ((dml.batch_normalization_grad, held), (dml.batch_normalization_training_grad, moved)):
        found = computed(device, function, x, gradient, mean, variance, scale)
        np.testing.assert_allclose(found[0], right, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose([found[1].item(), found[2].item()], [(gradient * normal).sum(), gradient.sum()], rtol=1e-5)


@pytest.mark.full
def test_gradients_of_regions(device: dml.Device) -> None:
    rois = {
        "reduction_function": dml.ReduceFunction.AVERAGE, "interpolation_mode": dml.InterpolationMode.LINEAR,
        "spatial_scale_x": 1.0, "spatial_scale_y": 1.0, "input_pixel_offset": 0.5, "output_pixel_offset": -0.5,
        "minimum_samples_per_output": 1, "maximum_samples_per_output": 1, "align_regions_to_corners": False,
        "batch_size": 1, "image_height": 4, "image_width": 4,
    }  # fmt: skip
    gradient, roi, batch = np.ones((1, 1, 2, 2), np.float32), shaped([[0.0, 0.0, 4.0, 4.0]]), shaped([0], np.uint32)
    (found,) = computed(device, lambda g, r, b: dml.roi_align_grad(g, r, b, **rois), gradient, roi, batch)
    assert found.shape == (1, 1, 4, 4)
    assert found.sum() == gradient.sum()

    def of_regions(g: Any, r: Any, b: Any, x: Any = None) -> Any:
        found = dml.roi_align_grad(g, r, b, x, compute_output_gradient=False, compute_output_roi_gradient=True, **rois)
        assert found.gradient is None
        return found

    with pytest.raises(RuntimeError, match="E_INVALIDARG"):
        computed(device, of_regions, gradient, roi, batch)
    (found,) = computed(device, of_regions, gradient, roi, batch, np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4))
    assert found.shape == roi.shape
