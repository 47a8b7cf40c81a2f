"""``Capabilities``: what of a device shapes the code that is generated for it. Two devices that agree here share kernels."""

from __future__ import annotations

from typing import NamedTuple


class Capabilities(NamedTuple):
    """Optional features that were found and enabled, and limits. The defaults are what every Vulkan 1.2 driver has."""

    int8: bool = False
    """Arithmetic on 8-bit integers (``shaderInt8``)."""
    int16: bool = False
    int64: bool = False
    float16: bool = False
    """Arithmetic on float16 (``shaderFloat16``)."""
    float64: bool = False
    storage8: bool = False
    """8-bit elements in storage buffers (``storageBuffer8BitAccess``)."""
    storage16: bool = False
    """16-bit elements in storage buffers (``storageBuffer16BitAccess``)."""
    atomic64: bool = False
    """64-bit atomics in storage buffers (``shaderBufferInt64Atomics``)."""
    shared_atomic64: bool = False
    subgroup_size: int = 1
    subgroup: tuple[str, ...] = ()
    """Groups of subgroup operations in compute shaders: basic, vote, arithmetic, ballot, shuffle, shuffle_relative."""
    subgroup_extended_types: bool = False
    """Subgroup operations on 8-, 16- and 64-bit integers and float16."""
    nearest_even: tuple[int, ...] = ()
    """Float widths (16, 32, 64) whose arithmetic can be told to round to nearest even."""
    keep_denormals: tuple[int, ...] = ()
    """Float widths whose denormals can be told to survive."""
    keep_special: tuple[int, ...] = ()
    """Float widths whose signed zeros, infinities and NaN can be told to survive."""
    max_threads: int = 128
    """Threads in a group (``maxComputeWorkGroupInvocations``)."""
    max_group_size: tuple[int, int, int] = (128, 128, 64)
    max_shared_bytes: int = 16384
    max_push_bytes: int = 128
    max_buffers: int = 4
    """Storage buffers that one shader may bind (``maxPerStageDescriptorStorageBuffers``)."""
    lookback: bool = False
    """Whether a running group may wait for one that started before it: no Vulkan rule says so, but some vendors do."""

    def text(self) -> str:
        """All of it in one line: the part of a kernel's key that stands for the device."""
        shown = []
        for name, value in self._asdict().items():
            if value is True:
                shown.append(name)
            elif value not in (False, ()):
                shown.append(f"{name}={','.join(map(str, value)) if isinstance(value, tuple) else value}")
        return " ".join(shown)
