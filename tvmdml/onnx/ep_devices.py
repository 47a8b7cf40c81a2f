"""``get_ep_devices``: the devices of this machine as ONNX Runtime's programs list and choose them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from tvmdml import __version__, targets
from tvmdml.onnx import providers


class OrtHardwareDeviceType(enum.IntEnum):
    """The kind of a device."""

    CPU = 0
    GPU = 1
    NPU = 2


class OrtDeviceVendorId(enum.IntEnum):
    """Vendors, by their PCI numbers."""

    NONE = 0
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


_SIGNS = {
    "NVIDIA": "NVIDIA",
    "GeForce": "NVIDIA",
    "AMD": "AMD",
    "Radeon": "AMD",
    "Intel": "INTEL",
    "Adreno": "QUALCOMM",
    "Mali": "ARM",
}
"""Words in names of devices, and the vendors that they stand for."""


@dataclass(frozen=True)
class OrtHardwareDevice:
    """A processor or GPU."""

    type: OrtHardwareDeviceType
    vendor: str
    vendor_id: int
    device_id: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    """``target``, the name that ``tvmdml.compile`` takes, and ``device``, the name that its driver gives."""


@dataclass(frozen=True)
class OrtEpDevice:
    """A device, and the provider that runs on it."""

    ep_name: str
    device: OrtHardwareDevice
    ep_vendor: str = "tvmdml"
    ep_metadata: Mapping[str, str] = field(default_factory=lambda: {"version": __version__})
    ep_options: Mapping[str, str] = field(default_factory=dict)


def get_ep_devices() -> list[OrtEpDevice]:
    """A row for each device that a provider can use here: the processor, and GPUs of CUDA and Vulkan."""
    found = []
    rows = [(targets.resolve("cpu").name, row["device"]) for row in targets.target_class("cpu").devices()]
    rows += [(row["target"], row["device"]) for kind in targets.kinds() if kind != "cpu" for row in targets.gpus(kind)]
    for name, device in rows:
        provider = providers.provider_of(targets.resolve(name))
        vendor = next((vendor for word, vendor in _SIGNS.items() if word.lower() in device.lower()), "NONE")
        number = name.partition(":")[2]
        kind = OrtHardwareDeviceType.CPU if provider == providers.CPU else OrtHardwareDeviceType.GPU
        about = OrtHardwareDevice(
            kind,
            "" if vendor == "NONE" else vendor,
            int(OrtDeviceVendorId[vendor]),
            int(number) if number.isdigit() else 0,
            {"target": name, "device": device},
        )
        own = {"device_id": number} if number.isdigit() else {}
        found.append(OrtEpDevice(provider, about, ep_options=own))
    return found
