"""``Looped``: a Loop whose rounds a run counts. Its body is a stage, which runs once a round: nothing is unrolled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tvmdml.arrays import NumpyArray
from tvmdml.errors import Unsupported
from tvmdml.onnx.counting import plain
from tvmdml.onnx.running import Run, results_of
from tvmdml.onnx.types import named

if TYPE_CHECKING:
    from tvmdml.onnx.following import Next
    from tvmdml.onnx.running import Ready

_MIX = 0x9E3779B1
"""An odd number (Knuth's): two rounds never have the same word."""


class Stacked(NamedTuple):
    """A result that each round has a part of."""

    dtype: str | None
    """Of the parts, where the model says it."""
    shape: tuple[int | None, ...] | None


class Looped(NamedTuple):
    """The node."""

    inputs: tuple[str, ...]
    """The names of the most rounds, of whether it begins, both or either empty, and of the states."""
    outputs: tuple[str, ...]
    """The names of the last states, and of the results that are stacked."""
    takes: tuple[str, ...]
    """What the body calls the number of the round, whether it goes on, and the states."""
    captured: tuple[str, ...]
    """What else the body reads of the graph around it."""
    stacked: tuple[Stacked, ...]
    stage: Next
    """The body."""

    def reads(self) -> set[str]:
        """As every node between stages does."""
        return {*self.inputs, *self.captured} - {""}

    def shown(self) -> tuple[str, str]:
        """As every node between stages does."""
        return f"Loop of {', '.join(filter(None, self.outputs))}", "round by round"

    def run(self, run: Run, arrays: Mapping[str, Any], state: NumpyArray) -> dict[str, Any]:
        """As every node between stages does."""
        count, going = (self._first(arrays, place) for place in range(2))
        states = [arrays[name] if name else None for name in self.inputs[2:]]
        around = {name: arrays[name] for name in self.captured}
        parts: list[list[Any]] = [[] for _ in self.stacked]
        number = 0
        while (going is None or going) and (count is None or number < count):
            ready, tensors, wanted = self.stage.for_arrays(self._given(number, states, around))
            results = results_of(run, ready, tensors, len(wanted), _of_round(state, number))
            going = bool(plain(results[0]).reshape(-1)[0])
            states = results[1 : 1 + len(states)]
            for several, result in zip(parts, results[1 + len(states) :], strict=True):
                several.append(plain(result))
            number += 1
        if number:
            last = [np.stack(several) for several in parts]
        else:
            last = [self._nothing(place, states, around) for place in range(len(self.stacked))]
        return {name: result for name, result in zip(self.outputs, [*states, *last], strict=False) if name}

    def _first(self, arrays: Mapping[str, Any], place: int) -> Any:
        """The most rounds, or whether it begins; ``None`` if it is not given."""
        name = self.inputs[place] if place < len(self.inputs) else ""
        return plain(arrays[name]).reshape(-1)[0].item() if name else None

    def _given(self, number: int, states: Sequence[Any], around: Mapping[str, Any]) -> Mapping[str, Any]:
        own = [np.array(number, np.int64), np.array(True), *states]
        return {**around, **dict(zip(self.takes, own, strict=True))}

    def _nothing(self, place: int, states: Sequence[Any], around: Mapping[str, Any]) -> NumpyArray:
        """A stacked result of no rounds: sizes that the model does not say are those that a round would give."""
        about = self.stacked[place]
        dtype, shape = about.dtype, about.shape
        if dtype is None or shape is None or None in shape:
            ready, _, wanted = self.stage.for_arrays(self._given(0, states, around))
            dtype, shape = _form(ready, len(wanted), 1 + len(states) + place)
        nothing: NumpyArray = np.empty((0, *(n or 0 for n in shape)), named(dtype))
        return nothing


def _form(ready: Ready, outputs: int, place: int) -> tuple[str, tuple[int, ...]]:
    """The type and shape of an output of the body."""
    if place in ready.known:
        return ready.known[place].dtype.str, ready.known[place].shape
    if ready.graph is None or ready.tail is not None or ready.lengths:
        raise Unsupported("Loop: it has no rounds, and the sizes of its results are not known")
    places = [i for i in range(outputs) if i not in ready.known]
    dtype, shape = ready.graph.forms()[places.index(place)]
    return np.dtype(dtype).str, shape


def _of_round(state: NumpyArray, number: int) -> NumpyArray:
    """The state of random numbers of a round: its third word is 0 outside of loops."""
    own: NumpyArray = state.copy()
    own[2] = (int(state[2]) * _MIX + number + 1) & 0xFFFFFFFF
    return own
