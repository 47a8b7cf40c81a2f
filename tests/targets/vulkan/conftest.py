"""A Vulkan device, for the tests of its driver layer."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tvmdml.errors import DeviceError
from tvmdml.targets.vulkan import driver
from tvmdml.targets.vulkan.driver import Device


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
