"""The parts of Vulkan's C interface that are used: structures, enumerants and prototypes, named as in ``vulkan_core.h``.

Structures are filled by keyword: ``sType`` is filled automatically, fields that are not given are zero, and a pointer field takes
the structure or array that it points to and keeps it alive. ``_skipped`` stands for fields that are never read here.
"""

from __future__ import annotations

import ctypes
from typing import Any

u8, u32, i32, u64, f32 = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64, ctypes.c_float
size_t = ctypes.c_size_t
pointer = ctypes.c_void_p
"""A pointer, or a dispatchable handle: instance, physical device, device, queue, command buffer."""
handle = u64
"""Any other handle."""


class _Structure(ctypes.Structure):
    _pointers: frozenset[str] = frozenset()
    _type = 0

    def __init__(self, **fields: Any) -> None:
        kept = {name: value for name, value in fields.items() if name in self._pointers and not isinstance(value, int | None)}
        super().__init__(**fields | {name: ctypes.addressof(value) for name, value in kept.items()})
        self._kept = tuple(kept.values())
        if self._type >= 0:
            self.sType = self._type


def _plain(name: str, **fields: Any) -> Any:
    """A structure that is only a part of others."""
    return type(name, (_Structure,), {"_fields_": tuple(fields.items()), "_pointers": _pointers(fields), "_type": -1})


def _chained(s_type: int, name: str, **fields: Any) -> Any:
    """A structure that begins with ``sType`` and ``pNext``."""
    fields = {"sType": u32, "pNext": pointer, **fields}
    return type(name, (_Structure,), {"_fields_": tuple(fields.items()), "_pointers": _pointers(fields), "_type": s_type})


def _pointers(fields: dict[str, Any]) -> frozenset[str]:
    return frozenset(name for name, kind in fields.items() if kind is pointer)


def _all(kind: Any, names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), kind)


# fmt: off

# Instance and devices

VkApplicationInfo = _chained(
    0, "VkApplicationInfo",
    pApplicationName=pointer, applicationVersion=u32, pEngineName=pointer, engineVersion=u32, apiVersion=u32,
)
VkInstanceCreateInfo = _chained(
    1, "VkInstanceCreateInfo",
    flags=u32, pApplicationInfo=pointer,
    enabledLayerCount=u32, ppEnabledLayerNames=pointer, enabledExtensionCount=u32, ppEnabledExtensionNames=pointer,
)
VkExtensionProperties = _plain("VkExtensionProperties", extensionName=ctypes.c_char * 256, specVersion=u32)
VkLayerProperties = _plain(
    "VkLayerProperties",
    layerName=ctypes.c_char * 256, specVersion=u32, implementationVersion=u32, description=ctypes.c_char * 256,
)
VkDebugUtilsMessengerCreateInfoEXT = _chained(
    1000128004, "VkDebugUtilsMessengerCreateInfoEXT",
    flags=u32, messageSeverity=u32, messageType=u32, pfnUserCallback=pointer, pUserData=pointer,
)
VkDebugUtilsMessengerCallbackDataEXT = _chained(
    1000128003, "VkDebugUtilsMessengerCallbackDataEXT",
    flags=u32, pMessageIdName=ctypes.c_char_p, messageIdNumber=i32, pMessage=ctypes.c_char_p,
    queueLabelCount=u32, pQueueLabels=pointer, cmdBufLabelCount=u32, pCmdBufLabels=pointer, objectCount=u32, pObjects=pointer,
)
MessengerCallback = ctypes.CFUNCTYPE(u32, u32, u32, pointer, pointer)

VkPhysicalDeviceLimits = _plain(
    "VkPhysicalDeviceLimits",
    _skipped0=u32 * 7, maxStorageBufferRange=u32, maxPushConstantsSize=u32, maxMemoryAllocationCount=u32,
    _skipped1=u32, _skipped2=u64 * 2, _skipped3=u32 * 3, maxPerStageDescriptorStorageBuffers=u32,
    _skipped4=u32 * 3, maxPerStageResources=u32, _skipped5=u32 * 3, maxDescriptorSetStorageBuffers=u32, _skipped6=u32 * 26,
    maxComputeSharedMemorySize=u32, maxComputeWorkGroupCount=u32 * 3, maxComputeWorkGroupInvocations=u32,
    maxComputeWorkGroupSize=u32 * 3,
    _skipped7=u32 * 13, _skipped8=size_t, _skipped9=u64 * 2, minStorageBufferOffsetAlignment=u64,
    _skipped10=u32 * 22, timestampPeriod=f32, _skipped11=u32 * 12, _skipped12=u64 * 3,
)
VkPhysicalDeviceProperties = _plain(
    "VkPhysicalDeviceProperties",
    apiVersion=u32, driverVersion=u32, vendorID=u32, deviceID=u32, deviceType=u32, deviceName=ctypes.c_char * 256,
    pipelineCacheUUID=u8 * 16, limits=VkPhysicalDeviceLimits, _skipped=u32 * 5,
)
VkPhysicalDeviceProperties2 = _chained(1000059001, "VkPhysicalDeviceProperties2", properties=VkPhysicalDeviceProperties)
VkPhysicalDeviceVulkan11Properties = _chained(
    50, "VkPhysicalDeviceVulkan11Properties",
    _skipped0=u8 * 40, _skipped1=u32 * 2, subgroupSize=u32, subgroupSupportedStages=u32, subgroupSupportedOperations=u32,
    _skipped2=u32 * 6, maxMemoryAllocationSize=u64,
)
VkPhysicalDeviceVulkan12Properties = _chained(
    52, "VkPhysicalDeviceVulkan12Properties",
    driverID=u32, driverName=ctypes.c_char * 256, driverInfo=ctypes.c_char * 256, _skipped0=u32 * 3,
    **_all(u32, """
        shaderSignedZeroInfNanPreserveFloat16 shaderSignedZeroInfNanPreserveFloat32 shaderSignedZeroInfNanPreserveFloat64
        shaderDenormPreserveFloat16 shaderDenormPreserveFloat32 shaderDenormPreserveFloat64
        shaderDenormFlushToZeroFloat16 shaderDenormFlushToZeroFloat32 shaderDenormFlushToZeroFloat64
        shaderRoundingModeRTEFloat16 shaderRoundingModeRTEFloat32 shaderRoundingModeRTEFloat64
    """),
    _skipped1=u32 * 32, _skipped2=u64, _skipped3=u32,
)
VkPhysicalDeviceFeatures = _plain(
    "VkPhysicalDeviceFeatures", _skipped0=u32 * 39, shaderFloat64=u32, shaderInt64=u32, shaderInt16=u32, _skipped1=u32 * 13,
)
VkPhysicalDeviceFeatures2 = _chained(1000059000, "VkPhysicalDeviceFeatures2", features=VkPhysicalDeviceFeatures)
VkPhysicalDeviceVulkan11Features = _chained(
    49, "VkPhysicalDeviceVulkan11Features", storageBuffer16BitAccess=u32, _skipped=u32 * 11,
)
VkPhysicalDeviceVulkan12Features = _chained(
    51, "VkPhysicalDeviceVulkan12Features",
    _skipped0=u32 * 2, storageBuffer8BitAccess=u32, _skipped1=u32 * 2,
    shaderBufferInt64Atomics=u32, shaderSharedInt64Atomics=u32, shaderFloat16=u32, shaderInt8=u32,
    _skipped2=u32 * 25, shaderSubgroupExtendedTypes=u32, _skipped3=u32 * 2, timelineSemaphore=u32,
    _skipped4=u32 * 3, vulkanMemoryModel=u32, _skipped5=u32 * 5,
)
VkPhysicalDeviceCooperativeMatrixFeaturesKHR = _chained(
    1000506000, "VkPhysicalDeviceCooperativeMatrixFeaturesKHR", cooperativeMatrix=u32, _skipped=u32,
)
VkCooperativeMatrixPropertiesKHR = _chained(
    1000506001, "VkCooperativeMatrixPropertiesKHR",
    **_all(u32, "MSize NSize KSize AType BType CType ResultType saturatingAccumulation scope"),
)
VkQueueFamilyProperties = _plain(
    "VkQueueFamilyProperties", queueFlags=u32, queueCount=u32, timestampValidBits=u32, minImageTransferGranularity=u32 * 3,
)
VkMemoryType = _plain("VkMemoryType", propertyFlags=u32, heapIndex=u32)
VkMemoryHeap = _plain("VkMemoryHeap", size=u64, flags=u32)
VkPhysicalDeviceMemoryProperties = _plain(
    "VkPhysicalDeviceMemoryProperties",
    memoryTypeCount=u32, memoryTypes=VkMemoryType * 32, memoryHeapCount=u32, memoryHeaps=VkMemoryHeap * 16,
)
VkDeviceQueueCreateInfo = _chained(
    2, "VkDeviceQueueCreateInfo", flags=u32, queueFamilyIndex=u32, queueCount=u32, pQueuePriorities=pointer,
)
VkDeviceCreateInfo = _chained(
    3, "VkDeviceCreateInfo",
    flags=u32, queueCreateInfoCount=u32, pQueueCreateInfos=pointer, enabledLayerCount=u32, ppEnabledLayerNames=pointer,
    enabledExtensionCount=u32, ppEnabledExtensionNames=pointer, pEnabledFeatures=pointer,
)

VK_API_VERSION_1_2 = 1 << 22 | 2 << 12
VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR = 1
VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT = 0x100
VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT = 0x1000
VK_DEBUG_UTILS_MESSAGE_TYPE_GENERAL_BIT_EXT = 1
VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT = 2
VK_QUEUE_COMPUTE_BIT = 2
VK_SHADER_STAGE_COMPUTE_BIT = 0x20
VK_COMPONENT_TYPE_FLOAT16_KHR = 0
VK_COMPONENT_TYPE_FLOAT32_KHR = 1
VK_COMPONENT_TYPE_SINT8_KHR = 3
VK_COMPONENT_TYPE_SINT32_KHR = 5
VK_SCOPE_SUBGROUP_KHR = 3
VK_SUBGROUP_FEATURES = {"basic": 1, "vote": 2, "arithmetic": 4, "ballot": 8, "shuffle": 16, "shuffle_relative": 32}
VK_PHYSICAL_DEVICE_TYPES = ("other", "integrated GPU", "discrete GPU", "virtual GPU", "CPU")

# Memory

VkMemoryRequirements = _plain("VkMemoryRequirements", size=u64, alignment=u64, memoryTypeBits=u32)
VkBufferCreateInfo = _chained(
    12, "VkBufferCreateInfo",
    flags=u32, size=u64, usage=u32, sharingMode=u32, queueFamilyIndexCount=u32, pQueueFamilyIndices=pointer,
)
VkMemoryAllocateInfo = _chained(5, "VkMemoryAllocateInfo", allocationSize=u64, memoryTypeIndex=u32)
VkBufferCopy = _plain("VkBufferCopy", srcOffset=u64, dstOffset=u64, size=u64)

VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT = 1
VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT = 2
VK_MEMORY_PROPERTY_HOST_COHERENT_BIT = 4
VK_MEMORY_PROPERTY_HOST_CACHED_BIT = 8
VK_BUFFER_USAGE_TRANSFER_SRC_BIT = 1
VK_BUFFER_USAGE_TRANSFER_DST_BIT = 2
VK_BUFFER_USAGE_STORAGE_BUFFER_BIT = 0x20
VK_WHOLE_SIZE = (1 << 64) - 1

# Pipelines and their bindings

VkShaderModuleCreateInfo = _chained(16, "VkShaderModuleCreateInfo", flags=u32, codeSize=size_t, pCode=pointer)
VkPipelineShaderStageCreateInfo = _chained(
    18, "VkPipelineShaderStageCreateInfo", flags=u32, stage=u32, module=handle, pName=pointer, pSpecializationInfo=pointer,
)
VkComputePipelineCreateInfo = _chained(
    29, "VkComputePipelineCreateInfo",
    flags=u32, stage=VkPipelineShaderStageCreateInfo, layout=handle, basePipelineHandle=handle, basePipelineIndex=i32,
)
VkPushConstantRange = _plain("VkPushConstantRange", stageFlags=u32, offset=u32, size=u32)
VkPipelineLayoutCreateInfo = _chained(
    30, "VkPipelineLayoutCreateInfo",
    flags=u32, setLayoutCount=u32, pSetLayouts=pointer, pushConstantRangeCount=u32, pPushConstantRanges=pointer,
)
VkPipelineCacheCreateInfo = _chained(
    17, "VkPipelineCacheCreateInfo", flags=u32, initialDataSize=size_t, pInitialData=pointer,
)
VkDescriptorSetLayoutBinding = _plain(
    "VkDescriptorSetLayoutBinding",
    binding=u32, descriptorType=u32, descriptorCount=u32, stageFlags=u32, pImmutableSamplers=pointer,
)
VkDescriptorSetLayoutCreateInfo = _chained(
    32, "VkDescriptorSetLayoutCreateInfo", flags=u32, bindingCount=u32, pBindings=pointer,
)
VkDescriptorPoolSize = _plain("VkDescriptorPoolSize", type=u32, descriptorCount=u32)
VkDescriptorPoolCreateInfo = _chained(
    33, "VkDescriptorPoolCreateInfo", flags=u32, maxSets=u32, poolSizeCount=u32, pPoolSizes=pointer,
)
VkDescriptorSetAllocateInfo = _chained(
    34, "VkDescriptorSetAllocateInfo", descriptorPool=handle, descriptorSetCount=u32, pSetLayouts=pointer,
)
VkDescriptorBufferInfo = _plain("VkDescriptorBufferInfo", buffer=handle, offset=u64, range=u64)
VkWriteDescriptorSet = _chained(
    35, "VkWriteDescriptorSet",
    dstSet=handle, dstBinding=u32, dstArrayElement=u32, descriptorCount=u32, descriptorType=u32,
    pImageInfo=pointer, pBufferInfo=pointer, pTexelBufferView=pointer,
)

VK_PIPELINE_CREATE_DISPATCH_BASE_BIT = 0x10
VK_PIPELINE_BIND_POINT_COMPUTE = 1
VK_DESCRIPTOR_TYPE_STORAGE_BUFFER = 7

# Commands, the queue, time

VkCommandPoolCreateInfo = _chained(39, "VkCommandPoolCreateInfo", flags=u32, queueFamilyIndex=u32)
VkCommandBufferAllocateInfo = _chained(
    40, "VkCommandBufferAllocateInfo", commandPool=handle, level=u32, commandBufferCount=u32,
)
VkCommandBufferInheritanceInfo = _chained(
    41, "VkCommandBufferInheritanceInfo",
    renderPass=handle, subpass=u32, framebuffer=handle, occlusionQueryEnable=u32, queryFlags=u32, pipelineStatistics=u32,
)
VkCommandBufferBeginInfo = _chained(42, "VkCommandBufferBeginInfo", flags=u32, pInheritanceInfo=pointer)
VkMemoryBarrier = _chained(46, "VkMemoryBarrier", srcAccessMask=u32, dstAccessMask=u32)
VkSemaphoreCreateInfo = _chained(9, "VkSemaphoreCreateInfo", flags=u32)
VkSemaphoreTypeCreateInfo = _chained(1000207002, "VkSemaphoreTypeCreateInfo", semaphoreType=u32, initialValue=u64)
VkSemaphoreWaitInfo = _chained(
    1000207004, "VkSemaphoreWaitInfo", flags=u32, semaphoreCount=u32, pSemaphores=pointer, pValues=pointer,
)
VkTimelineSemaphoreSubmitInfo = _chained(
    1000207003, "VkTimelineSemaphoreSubmitInfo",
    waitSemaphoreValueCount=u32, pWaitSemaphoreValues=pointer, signalSemaphoreValueCount=u32, pSignalSemaphoreValues=pointer,
)
VkSubmitInfo = _chained(
    4, "VkSubmitInfo",
    waitSemaphoreCount=u32, pWaitSemaphores=pointer, pWaitDstStageMask=pointer,
    commandBufferCount=u32, pCommandBuffers=pointer, signalSemaphoreCount=u32, pSignalSemaphores=pointer,
)
VkQueryPoolCreateInfo = _chained(
    11, "VkQueryPoolCreateInfo", flags=u32, queryType=u32, queryCount=u32, pipelineStatistics=u32,
)

VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT = 2
VK_COMMAND_BUFFER_LEVEL_PRIMARY = 0
VK_COMMAND_BUFFER_LEVEL_SECONDARY = 1
VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT = 1
VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT = 4
VK_SEMAPHORE_TYPE_TIMELINE = 1
VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT = 0x800
VK_PIPELINE_STAGE_TRANSFER_BIT = 0x1000
VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT = 0x2000
VK_PIPELINE_STAGE_HOST_BIT = 0x4000
VK_ACCESS_SHADER_READ_BIT = 0x20
VK_ACCESS_SHADER_WRITE_BIT = 0x40
VK_ACCESS_TRANSFER_READ_BIT = 0x800
VK_ACCESS_TRANSFER_WRITE_BIT = 0x1000
VK_ACCESS_HOST_READ_BIT = 0x2000
VK_QUERY_TYPE_TIMESTAMP = 2
VK_QUERY_RESULT_64_BIT = 1

# Results

VK_NOT_READY = 1
VK_TIMEOUT = 2
VK_INCOMPLETE = 5
VK_ERROR_OUT_OF_HOST_MEMORY = -1
VK_ERROR_OUT_OF_DEVICE_MEMORY = -2
VK_ERROR_DEVICE_LOST = -4
VK_ERROR_TOO_MANY_OBJECTS = -10
RESULTS = {
    VK_ERROR_OUT_OF_HOST_MEMORY: "VK_ERROR_OUT_OF_HOST_MEMORY",
    VK_ERROR_OUT_OF_DEVICE_MEMORY: "VK_ERROR_OUT_OF_DEVICE_MEMORY",
    -3: "VK_ERROR_INITIALIZATION_FAILED",
    VK_ERROR_DEVICE_LOST: "VK_ERROR_DEVICE_LOST",
    -5: "VK_ERROR_MEMORY_MAP_FAILED",
    -6: "VK_ERROR_LAYER_NOT_PRESENT",
    -7: "VK_ERROR_EXTENSION_NOT_PRESENT",
    -8: "VK_ERROR_FEATURE_NOT_PRESENT",
    -9: "VK_ERROR_INCOMPATIBLE_DRIVER",
    VK_ERROR_TOO_MANY_OBJECTS: "VK_ERROR_TOO_MANY_OBJECTS",
    -12: "VK_ERROR_FRAGMENTED_POOL",
    -13: "VK_ERROR_UNKNOWN",
    -1000012000: "VK_ERROR_INVALID_SHADER_NV",
    -1000069000: "VK_ERROR_OUT_OF_POOL_MEMORY",
    -1000161000: "VK_ERROR_FRAGMENTATION",
}

# Prototypes: the result, then the arguments. ``i32`` is a VkResult; None in its place means that the call cannot fail.

GLOBAL_FUNCTIONS = {
    "vkEnumerateInstanceVersion": (i32, pointer),
    "vkEnumerateInstanceExtensionProperties": (i32, pointer, pointer, pointer),
    "vkEnumerateInstanceLayerProperties": (i32, pointer, pointer),
    "vkCreateInstance": (i32, pointer, pointer, pointer),
}
INSTANCE_FUNCTIONS = {
    "vkDestroyInstance": (None, pointer, pointer),
    "vkEnumeratePhysicalDevices": (i32, pointer, pointer, pointer),
    "vkGetPhysicalDeviceProperties": (None, pointer, pointer),
    "vkGetPhysicalDeviceProperties2": (None, pointer, pointer),
    "vkGetPhysicalDeviceFeatures2": (None, pointer, pointer),
    "vkGetPhysicalDeviceQueueFamilyProperties": (None, pointer, pointer, pointer),
    "vkGetPhysicalDeviceMemoryProperties": (None, pointer, pointer),
    "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR": (i32, pointer, pointer, pointer),
    "vkEnumerateDeviceExtensionProperties": (i32, pointer, pointer, pointer, pointer),
    "vkCreateDevice": (i32, pointer, pointer, pointer, pointer),
    "vkGetDeviceProcAddr": (pointer, pointer, ctypes.c_char_p),
}
DEBUG_FUNCTIONS = {
    "vkCreateDebugUtilsMessengerEXT": (i32, pointer, pointer, pointer, pointer),
    "vkDestroyDebugUtilsMessengerEXT": (None, pointer, handle, pointer),
}
_CREATE = (i32, pointer, pointer, pointer, pointer)
_DESTROY = (None, pointer, handle, pointer)
DEVICE_FUNCTIONS = {
    "vkDestroyDevice": (None, pointer, pointer),
    "vkDeviceWaitIdle": (i32, pointer),
    "vkGetDeviceQueue": (None, pointer, u32, u32, pointer),
    "vkCreateBuffer": _CREATE,
    "vkDestroyBuffer": _DESTROY,
    "vkGetBufferMemoryRequirements": (None, pointer, handle, pointer),
    "vkAllocateMemory": _CREATE,
    "vkFreeMemory": _DESTROY,
    "vkBindBufferMemory": (i32, pointer, handle, handle, u64),
    "vkMapMemory": (i32, pointer, handle, u64, u64, u32, pointer),
    "vkCreateShaderModule": _CREATE,
    "vkDestroyShaderModule": _DESTROY,
    "vkCreatePipelineLayout": _CREATE,
    "vkDestroyPipelineLayout": _DESTROY,
    "vkCreatePipelineCache": _CREATE,
    "vkDestroyPipelineCache": _DESTROY,
    "vkGetPipelineCacheData": (i32, pointer, handle, pointer, pointer),
    "vkCreateComputePipelines": (i32, pointer, handle, u32, pointer, pointer, pointer),
    "vkDestroyPipeline": _DESTROY,
    "vkCreateDescriptorSetLayout": _CREATE,
    "vkDestroyDescriptorSetLayout": _DESTROY,
    "vkCreateDescriptorPool": _CREATE,
    "vkDestroyDescriptorPool": _DESTROY,
    "vkAllocateDescriptorSets": (i32, pointer, pointer, pointer),
    "vkUpdateDescriptorSets": (None, pointer, u32, pointer, u32, pointer),
    "vkCreateCommandPool": _CREATE,
    "vkDestroyCommandPool": _DESTROY,
    "vkAllocateCommandBuffers": (i32, pointer, pointer, pointer),
    "vkFreeCommandBuffers": (None, pointer, handle, u32, pointer),
    "vkCreateSemaphore": _CREATE,
    "vkDestroySemaphore": _DESTROY,
    "vkWaitSemaphores": (i32, pointer, pointer, u64),
    "vkQueueSubmit": (i32, pointer, u32, pointer, handle),
    "vkCreateQueryPool": _CREATE,
    "vkDestroyQueryPool": _DESTROY,
    "vkGetQueryPoolResults": (i32, pointer, handle, u32, u32, size_t, pointer, u64, u32),
}
RECORDING_FUNCTIONS = {
    "vkBeginCommandBuffer": (i32, pointer, pointer),
    "vkEndCommandBuffer": (i32, pointer),
    "vkGetSemaphoreCounterValue": (i32, pointer, handle, pointer),
    "vkCmdBindPipeline": (None, pointer, u32, handle),
    "vkCmdBindDescriptorSets": (None, pointer, u32, handle, u32, u32, pointer, u32, pointer),
    "vkCmdPushConstants": (None, pointer, handle, u32, u32, u32, pointer),
    "vkCmdDispatch": (None, pointer, u32, u32, u32),
    "vkCmdDispatchBase": (None, pointer, u32, u32, u32, u32, u32, u32),
    "vkCmdPipelineBarrier": (None, pointer, u32, u32, u32, u32, pointer, u32, pointer, u32, pointer),
    "vkCmdCopyBuffer": (None, pointer, handle, handle, u32, pointer),
    "vkCmdUpdateBuffer": (None, pointer, handle, u64, u64, pointer),
    "vkCmdFillBuffer": (None, pointer, handle, u64, u64, u32),
    "vkCmdExecuteCommands": (None, pointer, u32, pointer),
    "vkCmdResetQueryPool": (None, pointer, handle, u32, u32),
    "vkCmdWriteTimestamp": (None, pointer, u32, handle, u32),
}
"""Calls that only record something. They return at once, so they keep Python's interpreter lock."""

# fmt: on
