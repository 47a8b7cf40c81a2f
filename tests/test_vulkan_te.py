"""Kernels that belong to no operator: TE computations, scheduled by TVM's own rules for GPUs, compiled for Vulkan and run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import Array, seeded

from tvmdml import _imports, targets
from tvmdml.targets._lower import tvm_target
from tvmdml.targets.vulkan import VulkanTarget, compile_function
from tvmdml.targets.vulkan.launch import Loaded, VulkanLaunch


@pytest.fixture(scope="module")
def device(vulkan: targets.Target) -> VulkanTarget:
    assert isinstance(vulkan, VulkanTarget)
    return vulkan


def scheduled(function: Any) -> Any:
    """The function under the first of TVM's GPU rules that fits it."""
    tvm = _imports.tvm()
    from tvm.s_tir import dlight

    rules = (dlight.gpu.Matmul(), dlight.gpu.GEMV(), dlight.gpu.Reduction(), dlight.gpu.GeneralReduction(), dlight.gpu.Fallback())
    with tvm_target():
        return dlight.ApplyDefaultSchedule(*rules)(tvm.IRModule({"main": function}))["main"]


def run(device: VulkanTarget, function: Any, *arrays: Array) -> None:
    program = compile_function(scheduled(function), device.capabilities, blocks=True)
    VulkanLaunch(device, Loaded(device, program), (), ())(*arrays)


Make = Callable[[Any, Any], tuple[list[Any], Any]]
"""``make(te, topi)`` gives placeholders and the result."""


def _elementwise(te: Any, topi: Any) -> tuple[list[Any], Any]:
    a, b = te.placeholder((37, 41), "float32", "a"), te.placeholder((41,), "float32", "b")
    return [a, b], topi.add(topi.multiply(a, a), b)


def _matmul(te: Any, topi: Any) -> tuple[list[Any], Any]:
    a, b = te.placeholder((96, 64), "float32", "a"), te.placeholder((80, 64), "float32", "b")
    return [a, b], topi.matmul(a, b, transp_b=True)


def _matmul_of_halves(te: Any, topi: Any) -> tuple[list[Any], Any]:
    a, b = te.placeholder((33, 20), "float16", "a"), te.placeholder((20, 17), "float16", "b")
    return [a, b], topi.matmul(a, b)


def _matvec(te: Any, topi: Any) -> tuple[list[Any], Any]:
    a, x, k = te.placeholder((1, 256), "float32", "a"), te.placeholder((128, 256), "float32", "x"), te.reduce_axis((0, 256), "k")
    return [a, x], te.compute((1, 128), lambda i, j: te.sum(a[i, k] * x[j, k], axis=k), name="y")


def _sum(te: Any, topi: Any) -> tuple[list[Any], Any]:
    a = te.placeholder((30, 500), "int32", "a")
    return [a], topi.sum(a, axis=1)


def _maximum(te: Any, topi: Any) -> tuple[list[Any], Any]:
    a = te.placeholder((12, 333), "uint8", "a")
    return [a], topi.max(a, axis=1)


def _softmax(te: Any, topi: Any) -> tuple[list[Any], Any]:
    a = te.placeholder((16, 200), "float32", "a")
    return [a], topi.nn.softmax(a)


def _transposed(te: Any, topi: Any) -> tuple[list[Any], Any]:
    a = te.placeholder((23, 9, 31), "int64", "a")
    return [a], topi.transpose(a, (2, 0, 1))


def _convolution(te: Any, topi: Any) -> tuple[list[Any], Any]:
    a, w = te.placeholder((1, 8, 16, 16), "float32", "a"), te.placeholder((12, 8, 3, 3), "float32", "w")
    return [a, w], topi.nn.conv2d(a, w, 1, 1, 1)


def _gather(te: Any, topi: Any) -> tuple[list[Any], Any]:
    a, at = te.placeholder((50, 7), "float64", "a"), te.placeholder((30,), "int32", "at")
    return [a, at], topi.take(a, at, axis=0)


def _padded(te: Any, topi: Any) -> tuple[list[Any], Any]:
    a = te.placeholder((9, 10), "int16", "a")
    return [a], topi.nn.pad(a, (1, 2), (3, 0), pad_value=-7)


CASES: dict[str, tuple[Make, Callable[..., Array]]] = {
    "elementwise": (_elementwise, lambda a, b: a * a + b),
    "matmul": (_matmul, lambda a, b: a @ b.T),
    "matmul of halves": (_matmul_of_halves, lambda a, b: (a.astype("f4") @ b.astype("f4")).astype("f2")),
    "matvec": (_matvec, lambda a, x: a @ x.T),
    "sum": (_sum, lambda a: a.sum(1, dtype=np.int32)),
    "maximum": (_maximum, lambda a: a.max(1)),
    "softmax": (_softmax, lambda a: np.exp(a) / np.exp(a).sum(1, keepdims=True)),
    "transposed": (_transposed, lambda a: a.transpose(2, 0, 1)),
    "convolution": (_convolution, lambda a, w: _convolved(a, w)),
    "gather": (_gather, lambda a, at: a[at]),
    "padded": (_padded, lambda a: np.pad(a, ((1, 3), (2, 0)), constant_values=-7)),
}


def _convolved(a: Array, w: Array) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(a, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, w, optimize=True)


@pytest.mark.parametrize("name", CASES)
def test_a_scheduled_computation_runs(name: str, device: VulkanTarget) -> None:
    _imports.tvm()
    from tvm import te, topi

    make, reference = CASES[name]
    placeholders, result = make(te, topi)
    rng = seeded("te", name)
    arrays = [_filled(rng, tuple(int(n) for n in p.shape), str(p.dtype), 30) for p in placeholders]
    expected = reference(*arrays)
    output = np.zeros(expected.shape, expected.dtype)
    run(device, te.create_prim_func([*placeholders, result]), *arrays, output)
    if expected.dtype.kind == "f":
        near = {2: 1e-2, 4: 1e-4, 8: 1e-12}[expected.dtype.itemsize]  # sums are computed in another order
        np.testing.assert_allclose(output, expected, rtol=near, atol=near)
    else:
        np.testing.assert_array_equal(output, expected)


def _filled(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, below: int) -> Array:
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, below, shape).astype(dtype)
