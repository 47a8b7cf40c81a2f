"""Functions take arrays of PyTorch and of other libraries, and return the same kind."""

from __future__ import annotations

import functools
from typing import Any

import array_api_strict
import numpy as np
import pytest
from function_calls import Array
from support import ALL, INT_MAX, assert_same_bits

import tvmdml
from tvmdml import InvalidArgument

types = pytest.mark.parametrize("data_type", ALL, ids=str)
INDEX_TYPES = ("uint32", "uint64", "int32", "int64")


# -- PyTorch ------------------------------------------------------------------------------------------------------


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def test_torch_tensors_come_back_as_torch_tensors(torch: Any) -> None:
    x = torch.tensor([[2.5, -1.5, 0.5], [3.5, float("nan"), -0.4]])
    rounded = tvmdml.round(x)
    assert isinstance(rounded, torch.Tensor)
    assert_same_bits(rounded.numpy(), np.rint(x.numpy()), any_nan=True)
    values, indices = tvmdml.top_k(x, 2, index_dtype="int64")
    assert (values.dtype, indices.dtype) == (torch.float32, torch.int64)
    assert indices.tolist() == [[0, 2], [1, 0]]
    assert tvmdml.top_k(x, 2, index_dtype="uint32").indices.dtype == torch.uint32
    assert tvmdml.nonzero_coordinates(x > 0, index_dtype="int64").tolist() == torch.nonzero(x > 0).tolist()
    found = tvmdml.nonzero_coordinates(x, trim=False, index_dtype="int32")
    assert int(found.count[0]) == 6
    assert torch.equal(
        tvmdml.diagonal_matrix(x, value=0, diagonal_fill_begin=1, diagonal_fill_end=INT_MAX).isnan(), x.tril().isnan()
    )


def test_indices_of_torch_tensors_are_int64_and_of_other_arrays_uint32(torch: Any) -> None:
    """In turns: what is remembered of calls must not mix the two."""
    x = np.array([[3, 0, 5], [0, 9, 1]], np.float32)
    t = torch.from_numpy(x)
    for _ in range(3):
        for library, array, dtype in ((torch, t, torch.int64), (np, x, np.uint32)):
            indices, coordinates = tvmdml.top_k(array, 2).indices, tvmdml.nonzero_coordinates(array)
            assert (indices.dtype, coordinates.dtype) == (dtype, dtype)
            assert (indices.tolist(), coordinates.tolist()) == ([[2, 0], [1, 2]], [[0, 0], [0, 2], [1, 1], [1, 2]])
            assert tvmdml.nonzero_coordinates(array, trim=False).coordinates.dtype == dtype
            assert tvmdml.top_k(array, 2, index_dtype=library.int32).indices.dtype == library.int32
    assert torch.equal(t.gather(1, tvmdml.top_k(t, 2).indices), tvmdml.top_k(t, 2).values)
    assert tvmdml.top_k(torch.empty(0, 2), 2).indices.dtype == torch.int64


@pytest.mark.parametrize("dtype", INDEX_TYPES)
def test_the_array_for_indices_chooses_their_type(torch: Any, dtype: str) -> None:
    x = np.array([[3, 0, 5], [0, 9, 1]], np.float32)
    for _ in range(2):
        for make, empty in ((lambda a: a, np.empty), (torch.from_numpy, torch.empty)):
            array, of = make(x), np if empty is np.empty else torch
            out = (empty((2, 2), dtype=of.float32), empty((2, 2), dtype=getattr(of, dtype)))
            assert tvmdml.top_k(array, 2, out=out).indices is out[1]
            assert out[1].tolist() == [[2, 0], [1, 2]]
    with pytest.raises(InvalidArgument, match=r"^tvmdml.top_k: out \(output_index_tensor\): given "):
        tvmdml.top_k(
            x, 2, index_dtype="uint64" if "32" in dtype else "uint32", out=(np.empty((2, 2), "f4"), np.empty((2, 2), dtype))
        )


@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (2, 0), ()])
def test_a_k_of_0_gives_empty_arrays(torch: Any, shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    expected = (*shape[:-1], 0)
    values, indices = tvmdml.top_k(x, 0)
    assert (values.shape, values.dtype, indices.shape, indices.dtype) == (expected, np.float32, expected, np.uint32)
    values, indices = tvmdml.top_k(torch.from_numpy(x), 0)
    assert (values.shape, values.dtype, indices.shape, indices.dtype) == (expected, torch.float32, expected, torch.int64)
    out = (np.empty(expected, np.float32), np.empty(expected, np.int64))
    assert tvmdml.top_k(x, 0, out=out).indices is out[1]


def test_a_bound_of_none_is_no_bound() -> None:
    x = np.ones((3, 4), np.float32)
    fill = functools.partial(tvmdml.diagonal_matrix, x, value=0)
    assert_same_bits(fill(diagonal_fill_begin=1, diagonal_fill_end=None), np.tril(x))
    assert_same_bits(fill(diagonal_fill_begin=None, diagonal_fill_end=0), np.triu(x))
    assert not fill(diagonal_fill_begin=None, diagonal_fill_end=None).any()


def test_an_array_of_bool_is_told_what_the_function_takes() -> None:
    x = np.array([[True, False], [False, True]])
    for call in (lambda: tvmdml.top_k(x, 1), lambda: tvmdml.diagonal_matrix(x)):
        with pytest.raises(
            InvalidArgument, match=r"input: given data type bool; .*uint8.* Pass x\.view\(numpy\.uint8\), which has the same bytes"
        ):
            call()
    with pytest.raises(InvalidArgument) as caught:
        tvmdml.round(x)
    assert str(caught.value) == (
        "tvmdml.round: input: given data type bool; allowed: float32, float16, float64. "
        "Convert it: numpy.asarray(x, 'float32'); for a PyTorch tensor, x.to(torch.float32)."
    )
    assert_same_bits(tvmdml.round(np.asarray(x, "float32")), x.astype(np.float32))


def test_torch_views_are_read_as_they_lie(torch: Any) -> None:
    base = torch.arange(-12.0, 12.0).reshape(4, 6) / 4
    for x in (
        base.T,
        base[::2, 1::2],
        base[1:, 2:],
        base[:1].expand(4, 6),
        torch.empty(0, 3),
        torch.tensor(2.5),
        base.contiguous(),
    ):
        assert_same_bits(tvmdml.round(x).numpy(), np.rint(x.numpy()))


def test_torch_tensors_with_a_pending_sign_or_conjugation_are_read_right(torch: Any) -> None:
    z = torch.complex(torch.tensor([1.5, 2.5]), torch.tensor([0.5, -2.5]))
    x = z.conj().imag
    assert x.is_neg()
    assert tvmdml.round(x).tolist() == [-0.0, 2.0]


def test_a_result_cannot_be_written_to_a_torch_tensor_with_a_pending_sign_unnoticed(torch: Any) -> None:
    z = torch.zeros(2, dtype=torch.complex64)
    out = z.conj().imag
    assert out.is_neg()
    try:
        tvmdml.round(torch.tensor([1.5, 2.5]), out=out)
    except InvalidArgument:
        return
    assert out.tolist() == [2, 2]


def test_a_torch_tensor_that_requires_a_gradient_is_refused_unless_gradients_are_off(torch: Any) -> None:
    x = torch.ones(2, 3, requires_grad=True)
    for call in (tvmdml.round, tvmdml.nonzero_coordinates, lambda t: tvmdml.round(x.detach(), out=t)):
        with pytest.raises(InvalidArgument) as caught:
            call(x)
        assert "given a PyTorch tensor that requires a gradient; allowed: one that does not. Pass x.detach()." in str(caught.value)
        assert "`import tvmdml.torch`" in str(caught.value)
    assert tvmdml.round(x.detach()).tolist() == [[1] * 3] * 2
    with torch.no_grad():
        assert tvmdml.round(x).tolist() == [[1] * 3] * 2


def test_torch_types_that_directml_lacks_are_refused(torch: Any) -> None:
    for x in (
        torch.zeros(2, dtype=torch.bfloat16),
        torch.zeros(2, dtype=torch.complex64),
        torch.zeros(2, dtype=torch.float8_e4m3fn),
        torch.zeros(2, 2).to_sparse(),
        torch.zeros(2, device="meta"),
    ):
        with pytest.raises(InvalidArgument, match=r"^tvmdml.round: input: given .*; allowed: "):
            tvmdml.round(x)
    with pytest.raises(InvalidArgument, match="DirectML has no bfloat16: convert to float32"):
        tvmdml.round(torch.zeros(2, dtype=torch.bfloat16))


def test_results_go_to_torch_tensors(torch: Any) -> None:
    x = torch.tensor([[2.5, -1.5, 0.5], [3.5, 4.5, -0.4]])
    expected = np.rint(x.numpy())
    for out in (torch.empty(2, 3), torch.empty(3, 2).T, torch.empty(4, 6)[::2, ::2]):
        for _ in range(2):
            out.fill_(77)
            assert tvmdml.round(x, out=out) is out
            assert_same_bits(out.numpy().copy(), expected)
    values, indices = torch.empty(2, 2), torch.empty(2, 2, dtype=torch.int64)
    found = tvmdml.top_k(x, 2, index_dtype="int64", out=(values, indices))
    assert found.indices is indices
    assert indices.tolist() == [[0, 2], [1, 0]]
    y = x.clone()
    assert tvmdml.round(y, out=y) is y
    assert_same_bits(y.numpy(), expected)
    mixed = np.empty((2, 3), np.float32)
    assert tvmdml.round(x, out=mixed) is mixed
    with pytest.raises(InvalidArgument):
        tvmdml.round(x, out=torch.empty(2, 3, dtype=torch.float64))


def test_torch_tensors_go_to_compiled_operators(torch: Any) -> None:
    desc = tvmdml.TensorDesc("float32", (2, 3))
    operator = tvmdml.compile(tvmdml.ElementWiseRound(input_tensor=desc, output_tensor=desc, rounding_mode="toward_zero"))
    x, y = torch.full((2, 3), 1.75), torch.empty(2, 3)
    operator(x, y)
    assert y.tolist() == [[1] * 3] * 2
    operator.bind(x, x)()
    assert x.tolist() == [[1] * 3] * 2


# -- Arrays of other libraries ------------------------------------------------------------------------------------


def test_array_api_arrays_come_back_as_themselves() -> None:
    xp = array_api_strict
    x = xp.asarray([[2.5, -1.5, 0.5], [3.5, 0.0, -0.4]], dtype=xp.float32)
    rounded = tvmdml.round(x)
    assert type(rounded) is type(x)
    assert bool(xp.all(rounded == xp.round(x)))
    values, indices = tvmdml.top_k(x, 2, index_dtype="int64")
    assert type(values) is type(indices) is type(x)
    assert indices.dtype == xp.int64
    assert bool(xp.all(values == xp.flip(xp.sort(x), axis=-1)[:, :2]))
    assert bool(xp.all(tvmdml.diagonal_matrix(x, value=0, diagonal_fill_begin=1, diagonal_fill_end=INT_MAX) == xp.tril(x)))


def test_array_api_arrays_are_searched_and_trimmed() -> None:
    xp = array_api_strict
    x = xp.asarray([[2.5, -1.5, 0.5], [3.5, 0.0, -0.4]], dtype=xp.float32)
    found = tvmdml.nonzero_coordinates(x, index_dtype="int64")
    assert type(found) is type(x)
    for column, expected in enumerate(xp.nonzero(x)):
        assert bool(xp.all(found[:, column] == expected))


@pytest.mark.full
def test_array_api_views_and_types_are_taken() -> None:
    xp = array_api_strict
    for dtype in (xp.float32, xp.float64, xp.int8, xp.int64, xp.uint16, xp.uint64):
        x = xp.reshape(xp.arange(24, dtype=dtype), (4, 6))
        for view in (x.T, x[::2, 1::2], x[::-1, :], xp.broadcast_to(x[:1, :], (4, 6))):
            found = tvmdml.top_k(view, 2)
            assert found.values.dtype == dtype
            assert_same_bits(np.from_dlpack(found.values), tvmdml.top_k(np.from_dlpack(view).copy(), 2).values)


def test_runtime_tensors_are_taken_and_given_back() -> None:
    import tvm  # noqa: F401 - registers its own class for the runtime's tensors
    import tvm_ffi

    values = np.array([[2.5, -1.5, 0.5], [3.5, 0.0, -0.4]], np.float32)
    x = tvm_ffi.from_dlpack(values.copy())
    rounded = tvmdml.round(x)
    assert isinstance(rounded, tvm_ffi.Tensor)
    assert_same_bits(np.from_dlpack(rounded), np.rint(values))
    out = tvm_ffi.from_dlpack(np.empty((2, 3), np.float32))
    assert tvmdml.round(x, out=out) is out
    assert_same_bits(np.from_dlpack(out), np.rint(values))
    desc = tvmdml.TensorDesc("float32", (2, 3))
    tvmdml.compile(tvmdml.ElementWiseRound(input_tensor=desc, output_tensor=desc, rounding_mode="toward_zero"))(x, out)
    assert_same_bits(np.from_dlpack(out), np.trunc(values))


def test_runtime_tensors_are_searched_and_trimmed() -> None:
    import tvm_ffi

    found = tvmdml.nonzero_coordinates(tvm_ffi.from_dlpack(np.array([0, 3, 4], np.float32)))
    assert isinstance(found, tvm_ffi.Tensor)
    assert_same_bits(np.from_dlpack(found), np.array([[1], [2]], np.uint32))


class Exporter:
    """An array of a library without a namespace: it speaks DLPack and nothing else."""

    def __init__(self, array: Array, device: int = 1) -> None:
        self._array, self._device = array, device

    def __dlpack__(self, **options: Any) -> Any:
        if self._device != 1:
            raise BufferError("not on the CPU")
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self._device, 0)


def test_an_array_that_only_speaks_dlpack_is_read() -> None:
    values = np.array([[2.5, -1.5]], np.float32)
    assert_same_bits(np.asarray(tvmdml.round(Exporter(values))), np.rint(values))
    out = np.zeros((1, 2), np.float32)
    tvmdml.round(Exporter(values), out=out)
    assert_same_bits(out, np.rint(values))


class Bfloat16:
    """As JAX's: it speaks DLPack, and NumPy has no such type."""

    dtype = "bfloat16"

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("bfloat16 is not supported")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_an_array_of_bfloat16_on_the_cpu_is_told_about_its_type() -> None:
    with pytest.raises(InvalidArgument) as caught:
        tvmdml.round(Bfloat16())
    assert str(caught.value) == (
        "tvmdml.round: input: given Bfloat16 of bfloat16; allowed: float64, float32, float16, int64, int32, int16, int8, uint64, "
        "uint32, uint16, uint8. DirectML has no bfloat16: convert to float32, which has all its values, or to float16."
    )


def test_an_array_that_cannot_be_seen_on_the_cpu_is_not_told_to_go_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bfloat16, "dtype", "float8_e4m3fn")
    with pytest.raises(InvalidArgument, match=r"bfloat16 is not supported.* Convert it first: numpy\.asarray"):
        tvmdml.round(Bfloat16())


def test_an_array_on_another_device_is_refused_with_advice() -> None:
    with pytest.raises(InvalidArgument) as caught:
        tvmdml.round(Exporter(np.zeros(3, np.float32), device=2))
    assert str(caught.value).startswith("tvmdml.round: input: given Exporter that NumPy cannot access (")
    assert str(caught.value).endswith("Copy it to the CPU first.")
