"""``flushing``: NumPy's floats as on a device that takes subnormals for 0, to know what such a device may compute."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_MODES = {"x86_64": (28, 0x8040), "aarch64": (0, 1 << 24)}
"""Where in ``fenv_t`` of Linux the bits are that flush subnormals, as operands and as results."""


@contextmanager
def flushing() -> Iterator[None]:
    """Inside, this thread's processor takes subnormals for 0. Where it is not known how to ask for that, nothing changes."""
    mode = _MODES.get(platform.machine()) if sys.platform == "linux" else None
    if mode is None:
        yield
        return
    offset, bits = mode
    library = ctypes.CDLL("libm.so.6")
    before, inside = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
    for held in (before, inside):
        library.fegetenv(held)
    ctypes.c_uint32.from_buffer(inside, offset).value |= bits
    library.fesetenv(inside)
    try:
        yield
    finally:
        library.fesetenv(before)
