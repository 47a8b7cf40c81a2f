"""``Looped``: a Loop whose rounds a run counts. Its body is a stage, which runs once a round: nothing is unrolled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tvmdml.errors import Unsupported
from tvmdml.onnx.counting import plain
from tvmdml.onnx.running import Run, results_of
from tvmdml.onnx.types import dtype_of, is_narrow, named
from tvmdml.tensors.arrays import NumpyArray

if TYPE_CHECKING:
    from tvmdml.onnx.following import Next
    from tvmdml.onnx.running import Ready

_MIX = 0x9E3779B1
"""An odd number (Knuth's): two rounds never have the same word."""
_ON = np.array(True)


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

    def is_whole(self) -> bool:
        """Whether all its parts are there."""
        assert self.stage.part is not None
        states, (_, given, wanted, *_) = len(self.takes) - 2, self.stage.part
        fits = len(self.inputs) == len(self.takes) >= 2 and len(self.outputs) + 1 == len(wanted) == 1 + states + len(self.stacked)
        return fits and {about.name for about in given} <= {*self.takes, *self.captured}

    def run(self, run: Run, arrays: Mapping[str, Any], state: NumpyArray) -> dict[str, Any]:
        """As every node between stages does."""
        count, going = (self._first(arrays, place) for place in range(2))
        states = [arrays[name] if name else None for name in self.inputs[2:]]
        around = {name: arrays[name] for name in self.captured}
        parts: list[list[Any]] = [[] for _ in self.stacked]
        number = 0
        while (going is None or going) and (count is None or number < count):
            ready, tensors, wanted = self.stage.for_arrays(self._given(number, states, around))
            results = results_of(run, ready, tensors, len(wanted), state if ready.alone else _of_round(state, number))
            going = self._single("condition", results[0])
            states = results[1 : 1 + len(states)]
            for several, result in zip(parts, results[1 + len(states) :], strict=True):
                several.append(self._part(several, result))
            number += 1
        if number:
            last = [np.stack(several) for several in parts]
        else:
            last = [self._nothing(place, states, around) for place in range(len(self.stacked))]
        return {name: result for name, result in zip(self.outputs, [*states, *last], strict=False) if name}

    def _first(self, arrays: Mapping[str, Any], place: int) -> Any:
        """The most rounds, or whether it begins; ``None`` if it is not given."""
        name = self.inputs[place] if place < len(self.inputs) else ""
        return self._single(("number of rounds", "condition")[place], arrays[name]) if name else None

    def _single(self, what: str, given: Any) -> Any:
        """The only element."""
        array = plain(given)
        if array.size != 1:
            raise Unsupported(f"{self.shown()[0]}: its {what} has {array.size} elements, and not one")
        return array.item()

    def _part(self, before: Sequence[NumpyArray], result: Any) -> NumpyArray:
        """What a round gives of a result that is stacked."""
        if result is None or isinstance(result, list):
            raise Unsupported(f"{self.shown()[0]}: it stacks sequences or optional tensors; allowed: tensors")
        array = plain(result)
        if before and array.shape != before[0].shape:
            sizes = f"{list(before[0].shape)} and {list(array.shape)}"
            raise Unsupported(f"{self.shown()[0]}: its rounds give results of the sizes {sizes}, which cannot be stacked")
        return array

    def _given(self, number: int, states: Sequence[Any], around: Mapping[str, Any]) -> Mapping[str, Any]:
        own = [np.array(number, np.int64), _ON, *states]
        return {**around, **dict(zip(self.takes, own, strict=True))}

    def _nothing(self, place: int, states: Sequence[Any], around: Mapping[str, Any]) -> NumpyArray:
        """A stacked result of no rounds: sizes that the model does not say are those that a round would give."""
        about = self.stacked[place]
        dtype, shape = about.dtype, about.shape
        if dtype is None or shape is None or None in shape:
            ready, _, wanted = self.stage.for_arrays(self._given(0, states, around))
            dtype, shape = _form(ready, len(wanted), 1 + len(states) + place)
        return np.empty((0, *(n or 0 for n in shape)), named(dtype))


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


def narrow_type(info: Any) -> Any:
    """The type that a body says of a tensor, if DirectML has it not: such elements stand in a wider type, which does not say it."""
    dtype = dtype_of(info.type.tensor_type.elem_type)
    return dtype if dtype is not None and is_narrow(dtype) else None


def narrow_outputs(proto: Any) -> dict[str, Any]:
    """The names of a node's outputs, and the types of those that are of such a type."""
    body = next((attribute.g for attribute in proto.attribute if attribute.name == "body"), None)
    types = [None] * len(proto.output) if body is None else map(narrow_type, list(body.output)[1:])
    return dict(zip(map(str, proto.output), types, strict=False))


def stacked_as(info: Any) -> Stacked:
    """What a body says of a result that is stacked."""
    about = info.type.tensor_type
    dtype = dtype_of(about.elem_type)
    sizes = tuple(known_size(size) for size in about.shape.dim) if about.HasField("shape") else None
    return Stacked(None if dtype is None or is_narrow(dtype) else dtype.str, sizes)


def known_size(dimension: Any) -> int | None:
    """Its size. Some programs write -1 for an open one."""
    return int(dimension.dim_value) if dimension.HasField("dim_value") and dimension.dim_value >= 0 else None
