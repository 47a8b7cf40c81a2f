"""Vulkan's loader library and its one instance: open them at first use, report their errors, and refuse them after a fork."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from tvmdml.errors import DeviceError, NoDevice
from tvmdml.targets.vulkan import structures as c

_LIBRARIES = {
    "win32": ("vulkan-1.dll",),
    "darwin": ("libvulkan.dylib", "libvulkan.1.dylib", "libMoltenVK.dylib"),
}.get(sys.platform, ("libvulkan.so.1", "libvulkan.so"))
# How to install Vulkan's loader, and how to install a driver for it.
_GET_LOADER, _GET_DRIVER = {
    "win32": ("It comes with the graphics driver: update that.",) * 2,
    "darwin": ("Homebrew: brew install vulkan-loader molten-vk.", "Homebrew: brew install molten-vk."),
}.get(
    sys.platform,
    (
        "Install it (Debian, Ubuntu: apt-get install libvulkan1, and the GPU vendor's driver or mesa-vulkan-drivers).",
        "Install your GPU vendor's driver, or Mesa's, which also runs on the CPU "
        "(Debian, Ubuntu: apt-get install mesa-vulkan-drivers).",
    ),
)
_CHOOSING = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_LOADER_DRIVERS_SELECT", "VK_LOADER_DRIVERS_DISABLE")
"""Environment variables that choose the loader's drivers."""
_ADVICE = {
    c.VK_ERROR_OUT_OF_HOST_MEMORY: "The host has no memory left: free some, and try again.",
    c.VK_ERROR_OUT_OF_DEVICE_MEMORY: "The device has no memory left: drop arrays, or work in smaller parts.",
    c.VK_ERROR_DEVICE_LOST: "Work on it failed or took too long, and its memory is lost: load the arrays again.",
    c.VK_ERROR_TOO_MANY_OBJECTS: "Drop arrays that are no longer needed.",
}
_VALIDATION_LAYER = b"VK_LAYER_KHRONOS_validation"
_DEBUG_UTILS = b"VK_EXT_debug_utils"
_PORTABILITY = b"VK_KHR_portability_enumeration"

FORKED = "this process was forked after Vulkan was started, which no driver survives; start processes with spawn"

validation_messages: list[str] = []
"""Errors and warnings of the validation layer, which ``TVMDML_VULKAN_VALIDATION=1`` turns on. They go to stderr as well."""
_shown: set[str] = set()


class OutOfMemory(DeviceError):
    """Memory, or a limited kind of driver object, ran out; ``why`` says which, in a few words."""

    def __init__(self, text: str, why: str = "") -> None:
        super().__init__(text)
        self.why = why or text


_NO_MEMORY = (c.VK_ERROR_OUT_OF_HOST_MEMORY, c.VK_ERROR_OUT_OF_DEVICE_MEMORY, c.VK_ERROR_TOO_MANY_OBJECTS)

_lock = threading.RLock()
_instance: Instance | None = None
_started = False
_forked = False
_LIBC = ctypes.CDLL(None)


class Instance:
    """The process's Vulkan instance, with the functions that need no device."""

    def __init__(self) -> None:
        get_address, entry = _entry()
        version = ctypes.c_uint32()
        if entry.vkEnumerateInstanceVersion is None or entry.vkEnumerateInstanceVersion(ctypes.byref(version)) < 0:
            version.value = 1 << 22
        if version.value < c.VK_API_VERSION_1_2:
            raise DeviceError(f"Vulkan's loader has version {version_text(version.value)}; 1.2 is needed. {_GET_LOADER}")

        self.validating = os.environ.get("TVMDML_VULKAN_VALIDATION", "") not in ("", "0")
        extensions: list[bytes] = []
        layers: list[bytes] = []
        chained: Any = None
        here = {e.extensionName for e in enumerate_all(c.VkExtensionProperties, entry.vkEnumerateInstanceExtensionProperties, None)}
        if _PORTABILITY in here:
            extensions.append(_PORTABILITY)
        if self.validating:
            if not has_validation_layer():
                raise DeviceError(
                    "TVMDML_VULKAN_VALIDATION: the layer VK_LAYER_KHRONOS_validation is not installed. "
                    "Debian: apt-get install vulkan-validationlayers."
                )
            layers.append(_VALIDATION_LAYER)
            extensions.append(_DEBUG_UTILS)
            chained = _messenger_info()
        info = c.VkInstanceCreateInfo(
            pNext=chained,
            flags=c.VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR if _PORTABILITY in here else 0,
            pApplicationInfo=c.VkApplicationInfo(pEngineName=text("tvmdml"), apiVersion=c.VK_API_VERSION_1_2),
            enabledLayerCount=len(layers),
            ppEnabledLayerNames=texts(layers),
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=texts(extensions),
        )
        created = ctypes.c_void_p()
        result = entry.vkCreateInstance(ctypes.byref(info), None, ctypes.byref(created))
        if result < 0:
            raise no_driver(c.RESULTS.get(result, str(result)))
        self.handle = created.value
        wanted = c.INSTANCE_FUNCTIONS | (c.DEBUG_FUNCTIONS if self.validating else {})
        self.vk = functions(wanted, lambda name: get_address(self.handle, name))
        self._messenger = ctypes.c_uint64()
        if self.validating:
            result = self.vk.vkCreateDebugUtilsMessengerEXT(self.handle, ctypes.byref(chained), None, ctypes.byref(self._messenger))
            check(result, "vkCreateDebugUtilsMessengerEXT")

    def physical_devices(self) -> list[int]:
        """The handles of the drivers' devices."""
        return list(enumerate_all(ctypes.c_void_p, self.vk.vkEnumeratePhysicalDevices, self.handle))

    def close(self) -> None:
        """Destroy the instance; nothing created from it may be left."""
        if self.validating:
            self.vk.vkDestroyDebugUtilsMessengerEXT(self.handle, self._messenger, None)
        self.vk.vkDestroyInstance(self.handle, None)


def instance() -> Instance:
    """The process's instance.

    Raises:
        DeviceError: there is no loader or no driver, or the process was forked from one that uses Vulkan.
    """
    global _instance, _started
    refuse_after_fork()
    with _lock:
        if _instance is None:
            _instance = Instance()
            _started = True
        return _instance


def close() -> None:
    """Destroy the instance, if this process has one."""
    global _instance
    with _lock:
        if _instance is not None and not _forked:
            _instance.close()
            _instance = None


def is_forked() -> bool:
    """Whether this process was forked from one that used Vulkan."""
    return _forked


def refuse_after_fork() -> None:
    """Raise ``DeviceError`` in a process that was forked after Vulkan was started."""
    if _forked:
        raise DeviceError(f"vulkan: {FORKED}")


def has_validation_layer() -> bool:
    """Whether Khronos's validation layer is installed."""
    _, entry = _entry()
    layers = enumerate_all(c.VkLayerProperties, entry.vkEnumerateInstanceLayerProperties)
    return _VALIDATION_LAYER in {layer.layerName for layer in layers}


def no_driver(found: str) -> NoDevice:
    """The exception for a loader without drivers."""
    chosen = "".join(f" {name} is set to {value!r}." for name in _CHOOSING if (value := os.environ.get(name)))
    return NoDevice(f"Vulkan's loader is installed but found no working driver ({found}). {_GET_DRIVER}{chosen}")


def failure(call: str, result: int, device: str = "") -> DeviceError:
    """The exception for a negative VkResult."""
    advice = _ADVICE.get(result, "`vulkaninfo --summary` shows whether the driver works at all.")
    what = f"{call} failed: {c.RESULTS.get(result, f'VkResult {result}')}"
    text = f"{device}: {what}. {advice}" if device else f"{what}. {advice}"
    return OutOfMemory(text, what) if result in _NO_MEMORY else DeviceError(text)


def check(result: int, call: str) -> int:
    """Return a VkResult that is a success, otherwise raise."""
    if result < 0:
        raise failure(call, result)
    return result


def functions(table: dict[str, Any], get_address: Any, keep_interpreter: bool = False) -> Any:
    """Vulkan's functions as attributes; ``None`` for one that does not exist.

    Args:
        table: prototypes by name.
        get_address: called with a name, as bytes.
        keep_interpreter: whether calls keep Python's interpreter lock: faster, for functions that return at once.
    """
    prototype = ctypes.PYFUNCTYPE if keep_interpreter else ctypes.CFUNCTYPE
    found = SimpleNamespace()
    for name, (result, *arguments) in table.items():
        address = get_address(name.encode())
        function = prototype(result, *arguments)(address) if address else None
        if function is not None:
            function.__name__ = name  # type: ignore[attr-defined]
        setattr(found, name, function)
    return found


def enumerate_all(kind: Any, function: Any, *arguments: Any) -> Any:
    """The array filled by a Vulkan function of the form (…, count, array)."""
    while True:
        count = ctypes.c_uint32()
        check(function(*arguments, ctypes.byref(count), None) or 0, function.__name__)
        found = (kind * count.value)()
        for one in found if getattr(kind, "_type", -1) >= 0 else ():
            one.sType = kind._type
        if (function(*arguments, ctypes.byref(count), found) or 0) != c.VK_INCOMPLETE:  # there are more now
            return found[: count.value]


def text(value: str) -> Any:
    """A string as a value for a structure's field."""
    return ctypes.create_string_buffer(value.encode())


def texts(values: list[bytes]) -> Any:
    """Strings as a value for a structure's field."""
    return (ctypes.c_char_p * len(values))(*values)


def version_text(version: int) -> str:
    """A Vulkan version number as text."""
    return f"{version >> 22 & 0x7F}.{version >> 12 & 0x3FF}.{version & 0xFFF}"


def _entry() -> tuple[Any, Any]:
    """The function that gives functions' addresses, and the functions that need no instance."""
    get_address = _library().vkGetInstanceProcAddr
    get_address.restype, get_address.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)
    return get_address, functions(c.GLOBAL_FUNCTIONS, lambda name: get_address(None, name))


def _library() -> ctypes.CDLL:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise NoDevice(f"{_LIBRARIES[0]} was not found: Vulkan is not installed. {_GET_LOADER}")


def _messenger_info() -> Any:
    return c.VkDebugUtilsMessengerCreateInfoEXT(
        messageSeverity=c.VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT | c.VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
        messageType=c.VK_DEBUG_UTILS_MESSAGE_TYPE_GENERAL_BIT_EXT | c.VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
        pfnUserCallback=ctypes.cast(_take_message, ctypes.c_void_p).value,
    )


def _note_message(_severity: int, _kind: int, data: int, _user: int) -> int:
    message = c.VkDebugUtilsMessengerCallbackDataEXT.from_address(data).pMessage.decode(errors="replace")
    validation_messages.append(message)
    if message not in _shown:
        _shown.add(message)
        with suppress(AttributeError, OSError, ValueError):  # stderr may be absent or closed
            sys.stderr.write(f"tvmdml: Vulkan validation: {message}\n")
    return 0


_take_message = c.MessengerCallback(_note_message)


def _after_fork() -> None:
    global _forked, _lock
    _lock = threading.RLock()  # another thread may have held it
    _forked = _started
    if _forked and hasattr(_LIBC, "on_exit"):
        # Mesa's drivers wait, when a process ends, for threads that are not in the child: with glibc 2.43 forever. So none of the
        # exit functions that are there now is called: the last one to be added is the first one to run.
        _LIBC.on_exit(_LIBC._exit, None)
        _LIBC.on_exit(_LIBC.fcloseall, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
