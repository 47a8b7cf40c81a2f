"""The options of ONNX Runtime's sessions and runs, and what it says of itself."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import tvmdml
from tvmdml.errors import InvalidArgument, message, safe_repr


class GraphOptimizationLevel(enum.IntEnum):
    """How much a graph is optimized. It is always optimized; a level has no effect."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Whether operators run at the same time. They run in turn; a mode has no effect."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """The order of operators; it has no effect."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


@dataclass
class SessionOptions:
    """``onnxruntime.SessionOptions``. The sizes of ``add_free_dimension_override_by_name``, ``enable_profiling`` and
    ``profile_file_prefix`` have an effect.
    """

    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    execution_mode: int = ExecutionMode.ORT_SEQUENTIAL
    execution_order: int = ExecutionOrder.DEFAULT
    graph_optimization_level: int = GraphOptimizationLevel.ORT_ENABLE_ALL
    inter_op_num_threads: int = 0
    intra_op_num_threads: int = 0
    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    profile_file_prefix: str = "onnxruntime_profile_"
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True
    sizes: dict[str, int] = field(default_factory=dict)
    """Values of symbolic sizes."""
    entries: dict[str, str] = field(default_factory=dict)

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Close a symbolic size."""
        self.sizes[name] = value

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep an entry; it has no effect."""
        self.entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """An entry that was added.

        Raises:
            InvalidArgument: there is none.
        """
        return _entry(self.entries, key, "SessionOptions")


@dataclass
class RunOptions:
    """``onnxruntime.RunOptions``; they have no effect."""

    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False
    entries: dict[str, str] = field(default_factory=dict)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep an entry; it has no effect."""
        self.entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """An entry that was added.

        Raises:
            InvalidArgument: there is none.
        """
        return _entry(self.entries, key, "RunOptions")


def _entry(entries: Mapping[str, str], key: str, where: str) -> str:
    if key not in entries:
        raise InvalidArgument(message(where, safe_repr(key), ", ".join(entries) or "no entries"))
    return entries[key]


__version__ = "1.32.0"
"""The version of ONNX Runtime whose calls of sessions, bindings and values are followed, and tested beside: programs compare it."""


def get_version_string() -> str:
    """The version of ONNX Runtime whose calls are here; that of this package is in ``get_build_info``."""
    return __version__


def get_build_info() -> str:
    """What was installed: tvmdml, and its version."""
    return f"tvmdml {tvmdml.__version__}"


def set_default_logger_severity(severity: int) -> None:
    """Accept a severity; nothing is logged."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accept a verbosity; nothing is logged."""


def disable_telemetry_events() -> None:
    """Do nothing: nobody is told of events."""


def enable_telemetry_events() -> None:
    """Do nothing: nobody is told of events."""


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """Do nothing: drivers are loaded when a target is used."""
