"""Programs of devices, as the cache and packs have them: refused, or launched as they say, with no number out of its bounds."""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuzz import trees
from fuzz.choices import Choices
from fuzz.oracle import refusals
from tvmdml.errors import CompileError
from tvmdml.targets._device_launch import DeviceLaunch, Placed
from tvmdml.targets._program import DeviceFunction, Image, KernelProgram, ProgramStep
from tvmdml.tensors.arrays.device_array import DeviceArray

EXAMPLES = 250
WORDS = (
    "images", "functions", "steps", "parameters", "reads", "writes", "form", "bytes", "name", "image", "buffers", "scalars",
    "scalar_bytes", "threads", "function", "groups", "scalar", "truncdiv", "truncmod", "<<", ">>", "min", "max", "//", "%",
    "spirv", "sm_90", "compute_90", "TVMDML-PROGRAM-1\n", "\x03\x02\x23\x07",
)  # fmt: skip


def seeds() -> list[bytes]:
    """Whole programs."""
    return [b"\0" + _program().to_bytes()]


def one(choices: Choices) -> None:
    """Bytes as they come, or a program whose header was changed."""
    kind = choices.integer(0, 3)
    if kind == 0:
        check(choices.rest())
    elif kind == 1:
        check(trees.damaged(choices, _program().to_bytes(), WORDS))
    else:
        content = _program().to_bytes()
        (size,) = struct.unpack_from("<I", content, 17)
        header = trees.text(trees.changed(choices, json.loads(content[21 : 21 + size]), WORDS)).encode()
        check(content[:17] + struct.pack("<I", len(header)) + header + content[21 + size :])


def check(content: bytes) -> None:
    """Read it, and launch it on three arrays with two integers, and otherwise."""
    with refusals(of=ValueError):
        program = KernelProgram.from_bytes(content)
        assert KernelProgram.from_bytes(program.to_bytes()) == program, "what is written is not what is read"
        for scalars, temporaries, count in (((9, 7), (), 3), ((9, 7), (("int32", 4),), 2), ((), (), 3), ((9, 7), (), 1)):
            with refusals(of=CompileError):
                launch = _Dry(_TARGET, program, scalars, temporaries)
                launch(*(np.zeros(4, np.float32) for _ in range(count)))


@functools.cache
def _program() -> KernelProgram:
    images = (Image("spirv", b"\x03\x02\x23\x07"), Image("spirv", b"\x03\x02\x23\x07" * 3))
    functions = (DeviceFunction("one", 0, 2, ((0, "i"), (8, "q")), 16, (8, 1, 1)), DeviceFunction("two", 1, 1, (), 0, (64, 2, 1)))
    steps = (
        ProgramStep(1, (2,), (), (1, 1, 1)),
        ProgramStep(0, (0, 2), (("scalar", 4), ("*", ("scalar", 3), -2)), (("truncdiv", ("scalar", 3), 2), 1, ("scalar", 4))),
    )
    return KernelProgram(images, functions, steps, 5, (0,), (2,))


class _Dry(DeviceLaunch):
    """A launch that starts nothing."""

    steps = runner = identity = seconds = None  # type: ignore[assignment] # of repeated runs

    def dispatch(self, device: Any, places: Sequence[Placed]) -> None:
        for step in self._launches:
            for number in step.buffers:
                places[number]

    @staticmethod
    def alignment(device: Any) -> int:
        return 1

    @classmethod
    def begins_well(cls, device: Any, array: DeviceArray) -> bool:
        return True


class _Device:
    def allocate(self, nbytes: int) -> Any:
        return bytearray(nbytes)

    def upload(self, memory: Any, offset: int, data: Any) -> None:
        memory[offset : offset + len(data)] = bytes(data)

    def download(self, memory: Any, offset: int, into: Any) -> None:
        into[:] = np.frombuffer(memory, np.uint8)[offset : offset + len(into)]


class _Target:
    name, device = "dry:0", _Device()


_TARGET: Any = _Target()
