"""Networks of the kinds that programs for the package run, with drawn weights, against PyTorch."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest

import tvmdml.directml as dml
from tvmdml.targets import Target

torch = pytest.importorskip("torch", reason="PyTorch is not installed: it computes what is right")
F = torch.nn.functional

RELU = dml.FusedActivation.relu()


class Net:
    """A graph whose inputs and weights are also tensors of PyTorch."""

    def __init__(self, seed: int) -> None:
        self.graph = dml.Graph(dml.Device())
        self.random = np.random.default_rng(seed)
        self.feeds: dict[Any, np.ndarray] = {}

    def input(self, *sizes: int) -> tuple[Any, Any]:
        """An input, and its values."""
        values = self.random.standard_normal(sizes).astype(np.float32)
        one = self.graph.input(sizes)
        self.feeds[one] = values
        return one, torch.from_numpy(values)

    def weight(self, *sizes: int, fan: int = 0, shift: float = 0.0) -> tuple[Any, Any]:
        """A constant, and its values: scaled so that sums of so many products stay near 1."""
        scale = 1 / math.sqrt(fan or math.prod(sizes[1:]) or 1)
        values = (self.random.standard_normal(sizes) * scale + shift).astype(np.float32)
        return self.graph.constant(values), torch.from_numpy(values)

    def check(self, *pairs: tuple[Any, Any], rtol: float = 2e-4, atol: float = 2e-4) -> Any:
        """Compare; twice, as a second run uses memory again."""
        operator = self.graph.compile([one for one, _ in pairs])
        for _ in range(2):
            for found, (_, right) in zip(operator(self.feeds), pairs, strict=True):
                assert found.shape == tuple(right.shape)
                np.testing.assert_allclose(found, right.numpy(), rtol=rtol, atol=atol)
        return operator


def test_a_digit_classifier() -> None:
    net = Net(1)
    x, a = net.input(1, 1, 28, 28)
    for channels, before, pool in ((8, 1, 2), (16, 8, 3)):
        w, p = net.weight(channels, before, 5, 5)
        zeros = net.graph.constant(np.zeros((1, channels, 1, 1), np.float32))
        x = dml.convolution(x, w, zeros, strides=[1, 1], start_padding=[2, 2], end_padding=[2, 2])
        bias = net.random.standard_normal((channels, 1, 1)).astype(np.float32)
        repeated = net.graph.input(x.shape, strides=[channels, 1, 0, 0])
        net.feeds[repeated] = bias
        x = dml.max_pooling(dml.activation_relu(dml.add(x, repeated)), strides=[pool] * 2, window_sizes=[pool] * 2).values
        a = F.max_pool2d(F.relu(F.conv2d(a, p, padding=2) + torch.from_numpy(bias)), pool)
    w, p = net.weight(16, 4, 4, 10, fan=256)
    matrix = dml.reinterpret(dml.activation_identity(w), [1, 1, 256, 10], [2560, 2560, 10, 1])
    b, q = net.weight(1, 1, 1, 10)
    x = dml.add(dml.gemm(dml.reinterpret(x, [1, 1, 1, 256], [256, 256, 256, 1]), matrix), b)
    net.check((dml.activation_softmax(x), F.softmax(a.reshape(1, 1, 1, 256) @ p.reshape(256, 10) + q, -1)))


def test_fire_modules() -> None:
    net = Net(2)
    x, a = net.input(1, 3, 47, 47)

    def convolved(x: Any, a: Any, channels: int, size: int, **more: Any) -> tuple[Any, Any]:
        w, p = net.weight(channels, x.shape[1], size, size)
        b, q = net.weight(1, channels, 1, 1)
        pad = [size // 2] * 2 if not more else [0, 0]
        strides = more.get("strides", [1, 1])
        x = dml.convolution(x, w, b, strides=strides, start_padding=pad, end_padding=pad, fused_activation=RELU)
        return x, F.relu(F.conv2d(a, p, q.flatten(), strides, pad))

    x, a = convolved(x, a, 16, 3, strides=[2, 2])
    for squeeze, expand in ((4, 16), (8, 32)):
        x, a = dml.max_pooling(x, window_sizes=[3, 3], strides=[2, 2]).values, F.max_pool2d(a, 3, 2)
        x, a = convolved(x, a, squeeze, 1)
        (one, left), (two, right) = convolved(x, a, expand, 1), convolved(x, a, expand, 3)
        x, a = dml.join([one, two], axis=1), torch.cat([left, right], 1)
    x, a = convolved(x, a, 10, 1)
    x = dml.average_pooling(x, strides=[1, 1], window_sizes=x.shape[2:], start_padding=[0, 0], end_padding=[0, 0])
    x = dml.activation_softmax(dml.reinterpret(x, [1, 1, 1, 10]))
    net.check((x, F.softmax(a.mean((2, 3)).reshape(1, 1, 1, 10), -1)))


def test_inverted_residuals() -> None:
    net = Net(3)
    x, a = net.input(1, 3, 32, 32)

    def normalized(x: Any, a: Any, channels: int, size: int, stride: int, groups: int, active: bool) -> tuple[Any, Any]:
        w, p = net.weight(channels, x.shape[1] // groups, size, size)
        pad = [size // 2] * 2
        x = dml.convolution(x, w, strides=[stride] * 2, start_padding=pad, end_padding=pad, group_count=groups)
        a = F.conv2d(a, p, None, stride, pad, groups=groups)
        c = (1, channels, 1, 1)
        mean, scale, bias = (net.weight(*c) for _ in range(3))
        variance = net.random.uniform(0.5, 2, c).astype(np.float32)
        spread = net.graph.constant(variance)
        x = dml.batch_normalization(x, mean[0], spread, scale[0], bias[0], epsilon=1e-5, fused_activation=RELU if active else None)
        four = (one.flatten() for one in (mean[1], torch.from_numpy(variance), scale[1], bias[1]))
        a = F.batch_norm(a, *four, eps=1e-5)
        return x, F.relu(a) if active else a

    x, a = normalized(x, a, 8, 3, 2, 1, True)
    for channels, stride, factor in ((8, 1, 3), (12, 2, 6), (12, 1, 6)):
        before, wide = (x, a), x.shape[1] * factor
        x, a = normalized(x, a, wide, 1, 1, 1, True)
        x, a = normalized(x, a, wide, 3, stride, wide, True)
        x, a = normalized(x, a, channels, 1, 1, 1, False)
        if x.shape == before[0].shape:
            x, a = dml.add(x, before[0]), a + before[1]
    x = dml.average_pooling(x, strides=[1, 1], window_sizes=x.shape[2:])
    w, p = net.weight(20, 12, 1, 1)
    x = dml.activation_softmax(dml.reinterpret(dml.convolution(x, w), [1, 20]), axes=[1])
    net.check((x, F.softmax(F.conv2d(a.mean((2, 3), keepdim=True), p).reshape(1, 20), 1)))


def test_super_resolution() -> None:
    net = Net(4)
    x, a = net.input(1, 1, 24, 24)
    for i, (channels, size) in enumerate(((16, 5), (16, 3), (8, 3), (9, 3))):
        w, p = net.weight(channels, x.shape[1], size, size)
        b, q = net.weight(1, channels, 1, 1)
        pad = [size // 2] * 2
        x = dml.convolution(x, w, b, start_padding=pad, end_padding=pad, fused_activation=RELU if i < 3 else None)
        a = F.conv2d(a, p, q.flatten(), 1, pad)
        a = F.relu(a) if i < 3 else a
    larger = dml.depth_to_space(x, block_size=3, order=dml.DepthSpaceOrder.COLUMN_ROW_DEPTH)
    net.check((x, a), (larger, F.pixel_shuffle(a, 3)))


def test_style_transfer() -> None:
    net = Net(5)
    x, a = net.input(1, 3, 32, 32)

    def convolved(x: Any, a: Any, channels: int, size: int, stride: int, pad: int, fused: Any = None) -> tuple[Any, Any]:
        w, p = net.weight(channels, x.shape[1], size, size)
        b, q = net.weight(1, channels, 1, 1)
        pads = {"start_padding": [pad] * 2, "end_padding": [pad] * 2}
        return (
            dml.convolution(x, w, b, strides=[stride] * 2, **pads, fused_activation=fused),
            F.conv2d(a, p, q.flatten(), stride, pad),
        )

    def instances(x: Any, a: Any, fused: Any = None) -> tuple[Any, Any]:
        (scale, p), (bias, q) = (net.weight(1, x.shape[1], 1, 1, shift=1.0) for _ in range(2))
        x = dml.mean_variance_normalization(x, scale, bias, axes=[0, 2, 3], epsilon=1e-5, fused_activation=fused)
        a = F.instance_norm(a, eps=1e-5) * p + q
        return x, F.relu(a) if fused is RELU else a

    x = dml.value_scale_2d(x, scale=2.0, bias=[-0.1, 0.2, 0.3])
    a = a * 2 + torch.tensor([-0.1, 0.2, 0.3]).reshape(1, 3, 1, 1)
    x = dml.padding(
        x, padding_mode=dml.PaddingMode.REFLECTION, padding_value=0, start_padding=[0, 0, 8, 8], end_padding=[0, 0, 8, 8]
    )
    a = F.pad(a, (8, 8, 8, 8), "reflect")
    x, a = instances(*convolved(x, a, 8, 9, 1, 4), RELU)
    x, a = instances(*convolved(x, a, 16, 3, 2, 1), RELU)
    for _ in range(2):
        first, before = x, a
        x, a = instances(*convolved(x, a, 16, 3, 1, 0), RELU)
        x, a = instances(*convolved(x, a, 16, 3, 1, 0))
        sizes = list(x.shape)
        cut = dml.slice(first, input_window_offsets=[0, 0, 2, 2], input_window_sizes=sizes, input_window_strides=[1] * 4)
        x, a = dml.add(x, cut), a + before[:, :, 2:-2, 2:-2]
    w, p = net.weight(16, 8, 3, 3)
    b, q = net.weight(1, 8, 1, 1)
    size = (x.shape[2] - 1) * 2 + 3
    x = dml.convolution(
        x, w, b, direction=dml.ConvolutionDirection.BACKWARD, strides=[2, 2], start_padding=[0, 0], end_padding=[0, 0],
        output_sizes=[1, 8, size, size],
    )  # fmt: skip
    a = F.conv_transpose2d(a, p, q.flatten(), 2)
    x, a = instances(x, a, RELU)
    x, a = convolved(x, a, 3, 9, 1, 4, dml.FusedActivation.tanh())
    x, a = dml.activation_linear(x, alpha=150.0, beta=0.0), 150 * torch.tanh(a)
    for function, together in ((dml.multiply, torch.mul), (dml.add, torch.add)):
        repeated = net.graph.input(x.shape, strides=[3, 1, 0, 0])
        net.feeds[repeated] = np.array([0.5, 1.0, 2.0], np.float32)
        x, a = function(x, repeated), together(a, torch.tensor([0.5, 1.0, 2.0]).reshape(1, 3, 1, 1))
    net.check((x, a), rtol=1e-3, atol=0.05)  # of numbers up to 300


# -- Blocks of larger models


def groups(net: Net, x: Any, a: Any, count: int) -> tuple[Any, Any]:
    """GroupNorm, as a normalization of a view."""
    n, c, h, w = x.shape
    (scale, p), (bias, q) = (net.weight(1, c, 1, 1, shift=1.0) for _ in range(2))
    normal = dml.mean_variance_normalization(dml.reinterpret(x, [n, count, c // count, h * w]), axes=[2, 3], epsilon=1e-6)
    x = dml.reinterpret(normal, x.shape) * dml.broadcast(scale, x.shape) + dml.broadcast(bias, x.shape)
    return x, F.group_norm(a, count, p.flatten(), q.flatten(), 1e-6)


def silu(x: Any, a: Any) -> tuple[Any, Any]:
    return x * dml.activation_sigmoid(x), F.silu(a)


def convolved(net: Net, x: Any, a: Any, channels: int, size: int = 3) -> tuple[Any, Any]:
    w, p = net.weight(channels, x.shape[1], size, size)
    b, q = net.weight(1, channels, 1, 1)
    pad = [size // 2] * 2
    return dml.convolution(x, w, b, start_padding=pad, end_padding=pad), F.conv2d(a, p, q.flatten(), 1, pad)


def linear(net: Net, x: Any, a: Any, width: int) -> tuple[Any, Any]:
    """A matrix, stored transposed, and a bias that every row repeats."""
    w, p = net.weight(1, 1, width, x.shape[3])
    b, q = net.weight(1, 1, 1, width)
    batch = x.shape[0]
    w = dml.broadcast(w, [batch, 1, width, x.shape[3]])
    b = dml.broadcast(b, [*x.shape[:3], width])
    return dml.gemm(x, w, b, trans_b=dml.MatrixTransform.TRANSPOSE), a @ p[0, 0].T + q


def layer(net: Net, x: Any, a: Any) -> tuple[Any, Any]:
    (scale, p), (bias, q) = (net.weight(1, 1, 1, x.shape[3], shift=1.0) for _ in range(2))
    x = dml.mean_variance_normalization(x, axes=[3], epsilon=1e-5)
    x = x * dml.broadcast(scale, x.shape) + dml.broadcast(bias, x.shape)
    return x, F.layer_norm(a, a.shape[-1:], p.flatten(), q.flatten(), 1e-5)


def residual(net: Net, x: Any, a: Any, channels: int, time: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
    first, before = x, a
    x, a = convolved(net, *silu(*groups(net, x, a, 4)), channels)
    if time is not None:
        t, b = linear(net, *silu(*time), channels)
        t = dml.reinterpret(t, [x.shape[0], channels, 1, 1])
        x, a = x + dml.broadcast(t, x.shape), a + b.reshape(x.shape[0], channels, 1, 1)
    x, a = convolved(net, *silu(*groups(net, x, a, 4)), channels)
    if first.shape != x.shape:
        first, before = convolved(net, first, before, channels, 1)
    return x + first, a + before


def test_a_block_of_an_image_decoder() -> None:
    net = Net(6)
    x, a = residual(net, *net.input(1, 8, 8, 8), 16)
    first, before = x, a
    x, a = groups(net, x, a, 4)
    rows, other = dml.reinterpret(x, [1, 1, 64, 16], [1024, 1024, 1, 64]), a.reshape(1, 1, 16, 64).swapaxes(2, 3)
    (q, b), (k, c), (v, d) = (linear(net, rows, other, 16) for _ in range(3))
    turned = dml.reinterpret(k, [1, 1, 16, 64], [1024, 1024, 1, 16])
    weights = dml.activation_softmax(dml.gemm(q, turned, alpha=0.25), axes=[3])
    x, a = linear(net, dml.gemm(weights, v), F.softmax(b @ c.swapaxes(2, 3) * 0.25, -1) @ d, 16)
    turned = dml.activation_identity(dml.reinterpret(x, [1, 16, 8, 8], [1024, 1, 128, 16]))
    x, a = turned + first, a.swapaxes(2, 3).reshape(1, 16, 8, 8) + before
    x = dml.upsample_2d(x, scale_size=(2, 2), interpolation_mode=dml.InterpolationMode.NEAREST_NEIGHBOR)
    a = F.interpolate(a, scale_factor=2)
    x, a = convolved(net, *silu(*groups(net, *convolved(net, x, a, 8), 4)), 3)
    net.check((x / 2 + 0.5, a / 2 + 0.5))


def test_a_block_of_a_text_encoder() -> None:
    net, tokens, width, heads = Net(7), 7, 32, 4
    table, p = net.weight(1, 1, 50, width, fan=1)
    places, q = net.weight(1, 1, tokens, width, fan=1)
    ids = net.graph.input([1, 1, 1, tokens], np.uint32)
    net.feeds[ids] = net.random.integers(0, 50, tokens).astype(np.uint32)
    x = dml.reinterpret(dml.gather(table, ids, axis=2, index_dimensions=1), [1, 1, tokens, width]) + places
    a = p[0, 0][torch.from_numpy(net.feeds[ids].astype(np.int64))] + q
    first, before = x, a
    x, a = layer(net, x, a)
    parts = []
    for _ in range(3):
        y, b = linear(net, x, a, width)
        size = width // heads
        parts.append(
            (dml.reinterpret(y, [1, heads, tokens, size], [0, size, width, 1]), b.reshape(tokens, heads, size).swapaxes(0, 1))
        )
    (q_, b), (k, c), (v, d) = parts
    causal = np.triu(np.full((tokens, tokens), -1e9, np.float32), 1)
    mask = dml.broadcast(net.graph.constant(causal, sizes=[1, 1, tokens, tokens]), [1, heads, tokens, tokens])
    scores = dml.gemm(q_, k, mask, trans_b=dml.MatrixTransform.TRANSPOSE, alpha=0.35)
    found = dml.gemm(dml.activation_softmax(scores, axes=[3]), v)
    right = F.softmax(b @ c.swapaxes(1, 2) * 0.35 + torch.from_numpy(causal), -1) @ d
    size = width // heads
    turned = dml.reinterpret(found, [1, tokens, heads, size], [0, size, tokens * size, 1])
    x = dml.reinterpret(dml.activation_identity(turned), [1, 1, tokens, width])
    x, a = linear(net, x, right.swapaxes(0, 1).reshape(1, 1, tokens, width), width)
    x, a = x + first, a + before
    y, b = linear(net, *layer(net, x, a), 2 * width)
    quick, soft = y * dml.activation_sigmoid(y * 1.702), b * torch.sigmoid(1.702 * b)
    y, b = linear(net, quick, soft, width)
    z, c = linear(net, dml.activation_gelu(y), F.gelu(b), width)
    x, a = layer(net, x + y + z, a + b + c)
    net.check((x, a))


@pytest.mark.parametrize("batch", [1, 2])
def test_a_block_of_a_denoiser(batch: int) -> None:
    net, width, heads = Net(8), 32, 4
    time, (text, words) = net.input(batch, 1, 1, 16), net.input(batch, 1, 5, 24)
    x, a = residual(net, *net.input(batch, 16, 4, 4), width, time)
    first, before = x, a
    x, a = groups(net, x, a, 4)
    x = dml.activation_identity(dml.reinterpret(x, [batch, 1, 16, width], [16 * width, 16 * width, 1, 16]))
    a = a.reshape(batch, 1, width, 16).swapaxes(2, 3)

    def attended(x: Any, a: Any, y: Any, b: Any) -> tuple[Any, Any]:
        (q, f), (k, g), (v, h) = linear(net, x, a, width), linear(net, y, b, width), linear(net, y, b, width)
        scale = 1 / math.sqrt(width // heads)
        found = dml.multihead_attention(q, k, v, head_count=heads, scale=scale)
        f, g, h = (one.reshape(batch, -1, heads, width // heads).swapaxes(1, 2) for one in (f, g, h))
        right = F.scaled_dot_product_attention(f, g, h).swapaxes(1, 2).reshape(batch, 1, 16, width)
        return linear(net, found, right, width)

    normal = layer(net, x, a)
    y, b = attended(*normal, *normal)
    x, a = x + y, a + b
    y, b = attended(*layer(net, x, a), text, words)
    x, a = x + y, a + b
    y, b = linear(net, *layer(net, x, a), 8 * width)
    window = {"input_window_sizes": [batch, 1, 16, 4 * width], "input_window_strides": [1] * 4}
    half, gate = (dml.slice(y, input_window_offsets=[0, 0, 0, start], **window) for start in (0, 4 * width))
    left, right = b.chunk(2, -1)
    y, b = linear(net, half * dml.activation_gelu(gate), left * F.gelu(right), width)
    x, a = x + y, a + b
    x = dml.reinterpret(x, [batch, width, 4, 4], [16 * width, 1, 4 * width, width])
    x, a = dml.join([x + first, first], axis=1), torch.cat([a.swapaxes(2, 3).reshape(batch, width, 4, 4) + before, before], 1)
    net.check(residual(net, x, a, 16))


NETWORKS = {
    one.__name__: one
    for one in (
        *(test_a_digit_classifier, test_fire_modules, test_inverted_residuals, test_super_resolution, test_style_transfer),
        *(test_a_block_of_an_image_decoder, test_a_block_of_a_text_encoder),
    )
} | {"test_a_block_of_a_denoiser": functools.partial(test_a_block_of_a_denoiser, 1)}


@pytest.mark.drawn("name", NETWORKS, 2)
def test_networks_on_vulkan(vulkan: Target, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("TVMDML_DEVICE", vulkan.name)
    NETWORKS[name]()
