"""``flushed``: the float types whose subnormals a device takes for 0. Vulkan lets devices choose, and few say what they do."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tvmdml.targets.vulkan.capabilities import Capabilities
from tvmdml.targets.vulkan.device import Device
from tvmdml.targets.vulkan.driver import open_device
from tvmdml.targets.vulkan.physical import DeviceInfo
from tvmdml.targets.vulkan.spirv_arithmetic import Arithmetic
from tvmdml.targets.vulkan.spirv_module import Module
from tvmdml.targets.vulkan.spirv_tables import SCALARS, UINT, Scalar

Words: TypeAlias = "np.ndarray[Any, np.dtype[np.uint32]]"

_ROW = 4
"""The words of a question: two numbers, and in the place of the first one the answer."""


class Question(NamedTuple):
    """A step on two floats, and the right answer."""

    dtype: str
    step: str
    numbers: tuple[float, float]
    right: float


@functools.lru_cache(maxsize=16)
def flushed(info: DeviceInfo) -> frozenset[str]:
    """The names of these types: the device is asked once, with its driver and version.

    Raises:
        DeviceError: the device cannot be used.
    """
    asked = questions(info.capabilities)
    words = np.concatenate([_words(one.dtype, number) for one in asked for number in one.numbers])
    answers = _answers(open_device(info.index), shader(asked, info.capabilities), words).reshape(-1, _ROW)
    return frozenset(
        one.dtype for one, row in zip(asked, answers, strict=True) if tuple(row[:2]) != tuple(_words(one.dtype, one.right))
    )


def questions(capabilities: Capabilities) -> list[Question]:
    """What a device is asked: whether it takes a subnormal for 0 as a factor, as a product, and when it compares."""
    can = {"float16": capabilities.float16 or capabilities.storage16, "float32": True, "float64": capabilities.float64}
    asked = []
    for dtype in (dtype for dtype, has in can.items() if has):
        limits = np.finfo(dtype)
        least, normal = float(limits.smallest_subnormal), float(limits.tiny)
        asked.append(Question(dtype, "Mul", (least, 1.0), least))
        asked.append(Question(dtype, "Mul", (normal, 0.5), normal / 2))
        asked.append(Question(dtype, "GT", (least, 0.0), 1.0))
    return asked


def shader(asked: list[Question], capabilities: Capabilities) -> bytes:
    """A shader whose one thread answers the questions in a buffer of words."""
    module = Module("subnormals", capabilities)
    arithmetic = Arithmetic(module)
    words = module.variable("StorageBuffer", module.block(module.type(UINT), 4))
    module.decorate(words, "DescriptorSet", 0)
    module.decorate(words, "Binding", 0)
    element = module.pointer("StorageBuffer", module.type(UINT))

    def place(index: int) -> int:
        return module.pure("AccessChain", element, words, *(module.constant(UINT, number) for number in (0, index)))

    def load(scalar: Scalar, index: int) -> int:
        low, high = (module.result("Load", module.type(UINT), place(index + word)) for word in (0, 1))
        return arithmetic.of_words(low, high) if scalar.bits == 64 else arithmetic.bits(UINT, scalar, low)

    for row, one in enumerate(asked):
        scalar = SCALARS[one.dtype]
        a, b = (load(scalar, row * _ROW + word) for word in (0, 2))
        if one.step == "Mul":
            number = arithmetic.binary("Mul", scalar, a, b)
        else:
            is_so = arithmetic.compare(one.step, scalar, a, b)
            number = arithmetic.select(scalar, is_so, *(arithmetic.constant(scalar, truth) for truth in (1.0, 0.0)))
        pair = arithmetic.words(number) if scalar.bits == 64 else (arithmetic.bits(scalar, UINT, number),)
        for word, value in enumerate(pair):
            module.emit("Store", place(row * _ROW + word), value)
    module.emit("Return")
    return module.assemble((1, 1, 1))


def _words(dtype: str, number: float) -> Words:
    held = np.array([number], dtype).tobytes()
    return np.frombuffer(held.ljust(8, b"\0"), np.uint32)


def _answers(device: Device, code: bytes, words: Words) -> Words:
    memory = device.allocate(words.nbytes)
    device.upload(memory, 0, words)
    device.dispatch(device.pipeline(code, 1, 0), [(memory, 0, words.nbytes)], b"", (1, 1, 1))
    found = np.empty_like(words)
    device.download(memory, 0, found)
    return found
