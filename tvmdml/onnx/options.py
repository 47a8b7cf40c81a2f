"""The options of ONNX Runtime's sessions and runs, and what it says of itself."""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

import tvmdml
from tvmdml.errors import InvalidArgument, clean, message, safe_repr
from tvmdml.onnx.ep_devices import OrtEpDevice
from tvmdml.onnx.providers import CPU, has_gpu
from tvmdml.system.disk import stores

_MOST_THREADS = 1024


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


class OrtExecutionProviderDevicePolicy(enum.IntEnum):
    """Which providers a session tries, if it names none."""

    DEFAULT = 0
    PREFER_CPU = 1
    PREFER_NPU = 2
    PREFER_GPU = 3
    MAX_PERFORMANCE = 4
    MAX_EFFICIENCY = 5
    MIN_OVERALL_POWER = 6


_GPU_FIRST = (OrtExecutionProviderDevicePolicy.PREFER_GPU, OrtExecutionProviderDevicePolicy.MAX_PERFORMANCE)


@dataclass
class SessionOptions:
    """``onnxruntime.SessionOptions``.

    Sizes (``add_free_dimension_override_by_name``, ``…_by_denotation``), providers, ``intra_op_num_threads``, ``enable_profiling``,
    ``profile_file_prefix``, ``optimized_model_filepath`` and ``log_severity_level`` have an effect. A session warns of others that
    a program has changed, once, unless its ``log_severity_level`` is above 2.
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
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    profile_file_prefix: str = "onnxruntime_profile_"
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True
    sizes: dict[str, int] = field(default_factory=dict)
    """Values of symbolic sizes."""
    denotations: dict[str, int] = field(default_factory=dict)
    """Values of symbolic sizes, by what the model says that they denote."""
    entries: dict[str, str] = field(default_factory=dict)
    providers: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Names and options, the best first."""

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Close a symbolic size.

        Raises:
            InvalidArgument: the name is no text.
        """
        self.sizes[given(str, "add_free_dimension_override_by_name name", name)] = value

    def add_free_dimension_override_by_denotation(self, denotation: str, value: int) -> None:
        """Close the symbolic sizes of inputs that denote this, such as ``DATA_BATCH``.

        Raises:
            InvalidArgument: it is no text.
        """
        self.denotations[given(str, "add_free_dimension_override_by_denotation denotation", denotation)] = value

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        """Add a provider, for sessions that name none.

        Raises:
            InvalidArgument: the options are no mapping.
        """
        self.providers.append((name, dict(given(Mapping, "add_provider options", options))))

    def add_provider_for_devices(self, devices: Sequence[Any], options: Mapping[str, str]) -> None:
        """Add the provider of devices of ``get_ep_devices``.

        Raises:
            InvalidArgument: there is another object among the devices, or the options are no mapping.
        """
        given(Mapping, "add_provider_for_devices options", options)
        if not isinstance(devices, Sequence) or not all(isinstance(device, OrtEpDevice) for device in devices):
            raise InvalidArgument(message("add_provider_for_devices devices", safe_repr(devices), "a list from get_ep_devices()"))
        self.providers += [(device.ep_name, {**device.ep_options, **options}) for device in devices]

    def set_provider_selection_policy(self, policy: int) -> None:
        """Prefer a GPU or the processor, for sessions that name no provider.

        Raises:
            InvalidArgument: it is no policy.
        """
        given(int, "set_provider_selection_policy", policy)
        self.providers = [("DmlExecutionProvider", {})] if policy in _GPU_FIRST and has_gpu() else []
        self.providers.append((CPU, {}))

    def has_providers(self) -> bool:
        """Whether it names any."""
        return bool(self.providers)

    def without_effect(self) -> list[str]:
        """The options that are not as they are by default, and have no effect."""
        return [*(name for name in _changed(self) if name not in _HONOURED), *self.entries]

    def threads(self) -> int:
        """``intra_op_num_threads``; 0 is as many as the process's.

        Raises:
            InvalidArgument: it is no such number, or an option has a value of another type.
        """
        count = self.intra_op_num_threads
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or not 0 <= count <= _MOST_THREADS:
            raise InvalidArgument(message("intra_op_num_threads", safe_repr(count), f"an integer from 0 to {_MOST_THREADS}"))
        _check_types(self)
        return int(count)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep an entry; it has no effect.

        Raises:
            InvalidArgument: its name is no text.
        """
        self.entries[given(str, "add_session_config_entry key", key)] = value

    def get_session_config_entry(self, key: str) -> str:
        """An entry that was added.

        Raises:
            InvalidArgument: there is none.
        """
        return _entry(self.entries, key, "SessionOptions")


_HONOURED = {
    "denotations", "enable_profiling", "entries", "intra_op_num_threads", "log_severity_level", "logid", "optimized_model_filepath",
    "profile_file_prefix", "providers", "sizes", "use_deterministic_compute",
}  # fmt: skip
"""What has an effect; results are the same bits in all runs. Entries are listed one by one."""


_TYPES: Mapping[type, tuple[type, ...]] = {
    bool: (int, np.bool_),
    int: (int, np.integer),
    str: (str, os.PathLike),
    dict: (Mapping,),
    list: (list, tuple),
}
"""What is taken where an option is one of these by default."""
_WORDS: Mapping[type, str] = {
    bool: "True or False", int: "an integer", str: "text", dict: "a mapping", list: "a list", Mapping: "a mapping",
}  # fmt: skip


_NAME = re.compile("[^\\0\ud800-\udc7f\udd00-\udfff]*")
"""No null, and no code of half a character that stands for no byte."""


def _check_types(options: Any) -> None:
    """Refuse values of other types, of which some would pass for others: an integer, which is a file that is open, for a path."""
    usual = type(options)()
    for one in fields(options):
        value: Any = getattr(options, one.name)
        kind = type(getattr(usual, one.name))
        kind = next(base for base in _TYPES if issubclass(kind, base))
        if not isinstance(value, _TYPES[kind]):
            raise InvalidArgument(message(one.name, safe_repr(value), _WORDS[kind]))
        if kind is str and not _NAME.fullmatch(str(value)):
            raise InvalidArgument(message(one.name, safe_repr(value), "text that a name of a file can have"))


def given(kind: type, where: str, value: Any) -> Any:
    """What was given, which is of this type.

    Raises:
        InvalidArgument: it is of another one.
    """
    if not isinstance(value, kind):
        raise InvalidArgument(message(where, safe_repr(value), _WORDS.get(kind, f"tvmdml.onnx.{kind.__name__}")))
    return value


_OF_THE_LOG = ("entries", "log_severity_level", "log_verbosity_level", "logid")
"""Options of runs that change no result: nothing is logged in a run of what is compiled."""


def _changed(options: Any) -> list[str]:
    """The names of the options that are not as they are by default."""
    usual = type(options)()
    return [one.name for one in fields(options) if getattr(options, one.name) != getattr(usual, one.name)]


@dataclass
class RunOptions:
    """``onnxruntime.RunOptions``: a run with ``terminate`` is refused; the others have no effect."""

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False
    entries: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse a run that is to end, and warn of options without effect, once.

        Raises:
            InvalidArgument: ``terminate`` is set, or an option has a value of another type.
        """
        _check_types(self)
        if self.terminate:
            raise InvalidArgument(message("run_options.terminate", True, "False, for a run that is to give results"))
        names = ", ".join(map(clean, [name for name in _changed(self) if name not in _OF_THE_LOG] + list(self.entries)))
        if names:
            stores.warn_once(f"RunOptions {names}", f"tvmdml: these options of runs have no effect: {names}.")

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep an entry; it has no effect.

        Raises:
            InvalidArgument: its name is no text.
        """
        self.entries[given(str, "add_run_config_entry key", key)] = value

    def get_run_config_entry(self, key: str) -> str:
        """An entry that was added.

        Raises:
            InvalidArgument: there is none.
        """
        return _entry(self.entries, key, "RunOptions")


def _entry(entries: Mapping[str, str], key: str, where: str) -> str:
    if given(str, where, key) not in entries:
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


def disable_telemetry_events() -> None:
    """Do nothing: nobody is told of events."""


def enable_telemetry_events() -> None:
    """Do nothing: nobody is told of events."""


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """Do nothing: drivers are loaded when a target is used."""
