"""Kernels that belong to no operator: TE computations, scheduled by TVM's own rules for GPUs, compiled for a device and run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import Array, seeded

from tvmdml import targets
from tvmdml.system import imports
from tvmdml.targets import cuda, vulkan
from tvmdml.targets._lower import tvm_target
from tvmdml.targets.cuda import CudaTarget
from tvmdml.targets.cuda import launch as cuda_launch
from tvmdml.targets.cuda.launch import CudaLaunch
from tvmdml.targets.vulkan import VulkanTarget
from tvmdml.targets.vulkan import launch as vulkan_launch
from tvmdml.targets.vulkan.launch import VulkanLaunch


def scheduled(function: Any) -> Any:
    """The function under the first of TVM's GPU rules that fits it."""
    tvm = imports.tvm()
    from tvm.s_tir import dlight

    rules = (dlight.gpu.Matmul(), dlight.gpu.GEMV(), dlight.gpu.Reduction(), dlight.gpu.GeneralReduction(), dlight.gpu.Fallback())
    with tvm_target():
        return dlight.ApplyDefaultSchedule(*rules)(tvm.IRModule({"main": function}))["main"]


Make = Callable[[Any, Any], tuple[list[Any], Any]]
"""``make(te, topi)`` gives placeholders and the result."""


def _elementwise(te: Any, topi: Any) -> tuple[list[Any], Any]:
    a, b = te.placeholder((37, 41), "float32", "a"), te.placeholder((41,), "float32", "b")
    return [a, b], topi.add(topi.multiply(a, a), b)


def _matmul_of_halves(te: Any, topi: Any) -> tuple[list[Any], Any]:
    a, b = te.placeholder((33, 20), "float16", "a"), te.placeholder((20, 17), "float16", "b")
    return [a, b], topi.matmul(a, b)


def _matvec(te: Any, topi: Any) -> tuple[list[Any], Any]:
    a, x, k = te.placeholder((1, 256), "float32", "a"), te.placeholder((128, 256), "float32", "x"), te.reduce_axis((0, 256), "k")
    return [a, x], te.compute((1, 128), lambda i, j: te.sum(a[i, k] * x[j, k], axis=k), name="y")


def _sum(te: Any, topi: Any) -> tuple[list[Any], Any]:
    a = te.placeholder((30, 500), "int32", "a")
    return [a], topi.sum(a, axis=1)


def _softmax(te: Any, topi: Any) -> tuple[list[Any], Any]:
    a = te.placeholder((16, 200), "float32", "a")
    return [a], topi.nn.softmax(a)


def _convolution(te: Any, topi: Any) -> tuple[list[Any], Any]:
    a, w = te.placeholder((1, 8, 16, 16), "float32", "a"), te.placeholder((12, 8, 3, 3), "float32", "w")
    return [a, w], topi.nn.conv2d(a, w, 1, 1, 1)


def _gather(te: Any, topi: Any) -> tuple[list[Any], Any]:
    a, at = te.placeholder((50, 7), "float64", "a"), te.placeholder((30,), "int32", "at")
    return [a, at], topi.take(a, at, axis=0)


CASES: dict[str, tuple[Make, Callable[..., Array]]] = {
    "elementwise": (_elementwise, lambda a, b: a * a + b),
    "matmul of halves": (_matmul_of_halves, lambda a, b: (a.astype("f4") @ b.astype("f4")).astype("f2")),
    "matvec": (_matvec, lambda a, x: a @ x.T),
    "sum": (_sum, lambda a: a.sum(1, dtype=np.int32)),
    "softmax": (_softmax, lambda a: np.exp(a) / np.exp(a).sum(1, keepdims=True)),
    "convolution": (_convolution, lambda a, w: _convolved(a, w)),
    "gather": (_gather, lambda a, at: a[at]),
}


def _convolved(a: Array, w: Array) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(a, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, w, optimize=True)


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", CASES)
def test_a_scheduled_computation_runs(name: str, device: targets.Target) -> None:
    imports.tvm()
    from tvm import te, topi

    make, reference = CASES[name]
    placeholders, result = make(te, topi)
    rng = seeded("te", name)
    arrays = [_filled(rng, tuple(int(n) for n in p.shape), str(p.dtype), 30) for p in placeholders]
    expected = reference(*arrays)
    output = np.zeros(expected.shape, expected.dtype)
    function = scheduled(te.create_prim_func([*placeholders, result]))
    if isinstance(device, CudaTarget):
        program = cuda.compile_function(function, device.architectures, blocks=True)
        CudaLaunch(device, cuda_launch.Loaded(program), (), ())(*arrays, output)
        assert cuda.translate(function, blocks=True)[1]._replace(images=program.images) == program
    else:
        assert isinstance(device, VulkanTarget)
        compiled = vulkan.compile_function(function, device.capabilities, blocks=True)
        VulkanLaunch(device, vulkan_launch.Loaded(device.device, compiled), (), ())(*arrays, output)
    if expected.dtype.kind == "f":
        near = {2: 1e-2, 4: 1e-4, 8: 1e-12}[expected.dtype.itemsize]  # sums are computed in another order
        np.testing.assert_allclose(output, expected, rtol=near, atol=near)
    else:
        np.testing.assert_array_equal(output, expected)


def _filled(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, below: int) -> Array:
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, below, shape).astype(dtype)
