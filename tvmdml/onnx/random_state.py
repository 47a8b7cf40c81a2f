"""``RandomStates``: what decides about the random numbers of a model: a key, and the number of the run.

A graph that draws numbers has an input more, ``STATE``: a state of RANDOM_GENERATOR, whose words are 0, the number of the run (two
words, the low one first), 0, and the key (two words, the low one first). Each node that draws has a state of its own, made of that
one in the graph: the fourth word is the node's place among those that draw, and a ``seed`` of the node stands for the key, as the
32 bits of the float that it is, and 1. So nothing has to be kept from one run to the next but their number, and runs may overlap.
"""

from __future__ import annotations

import itertools
import os

import numpy as np

from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.tensors.arrays import NumpyArray

STATE = "tvmdml.random_state"
"""The name of the input."""
WORDS = 6
"""Its elements, of uint32."""
_WORD = (1 << 32) - 1
_SEED_MARK = 1

_given: int | None = None
"""The seed of ``set_seed``."""
_child = 0
"""What a forked process changes in keys that nobody gave: it is another one than that of its parent."""


def set_seed(seed: int) -> None:
    """Let models that are loaded from now on draw the numbers of a seed, each the same ones, as in ONNX Runtime.

    Raises:
        InvalidArgument: it is not an integer.
    """
    global _given
    _given = _checked(seed, "set_seed seed")


class RandomStates:
    """The key and the runs of one model. Several threads may ask for states at the same time."""

    def __init__(self, seed: int | None = None) -> None:
        """
        Args:
            seed: the key; ``None`` for that of ``set_seed``, or, if there is none, one of the system's entropy.

        Raises:
            InvalidArgument: it is neither an integer nor ``None``.
        """
        key = _given if seed is None else _checked(seed, "load seed")
        self._is_given = key is not None
        self._key = int.from_bytes(os.urandom(8), "little") if key is None else key
        self._runs = itertools.count()

    def state(self) -> NumpyArray:
        """The state for one more run."""
        run = next(self._runs)  # at once, whatever other threads do
        key = self._key if self._is_given else self._key ^ _child
        return np.array([0, run & _WORD, run >> 32 & _WORD, 0, key & _WORD, key >> 32], np.uint32)


def of_node(place: int, seed: float | None) -> tuple[NumpyArray, NumpyArray]:
    """What a node keeps of the bits of a run's state, and those that it sets."""
    kept, own = np.full(WORDS, _WORD, np.uint32), np.zeros(WORDS, np.uint32)
    own[3] = place
    if seed is not None:
        kept[4:] = 0
        own[4:] = np.float32(seed).view(np.uint32), _SEED_MARK
    return kept, own


def _checked(seed: int, where: str) -> int:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise InvalidArgument(message(where, safe_repr(seed), "an integer"))
    return int(seed) % (1 << 64)


def _changed_in_child() -> None:
    global _child
    _child = int.from_bytes(os.urandom(8), "little")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_changed_in_child)
