"""Convolutions: the distinct layers of ResNet-50, the depthwise ones of MobileNetV2, transposed ones, and those of integers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tvmdml.proof.bench.cases import Case, Group, strided
from tvmdml.proof.bench.task import Kind
from tvmdml.proof.bench.work import Operand, Work

LAYERS = Group("convolutions of ResNet-50", 1.0)
DEPTHWISE = Group("depthwise convolutions", 2.0)
TRANSPOSED = Group("transposed convolutions", 1.2)
INTEGERS = Group("convolutions of integers", 1.0)
KIND = Kind(close=True, steps=64, weights=("filter_tensor",))
"""Sums of floats."""


class LayerCase(NamedTuple):
    """A layer of a network: square filters on a square image."""

    channels: int
    filters: int
    size: int
    kernel: int
    stride: int = 1
    padding: int = 0
    groups: int = 1
    backward: bool = False

    @property
    def point(self) -> str:
        """The layer in words."""
        step = f" by {self.stride}" if self.stride > 1 else ""
        return f"{self.kernel} x {self.kernel}{step}, {self.channels} to {self.filters} channels of {self.size} x {self.size}"

    @property
    def filter_sizes(self) -> tuple[int, ...]:
        """The filter's sizes."""
        first = (self.channels, self.filters) if self.backward else (self.filters, self.channels)
        return (first[0], first[1] // self.groups, self.kernel, self.kernel)

    def numbers(self) -> dict[str, Any]:
        """The attributes that all convolutions have."""
        pair, padding = (self.stride,) * 2, (self.padding,) * 2
        own = {"strides": pair, "dilations": (1, 1), "start_padding": padding, "end_padding": padding}
        return {**own, "group_count": self.groups}


RESNET = (
    LayerCase(3, 64, 224, 7, 2, 3),
    LayerCase(64, 64, 56, 1),
    LayerCase(64, 64, 56, 3, 1, 1),
    LayerCase(64, 256, 56, 1),
    LayerCase(256, 64, 56, 1),
    LayerCase(256, 128, 56, 1),
    LayerCase(128, 128, 56, 3, 2, 1),
    LayerCase(128, 512, 28, 1),
    LayerCase(256, 512, 56, 1, 2),
    LayerCase(512, 128, 28, 1),
    LayerCase(128, 128, 28, 3, 1, 1),
    LayerCase(512, 256, 28, 1),
    LayerCase(256, 256, 28, 3, 2, 1),
    LayerCase(256, 1024, 14, 1),
    LayerCase(512, 1024, 28, 1, 2),
    LayerCase(1024, 256, 14, 1),
    LayerCase(256, 256, 14, 3, 1, 1),
    LayerCase(1024, 512, 14, 1),
    LayerCase(512, 512, 14, 3, 2, 1),
    LayerCase(512, 2048, 7, 1),
    LayerCase(1024, 2048, 14, 1, 2),
    LayerCase(2048, 512, 7, 1),
    LayerCase(512, 512, 7, 3, 1, 1),
)
MOBILENET = tuple(
    LayerCase(channels, channels, size, 3, stride, 1, channels)
    for channels, size, stride in (
        *((32, 112, 1), (96, 112, 2), (144, 56, 1), (144, 56, 2), (192, 28, 1)),
        *((192, 28, 2), (384, 14, 1), (576, 14, 1), (576, 14, 2), (960, 7, 1)),
    )
)
BACKWARD = (LayerCase(256, 128, 14, 4, 2, 1, backward=True), LayerCase(128, 64, 28, 2, 2, backward=True))
OF_INTEGERS = (RESNET[2], RESNET[3], RESNET[10], RESNET[16])


def convolution(layer: LayerCase, dtype: str = "float32", batch: int = 1, door: str = "initialized") -> Work:
    """CONVOLUTION of a layer, whose filters are given once, as those of peers are."""
    x, w = Operand((batch, layer.channels, layer.size, layer.size), dtype, "unit"), Operand(layer.filter_sizes, dtype, "unit")
    direction = "BACKWARD" if layer.backward else "FORWARD"
    own: dict[str, Any] = {"mode": "CROSS_CORRELATION", "direction": direction, "output_padding": (0, 0)}
    return Work.on("CONVOLUTION", x, w, door=door, **layer.numbers(), **own)


def integers(layer: LayerCase) -> Work:
    """CONVOLUTION_INTEGER with a zero point of the image."""
    x, w = Operand((1, layer.channels, layer.size, layer.size), "uint8"), Operand(layer.filter_sizes, "int8")
    return Work.on("CONVOLUTION_INTEGER", x, Operand((1,), "uint8"), w, door="initialized", **layer.numbers())


def quantized(layer: LayerCase) -> Work:
    """QUANTIZED_LINEAR_CONVOLUTION of a layer."""
    x, w = Operand((1, layer.channels, layer.size, layer.size), "uint8"), Operand(layer.filter_sizes, "int8")
    one, zero = Operand((1,)), Operand((1,), "uint8")
    each, none = Operand((1, 1)), Operand((1,), "int8")
    return Work.on(
        "QUANTIZED_LINEAR_CONVOLUTION", x, one, zero, w, each, none, None, one, zero, door="initialized", **layer.numbers()
    )


def _goals() -> Iterator[Case]:
    for number, layer in enumerate(RESNET):
        yield Case("convolution float32", layer.point, convolution(layer), 1.0, number == 2, group=LAYERS)
    for number, layer in enumerate(MOBILENET):
        yield Case("depthwise convolution float32", layer.point, convolution(layer), 2.0, not number, group=DEPTHWISE)
    for layer in BACKWARD:
        yield Case("transposed convolution float32", layer.point, convolution(layer), 1.2, layer is BACKWARD[0], group=TRANSPOSED)
    for layer in (RESNET[2], RESNET[16]):
        yield Case("convolution float32, batch of 8", layer.point, convolution(layer, batch=8), 1.0, group=LAYERS)
    for number, layer in enumerate(OF_INTEGERS):
        yield Case("convolution of uint8 and int8", layer.point, integers(layer), 1.0, not number, group=INTEGERS)
        yield Case("quantized convolution", layer.point, quantized(layer), 1.0, not number, group=INTEGERS)
    yield strided("convolution float32 of padded rows", convolution(RESNET[2], door="bound"), "padded")


CASES = tuple(_goals())
