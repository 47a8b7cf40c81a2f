"""The arrays of a library at a place. With them a peer is one function for NumPy and CuPy, or for PyTorch on either place."""

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

from tvmdml.proof.bench import inputs
from tvmdml.proof.bench.inputs import NumpyArray, Sizes
from tvmdml.proof.bench.peers._common import Attempt, Peer, torch
from tvmdml.proof.bench.task import Task
from tvmdml.proof.bench.work import Work

Results = Callable[[], tuple[NumpyArray, ...]]


class Arrays:
    """NumPy's arrays; for other libraries, what is different."""

    library, where = "numpy", "cpu"

    @property
    def functions(self) -> Any:
        """The module with the library's functions."""
        return importlib.import_module(self.library)

    def of(self, array: NumpyArray) -> Any:
        """The library's view of an array, or its copy on the device."""
        return array

    def back(self, array: Any) -> NumpyArray:
        """A result as NumPy's array."""
        return np.asarray(array)

    def input(self, task: Task) -> Any:
        """The task's first input, shared by all attempts of the library."""
        return task.x

    def copy(self, task: Task) -> Any:
        """A copy of the task's first input, which may be written to."""
        return inputs.like(task.x)

    def empty(self, task: Task, sizes: Sizes, dtype: Any) -> Any:
        """A packed array."""
        return inputs.empty(sizes, dtype)

    def into(self, out: Any, function: Callable[..., Any], *given: Any, **named: Any) -> Callable[[], Any]:
        """A call of a function that writes to an array, which it takes as the last argument."""
        return partial(function, *given, out, **named)

    def attempt(self, call: Callable[[], Any], results: Results, threads: int) -> Attempt:
        """A call, and what gets its results."""
        return Attempt(call, results)

    def writes(self, threads: int, call: Callable[[], Any], *outputs: Any) -> Attempt:
        """A call that writes to arrays."""

        def results() -> tuple[NumpyArray, ...]:
            call()
            return tuple(map(self.back, outputs))

        return self.attempt(call, results, threads)

    def returns(
        self, threads: int, call: Callable[[], Any], change: Callable[[NumpyArray], NumpyArray] = lambda found: found
    ) -> Attempt:
        """A call that returns an array, which is changed to the form of the reference."""
        return self.attempt(call, lambda: (change(self.back(call())),), threads)

    def peer(
        self, name: str, make: Callable[[Any, Task, int], Attempt], when: Callable[[Work], bool] = lambda work: True, note: str = ""
    ) -> Peer:
        """A peer of the library; ``make`` is given these arrays first."""
        return Peer(self.library, name, partial(make, self), when, note, self.where)


class _OnDevice(Arrays):
    """Arrays on a CUDA device, which get their task's input once."""

    where = "cuda"

    def __init__(self) -> None:
        self.held: weakref.WeakKeyDictionary[Task, Any] = weakref.WeakKeyDictionary()

    def input(self, task: Task) -> Any:
        if task not in self.held:
            self.held[task] = self.of(task.x)
        return self.held[task]


class _CuPy(_OnDevice):
    library = "cupy"

    def of(self, array: NumpyArray) -> Any:
        return self.functions.asarray(array)

    def back(self, array: Any) -> NumpyArray:
        return np.asarray(self.functions.asnumpy(array))

    def copy(self, task: Task) -> Any:
        return self.input(task).copy()

    def empty(self, task: Task, sizes: Sizes, dtype: Any) -> Any:
        return self.functions.empty(sizes, dtype)

    def attempt(self, call: Callable[[], Any], results: Results, threads: int) -> Attempt:
        return Attempt(call, results, stream=self.functions.cuda.get_current_stream().ptr)


class _Torch(Arrays):
    library = "torch"

    def of(self, array: NumpyArray) -> Any:
        return torch().from_numpy(array)

    def back(self, array: Any) -> NumpyArray:
        return np.asarray(array.cpu().numpy())

    def input(self, task: Task) -> Any:
        return self.of(task.x)

    def copy(self, task: Task) -> Any:
        return self.input(task).clone()

    def empty(self, task: Task, sizes: Sizes, dtype: Any) -> Any:
        return self.of(inputs.empty(sizes, dtype))

    def into(self, out: Any, function: Callable[..., Any], *given: Any, **named: Any) -> Callable[[], Any]:
        return partial(function, *given, out=out, **named)

    def attempt(self, call: Callable[[], Any], results: Results, threads: int) -> Attempt:
        return Attempt(call, results, partial(torch().set_num_threads, threads))


class _TorchOnDevice(_OnDevice, _Torch):
    def of(self, array: NumpyArray) -> Any:
        return super().of(array).cuda()

    def empty(self, task: Task, sizes: Sizes, dtype: Any) -> Any:
        own = torch().from_numpy(np.empty(0, dtype)).dtype
        return torch().empty(sizes, dtype=own, device=self.input(task).device)

    def attempt(self, call: Callable[[], Any], results: Results, threads: int) -> Attempt:
        return Attempt(call, results, stream=torch().cuda.current_stream().cuda_stream)


NUMPY, CUPY, TORCH, CUDA_TORCH = Arrays(), _CuPy(), _Torch(), _TorchOnDevice()
IN_NUMPY = (NUMPY, CUPY)
"""Both have NumPy's functions."""
IN_TORCH = (TORCH, CUDA_TORCH)


# -- CUDA devices -------------------------------------------------------------------------------------------------


def torch_lacks() -> str:
    """What an installed PyTorch lacks to use the device."""
    return "" if torch().cuda.is_available() else "a build with CUDA, and a device for it"


def cupy_lacks() -> str:
    """What an installed CuPy lacks to use the device."""
    try:
        return "" if CUPY.functions.is_available() else "a device"
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
