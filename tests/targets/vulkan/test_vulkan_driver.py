"""The Vulkan driver layer: devices, memory, order, and what the validation layer says of it; with a hand-written shader."""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys

import numpy as np
import pytest
from device_work import counted, fetched, placed
from vulkan_work import pipeline, program, run, scale

from tvmdml.errors import DeviceError
from tvmdml.targets.vulkan import driver, loader, structures
from tvmdml.targets.vulkan.driver import Device
from tvmdml.targets.vulkan.memory import SMALL

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


def test_features_can_be_hidden(present: None) -> None:
    asked = "info = driver.devices()[0].capabilities; print(info.int64, info.atomic64, info.float16, info.float64)"
    assert program(asked, TVMDML_VULKAN_WITHOUT="shaderInt64, shaderFloat16,shaderFloat64").split() == ["False"] * 4
    said = program(ASKED, TVMDML_VULKAN_WITHOUT="shaderInt64,shaderint8").splitlines()
    assert said == [said[0]] * 2
    assert said[0].startswith("TVMDML_VULKAN_WITHOUT: given ['shaderint8']; allowed: shaderBufferInt64Atomics, ")


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


@pytest.mark.full(first=1)
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
    gc.collect()  # what other tests left in cycles is not counted
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


@pytest.mark.full
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


def run_bound(device: Device, binding: driver.BufferBinding) -> None:
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


@pytest.mark.full
@pytest.mark.parametrize("enables", ["", "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT"])
def test_the_validation_layer_has_nothing_to_say(present: None, enables: str) -> None:
    said = program(VALIDATED, TVMDML_VULKAN_VALIDATION="1", VK_LAYER_ENABLES=enables)
    if "apt-get install vulkan-validationlayers" in said:
        pytest.skip(said)
    assert said == "[]\n"


def test_without_the_validation_layer_it_says_what_to_install(present: None) -> None:
    said = program(ASKED, TVMDML_VULKAN_VALIDATION="1", VK_LAYER_PATH="/nonexistent")
    assert "VK_LAYER_KHRONOS_validation is not installed. Debian: apt-get install vulkan-validationlayers" in said
