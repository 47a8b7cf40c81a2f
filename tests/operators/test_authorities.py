"""Independent references: ONNX's own test cases for the same operators, PyTorch, and the strict array API implementation."""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from support import (
    ALL,
    FLOATING,
    INT_MAX,
    INT_MIN,
    Array,
    assert_same_bits,
    mixture,
    ordinary,
    random_bits,
    seeded,
    sparse,
)

import tvmdml
from tvmdml import TensorDataType
from tvmdml.conformance import onnx_cases

# -- ONNX ---------------------------------------------------------------------------------------------------------


def _round(x: Array) -> list[Any]:
    return [tvmdml.round(x)]


def _top_k(x: Array, k: Array, axis: int = -1, largest: int = 1, sorted: int = 1) -> list[Any]:  # noqa: A002
    direction = "decreasing" if largest else "increasing"
    return [*tvmdml.top_k(x, int(k.item()), axis=axis, axis_direction=direction, index_dtype="int64")]


def _nonzero(x: Array) -> list[Any]:
    return [tvmdml.nonzero_coordinates(x, index_dtype="int64").T]


def _eye_like(x: Array, dtype: int | None = None, k: int = 0) -> list[Any]:
    import onnx

    kind = x.dtype if dtype is None else onnx.helper.tensor_dtype_to_np_dtype(dtype)
    return [tvmdml.diagonal_matrix(sizes=x.shape, dtype=kind, diagonal_fill_begin=k, diagonal_fill_end=k + 1)]


def _trilu(x: Array, k: Array | None = None, upper: int = 1) -> list[Any]:
    diagonal = 0 if k is None else int(k.item())
    begin, end = (INT_MIN, diagonal) if upper else (diagonal + 1, INT_MAX)
    return [tvmdml.diagonal_matrix(x, value=0, diagonal_fill_begin=begin, diagonal_fill_end=end)]


def _running(name: str, x: Array, axis: Array, exclusive: int = 0, reverse: int = 0) -> list[Any]:
    own = {f"has_exclusive_{'sum' if name == 'cumulative_summation' else 'product'}": bool(exclusive)}
    direction = "decreasing" if reverse else "increasing"
    return [getattr(tvmdml, name)(x, axis=int(axis.item()), axis_direction=direction, **own)]


# How to compute each ONNX operator with functions, and the least number of its cases. (Descriptors have their own table,
# ``tvmdml.onnx.descriptors``, whose cases `tvmdml conformance --onnx` runs.)
OURS: dict[str, tuple[Callable[..., list[Any]], int]] = {
    "Round": (_round, 1),
    "TopK": (_top_k, 7),
    "NonZero": (_nonzero, 1),
    "EyeLike": (_eye_like, 3),
    "Trilu": (_trilu, 18),
    "CumSum": (partial(_running, "cumulative_summation"), 7),
    "CumProd": (partial(_running, "cumulative_product"), 0),  # older versions of ONNX do not have it
}


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # ONNX's computation of the expected outputs issues warnings
@pytest.mark.parametrize("operator", OURS)
def test_onnx_cases_give_what_onnx_expects(operator: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnx", reason="ONNX is not installed")
    function, least = OURS[operator]
    ran = 0
    for case in onnx_cases.collected()[operator]:
        if reason := case.unsaid():
            with capsys.disabled():
                print(f"\n{case.name}: not run: {reason}")  # noqa: T201
            continue
        results = function(*case.inputs, **case.attributes)
        for result, expected in zip(results, case.outputs, strict=True):
            assert_same_bits(np.ascontiguousarray(result), expected, any_nan=operator == "Round")
        ran += 1
    assert ran >= least


# -- PyTorch ------------------------------------------------------------------------------------------------------


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def _random_shapes(rng: np.random.Generator, least_rank: int = 1) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(1, 12, rng.integers(least_rank, 5)))


@pytest.mark.parametrize("data_type", FLOATING, ids=str)
def test_round_is_torchs_round_and_trunc(torch: Any, data_type: TensorDataType) -> None:
    rng = seeded("torch round", data_type)
    for _ in range(5):
        shape = _random_shapes(rng)
        for x in (mixture(rng, data_type, shape), (rng.integers(-9, 9, shape) / 2).astype(data_type.numpy)):
            tensor = torch.from_numpy(x)
            assert_same_bits(tvmdml.round(tensor).numpy(), torch.round(tensor).numpy(), any_nan=True)
            cut = tvmdml.round(tensor, rounding_mode="toward_zero")
            assert_same_bits(cut.numpy(), torch.trunc(tensor).numpy(), any_nan=True)


@pytest.mark.some(6)
@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
@pytest.mark.parametrize("data_type", [t for t in ALL if t.name not in ("UINT16", "UINT32", "UINT64")], ids=str)
def test_top_k_is_torchs_topk(torch: Any, data_type: TensorDataType, largest: bool) -> None:
    rng = seeded("torch top k", data_type, largest)
    for turn in range(6):
        shape = (*rng.integers(1, 4, rng.integers(0, 3)).tolist(), int(rng.integers(1, 1500)))
        axis = int(rng.integers(-len(shape), len(shape)))
        k = int(rng.integers(1, shape[axis] + 1))
        # Numbers without NaN, whose order libraries disagree about; half of the time all distinct, in random order.
        x = ordinary(rng, data_type, shape)
        if turn % 2 and data_type.itemsize > 1:
            rows = np.broadcast_to(np.arange(shape[axis]), np.moveaxis(x, axis, -1).shape)
            x = np.ascontiguousarray(np.moveaxis(rng.permuted(rows, axis=-1), -1, axis)).astype(data_type.numpy)
        tensor = torch.from_numpy(x)
        found = tvmdml.top_k(tensor, k, axis=axis, axis_direction="decreasing" if largest else "increasing", index_dtype="int64")
        wanted = torch.topk(tensor, k, dim=axis, largest=largest, sorted=True)
        assert torch.equal(found.values, wanted.values)
        assert torch.equal(tensor.gather(axis, found.indices), found.values)
        unique = all(len(np.unique(row)) == len(row) for row in np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis]))
        if unique:
            assert torch.equal(found.indices, wanted.indices)


@pytest.mark.parametrize("data_type", [*FLOATING, TensorDataType.INT32, TensorDataType.UINT8], ids=str)
def test_a_full_top_k_is_torchs_stable_sort(torch: Any, data_type: TensorDataType) -> None:
    rng = seeded("torch sort", data_type)
    for _ in range(5):
        shape = (*rng.integers(1, 5, rng.integers(0, 4)).tolist(), int(rng.integers(1, 300)))
        tensor = torch.from_numpy(rng.integers(0, 7, shape).astype(data_type.numpy))
        for descending in (True, False):
            found = tvmdml.top_k(
                tensor, shape[-1], axis_direction="decreasing" if descending else "increasing", index_dtype="int64"
            )
            values, indices = torch.sort(tensor, dim=-1, descending=descending, stable=True)
            assert torch.equal(found.values, values)
            assert torch.equal(found.indices, indices)


@pytest.mark.parametrize("data_type", [t for t in ALL if t.name not in ("UINT16", "UINT32", "UINT64")], ids=str)
def test_nonzero_is_torchs_nonzero(torch: Any, data_type: TensorDataType) -> None:
    rng = seeded("torch nonzero", data_type)
    for density in (0, 0.02, 0.3, 1):
        for _ in range(2):
            tensor = torch.from_numpy(sparse(rng, data_type, (*rng.integers(1, 5, 2).tolist(), 70), density))
            assert torch.equal(tvmdml.nonzero_coordinates(tensor, index_dtype="int64"), torch.nonzero(tensor))


@pytest.mark.parametrize("data_type", [t for t in ALL if t.name not in ("UINT16", "UINT32", "UINT64")], ids=str)
def test_bands_are_torchs_triu_tril_and_eye(torch: Any, data_type: TensorDataType) -> None:
    rng = seeded("torch bands", data_type)
    for _ in range(5):
        shape = _random_shapes(rng, 2)
        x, diagonal = random_bits(rng, data_type, shape), int(rng.integers(-13, 13))
        tensor = torch.from_numpy(x)
        upper = tvmdml.diagonal_matrix(tensor, value=0, diagonal_fill_begin=INT_MIN, diagonal_fill_end=diagonal)
        assert_same_bits(upper.numpy(), torch.triu(tensor, diagonal).numpy())
        lower = tvmdml.diagonal_matrix(tensor, value=0, diagonal_fill_begin=diagonal + 1, diagonal_fill_end=INT_MAX)
        assert_same_bits(lower.numpy(), torch.tril(tensor, diagonal).numpy())
        eye = tvmdml.diagonal_matrix(sizes=shape[-2:], dtype=data_type)
        assert_same_bits(eye, torch.eye(*shape[-2:], dtype=tensor.dtype).numpy())


# -- The C library ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mode"), [("round", "toward_infinity"), ("trunc", "toward_zero"), ("rint", "halves_to_nearest_even")]
)
def test_round_is_the_c_librarys(name: str, mode: str) -> None:
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    rng = seeded("libm", name)
    x = np.concatenate([(rng.integers(-(2**20), 2**20, 2000) / 4), random_bits(rng, TensorDataType.FLOAT64, (2000,))])
    with np.errstate(invalid="ignore"):
        x = np.concatenate([x, np.nextafter(x, np.inf), np.nextafter(x, -np.inf)])
    for dtype, suffix, kind in ((np.float64, "", ctypes.c_double), (np.float32, "f", ctypes.c_float)):
        function = library[name + suffix]
        function.argtypes, function.restype = [kind], kind
        with np.errstate(over="ignore", invalid="ignore"):
            numbers = x.astype(dtype)
        expected = np.array([function(value) for value in numbers.tolist()], dtype)
        assert_same_bits(tvmdml.round(numbers, rounding_mode=mode), expected, any_nan=True)
