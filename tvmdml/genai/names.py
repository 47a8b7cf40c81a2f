"""Which input and output of a network is what: by the names of ``genai_config.json``, or their defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmdml.errors import message, safe_repr
from tvmdml.genai.config import FILE, MOST
from tvmdml.genai.refusing import FolderError
from tvmdml.tensors.arrays import NumpyArray


class NamePatterns(NamedTuple):
    """Patterns of the names of what a network keeps: the inputs, the outputs, and where batch and time are."""

    past: str
    past_default: str
    present: str
    present_default: str
    batch: int
    time: int


PAIRS = (
    NamePatterns("past_key_names", "past_key_values.%d.key", "present_key_names", "present.%d.key", 0, 2),
    NamePatterns("past_value_names", "past_key_values.%d.value", "present_value_names", "present.%d.value", 0, 2),
    NamePatterns("past_names", "", "present_names", "", 1, 3),
)
CROSS = (
    ("cross_past_key_names", "past_key_cross_%d", "cross_present_key_names", "present_key_cross_%d"),
    ("cross_past_value_names", "past_value_cross_%d", "cross_present_value_names", "present_value_cross_%d"),
)
"""What a decoder is given of an encoder: the decoder's inputs, and the encoder's outputs."""


class StateSlot(NamedTuple):
    """A tensor that a network keeps from run to run."""

    past: str
    present: str
    batch: int
    time: int
    shape: tuple[int, ...]
    """With 0 for batch and time."""
    dtype: np.dtype[Any]
    room: int | None = None
    """The length, if the network says so."""

    def sized(self, rows: int, length: int) -> tuple[int, ...]:
        """The sizes for a number of rows and a length."""
        length = length if self.room is None else self.room
        return tuple(rows if axis == self.batch else length if axis == self.time else n for axis, n in enumerate(self.shape))


class Step(NamedTuple):
    """What is new in a run: tokens, and what came before them."""

    tokens: NumpyArray
    """int32 [rows, columns]."""
    mask: NumpyArray
    """bool [rows, total]: which columns are tokens, and which are padding."""
    past: int
    """How many columns came before."""

    @property
    def positions(self) -> NumpyArray:
        """The place of each token among those of its row; 0 for padding."""
        return np.where(self.mask, np.cumsum(self.mask, 1) - 1, 0)[:, self.past :]


FEEDS: Mapping[str, Callable[[Step], Any]] = {
    "input_ids": lambda step: step.tokens,
    "attention_mask": lambda step: step.mask,
    "position_ids": lambda step: step.positions,
    "past_sequence_length": lambda step: step.past,
    "current_sequence_length": lambda step: step.mask.shape[1],
    "total_sequence_length": lambda step: step.mask.shape[1],
}
"""How inputs are made; the keys are the names in ``decoder.inputs``, and the defaults of the inputs' names."""
_TYPES = ("int32", "int64")


class Feed(NamedTuple):
    """An input that each run makes anew."""

    name: str
    make: Callable[[Step], Any]
    dtype: np.dtype[Any]
    rank: int
    columns: int | None = None
    """How many it has, if the network says so: behind those of the text are zeros."""

    def of(self, step: Step) -> NumpyArray:
        """The array for a run."""
        array = np.ascontiguousarray(self.make(step), self.dtype)
        if array.ndim != self.rank:
            return array.reshape((1,) * self.rank)
        missing = self.columns - array.shape[1] if self.columns is not None and array.ndim == 2 else 0
        return np.pad(array, ((0, 0), (0, missing))) if missing > 0 else array


def named(part: Mapping[str, Any], side: str, role: str, default: str) -> str:
    """The name of a role, from ``decoder.inputs`` or ``decoder.outputs``.

    Raises:
        FolderError: it is no string.
    """
    names = part.get(side, {})
    name = names.get(role, default) if isinstance(names, Mapping) else None
    if not isinstance(name, str):
        raise FolderError(message(f"{FILE} {side}.{role}", safe_repr(name), "a string"))
    return name


def numbered(pattern: str, layer: int) -> str:
    """The name of a layer's tensor: ``%d`` is its number."""
    return pattern.replace("%d", str(layer), 1)


def feeds(part: Mapping[str, Any], inputs: Mapping[str, Any]) -> list[Feed]:
    """The inputs that each run makes anew, of those that a network has.

    Raises:
        FolderError: one has a type that is not meant for it.
    """
    made = []
    for role, make in FEEDS.items():
        argument = inputs.get(named(part, "inputs", role, role))
        if argument is None:
            continue
        if str(argument.dtype) not in _TYPES:
            raise FolderError(message(f"input {argument.name}", argument.dtype, " or ".join(_TYPES)))
        if role == "past_sequence_length" and named(part, "inputs", "current_sequence_length", "current_sequence_length") in inputs:
            make = _LAST
        shape = argument.shape
        rank = np.ndim(make(_EXAMPLE)) if shape is None else len(shape)
        columns = shape[1] if shape is not None and rank == 2 and isinstance(shape[1], int) else None
        made.append(Feed(argument.name, make, np.dtype(argument.dtype), rank, columns))
    return made


_LAST: Callable[[Step], Any] = lambda step: step.mask.shape[1] - 1  # noqa: E731 - as in the table
"""What a network that has both lengths means by the one of the past: the place of the last token."""
_EXAMPLE = Step(np.zeros((1, 1), np.int32), np.ones((1, 1), bool), 0)


def slots(part: Mapping[str, Any], inputs: Mapping[str, Any], outputs: Sequence[str]) -> list[StateSlot]:
    """The tensors that a network keeps.

    Raises:
        FolderError: an input has no output, or its sizes are not known.
    """
    layers = part.get("num_hidden_layers", 0)
    if not isinstance(layers, int) or not 0 <= layers < 1 << 16:
        raise FolderError(message(f"{FILE} num_hidden_layers", safe_repr(layers), "the number of layers"))
    several = []
    for pair in PAIRS:
        past, present = (
            named(part, "inputs", pair.past, pair.past_default),
            named(part, "outputs", pair.present, pair.present_default),
        )
        for layer in range(layers if past else 0):
            argument, output = inputs.get(numbered(past, layer)), numbered(present, layer)
            if argument is None:
                continue
            if output not in outputs:
                raise FolderError(
                    message(
                        f"{FILE} outputs.{pair.present}", safe_repr(present), f"the pattern of outputs: {', '.join(outputs[:4])} …"
                    )
                )
            room = next((n for n in (argument.shape or ())[pair.time : pair.time + 1] if isinstance(n, int)), None)
            shape, dtype = _shape(part, argument, pair), np.dtype(argument.dtype)
            several.append(StateSlot(argument.name, output, pair.batch, pair.time, shape, dtype, room))
    return several


def _shape(part: Mapping[str, Any], argument: Any, pair: NamePatterns) -> tuple[int, ...]:
    """The sizes of what is kept: those of the input, and where they are open, those of the configuration."""
    shape = list(argument.shape or ())
    known = {pair.batch + 1: part.get("num_key_value_heads", part.get("num_attention_heads")), pair.time + 1: part.get("head_size")}
    sizes = [0 if axis in (pair.batch, pair.time) else n if isinstance(n, int) else known.get(axis) for axis, n in enumerate(shape)]
    if len(sizes) != pair.time + 2 or not all(isinstance(n, int) and 0 <= n < MOST for n in sizes):
        raise FolderError(
            message(
                f"input {argument.name}", str(shape), f"{pair.time + 2} sizes, with num_key_value_heads and head_size in {FILE}"
            )
        )
    return tuple(int(n or 0) for n in sizes)
