"""Choosing tokens from logits: the largest, or drawn among the likely ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import tvmdml
from tvmdml.errors import CompileError
from tvmdml.tensors.arrays import NumpyArray

_LOWEST = np.finfo(np.float32).min
_COLD = 1e-30
"""Temperatures below, by which float32 cannot divide, take the likeliest token."""
_MANY = 1 << 14
"""Logits of which DirectML's TOP_K finds the largest faster than NumPy."""
_FEW, _MORE = 1 << 10, 1 << 14
"""How many of the likeliest tokens are looked at for ``top_p``, before all are."""


def penalized(logits: NumpyArray, texts: NumpyArray, options: Mapping[str, Any], eos: Sequence[int]) -> NumpyArray:
    """Logits after the rules that look at the text so far; they are changed in place.

    Args:
        logits: float32 [rows, vocabulary].
        texts: int32 [rows, length]: the tokens so far.
        options: those of the search.
        eos: tokens that end a text.
    """
    if texts.shape[1] < options["min_length"]:
        logits[:, [token for token in eos if 0 <= token < logits.shape[1]]] = _LOWEST
    penalty, size = np.float32(options["repetition_penalty"]), options["no_repeat_ngram_size"]
    for row, text in zip(logits, texts, strict=True):
        if penalty != 1:
            seen = np.unique(text)
            with np.errstate(over="ignore"):  # what is ruled out stays so
                row[seen] = np.where(row[seen] < 0, row[seen] * penalty, row[seen] / penalty)
        if size and len(text) >= size:
            windows = np.lib.stride_tricks.sliding_window_view(text, size)
            row[windows[(windows[:, :-1] == text[len(text) - size + 1 :]).all(1), -1]] = _LOWEST
    return logits


def drawn(logits: NumpyArray, options: Mapping[str, Any], rng: np.random.Generator) -> int:
    """A token: among the ``top_k`` most likely ones, and of these the fewest whose probabilities sum up to ``top_p``.

    Args:
        logits: float32 [vocabulary].
        options: those of the search; a temperature of ``_COLD`` or more.
        rng: random numbers.
    """
    k, p, size = options["top_k"], options["top_p"], logits.size
    narrow = p < 1 and (p > 0 or k == 0)
    with np.errstate(over="ignore"):  # the weight is 0 then
        weights = np.exp((logits - logits.max()) / np.float32(options["temperature"]))
    if 0 < k < size:
        among = largest(logits, k)
        sums = np.cumsum(weights[among], dtype=np.float64)
        whole = sums[-1]
    elif not narrow:
        among, sums = np.arange(size), np.cumsum(weights, dtype=np.float64)
    else:
        whole = weights.sum(dtype=np.float64)
        for count in (_FEW, _MORE, size):
            among = largest(logits, min(count, size))
            sums = np.cumsum(weights[among], dtype=np.float64)
            if sums[-1] >= p * whole:
                break
    if narrow:
        sums = sums[: np.searchsorted(sums, p * whole) + 1]
    return int(among[np.searchsorted(sums, rng.random() * sums[-1], side="right")])


def largest(logits: NumpyArray, count: int) -> NumpyArray:
    """The places of the largest logits, the largest first; of equal ones the first one first."""
    if logits.size >= _MANY and count <= _MORE:
        try:
            return np.asarray(tvmdml.top_k(logits[None], count).indices[0], np.int64)
        except CompileError:  # there is no compiler, and no kernel
            pass
    among = np.argpartition(logits, -count)[-count:] if count < logits.size else np.arange(logits.size)
    return among[np.lexsort((among, -logits[among]))]


class Greedy:
    """One text a row. A row that ended is padded, until all have."""

    def __init__(self, options: Mapping[str, Any], eos: Sequence[int], pad: int) -> None:
        rows, length = options["batch_size"], options["max_length"]
        self._options, self._eos, self._pad = options, eos, pad
        self._texts, self.length = np.zeros((rows, length), np.int32), 0
        self._ended = np.zeros(rows, bool)
        self.next = np.zeros(rows, np.int32)
        seed = options["random_seed"]
        self._rng = np.random.default_rng(None if seed < 0 else seed)
        self._draws = options["do_sample"] and options["top_k"] != 1 and options["temperature"] >= _COLD
        self.picked: Sequence[int] | None = None
        """The rows that each row goes on from; ``None`` for its own."""

    @property
    def done(self) -> bool:
        """Whether all rows ended, or are as long as allowed."""
        return bool(self._ended.all()) or self.length >= self._options["max_length"]

    @property
    def texts(self) -> NumpyArray:
        """The tokens so far: int32 [rows, length]."""
        return self._texts[:, : self.length]

    def append(self, tokens: NumpyArray) -> None:
        """Add tokens that a program chose: int32 [rows, columns]."""
        end = self.length + tokens.shape[1]
        self._texts[:, self.length : end] = tokens
        self.length, self.next = end, tokens[:, -1].copy()
        self._ended[:] = False

    def choose(self, logits: NumpyArray) -> None:
        """Add a token to each row."""
        logits = penalized(logits, self.texts, self._options, self._eos)
        if self._draws:
            chosen = np.array([drawn(row, self._options, self._rng) for row in logits], np.int32)
        else:
            chosen = np.argmax(logits, 1).astype(np.int32)
        self.next = np.where(self._ended, self._pad, chosen).astype(np.int32)
        self._ended |= np.isin(self.next, self._eos)
        if not self._ended.all():  # as in ONNX Runtime GenAI, the last token that ends a text is no part of it
            self._texts[:, self.length] = self.next
            self.length += 1

    def rewind(self, length: int) -> None:
        """Forget all tokens after the first ones; the one that came after them is next."""
        self.next = self._texts[:, length].copy() if length else np.zeros_like(self.next)
        self.length = length
        self._ended[:] = False

    def text(self, row: int) -> NumpyArray:
        """The tokens of a row."""
        return np.array(self.texts[row])
