"""Dispatchables that are ONNX models."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmdml.dxdispatch import bindings
from tvmdml.dxdispatch.bindings import AnyArray, Bindings, ResourceBinding, RunBuffers
from tvmdml.dxdispatch.dispatchable import Dispatchable, Runner, said
from tvmdml.dxdispatch.resources import Resource, opened
from tvmdml.enums import FeatureLevel
from tvmdml.errors import InvalidArgument, ModelError, Unsupported
from tvmdml.operators._json.nodes import JsonNode
from tvmdml.system import inside
from tvmdml.targets import Target
from tvmdml.tensors import MAX_ELEMENTS, TensorDesc

if TYPE_CHECKING:
    from tvmdml.onnx.running import Argument, Runnable

_FIELDS = ("type", "sourcePath", "freeDimensionNameOverrides")
# Settings of ONNX Runtime, which change no result.
_IGNORED = ("graphOptimizationLevel", "loggingLevel", "sessionOptionsConfigEntries")


class OnnxModel(Dispatchable):
    """An ONNX file, and values for its open sizes."""

    def __init__(self, node: JsonNode, path: str, sizes: Mapping[str, int]) -> None:
        super().__init__(node)
        self._path, self._sizes = path, sizes

    def bindings(self, node: JsonNode, resources: Mapping[str, Resource]) -> Bindings:
        """By the names of the model's inputs and outputs, which are known once it is compiled."""
        return {name: [bindings.one(binding, resources)] for name, binding in node.members().items()}

    def compiled(self, target: Target, level: str | FeatureLevel | None) -> Runner:
        """Compiled for each combination of sizes, in the first dispatch that binds it."""
        from tvmdml import onnx

        try:
            return _Runner(onnx.load(self._path, self._sizes, target=target))
        except (InvalidArgument, ModelError, Unsupported) as error:
            raise said(self.node, error) from None


class _Runner(Runner):
    stays_there = False

    def __init__(self, model: Runnable) -> None:
        super().__init__(model.target)
        self._model = model

    def explained(self) -> list[str]:
        """The model, and what is compiled for the sizes that are known."""
        return [repr(self._model), *str(self._model.explain()).splitlines()]

    def bind(self, node: JsonNode, found: Bindings, memory: RunBuffers) -> Callable[[], None]:
        model = self._model
        names = [one.name for one in (*model.inputs, *model.outputs)]
        for name, (binding,) in found.items():
            if name not in names:
                raise binding.node.error("a binding", f"bindings for {', '.join(names)}")
        feeds = {one.name: _fed(one, found.get(one.name), memory) for one in model.inputs}
        try:
            forms = model.forms(feeds)
        except (InvalidArgument, Unsupported) as error:
            raise said(node, error) from None
        writers = [
            (i, _writer(binding, dtype, shape, memory))
            for i, (one, (dtype, shape)) in enumerate(zip(model.outputs, forms, strict=True))
            for binding in found.get(one.name, ())
        ]

        def call() -> None:
            results = model(feeds)
            for i, write in writers:
                write(results[i])

        return call


def _fed(one: Argument, found: list[ResourceBinding] | None, memory: RunBuffers) -> AnyArray:
    """The array of an input: in its buffer, or zeros if the model binds none. A size that nothing says is 1, as in DxDispatch."""
    declared = [n if isinstance(n, int) else 1 for n in one.shape or ()]
    if found is None:
        return np.zeros(declared, one.dtype)
    (binding,) = found
    if memory.resources[binding.resource].deferred and binding.resource not in memory.buffers:
        raise binding.node.error("a deferred resource that no dispatch before has written", "a resource with values")
    return _view(binding, binding.shape or tuple(declared), one.dtype, memory)


def _writer(
    binding: ResourceBinding, dtype: np.dtype[Any], shape: tuple[int, ...], memory: RunBuffers
) -> Callable[[AnyArray], None]:
    """What copies a result to its buffer."""
    resource = memory.resources[binding.resource]
    if binding.shape and binding.shape != shape:
        raise binding.node.error(f"the shape {list(binding.shape)}", f"{list(shape)}, which the output has")
    if not resource.deferred:
        there = _view(binding, shape, dtype, memory)

        def write(result: AnyArray) -> None:
            there[...] = result

        return write
    known = resource.data_type
    if known is None or np.dtype(known.numpy) != (np.dtype(np.uint8) if dtype == np.bool_ else dtype):
        raise binding.node.error(f"a deferred resource of {known.name if known else 'UNKNOWN'}", f"one of {dtype}")

    def replace(result: AnyArray) -> None:
        memory.buffers[binding.resource] = np.ascontiguousarray(result).reshape(-1).view(np.uint8).copy()

    replace(np.zeros(shape, dtype))
    return replace


def _view(binding: ResourceBinding, shape: tuple[int, ...], dtype: np.dtype[Any], memory: RunBuffers) -> AnyArray:
    if 0 in shape:
        return np.zeros(shape, dtype)
    try:
        desc = TensorDesc(np.dtype(np.uint8) if dtype == np.bool_ else dtype, [math.prod(shape)])
    except InvalidArgument as error:
        raise said(binding.node, error) from None
    return binding.view(memory, desc).reshape(shape).view(dtype)


def read(node: JsonNode, folder: Path) -> OnnxModel:
    """An ONNX model; its file must be inside the folder.

    Raises:
        ModelError: there is no such file, or a field is invalid.
    """
    node.only(_FIELDS, ignored=_IGNORED)
    source = node.need("sourcePath", "the path of an ONNX file")
    with opened(source, folder):
        pass
    sizes = node.get("freeDimensionNameOverrides")
    named = {name: one.integer(1, MAX_ELEMENTS) for name, one in sizes.members().items()} if sizes else {}
    return OnnxModel(node, os.path.join(folder, *inside.steps(source.text())), named)
