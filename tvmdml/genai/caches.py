"""What a network keeps from run to run: in buffers that are bound once and written in place, or in arrays that grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvmdml.errors import message
from tvmdml.genai.model import Model, PipelineStage
from tvmdml.genai.refusing import Refused
from tvmdml.onnx.ortvalue import OrtValue
from tvmdml.tensors.arrays.device_array import DeviceArray


class SharedCaches:
    """Buffers of the longest length: what the network reads and writes is the same memory."""

    def __init__(self, model: Model, rows: int, length: int) -> None:
        self._model, self._network = model, model.stages[0].network
        self._binding = self._network.io_binding()
        self._logits: Any = None
        self._names = [slot.present for slot in model.slots]
        self._buffers = [OrtValue(model.target.asarray(_zeros(slot.sized(rows, length), slot.dtype))) for slot in model.slots]
        for slot, buffer in zip(model.slots, self._buffers, strict=True):
            self._binding.bind_ortvalue_input(slot.past, buffer)
            self._binding.bind_ortvalue_output(slot.present, buffer)
        self._others = [name for name in model.outputs if name not in self._names and name != model.logits]

    def run(self, given: Mapping[str, Any], rows: int, columns: int) -> dict[str, Any]:
        """Run the network on inputs that have so many rows and columns: its outputs by their names."""
        binding, model = self._binding, self._model
        for name, array in given.items():
            binding.bind_cpu_input(name, array)
        shape = self._shape(rows, columns)
        if shape is None:
            binding.bind_output(model.logits, model.target.kind)
        elif self._logits is None or tuple(self._logits.shape) != shape:
            self._logits = model.target.empty(shape, model.outputs[model.logits].dtype)
            binding.bind_ortvalue_output(model.logits, self._logits)
        for name in self._others:  # bound after the logits, so that the order of results stays
            binding.bind_output(name, model.target.kind)
        self._network.run_with_iobinding(binding)
        results = (value.array for value in binding.get_outputs())
        return dict(zip([*self._names, model.logits, *self._others], results, strict=True))

    def _shape(self, rows: int, columns: int) -> tuple[int, ...] | None:
        """The sizes of the logits, if they are known before a run."""
        shape = self._model.outputs[self._model.logits].shape
        if shape is None or len(shape) != 3 or not isinstance(shape[2], int):
            return None
        return tuple(n if isinstance(n, int) else open_size for n, open_size in zip(shape, (rows, columns, 0), strict=True))

    def rewind(self, length: int) -> None:
        """Forget what comes after a length: it will be overwritten."""

    def pick(self, rows: Sequence[int]) -> None:
        """Go on with other rows, each of which was one."""
        if list(rows) != list(range(len(rows))):
            for slot, buffer in zip(self._model.slots, self._buffers, strict=True):
                buffer.update_inplace(np.take(buffer.numpy(), rows, slot.batch))


class Growing:
    """Arrays that each run makes anew, one step longer."""

    def __init__(self, model: Model, rows: int) -> None:
        self._model = model
        self._arrays = {slot.past: model.target.asarray(np.zeros(slot.sized(rows, 0), slot.dtype)) for slot in model.slots}

    def run(self, given: Mapping[str, Any], rows: int, columns: int) -> dict[str, Any]:
        """Run the networks in turn: their outputs by their names."""
        values = {**given, **self._arrays}
        for stage in self._model.stages:
            if stage.on_token if columns == 1 else stage.on_prompt:
                values |= _outputs(stage, values)
        self._arrays = {slot.past: values[slot.present] for slot in self._model.slots if slot.present in values}
        return values

    def rewind(self, length: int) -> None:
        """Forget what comes after a length."""
        for slot in self._model.slots:
            array = self._there(slot.past)
            self._put(slot.past, array[(slice(None),) * slot.time + (slice(length),)])

    def pick(self, rows: Sequence[int]) -> None:
        """Go on with other rows, each of which was one."""
        if list(rows) != list(range(len(rows))):
            for slot in self._model.slots:
                self._put(slot.past, np.take(self._there(slot.past), rows, slot.batch))

    def _there(self, name: str) -> Any:
        array = self._arrays[name]
        return array.numpy() if type(array) is DeviceArray else array

    def _put(self, name: str, array: Any) -> None:
        self._arrays[name] = self._model.target.asarray(np.ascontiguousarray(array))


def _zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    try:
        return np.zeros(shape, dtype)
    except (MemoryError, ValueError):  # the latter for more bytes than there are addresses
        given = f"what a layer keeps: {dtype}{list(shape)}"
        raise Refused(message("Generator", given, "what fits in memory", "set_search_options(max_length=…)")) from None


def _outputs(stage: PipelineStage, values: Mapping[str, Any]) -> dict[str, Any]:
    """What a network computes of values, under its own names and those that other networks know."""
    network = stage.network
    given = {argument.name: values[argument.name] for argument in network.feeds if argument.name in values}
    results = dict(zip((argument.name for argument in network.outputs), network(given), strict=True))
    return {**results, **{other: results[name] for name, other in stage.forwarded.items() if name in results}}
