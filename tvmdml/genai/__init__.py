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
    from tvmdml.genai.adapters import Adapters as Adapters
    from tvmdml.genai.config import Config as Config
    from tvmdml.genai.engine import Engine as Engine
    from tvmdml.genai.engine import EngineCapabilities as EngineCapabilities
    from tvmdml.genai.engine import EngineErrorCode as EngineErrorCode
    from tvmdml.genai.engine import EngineEvent as EngineEvent
    from tvmdml.genai.engine import EngineEventBuffer as EngineEventBuffer
    from tvmdml.genai.engine import EngineEventFlags as EngineEventFlags
    from tvmdml.genai.engine import FinishReason as FinishReason
    from tvmdml.genai.engine import Request as Request
    from tvmdml.genai.engine import RequestOptions as RequestOptions
    from tvmdml.genai.engine import TurnOptions as TurnOptions
    from tvmdml.genai.engine import TurnUsage as TurnUsage
    from tvmdml.genai.generator import Generator as Generator
    from tvmdml.genai.hearing import Audios as Audios
    from tvmdml.genai.hearing import MultiModalProcessor as MultiModalProcessor
    from tvmdml.genai.lacking import Images as Images
    from tvmdml.genai.lacking import MtpGenerator as MtpGenerator
    from tvmdml.genai.lacking import StreamingProcessor as StreamingProcessor
    from tvmdml.genai.model import Model as Model
    from tvmdml.genai.params import GeneratorParams as GeneratorParams
    from tvmdml.genai.settings import disable_telemetry_events as disable_telemetry_events
    from tvmdml.genai.settings import enable_telemetry_events as enable_telemetry_events
    from tvmdml.genai.settings import get_current_gpu_device_id as get_current_gpu_device_id
    from tvmdml.genai.settings import is_cuda_available as is_cuda_available
    from tvmdml.genai.settings import is_dml_available as is_dml_available
    from tvmdml.genai.settings import is_openvino_available as is_openvino_available
    from tvmdml.genai.settings import is_qnn_available as is_qnn_available
    from tvmdml.genai.settings import is_webgpu_available as is_webgpu_available
    from tvmdml.genai.settings import register_execution_provider_library as register_execution_provider_library
    from tvmdml.genai.settings import set_current_gpu_device_id as set_current_gpu_device_id
    from tvmdml.genai.settings import set_log_callback as set_log_callback
    from tvmdml.genai.settings import set_log_options as set_log_options
    from tvmdml.genai.settings import unregister_execution_provider_library as unregister_execution_provider_library
    from tvmdml.genai.tensors import NamedTensors as NamedTensors
    from tvmdml.genai.tensors import Tensor as Tensor
    from tvmdml.genai.tokenizer import Tokenizer as Tokenizer
    from tvmdml.genai.tokenizer import TokenizerStream as TokenizerStream

    __version__: str


__getattr__, __dir__, __all__ = on_first_use(
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
