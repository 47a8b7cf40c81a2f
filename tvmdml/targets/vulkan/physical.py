"""The drivers' devices: their identity, their capabilities, and the features that are enabled."""

from __future__ import annotations

import ctypes
import dataclasses
import os
from typing import Any, NamedTuple

from tvmdml.errors import DeviceError, message, safe_repr
from tvmdml.targets.vulkan import structures as c
from tvmdml.targets.vulkan.capabilities import Capabilities
from tvmdml.targets.vulkan.loader import Instance, enumerate_all, version_text

COOPERATIVE_MATRIX = b"VK_KHR_cooperative_matrix"
"""An extension that is enabled if the capabilities have ``matrices``."""
_SIDES, _DEPTHS = (8, 16), (8, 16, 32)
"""The rows and columns, and the products of each sum, that kernels can divide their work by."""
_PRODUCTS = {
    "float16": ("shaderFloat16", c.VK_COMPONENT_TYPE_FLOAT16_KHR, c.VK_COMPONENT_TYPE_FLOAT32_KHR),
    "int8": ("shaderInt8", c.VK_COMPONENT_TYPE_SINT8_KHR, c.VK_COMPONENT_TYPE_SINT32_KHR),
}
"""Factors of small matrices, the feature that they need, Vulkan's name for them, and that of their sums."""

_BEST_FIRST = ("discrete GPU", "integrated GPU", "virtual GPU", "CPU", "other")
# Capabilities that are optional features, by the structure that contains them.
FEATURES = {
    "core": {"int16": "shaderInt16", "int64": "shaderInt64", "float64": "shaderFloat64"},
    "vulkan11": {"storage16": "storageBuffer16BitAccess"},
    "vulkan12": {
        "int8": "shaderInt8",
        "float16": "shaderFloat16",
        "storage8": "storageBuffer8BitAccess",
        "atomic64": "shaderBufferInt64Atomics",
        "shared_atomic64": "shaderSharedInt64Atomics",
        "subgroup_extended_types": "shaderSubgroupExtendedTypes",
    },
}
_FLOAT_CONTROLS = {
    "nearest_even": "shaderRoundingModeRTEFloat",
    "keep_denormals": "shaderDenormPreserveFloat",
    "keep_special": "shaderSignedZeroInfNanPreserveFloat",
}
_NVIDIA, _AMD = 0x10DE, 0x1002  # as PCI numbers vendors


@dataclasses.dataclass(frozen=True)
class DeviceInfo:
    """A device, as listed by ``tvmdml devices``."""

    index: int
    """Its number in this process; the best kind comes first."""
    name: str
    type: str
    """Discrete GPU, integrated GPU, virtual GPU, CPU or other."""
    driver: str
    api: str
    """The Vulkan version that it supports."""
    problem: str
    """Why it cannot be used; empty if it can."""
    capabilities: Capabilities


class Identity(NamedTuple):
    """The device and driver that compiled pipelines are valid for."""

    vendor: int
    device: int
    driver_version: int
    cache_uuid: bytes


class DeviceLimits(NamedTuple):
    """A device's limits that do not affect generated code."""

    storage_alignment: int
    max_storage_range: int
    max_groups: tuple[int, int, int]
    max_allocation: int
    timestamp_period: float
    """Nanoseconds per tick; 0 without timestamps."""
    timestamp_bits: int


class Physical(NamedTuple):
    """A device that can be opened."""

    handle: int
    info: DeviceInfo
    identity: Identity
    limits: DeviceLimits
    queue_family: int
    memory: Any
    """``VkPhysicalDeviceMemoryProperties``."""


class _Features:
    """The three feature structures, chained."""

    def __init__(self) -> None:
        self.vulkan12 = c.VkPhysicalDeviceVulkan12Features()
        self.vulkan11 = c.VkPhysicalDeviceVulkan11Features(pNext=self.vulkan12)
        self.chain = c.VkPhysicalDeviceFeatures2(pNext=self.vulkan11)
        self.core = self.chain.features


def survey(instance: Instance) -> tuple[Physical, ...]:
    """All devices, the best kind first, and otherwise in the drivers' order."""
    found = [_look_at(instance, handle) for handle in instance.physical_devices()]
    found.sort(key=lambda physical: _BEST_FIRST.index(physical.info.type))
    return tuple(physical._replace(info=dataclasses.replace(physical.info, index=index)) for index, physical in enumerate(found))


def enabled_features(capabilities: Capabilities) -> Any:
    """The ``VkDeviceCreateInfo.pNext`` chain that enables the features in the capabilities."""
    features = _Features()
    features.vulkan12.timelineSemaphore = 1
    for part, names in FEATURES.items():
        for capability, feature in names.items():
            setattr(getattr(features, part), feature, getattr(capabilities, capability))
    if capabilities.matrices:
        features.vulkan12.vulkanMemoryModel = 1
        return c.VkPhysicalDeviceCooperativeMatrixFeaturesKHR(pNext=features.chain, cooperativeMatrix=1)
    return features.chain


def _look_at(instance: Instance, handle: int) -> Physical:
    vk = instance.vk
    core = c.VkPhysicalDeviceProperties()
    vk.vkGetPhysicalDeviceProperties(handle, ctypes.byref(core))
    families = enumerate_all(c.VkQueueFamilyProperties, vk.vkGetPhysicalDeviceQueueFamilyProperties, handle)
    compute = [number for number, family in enumerate(families) if family.queueFlags & c.VK_QUEUE_COMPUTE_BIT]
    memory = c.VkPhysicalDeviceMemoryProperties()
    vk.vkGetPhysicalDeviceMemoryProperties(handle, ctypes.byref(memory))
    vulkan12 = c.VkPhysicalDeviceVulkan12Properties()
    vulkan11 = c.VkPhysicalDeviceVulkan11Properties(pNext=vulkan12)
    problem, capabilities = "", Capabilities()
    if core.apiVersion < c.VK_API_VERSION_1_2:
        problem = f"it supports Vulkan {version_text(core.apiVersion)}; 1.2 is needed: update its driver"
    elif not compute:
        problem = "it has no queue for compute"
    else:
        vk.vkGetPhysicalDeviceProperties2(handle, ctypes.byref(c.VkPhysicalDeviceProperties2(pNext=vulkan11)))
        features = _features(instance, handle)
        matrices = _matrices(instance, handle, features)
        capabilities = _capabilities(features, core, vulkan11, vulkan12)._replace(matrices=matrices)
    kind = c.VK_PHYSICAL_DEVICE_TYPES[core.deviceType if core.deviceType < len(c.VK_PHYSICAL_DEVICE_TYPES) else 0]
    driver = f"{vulkan12.driverName.decode()} {vulkan12.driverInfo.decode()}".strip() or f"driver {core.driverVersion:#x}"
    info = DeviceInfo(0, core.deviceName.decode(), kind, driver, version_text(core.apiVersion), problem, capabilities)
    bits = families[compute[0]].timestampValidBits if compute else 0
    limits = DeviceLimits(
        storage_alignment=core.limits.minStorageBufferOffsetAlignment,
        max_storage_range=core.limits.maxStorageBufferRange,
        max_groups=tuple(core.limits.maxComputeWorkGroupCount),
        max_allocation=vulkan11.maxMemoryAllocationSize,
        timestamp_period=core.limits.timestampPeriod if bits else 0.0,
        timestamp_bits=bits,
    )
    identity = Identity(core.vendorID, core.deviceID, core.driverVersion, bytes(core.pipelineCacheUUID))
    return Physical(handle, info, identity, limits, compute[0] if compute else 0, memory)


def hidden() -> frozenset[str]:
    """The features that ``TVMDML_VULKAN_WITHOUT`` names: devices are taken as if they did not have them.

    Raises:
        DeviceError: one of them is no feature that kernels use.
    """
    given = os.environ.get("TVMDML_VULKAN_WITHOUT", "")
    found = frozenset(filter(None, (one.strip() for one in given.split(","))))
    known = {feature for names in FEATURES.values() for feature in names.values()}
    if unknown := found - known:
        raise DeviceError(message("TVMDML_VULKAN_WITHOUT", safe_repr(sorted(unknown)), ", ".join(sorted(known))))
    return found | ({"shaderBufferInt64Atomics", "shaderSharedInt64Atomics"} if "shaderInt64" in found else set())


def _features(instance: Instance, handle: int) -> _Features:
    features, without = _Features(), hidden()
    instance.vk.vkGetPhysicalDeviceFeatures2(handle, ctypes.byref(features.chain))
    for part, names in FEATURES.items():
        for feature in without.intersection(names.values()):
            setattr(getattr(features, part), feature, 0)
    return features


def _matrices(instance: Instance, handle: int, features: _Features) -> tuple[str, ...]:
    """The largest product of small matrices of each type of factors that the device has."""
    vk = instance.vk
    here = enumerate_all(c.VkExtensionProperties, vk.vkEnumerateDeviceExtensionProperties, handle, None)
    if vk.vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR is None or all(e.extensionName != COOPERATIVE_MATRIX for e in here):
        return ()
    own = c.VkPhysicalDeviceCooperativeMatrixFeaturesKHR()
    vk.vkGetPhysicalDeviceFeatures2(handle, ctypes.byref(c.VkPhysicalDeviceFeatures2(pNext=own)))
    if not (own.cooperativeMatrix and features.vulkan12.vulkanMemoryModel):
        return ()
    listed = enumerate_all(c.VkCooperativeMatrixPropertiesKHR, vk.vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR, handle)
    found = []
    for dtype, (feature, factor, total) in _PRODUCTS.items():
        wanted = (factor, factor, total, total)
        sizes = [
            (one.MSize, one.NSize, one.KSize)
            for one in listed
            if (one.AType, one.BType, one.CType, one.ResultType) == wanted
            and one.scope == c.VK_SCOPE_SUBGROUP_KHR
            and not one.saturatingAccumulation
        ]
        usable = [size for size in sizes if size[0] in _SIDES and size[1] in _SIDES and size[2] in _DEPTHS]
        if usable and getattr(features.vulkan12, feature):
            found.append("x".join(map(str, (dtype, *max(usable)))))
    return tuple(found)


def _capabilities(features: _Features, core: Any, vulkan11: Any, vulkan12: Any) -> Capabilities:
    limits = core.limits
    in_compute = vulkan11.subgroupSupportedStages & c.VK_SHADER_STAGE_COMPUTE_BIT
    operations = vulkan11.subgroupSupportedOperations if in_compute else 0
    turned_on: dict[str, Any] = {
        capability: bool(getattr(getattr(features, part), feature))
        for part, names in FEATURES.items()
        for capability, feature in names.items()
    }
    float_controls: dict[str, Any] = {
        capability: tuple(width for width in (16, 32, 64) if getattr(vulkan12, f"{prefix}{width}"))
        for capability, prefix in _FLOAT_CONTROLS.items()
    }
    is_gpu_of = {_NVIDIA: True, _AMD: c.VK_PHYSICAL_DEVICE_TYPES[core.deviceType] == "discrete GPU"}
    return Capabilities(
        **turned_on,
        **float_controls,
        subgroup_size=vulkan11.subgroupSize,
        subgroup=tuple(name for name, bit in c.VK_SUBGROUP_FEATURES.items() if operations & bit),
        max_threads=limits.maxComputeWorkGroupInvocations,
        max_group_size=tuple(limits.maxComputeWorkGroupSize),
        max_shared_bytes=limits.maxComputeSharedMemorySize,
        max_push_bytes=limits.maxPushConstantsSize,
        max_buffers=min(
            limits.maxPerStageDescriptorStorageBuffers, limits.maxDescriptorSetStorageBuffers, limits.maxPerStageResources
        ),
        lookback=is_gpu_of.get(core.vendorID, False),
    )
