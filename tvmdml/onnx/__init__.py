"""ONNX models: ``load`` reads a model, and calls of it run DirectML's operators, compiled for each size on first use.

The way of a model: ``reading`` makes a file into a message and arrays; ``converting`` walks the nodes of ``onnx_bounds``'s limits,
``folding`` computes what is known before the model runs, and ``rules`` and ``described`` make the rest into calls of a ``Graph``;
``inference`` asks ONNX's schemas for types and shapes; ``model`` runs the compiled graphs, and ``packed`` those of packs. Where
elements that a run computes decide sizes, a ``stage`` follows another one; ``tail`` runs ``counting`` and ``looping`` between them;
``session`` has the calls of ONNX Runtime: ``import tvmdml.onnx as onnxruntime`` is all that a program changes. README.md explains.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tvmdml.system import imported, on_first_use

if TYPE_CHECKING:
    from tvmdml.onnx.arguments import ModelMetadata as ModelMetadata
    from tvmdml.onnx.arguments import NodeArg as NodeArg
    from tvmdml.onnx.ep_devices import OrtDeviceVendorId as OrtDeviceVendorId
    from tvmdml.onnx.ep_devices import OrtEpDevice as OrtEpDevice
    from tvmdml.onnx.ep_devices import OrtHardwareDevice as OrtHardwareDevice
    from tvmdml.onnx.ep_devices import OrtHardwareDeviceType as OrtHardwareDeviceType
    from tvmdml.onnx.ep_devices import get_ep_devices as get_ep_devices
    from tvmdml.onnx.model import InferenceSession as InferenceSession
    from tvmdml.onnx.model import Model as Model
    from tvmdml.onnx.model import load as load
    from tvmdml.onnx.node import Node as Node
    from tvmdml.onnx.options import ExecutionMode as ExecutionMode
    from tvmdml.onnx.options import ExecutionOrder as ExecutionOrder
    from tvmdml.onnx.options import GraphOptimizationLevel as GraphOptimizationLevel
    from tvmdml.onnx.options import OrtExecutionProviderDevicePolicy as OrtExecutionProviderDevicePolicy
    from tvmdml.onnx.options import RunOptions as RunOptions
    from tvmdml.onnx.options import SessionOptions as SessionOptions
    from tvmdml.onnx.options import disable_telemetry_events as disable_telemetry_events
    from tvmdml.onnx.options import enable_telemetry_events as enable_telemetry_events
    from tvmdml.onnx.options import get_build_info as get_build_info
    from tvmdml.onnx.options import get_version_string as get_version_string
    from tvmdml.onnx.options import preload_dlls as preload_dlls
    from tvmdml.onnx.ortvalue import OrtDevice as OrtDevice
    from tvmdml.onnx.ortvalue import OrtValue as OrtValue
    from tvmdml.onnx.ortvalue import copy_tensors as copy_tensors
    from tvmdml.onnx.own_operators import operator as operator
    from tvmdml.onnx.packed import PackedModel as PackedModel
    from tvmdml.onnx.providers import get_all_providers as get_all_providers
    from tvmdml.onnx.providers import get_available_providers as get_available_providers
    from tvmdml.onnx.providers import get_device as get_device
    from tvmdml.onnx.random_state import set_seed as set_seed
    from tvmdml.onnx.running import Argument as Argument
    from tvmdml.onnx.session import IOBinding as IOBinding
    from tvmdml.onnx.severity import set_default_logger_callback as set_default_logger_callback
    from tvmdml.onnx.severity import set_default_logger_severity as set_default_logger_severity
    from tvmdml.onnx.severity import set_default_logger_verbosity as set_default_logger_verbosity

    __version__: str


_own, __dir__, __all__ = on_first_use(
    __name__,
    {
        "arguments": ("ModelMetadata", "NodeArg"),
        "capi": (),
        "ep_devices": ("OrtDeviceVendorId", "OrtEpDevice", "OrtHardwareDevice", "OrtHardwareDeviceType", "get_ep_devices"),
        "model": ("InferenceSession", "Model", "load"),
        "node": ("Node",),
        "options": (
            "ExecutionMode",
            "ExecutionOrder",
            "GraphOptimizationLevel",
            "OrtExecutionProviderDevicePolicy",
            "RunOptions",
            "SessionOptions",
            "__version__",
            "disable_telemetry_events",
            "enable_telemetry_events",
            "get_build_info",
            "get_version_string",
            "preload_dlls",
        ),
        "ortvalue": ("OrtDevice", "OrtValue", "copy_tensors"),
        "own_operators": ("operator",),
        "packed": ("PackedModel",),
        "providers": ("get_all_providers", "get_available_providers", "get_device"),
        "random_state": ("set_seed",),
        "running": ("Argument",),
        "session": ("IOBinding",),
        "severity": ("set_default_logger_callback", "set_default_logger_severity", "set_default_logger_verbosity"),
    },
)
_BESIDE = ("quantization", "tools", "transformers")
"""Packages of ONNX Runtime that work on files: they are those of ``onnxruntime``, where it is installed."""


def __getattr__(name: str) -> Any:
    return imported(lambda: importlib.import_module(f"onnxruntime.{name}")) if name in _BESIDE else _own(name)
