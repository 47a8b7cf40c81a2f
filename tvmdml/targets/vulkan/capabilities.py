"""``Capabilities``: the properties of a device that affect its generated code. Devices with equal capabilities share kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Capabilities(NamedTuple):
    """Limits, and the optional features that were found and enabled. Every Vulkan 1.2 driver has the defaults."""

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
    """Float widths (16, 32, 64) whose arithmetic can be set to round to nearest even."""
    keep_denormals: tuple[int, ...] = ()
    """Float widths whose subnormals can be preserved."""
    keep_special: tuple[int, ...] = ()
    """Float widths whose signed zeros, infinities and NaN can be preserved."""
    max_threads: int = 128
    """The maximum number of threads in a group (``maxComputeWorkGroupInvocations``)."""
    max_group_size: tuple[int, int, int] = (128, 128, 64)
    max_shared_bytes: int = 16384
    max_push_bytes: int = 128
    max_buffers: int = 4
    """The maximum number of storage buffers of a shader (``maxPerStageDescriptorStorageBuffers``)."""
    matrices: tuple[str, ...] = ()
    """Products of small matrices that subgroups hold (``cooperativeMatrix``): the factors' type, rows, columns and products."""
    lookback: bool = False
    """Whether a running group may wait for one that started before it: Vulkan does not guarantee it, but some vendors do."""

    def runs(self, other: Capabilities) -> bool:
        """Whether code compiled for the other capabilities runs on these."""
        subgroups = not other.subgroup or other.subgroup_size == self.subgroup_size
        return subgroups and all(
            name == "subgroup_size" or _covers(name, mine, theirs)
            for name, mine, theirs in zip(self._fields, self, other, strict=True)
        )

    @classmethod
    def parse(cls, text: str) -> Capabilities:
        """Read what ``text`` wrote.

        Raises:
            ValueError: the text is not valid.
        """
        values: dict[str, object] = {}
        for word in text.split():
            name, equals, value = word.partition("=")
            default = cls._field_defaults[name] if name in cls._fields else None
            if default is None or (type(default) is bool) == bool(equals):
                raise ValueError(f"unknown capability: {word}")
            if isinstance(default, tuple):
                items = value.split(",")
                values[name] = tuple(items) if name in ("subgroup", "matrices") else tuple(map(int, items))
            else:
                values[name] = int(value) if equals else True
        return cls(**values)  # type: ignore[arg-type]

    def text(self) -> str:
        """All capabilities in one line, which represents the device in a kernel's key."""
        shown = []
        for name, value in self._asdict().items():
            if value is True:
                shown.append(name)
            elif value not in (False, ()):
                shown.append(f"{name}={','.join(map(str, value)) if isinstance(value, tuple) else value}")
        return " ".join(shown)


def _covers(name: str, mine: object, theirs: object) -> bool:
    """Whether one value of a capability includes another."""
    if isinstance(mine, tuple) and isinstance(theirs, tuple):
        if name == "max_group_size":
            return all(one >= other for one, other in zip(mine, theirs, strict=True))
        return set(mine) >= set(theirs)
    return mine >= theirs  # type: ignore[operator]


PROFILES: Mapping[str, Capabilities] = {
    "core": Capabilities(),
    "desktop": Capabilities(
        int8=True,
        int16=True,
        int64=True,
        float16=True,
        storage8=True,
        storage16=True,
        subgroup_size=32,  # only a hint for sizes: subgroup operations are not used
        nearest_even=(16, 32),
        keep_special=(16, 32),
        max_threads=1024,
        max_group_size=(1024, 1024, 64),
        max_shared_bytes=32768,
        max_buffers=16,
    ),
}
"""Sets of features to compile for without a device: those of all Vulkan 1.2 drivers, and those of desktop GPUs' drivers."""
