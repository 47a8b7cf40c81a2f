"""ONNX models: ``load`` reads a model, and calls of it run DirectML's operators, compiled for each size on first use.

The way of a model: ``reading`` makes a file into a message and arrays; ``converting`` walks the nodes of ``onnx_bounds``'s limits,
``folding`` computes what is known before the model runs, and ``rules`` and ``described`` make the rest into calls of a ``Graph``;
``inference`` asks ONNX's schemas for types and shapes; ``model`` runs the compiled graphs, ``packed`` those of packs, and ``tail``
the nodes that wait for elements;
``session`` has the calls of ONNX Runtime: ``import tvmdml.onnx as onnxruntime`` is all that a program changes. README.md explains.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tvmdml.onnx.model import InferenceSession, Model, load
from tvmdml.onnx.options import (
    API_VERSION,
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
    disable_telemetry_events,
    enable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_build_info,
    get_device,
    get_version_string,
    preload_dlls,
    set_default_logger_severity,
    set_default_logger_verbosity,
)
from tvmdml.onnx.ortvalue import OrtDevice, OrtValue
from tvmdml.onnx.random_state import set_seed
from tvmdml.onnx.running import Argument
from tvmdml.onnx.session import IOBinding, ModelMetadata, NodeArg

if TYPE_CHECKING:
    from tvmdml.onnx.packed import PackedModel

__version__ = API_VERSION

__all__ = [
    "Argument",
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "Model",
    "ModelMetadata",
    "NodeArg",
    "OrtDevice",
    "OrtValue",
    "PackedModel",
    "RunOptions",
    "SessionOptions",
    "__version__",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "load",
    "preload_dlls",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]


def __getattr__(name: str) -> Any:
    """What few programs need is imported when it is asked for."""
    if name == "PackedModel":
        from tvmdml.onnx.packed import PackedModel

        return PackedModel
    if name == "capi":
        return importlib.import_module("tvmdml.onnx.capi")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
