"""Work on a device for the tests of the driver layers, CUDA's and Vulkan's alike."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np


def placed(device: Any, values: np.ndarray) -> Any:
    memory = device.allocate(values.nbytes)
    device.upload(memory, 0, values)
    return memory


def fetched(device: Any, memory: Any) -> np.ndarray:
    values = np.empty(memory.nbytes // 4, np.uint32)
    device.download(memory, 0, values)
    return values


def counted(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.uint32)


class Interrupts:
    """SIGINT's exception, again and again, in the thread that armed it."""

    def __init__(self) -> None:
        self.armed = False
        self.raised: list[KeyboardInterrupt] = []  # kept, and so is what their frames reference

    def __enter__(self) -> Interrupts:
        self._before = signal.signal(signal.SIGALRM, self._interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

    def _interrupt(self, *_: object) -> None:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt
