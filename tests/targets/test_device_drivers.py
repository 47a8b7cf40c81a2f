"""What the driver layers of CUDA and of Vulkan have in common: memory, order, threads, forks, interrupts, the end of a process.

On CUDA, the emulator does its work when it is given, or when somebody waits for it: then what is not waited for shows. Vulkan's
device is used with memory that the host can reach, and without.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import cuda_work
import numpy as np
import pytest
import vulkan_work
from device_work import Interrupts, counted, fetched, placed
from support import at_once

from tvmdml.errors import DeviceError
from tvmdml.targets.cuda import driver as cuda_driver
from tvmdml.targets.cuda import header
from tvmdml.targets.vulkan import driver as vulkan_driver


class Layer(NamedTuple):
    """A driver layer, and work for it."""

    driver: ModuleType
    work: ModuleType
    device: Any


@pytest.fixture(params=["cuda, at once", "cuda, late", "vulkan, unified", "vulkan, staging"])
def layer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Layer]:
    kind, _, way = request.param.partition(", ")
    request.getfixturevalue(kind)
    if kind == "vulkan":
        yield Layer(vulkan_driver, vulkan_work, vulkan_driver.open_device(0, staging=way == "staging"))
        return
    device = cuda_driver.open_device(0)
    if way == "late":
        if not cuda_work.is_emulator(device):
            pytest.skip("a GPU's work is always late")
        monkeypatch.setenv("TVMDML_EMULATED_LAZY", "1")
    yield Layer(cuda_driver, cuda_work, device)
    assert cuda_work.current_context() is None
    assert cuda_work.capture_mode() == 0
    device.wait()


WORK: dict[str, Any] = {"cuda": cuda_work, "vulkan": vulkan_work}


@pytest.fixture(params=WORK)
def work(request: pytest.FixtureRequest) -> Any:
    """Work for programs of their own."""
    request.getfixturevalue(request.param)
    return WORK[request.param]


def test_a_device_that_is_not_there(layer: Layer) -> None:
    for number in (99, -1):
        with pytest.raises(DeviceError, match=rf"(CUDA|Vulkan) device: given {number}; allowed: 0 to \d+"):
            layer.driver.open_device(number)


@pytest.mark.parametrize("n", [1, 1000, 300_001])
def test_what_goes_up_is_worked_on_and_comes_down(layer: Layer, n: int) -> None:
    device = layer.device
    x = placed(device, counted(n))
    y = device.allocate(4 * n)
    layer.work.run(device, x, y, 3, 7)
    np.testing.assert_array_equal(fetched(device, y), counted(n) * 3 + 7)


def test_a_copy_may_overlap_itself(layer: Layer) -> None:
    word = 4 if layer.driver is vulkan_driver else 1  # Vulkan copies whole words
    content = np.random.default_rng(3).integers(0, 256, 4000, np.uint8)
    for distance in (word, -word, 400, -1200):
        memory = placed(layer.device, content)
        begin, end, length = max(-distance, 0), max(distance, 0), 4000 - abs(distance)
        layer.device.copy(memory, begin, memory, end, length)
        layer.device.copy(memory, 5 * word, memory, 5 * word, 100)
        expected = content.copy()
        expected[end : end + length] = content[begin : begin + length]
        np.testing.assert_array_equal(fetched(layer.device, memory).view(np.uint8), expected)


def test_arrays_of_any_type_go_up(layer: Layer) -> None:
    texts = (memoryview(b"xyz"), bytearray(b"12"), b"")
    for values in (np.float16([1.5, -2]), np.array(7, np.int64), np.array([True, False]), *texts):
        size = memoryview(values).nbytes
        memory = layer.device.allocate(size)
        layer.device.upload(memory, 0, values)
        got = bytearray(size)
        layer.device.download(memory, 0, got)
        assert bytes(got) == memoryview(values).tobytes()


def test_a_thousand_launches_run_in_order(layer: Layer) -> None:
    device, run = layer.device, layer.work.run
    x, y = placed(device, counted(1000)), device.allocate(4000)
    expected = counted(1000)
    for step in range(500):
        run(device, x, y, 5, step)
        run(device, y, x, 3, 1)
        expected = (expected * np.uint32(5) + np.uint32(step)) * np.uint32(3) + np.uint32(1)
    np.testing.assert_array_equal(fetched(device, x), expected)


def test_uploads_and_copies_keep_their_place_among_launches(layer: Layer) -> None:
    device = layer.device
    x, y, z = placed(device, counted(5000)), device.allocate(20_000), device.allocate(20_000)
    results = []
    for step in range(20):
        device.upload(x, 0, counted(5000) + np.uint32(step))  # while earlier launches may still read it
        layer.work.run(device, x, y, 2)
        device.copy(y, 0, z, 0, 20_000)
        kept = device.allocate(20_000)
        device.copy(z, 0, kept, 0, 20_000)
        results.append(kept)
        if step % 2 and layer.driver is vulkan_driver:
            device.fill(y, 0, 20_000, 0xDEADBEEF)
        else:
            device.upload(y, 0, np.full(5000, 0xDEADBEEF, np.uint32))
    for step, kept in enumerate(results):
        np.testing.assert_array_equal(fetched(device, kept), (counted(5000) + np.uint32(step)) * np.uint32(2))
    assert (fetched(device, y) == 0xDEADBEEF).all()


def test_too_much_memory_is_refused_and_the_device_works_on(layer: Layer) -> None:
    held = placed(layer.device, counted(1000))
    sizes = [1 << 50, (1 << 62) + 5, 1 << 70]
    if layer.driver is cuda_driver:
        sizes.append(layer.device.memory_use().capacity + 1)
    for nbytes in sizes:
        with pytest.raises(DeviceError, match=rf"given {nbytes} bytes,? with \d+.* in use; .*Drop"):
            layer.device.allocate(nbytes)
    np.testing.assert_array_equal(fetched(layer.device, held), counted(1000))


@pytest.mark.full(first=1)
def test_many_threads_at_once(layer: Layer) -> None:
    device = layer.device

    def work(number: int) -> None:
        for step in range(25):
            n = 100 * (number + 1) + step
            x = placed(device, counted(n))
            y = device.allocate(4 * n)
            for _ in range(5):
                layer.work.run(device, x, y, number, step)
            assert np.array_equal(fetched(device, y), counted(n) * np.uint32(number) + np.uint32(step))
            if layer.driver is vulkan_driver:
                vulkan_work.pipeline(device, step)

    at_once(work, 8)


@pytest.mark.full
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX signals")
def test_interrupts_lose_no_work_but_what_they_interrupt(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    device = layer.device
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # pytest's keeps what frames of interrupted finalizers reference

    def used() -> tuple[int, int]:
        """What arrays use, and what the driver takes for used."""
        gc.collect()  # an exception that passes through its own frames' variables is in a cycle, with the arrays of these frames
        found = device.memory_use().in_use
        device.wait()  # for what was just freed
        if layer.driver is vulkan_driver:
            return 0, 0
        with device.context.entered():
            pool = device._pool
            return found, pool._attribute(header.CU_MEMPOOL_ATTR_USED_MEM_CURRENT) if pool._handle else 0

    x, y = placed(device, counted(10)), device.allocate(400)
    layer.work.run(device, x, x)
    in_use, finished, begin = used(), 0, time.monotonic()
    with Interrupts() as interrupts:
        while (passed := time.monotonic() - begin) < 1 or (not interrupts.raised and passed < 60):
            try:
                interrupts.armed = True
                layer.work.run(device, x, x, 1, 1)
                finished += 1
                device.upload(y, 0, b"abcd")
                device.download(y, 0, bytearray(4))
                device.allocate(4)
                if finished % 7 == 0:
                    device.wait()
            except KeyboardInterrupt as error:
                interrupts.raised.append(error)
            interrupts.armed = False
    values = fetched(device, x)
    assert interrupts.raised
    assert (values - values[0] == counted(10)).all()
    assert finished <= values[0] <= finished + len(interrupts.raised)
    if layer.driver is cuda_driver:
        # An interrupt may arrive while Python is about to restore these. That is harmless, and happens once in some hundred runs.
        cuda_work.restore(device)
    interrupts.raised.clear()
    deadline = time.monotonic() + 10
    while used() != in_use and time.monotonic() < deadline:  # in rare runs 4 bytes more were in use at first
        time.sleep(0.1)
    assert used() == in_use, [(loan.nbytes, loan.address.value, loan()) for loan in getattr(device, "_pool", device)._loans]


FORKED = """
child = os.fork()  # before the driver is started: both go on
device = driver.open_device(0)
x = placed(device, counted(1000))
run(device, x, x, 2)
if not child:
    sys.exit(0 if (fetched(device, x) == counted(1000) * 2).all() else 1)
assert os.waitpid(child, 0)[1] == 0
attempts = [
    driver.devices, lambda: driver.open_device(0), device.wait, lambda: device.allocate(4), lambda: run(device, x, x),
    lambda: fetched(device, x), lambda: device.upload(x, 0, b"abcd"), lambda: device.copy(x, 0, x, 4, 4), device.memory_use,
    device.trim, lambda: device.prepare([]), *more_attempts(device, x),
]
child = os.fork()
if not child:
    for attempt in attempts:
        try:
            attempt()
            print("worked")
        except DeviceError as error:
            assert f"forked after {NAME} was started" in str(error) and "spawn" in str(error), error
    del x, device, attempts
    gc.collect()
    sys.exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
assert (fetched(device, x) == counted(1000) * 2).all()
print("fine")
"""


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_works_before_the_driver_is_started_and_is_told_so_after(work: Any) -> None:
    assert work.program(FORKED) == "fine\n"


ENDS = {
    "while work is pending": "",
    "with an error": "import atexit\natexit.register(lambda: os._exit(0))\nsys.excepthook = lambda *_: None\nraise ValueError",
    "while a thread goes on": """
def forever():
    try:
        while True:
            placed(device, counted(100))
            run(device, x, x)
            device.wait()
    except DeviceError:
        pass
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.1)
""",
    "with everything held by a module": "sys.modules['held'] = (device, x, prepared, *more_attempts(device, x))\n",
    "with arrays in a cycle": "cycle = [x, device, prepared]\ncycle.append(cycle)\ndel x, cycle\n",
}


@pytest.mark.full
@pytest.mark.parametrize("lazy", ["0", "1"])
def test_a_process_ends_well(work: Any, lazy: str) -> None:
    """Each end in a child of its own, forked before the driver is started, which ends as the process itself would."""
    if work is not cuda_work and lazy == "1":
        pytest.skip("it is the emulator's")
    code = f"""
ends = {list({**ENDS, **work.ENDS}.items())!r}
for how, end in ends:
    sys.stdout.flush()
    child = os.fork()
    if not child:
        break
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, (how, status)
else:
    print("fine", flush=True)
    os._exit(0)
device = driver.open_device(0)
x = placed(device, counted(1 << 16))
prepared = prepare(device, x)
for _ in range(70):
    run(device, x, x, 1, 1)
    device.allocate(100)
exec(end)
"""
    assert work.program(code, TVMDML_EMULATED_LAZY=lazy) == "fine\n"
