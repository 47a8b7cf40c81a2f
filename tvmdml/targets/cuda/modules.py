"""``Module``: a kernel image that the driver has loaded."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from tvmdml.errors import DeviceError
from tvmdml.targets.cuda import header as c
from tvmdml.targets.cuda.context import Context


class Resources(NamedTuple):
    """The resources that a kernel needs, as reported by the driver."""

    max_threads: int
    """The maximum number of threads in a group of this kernel."""
    registers: int
    """Per thread."""
    shared_bytes: int
    local_bytes: int
    """Local memory per thread, for spilled registers."""


class Module:
    """A loaded image; it stays loaded until the process ends.

    Args:
        context: the device's context.
        image: a cubin, or PTX as text, which the driver compiles when loading.
        arch: the device's architecture, for messages.

    Raises:
        DeviceError: the driver rejects it.
    """

    def __init__(self, context: Context, image: bytes, arch: str) -> None:
        self._context, self._cuda = context, context.cuda
        self._functions: dict[str, int] = {}
        made = ctypes.c_void_p()
        if not image:
            raise DeviceError(f"{context.name}: the image of a module is empty")
        with context.entered():  # PTX must end with a zero byte: ctypes passes bytes with one at the end
            code = self._cuda.cuModuleLoadData(ctypes.byref(made), image)
            context.check(code, f"loading a module of {len(image)} bytes", _advice(code, arch))
        self._handle = made

    def function(self, name: str) -> int:
        """The kernel of this name, for launches.

        Raises:
            DeviceError: there is no such kernel.
        """
        found = self._functions.get(name)
        if found is None:
            made = ctypes.c_void_p()
            with self._context.entered():
                code = self._cuda.cuModuleGetFunction(ctypes.byref(made), self._handle, name.encode())
                self._context.check(code, f"finding the function {name!r} in a module")
            found = self._functions[name] = made.value or 0
        return found

    def resources(self, name: str) -> Resources:
        """The resources that a kernel needs."""
        function = self.function(name)
        wanted = (
            c.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
            c.CU_FUNC_ATTRIBUTE_NUM_REGS,
            c.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
            c.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
        )
        values = (ctypes.c_int * len(wanted))()
        with self._context.entered():
            for number, attribute in enumerate(wanted):
                code = self._cuda.cuFuncGetAttribute(ctypes.byref(values, 4 * number), attribute, function)
                self._context.check(code, "cuFuncGetAttribute")
        return Resources(*values)


def _advice(code: int, arch: str) -> str:
    """The advice for a module that the driver rejected."""
    compute = arch.replace("sm_", "compute_")
    own = f"Compile it for this device: a cubin for {arch}, or PTX for {compute} or older."
    return {
        c.CUDA_ERROR_INVALID_IMAGE: f"It is neither a cubin nor PTX. {own}",
        c.CUDA_ERROR_NO_BINARY_FOR_GPU: f"It is for another architecture. {own}",
        c.CUDA_ERROR_INVALID_PTX: f"The driver's compiler rejects it: it is PTX for a newer architecture, or damaged. {own}",
        c.CUDA_ERROR_UNSUPPORTED_PTX_VERSION: (
            f"A CUDA toolkit newer than the driver made it. Update the NVIDIA driver, or compile to a cubin for {arch}."
        ),
        c.CUDA_ERROR_JIT_COMPILER_NOT_FOUND: (
            f"The driver's compiler, libnvidia-ptxjitcompiler, is not installed: install it, or compile to a cubin for {arch}."
        ),
        c.CUDA_ERROR_JIT_COMPILATION_DISABLED: f"CUDA_DISABLE_PTX_JIT disables PTX: unset it, or compile to a cubin for {arch}.",
    }.get(code, "")
