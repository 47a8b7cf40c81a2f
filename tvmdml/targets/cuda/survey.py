"""List the devices. This starts the driver, but nothing on any device."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from tvmdml.targets.cuda import header as c
from tvmdml.targets.cuda.loader import OLDEST_DRIVER, check, version_text

OLDEST = (7, 5)
"""The oldest compute capability that kernels support."""


class DeviceInfo(NamedTuple):
    """A device, as listed.

    Attributes:
        index: its number among the devices that the driver shows; ``CUDA_VISIBLE_DEVICES`` selects those.
        name: the manufacturer's name of it.
        arch: the architecture to compile for, such as ``sm_90``.
        memory: in bytes.
        processors: the number of its multiprocessors.
        driver: the CUDA version that its driver supports, such as ``13.0``.
        problem: why it cannot be used; empty if it can.
    """

    index: int  # type: ignore[assignment] # hides tuple.index, which is not needed
    name: str
    arch: str
    memory: int
    processors: int
    driver: str
    problem: str


def survey(cuda: Any) -> tuple[DeviceInfo, ...]:
    """All devices."""
    count = ctypes.c_int()
    check(cuda.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    return tuple(_look(cuda, index) for index in range(count.value))


def ordinal(cuda: Any, index: int) -> int:
    """The driver's handle of a device."""
    device = ctypes.c_int()
    check(cuda.cuDeviceGet(ctypes.byref(device), index), "cuDeviceGet")
    return device.value


def attribute(cuda: Any, device: int, number: int) -> int:
    """One of a device's attributes: a ``CU_DEVICE_ATTRIBUTE_…``."""
    value = ctypes.c_int()
    check(cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device), f"cuDeviceGetAttribute({number})")
    return value.value


def _look(cuda: Any, index: int) -> DeviceInfo:
    device = ordinal(cuda, index)
    name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t()
    check(cuda.cuDeviceGetName(name, len(name), device), "cuDeviceGetName")
    check(cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device), "cuDeviceTotalMem")
    major = attribute(cuda, device, c.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
    minor = attribute(cuda, device, c.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
    driver, problem = version_text(cuda.version), ""
    if (major, minor) < OLDEST:
        problem = f"compute capability {major}.{minor} is too old: {OLDEST[0]}.{OLDEST[1]} or newer is needed"
    elif cuda.version < OLDEST_DRIVER:
        problem = f"the driver supports CUDA {driver}, not {version_text(OLDEST_DRIVER)}. Update the NVIDIA driver"
    elif attribute(cuda, device, c.CU_DEVICE_ATTRIBUTE_COMPUTE_MODE) == c.CU_COMPUTEMODE_PROHIBITED:
        problem = "its compute mode is prohibited: `nvidia-smi -c 0` changes that"
    return DeviceInfo(
        index=index,
        name=name.value.decode(errors="replace"),
        arch=f"sm_{major}{minor}",
        memory=memory.value,
        processors=attribute(cuda, device, c.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        driver=driver,
        problem=problem,
    )
