"""A Vulkan driver in which any call may fail: an error message, no leak, and the next array works."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tvmdml
from tvmdml.errors import DeviceError
from tvmdml.targets import Target
from tvmdml.targets.vulkan import connection, driver, loader, pipeline_cache
from tvmdml.targets.vulkan import structures as c

loader_functions = loader.functions
X = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
CODES = {
    "VK_ERROR_OUT_OF_HOST_MEMORY": c.VK_ERROR_OUT_OF_HOST_MEMORY,
    "VK_ERROR_OUT_OF_DEVICE_MEMORY": c.VK_ERROR_OUT_OF_DEVICE_MEMORY,
    "VK_ERROR_DEVICE_LOST": c.VK_ERROR_DEVICE_LOST,
    "VK_ERROR_UNKNOWN": -13,
    "VkResult -999999": -999999,
}
_MOST = 400


class Driver:
    """The driver, with one call that fails, of those that say how they went.

    Attributes:
        failing: which one: 1 is the next; ``code``: what it returns, without having done anything.
        failed: its name, when it was made.
        objects: how many there are that were created and not destroyed, by kind.
    """

    def __init__(self) -> None:
        self.failing, self.code, self.failed = 0, 0, ""
        self.objects: dict[str, int] = {}

    def functions(self, table: dict[str, Any], *arguments: Any, **keywords: Any) -> Any:
        """In place of ``loader.functions``."""
        found = vars(loader_functions(table, *arguments, **keywords))
        return SimpleNamespace(**{name: self._wrapped(name, found[name], table[name][0] is not None) for name in found})

    def _wrapped(self, name: str, function: Any, tells: bool) -> Any:
        if function is None or name.startswith("vkEnumerateInstance"):
            return function

        def called(*arguments: Any) -> Any:
            if tells and name != "vkGetDeviceProcAddr":
                self.failing -= 1
                if self.failing == 0:
                    self.failed = name
                    return self.code
            result = function(*arguments)
            for begin, change in (("vkCreate", 1), ("vkDestroy", -1), ("vkAllocateMemory", 1), ("vkFreeMemory", -1)):
                if name.startswith(begin) and not (tells and result < 0):
                    what = name.removeprefix(begin) or "Memory"
                    what = "Pipeline" if what == "ComputePipelines" else what
                    self.objects[what] = self.objects.get(what, 0) + change
            return result

        called.__name__ = name
        return called


@pytest.fixture
def faulty(vulkan: Target, monkeypatch: pytest.MonkeyPatch, forget: None) -> Iterator[Driver]:
    """A driver that can be told to fail; nothing is open yet, and no pipelines are kept."""
    found = Driver()
    driver.devices()
    instance = loader.instance()
    monkeypatch.setattr(connection, "functions", found.functions)
    real = vars(instance.vk)
    wrapped = {name: found._wrapped(name, function, c.INSTANCE_FUNCTIONS[name][0] is not None) for name, function in real.items()}
    monkeypatch.setattr(instance, "vk", SimpleNamespace(**wrapped))
    monkeypatch.setattr(driver, "_open", {})
    monkeypatch.setattr(pipeline_cache, "write", lambda *_: None)
    monkeypatch.setattr(pipeline_cache, "read", lambda *_: b"")
    yield found
    found.failing = 0
    close()


def close() -> None:
    gc.collect()
    for opened in list(driver._open.values()):
        opened.close()
    driver._open.clear()


def work() -> None:
    there = tvmdml.asarray(X, "vulkan")
    np.testing.assert_array_equal(tvmdml.round(there).numpy(), np.rint(X))
    np.testing.assert_array_equal(tvmdml.top_k(there, 2, axis=0).values.numpy(), -np.sort(-X, axis=0)[:2])


def fails(faulty: Driver, number: int, code: str) -> bool:
    """Whether there is such a call, given that its failure is told or got over, and that all is well afterwards."""
    faulty.failing, faulty.code, faulty.failed = number, CODES[code], ""
    said = ""
    try:
        work()
    except DeviceError as error:
        said = str(error)
    faulty.failing = 0
    where = f"call {number}, {faulty.failed}: {code}: {said}"
    assert not said or (faulty.failed in said and code in said), where
    work()
    close()
    assert not any(faulty.objects.values()), f"{where}: {faulty.objects}"
    return bool(faulty.failed)


@pytest.mark.full
def test_any_call_may_fail(faulty: Driver) -> None:
    seen = set()
    for number, code in zip(range(1, _MOST), itertools.cycle(CODES), strict=False):
        if not fails(faulty, number, code):
            break
        seen.add(faulty.failed)
    assert {"vkCreateDevice", "vkAllocateMemory", "vkCreateComputePipelines", "vkQueueSubmit"} <= seen


@pytest.mark.exhaustive
@pytest.mark.parametrize("code", CODES)
def test_any_call_may_fail_in_any_way(faulty: Driver, code: str) -> None:
    assert any(not fails(faulty, number, code) for number in range(1, _MOST))
    assert fails(faulty, 5, code)
