"""Networks of words and sounds: BERT, decoders with the keys and values of earlier words, Whisper's encoder, recurrent ones."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tvmdml.proof.bench.networks.layers import Layer


class _Bert(nn.Module):
    def __init__(self, width: int, heads: int, layers: int, words: int, places: int) -> None:
        super().__init__()
        self.words, self.places, self.kinds = nn.Embedding(words, width), nn.Embedding(places, width), nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(Layer(width, heads, after=True) for _ in range(layers))
        self.pool = nn.Linear(width, width)

    def forward(self, ids: Any, mask: Any, kinds: Any) -> Any:
        x = self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1])) + self.kinds(kinds))
        hidden = (1 - mask[:, None, None, :].to(x.dtype)) * -1e4
        for layer in self.layers:
            x = layer(x, hidden)
        return x, torch.tanh(self.pool(x[:, 0]))


def bert(width: int = 768, heads: int = 12, layers: int = 12, words: int = 30522, places: int = 512) -> nn.Module:
    """BERT-base."""
    return _Bert(width, heads, layers, words, places)


class _Root(nn.Module):
    """Division by the root of the mean square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Any) -> Any:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.scale


def _turned(x: Any, cos: Any, sin: Any) -> Any:
    """Rotary places."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class _Step(nn.Module):
    """A decoder's layer, which appends to keys and values. ``shared``: heads of keys and values, each for several of queries."""

    def __init__(self, width: int, heads: int, shared: int, hidden: int, rotary: bool) -> None:
        super().__init__()
        self.heads, self.shared, self.rotary, self.size = heads, shared, rotary, width // heads
        norm, bias = (_Root, False) if rotary else (nn.LayerNorm, True)
        self.one, self.two = norm(width), norm(width)
        if rotary:
            self.query = nn.Linear(width, width, bias=bias)
            self.both = nn.Linear(width, 2 * shared * self.size, bias=bias)
            self.gate = nn.Linear(width, hidden, bias=bias)
        else:
            self.all = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width, bias=bias)
        self.up, self.down = nn.Linear(width, hidden, bias=bias), nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Any, past: tuple[Any, Any], mask: Any, turn: Any) -> tuple[Any, Any, Any]:
        batch, rows, width = x.shape
        y = self.one(x)
        if self.rotary:
            query = self.query(y)
            key, value = self.both(y).split(self.shared * self.size, -1)
        else:
            query, key, value = self.all(y).split(width, -1)
        query = query.reshape(batch, rows, self.heads, self.size).transpose(1, 2)
        key, value = (one.reshape(batch, rows, self.shared, self.size).transpose(1, 2) for one in (key, value))
        if self.rotary:
            query, key = _turned(query, *turn), _turned(key, *turn)
        key, value = torch.cat((past[0], key), 2), torch.cat((past[1], value), 2)
        keys, values = key, value
        if self.shared != self.heads:
            shape = (batch, self.shared, self.heads // self.shared, -1, self.size)
            keys, values = (one[:, :, None].expand(shape).flatten(1, 2) for one in (key, value))
        scores = query @ keys.transpose(-2, -1) / math.sqrt(self.size) + mask
        x = x + self.out((scores.softmax(-1) @ values).transpose(1, 2).reshape(batch, rows, width))
        y = self.two(x)
        y = F.silu(self.gate(y)) * self.up(y) if self.rotary else F.gelu(self.up(y), approximate="tanh")
        return x + self.down(y), key, value


class _Decoder(nn.Module):
    def __init__(self, width: int, heads: int, shared: int, layers: int, hidden: int, words: int, places: int) -> None:
        super().__init__()
        self.rotary, self.size = not places, width // heads
        self.words = nn.Embedding(words, width)
        if places:
            self.places = nn.Embedding(places, width)
        self.layers = nn.ModuleList(_Step(width, heads, shared, hidden, self.rotary) for _ in range(layers))
        self.norm = _Root(width) if self.rotary else nn.LayerNorm(width)
        self.last = nn.Linear(width, words, bias=False)

    def forward(self, ids: Any, *past: Any) -> Any:
        rows, earlier = ids.shape[1], past[0].shape[2]
        places = torch.arange(rows) + earlier
        mask = torch.where(torch.arange(rows + earlier)[None, :] <= places[:, None], 0.0, float("-inf"))
        x, turn = self.words(ids), None
        if self.rotary:
            angles = places[:, None] * 10000 ** (-torch.arange(0, self.size, 2) / self.size)
            angles = torch.cat((angles, angles), -1)
            turn = torch.cos(angles), torch.sin(angles)
        else:
            x = x + self.places(places)
        kept = []
        for i, layer in enumerate(self.layers):
            x, key, value = layer(x, (past[2 * i], past[2 * i + 1]), mask, turn)
            kept += [key, value]
        return self.last(self.norm(x)), *kept


def decoder(width: int, heads: int, shared: int, layers: int, hidden: int, words: int, places: int) -> nn.Module:
    """GPT-2; with ``places`` 0 Llama: its places are rotations, and heads of keys and values are shared by several of queries.

    The keys and values of earlier words go in, those of all words come out.
    """
    return _Decoder(width, heads, shared, layers, hidden, words, places)


class _Whisper(nn.Module):
    def __init__(self, width: int, heads: int, layers: int, bands: int, frames: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv1d(bands, width, 3, padding=1), nn.Conv1d(width, width, 3, 2, 1)
        self.places = nn.Parameter(torch.randn(frames // 2, width))
        self.layers, self.norm = nn.Sequential(*(Layer(width, heads) for _ in range(layers))), nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        x = F.gelu(self.two(F.gelu(self.one(x)))).transpose(1, 2) + self.places
        return self.norm(self.layers(x))


def whisper(width: int = 384, heads: int = 6, layers: int = 4, bands: int = 80, frames: int = 3000) -> nn.Module:
    """The encoder of Whisper-tiny."""
    return _Whisper(width, heads, layers, bands, frames)


class _Recurrent(nn.Module):
    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.both, self.after = nn.LSTM(features, width, 2, bidirectional=True), nn.GRU(2 * width, width)

    def forward(self, x: Any) -> Any:
        return self.after(self.both(x)[0])[0]


def recurrent(features: int = 128, width: int = 256) -> nn.Module:
    """Two layers of an LSTM in both directions, and a GRU after them."""
    return _Recurrent(features, width)
