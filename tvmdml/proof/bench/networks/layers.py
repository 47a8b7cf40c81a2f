"""Layers of transformers, which networks of images, words and sounds share."""

from __future__ import annotations

import math
from typing import Any

from torch import nn
from torch.nn import functional as F


class AttentionLayer(nn.Module):
    """Attention of several heads, with a product for each of query, key and value."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.heads = heads

    def forward(self, x: Any, mask: Any = None) -> Any:
        batch, rows, width = x.shape
        shape = (batch, rows, self.heads, width // self.heads)
        query, key, value = (one(x).reshape(shape).transpose(1, 2) for one in (self.query, self.key, self.value))
        scores = query @ key.transpose(-2, -1) / math.sqrt(width // self.heads)
        if mask is not None:
            scores = scores + mask
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, rows, width))


class Layer(nn.Module):
    """An attention and two products, each normalized before; with ``after`` their sums are, as in BERT."""

    def __init__(self, width: int, heads: int, after: bool = False) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = AttentionLayer(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.after = after

    def forward(self, x: Any, mask: Any = None) -> Any:
        if self.after:
            x = self.one(x + self.mix(x, mask))
            return self.two(x + self.down(F.gelu(self.up(x))))
        x = x + self.mix(self.one(x), mask)
        return x + self.down(F.gelu(self.up(self.two(x))))
