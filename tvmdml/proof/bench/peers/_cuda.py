"""What peers on a CUDA device share: their arrays, and the selection of the device and stream."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from tvmdml.proof.bench.inputs import Array
from tvmdml.proof.bench.peers._common import Attempt, Peer, torch
from tvmdml.proof.bench.task import Task

OnDevice = partial(Peer, where="cuda")
"""A peer that runs on the device."""

Outputs = tuple[Array, ...]

_inputs: weakref.WeakKeyDictionary[Task, dict[str, Any]] = weakref.WeakKeyDictionary()


def cupy() -> Any:
    """CuPy."""
    return importlib.import_module("cupy")


def torch_lacks() -> str:
    """What an installed PyTorch lacks to use the device."""
    return "" if torch().cuda.is_available() else "a build with CUDA, and a device for it"


def cupy_lacks() -> str:
    """What an installed CuPy lacks to use the device."""
    try:
        return "" if cupy().is_available() else "a device"
    except Exception as error:  # it does not load without its part of the CUDA toolkit
        return " ".join(str(error).split())[:100] or type(error).__name__


# For each library: how to select the device, and how to free the memory that it caches.
_USE: dict[str, Callable[[Any, int], object]] = {
    "torch": lambda torch, index: torch.cuda.is_available() and torch.cuda.set_device(index),
    "cupy": lambda cupy, index: cupy.is_available() and cupy.cuda.Device(index).use(),
}
_RELEASE: dict[str, Callable[[Any], object]] = {
    "torch": lambda torch: torch.cuda.is_available() and torch.cuda.empty_cache(),
    "cupy": lambda cupy: cupy.is_available() and cupy.get_default_memory_pool().free_all_blocks(),
}


def use(index: int) -> None:
    """Select a device for the installed libraries."""
    for name, use_device in _USE.items():
        if importlib.util.find_spec(name) is not None:
            with suppress(Exception):  # a library that does not load takes no part; ``missing`` says why
                use_device(importlib.import_module(name), index)


def release() -> None:
    """Free the memory that the libraries keep but no array uses."""
    for name, release_memory in _RELEASE.items():
        if name in sys.modules:
            release_memory(sys.modules[name])


# -- PyTorch ------------------------------------------------------------------------------------------------------


def tensor(array: Array) -> Any:
    """A copy of an array, on the device."""
    return torch().from_numpy(array).cuda()


def input_tensor(task: Task) -> Any:
    """The task's input on the device, shared by all attempts of PyTorch."""
    return _once(task, "torch", tensor)


def on_torch(call: Callable[[], object], results: Callable[[], Outputs]) -> Attempt:
    """An attempt of PyTorch."""
    return Attempt(call, results, stream=torch().cuda.current_stream().cuda_stream)


def writes_tensors(call: Callable[[], object], *outputs: Any) -> Callable[[], Outputs]:
    """The results that a call writes to tensors."""

    def results() -> Outputs:
        call()
        return tuple(output.cpu().numpy() for output in outputs)

    return results


# -- CuPy ---------------------------------------------------------------------------------------------------------


def input_array(task: Task) -> Any:
    """The task's input on the device, shared by all attempts of CuPy."""
    return _once(task, "cupy", lambda x: cupy().asarray(x))


def on_cupy(call: Callable[[], object], results: Callable[[], Outputs]) -> Attempt:
    """An attempt of CuPy."""
    return Attempt(call, results, stream=cupy().cuda.get_current_stream().ptr)


def writes_arrays(call: Callable[[], object], *outputs: Any) -> Callable[[], Outputs]:
    """The results that a call writes to CuPy arrays."""

    def results() -> Outputs:
        call()
        return tuple(cupy().asnumpy(output) for output in outputs)

    return results


def returns_array(call: Callable[[], Any]) -> Callable[[], Outputs]:
    """The result that a call of CuPy returns."""
    return lambda: (np.asarray(cupy().asnumpy(call())),)


def _once(task: Task, library: str, make: Callable[[Array], Any]) -> Any:
    kept = _inputs.setdefault(task, {})
    if library not in kept:
        kept[library] = make(task.x)
    return kept[library]
