"""Beam search: several beginnings of each text go on at the same time, those whose tokens are the most likely together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmdml.genai.search import penalized
from tvmdml.tensors.arrays import NumpyArray

_NEVER = -1e9
"""The score of beams that begin as copies of the first one."""


class Hypothesis(NamedTuple):
    """A text that ended."""

    score: float
    text: NumpyArray


class BestTexts:
    """The best texts that ended, of one batch entry."""

    def __init__(self, count: int, penalty: float) -> None:
        self._count, self._penalty = count, penalty
        self.all: list[Hypothesis] = []
        self.done = False

    def add(self, text: NumpyArray, sum_of_logs: float) -> None:
        """Add a text, if it is among the best."""
        self.all = sorted([*self.all, Hypothesis(self._score(sum_of_logs, len(text)), text)], key=lambda h: -h.score)[: self._count]

    def copy(self) -> BestTexts:
        """The same texts, to which others may be added."""
        other = BestTexts(self._count, self._penalty)
        other.all = list(self.all)
        return other

    @property
    def full(self) -> bool:
        """Whether there are as many as wanted."""
        return len(self.all) == self._count

    def better(self, sum_of_logs: float, length: int) -> bool:
        """Whether a text of this length would be better than the worst."""
        return self.all[-1].score < self._score(sum_of_logs, length)

    def _score(self, sum_of_logs: float, length: int) -> float:
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # by penalties that no length stands: infinite scores
            return float(np.float32(sum_of_logs) / np.float32(length) ** np.float32(self._penalty))


class Beams:
    """``num_beams`` rows for each text of a batch."""

    def __init__(self, options: Mapping[str, Any], eos: Sequence[int], pad: int) -> None:
        self._options, self._eos, self._pad = options, eos, pad
        self._batch, self._width = options["batch_size"], options["num_beams"]
        rows = self._batch * self._width
        self.texts = np.zeros((rows, 0), np.int32)
        self.next = np.zeros(rows, np.int32)
        self.picked: Sequence[int] | None = None
        """The rows that each row goes on from; ``None`` for its own."""
        self._scores = np.where(np.arange(rows) % self._width == 0, 0, _NEVER).astype(np.float32)
        self._best = [BestTexts(self._width, options["length_penalty"]) for _ in range(self._batch)]

    @property
    def length(self) -> int:
        """How many tokens each row has."""
        return int(self.texts.shape[1])

    @property
    def done(self) -> bool:
        """Whether no text can become better, or all are as long as allowed."""
        return all(best.done for best in self._best) or self.length >= self._options["max_length"]

    def append(self, tokens: NumpyArray) -> None:
        """Begin with tokens: int32 [rows, columns]."""
        self.texts = np.concatenate((self.texts, tokens), 1)
        self.next, self.picked = tokens[:, -1].copy(), None

    def choose(self, logits: NumpyArray) -> None:
        """Add a token to each row."""
        logits = penalized(logits, self.texts, self._options, self._eos)
        shifted = logits - logits.max(1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        vocabulary, width = logits.shape[1], self._width
        totals = (logs + self._scores[:, None]).reshape(self._batch, width * vocabulary)
        some = np.argpartition(totals, -2 * width, 1)[:, -2 * width :]
        picked, tokens, scores = (
            np.arange(len(logits)),
            np.full(len(logits), self._pad, np.int32),
            np.zeros(len(logits), np.float32),
        )
        for entry, best in enumerate(self._best):
            if best.done:
                picked[entry * width : (entry + 1) * width] = 0
                continue
            places = some[entry][np.lexsort((some[entry], -totals[entry][some[entry]]))]
            row = entry * width
            for rank, place in enumerate(places):
                source, token, score = entry * width + place // vocabulary, place % vocabulary, totals[entry, place]
                if token in self._eos:
                    if rank < width:
                        best.add(self.texts[source].copy(), score)
                elif row < (entry + 1) * width:
                    picked[row], tokens[row], scores[row] = source, token, score
                    row += 1
            can_improve = not self._options["early_stopping"] and best.full and best.better(totals[entry, places[0]], self.length)
            best.done = best.full and not can_improve
        self.texts = np.concatenate((self.texts[picked], tokens[:, None]), 1)
        self.next, self.picked, self._scores = tokens, [int(row) for row in picked], scores

    def text(self, index: int) -> NumpyArray:
        """One of the best texts, those that have not ended among them: those of the first entry of the batch come first."""
        entry, rank = divmod(index, self._options["num_return_sequences"])
        best = self._best[entry]
        if not best.done:
            best = best.copy()
            for row in range(entry * self._width, (entry + 1) * self._width):
                best.add(self.texts[row], self._scores[row])
        return np.array(best.all[rank].text)
