"""A CUDA device and stand-ins for the libraries whose arrays lie on it."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cuda_work import is_emulator, new_stream
from foreign_arrays import CupyArray, Guard, cupy_from_dlpack, torch_library

from tvmdml import DeviceError, functions, targets
from tvmdml.targets.cuda import CudaTarget, foreign
from tvmdml.tensors import arrays


@pytest.fixture(params=["at once", "late"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaTarget]:
    """A device. The emulator's does its work when it is given, or when somebody waits for it: then what is not waited for shows."""
    try:
        found = targets.resolve("cuda:0")
    except DeviceError as error:
        if os.environ.get("TVMDML_CUDA_LIBRARY") or os.environ.get("TVMDML_EXPECT_CUDA") == "1":
            raise
        pytest.skip(f"no CUDA device here: {error}")
    assert isinstance(found, CudaTarget)
    if request.param == "late":
        if not is_emulator(found.device):
            pytest.skip("a GPU's work is always late")
        monkeypatch.setenv("TVMDML_EMULATED_LAZY", "1")
    yield found
    found.wait()


@pytest.fixture
def stream(device: CudaTarget) -> Iterator[int]:
    with new_stream(device.device) as made:
        yield made
        device.wait()


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = types.ModuleType("cupy")
    module.ndarray, module.from_dlpack, module.empty = CupyArray, cupy_from_dlpack, CupyArray
    module.cuda = types.SimpleNamespace(
        get_current_stream=lambda index=-1: types.SimpleNamespace(ptr=CupyArray.current), Device=Guard
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(foreign, "_libraries", {})
    monkeypatch.setattr(arrays, "ROOM_OF_TYPE", {})
    monkeypatch.setattr(functions, "_plans", {})
    monkeypatch.setattr(CupyArray, "current", 0)

    def array(values: Any) -> CupyArray:
        values = np.asarray(values)
        found = CupyArray(values.shape, values.dtype)
        found.set(values)
        return found

    module.array = array
    return module


@pytest.fixture
def torch(device: CudaTarget, monkeypatch: pytest.MonkeyPatch) -> Any:
    if not is_emulator(device.device):
        pytest.skip("with a GPU PyTorch shows it by itself")
    return torch_library(pytest.importorskip("torch", reason="PyTorch is not installed"), monkeypatch)
