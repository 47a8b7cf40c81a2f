"""What ONNX Runtime GenAI's package says of the machine, and what a program tells it: which GPU, and what to log."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tvmdml import targets
from tvmdml.errors import TvmdmlError, message, safe_repr
from tvmdml.genai.refusing import Refused

__version__ = "0.18.0"
"""The version of ONNX Runtime GenAI whose calls are followed, and tested beside: programs compare it."""

_LOGS = (
    "enabled",
    "ansi_tags",
    "warning",
    "generate_next_token",
    "append_next_tokens",
    "hit_eos",
    "hit_max_length",
    "model_input_values",
    "model_input_shapes",
    "model_output_values",
    "model_output_shapes",
    "model_logits",
    "ort_lib",
    "value_stats",
    "filename",
)
_options: dict[str, Any] = {}
_state: dict[str, Any] = {"callback": None, "gpu": 0}


def set_log_options(**options: Any) -> None:
    """Choose what is written to standard error: with ``enabled``, what goes into and comes out of the network.

    ``generate_next_token``, and ``model_input_``, ``model_output_`` with ``values`` or ``shapes`` have an effect; the others are
    accepted.

    Raises:
        Refused: there is no such option.
    """
    for name in options:
        if name not in _LOGS:
            raise Refused(message("set_log_options", safe_repr(name), ", ".join(_LOGS)))
    _options.update(options)


def set_log_callback(callback: Callable[[str], object] | None) -> None:
    """Give what is logged to a function, or to standard error again."""
    if callback is not None and not callable(callback):
        raise Refused(message("set_log_callback", safe_repr(callback), "a function that takes a text, or None"))
    _state["callback"] = callback


def logs(name: str) -> bool:
    """Whether something is logged."""
    return bool(_options.get("enabled") and _options.get(name))


def log(text: str) -> None:
    """Log a line."""
    if _state["callback"] is not None:
        _state["callback"](text)
    else:
        sys.stderr.write(f"{text}\n")


def _usable(*kinds: str) -> bool:
    for kind in kinds:
        try:
            targets.resolve(kind)
        except TvmdmlError:
            continue
        return True
    return False


def is_cuda_available() -> bool:
    """Whether this machine has a device for CUDA."""
    return _usable("cuda")


def is_dml_available() -> bool:
    """True: what is meant for DirectML runs here on each target."""
    return True


def is_webgpu_available() -> bool:
    """Whether this machine has a Vulkan driver, which stands for WebGPU."""
    return _usable("vulkan")


def is_openvino_available() -> bool:
    """False."""
    return False


def is_qnn_available() -> bool:
    """False."""
    return False


def get_current_gpu_device_id() -> int:
    """The number of the GPU that providers without a ``device_id`` use."""
    return int(_state["gpu"])


def set_current_gpu_device_id(number: int) -> None:
    """Choose the GPU that providers without a ``device_id`` use, for models that are read later.

    Raises:
        Refused: the number is none.
    """
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise Refused(message("set_current_gpu_device_id", safe_repr(number), "an integer of 0 or more"))
    _state["gpu"] = number


def register_execution_provider_library(name: str, path: str) -> None:
    """Accept a provider's library; it is not needed."""


def unregister_execution_provider_library(name: str) -> None:
    """Accept it."""


def disable_telemetry_events() -> None:
    """Do nothing: nobody is told of events."""


def enable_telemetry_events() -> None:
    """Do nothing: nobody is told of events."""
