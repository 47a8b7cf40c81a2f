"""Networks that PyTorch exports, with made-up weights: the results are PyTorch's, and ONNX Runtime's where it is installed."""

from __future__ import annotations

import importlib.util
import io
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tvmdml

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")
torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

import tvmdml.onnx  # noqa: E402 - it needs ONNX

nn, F = torch.nn, torch.nn.functional


class Residual(nn.Module):  # type: ignore[misc, name-defined]
    """Two convolutions beside a shortcut."""

    def __init__(self, before: int, after: int, step: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(before, after, 3, step, 1, bias=False), nn.BatchNorm2d(after))
        self.second = nn.Sequential(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after))
        self.short = (
            nn.Sequential(nn.Conv2d(before, after, 1, step, bias=False), nn.BatchNorm2d(after)) if step > 1 else nn.Identity()
        )

    def forward(self, x: Any) -> Any:
        return F.relu(self.second(F.relu(self.first(x))) + self.short(x))


def residual() -> Any:
    """The shape of ResNet-18, with fewer channels."""
    widths = [(16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
    head = [nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*head, *(Residual(*one) for one in widths), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 100))


class Inverted(nn.Module):  # type: ignore[misc, name-defined]
    """A wide convolution by channels between two narrow ones, with a gate of all places."""

    def __init__(self, width: int, wide: int, step: int) -> None:
        super().__init__()
        self.wide = nn.Sequential(nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish())
        self.each = nn.Sequential(nn.Conv2d(wide, wide, 5, step, 2, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.Hardswish())
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, 8, 1), nn.ReLU(), nn.Conv2d(8, wide, 1), nn.Hardsigmoid()
        )
        self.narrow = nn.Sequential(nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width))
        self.step = step

    def forward(self, x: Any) -> Any:
        y = self.each(self.wide(x))
        y = self.narrow(y * self.gate(y))
        return x + y if self.step == 1 else y


def mobile() -> Any:
    """The shape of MobileNetV3."""
    head = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish()]
    return nn.Sequential(*head, Inverted(16, 64, 1), Inverted(16, 72, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 50))


class Attention(nn.Module):  # type: ignore[misc, name-defined]
    """Attention of several heads; ``causal``: of earlier rows only."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.all, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x: Any) -> Any:
        batch, rows, width = x.shape
        parts = self.all(x).reshape(batch, rows, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts[0], parts[1], parts[2]
        scores = query @ key.transpose(-2, -1) / math.sqrt(width // self.heads)
        if self.causal:
            scores = scores.masked_fill(torch.triu(torch.ones(rows, rows, dtype=torch.bool), 1), float("-inf"))
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, rows, width))


class Layer(nn.Module):  # type: ignore[misc, name-defined]
    """An attention and two products, each normalized before."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = Attention(width, heads, causal)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        x = x + self.mix(self.one(x))
        return x + self.down(F.gelu(self.up(self.two(x))))


class Words(nn.Module):  # type: ignore[misc, name-defined]
    """Of words: the shape of BERT, or with ``causal`` of GPT."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(200, 64), nn.Embedding(64, 64)
        self.layers = nn.Sequential(Layer(64, 4, causal), Layer(64, 4, causal))
        self.last, self.causal = nn.LayerNorm(64), causal

    def forward(self, ids: Any) -> Any:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        x = self.last(self.layers(x))
        return x @ self.words.weight.T if self.causal else torch.tanh(x[:, 0])


class Patches(nn.Module):  # type: ignore[misc, name-defined]
    """Of patches of an image: the shape of ViT."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, 48, 8, 8)
        self.first, self.places = nn.Parameter(torch.randn(1, 1, 48)), nn.Parameter(torch.randn(1, 17, 48))
        self.layers, self.last = nn.Sequential(Layer(48, 3, False), Layer(48, 3, False)), nn.Linear(48, 10)

    def forward(self, x: Any) -> Any:
        x = self.cut(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.last(self.layers(x)[:, 0])


class Recurrent(nn.Module):  # type: ignore[misc, name-defined]
    """Two directions of an LSTM, and a GRU after it."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.after = nn.LSTM(12, 16, 2, bidirectional=True), nn.GRU(32, 8)

    def forward(self, x: Any) -> Any:
        return self.after(self.both(x)[0])[0]


def decoder() -> Any:
    """What makes images larger: transposed convolutions, instance normalization, resizing."""
    return nn.Sequential(
        nn.ConvTranspose2d(8, 16, 4, 2, 1),
        nn.InstanceNorm2d(16, affine=True),
        nn.LeakyReLU(0.2),
        nn.GroupNorm(4, 16),
        nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
        nn.Conv2d(16, 4, 3, padding=1, padding_mode="reflect"),
        nn.PixelShuffle(2),
        nn.Tanh(),
    )


def image(*shape: int) -> Callable[[Any], Any]:
    return lambda rng: rng.standard_normal(shape, np.float32)


def words(*shape: int) -> Callable[[Any], Any]:
    return lambda rng: rng.integers(0, 200, shape)


NETWORKS: dict[str, tuple[Callable[[], Any], list[Callable[[Any], Any]], dict[int, str]]] = {
    "residual": (residual, [image(1, 3, 64, 64)], {}),
    "mobile": (mobile, [image(2, 3, 32, 32), image(1, 3, 32, 32)], {0: "batch"}),
    "words": (lambda: Words(False), [words(2, 9), words(1, 17)], {0: "batch", 1: "rows"}),
    "causal words": (lambda: Words(True), [words(1, 12), words(3, 5)], {0: "batch", 1: "rows"}),
    "patches": (Patches, [image(1, 3, 32, 32), image(3, 3, 32, 32)], {0: "batch"}),
    "recurrent": (Recurrent, [image(7, 2, 12)], {}),
    "decoder": (decoder, [image(1, 8, 6, 5)], {}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_gives_what_pytorch_computes(name: str) -> None:
    make, inputs, axes = NETWORKS[name]
    torch.manual_seed(7)
    network = make().eval()
    for one in network.modules():
        if isinstance(one, nn.BatchNorm2d):
            one.running_mean.normal_(0, 0.1)
            one.running_var.uniform_(0.5, 1.5)
    rng = np.random.default_rng(5)
    given = [make_input(rng) for make_input in inputs]
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (torch.from_numpy(given[0]),),
            file,
            dynamo=False,
            input_names=["x"],
            dynamic_axes={"x": axes} if axes else None,
        )
    model = tvmdml.onnx.load(file.getvalue())
    assert set(model.symbols) >= set(axes.values())
    for x in given:
        (found,) = model(x=x)
        with torch.no_grad():
            right = network(torch.from_numpy(x)).numpy()
        assert found.shape == right.shape
        assert np.abs(found - right).max() <= 1e-4 * np.abs(right).max()
        if importlib.util.find_spec("onnxruntime") is not None:
            import onnxruntime  # type: ignore[import-untyped]

            session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
            (other,) = session.run(None, {"x": x})
            assert np.abs(found - other).max() <= 1e-4 * np.abs(other).max()
