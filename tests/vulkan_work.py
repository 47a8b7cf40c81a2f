"""A shader written by hand, for the tests of the Vulkan driver layer; programs take all names from here."""

from __future__ import annotations

import gc  # noqa: F401 # programs below use it
import struct
import threading  # noqa: F401
import time  # noqa: F401
from collections.abc import Callable

import numpy as np  # noqa: F401
import programs
from device_work import counted, fetched, placed  # noqa: F401

from tvmdml.errors import DeviceError  # noqa: F401
from tvmdml.targets.vulkan import driver, structures  # noqa: F401
from tvmdml.targets.vulkan.driver import Device, Memory, Pipeline

THREADS = 64


class Module:
    """SPIR-V, an instruction at a time."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.next = 1

    def do(self, code: int, *operands: int | str) -> None:
        words: list[int] = []
        for operand in operands:
            if isinstance(operand, str):
                padded = operand.encode() + b"\0" * (4 - len(operand) % 4)
                words += struct.unpack(f"<{len(padded) // 4}I", padded)
            else:
                words.append(operand)
        self.words += [len(words) + 1 << 16 | code, *words]

    def new(self) -> int:
        self.next += 1
        return self.next - 1

    def define(self, code: int, *operands: int) -> int:
        """An instruction whose result comes first: a type, or a label."""
        result = self.new()
        self.do(code, result, *operands)
        return result

    def value(self, code: int, kind: int, *operands: int) -> int:
        result = self.new()
        self.do(code, kind, result, *operands)
        return result

    def content(self) -> bytes:
        words = [0x07230203, 0x00010300, 0, self.next, 0, *self.words]
        return struct.pack(f"<{len(words)}I", *words)


def shader(threads: int = THREADS, salt: int = 0) -> bytes:
    """``if (i < n) y[i] = x[i] * a + b`` on uint32, where i counts row by row; push constants n, a, b, row, rows."""
    m = Module()
    main, position = m.new(), m.new()
    m.do(17, 1)  # OpCapability Shader
    m.do(14, 0, 1)  # OpMemoryModel Logical GLSL450
    m.do(15, 5, main, "main", position)  # OpEntryPoint GLCompute
    m.do(16, main, 17, threads, 1, 1)  # OpExecutionMode LocalSize
    elements, block, x, y, numbers, push = (m.new() for _ in range(6))
    m.do(71, position, 11, 28)  # OpDecorate BuiltIn GlobalInvocationId
    m.do(71, elements, 6, 4)  # ArrayStride
    m.do(71, block, 2)  # Block
    m.do(72, block, 0, 35, 0)  # OpMemberDecorate Offset
    for number, buffer in enumerate((x, y)):
        m.do(71, buffer, 34, 0)  # DescriptorSet
        m.do(71, buffer, 33, number)  # Binding
    m.do(71, numbers, 2)
    for number in range(5):
        m.do(72, numbers, number, 35, 4 * number)
    void, uint, boolean = m.define(19), m.define(21, 32, 0), m.define(20)
    function, triple = m.define(33, void), m.define(23, uint, 3)
    m.do(59, m.define(32, 1, triple), position, 1)  # OpVariable Input
    m.do(29, elements, uint)  # OpTypeRuntimeArray
    m.do(30, block, elements)  # OpTypeStruct
    buffer_pointer = m.define(32, 12, block)  # OpTypePointer StorageBuffer
    for buffer in (x, y):
        m.do(59, buffer_pointer, buffer, 12)
    m.do(30, numbers, *[uint] * 5)
    m.do(59, m.define(32, 9, numbers), push, 9)  # OpVariable PushConstant
    number_pointer, element = m.define(32, 9, uint), m.define(32, 12, uint)
    constants = [m.value(43, uint, number) for number in range(5)]
    m.value(43, uint, 1000 + salt)  # so that shaders can differ
    m.do(54, void, main, 0, function)  # OpFunction
    m.define(248)  # OpLabel
    n, a, b, row, rows = (m.value(61, uint, m.value(65, number_pointer, push, constant)) for constant in constants)
    at = m.value(61, triple, position)
    across, down, deep = (m.value(81, uint, at, number) for number in range(3))
    line = m.value(128, uint, m.value(132, uint, deep, rows), down)
    i = m.value(128, uint, m.value(132, uint, line, row), across)
    body, merge = m.new(), m.new()
    inside = m.value(176, boolean, i, n)  # OpULessThan
    m.do(247, merge, 0)  # OpSelectionMerge
    m.do(250, inside, body, merge)  # OpBranchConditional
    m.do(248, body)
    product = m.value(132, uint, m.value(61, uint, m.value(65, element, x, constants[0], i)), a)
    m.do(62, m.value(65, element, y, constants[0], i), m.value(128, uint, product, b))  # OpStore
    m.do(249, merge)
    m.do(248, merge)
    m.do(253)  # OpReturn
    m.do(56)  # OpFunctionEnd
    return m.content()


def scale(n: int, a: int = 1, b: int = 0, row: int = 0, rows: int = 0) -> bytes:
    return struct.pack("<5I", n, a, b, row, rows)


def pipeline(device: Device, salt: int = 0) -> Pipeline:
    return device.pipeline(shader(salt=salt), 2, 20)


def run(device: Device, x: Memory, y: Memory, a: int = 1, b: int = 0, n: int | None = None) -> None:
    n = x.nbytes // 4 if n is None else n
    device.dispatch(pipeline(device), [(x, 0, x.nbytes), (y, 0, y.nbytes)], scale(n, a, b), (-(-n // THREADS), 1, 1))


def prepare(device: Device, x: Memory) -> driver.Prepared:
    """A dispatch that can be repeated."""
    return device.prepare([(pipeline(device), [(x, 0, x.nbytes), (x, 0, x.nbytes)], scale(x.nbytes // 4, 2), (1, 1, 1))])


NAME = "Vulkan"
ENDS = {
    "while a batch is open": "device.queue.hold(1)\nrun(device, x, x)\n",
    "with events pending": "events = [driver.Event(device) for _ in range(9)]\n[one.record() for one in events]\ndel events[::2]\n",
}
"""Ways for a process to end that only Vulkan has."""


def more_attempts(device: Device, x: Memory) -> list[Callable[[], object]]:
    """What else may be asked for."""
    event = driver.Event(device)
    event.record()
    return [
        lambda: driver.open_device(0, staging=True),
        lambda: driver.Event(device),
        event.record,
        lambda: event.seconds_since(event),
        device.flush,
        device.timed().__enter__,
        lambda: device.fill(x, 0, 4),
        lambda: device.pipeline(shader(salt=9), 2, 20),
    ]


def program(code: str, may_complain: bool = False, **variables: str) -> str:
    """What a Python program of its own prints that has these names."""
    return programs.python("import os, sys\nfrom vulkan_work import *\n" + code, may_complain=may_complain, **variables)
