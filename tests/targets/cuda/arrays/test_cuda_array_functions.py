"""Functions of other libraries' arrays on a CUDA device, their outputs, and moves between libraries and devices."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from foreign_arrays import LAYOUTS, LEGACY, SPEAKERS, VALUES, CupyArray, Shows, Speaks, assert_calls, copy_on, current, on, seen
from support import ALL, mixture, round_desc, seeded

import tvmdml
from tvmdml import DeviceArray, InvalidArgument, TensorDesc, functions, targets
from tvmdml.targets.cuda import CudaTarget, dlpack, driver, foreign

# -- Functions ----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_results_are_cupys_from_its_own_memory_on_its_own_stream(device: CudaTarget, cupy: Any, stream: int) -> None:
    with current(stream):
        x = cupy.array(VALUES)
        made = CupyArray.made
        assert_calls(x, VALUES, CupyArray, CupyArray.get)
        assert CupyArray.made >= made + 8
        y = tvmdml.round(x)
        assert y.data.mem.stream == stream


def test_results_are_pytorchs(torch: Any) -> None:
    x = torch.tensor(VALUES)
    made = torch.made
    assert_calls(x, VALUES, torch.Tensor, seen)
    assert torch.made >= made + 8
    for _ in range(2):  # what is cached for calls of one library does not apply to the other
        assert tvmdml.top_k(x, 2).indices.dtype == tvmdml.nonzero_coordinates(x).dtype == torch.int64
        assert tvmdml.top_k(VALUES, 2).indices.dtype == tvmdml.nonzero_coordinates(VALUES).dtype == np.uint32
    assert tvmdml.top_k(x, 2, index_dtype=torch.uint32).indices.dtype == torch.uint32
    assert tvmdml.top_k(x, 0).indices.shape == (3, 0)


def test_every_type_is_taken(device: CudaTarget, torch: Any) -> None:
    for number, data_type in enumerate(ALL):
        values = mixture(seeded("foreign", data_type), data_type, (3, 5))
        expected, nan = tvmdml.round(values) if data_type.is_float else tvmdml.add(values, values), data_type.is_float
        given = [torch.tensor(values), SPEAKERS[number % len(SPEAKERS)](on(device, values))]
        for x, get in zip(given, (seen, DeviceArray.numpy), strict=True):
            assert np.array_equal(get(tvmdml.round(x) if nan else tvmdml.add(x, x)), expected, equal_nan=nan)


def test_kinds_of_one_form_do_not_meet(device: CudaTarget, cupy: Any, torch: Any) -> None:
    x = on(device, VALUES)
    kinds = [(x, DeviceArray), (cupy.array(VALUES), CupyArray), (torch.tensor(VALUES), torch.Tensor), (Shows(x), DeviceArray)]
    for array, kind in kinds + kinds[::-1]:
        assert isinstance(tvmdml.round(array), kind)
        assert isinstance(tvmdml.round(array, device=f"cuda:{device.architectures[0]}"), kind)
    for array, _ in kinds[1:]:
        with pytest.raises(InvalidArgument, match=r"given an array on cuda:0; allowed: one on cpu:.* tvmdml\.asarray\(x\), or"):
            tvmdml.round(array, device="cpu")


def test_pytorchs_views_are_read_as_they_lie(torch: Any) -> None:
    for name, layout in LAYOUTS.items():
        x, values, made = layout(torch.tensor(VALUES)), layout(VALUES), torch.made
        assert np.array_equal(seen(tvmdml.round(x)), tvmdml.round(values)), name
        assert torch.made == made + 1, name


@pytest.mark.parametrize("key", [np.s_[::-1], np.s_[:, ::-1], np.s_[::-2, 1:], np.s_[1:, ::2], np.s_[2, ::-3], np.s_[:0, ::-1]])
def test_cupys_views_are_read_as_they_lie_or_packed_on_the_device(
    device: CudaTarget, cupy: Any, stream: int, key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with current(stream):
        x = cupy.array(VALUES)[key]
        tvmdml.round(x)  # the first call looks twice
        taken: list[Any] = []
        real = CupyArray.copy
        monkeypatch.setattr(CupyArray, "copy", lambda self, order="C": taken.append(self) or real(self, order))
        assert np.array_equal(tvmdml.round(x).get(), tvmdml.round(VALUES[key]))
        assert len(taken) == any(n and step < 0 for n, step in zip(x.shape, x.strides, strict=True))
        there = tvmdml.asarray(x, device)
        assert np.array_equal(there.numpy(), VALUES[key])
        assert there.strides == x.strides
        there.write(np.zeros(x.shape, np.float32))
        assert not x.get().any()


def test_misaligned_memory_is_packed_or_refused(device: CudaTarget, cupy: Any) -> None:
    held = cupy.array(np.frombuffer(b"\0" + VALUES.tobytes(), np.uint8))
    x = CupyArray(VALUES.shape, np.float32, held.data + 1)
    assert np.array_equal(tvmdml.round(x).get(), np.rint(VALUES))
    there = tvmdml.asarray(x, device)
    assert not there.flags.aligned
    assert there.flags.writeable
    with pytest.raises(InvalidArgument, match=r"(?s)an array of foreign_arrays with.*Make a packed copy"):
        tvmdml.round(Shows(there))
    desc = round_desc(TensorDesc("float32", VALUES.shape))
    with pytest.raises(InvalidArgument, match="memory that is not aligned to its element size"):
        tvmdml.compile(desc, device)(x, CupyArray(VALUES.shape, np.float32))


@pytest.mark.full
@pytest.mark.parametrize("speaker", SPEAKERS)
def test_arrays_that_only_speak_give_arrays_of_a_device(device: CudaTarget, speaker: Any) -> None:
    assert_calls(speaker(on(device, VALUES)), VALUES, DeviceArray, DeviceArray.numpy)
    x = on(device, VALUES)
    for part in (x[:, 1:3], x[::2], x[1], x[1, 1], x[:0]):
        assert np.array_equal(tvmdml.round(speaker(part)).numpy(), np.rint(part.numpy()))


def test_results_are_taken_in_by_a_library_that_speaks_dlpack(device: CudaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    library = types.ModuleType("some_library")
    adopted: list[Any] = []

    class Its(Speaks):
        pass

    def from_dlpack(array: Any) -> Its:
        adopted.append(dlpack.read(array.__dlpack__(stream=LEGACY, max_version=(1, 0))))
        return Its(array)

    Its.__module__ = "some_library.arrays"
    library.from_dlpack = from_dlpack  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_library", library)
    results = [tvmdml.round(Its(on(device, VALUES))), *tvmdml.top_k(Its(on(device, VALUES)), 2)]
    results.append(tvmdml.nonzero_coordinates(Its(on(device, VALUES))))
    expected = [tvmdml.round(VALUES), *tvmdml.top_k(VALUES, 2), tvmdml.nonzero_coordinates(VALUES)]
    for result, wanted in zip(results, expected, strict=True):
        assert type(result) is Its
        assert np.array_equal(result.array.numpy(), wanted)
    assert adopted
    assert all(said.device == (2, 0) for said in adopted)
    del library.from_dlpack  # type: ignore[attr-defined]
    library.as_cuda_array = Its  # type: ignore[attr-defined]
    monkeypatch.setattr(foreign, "_libraries", {})
    monkeypatch.setattr(functions, "_plans", {})
    assert type(tvmdml.round(Its(on(device, VALUES)))) is Its


# -- Outputs ------------------------------------------------------------------------------------------------------


def test_results_go_to_cupys_arrays(device: CudaTarget, cupy: Any, stream: int) -> None:
    with current(stream):
        x = cupy.array(VALUES)
        packed = CupyArray((3, 4), "f4")
        transposed = CupyArray((3, 4), "f4", packed.data, (4, 12))
        for out in (packed, transposed, CupyArray((6, 8), "f4")[::2, ::2], packed[::-1]):
            assert tvmdml.round(x, out=out) is out
            assert np.array_equal(out.get(), np.rint(VALUES))
            assert tvmdml.round(VALUES, out=out) is out, "it alone says where to run"
            assert np.array_equal(out.get(), np.rint(VALUES))
            assert tvmdml.round(on(device, VALUES), out=out) is out
            assert np.array_equal(out.get(), np.rint(VALUES))
        assert tvmdml.round(x, out=x) is x
        assert np.array_equal(x.get(), np.rint(VALUES))
        x = cupy.array(np.arange(12, dtype=np.float32) + 0.75)
        tvmdml.round(x[:-1], out=x[1:])
        assert x.get().tolist() == [0.75, *range(1, 12)]
        with pytest.raises(InvalidArgument, match="given float64 of shape"):
            tvmdml.round(x, out=CupyArray(x.shape, "f8"))


def test_results_go_to_pytorchs_tensors(torch: Any) -> None:
    x = torch.tensor(VALUES)
    for out in (torch.empty((3, 4)), torch.empty((4, 3)).T, torch.empty((6, 8))[::2, ::2]):
        for given in (x, VALUES, torch.from_numpy(VALUES), on(targets.resolve("cuda:0"), VALUES)):  # type: ignore[arg-type]
            seen(out).fill(0)
            assert tvmdml.round(given, out=out) is out
            assert np.array_equal(seen(out), np.rint(VALUES))
    values, indices = torch.empty((3, 2)), torch.empty((3, 2), torch.int64)
    assert tvmdml.top_k(x, 2, out=(values, indices))[0] is values
    expected = tvmdml.top_k(VALUES, 2, index_dtype="int64")
    assert np.array_equal(seen(values), expected.values)
    assert np.array_equal(seen(indices), expected.indices)
    with pytest.raises(InvalidArgument, match="overlaps another output"):
        tvmdml.top_k(x.to(torch.float32), 2, index_dtype="uint32", out=(values, values.view(torch.uint32)))
    one = torch.empty((12,))
    one.copy_(torch.arange(12) + 0.75)
    tvmdml.round(one[:-1], out=one[1:])
    assert seen(one).tolist() == [0.75, *range(1, 12)]


def test_a_tensor_on_the_cpu_is_moved_there_and_back(device: CudaTarget) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    result = tvmdml.round(torch.from_numpy(VALUES), device=device.name)
    assert result.device.type == "cpu"
    assert np.array_equal(result.numpy(), np.rint(VALUES))


def test_two_libraries_streams_wait_for_each_other(device: CudaTarget, cupy: Any, stream: int) -> None:
    desc = round_desc(TensorDesc("float32", (64, 1000)))
    operator = tvmdml.compile(desc, device)
    values = seeded("streams").standard_normal((64, 1000)).astype(np.float32) * 9
    for way in (operator, lambda x, y: operator.bind(x, y)(), lambda x, y: tvmdml.round(x, rounding_mode="toward_zero", out=y)):
        with current(stream):
            x = cupy.array(values)
            out = on(device, np.zeros_like(values))
            way(x, Shows(out, stream=LEGACY))
            assert np.array_equal(out.numpy(), np.trunc(values))
            x = on(device, values)
            shown = Shows(x, stream=LEGACY)
            y = CupyArray(values.shape, values.dtype)
            way(shown, y)
            x.write(np.zeros_like(values))
            assert np.array_equal(y.get(), np.trunc(values))
            for given in (cupy.array(values), Shows(on(device, values), stream=stream)):
                device.wait()
                out, zeros, found = on(device, values), on(device, np.zeros_like(values)), np.empty_like(values)
                out.write(zeros)  # asked for on another stream, and so to be done before
                way(given, Shows(out, stream=LEGACY))
                copy_on(device.device, stream, out.memory.address, found)
                assert np.array_equal(found, np.trunc(values))
                device.wait()
                assert np.array_equal(out.numpy(), np.trunc(values))


# -- Moving -------------------------------------------------------------------------------------------------------


def test_asarray_shares_what_lies_there_already(device: CudaTarget, cupy: Any, torch: Any, stream: int) -> None:
    tensor = torch.tensor(VALUES)
    there = tvmdml.asarray(tensor, device)
    assert isinstance(there, DeviceArray)
    assert there.is_foreign
    assert there.memory.owner is tensor
    assert (there.device, there.shape, there.strides, there.dtype) == (device.name, (3, 4), (16, 4), np.dtype("f4"))
    there[1].write(np.full(4, 9, np.float32))
    assert seen(tensor)[1].tolist() == [9] * 4
    assert np.array_equal(tvmdml.asarray(tensor), seen(tensor))
    assert isinstance(tvmdml.asarray(tensor, "cpu"), np.ndarray)
    assert np.array_equal(tvmdml.round(there[:, 1:]), np.rint(seen(tensor)[:, 1:]))  # the library's own work again
    copied = there[::2].copy()
    assert copied.is_foreign
    assert np.array_equal(copied.numpy(), seen(tensor)[::2])
    with current(stream):
        x = cupy.array(VALUES)
        assert np.array_equal(tvmdml.asarray(x), VALUES)
        assert tvmdml.asarray(tvmdml.asarray(x, device), device).memory.owner is x
        assert tvmdml.asarray(x, f"cuda:{device.info.arch}").memory.owner is x  # type: ignore[union-attr]
    for speaker in SPEAKERS:
        own = on(device, VALUES)
        shared = tvmdml.asarray(speaker(own), device)
        assert shared.start == own.start
    with pytest.raises(InvalidArgument, match=r"asarray array: given a PyTorch tensor torch.bfloat16"):
        tvmdml.asarray(torch.tensor(np.zeros(2, np.int16)).view(torch.bfloat16), device)


def test_arrays_are_written_to_each_other_on_the_device(
    device: CudaTarget, cupy: Any, torch: Any, stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = VALUES.astype(np.float64)
    with current(stream):
        kinds: dict[str, Callable[[np.ndarray], Any]] = {
            "own": lambda values: on(device, values),
            "PyTorch": lambda values: tvmdml.asarray(torch.tensor(values), device),
            "CuPy": lambda values: tvmdml.asarray(cupy.array(values), device),
        }
        for name, into in kinds.items():
            for other, source in kinds.items():
                for values in (VALUES, wide):
                    target = into(np.zeros((3, 4), np.float32))
                    target.write(source(values))
                    assert np.array_equal(target.numpy(), VALUES)
                    if name != "own" or other != "own":
                        target = into(np.zeros((3, 8), np.float32))
                        with monkeypatch.context() as patch:
                            if "CuPy" not in (name, other):  # whose stand-in works through the host
                                patch.setattr(driver.Device, "download", None)
                                patch.setattr(driver.Device, "upload", None)
                                prepared = source(values) if other == "PyTorch" else None
                            else:
                                prepared = source(values)
                            if prepared is not None:
                                target[:, ::2].write(prepared)
                        if prepared is not None:
                            assert np.array_equal(target.numpy()[:, ::2], VALUES)
                            assert not target.numpy()[:, 1::2].any()
    tensor = tvmdml.asarray(torch.tensor(VALUES), device)
    tensor.write(VALUES + 1)
    assert np.array_equal(tensor.numpy(), VALUES + 1)
    shown = tvmdml.asarray(Shows(on(device, np.zeros((3, 4), np.float32))), device)
    shown.write(on(device, VALUES))
    assert np.array_equal(shown.numpy(), VALUES)
    with pytest.raises(InvalidArgument, match="foreign_arrays array: given a copy between float64"):
        shown.write(on(device, wide))
