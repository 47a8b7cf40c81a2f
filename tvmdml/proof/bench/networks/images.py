"""Networks of images: residual, inverted residual, a block of a UNet, and patches as words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tvmdml.proof.bench.networks.layers import Layer


def _normed(before: int, after: int, window: int, step: int = 1, groups: int = 1, act: type[nn.Module] | None = None) -> Any:
    """A convolution with batch normalization."""
    conv = nn.Conv2d(before, after, window, step, window // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after), *([] if act is None else [act()]))


class _Residual(nn.Module):
    """Two or three convolutions beside a shortcut."""

    def __init__(self, before: int, width: int, after: int, step: int) -> None:
        super().__init__()
        if after == width:
            parts = [_normed(before, width, 3, step, act=nn.ReLU), _normed(width, after, 3)]
        else:
            parts = [_normed(before, width, 1, act=nn.ReLU), _normed(width, width, 3, step, act=nn.ReLU), _normed(width, after, 1)]
        self.parts = nn.Sequential(*parts)
        self.short = _normed(before, after, 1, step) if step > 1 or before != after else nn.Identity()

    def forward(self, x: Any) -> Any:
        return F.relu(self.parts(x) + self.short(x))


def resnet(layers: Sequence[int] = (2, 2, 2, 2), width: int = 64, widen: int = 1, classes: int = 1000) -> nn.Module:
    """ResNet-18, or with ``layers`` 3, 4, 6, 3 and ``widen`` 4 ResNet-50."""
    parts: list[nn.Module] = [_normed(3, width, 7, 2, act=nn.ReLU), nn.MaxPool2d(3, 2, 1)]
    before = width
    for stage, count in enumerate(layers):
        for i in range(count):
            after = width * 2**stage
            parts.append(_Residual(before, after, after * widen, 2 if stage and not i else 1))
            before = after * widen
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


class _Gate(nn.Module):
    """Channels times a gate of all places."""

    def __init__(self, width: int, narrow: int, act: type[nn.Module], gate: type[nn.Module]) -> None:
        super().__init__()
        down, up = nn.Conv2d(width, narrow, 1), nn.Conv2d(narrow, width, 1)
        self.parts = nn.Sequential(nn.AdaptiveAvgPool2d(1), down, act(), up, gate())

    def forward(self, x: Any) -> Any:
        return x * self.parts(x)


class _Inverted(nn.Module):
    """A wide convolution by channels between two narrow ones."""

    def __init__(self, before: int, wide: int, after: int, window: int, step: int, act: type[nn.Module], gate: Any) -> None:
        super().__init__()
        parts = [_normed(before, wide, 1, act=act)] if wide != before else []
        parts.append(_normed(wide, wide, window, step, wide, act))
        if gate is not None:
            parts.append(gate)
        self.parts = nn.Sequential(*parts, _normed(wide, after, 1))
        self.adds = step == 1 and before == after

    def forward(self, x: Any) -> Any:
        return x + self.parts(x) if self.adds else self.parts(x)


# window, wide, after, gate, hard swish, step
_LARGE = (
    (3, 16, 16, 0, 0, 1),
    (3, 64, 24, 0, 0, 2),
    (3, 72, 24, 0, 0, 1),
    (5, 72, 40, 24, 0, 2),
    (5, 120, 40, 32, 0, 1),
    (5, 120, 40, 32, 0, 1),
    (3, 240, 80, 0, 1, 2),
    (3, 200, 80, 0, 1, 1),
    (3, 184, 80, 0, 1, 1),
    (3, 184, 80, 0, 1, 1),
    (3, 480, 112, 120, 1, 1),
    (3, 672, 112, 168, 1, 1),
    (5, 672, 160, 168, 1, 2),
    (5, 960, 160, 240, 1, 1),
    (5, 960, 160, 240, 1, 1),
)


def mobilenet(rows: int = len(_LARGE), classes: int = 1000) -> nn.Module:
    """MobileNetV3-Large, or its first blocks."""
    parts: list[nn.Module] = [_normed(3, 16, 3, 2, act=nn.Hardswish)]
    before = 16
    for window, wide, after, narrow, hard, step in _LARGE[:rows]:
        gate = _Gate(wide, narrow, nn.ReLU, nn.Hardsigmoid) if narrow else None
        parts.append(_Inverted(before, wide, after, window, step, nn.Hardswish if hard else nn.ReLU, gate))
        before = after
    wide = 6 * before
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 1280), nn.Hardswish(), nn.Linear(1280, classes)]
    return nn.Sequential(*parts, _normed(before, wide, 1, act=nn.Hardswish), *head)


# widen, after, count, step, window
_B0 = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)


def efficientnet(rows: int = len(_B0), classes: int = 1000) -> nn.Module:
    """EfficientNet-B0, or its first stages."""
    parts: list[nn.Module] = [_normed(3, 32, 3, 2, act=nn.SiLU)]
    before = 32
    for widen, after, count, step, window in _B0[:rows]:
        for i in range(count):
            wide = before * widen
            gate = _Gate(wide, max(1, before // 4), nn.SiLU, nn.Sigmoid)
            parts.append(_Inverted(before, wide, after, window, 1 if i else step, nn.SiLU, gate))
            before = after
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * before, classes)]
    return nn.Sequential(*parts, _normed(before, 4 * before, 1, act=nn.SiLU), *head)


class _UNetBlock(nn.Module):
    """What a diffusion model repeats: normalization by groups, convolutions with the time's embedding between, and attention."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(groups, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))
        self.second = nn.Sequential(nn.GroupNorm(groups, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(4 * width, width))
        self.norm, self.mix = nn.GroupNorm(groups, width), Layer(width, heads)
        self.before, self.after = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Any, time: Any) -> Any:
        x = x + self.second(self.first(x) + self.time(time)[:, :, None, None])
        batch, width, height, across = x.shape
        rows = self.before(self.norm(x)).reshape(batch, width, height * across).transpose(1, 2)
        return x + self.after(self.mix(rows).transpose(1, 2).reshape(batch, width, height, across))


def unet_block(width: int = 320, heads: int = 8, groups: int = 32) -> nn.Module:
    """A block of Stable Diffusion's UNet."""
    return _UNetBlock(width, heads, groups)


class _Patches(nn.Module):
    """Patches of an image as words."""

    def __init__(self, image: int, patch: int, width: int, heads: int, layers: int, classes: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width))
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Any) -> Any:
        x = self.cut(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.last(self.norm(self.layers(x))[:, 0])


def vit(image: int = 224, patch: int = 16, width: int = 768, heads: int = 12, layers: int = 12, classes: int = 1000) -> nn.Module:
    """ViT-B/16."""
    return _Patches(image, patch, width, heads, layers, classes)


def enlarging() -> nn.Module:
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
