"""Other libraries' arrays on a CUDA device: PyTorch's and CuPy's, with stand-ins on the emulator and the real libraries on a
GPU, and all arrays that support DLPack or ``__cuda_array_interface__``.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import math
import os
import sys
import textwrap
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest
from cuda_work import Captured, is_emulator, new_stream
from support import ALL, mixture, round_desc, seeded, top_k_desc

import tvmdml
from tvmdml import DeviceArray, DeviceError, InvalidArgument, TensorDesc, Unsupported, arrays, functions, targets
from tvmdml.targets.cuda import CudaTarget, dlpack, driver, foreign
from tvmdml.targets.cuda.driver import using_stream

LEGACY, PER_THREAD = 1, 2


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


at_once_alone = pytest.mark.parametrize("device", ["at once"], indirect=True)
"""For what is refused before any work."""


@pytest.fixture
def stream(device: CudaTarget) -> Iterator[int]:
    with new_stream(device.device) as made:
        yield made
        device.wait()


# -- A library as CuPy is: by its own names, over memory of the driver's ----------------------------------------------


class Pointer:
    """``cupy.cuda.MemoryPointer``."""

    def __init__(self, memory: driver.Memory, offset: int = 0) -> None:
        self.mem, self.offset = memory, offset
        self.ptr, self.device_id = memory.address + offset, memory.device.info.index

    def __add__(self, offset: int) -> Pointer:
        return Pointer(self.mem, self.offset + offset)


class CupyArray:
    """``cupy.ndarray``."""

    made: int = 0
    current: int = 0

    def __init__(self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None) -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        if memptr is None:
            CupyArray.made += 1
            device = driver.open_device(Guard.device)
            memptr = Pointer(device.allocate(math.prod(self.shape) * self.dtype.itemsize, CupyArray.current))
        self.data = memptr
        self.strides = np.empty(self.shape, self.dtype).strides if strides is None else tuple(strides)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self.data.device_id)

    def __dlpack__(self, **options: Any) -> Any:
        raise AssertionError("there is a shorter way")

    def view(self) -> DeviceArray:
        """Its elements; those who see them have to work on the library's stream."""
        self.data.mem.stream = CupyArray.current  # which the library reads
        target = targets.resolve(f"cuda:{self.data.device_id}")
        return DeviceArray(target, self.data.mem, self.data.offset, self.shape, self.dtype, self.strides)

    def get(self) -> np.ndarray:
        with using_stream(CupyArray.current):
            return self.view().numpy()

    def set(self, values: np.ndarray) -> None:
        with using_stream(CupyArray.current):
            self.view().write(values)

    def copy(self, order: str = "C") -> CupyArray:
        assert order == "C"
        found = CupyArray(self.shape, self.dtype)
        found.set(self.get())
        return found

    def __setitem__(self, key: object, source: CupyArray) -> None:
        assert key is Ellipsis
        self.set(source.get().astype(self.dtype))

    def __getitem__(self, key: Any) -> CupyArray:
        """As NumPy's basic indices."""
        grid = np.ndarray(self.shape, self.dtype, np.empty(1 << 16, np.uint8), 1 << 15, self.strides)
        part = grid[key]
        moved = part.__array_interface__["data"][0] - grid.__array_interface__["data"][0]
        return CupyArray(part.shape, self.dtype, self.data + moved, part.strides)


class Guard:
    """``cupy.cuda.Device``."""

    device = 0

    def __init__(self, index: int) -> None:
        self._index = index

    def __enter__(self) -> None:
        self._before, Guard.device = Guard.device, self._index

    def __exit__(self, *_: object) -> None:
        Guard.device = self._before


def cupy_from_dlpack(array: Any) -> CupyArray:
    found = dlpack.read(array.__dlpack__(stream=CupyArray.current or LEGACY, max_version=(1, 0)))
    memory = driver.Memory(driver.open_device(0), found.address, 1 << 40, CupyArray.current)
    memory.loan = None  # type: ignore[assignment] # it is array's
    result = CupyArray(found.shape, found.dtype, Pointer(memory), found.strides)
    result.owner = array  # type: ignore[attr-defined]
    return result


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


@contextmanager
def refused(monkeypatch: pytest.MonkeyPatch, *names: str) -> Iterator[None]:
    """Within it, these are not asked of a device."""

    def fail(*_: object) -> None:
        raise AssertionError("a device is asked to wait, to move or to allocate")

    with monkeypatch.context() as patch:
        for name in names:
            patch.setattr(driver.Device, name, fail)
        yield


@contextmanager
def current(stream: int) -> Iterator[None]:
    before, CupyArray.current = CupyArray.current, stream
    yield
    CupyArray.current = before


# -- A library as PyTorch is: PyTorch itself, whose memory is the driver's --------------------------------------------


def torch_library(torch: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for PyTorch's CUDA tensors: its CPU tensors, of a class that says otherwise, over memory of the emulator's."""

    class CudaTensor(torch.Tensor):  # type: ignore[misc,name-defined]
        is_cuda = True

        def get_device(self) -> int:
            return 0

        def clone(self, **options: Any) -> Any:
            found = proxy.empty(self.shape, dtype=self.dtype)
            found.copy_(self)
            return found

        def resolve_neg(self) -> Any:
            return self.clone() if self.is_neg() else self

    def empty(shape: Any, dtype: Any = torch.float32, device: Any = None) -> Any:
        kind = np.dtype(str(dtype).removeprefix("torch."))
        nbytes = math.prod(shape) * kind.itemsize
        memory = driver.open_device(0).allocate(nbytes)
        raw = (ctypes.c_uint8 * max(nbytes, 1)).from_address(memory.address)
        raw.owner = memory
        proxy.made += 1
        flat = np.ctypeslib.as_array(raw)[:nbytes].view(kind)
        return torch.from_numpy(flat).reshape(tuple(shape)).as_subclass(CudaTensor)

    def make(values: Any) -> Any:
        driver.open_device(0).wait()
        values = torch.as_tensor(values)
        found = empty(values.shape, values.dtype)
        found.copy_(values)
        return found

    def from_dlpack(array: Any) -> Any:
        found = dlpack.read(array.__dlpack__(stream=LEGACY, max_version=(1, 0)))
        driver.open_device(0).wait()
        raw = (ctypes.c_uint8 * (1 << 20)).from_address(found.address)
        view = np.ndarray(found.shape, found.dtype, np.ctypeslib.as_array(raw), 0, found.strides)
        return torch.from_numpy(view)

    proxy: Any = types.ModuleType("a stand-in for torch")
    vars(proxy).update(vars(torch))
    proxy.empty, proxy.from_dlpack, proxy.tensor, proxy.made = empty, from_dlpack, make, 0
    proxy.current, proxy.CudaTensor = 0, CudaTensor
    proxy.device = lambda *name: name
    proxy._C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda index: proxy.current)
    monkeypatch.setattr(foreign, "_libraries", {CudaTensor: foreign._Torch(proxy)})
    monkeypatch.setattr(functions, "_plans", {})
    return proxy


@pytest.fixture
def torch(device: CudaTarget, monkeypatch: pytest.MonkeyPatch) -> Any:
    if not is_emulator(device.device):
        pytest.skip("with a GPU PyTorch shows it by itself")
    return torch_library(pytest.importorskip("torch", reason="PyTorch is not installed"), monkeypatch)


def seen(tensor: Any) -> np.ndarray:
    """The elements of a stand-in's tensor."""
    driver.open_device(0).wait()
    import torch

    return np.array(tensor.as_subclass(torch.Tensor).numpy())


# -- Libraries that only speak ------------------------------------------------------------------------------------


class Speaks:
    """An array that speaks DLPack, and nothing else."""

    taken: Any = None

    def __init__(self, array: DeviceArray) -> None:
        self.array = array

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None) -> Any:
        Speaks.taken = stream
        return self.array.__dlpack__(stream=stream, max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class SpeaksOld(Speaks):
    """The same, of the older kind."""

    def __dlpack__(self, *, stream: Any = None) -> Any:  # type: ignore[override]
        return self.array.__dlpack__(stream=stream)


class Shows:
    """An array that has the interface, and nothing else."""

    def __init__(self, array: DeviceArray, **changes: Any) -> None:
        self.array, self.changes = array, changes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.array.__cuda_array_interface__, **self.changes}


SPEAKERS = [Speaks, SpeaksOld, Shows]


def on(device: CudaTarget, values: Any) -> DeviceArray:
    found = tvmdml.asarray(np.asarray(values), device)
    assert isinstance(found, DeviceArray)
    return found


VALUES = np.array([[2.5, -1.5, 0.5, 7], [3.5, 0, -0.4, 1e9], [0, 0, 0.75, -0.5]], np.float32)


# -- Functions ----------------------------------------------------------------------------------------------------


def calls(x: Any) -> list[Any]:
    """Every function on an array, all results."""
    values, indices = tvmdml.top_k(x, 2, axis=-1, index_dtype="int64")
    count, rows = tvmdml.nonzero_coordinates(x, trim=False)
    found = tvmdml.nonzero_coordinates(x, index_dtype="int64")
    return [tvmdml.round(x), values, indices, count, found, tvmdml.diagonal_matrix(x, value=3), rows.shape]


def assert_calls(x: Any, values: np.ndarray, kind: type, get: Callable[[Any], np.ndarray]) -> None:
    results, expected = calls(x), calls(values)
    assert tuple(results.pop()) == expected.pop()
    for result, wanted in zip(results, expected, strict=True):
        assert isinstance(result, kind)
        assert np.array_equal(get(result), wanted)
        assert get(result).dtype == wanted.dtype


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


LAYOUTS = {
    "transposed": lambda x: x.T,
    "padded": lambda x: x[:, 1:3],
    "spread": lambda x: x[::2, ::3],
    "repeated": lambda x: x[:1].expand(5, 4) if hasattr(x, "expand") else np.broadcast_to(x[:1], (5, 4)),
    "one element": lambda x: x[1, 2],
    "empty": lambda x: x[:, :0],
    "many ones": lambda x: x[None, :, None],
}


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
    with pytest.raises(InvalidArgument, match=r"(?s)an array of test_cuda_arrays with.*Make a packed copy"):
        tvmdml.round(Shows(there))
    desc = round_desc(TensorDesc("float32", VALUES.shape))
    with pytest.raises(InvalidArgument, match="memory that is not aligned to its element size"):
        tvmdml.compile(desc, device)(x, CupyArray(VALUES.shape, np.float32))


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


# -- What is refused ----------------------------------------------------------------------------------------------


def test_pytorchs_rules_hold_on_a_device_too(torch: Any) -> None:
    x = torch.tensor(VALUES).requires_grad_()
    with pytest.raises(InvalidArgument, match="requires a gradient"):
        tvmdml.round(x)
    with torch.no_grad():
        assert np.array_equal(seen(tvmdml.round(x).detach()), np.rint(VALUES))
    z = torch.tensor(np.array([1.5 + 0.5j, 2.5 - 2.5j], np.complex64))
    imaginary = torch.conj(z).imag
    assert imaginary.is_neg()
    assert seen(tvmdml.round(imaginary)).tolist() == [-0.0, 2.0]
    with pytest.raises(InvalidArgument, match=r"output_tensor\): .*a lazy conjugate or negative view"):
        tvmdml.round(torch.tensor(np.float32([1, 2])), out=imaginary)
    for wrong in (z, torch.tensor(np.zeros(2, np.int16)).view(torch.bfloat16)):
        with pytest.raises(InvalidArgument, match=r"round: input: given a PyTorch tensor torch.\w+ on .*; allowed: float64"):
            tvmdml.round(wrong)

    def has_none(self: Any) -> int:
        raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")

    for address, says in ((has_none, "Cannot access data pointer"), (lambda self: 0, "no memory of its own")):
        hidden = torch.tensor(VALUES).as_subclass(type("Hidden", (torch.CudaTensor,), {"data_ptr": address}))
        foreign._libraries[type(hidden)] = foreign._libraries[torch.CudaTensor]
        with pytest.raises(InvalidArgument, match=f"given a Hidden torch.float32 on .* whose memory is not accessible .*{says}"):
            tvmdml.round(hidden)


def test_a_type_that_pytorch_lacks_is_refused(torch: Any) -> None:
    library = foreign._libraries[torch.CudaTensor]
    del library._own[np.dtype(np.uint32)]  # type: ignore[attr-defined] # as with PyTorch before 2.3
    x = torch.tensor(VALUES)
    with pytest.raises(Unsupported, match="data type uint32"):
        tvmdml.top_k(x, 2, index_dtype="uint32")
    assert tvmdml.top_k(x, 2).indices.dtype == torch.int64
    assert tvmdml.top_k(x, 2, index_dtype="int32").indices.dtype == torch.int32


@at_once_alone
def test_what_cannot_be_seen_is_refused(device: CudaTarget) -> None:
    x = on(device, VALUES)

    class Fails(Speaks):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("it is spread over several devices")

    with pytest.raises(InvalidArgument, match=r"given Fails that NumPy cannot access \(BufferError: it is spread"):
        tvmdml.round(Fails(x))
    with pytest.raises(InvalidArgument, match="given a masked array"):
        tvmdml.round(Shows(x, mask=x))
    with pytest.raises(InvalidArgument, match="given elements >f4"):
        tvmdml.round(Shows(x, typestr=">f4"))
    with pytest.raises(InvalidArgument, match="data type complex64"):
        tvmdml.round(Shows(x, typestr="<c8", shape=(3, 2)))
    with pytest.raises(InvalidArgument, match="strides"):
        tvmdml.round(Shows(x[:, :1], strides=(6, 4)))
    with pytest.raises(InvalidArgument, match=r"cannot access .*is not a DLPack capsule"):
        tvmdml.round(types.SimpleNamespace(__dlpack__=lambda **_: 1, __dlpack_device__=lambda: (2, 0)))


@at_once_alone
def test_what_is_read_only_is_not_written_to(device: CudaTarget) -> None:
    x, out = on(device, VALUES), on(device, np.zeros_like(VALUES))
    locked = Shows(out, data=(out.memory.address, True))
    with pytest.raises(InvalidArgument, match=r"tvmdml.round: out \(output_tensor\): given a read-only array"):
        tvmdml.round(x, out=locked)
    with pytest.raises(InvalidArgument, match="a read-only array; allowed: a writable one: it is an output"):
        tvmdml.compile(round_desc(TensorDesc("float32", VALUES.shape)), device)(x, locked)
    with pytest.raises(InvalidArgument, match="read-only"):
        tvmdml.round(x, out=SpeaksOld(out))  # the older kind of capsule cannot express that
    there = tvmdml.asarray(locked, device)
    assert not there.flags.writeable
    with pytest.raises(InvalidArgument, match=r"DeviceArray\.write: given a read-only array"):
        there.write(VALUES)
    with pytest.raises(BufferError, match="read-only"):
        there.__dlpack__()
    assert not dlpack.read(there.__dlpack__(max_version=(1, 0))).writeable
    assert there.__cuda_array_interface__["data"][1]
    with pytest.raises(InvalidArgument, match="read-only"):
        tvmdml.round(x, out=Speaks(there))
    tvmdml.round(x, out=Speaks(out))
    assert np.array_equal(out.numpy(), np.rint(VALUES))


@pytest.mark.skipif(not os.environ.get("TVMDML_CUDA_LIBRARY"), reason="the emulator has as many devices as it is asked for")
def test_arrays_of_two_devices_do_not_mix() -> None:
    code = """
        import numpy as np, pytest, tvmdml
        from tvmdml import InvalidArgument, targets
        from test_cuda_arrays import *
        zero, one = targets.resolve("cuda:0"), targets.resolve("cuda:1")
        x, out = Shows(on(zero, VALUES)), Shows(on(one, VALUES))
        for given in (out, out.array):
            with pytest.raises(InvalidArgument, match="given an array on cuda:1; allowed: one on cuda:0"):
                tvmdml.round(x, out=given)
        with pytest.raises(InvalidArgument, match="given an array on cuda:1; allowed: one on cpu"):
            tvmdml.round(out, device="cpu")
        with pytest.raises(InvalidArgument, match="given an array on cuda:0; allowed: one on cuda:1"):
            tvmdml.compile(round_desc(TensorDesc("float32", VALUES.shape)), one)(x, out)
        assert np.array_equal(tvmdml.round(out).numpy(), np.rint(VALUES)) and tvmdml.round(out).device == "cuda:1"
        assert tvmdml.round(Speaks(on(one, VALUES))).device == "cuda:1"
        said = Says(lambda: capsule(out.array, True, {}))
        assert_refused(x.array, said, "given an array of device 0 with memory of device 1")
        tvmdml.round(VALUES, out=out)
        assert np.array_equal(out.array.numpy(), np.rint(VALUES))
        assert tvmdml.asarray(x, "cuda:1").device == "cuda:1" and np.array_equal(tvmdml.asarray(x, "cuda:1").numpy(), VALUES)
    """
    run(code, TVMDML_EMULATED_DEVICES="2")


def run(code: str, **variables: str) -> str:
    """What a program of its own prints that finds this file too."""
    return programs.python(f"import sys\nsys.path.append({str(Path(__file__).parent)!r})\n{textwrap.dedent(code)}", **variables)


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
    with pytest.raises(InvalidArgument, match="test_cuda_arrays array: given a copy between float64"):
        shown.write(on(device, wide))


# -- What arrays say of themselves that cannot be ---------------------------------------------------------------------


class Says:
    """An array that gives what it is told to, as DLPack."""

    def __init__(self, capsule: Callable[[], Any], device: Any = (2, 0)) -> None:
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule()

    def __dlpack_device__(self) -> Any:
        return self.device


def capsule(array: DeviceArray, versioned: bool, changes: dict[str, Any]) -> Any:
    """A capsule for an array that has other fields."""
    changes = dict(changes)
    shape, strides = changes.pop("sizes", array.shape), changes.pop("steps", array.strides)
    made = dlpack.make(array, array.memory.address, 0, shape, strides, array.dtype, versioned)
    held = (dlpack._Versioned if versioned else dlpack._Managed).from_address(dlpack._pointer(made, dlpack._NAMES[versioned]))
    for name, value in changes.items():
        setattr(held.tensor, name, value)
    return made


HOST = np.zeros(64, np.float32)
NOWHERE, NO_MEMORY, NO_LAYOUT, NO_TYPE = (
    "not in a CUDA device's memory",
    "no memory of its own",
    "allowed: up to 64 sizes",
    "given elements",
)
SHOWN = {
    "null": ({"data": (0, False)}, NO_MEMORY),
    "the host's": ({"data": (HOST.ctypes.data, False)}, NOWHERE),
    "garbage": ({"data": (0xDEAD0000, False)}, NOWHERE),
    "negative address": ({"data": (-1, False)}, NO_LAYOUT),
    "address that wraps": ({"data": (2**64 - 8, False)}, NO_LAYOUT),
    "address as text": ({"data": ("1", False)}, "given memory address '1'"),
    "type None": ({"typestr": None}, NO_TYPE),
    "objects": ({"typestr": "|O"}, NO_TYPE),
    "junk": ({"typestr": "junk"}, NO_TYPE),
    "size as a fraction": ({"shape": (8.0, 8)}, NO_LAYOUT),
    "negative size": ({"shape": (-1, 8)}, NO_LAYOUT),
    "sizes no tuple": ({"shape": 8}, NO_LAYOUT),
    "sizes of more than 64 bits": ({"shape": (2**62, 2**62)}, NO_LAYOUT),
    "a repeated element": ({"shape": (2**40, 2**40), "strides": (0, 0)}, NO_LAYOUT),
    "rank 65": ({"shape": (1,) * 65}, NO_LAYOUT),
    "too few strides": ({"strides": (4,)}, NO_LAYOUT),
    "strides as fractions": ({"strides": (16.0, 4.0)}, NO_LAYOUT),
    "strides that overflow": ({"strides": (2**62, 4)}, NO_LAYOUT),
    "strides to below 0": ({"strides": (-(2**60), 4)}, NO_LAYOUT),
    "a stream's name": ({"stream": "main"}, "given stream 'main'"),
    "a negative stream": ({"stream": -1}, "given stream -1"),
}
SAID = {
    "null": ({"data": None}, NO_MEMORY),
    "the host's": ({"data": HOST.ctypes.data}, NOWHERE),
    "huge offset": ({"byte_offset": 2**62}, NOWHERE),
    "offset that wraps": ({"byte_offset": 2**64 - 4}, NO_LAYOUT),
    "another device": ({"device_id": 1}, r"given a capsule of device \(2, 1\) from an array of device \(2, 0\)"),
    "the CPU": ({"device_type": 1}, r"given a capsule of device \(1, 0\)"),
    "rank -1": ({"ndim": -1}, "-1 dimensions"),
    "no sizes": ({"shape": None}, "dimensions without sizes"),
    "negative size": ({"sizes": (-3, 4)}, NO_LAYOUT),
    "sizes of more than 64 bits": ({"sizes": (2**62, 8)}, NO_LAYOUT),
}


def assert_refused(x: DeviceArray, array: Any, match: str) -> None:
    """An array is refused wherever one is taken, in the house form, and the device works on."""
    for take in (
        lambda: tvmdml.round(array),
        lambda: tvmdml.round(x, out=array),
        lambda: tvmdml.top_k(array, 1),
        lambda: tvmdml.asarray(array, x.device),
    ):
        with pytest.raises(InvalidArgument, match=match) as caught:
            take()
        assert "; allowed: " in str(caught.value)
    assert np.array_equal(tvmdml.round(x).numpy(), np.rint(VALUES))


@at_once_alone
@pytest.mark.parametrize("case", SHOWN)
def test_an_interface_that_cannot_be_is_refused(device: CudaTarget, case: str) -> None:
    changes, match = SHOWN[case]
    x = on(device, VALUES)
    assert_refused(x, Shows(on(device, VALUES), **changes), match)


@at_once_alone
@pytest.mark.parametrize("versioned", [False, True], ids=["old", "new"])
@pytest.mark.parametrize("case", SAID)
def test_a_capsule_that_cannot_be_is_refused(device: CudaTarget, case: str, versioned: bool) -> None:
    changes, match = SAID[case]
    x, held = on(device, VALUES), on(device, VALUES)
    assert_refused(x, Says(lambda: capsule(held, versioned, changes)), match)


@at_once_alone
@pytest.mark.parametrize("said", [None, (), (2,), (2, None), (2, 0.5), ("x", "y"), (2, -1), (2, 99)], ids=str)
def test_a_device_that_cannot_be_is_refused(device: CudaTarget, said: Any) -> None:
    x = on(device, VALUES)
    assert_refused(x, Says(lambda: capsule(x, True, {}), said), "cannot access|target: given 'cuda:")


@at_once_alone
@pytest.mark.parametrize("name", ["__cuda_array_interface__", "__dlpack__", "__dlpack_device__"])
def test_a_property_that_fails_is_an_invalid_argument(device: CudaTarget, name: str) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("it is gone")

    members = {"__dlpack__": None, "__dlpack_device__": lambda _: (2, 0)} if "dlpack" in name else {}
    kind = type("Gone", (), {**members, name: property(fail)})
    assert_refused(on(device, VALUES), kind(), "given Gone that NumPy cannot access .RuntimeError: it is gone")


def test_empty_arrays_need_no_memory(device: CudaTarget) -> None:
    for address in (0, None, 0xDEAD0000):
        x = Shows(on(device, VALUES), data=(address, False), shape=(0, 4))
        assert tvmdml.round(x).shape == (0, 4)
        assert tvmdml.asarray(x, device).numpy().shape == (0, 4)
    held = on(device, VALUES[:0])
    assert tvmdml.round(Says(lambda: capsule(held, True, {"data": None}))).shape == (0, 4)


@at_once_alone
def test_types_are_not_kept_for_ever(device: CudaTarget) -> None:
    x = on(device, VALUES)
    shown = x.__cuda_array_interface__
    kinds = []
    for _ in range(5):
        kind = type("Short", (), {"__cuda_array_interface__": shown})
        assert np.array_equal(tvmdml.round(kind()).numpy(), np.rint(VALUES))
        kinds.append(weakref.ref(kind))
        del kind
    gc.collect()
    assert sum(kind() is not None for kind in kinds) <= 1


# -- Giving arrays away -------------------------------------------------------------------------------------------


class Consumer:
    """Who takes a capsule as every library does: by C, and gives it back by a call of the deleter, whenever."""

    def __init__(self, capsule: Any) -> None:
        self.said = dlpack.read(capsule)
        names = [b"used_dltensor", b"used_dltensor_versioned"]
        self.versioned = bool(dlpack._is_valid(capsule, dlpack._NAMES[1]))
        address = dlpack._pointer(capsule, dlpack._NAMES[self.versioned])
        self._name = ctypes.create_string_buffer(names[self.versioned])
        dlpack._keep_for_ever(self._name)
        rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(("PyCapsule_SetName", ctypes.pythonapi))
        assert rename(capsule, ctypes.addressof(self._name)) == 0
        held = (dlpack._Versioned if self.versioned else dlpack._Managed).from_address(address)
        self.release = lambda: ctypes.CFUNCTYPE(None, ctypes.c_void_p)(held.deleter)(address)


@at_once_alone
def test_a_capsule_says_what_the_array_is(device: CudaTarget) -> None:
    for data_type, version in itertools.product(ALL, (None, (0, 8), (1, 0), (1, 9))):
        x = on(device, np.zeros((4, 6), data_type.numpy))
        for part in (x, x[1], x[::2, 1:5:3], x[2, 3], x[:, :0]):
            said = dlpack.read(part.__dlpack__(max_version=version))
            address, strides = x.memory.address + part.offset, part.strides if part.ndim else None
            assert said == (address, (2, 0), part.shape, strides, part.dtype, version is not None and version >= (1, 0))
        assert x.__dlpack_device__() == (2, 0)


def lent(generation: int = 1) -> int:
    gc.collect(generation)  # of all that there is, a collection takes long
    return len(dlpack._lent)


@at_once_alone
@pytest.mark.parametrize("version", [None, (1, 0)])
def test_memory_is_lent_until_it_is_given_back(device: CudaTarget, version: Any) -> None:
    before = lent(2)
    capsule = on(device, VALUES).__dlpack__(max_version=version)
    assert lent() == before + 1
    del capsule
    assert lent() == before, "nobody took it"
    x = on(device, VALUES)
    capsule = x.__dlpack__(max_version=version)
    consumer = Consumer(capsule)
    memory = x.memory
    del x, capsule
    assert lent() == before + 1
    assert consumer.said.shape == (3, 4)
    holders = sys.getrefcount(memory)
    consumer.release()
    assert lent() == before
    assert sys.getrefcount(memory) == holders - 1
    slots = len(dlpack._free)
    consumers = [Consumer(on(device, VALUES).__dlpack__(max_version=version)) for _ in range(20)]
    assert lent() == before + 20
    threads = [threading.Thread(target=consumer.release) for consumer in consumers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lent() == before
    assert len(dlpack._free) >= max(slots, 20)


def test_memory_comes_back_while_an_exception_is_on_its_way(device: CudaTarget) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    before = lent(2)
    x = on(device, VALUES)
    if not is_emulator(device.device):
        take = torch.from_dlpack
    else:  # PyTorch takes the emulator's memory for the CPU's

        def take(array: Any) -> Any:
            capsule = array.__dlpack__()
            dlpack._Managed.from_address(dlpack._pointer(capsule, b"dltensor")).tensor.device_type = 1
            return torch.from_dlpack(capsule)

    def use(*_: object) -> None: ...

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            use(take(x), 1 / 0)
    assert lent() == before


@at_once_alone
def test_a_capsule_may_outlive_python(device: CudaTarget) -> None:
    code = """
        import ctypes, sys
        import numpy as np
        from test_cuda_arrays import *
        device = targets.resolve("cuda:0")
        kept = [Consumer(on(device, VALUES).__dlpack__()) for _ in range(3)]
        unused = on(device, VALUES).__dlpack__()
        # The C library calls the deleter after the interpreter is gone.
        held = dlpack._Managed.from_address(dlpack._pointer(on(device, VALUES).__dlpack__(), b"dltensor"))
        from ctypes import c_void_p
        slot = next(iter(dlpack._lent))
        libc = ctypes.CDLL(None)
        libc.__cxa_atexit.argtypes = [c_void_p, c_void_p, c_void_p]
        assert libc.__cxa_atexit(dlpack._DELETER, slot.address, None) == 0
        print("fine")
    """
    assert run(code) == "fine\n"


def test_the_receivers_stream_waits(device: CudaTarget, stream: int) -> None:
    values = seeded("order").standard_normal((64, 1000)).astype(np.float32) * 9
    target = device.device
    with new_stream(target) as other:
        for asked in (stream, None, LEGACY, PER_THREAD):
            with using_stream(other):
                x = tvmdml.round(on(device, values))
            capsule = x.__dlpack__(stream=asked, max_version=(1, 0))
            address, found = dlpack.read(capsule).address, np.empty_like(values)
            handle = 0 if asked in (None, LEGACY, PER_THREAD) else asked
            assert x.memory.stream == handle
            copy_on(target, handle, address, found)
            assert np.array_equal(found, np.rint(values))
            with using_stream(other):
                y = tvmdml.round(on(device, values))
            y.__dlpack__(stream=-1)
            assert y.memory.stream in (other, -1)
            said = y.__cuda_array_interface__["stream"]
            copy_on(target, 0 if said == LEGACY else said, y.memory.address, found)
            assert np.array_equal(found, np.rint(values))
        device.wait()
    for wrong in (0, -2, "1", 1.5):
        with pytest.raises(InvalidArgument, match=r"DeviceArray\.__dlpack__ stream: given"):
            x.__dlpack__(stream=wrong)


def copy_on(device: driver.Device, stream: int, address: int, into: np.ndarray) -> None:
    """What another library does on a stream."""
    with device.context.entered():
        assert device.cuda.cuMemcpyDtoHAsync_v2(into.ctypes.data, address, into.nbytes, stream) == 0
        assert device.cuda.cuStreamSynchronize(stream) == 0


def test_copies_and_other_devices_are_given_where_asked_for(device: CudaTarget) -> None:
    x = on(device, VALUES)
    said = dlpack.read(x.__dlpack__(copy=True, max_version=(1, 0)))
    assert said.address != x.memory.address
    assert dlpack.read(x.__dlpack__(dl_device=(2, 0), copy=False)).address == x.memory.address
    assert np.array_equal(np.from_dlpack(Elsewhere(x)), VALUES)
    for options in ({"dl_device": (2, 7)}, {"dl_device": (1, 0), "copy": False}, {"dl_device": (7, 0)}):
        with pytest.raises(BufferError, match=r"DeviceArray\.__dlpack__: given device"):
            x.__dlpack__(**options)  # type: ignore[arg-type]
    with pytest.raises(BufferError, match="not multiples of the 4 bytes"):
        tvmdml.asarray(Shows(x[:, :1], strides=(6, 4)), device).__dlpack__()


class Elsewhere:
    """Asks for a copy on the CPU, as NumPy does from its version 2.1 on."""

    def __init__(self, array: DeviceArray) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(dl_device=(1, 0), max_version=options.get("max_version"))

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_the_interface_says_what_the_array_is(device: CudaTarget) -> None:
    x = on(device, VALUES)
    part = x[::2, 1:]
    assert x.__cuda_array_interface__ == {
        "shape": (3, 4),
        "typestr": "<f4",
        "data": (x.memory.address, False),
        "strides": None,
        "stream": LEGACY,
        "version": 3,
    }
    assert part.__cuda_array_interface__["strides"] == (32, 4)
    assert part.__cuda_array_interface__["data"][0] == x.memory.address + 4
    assert x[:0].__cuda_array_interface__["data"][0] == 0


def test_arrays_elsewhere_are_not_given_away() -> None:
    try:
        x = tvmdml.asarray(VALUES, "vulkan")
    except DeviceError as error:
        pytest.skip(f"no Vulkan here: {error}")
    for ask in (x.__dlpack__, x.__dlpack_device__):
        with pytest.raises(BufferError, match=r"given an array on vulkan:0; allowed: one on cuda\. Copy it with x\.numpy\(\)"):
            ask()
    assert not hasattr(x, "__cuda_array_interface__")
    assert np.array_equal(np.asarray(x), VALUES)


def test_a_shared_array_is_given_on(device: CudaTarget, cupy: Any, stream: int) -> None:
    with current(stream):
        x = cupy.array(VALUES)
        there = tvmdml.asarray(x, device)
        assert there.__cuda_array_interface__["stream"] == stream
        assert np.array_equal(tvmdml.round(Speaks(there)).numpy(), np.rint(VALUES))
        assert np.array_equal(tvmdml.round(Shows(there)).numpy(), np.rint(VALUES))


def test_a_memorys_owner_lives_as_long_as_it_is_used(device: CudaTarget, cupy: Any) -> None:
    x = cupy.array(VALUES)
    known = weakref.ref(x)
    there = tvmdml.asarray(x, device)[1:]
    del x
    gc.collect()
    assert known() is not None
    assert np.array_equal(there.numpy(), VALUES[1:])
    del there
    gc.collect()
    assert known() is None


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


def test_nothing_of_the_libraries_is_imported() -> None:
    code = """
        import sys, tvmdml, numpy as np
        tvmdml.round(np.zeros(3, np.float32))
        import tvmdml.targets.cuda.foreign
        print([name for name in ("torch", "cupy", "jax", "numba") if name in sys.modules])
    """
    assert run(code) == "[]\n"
