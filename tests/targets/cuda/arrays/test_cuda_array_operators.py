"""Compiled operators on other libraries' arrays, and PyTorch and CuPy themselves on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from cuda_work import Captured, new_stream
from foreign_arrays import LAYOUTS, VALUES, CupyArray, assert_calls, calls, current, lent, on, refused, run, seen
from support import ALL, mixture, seeded, top_k_desc

import tvmdml
from tvmdml import InvalidArgument, TensorDesc
from tvmdml.targets.cuda import CudaTarget, foreign
from tvmdml.tensors import arrays

# -- Compiled operators -------------------------------------------------------------------------------------------


def test_compiled_operators_take_them(device: CudaTarget, cupy: Any, torch: Any, stream: int) -> None:
    desc = top_k_desc(TensorDesc("float32", (3, 4)), 1, 2, "decreasing")
    operator = tvmdml.compile(desc, device)
    expected = tvmdml.top_k(VALUES, 2)
    makers: list[tuple[Any, Any, Any]] = [
        (torch.tensor, lambda dtype: torch.empty((3, 2), getattr(torch, dtype)), seen),
        (cupy.array, lambda dtype: CupyArray((3, 2), dtype), CupyArray.get),
    ]
    with current(stream):
        for make, empty, get in makers:
            x, values, indices = make(VALUES), empty("float32"), empty("uint32")
            for call in (
                lambda x=x, v=values, i=indices: operator(x, v, i),
                lambda x=x, v=values, i=indices: operator(input_tensor=x, output_value_tensor=v, output_index_tensor=i),
                operator.bind(x, values, indices),
                lambda x=x, v=values, i=indices: operator(on(device, VALUES), v, i),
                lambda x=x, v=values, i=indices: operator(VALUES, v, i),
            ):
                for array in (values, indices):
                    tvmdml.asarray(array, device).write(np.zeros((3, 2), np.uint8 if array is indices else np.float32))
                call()
                assert np.array_equal(get(values), expected.values)
                assert np.array_equal(get(indices), expected.indices)
            with pytest.raises(InvalidArgument, match="shape"):
                operator(values, x, indices)
            with pytest.raises(InvalidArgument, match="data type"):
                operator(x, indices, values)
            with pytest.raises(InvalidArgument, match="given an array on cuda:0; allowed: one on cpu"):
                tvmdml.compile(desc, "cpu")(x, values, indices)


@pytest.mark.full(first=1)
@pytest.mark.parametrize("shape", [(3, 4), (2, 100_000)], ids=["without temporaries", "with temporaries"])
def test_a_bound_operator_runs_on_the_stream_of_the_moment_and_may_be_captured(
    device: CudaTarget, cupy: Any, stream: int, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]
) -> None:
    target = device.device
    values = seeded("captured").standard_normal(shape).astype(np.float32)
    desc = top_k_desc(TensorDesc("float32", values.shape), 1, 2, "decreasing")
    operator = tvmdml.compile(desc, device)
    with current(stream):
        x, top, places = cupy.array(values), CupyArray((shape[0], 2), "f4"), CupyArray((shape[0], 2), "u4")
        run_again = operator.bind(x, top, places)
    with new_stream(target) as other, current(other):
        target.wait()
        run_again()
        assert np.array_equal(top.get(), tvmdml.top_k(values, 2).values)
        target.wait()
        graph = Captured(target, other)
        with refused(monkeypatch, "allocate", "upload", "download", "copy", "wait", "_synchronize"):
            with graph:
                run_again()
            run_again()
        for seed in range(3):
            values = seeded("captured", seed).standard_normal(shape).astype(np.float32)
            x.set(values)
            graph.replay(other)
            assert np.array_equal(top.get(), tvmdml.top_k(values, 2).values)
            assert np.array_equal(places.get(), tvmdml.top_k(values, 2).indices)
        target.wait()
        graph.close()


def test_functions_wait_for_nothing(device: CudaTarget, cupy: Any, stream: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with current(stream):
        x = cupy.array(VALUES)
        calls(x)
        with refused(monkeypatch, "upload", "download", "wait", "_synchronize"):
            results = [
                tvmdml.round(x),
                *tvmdml.top_k(x, 2),
                *tvmdml.nonzero_coordinates(x, trim=False),
                tvmdml.diagonal_matrix(x, value=1),
            ]
        assert np.array_equal(results[0].get(), np.rint(VALUES))


def test_a_view_is_quick(torch: Any) -> None:
    x = torch.tensor(VALUES)
    looked: list[str] = []
    kind = torch.CudaTensor

    def look(self: Any, name: str) -> Any:
        looked.append(name)
        return kind.__getattribute__(self, name)

    watched = type("Watched", (kind,), {"__getattribute__": look})
    y = x.as_subclass(watched)
    foreign._libraries[watched] = foreign._libraries[kind]
    looked.clear()
    arrays.view(y, "x")
    looked = [name for name in looked if name != "__torch_function__"]
    assert sorted(looked) == ["data_ptr", "dtype", "get_device", "is_cuda", "is_neg", "requires_grad", "shape", "stride"]


# -- The libraries themselves, on a GPU ---------------------------------------------------------------------------


@pytest.fixture
def real_torch() -> Any:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no CUDA device here")
    return torch


@pytest.fixture
def real_cupy() -> Any:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    try:
        assert cupy.cuda.runtime.getDeviceCount()
    except (cupy.cuda.runtime.CUDARuntimeError, AssertionError) as error:
        pytest.skip(f"CuPy sees no CUDA device here ({error})")
    return cupy


@contextmanager
def no_synchronisation(torch: Any) -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_pytorch_functions_equal_those_of_the_cpu(real_torch: Any) -> None:
    torch = real_torch
    assert_calls(torch.from_numpy(VALUES).cuda(), VALUES, torch.Tensor, lambda tensor: tensor.cpu().numpy())
    for layout in LAYOUTS.values():
        x = layout(torch.from_numpy(VALUES).cuda())
        result = tvmdml.round(x)
        assert result.is_cuda
        assert np.array_equal(result.cpu().numpy(), tvmdml.round(layout(VALUES)))
    for data_type in ALL:
        values = mixture(seeded("torch", data_type), data_type, (4, 6))
        for result, wanted in zip(tvmdml.top_k(torch.from_numpy(values).cuda(), 3), tvmdml.top_k(values, 3), strict=True):
            assert np.array_equal(result.cpu().numpy(), wanted, equal_nan=wanted.dtype.kind == "f")


def test_pytorch_side_streams_and_no_wait(real_torch: Any) -> None:
    torch = real_torch
    values = seeded("side").standard_normal((512, 4096)).astype(np.float32) * 9
    there = torch.from_numpy(values).cuda()
    tvmdml.round(there)
    tvmdml.top_k(there, 5)
    side = torch.cuda.Stream()
    for _ in range(5):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), no_synchronisation(torch):
            torch.cuda._sleep(20_000_000)
            x = there * 2
            rounded = tvmdml.round(x)
            top = tvmdml.top_k(rounded, 5)
            doubled = top.values + 1
        side.synchronize()
        assert np.array_equal(rounded.cpu().numpy(), np.rint(values * 2))
        assert np.array_equal(doubled.cpu().numpy(), tvmdml.top_k(np.rint(values * 2), 5).values + 1)


def test_pytorch_captures_bound_operators_and_functions(real_torch: Any) -> None:
    torch = real_torch
    values = seeded("graph").standard_normal((9, 300)).astype(np.float32) * 9
    x = torch.from_numpy(values).cuda()
    top, places = torch.empty(9, 5, device="cuda"), torch.empty(9, 5, dtype=torch.uint32, device="cuda")
    desc = top_k_desc(TensorDesc("float32", values.shape), 1, 5, "decreasing")
    run_again = tvmdml.compile(desc, "cuda:0").bind(x, top, places)
    run_again()
    tvmdml.round(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run_again()
        rounded = tvmdml.round(x)
    for seed in range(3):
        values = seeded("graph", seed).standard_normal((9, 300)).astype(np.float32) * 9
        x.copy_(torch.from_numpy(values))
        graph.replay()
        assert np.array_equal(top.cpu().numpy(), tvmdml.top_k(values, 5).values)
        assert np.array_equal(places.cpu().numpy(), tvmdml.top_k(values, 5).indices)
        assert np.array_equal(rounded.cpu().numpy(), np.rint(values))


def test_pytorch_takes_device_arrays_and_gives_them_back(real_torch: Any) -> None:
    torch = real_torch
    before = lent(2)
    x = tvmdml.asarray(VALUES, "cuda:0")
    tensor = torch.from_dlpack(x)
    assert tensor.is_cuda
    assert tensor.data_ptr() == x.memory.address
    assert torch.equal(tensor.cpu(), torch.from_numpy(VALUES))
    assert torch.equal(torch.as_tensor(x, device="cuda").cpu(), torch.from_numpy(VALUES))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        rounded = torch.from_dlpack(tvmdml.round(x)) + 0
    side.synchronize()
    assert np.array_equal(rounded.cpu().numpy(), np.rint(VALUES))
    del tensor
    assert lent() == before


def test_cupy_functions_equal_those_of_the_cpu(real_cupy: Any) -> None:
    cupy = real_cupy
    assert_calls(cupy.asarray(VALUES), VALUES, cupy.ndarray, cupy.asnumpy)
    for key in (np.s_[::-1], np.s_[:, ::-1], np.s_[::2, 1:]):
        assert np.array_equal(cupy.asnumpy(tvmdml.round(cupy.asarray(VALUES)[key])), tvmdml.round(VALUES[key]))
    with cupy.cuda.Stream(non_blocking=True) as stream:
        x = cupy.asarray(VALUES) * 2
        out = cupy.empty_like(x)
        assert tvmdml.round(x, out=out) is out
        stream.synchronize()
        assert np.array_equal(cupy.asnumpy(out), np.rint(VALUES * 2))
    there = tvmdml.asarray(VALUES, "cuda:0")
    for taken in (cupy.from_dlpack(there), cupy.asarray(there)):
        assert taken.data.ptr == there.memory.address
        assert np.array_equal(cupy.asnumpy(taken), VALUES)


@pytest.mark.full
def test_nothing_of_the_libraries_is_imported() -> None:
    code = """
        import sys, tvmdml, numpy as np
        tvmdml.round(np.zeros(3, np.float32))
        import tvmdml.targets.cuda.foreign
        print([name for name in ("torch", "cupy", "jax", "numba") if name in sys.modules])
    """
    assert run(code) == "[]\n"
