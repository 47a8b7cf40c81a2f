"""``onnxruntime_genai``: a folder of a language model becomes text, token by token, by the kernels of ``tvmdml.onnx``.

``import tvmdml.genai as onnxruntime_genai`` is all that a program changes. The way of a text: ``tokenizer`` makes it into
numbers, and ``chat`` writes what a template says around messages. ``config`` reads the folder, ``model`` its networks, and
``names`` says which input is what. ``state`` runs a network on what is new and keeps the ``caches``; ``search`` and ``beams``
choose tokens, and ``generator`` goes round. ``engine`` runs several requests in turn, and ``hearing``
makes sounds into inputs. README.md explains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmdml.system import on_first_use

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

__getattr__, __dir__ = on_first_use(
    __name__,
    {
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
        "settings": (
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
        ),
        "tensors": ("NamedTensors", "Tensor"),
        "tokenizer": ("Tokenizer", "TokenizerStream"),
    },
)
