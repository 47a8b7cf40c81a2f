"""The Vulkan driver layer: memory, order, threads, forks, and every failure; with a hand-written shader."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from device_work import Interrupts, counted, fetched, placed
from vulkan_work import THREADS, pipeline, program, run, scale, shader

from tvmdml.errors import DeviceError
from tvmdml.targets.vulkan import commands, driver, loader, pipeline_cache, structures
from tvmdml.targets.vulkan.driver import Device
from tvmdml.targets.vulkan.memory import SMALL


@pytest.fixture
def present() -> None:
    """There is a Vulkan device."""
    try:
        driver.open_device(0)
    except DeviceError as error:
        if os.environ.get("TVMDML_EXPECT_VULKAN") == "1":
            raise
        pytest.skip(f"no Vulkan device here: {error}")


@pytest.fixture(params=[False, True], ids=["unified", "staging"])
def device(request: pytest.FixtureRequest, present: None) -> Device:
    return driver.open_device(0, staging=request.param)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, present: None) -> Iterator[Device]:
    """A device of this test's own, to be broken."""
    monkeypatch.setattr(driver, "_open", {})
    first = driver.open_device(0)
    yield first
    for opened in (first, *driver._open.values()):
        assert opened.close()


# Devices


def test_a_device_says_who_it_is(device: Device) -> None:
    info = driver.devices()[0]
    assert info is device.info
    assert info.index == 0
    assert info.name
    assert info.driver
    assert not info.problem
    assert tuple(map(int, info.api.split("."))) >= (1, 2, 0)
    assert info.type in ("discrete GPU", "integrated GPU", "virtual GPU", "CPU", "other")
    assert info.capabilities.max_threads >= 128
    assert info.capabilities.max_buffers >= 4
    assert driver.open_device(0, staging=not device.unified) is device


def test_without_the_loader_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_LIBRARIES", ("libvulkan-that-is-not-here.so.1",))
    monkeypatch.setattr(loader, "_instance", None)
    monkeypatch.setattr(driver, "_found", ())
    with pytest.raises(
        DeviceError, match=r"libvulkan-that-is-not-here.so.1 was not found: .*libvulkan1.*GPU vendor.*mesa-vulkan-drivers"
    ):
        driver.devices()


ASKED = """
for attempt in range(2):
    try:
        print(driver.devices())
    except DeviceError as error:
        print(error)
"""


def test_without_a_driver_it_says_what_to_install(present: None) -> None:
    nowhere = {"VK_ICD_FILENAMES": "/nonexistent.json", "VK_DRIVER_FILES": "/nonexistent.json"}
    said = program(ASKED, **nowhere, TVMDML_VULKAN_VALIDATION="0").splitlines()  # the loader would change the result as well
    assert len(said) == 2
    for line in said:
        assert "found no working driver" in line
        assert "your GPU vendor's driver, or Mesa's" in line
        assert "VK_DRIVER_FILES is set to '/nonexistent.json'. VK_ICD_FILENAMES is set to '/nonexistent.json'." in line
        assert "VK_LOADER_DRIVERS" not in line


# Memory and order


def test_parts_of_memory(device: Device) -> None:
    step = max(device.storage_alignment, 4)
    memory = placed(device, np.zeros(3 * step, np.uint8))
    device.upload(memory, step + 1, b"abc")
    device.upload(memory, 3 * step, b"")
    got = bytearray(5)
    device.download(memory, step, got)
    assert bytes(got) == b"\0abc\0"
    bound = [(memory, step, 4), (memory, 2 * step, 4)]
    device.dispatch(pipeline(device), bound, scale(1, 1, 1), (1, 1, 1))
    device.download(memory, 2 * step, got[:0])
    device.download(memory, 2 * step, got)
    assert bytes(got) == b"\1abc\0"


def test_a_large_upload_waits_for_work_that_reads_the_old(device: Device) -> None:
    n = 4 * SMALL
    x, y = placed(device, counted(n)), device.allocate(4 * n)
    for _ in range(3):
        run(device, x, y, 2)
    device.upload(x, 0, np.zeros(n, np.uint32))
    np.testing.assert_array_equal(fetched(device, y), counted(n) * 2)
    assert not fetched(device, x).any()


def test_a_fill_takes_the_last_word_whole(device: Device) -> None:
    memory = placed(device, np.zeros(7, np.uint8))
    device.fill(memory, 0, 8, 0x01020304)
    device.fill(memory, 0, 0)
    got = bytearray(7)
    device.download(memory, 0, got)
    assert bytes(got) == b"\4\3\2\1\4\3\2"


def test_what_is_dropped_is_used_again(device: Device) -> None:
    device.trim()
    before = device.memory_use()
    for size in (100, 5000, 200_000, 3 << 20):
        for _ in range(50):
            x = placed(device, np.zeros(size, np.uint8))
            device.fill(x, 0, size // 4 * 4)
            device.wait()
            del x
    use = device.memory_use()
    assert use.in_use == before.in_use
    assert use.buffers <= before.buffers + 4
    device.trim()
    assert device.memory_use().idle <= before.idle
    assert device.memory_use().buffers <= before.buffers


def test_what_is_dropped_while_it_is_used_stays_whole(device: Device) -> None:
    outcome = []
    for step in range(100):
        x = placed(device, np.full(2000, step, np.uint32))
        y = device.allocate(8000)
        run(device, x, y, 3, 1)
        outcome.append(y)
        del x
    for step, y in enumerate(outcome):
        assert (fetched(device, y) == 3 * step + 1).all()


def test_small_memories_share_buffers(device: Device) -> None:
    device.trim()
    before = device.memory_use().buffers
    held = [placed(device, np.full(100, number, np.uint32)) for number in range(1000)]
    assert device.memory_use().buffers <= before + 2
    for number, memory in enumerate(held):
        assert (fetched(device, memory) == number).all()


def test_when_the_driver_has_no_memory_what_is_idle_goes_back_first(own: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    own.allocate(4 << 20)
    assert own.memory_use().idle
    allocate, calls = own.vk.vkAllocateMemory, itertools.count()
    monkeypatch.setattr(own.vk, "vkAllocateMemory", lambda *a: -2 if next(calls) == 0 else allocate(*a))
    held = own.allocate(64 << 20)
    assert own.memory_use()[:2] == (64 << 20, 0)
    del held
    monkeypatch.setattr(own.vk, "vkAllocateMemory", lambda *a: -2)
    with pytest.raises(DeviceError, match="vkAllocateMemory failed: VK_ERROR_OUT_OF_DEVICE_MEMORY"):
        own.allocate(65 << 20)


def test_nothing_reaches_outside_its_memory(device: Device) -> None:
    memory, other = device.allocate(1000), device.allocate(1000)
    values = bytes(1001)
    for wrong in (
        lambda: device.upload(memory, 0, values),
        lambda: device.upload(memory, -1, values[:5]),
        lambda: device.download(memory, 996, bytearray(5)),
        lambda: device.copy(memory, 0, other, 4, 1000),
        lambda: device.copy(memory, 4, other, 0, 1000),
        lambda: device.copy(memory, 0, other, 0, -4),
        lambda: device.fill(memory, 4, 1000),
        lambda: run_bound(device, (memory, 0, 1004)),
        lambda: run_bound(device, (memory, -device.storage_alignment, 4)),
    ):
        with pytest.raises(DeviceError, match=r"part of memory: given .*; allowed: a range within its 1000 bytes"):
            wrong()
    with pytest.raises(DeviceError, match="bytes to allocate: given -1"):
        device.allocate(-1)
    with pytest.raises(DeviceError, match="fill: given 6 bytes from 2; allowed: multiples of 4"):
        device.fill(memory, 2, 6)
    with pytest.raises(DeviceError, match="read-only"):
        device.download(memory, 0, b"abc")
    with pytest.raises(DeviceError, match="C-contiguous"):
        device.upload(memory, 0, counted(10)[::2])
    foreign = driver.open_device(0, staging=device.unified).allocate(1000)
    with pytest.raises(DeviceError, match="memory: given another device's"):
        device.upload(foreign, 0, b"abc")
    with pytest.raises(DeviceError, match="memory: given another device's"):
        run_bound(device, (foreign, 0, 1000))


def run_bound(device: Device, binding: driver.Binding) -> None:
    device.dispatch(pipeline(device), [binding, binding], scale(0), (1, 1, 1))


def test_bindings_keep_the_limits(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = device.allocate(4096)
    with pytest.raises(DeviceError, match="offset of a binding: given 2; allowed: multiples of"):
        run_bound(device, (memory, 2, 4))
    with pytest.raises(DeviceError, match="bytes of a binding: given 0; allowed: 1 or more"):
        run_bound(device, (memory, 0, 0))
    monkeypatch.setattr(device, "max_storage_range", 2048)
    said = r"an array of 2052 bytes; allowed: up to 2048 \(the device's maxStorageBufferRange\)\. Work in smaller parts\."
    with pytest.raises(DeviceError, match=said):
        run_bound(device, (memory, 0, 2052))


# Shaders


def test_a_shader_that_is_none(device: Device) -> None:
    for code in (b"", b"abc", b"abcd" * 10, shader()[:-1]):
        with pytest.raises(DeviceError, match="must be SPIR-V"):
            device.pipeline(code, 2, 20)
    with pytest.raises(DeviceError, match="bytes of push constants: given 65536"):
        device.pipeline(shader(), 2, 65536)
    with pytest.raises(DeviceError, match="buffers of a shader: given 1048576"):
        device.pipeline(shader(), 1 << 20, 20)
    memory = device.allocate(4)
    with pytest.raises(DeviceError, match="dispatch: given 1 buffers and 20 bytes of push constants; allowed: 2 and 20"):
        device.dispatch(pipeline(device), [(memory, 0, 4)], scale(1), (1, 1, 1))
    with pytest.raises(DeviceError, match="groups: given"):
        device.dispatch(pipeline(device), [(memory, 0, 4)] * 2, scale(1), (1, -1, 1))


def test_a_pipeline_of_another_device_is_refused(device: Device) -> None:
    foreign = pipeline(driver.open_device(0, staging=device.unified))
    assert foreign.device is not device
    memory = device.allocate(4)
    step = (foreign, [(memory, 0, 4)] * 2, scale(1), (1, 1, 1))
    for attempt in (lambda: device.dispatch(*step), lambda: device.prepare([step])):
        with pytest.raises(DeviceError, match="pipeline: given another device's; allowed: this device's own"):
            attempt()


def test_pipelines_that_nobody_holds_are_destroyed(own: Device) -> None:
    made = len(own.connection._made)
    assert pipeline(own, salt=1) is pipeline(own, salt=1) is not pipeline(own, salt=2)
    own._pipelines._kept = type(own._pipelines._kept)(maxlen=4)
    for salt in range(100, 130):
        memory = placed(own, counted(10))
        own.dispatch(pipeline(own, salt), [(memory, 0, 40)] * 2, scale(10, 1, 1), (1, 1, 1))
    own.wait()
    assert len(own.connection._made) <= made + 20


@pytest.mark.parametrize("groups", [(10, 1, 1), (4, 5, 7), (3, 2, 2)])
def test_more_groups_than_a_dispatch_may_have_are_split(
    device: Device, monkeypatch: pytest.MonkeyPatch, groups: tuple[int, int, int]
) -> None:
    monkeypatch.setattr(device, "max_groups", (3, 2, 2))
    row = groups[0] * THREADS
    n = row * groups[1] * groups[2]
    x = placed(device, counted(n))
    push = scale(n, 1, 1, row, groups[1])
    step = (pipeline(device), [(x, 0, 4 * n), (x, 0, 4 * n)], push, groups)
    device.dispatch(*step)  # in place, so that running twice changes the result
    prepared = device.prepare([step])
    prepared.run()
    np.testing.assert_array_equal(fetched(device, x), counted(n) + 2)


def test_no_groups_are_no_work(device: Device) -> None:
    x = placed(device, counted(10))
    for groups in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        step = (pipeline(device), [(x, 0, 40), (x, 0, 40)], scale(10, 2), groups)
        device.dispatch(*step)
        device.prepare([step]).run()
    device.prepare([]).run()
    np.testing.assert_array_equal(fetched(device, x), counted(10))


def test_prepared_dispatches_run_again_and_again(device: Device) -> None:
    x, y = placed(device, counted(1000)), device.allocate(4000)
    there, back = [(x, 0, 4000), (y, 0, 4000)], [(y, 0, 4000), (x, 0, 4000)]
    groups = (-(-1000 // THREADS), 1, 1)
    steps = [(pipeline(device), there, scale(1000, 3, 1), groups), (pipeline(device), back, scale(1000, 1, 2), groups)]
    prepared = device.prepare(steps)
    expected = counted(1000)
    for round_ in range(200):
        prepared.run()
        expected = expected * np.uint32(3) + np.uint32(3)
        if round_ % 50 == 0:
            run(device, x, x, 1, 1)
            expected += np.uint32(1)
    del prepared, y
    np.testing.assert_array_equal(fetched(device, x), expected)
    device.wait()


@pytest.mark.parametrize("runs", [0, 1])
def test_prepared_dispatches_that_are_dropped_do_not_pile_up(device: Device, runs: int) -> None:
    x = placed(device, counted(10))
    step = (pipeline(device), [(x, 0, 40), (x, 0, 40)], scale(10, 1, 1), (1, 1, 1))
    most = 0
    for _ in range(500):
        prepared = device.prepare([step])
        for _ in range(runs):
            prepared.run()
        del prepared
        most = max(most, len(device.dropped_prepared))
    assert most <= 2 * commands.BATCH * (commands.RING + 1) * runs + 64
    np.testing.assert_array_equal(fetched(device, x), counted(10) + np.uint32(500 * runs))
    device.wait()
    assert not device.dropped_prepared


def test_descriptor_sets_are_bounded_and_never_mixed_up(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.descriptor_sets, "limit", 4)
    device.wait()
    memories = [placed(device, np.full(64, number, np.uint32)) for number in range(100)]
    for memory in memories:
        run(device, memory, memory, 2, 1)
        device.wait()
    for number, memory in enumerate(memories):
        assert (fetched(device, memory) == 2 * number + 1).all()
    kept = len(device.descriptor_sets)
    for memory in memories:  # all of them pending at once
        run(device, memory, memory, 2, 1)
    for number, memory in enumerate(memories):
        assert (fetched(device, memory) == 4 * number + 3).all()
    assert len(device.descriptor_sets) <= kept + 100


def test_descriptor_sets_go_with_their_buffer(own: Device) -> None:
    for n in (2 << 20, 3 << 20, 2 << 20):
        x = placed(own, counted(n))
        run(own, x, x, 1, 1)
        np.testing.assert_array_equal(fetched(own, x), counted(n) + 1)
        assert len(own.descriptor_sets) == 1
        del x
        own.trim()
        assert len(own.descriptor_sets) == 0


def test_the_device_says_how_long_it_took(device: Device) -> None:
    if not device.timestamp_period:
        pytest.skip("this device has no clock")
    x = placed(device, counted(1 << 20))
    run(device, x, x)
    device.wait()
    begin = time.perf_counter()
    with device.timed() as timer:
        for _ in range(10):
            run(device, x, x)
    took = time.perf_counter() - begin
    assert 0 < timer.seconds <= took
    with device.timed() as nothing:
        pass
    assert 0 <= nothing.seconds < timer.seconds
    with pytest.raises(ZeroDivisionError), device.timed():
        1 / 0  # noqa: B018
    assert device.queue._holding == 0


# Threads, interrupts, forks, the end


def test_others_record_while_one_waits(device: Device) -> None:
    x = placed(device, counted(1 << 21))
    for _ in range(20):
        run(device, x, x, 1, 1)
    begun, ended = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        device.wait()
        ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    time.sleep(0.002)
    small = placed(device, counted(10))
    run(device, small, small)
    recorded_meanwhile = not ended.is_set()
    thread.join()
    assert recorded_meanwhile
    np.testing.assert_array_equal(fetched(device, x), counted(1 << 21) + 20)


def wait_for(device: Device, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        device.wait()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX signals")
def test_a_wait_can_be_interrupted(device: Device) -> None:
    x = placed(device, counted(1 << 20))
    for _ in range(50):
        run(device, x, x, 1, 1)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with pytest.raises(KeyboardInterrupt):
            wait_for(device, 60)
    finally:
        signal.signal(signal.SIGALRM, before)
    np.testing.assert_array_equal(fetched(device, x), counted(1 << 20) + 50)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX signals")
def test_interrupts_leave_a_device_that_can_be_closed(own: Device) -> None:
    x = placed(own, counted(10))
    got, deadline = bytearray(40), time.monotonic() + 0.3
    with Interrupts() as interrupts:
        while time.monotonic() < deadline:
            try:
                interrupts.armed = True
                for _ in range(1000):
                    own.download(x, 0, got)
            except KeyboardInterrupt as error:
                interrupts.raised.append(error)
    assert interrupts.raised
    assert own.queue.users.count == 0
    assert own.close()


def test_a_device_is_not_closed_while_somebody_uses_it(own: Device) -> None:
    with own.queue.users.join(), own.queue.users.join():
        assert own.queue.users.count == 2
        assert not own.close()
        assert not own.connection.closed
    assert own.queue.users.count == 0
    assert own.close()
    assert own.lost


def test_a_command_is_not_recorded_within_another(device: Device) -> None:
    x = placed(device, counted(10))
    device.queue.hold(1)
    run(device, x, x, 2)

    def within(_commands: int, _serial: int) -> None:
        for inner in (lambda: run(device, x, x), device.flush, device.wait):
            with pytest.raises(DeviceError, match="called during another call to it"):
                inner()

    device.queue.record(within)
    device.queue.hold(-1)
    np.testing.assert_array_equal(fetched(device, x), counted(10) * 2)


def test_batches_are_bounded(device: Device) -> None:
    x = placed(device, counted(1 << 14))
    device.wait()
    rounds = commands.BATCH * (commands.RING + 4)
    for _ in range(rounds):
        run(device, x, x, 1, 1)
    assert len(device.queue._under_way) <= commands.RING + 1
    np.testing.assert_array_equal(fetched(device, x), counted(1 << 14) + np.uint32(rounds))


def test_pending_work_is_finished_before_the_process_ends(present: None) -> None:
    code = """
import atexit
done = []
device = driver.open_device(0)
close = type(device.connection).close
def closing(connection):
    print(device.queue.done(device.queue.serial - 1), driver.validation_messages)
    close(connection)
type(device.connection).close = closing
x = placed(device, counted(1 << 20))
for _ in range(30):
    run(device, x, x, 1, 1)
"""
    assert program(code) == "True []\n"


# What is lost, what is kept


def test_a_lost_device_says_so_and_the_next_one_works(own: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    x = placed(own, counted(1000))
    with monkeypatch.context() as patch:
        patch.setattr(own.vk, "vkQueueSubmit", lambda *_: -4)
        with pytest.raises(DeviceError, match="vkQueueSubmit failed: VK_ERROR_DEVICE_LOST"):
            run(own, x, x)
    for late in (
        own.wait,
        own.flush,
        lambda: own.allocate(4),
        lambda: fetched(own, x),
        lambda: own.upload(x, 0, b"abc"),
        lambda: run(own, x, x),
        lambda: pipeline(own, salt=5),
    ):
        with pytest.raises(DeviceError, match="VK_ERROR_DEVICE_LOST"):
            late()
    assert own.lost
    again = driver.open_device(0)
    assert again is not own
    assert not again.lost
    with pytest.raises(DeviceError, match="VK_ERROR_DEVICE_LOST"):
        again.upload(x, 0, b"abc")
    y = placed(again, counted(1000))
    run(again, y, y, 2)
    np.testing.assert_array_equal(fetched(again, y), counted(1000) * 2)


def test_a_pipeline_of_a_lost_device_is_refused(own: Device) -> None:
    old = pipeline(own)
    assert old.device is own
    own.connection.lose("it is gone")
    again = driver.open_device(0)
    x = placed(again, counted(10))
    step = (old, [(x, 0, 40), (x, 0, 40)], scale(10), (1, 1, 1))
    for attempt in (lambda: again.dispatch(*step), lambda: again.prepare([step])):
        with pytest.raises(DeviceError, match="belongs to a device that was lost or closed; create it again on this one"):
            attempt()
    run(again, x, x, 2)
    np.testing.assert_array_equal(fetched(again, x), counted(10) * 2)


def test_who_waits_for_a_lost_device_does_not_wait_forever(own: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own.vk, "vkWaitSemaphores", lambda *_: time.sleep(0.01) or 2)  # the work never ends
    monkeypatch.setattr(own.vk, "vkGetSemaphoreCounterValue", lambda *_: 0)
    x = own.allocate(40)
    own.fill(x, 0, 40)
    said: list[str] = []

    def wait() -> None:
        try:
            own.wait()
        except DeviceError as error:
            said.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    own.connection.lose("it is gone")
    thread.join(10)
    assert said
    assert "it is gone" in said[0]


FAILING: dict[str, Callable[[Device], object]] = {
    "vkCreateBuffer": lambda device: device.allocate(33 << 20),
    "vkBindBufferMemory": lambda device: device.allocate(33 << 20),
    "vkMapMemory": lambda device: device.allocate(33 << 20),
    "vkCreateShaderModule": lambda device: pipeline(device, salt=77),
    "vkCreateComputePipelines": lambda device: pipeline(device, salt=77),
    "vkGetSemaphoreCounterValue": lambda device: device.wait(),
}


@pytest.mark.parametrize("call", FAILING)
def test_a_call_that_fails_is_named_and_leaves_nothing_behind(own: Device, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    x = own.allocate(40)
    own.fill(x, 0, 40, 2)
    pipeline(own)
    made = len(own.connection._made)
    with monkeypatch.context() as patch:
        patch.setattr(own.vk, call, lambda *_: -13)
        own.queue._done = 0
        with pytest.raises(DeviceError, match=rf"{call} failed: VK_ERROR_UNKNOWN\. .*vulkaninfo"):
            FAILING[call](own)
    assert len(own.connection._made) == made
    own.fill(x, 0, 40, 3)
    assert (fetched(own, x) == 3).all()


def test_compiled_pipelines_are_kept_and_nothing_else_is_believed(
    own: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path))
    identity = own._pipelines._identity
    file = pipeline_cache.path(identity)
    assert file.parent == tmp_path / "vulkan"

    def opened() -> Device:
        monkeypatch.setattr(driver, "_open", {})
        return driver.open_device(0)

    def work(device: Device) -> None:
        x = placed(device, counted(10))
        run(device, x, x, 2)
        np.testing.assert_array_equal(fetched(device, x), counted(10) * 2)
        assert device.close()

    work(opened())
    data = pipeline_cache.read(file, identity)
    assert len(data) >= 32
    assert not list(file.parent.glob(".*"))
    kept = file.read_bytes()
    foreign = bytearray(data)
    foreign[8] ^= 1  # the vendor's id
    wrong: list[Callable[[], object]] = [
        lambda: file.write_bytes(b""),
        lambda: file.write_bytes(kept[:-1]),
        lambda: file.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1])),
        lambda: file.write_bytes(os.urandom(5000)),
        lambda: pipeline_cache.write(file, bytes(foreign)),
        lambda: pipeline_cache.write(file, data[:20]),
        lambda: (file.unlink(), file.mkdir()),
    ]
    for spoil in wrong:
        spoil()
        assert pipeline_cache.read(file, identity) == b""
        work(opened())
    file.rmdir()
    pipeline_cache.write(file, data)
    assert pipeline_cache.read(file, identity) == data
    monkeypatch.setattr(pipeline_cache, "LIMIT", 16)
    pipeline_cache.write(file, data)
    assert not file.exists()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path / "file"))  # no folder can be made there
    work(opened())


# Khronos's validation layer

VALIDATED = """
import atexit, contextlib, io
atexit.unregister(driver._at_exit)
atexit.register(lambda: print(driver.validation_messages))  # after all is closed: what was left behind is named then
atexit.register(driver._at_exit)
try:
    driver.devices()
except DeviceError as error:
    print(error)
    sys.exit()
for staging in (False, True):
    device = driver.open_device(0, staging=staging)
    x, y = placed(device, counted(1000)), device.allocate(4000)
    for step in range(150):
        run(device, x, y, 3, step)
        run(device, y, x)
        device.upload(y, 0, counted(100))
    device.copy(x, 0, x, 4, 400)
    device.fill(y, 0, 400, 7)
    fetched(device, y)
    large = placed(device, counted(5 << 20))
    run(device, large, large)
    assert fetched(device, large).size == 5 << 20
    device.max_groups = (3, 2, 2)
    step = (pipeline(device), [(x, 0, 4000)] * 2, scale(1000), (5, 3, 3))
    device.dispatch(*step)
    prepared = device.prepare([step, step])
    for _ in range(10):
        prepared.run()
    with device.timed() as timer:
        prepared.run()
    device.descriptor_sets.limit = 2
    many = [device.allocate(400) for _ in range(10)]
    for memory in many:
        run(device, memory, memory)
        device.wait()
    del prepared, step, large, many
    device.trim()
    for salt in range(20):
        pipeline(device, salt)
    run(device, x, y)
assert not driver.validation_messages, driver.validation_messages
with contextlib.redirect_stderr(io.StringIO()) as shown:
    device.connection.destroy("Buffer", device.connection.create("Buffer", structures.VkBufferCreateInfo(size=16)))
said = driver.validation_messages.pop()
assert "VkBufferCreateInfo" in said  # it does listen
assert shown.getvalue() == f"tvmdml: Vulkan validation: {said}\\n", shown.getvalue()
"""


def test_each_validation_message_is_shown_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "validation_messages", [])
    monkeypatch.setattr(loader, "_shown", set())

    def say(text: bytes) -> None:
        data = structures.VkDebugUtilsMessengerCallbackDataEXT(pMessage=text)
        assert loader._take_message(0, 0, ctypes.addressof(data), 0) == 0

    for text in (b"one", b"two", b"one"):
        say(text)
    monkeypatch.setattr(sys, "stderr", None)
    say(b"three")
    assert loader.validation_messages == ["one", "two", "one", "three"]
    assert capsys.readouterr().err == "tvmdml: Vulkan validation: one\ntvmdml: Vulkan validation: two\n"


@pytest.mark.parametrize("enables", ["", "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT"])
def test_the_validation_layer_has_nothing_to_say(present: None, enables: str) -> None:
    said = program(VALIDATED, TVMDML_VULKAN_VALIDATION="1", VK_LAYER_ENABLES=enables)
    if "apt-get install vulkan-validationlayers" in said:
        pytest.skip(said)
    assert said == "[]\n"


def test_without_the_validation_layer_it_says_what_to_install(present: None) -> None:
    said = program(ASKED, TVMDML_VULKAN_VALIDATION="1", VK_LAYER_PATH="/nonexistent")
    assert "VK_LAYER_KHRONOS_validation is not installed. Debian: apt-get install vulkan-validationlayers" in said
