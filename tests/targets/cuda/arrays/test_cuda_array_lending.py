"""Arrays of a CUDA device that are given to other libraries, by DLPack or ``__cuda_array_interface__``."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from cuda_work import is_emulator, new_stream
from foreign_arrays import LEGACY, PER_THREAD, VALUES, Consumer, Shows, Speaks, at_once_alone, copy_on, current, lent, on, run
from support import ALL, seeded

import tvmdml
from tvmdml import DeviceArray, DeviceError, InvalidArgument
from tvmdml.targets.cuda import CudaTarget, dlpack
from tvmdml.targets.cuda.driver import using_stream

# -- Giving arrays away -------------------------------------------------------------------------------------------


@at_once_alone
def test_a_capsule_says_what_the_array_is(device: CudaTarget) -> None:
    for data_type, version in itertools.product(ALL, (None, (0, 8), (1, 0), (1, 9))):
        x = on(device, np.zeros((4, 6), data_type.numpy))
        for part in (x, x[1], x[::2, 1:5:3], x[2, 3], x[:, :0]):
            said = dlpack.read(part.__dlpack__(max_version=version))
            address, strides = x.memory.address + part.offset, part.strides if part.ndim else None
            assert said == (address, (2, 0), part.shape, strides, part.dtype, version is not None and version >= (1, 0))
        assert x.__dlpack_device__() == (2, 0)


@pytest.mark.full
@at_once_alone
@pytest.mark.parametrize("version", [None, (1, 0)])
def test_memory_is_lent_until_it_is_given_back(device: CudaTarget, version: Any) -> None:
    before = lent(2)
    capsule = on(device, VALUES).__dlpack__(max_version=version)
    assert lent() == before + 1
    del capsule
    assert lent() == before, "nobody took it"
    x = on(device, VALUES)
    capsule = x.__dlpack__(max_version=version)
    consumer = Consumer(capsule)
    memory = x.memory
    del x, capsule
    assert lent() == before + 1
    assert consumer.said.shape == (3, 4)
    holders = sys.getrefcount(memory)
    consumer.release()
    assert lent() == before
    assert sys.getrefcount(memory) == holders - 1
    slots = len(dlpack._free)
    consumers = [Consumer(on(device, VALUES).__dlpack__(max_version=version)) for _ in range(20)]
    assert lent() == before + 20
    threads = [threading.Thread(target=consumer.release) for consumer in consumers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lent() == before
    assert len(dlpack._free) >= max(slots, 20)


def test_memory_comes_back_while_an_exception_is_on_its_way(device: CudaTarget) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    before = lent(2)
    x = on(device, VALUES)
    if not is_emulator(device.device):
        take = torch.from_dlpack
    else:  # PyTorch takes the emulator's memory for the CPU's

        def take(array: Any) -> Any:
            capsule = array.__dlpack__()
            dlpack._Managed.from_address(dlpack._pointer(capsule, b"dltensor")).tensor.device_type = 1
            return torch.from_dlpack(capsule)

    def use(*_: object) -> None: ...

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            use(take(x), 1 / 0)
    assert lent() == before


@pytest.mark.full
@at_once_alone
def test_a_capsule_may_outlive_python(device: CudaTarget) -> None:
    code = """
        import ctypes, sys
        import numpy as np
        from foreign_arrays import *
        device = targets.resolve("cuda:0")
        kept = [Consumer(on(device, VALUES).__dlpack__()) for _ in range(3)]
        unused = on(device, VALUES).__dlpack__()
        # The C library calls the deleter after the interpreter is gone.
        held = dlpack._Managed.from_address(dlpack._pointer(on(device, VALUES).__dlpack__(), b"dltensor"))
        from ctypes import c_void_p
        slot = next(iter(dlpack._lent))
        libc = ctypes.CDLL(None)
        libc.__cxa_atexit.argtypes = [c_void_p, c_void_p, c_void_p]
        assert libc.__cxa_atexit(dlpack._DELETER, slot.address, None) == 0
        print("fine")
    """
    assert run(code) == "fine\n"


def test_the_receivers_stream_waits(device: CudaTarget, stream: int) -> None:
    values = seeded("order").standard_normal((64, 1000)).astype(np.float32) * 9
    target = device.device
    with new_stream(target) as other:
        for asked in (stream, None, LEGACY, PER_THREAD):
            with using_stream(other):
                x = tvmdml.round(on(device, values))
            capsule = x.__dlpack__(stream=asked, max_version=(1, 0))
            address, found = dlpack.read(capsule).address, np.empty_like(values)
            handle = 0 if asked in (None, LEGACY, PER_THREAD) else asked
            assert x.memory.stream == handle
            copy_on(target, handle, address, found)
            assert np.array_equal(found, np.rint(values))
            with using_stream(other):
                y = tvmdml.round(on(device, values))
            y.__dlpack__(stream=-1)
            assert y.memory.stream in (other, -1)
            said = y.__cuda_array_interface__["stream"]
            copy_on(target, 0 if said == LEGACY else said, y.memory.address, found)
            assert np.array_equal(found, np.rint(values))
        device.wait()
    for wrong in (0, -2, "1", 1.5):
        with pytest.raises(InvalidArgument, match=r"DeviceArray\.__dlpack__ stream: given"):
            x.__dlpack__(stream=wrong)


def test_copies_and_other_devices_are_given_where_asked_for(device: CudaTarget) -> None:
    x = on(device, VALUES)
    said = dlpack.read(x.__dlpack__(copy=True, max_version=(1, 0)))
    assert said.address != x.memory.address
    assert dlpack.read(x.__dlpack__(dl_device=(2, 0), copy=False)).address == x.memory.address
    assert np.array_equal(np.from_dlpack(Elsewhere(x)), VALUES)
    for options in ({"dl_device": (2, 7)}, {"dl_device": (1, 0), "copy": False}, {"dl_device": (7, 0)}):
        with pytest.raises(BufferError, match=r"DeviceArray\.__dlpack__: given device"):
            x.__dlpack__(**options)  # type: ignore[arg-type]
    with pytest.raises(BufferError, match="not multiples of the 4 bytes"):
        tvmdml.asarray(Shows(x[:, :1], strides=(6, 4)), device).__dlpack__()


class Elsewhere:
    """Asks for a copy on the CPU, as NumPy does from its version 2.1 on."""

    def __init__(self, array: DeviceArray) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(dl_device=(1, 0), max_version=options.get("max_version"))

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_the_interface_says_what_the_array_is(device: CudaTarget) -> None:
    x = on(device, VALUES)
    part = x[::2, 1:]
    assert x.__cuda_array_interface__ == {
        "shape": (3, 4),
        "typestr": "<f4",
        "data": (x.memory.address, False),
        "strides": None,
        "stream": LEGACY,
        "version": 3,
    }
    assert part.__cuda_array_interface__["strides"] == (32, 4)
    assert part.__cuda_array_interface__["data"][0] == x.memory.address + 4
    assert x[:0].__cuda_array_interface__["data"][0] == 0


def test_arrays_elsewhere_are_not_given_away() -> None:
    try:
        x = tvmdml.asarray(VALUES, "vulkan")
    except DeviceError as error:
        pytest.skip(f"no Vulkan here: {error}")
    for ask in (x.__dlpack__, x.__dlpack_device__):
        with pytest.raises(BufferError, match=r"given an array on vulkan:0; allowed: one on cuda\. Copy it with x\.numpy\(\)"):
            ask()
    assert not hasattr(x, "__cuda_array_interface__")
    assert np.array_equal(np.asarray(x), VALUES)


def test_a_shared_array_is_given_on(device: CudaTarget, cupy: Any, stream: int) -> None:
    with current(stream):
        x = cupy.array(VALUES)
        there = tvmdml.asarray(x, device)
        assert there.__cuda_array_interface__["stream"] == stream
        assert np.array_equal(tvmdml.round(Speaks(there)).numpy(), np.rint(VALUES))
        assert np.array_equal(tvmdml.round(Shows(there)).numpy(), np.rint(VALUES))


@pytest.mark.full
def test_a_memorys_owner_lives_as_long_as_it_is_used(device: CudaTarget, cupy: Any) -> None:
    x = cupy.array(VALUES)
    known = weakref.ref(x)
    there = tvmdml.asarray(x, device)[1:]
    del x
    gc.collect()
    assert known() is not None
    assert np.array_equal(there.numpy(), VALUES[1:])
    del there
    gc.collect()
    assert known() is None
