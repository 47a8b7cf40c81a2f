"""The Vulkan driver layer: threads, interrupts, forks, devices that are lost, and pipelines that are kept."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from device_work import Interrupts, counted, fetched, placed
from vulkan_work import pipeline, program, run, scale

from tvmdml.errors import DeviceError
from tvmdml.targets.vulkan import commands, driver, pipeline_cache
from tvmdml.targets.vulkan.driver import Device

# Threads, interrupts, forks, the end


@pytest.mark.full
def test_others_record_while_one_waits(device: Device) -> None:
    x, small = placed(device, counted(1 << 21)), placed(device, counted(10))

    def recorded_meanwhile(times: int) -> bool:
        for _ in range(times):
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
        run(device, small, small)
        meanwhile = not ended.is_set()
        thread.join()
        return meanwhile

    tried = [20]
    while not recorded_meanwhile(tried[-1]):  # other programs had the processor
        assert len(tried) < 5
        tried.append(2 * tried[-1])
    np.testing.assert_array_equal(fetched(device, x), counted(1 << 21) + sum(tried))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_ends_without_the_exit_functions_of_drivers() -> None:
    """One that waits for a thread that only the parent has would wait for ever."""
    code = """
import ctypes
libc = ctypes.CDLL(None)
driver.open_device(0)
libc.on_exit(libc.abort, None)
if not (child := os.fork()):
    print("in the child")
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""
    assert program(code) == "in the child\n7\n"


def wait_for(device: Device, seconds: float, interrupt: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, interrupt)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        device.wait()


@pytest.mark.full
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX signals")
def test_a_wait_can_be_interrupted(device: Device) -> None:
    x = placed(device, counted(1 << 20))
    for _ in range(50):
        run(device, x, x, 1, 1)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait_for(device, 60, interrupt=0.01)
    finally:
        signal.signal(signal.SIGALRM, before)
    np.testing.assert_array_equal(fetched(device, x), counted(1 << 20) + 50)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX signals")
def test_interrupts_leave_a_device_that_can_be_closed(own: Device) -> None:
    x = placed(own, counted(10))
    got, begin = bytearray(40), time.monotonic()
    with Interrupts() as interrupts:
        while (passed := time.monotonic() - begin) < 0.3 or (not interrupts.raised and passed < 60):
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


@pytest.mark.full(first=1)
def test_batches_are_bounded(device: Device) -> None:
    x = placed(device, counted(1 << 14))
    device.wait()
    rounds = commands.BATCH * (commands.RING + 4)
    for _ in range(rounds):
        run(device, x, x, 1, 1)
    assert len(device.queue._under_way) <= commands.RING + 1
    np.testing.assert_array_equal(fetched(device, x), counted(1 << 14) + np.uint32(rounds))


@pytest.mark.full
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
