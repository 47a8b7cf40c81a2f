"""Arrays on a CUDA device, the emulator's where there is no other: what others say of theirs, and what is asked of tvmdml's own."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import cuda_emulator
import numpy as np

import tvmdml
from fuzz import hostile, trees
from fuzz.choices import Choices
from fuzz.oracle import refusals

if "TVMDML_CUDA_LIBRARY" not in os.environ and not cuda_emulator.missing():
    cuda_emulator.install()

EXAMPLES = 200
WORDS = (
    "shape", "strides", "typestr", "data", "version", "stream", "mask", "descr", "<f4", ">f4", "|u1", "<f2", "<c8", "|O", "<i8",
    "|b1",
)  # fmt: skip
_STREAMS = (None, 0, 1, 2, -1, 2.5, "1", True, 2**64, [1])
"""Not any number: one that is no stream's would be followed."""
_X = np.arange(24, dtype=np.float32).reshape(4, 6)


def one(choices: Choices) -> None:
    """What an exporter says, with some changes; or anything that is done with an array."""
    with refusals(MemoryError):
        if choices.flag():
            _exported(choices, _array())
        else:
            _used(choices, _array().copy())


@functools.cache
def _array() -> Any:
    return tvmdml.asarray(_X, device="cuda:0")


class _Exporter:
    """An array of another library, by what it says of itself."""

    def __init__(self, said: Any) -> None:
        self.__cuda_array_interface__ = said


def _exported(choices: Choices, array: Any) -> None:
    """What is said to lie in the array's memory is there, or it is refused."""
    right = array.__cuda_array_interface__
    said = trees.changed(choices, {**right, "shape": list(right["shape"]), "data": list(right["data"])}, WORDS, 2)
    if isinstance(said, dict) and not choices.flag(4):
        said = {name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}
    if isinstance(said, dict) and "stream" in said:
        said["stream"] = choices.pick(_STREAMS)
    if isinstance(said, dict) and choices.flag(6):
        said[choices.pick(WORDS)] = hostile.value(choices, 2)
        said.pop("stream", None)
    found = tvmdml.asarray(_Exporter(said), device="cuda:0")
    repr(found), found.flags, found.span, found.nbytes
    (_, own), (_, start) = array.start, found.start
    low, high = tvmdml.tensors.arrays.device_array.extent(found.shape, found.strides, found.itemsize)
    if own <= start + low and start + high <= own + array.nbytes:  # else it is a lie that nobody can see through
        assert found.numpy().shape == found.shape


def _used(choices: Choices, array: Any) -> None:
    choices.pick(_USES)(choices, array)


def _index(choices: Choices, array: Any) -> None:
    """As NumPy has it."""
    keys = tuple(choices.pick(_KEYS)(choices) for _ in range(choices.integer(1, 3)))
    with refusals(IndexError):
        found = array[keys if len(keys) > 1 else keys[0]]
        np.testing.assert_array_equal(found.numpy(), _X[keys if len(keys) > 1 else keys[0]])


def _bound(choices: Choices) -> Any:
    return choices.pick((None, 0, 1, 2, -1, -7, 5, 2**63, -(2**70)))


_KEYS: tuple[Callable[[Choices], Any], ...] = (
    lambda choices: choices.integer(-6, 6),
    lambda choices: slice(_bound(choices), _bound(choices), choices.pick((None, 1, 2, 3, 0, -1, 2**70))),
    lambda choices: ...,
    lambda choices: choices.pick((None, True, [0], np.int64(1), np.array(1), "a", 1.0, 2**64)),
    lambda choices: slice(hostile.integer(choices), None),
)


def _write(choices: Choices, array: Any) -> None:
    part = choices.pick((array, array[1:], array[:, ::2], array[0], array[:0]))
    source = hostile.value(choices, 2) if choices.flag() else hostile.array(choices)
    if choices.flag(3):
        source = choices.pick((_X, _X[1:], _X[0], part, array, array[::2], _X.astype(np.int8), _X.astype(">f4")))
    part.write(source)
    if type(source) is np.ndarray:
        np.testing.assert_array_equal(part.numpy(), source.astype(np.float32))


def _view(choices: Choices, array: Any) -> None:
    kind = choices.text(hostile.WORDS) if choices.flag() else hostile.value(choices, 2)
    assert array.view(kind).numpy().tobytes() == _X.tobytes()


def _export(choices: Choices, array: Any) -> None:
    """By DLPack, with any keywords; its own word for what cannot be is ``BufferError``."""
    keywords: dict[str, Any] = {"stream": choices.pick(_STREAMS)}
    for name in ("max_version", "dl_device", "copy"):
        if choices.flag(3):
            keywords[name] = choices.pick((None, (1, 0), (2, 0), (0, 8), (2, 9), (1, 1), True, False, hostile.value(choices, 2)))
    with refusals(BufferError):
        array.__dlpack__(**keywords)


def _made(choices: Choices, array: Any) -> None:
    shape = choices.several(lambda: hostile.integer(choices), 9) if choices.flag() else hostile.value(choices, 2)
    found = tvmdml.empty(shape, dtype=choices.pick(("f4", "u8", "i1")), device="cuda:0")
    assert found.device == "cuda:0"


_USES: tuple[Callable[[Choices, Any], None], ...] = (_index, _index, _write, _view, _export, _made)
