"""``Capabilities``: what of a device shapes the code that is generated for it. Two devices that agree here share kernels."""

from __future__ import annotations

from collections.abc import Mapping
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

    def runs(self, other: Capabilities) -> bool:
        """Whether what is compiled for the other runs on this one."""
        subgroups = not other.subgroup or other.subgroup_size == self.subgroup_size
        return subgroups and all(
            name == "subgroup_size" or _covers(name, mine, theirs)
            for name, mine, theirs in zip(self._fields, self, other, strict=True)
        )

    @classmethod
    def parse(cls, text: str) -> Capabilities:
        """What ``text`` wrote.

        Raises:
            ValueError: it did not write this.
        """
        values: dict[str, object] = {}
        for word in text.split():
            name, equals, value = word.partition("=")
            default = cls._field_defaults[name] if name in cls._fields else None
            if default is None or (type(default) is bool) == bool(equals):
                raise ValueError(f"no capability: {word}")
            if isinstance(default, tuple):
                items = value.split(",")
                values[name] = tuple(items) if name == "subgroup" else tuple(map(int, items))
            else:
                values[name] = int(value) if equals else True
        return cls(**values)  # type: ignore[arg-type]

    def text(self) -> str:
        """All of it in one line: the part of a kernel's key that stands for the device."""
        shown = []
        for name, value in self._asdict().items():
            if value is True:
                shown.append(name)
            elif value not in (False, ()):
                shown.append(f"{name}={','.join(map(str, value)) if isinstance(value, tuple) else value}")
        return " ".join(shown)


def _covers(name: str, mine: object, theirs: object) -> bool:
    """Whether one value of a capability is as much as another, or more."""
    if isinstance(mine, tuple) and isinstance(theirs, tuple):
        if name == "max_group_size":
            return all(one >= other for one, other in zip(mine, theirs, strict=True))
        return set(mine) >= set(theirs)
    return mine >= theirs  # type: ignore[operator, no-any-return]


PROFILES: Mapping[str, Capabilities] = {
    "core": Capabilities(),
    "desktop": Capabilities(
        int8=True,
        int16=True,
        int64=True,
        float16=True,
        storage8=True,
        storage16=True,
        subgroup_size=32,  # as many threads as work well together; subgroups themselves are not used
        nearest_even=(16, 32),
        keep_special=(16, 32),
        max_threads=1024,
        max_group_size=(1024, 1024, 64),
        max_shared_bytes=32768,
        max_buffers=16,
    ),
}
"""Devices to compile for that need not be here: what all drivers of Vulkan 1.2 have, and what those of desktop GPUs have."""
