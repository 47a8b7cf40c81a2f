"""The CUDA driver layer: memory, kernels, threads, forks, and every failure; on a GPU, or on the emulator."""

from __future__ import annotations

import ctypes
import gc
import itertools
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from cuda_work import (
    THREADS,
    Captured,
    capture_mode,
    churn,
    current_context,
    function,
    image,
    is_emulator,
    launch,
    new_stream,
    ok,
    program,
    raw,
    run,
    scale,
)
from device_work import counted, fetched, placed
from support import at_once

from tvmdml.errors import DeviceError
from tvmdml.targets.cuda import context, driver, header, loader, modules, survey
from tvmdml.targets.cuda.driver import Device, using_stream

# Memory


def test_copies_of_any_size_from_anywhere(device: Device) -> None:
    rng = np.random.default_rng(7)
    size = 10_007
    here, there = (device.allocate(size) for _ in range(2))
    expected = [np.zeros(size, np.uint8), np.zeros(size, np.uint8)]
    for memory, content in zip((here, there), expected, strict=True):
        device.upload(memory, 0, content)
    for _ in range(60):
        begin, to = (int(rng.integers(0, size)) for _ in range(2))
        length = int(rng.integers(0, size - max(begin, to) + 1))
        data = rng.integers(0, 256, length, np.uint8)
        device.upload(here, begin, data)
        expected[0][begin : begin + length] = data
        data[:] = 0  # its memory was reused
        device.copy(here, begin, there, to, length)
        expected[1][to : to + length] = expected[0][begin : begin + length]
        got = np.full(length, 9, np.uint8)
        device.download(there, to, got)
        np.testing.assert_array_equal(got, expected[1][to : to + length])
    for memory, content in zip((here, there), expected, strict=True):
        got = np.empty(size, np.uint8)
        device.download(memory, 0, got)
        np.testing.assert_array_equal(got, content)


def test_what_does_not_fit_is_refused(device: Device) -> None:
    memory = placed(device, counted(10))
    other = device.allocate(40)
    for attempt in (
        lambda: device.upload(memory, 1, counted(10)),
        lambda: device.upload(memory, -1, b"a"),
        lambda: device.download(memory, 41, bytearray(0)),
        lambda: device.download(memory, 0, bytearray(41)),
        lambda: device.copy(memory, 0, other, 1, 40),
        lambda: device.copy(memory, 1, other, 0, 40),
        lambda: device.copy(memory, 0, other, 0, -1),
    ):
        with pytest.raises(DeviceError, match=r"memory: given -?\d+ bytes from -?\d+; allowed: a range within its 40 bytes"):
            attempt()
    with pytest.raises(DeviceError, match="a read-only one"):
        device.download(memory, 0, b"abcd")
    with pytest.raises(DeviceError, match="an array with gaps"):
        device.upload(memory, 0, counted(10)[::2])
    with pytest.raises(DeviceError, match="bytes to allocate: given -1"):
        device.allocate(-1)
    np.testing.assert_array_equal(fetched(device, memory), counted(10))


def test_another_devices_memory_is_refused(device: Device, own: Device) -> None:
    assert own is not device
    memory = own.allocate(8)
    with pytest.raises(DeviceError, match="memory: given another device's; allowed: this device's own"):
        device.upload(memory, 0, b"abc")


def test_memory_begins_well_and_is_apart(device: Device) -> None:
    held = [device.allocate(size) for size in (0, 1, 7, 255, 256, 257, 100_000) for _ in range(3)]
    assert all(memory.address % 256 == 0 for memory in held)
    ranges = sorted((memory.address, memory.address + max(memory.nbytes, 1)) for memory in held)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ranges))


@pytest.mark.full
def test_what_is_dropped_is_given_back(device: Device) -> None:
    gc.collect()  # what other tests left in cycles is not counted
    before = device.memory_use().in_use
    for size in (100, 5000, 200_000, 3 << 20):
        for _ in range(20):
            x = placed(device, np.zeros(size // 4, np.uint32))
            run(device, x, x, 2)
            assert device.memory_use().in_use >= size
    cycle: list[object] = [x]
    cycle.append(cycle)
    del x, cycle
    gc.collect()
    assert device.memory_use().in_use == before
    device.trim()
    use = device.memory_use()
    assert use.in_use == before
    assert use.free <= use.capacity
    assert use.capacity == pytest.approx(device.info.memory, rel=0.1)


@pytest.mark.full
def test_memory_that_runs_out_is_looked_for_among_what_was_dropped(own: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = own._pool._ask

    def ask(address: ctypes.c_uint64, nbytes: int, stream: int) -> int:
        asked.append(nbytes)
        if any(loan.nbytes == 4096 for loan in own._pool._loans):
            return header.CUDA_ERROR_OUT_OF_MEMORY
        return real(address, nbytes, stream)

    cycle: list[object] = [own.allocate(4096)]
    cycle.append(cycle)
    gc.disable()
    try:
        del cycle
        monkeypatch.setattr(own._pool, "_ask", ask)
        assert own.allocate(100).nbytes == 100
        assert asked == [100, 100]
        held = [own.allocate(4096)]
        with pytest.raises(DeviceError, match=r"memory: given 100 bytes, with 4096 in use"):
            own.allocate(100)
        assert asked == [100, 100, 4096, 100, 100]
        held.clear()
        own.allocate(100)
    finally:
        gc.enable()


def test_a_driver_without_pools(present: None, monkeypatch: pytest.MonkeyPatch) -> None:
    real = survey.attribute
    wanted = header.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
    monkeypatch.setattr(survey, "attribute", lambda cuda, device, number: 0 if number == wanted else real(cuda, device, number))
    monkeypatch.setattr(driver, "_open", {})
    device = driver.open_device(0)
    assert device._pool._handle == 0
    if is_emulator(device):
        monkeypatch.setenv("TVMDML_EMULATED_LAZY", "1")
    for step in range(20):
        x = placed(device, counted(1000))
        y = device.allocate(4000)
        run(device, x, y, 3, step)
        del x  # while the launch may still read it
        device.allocate(4000)
        np.testing.assert_array_equal(fetched(device, y), counted(1000) * 3 + np.uint32(step))
    del y
    free = device.cuda.cuMemFree_v2

    def only_when_idle(address: int) -> int:
        ok(raw().cuStreamQuery(ctypes.c_void_p(stream)))
        return int(free(address))

    with new_stream(device) as stream:
        for left in (True, False):
            with using_stream(stream):
                x = placed(device, counted(1000))
                run(device, x, x, 2)
                if not left:
                    y = x
                del x
            if not left:
                device.order(y, stream)
                del y
            with monkeypatch.context() as patch:
                patch.setattr(device.cuda, "cuMemFree_v2", only_when_idle)
                device.allocate(4)
        with new_stream(device, blocking=True) as blocking, Captured(device, blocking) as graph, using_stream(stream):
            x = device.allocate(400)
            del x
            device.allocate(4)
            assert device.memory_use().in_use >= 400  # the driver would wait for the legacy stream, which is blocked
        graph.close()
    device.trim()
    assert device.memory_use()[:2] == (0, 0)


@pytest.mark.parametrize("pinned", [False, True])
def test_uploads_wait_where_the_device_reads_the_hosts_memory(own: Device, monkeypatch: pytest.MonkeyPatch, pinned: bool) -> None:
    waited: list[int] = []
    real = own._synchronize

    def synchronize(stream: int) -> None:
        waited.append(stream)
        real(stream)

    monkeypatch.setattr(own, "_reads_host", False)
    monkeypatch.setattr(own, "_synchronize", synchronize)
    if pinned:
        monkeypatch.setattr(own, "_is_pinned", lambda address: True)
    memory = own.allocate(40)
    own.upload(memory, 0, counted(10))
    assert waited == [0] * pinned
    monkeypatch.setattr(own, "_reads_host", True)
    own.upload(memory, 0, counted(10))
    assert waited == [0] * (pinned + 1)


# Kernels


def test_a_module_is_loaded_once(device: Device) -> None:
    found = device.module(image(device))
    assert device.module(bytes(bytearray(image(device)))) is found
    assert found.function("scale") == found.function("scale") != found.function("churn")
    resources = found.resources("scale")
    assert THREADS <= resources.max_threads <= 1024
    assert resources.shared_bytes == 0
    assert resources.registers >= 0
    assert resources.local_bytes >= 0
    with pytest.raises(DeviceError, match=r"finding the function 'scala' in a module failed: CUDA_ERROR_NOT_FOUND"):
        found.function("scala")


def test_an_image_that_is_none_is_refused(device: Device) -> None:
    with pytest.raises(DeviceError, match="the image of a module is empty"):
        device.module(b"")
    with pytest.raises(DeviceError, match=rf"loading a module of 12 bytes failed: CUDA_ERROR_INVALID_\w+.*{device.info.arch}"):
        device.module(b"no such code")
    run(device, *[placed(device, counted(5))] * 2)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (header.CUDA_ERROR_INVALID_IMAGE, "neither a cubin nor PTX"),
        (header.CUDA_ERROR_NO_BINARY_FOR_GPU, "another architecture. Compile it for this device: a cubin for"),
        (header.CUDA_ERROR_INVALID_PTX, "PTX for a newer architecture, or damaged. Compile it"),
        (header.CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "Update the NVIDIA driver, or compile to a cubin"),
        (header.CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "libnvidia-ptxjitcompiler"),
        (header.CUDA_ERROR_JIT_COMPILATION_DISABLED, "CUDA_DISABLE_PTX_JIT"),
    ],
)
def test_a_module_that_the_driver_refuses_says_what_to_do(
    own: Device, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(own.cuda, "cuModuleLoadData", lambda *_: code)
        with pytest.raises(DeviceError, match=rf"loading a module of \d+ bytes failed: CUDA.*{words}"):
            own.module(image(own))
    assert own.module(image(own)).function("scale")


def test_a_launch_that_is_refused_says_what_was_launched(device: Device) -> None:
    x = placed(device, counted(10))
    which, groups, threads, parameters = scale(device, x, x)
    for wrong in (
        (which, groups, (2048, 1, 1), parameters),
        (which, groups, (32, 32, 2), parameters),
        (which, (1, 70_000, 1), threads, parameters),
        (which, (0, 1, 1), threads, parameters),
    ):
        with pytest.raises(DeviceError, match=re.escape(f"launching {wrong[1]} groups of {wrong[2]} threads failed: CUDA_ERROR_")):
            device.launch(*wrong, 0)
    for absurd in (
        (which, (1 << 33, 1, 1), threads, parameters),
        (which, (-1, 1, 1), threads, parameters),
        (which, groups, threads, bytes(5000)),
    ):
        with pytest.raises(
            DeviceError, match=r"launch: given .* bytes of parameters; allowed: extents that fit in 32 bits, and up to 4096 bytes"
        ):
            device.launch(*absurd, 0)
    device.launch(which, groups, threads, parameters, 0)
    with pytest.raises(DeviceError, match=r"launching \(1, 70000, 1\) groups"):
        device.prepare([scale(device, x, x), (which, (1, 70_000, 1), threads, parameters)]).run(0)
    np.testing.assert_array_equal(fetched(device, x), counted(10))


def test_prepared_launches_run_again_and_again(device: Device) -> None:
    x, y = placed(device, counted(1000)), device.allocate(4000)
    nothing = (function(device), (0, 1, 1), (1, 1, 1), b"")
    prepared = device.prepare([scale(device, x, y, 3, 1), nothing, scale(device, y, x, 5, 2)])
    expected = counted(1000)
    with new_stream(device) as stream:
        for step in range(100):
            where = stream if step % 3 else 0
            for memory in (x, y):
                device.order(memory, where)
            prepared.run(where)
            expected = (expected * np.uint32(3) + np.uint32(1)) * np.uint32(5) + np.uint32(2)
    np.testing.assert_array_equal(fetched(device, x), expected)
    device.prepare([]).run(0)
    device.prepare([nothing]).run(0)


def test_prepared_launches_do_not_remember_every_stream(device: Device) -> None:
    x = placed(device, counted(10))
    prepared = device.prepare([scale(device, x, x, 1, 1)])
    with ExitStack() as opened:
        for stream in [opened.enter_context(new_stream(device)) for _ in range(100)]:
            device.order(x, stream)
            prepared.run(stream)
        device.order(x, 0)
    assert len(prepared._arguments) <= 64
    np.testing.assert_array_equal(fetched(device, x), counted(10) + 100)


def test_the_device_says_how_long_it_took(device: Device) -> None:
    x = placed(device, counted(10_000))
    function(device, "churn")
    seconds = device.timed(lambda: device.launch(*churn(device, x, 3000), 0), 0)
    assert 0 <= seconds < 60
    with new_stream(device) as stream:
        assert device.timed(lambda: None, stream) >= 0
    first, second = driver.Event(device), driver.Event(device)
    with pytest.raises(DeviceError, match="an event was not recorded"):
        second.seconds_since(first)
    first.record(0)
    launch(device, churn(device, x, 3000), x)
    second.record(0)
    assert second.seconds_since(first) >= 0


# Contexts, threads, forks, interrupts


def test_the_callers_context_is_left_as_it_was(device: Device) -> None:
    """The fixture sees that none is current after any test; here one is."""
    own = ctypes.c_void_p(device.context.handle)
    ok(raw().cuCtxPushCurrent_v2(own))
    try:
        x = placed(device, counted(10))
        run(device, x, x, 2)
        device.prepare([scale(device, x, x, 2)]).run(0)
        with pytest.raises(DeviceError):
            device.launch(function(device), (1, 1, 1), (5000, 1, 1), b"", 0)
        np.testing.assert_array_equal(fetched(device, x), counted(10) * 4)
        device.wait()
        assert current_context() == own.value
    finally:
        popped = ctypes.c_void_p()
        ok(raw().cuCtxPopCurrent_v2(ctypes.byref(popped)))
    assert popped.value == own.value


@pytest.mark.full
def test_two_devices(present: None) -> None:
    if not is_emulator(driver.open_device(0)) and len(driver.devices()) < 2:
        pytest.skip("one device here")
    code = """
one, other = driver.open_device(0), driver.open_device(1)
assert one is not other and len(driver.devices()) >= 2
assert one.context.handle != other.context.handle
with other.context.entered():
    there = current_context()
    for device in (one, other, one):
        x, y = placed(device, counted(1000)), device.allocate(4000)
        run(device, x, y, 3)
        device.prepare([scale(device, y, x, 5)]).run(0)
        np.testing.assert_array_equal(fetched(device, x), counted(1000) * 15)
        with new_stream(device) as stream, using_stream(stream):
            run(device, x, x, 2)
        np.testing.assert_array_equal(fetched(device, x), counted(1000) * 30)
        del x, y
        device.trim()
        assert current_context() == there == other.context.handle
assert current_context() is None
x, y = placed(one, counted(10)), placed(other, counted(10))
for attempt in (lambda: one.copy(x, 0, y, 0, 4), lambda: other.upload(x, 0, b"abcd"), lambda: one.download(y, 0, bytearray(4))):
    try:
        attempt()
        print("worked")
    except DeviceError as error:
        assert "another device's" in str(error), error
with new_stream(other) as stream, using_stream(stream):
    try:
        run(one, x, x)
        print("worked")
    except DeviceError as error:
        assert "belong to another device" in str(error), error
print("fine")
"""
    assert program(code, TVMDML_EMULATED_DEVICES="2") == "fine\n"


@pytest.mark.full(first=1)
def test_threads_share_a_device(device: Device) -> None:
    gc.collect()  # what other tests left in cycles is not counted
    before = device.memory_use().in_use

    def work(number: int) -> None:
        with new_stream(device) as stream:
            mine = placed(device, counted(500))
            for step in range(15):
                with using_stream(stream if (number + step) % 2 else 0):
                    x = placed(device, counted(500) + np.uint32(number))
                    y = device.allocate(2000)
                    run(device, x, y, 3, step)
                    prepared = device.prepare([scale(device, y, x, 5), scale(device, x, y, 1, 1)])
                    prepared.run(device.stream())
                    run(device, mine, mine, 1, 1)
                    expected = ((counted(500) + np.uint32(number)) * np.uint32(3) + np.uint32(step)) * np.uint32(5) + np.uint32(1)
                    np.testing.assert_array_equal(fetched(device, y), expected)
            np.testing.assert_array_equal(fetched(device, mine), counted(500) + 15)
        assert current_context() is None

    at_once(work, 8)
    assert device.memory_use().in_use == before


def test_threads_load_a_module_once(own: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    real = own.cuda.cuModuleLoadData

    def load(*arguments: Any) -> int:
        loaded.append(arguments)
        time.sleep(0.02)
        return int(real(*arguments))

    monkeypatch.setattr(own.cuda, "cuModuleLoadData", load)
    at_once(lambda _: own.module(image(own)).function("scale"), 8)
    assert len(loaded) == 1


# What fails


BAD_LAUNCH = """
device = driver.open_device(0)
x = placed(device, counted(1000))
which, groups, threads, _ = scale(device, x, x)
prepared, step = device.prepare([scale(device, x, x)]), scale(device, x, x)
def bad():
    device.launch(which, groups, threads, struct.pack("<QQIII", 8, x.address, 1000, 1, 1), 0)
"""


@pytest.mark.full
def test_a_kernel_that_fails_ends_all_work_and_says_so(present: None) -> None:
    code = f"""{BAD_LAUNCH}
attempts = [
    lambda: (bad(), device.wait()), device.wait, lambda: device.allocate(4), lambda: fetched(device, x),
    lambda: device.launch(*step, 0), lambda: prepared.run(0), lambda: device.upload(x, 0, b"abcd"),
    lambda: device.module(b"abc"), device.trim, device.memory_use,
    lambda: device.order(x, 5), lambda: driver.open_device(0).wait(),
]
for attempt in attempts:
    try:
        attempt()
        print("worked")
    except DeviceError as error:
        assert "CUDA_ERROR_" in str(error) and "No CUDA call of this process works any more: restart" in str(error), error
        assert str(error).startswith(device.info.name), error
with using_stream(77):
    pass
y = x
del x
gc.collect()
print("fine")
"""
    assert program(code, may_complain=True) == "fine\n"  # the emulator's messages go to stderr


@pytest.mark.parametrize("code", sorted(loader.BROKEN)[::4])
def test_failures_that_end_all_work_are_remembered(own: Device, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    x = placed(own, counted(10))
    with monkeypatch.context() as patch:
        patch.setattr(own.cuda, "cuStreamSynchronize", lambda _: code)
        with pytest.raises(DeviceError, match=r"failed: CUDA.*restart the process\.") as caught:
            fetched(own, x)
    for late in (own.wait, lambda: own.allocate(4), lambda: run(own, x, x)):
        with pytest.raises(DeviceError, match=re.escape(str(caught.value))):
            late()


FAILING: dict[str, Callable[[Device], object]] = {
    "cuCtxSynchronize": lambda device: device.wait(),
    "cuStreamIsCapturing": lambda device: device.allocate(4),
    "cuMemGetInfo_v2": lambda device: device.memory_use(),
    "cuMemAllocFromPoolAsync": lambda device: device.allocate(4),
    "cuMemcpyHtoDAsync_v2": lambda device: placed(device, counted(4)),
    "cuMemcpyDtoHAsync_v2": lambda device: fetched(device, device.allocate(4)),
    "cuMemcpyDtoDAsync_v2": lambda device: device.copy(device.allocate(4), 0, device.allocate(4), 0, 4),
    "cuEventCreate": lambda device: driver.Event(device),
    "cuEventRecord": lambda device: device.follow(77, 0),
    "cuCtxPushCurrent_v2": lambda device: device.wait(),
}


@pytest.mark.parametrize("call", FAILING)
def test_a_call_that_fails_says_what_was_being_done(own: Device, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    x = placed(own, counted(10))
    with monkeypatch.context() as patch:
        patch.setattr(own.cuda, call, lambda *_: 999)
        patch.setattr(own.context, "_push", own.cuda.cuCtxPushCurrent_v2)
        with pytest.raises(DeviceError, match=r"\w failed: CUDA_ERROR_UNKNOWN"):
            FAILING[call](own)
    assert current_context() is None
    assert capture_mode() == 0
    np.testing.assert_array_equal(fetched(own, x), counted(10))


def test_memory_that_cannot_be_given_back_fails_nobody(own: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    own.allocate(400)
    with monkeypatch.context() as patch:
        patch.setattr(own.cuda, "cuMemFreeAsync", lambda *_: header.CUDA_ERROR_DEINITIALIZED)
        patch.setattr(own.cuda, "cuMemFree_v2", lambda *_: header.CUDA_ERROR_DEINITIALIZED)
        own.wait()
    assert own.memory_use().in_use == 0


def test_the_threads_own_values_are_its_own() -> None:
    found = []
    at_once(lambda _: found.append(id(context.thread.current)), 1)
    assert found != [id(context.thread.current)]
    assert modules._advice(0, "sm_90") == ""
