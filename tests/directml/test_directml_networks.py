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
        test_a_digit_classifier,
        test_a_block_of_an_image_decoder,
        test_a_block_of_a_text_encoder,
    )
} | {"test_a_block_of_a_denoiser": functools.partial(test_a_block_of_a_denoiser, 1)}


@pytest.mark.drawn("name", NETWORKS, 2)
def test_networks_on_vulkan(vulkan: Target, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("TVMDML_DEVICE", vulkan.name)
    NETWORKS[name]()
