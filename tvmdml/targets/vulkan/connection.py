"""``Connection``: an opened device, as the rest of the driver layer uses it, with all objects created on it."""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

from tvmdml.errors import DeviceError
from tvmdml.targets.vulkan import structures as c
from tvmdml.targets.vulkan.loader import Instance, enumerate_all, failure, functions, texts
from tvmdml.targets.vulkan.physical import COOPERATIVE_MATRIX, Physical, enabled_features

_PORTABILITY = b"VK_KHR_portability_subset"


class Owner(Protocol):
    """The opened device that memory or a pipeline belongs to, as those see it."""

    @property
    def connection(self) -> Connection:
        """Its connection."""

    @property
    def lost(self) -> bool:
        """Whether it is unusable."""


class Connection:
    """A ``VkDevice`` with its functions.

    Attributes:
        fault: why the device is unusable; empty if it is usable.
        lost: whether the reason is failed work; ``closed``: whether the device was destroyed.
        vk: the device's functions, by name.
    """

    def __init__(self, instance: Instance, physical: Physical) -> None:
        self.fault = ""
        self.lost = self.closed = False
        self._name = physical.info.name
        self._made: dict[tuple[str, int], None] = {}
        here = enumerate_all(c.VkExtensionProperties, instance.vk.vkEnumerateDeviceExtensionProperties, physical.handle, None)
        extensions = [_PORTABILITY] if any(e.extensionName == _PORTABILITY for e in here) else []
        extensions += [COOPERATIVE_MATRIX] if physical.info.capabilities.matrices else []
        info = c.VkDeviceCreateInfo(
            pNext=enabled_features(physical.info.capabilities),
            queueCreateInfoCount=1,
            pQueueCreateInfos=c.VkDeviceQueueCreateInfo(
                queueFamilyIndex=physical.queue_family, queueCount=1, pQueuePriorities=(ctypes.c_float * 1)(1.0)
            ),
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=texts(extensions),
        )
        created = ctypes.c_void_p()
        result = instance.vk.vkCreateDevice(physical.handle, ctypes.byref(info), None, ctypes.byref(created))
        if result < 0:
            raise failure("vkCreateDevice", result, self._name)
        self.handle = created.value

        def address(name: bytes) -> int:
            return instance.vk.vkGetDeviceProcAddr(self.handle, name)

        self.vk = functions(c.DEVICE_FUNCTIONS, address)
        # The validation layer calls back into Python, which needs the interpreter lock.
        recording = functions(c.RECORDING_FUNCTIONS, address, keep_interpreter=not instance.validating)
        vars(self.vk).update(vars(recording))

    def usable(self) -> None:
        """Raise ``DeviceError`` if the device is unusable."""
        if self.fault:
            raise DeviceError(f"{self._name}: {self.fault}")

    def check(self, result: int, call: str) -> int:
        """Return a VkResult that is a success, otherwise raise. The loss of the device is remembered."""
        if result >= 0:
            return result
        if result == c.VK_ERROR_DEVICE_LOST:
            self.lose(str(failure(call, result)))
        raise failure(call, result, self._name)

    def lose(self, why: str) -> None:
        """Mark the device as lost: from now on every use of it raises, and the next ``open_device`` opens a new one."""
        self.fault = self.fault or why
        self.lost = True

    def call(self, name: str, *arguments: Any) -> int:
        """Call a function that takes the device and returns a VkResult."""
        return self.check(getattr(self.vk, name)(self.handle, *arguments), name)

    def create(self, what: str, info: Any) -> int:
        """Create an object, such as a ``Buffer``; it lives until it is destroyed, or as long as the device."""
        made = ctypes.c_uint64()
        self.call(f"vkCreate{what}", ctypes.byref(info), None, ctypes.byref(made))
        self._made[what, made.value] = None
        return made.value

    def destroy(self, what: str, made: int) -> None:
        """Destroy an object that no pending work uses."""
        del self._made[what, made]
        getattr(self.vk, f"vkDestroy{what}")(self.handle, made, None)

    def allocate(self, info: Any) -> int:
        """Allocate device memory."""
        made = ctypes.c_uint64()
        self.call("vkAllocateMemory", ctypes.byref(info), None, ctypes.byref(made))
        self._made["Memory", made.value] = None
        return made.value

    def free(self, memory: int) -> None:
        """Free device memory."""
        del self._made["Memory", memory]
        self.vk.vkFreeMemory(self.handle, memory, None)

    def adopt(self, what: str, made: int) -> int:
        """Register an object that was created elsewhere."""
        self._made[what, made] = None
        return made

    def close(self) -> None:
        """Destroy all objects in reverse order of creation, and then the device. No work may be pending."""
        self.closed = True
        for what, made in reversed(list(self._made)):
            if what == "Memory":
                self.free(made)
            else:
                self.destroy(what, made)
        self.vk.vkDestroyDevice(self.handle, None)
