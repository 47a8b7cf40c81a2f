"""``ForeignRuntime``: another library that runs the nodes of a model that cannot be converted, such as those of texts."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvmdml.errors import InvalidArgument, Unsupported, message, safe_repr
from tvmdml.onnx.counting import plain
from tvmdml.onnx.running import Run
from tvmdml.system import at_hand
from tvmdml.tensors.arrays import NumpyArray

RUNTIME = "onnxruntime"
_EXTENSIONS = {"ai.onnx.contrib": "onnxruntime_extensions", "com.microsoft.extensions": "onnxruntime_extensions"}
"""The packages with the operators of a domain."""


class ForeignRuntime:
    """ONNX Runtime, or a package with a backend of ONNX's own kind: ``prepare(model)`` returns what has ``run(inputs)``."""

    def __init__(self, name: str) -> None:
        """
        Args:
            name: of a module.

        Raises:
            InvalidArgument: it is no text, or the module is no such library.
            Unsupported: it is not installed.
        """
        if not isinstance(name, str) or not name:
            raise InvalidArgument(message("load fallback", safe_repr(name), f"a module's name, such as {RUNTIME!r}"))
        try:
            self._module = importlib.import_module(name)
        except ImportError as error:
            raise Unsupported(f"load fallback={name!r}: it cannot be imported ({error}). Install it.") from None
        self.name = name
        if self._module is sys.modules.get("tvmdml.onnx"):
            raise Unsupported(f"load fallback={name!r}: that is tvmdml itself in this process, as -m tvmdml.onnx lets it be.")
        if not hasattr(self._module, "InferenceSession" if name == RUNTIME else "prepare"):
            raise InvalidArgument(
                message("load fallback", safe_repr(name), f"{RUNTIME!r}, or a module with ONNX's backend: prepare")
            )

    def prepared(self, model: Any) -> Any:
        """A function of the inputs, in their order, that runs an ``onnx.ModelProto``.

        Raises:
            Unsupported: the library does not run it.
        """
        domains = {str(opset.domain) for opset in model.opset_import} & {str(node.domain) for node in model.graph.node}
        try:
            if self.name != RUNTIME:
                ready = self._module.prepare(model)
                return lambda inputs: list(ready.run(list(inputs.values())))
            options = self._module.SessionOptions()
            for package in {_EXTENSIONS[domain] for domain in domains & _EXTENSIONS.keys()}:
                options.register_custom_ops_library(importlib.import_module(package).get_library_path())
            session = self._module.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # any error of another library
            kinds = ", ".join(dict.fromkeys(str(node.op_type) for node in model.graph.node))
            raise Unsupported(f"{self.name} does not run {kinds}: {_line(error)}") from None
        return lambda inputs: session.run(None, inputs)


class ForeignNodes:
    """Nodes between stages that another library runs, as one model."""

    def __init__(self, library: ForeignRuntime, source: Any, nodes: Sequence[Any]) -> None:
        """
        Args:
            library: it.
            source: the model, an ``onnx.ModelProto``: with its functions, and the versions of domains.
            nodes: in their order.
        """
        self.library, self.nodes, self._source = library, list(nodes), source
        self._ready: Any = None

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the results."""
        return tuple(str(name) for node in self.nodes for name in node.output if name)

    def reads(self) -> set[str]:
        """As every node between stages does."""
        at_hand("tvmdml.onnx.bounds")
        from tvmdml.onnx import bounds

        names = {str(name) for node in bounds.all_nodes(self.nodes) for name in node.input if name}
        made = {str(name) for node in bounds.all_nodes(self.nodes) for name in node.output}
        return names - made

    def shown(self) -> tuple[str, str]:
        """The nodes, and what runs them."""
        kinds = ", ".join(str(node.op_type) for node in self.nodes)
        return kinds, f"{self.library.name}, given {', '.join(sorted(self.reads()))}"

    def run(self, run: Run, arrays: Mapping[str, Any], state: NumpyArray) -> dict[str, Any]:
        """As every node between stages does."""
        given = {name: _given(arrays[name], name) for name in sorted(self.reads()) if name in arrays}
        if self._ready is None:
            self._ready = self.library.prepared(self._model(given))
        try:
            results = self._ready(given)
        except Exception as error:  # any error of another library
            raise Unsupported(f"{self.library.name} fails in {self.shown()[0]}: {_line(error)}") from None
        return dict(zip(self.outputs, results, strict=True))

    def _model(self, given: Mapping[str, NumpyArray]) -> Any:
        at_hand("onnx")
        from onnx import TensorProto, helper

        def element(array: NumpyArray) -> Any:
            return TensorProto.STRING if array.dtype == np.object_ else helper.np_dtype_to_tensor_dtype(array.dtype)

        inputs = [helper.make_tensor_value_info(name, element(array), [None] * array.ndim) for name, array in given.items()]
        graph = helper.make_graph(self.nodes, "part", inputs, list(map(helper.make_empty_tensor_value_info, self.outputs)))
        return helper.make_model(
            graph, opset_imports=self._source.opset_import, functions=self._source.functions, ir_version=self._source.ir_version
        )


def _given(array: Any, name: str) -> NumpyArray:
    if array is None or isinstance(array, list):
        raise Unsupported(message(f"fallback {name}", "a sequence, or nothing", "tensors"))
    one = plain(array)
    return one.astype(object) if one.dtype.kind in "US" else one


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
