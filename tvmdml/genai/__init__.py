"""``onnxruntime_genai``: a folder of a language model becomes text, token by token, by the kernels of ``tvmdml.onnx``.

``import tvmdml.genai as onnxruntime_genai`` is all that a program changes. The way of a text: ``tokenizer`` makes it into
numbers, and ``chat`` writes what a template says around messages. ``config`` reads the folder, ``model`` its networks, and
``names`` says which input is what. ``state`` runs a network on what is new and keeps the ``caches``; ``search`` and ``beams``
choose tokens, and ``generator`` goes round. ``engine`` runs several requests in turn, and ``hearing``
makes sounds into inputs. README.md explains.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tvmdml._whole import imported

if TYPE_CHECKING:
    from tvmdml.genai.adapters import Adapters
    from tvmdml.genai.config import Config
    from tvmdml.genai.engine import (
        Engine,
        EngineCapabilities,
        EngineErrorCode,
        EngineEvent,
        EngineEventBuffer,
        EngineEventFlags,
        FinishReason,
        Request,
        RequestOptions,
        TurnOptions,
        TurnUsage,
    )
    from tvmdml.genai.generator import Generator
    from tvmdml.genai.hearing import Audios, MultiModalProcessor
    from tvmdml.genai.lacking import Images, MtpGenerator, StreamingProcessor
    from tvmdml.genai.model import Model
    from tvmdml.genai.params import GeneratorParams
    from tvmdml.genai.settings import (
        disable_telemetry_events,
        enable_telemetry_events,
        get_current_gpu_device_id,
        is_cuda_available,
        is_dml_available,
        is_openvino_available,
        is_qnn_available,
        is_webgpu_available,
        register_execution_provider_library,
        set_current_gpu_device_id,
        set_log_callback,
        set_log_options,
        unregister_execution_provider_library,
    )
    from tvmdml.genai.tensors import NamedTensors, Tensor
    from tvmdml.genai.tokenizer import Tokenizer, TokenizerStream

    __version__: str

__all__ = [
    "Adapters",
    "Audios",
    "Config",
    "Engine",
    "EngineCapabilities",
    "EngineErrorCode",
    "EngineEvent",
    "EngineEventBuffer",
    "EngineEventFlags",
    "FinishReason",
    "Generator",
    "GeneratorParams",
    "Images",
    "Model",
    "MtpGenerator",
    "MultiModalProcessor",
    "NamedTensors",
    "Request",
    "RequestOptions",
    "StreamingProcessor",
    "Tensor",
    "Tokenizer",
    "TokenizerStream",
    "TurnOptions",
    "TurnUsage",
    "__version__",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_current_gpu_device_id",
    "is_cuda_available",
    "is_dml_available",
    "is_openvino_available",
    "is_qnn_available",
    "is_webgpu_available",
    "register_execution_provider_library",
    "set_current_gpu_device_id",
    "set_log_callback",
    "set_log_options",
    "unregister_execution_provider_library",
]

_MODULES = {
    "adapters": ("Adapters",),
    "config": ("Config",),
    "engine": (
        "Engine",
        "EngineCapabilities",
        "EngineErrorCode",
        "EngineEvent",
        "EngineEventBuffer",
        "EngineEventFlags",
        "FinishReason",
        "Request",
        "RequestOptions",
        "TurnOptions",
        "TurnUsage",
    ),
    "generator": ("Generator",),
    "hearing": ("Audios", "MultiModalProcessor"),
    "lacking": ("Images", "MtpGenerator", "StreamingProcessor"),
    "model": ("Model",),
    "params": ("GeneratorParams",),
    "tensors": ("NamedTensors", "Tensor"),
    "tokenizer": ("Tokenizer", "TokenizerStream"),
}
"""Where names are; the others are ``settings``'s."""
_HOMES = dict.fromkeys(__all__, "settings") | {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Each name is imported on first use, where no signal handler interrupts it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, own = f"{__name__}.{_HOMES[name]}", "API_VERSION" if name == "__version__" else name
    value = imported(lambda: getattr(importlib.import_module(module), own))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
