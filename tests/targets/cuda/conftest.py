"""A CUDA device, for the tests of its driver layer, and a real compiler."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from cuda_compilers import use
from cuda_work import capture_mode, current_context, is_emulator

from tvmdml.errors import DeviceError
from tvmdml.targets.cuda import driver
from tvmdml.targets.cuda.driver import Device


@pytest.fixture(scope="session")
def present() -> None:
    """There is a device: a GPU, or the emulator."""
    try:
        driver.devices()
    except DeviceError as error:
        if os.environ.get("TVMDML_CUDA_LIBRARY") or os.environ.get("TVMDML_EXPECT_CUDA") == "1":
            raise
        pytest.skip(f"no CUDA device here: {error}")


@pytest.fixture(params=["at once", "late"])
def device(request: pytest.FixtureRequest, present: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A device. The emulator's does its work when it is given, or when somebody waits for it: then what is not waited for shows."""
    found = driver.open_device(0)
    if request.param == "late":
        if not is_emulator(found):
            pytest.skip("a GPU's work is always late")
        monkeypatch.setenv("TVMDML_EMULATED_LAZY", "1")
    yield found
    assert current_context() is None
    assert capture_mode() == 0
    found.wait()


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, present: None) -> Device:
    """A device of this test's own, to be broken."""
    monkeypatch.setattr(driver, "_open", {})
    return driver.open_device(0)


@pytest.fixture
def any_compiler(monkeypatch: pytest.MonkeyPatch) -> str:
    """The quicker of the real compilers that are here."""
    try:
        return use("nvrtc", monkeypatch)
    except pytest.skip.Exception:
        return use("nvcc", monkeypatch)
