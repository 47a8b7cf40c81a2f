"""Arrays past 2**31 bytes and past 2**31 elements: offsets are 64 bits wide."""

from __future__ import annotations

import numpy as np
import pytest

import tvmdml
from tvmdml.targets import Target

pytestmark = pytest.mark.large
PAST = (1 << 31) + 3


def test_round_past_2_to_the_31_bytes() -> None:
    x = np.zeros(PAST // 4 + 5, np.float32)
    spots = [0, 12345, (1 << 29) - 1, 1 << 29, len(x) - 1]
    x[spots] = [1.5, -2.5, 3.5, -0.4, 4.5]
    result = tvmdml.round(x)
    assert result[spots].tolist() == [2, -2, 4, 0, 4]
    assert np.count_nonzero(result) == 4


def test_round_in_place_past_2_to_the_31_elements() -> None:
    x = np.zeros(PAST, np.float16)
    spots = [0, (1 << 31) - 1, 1 << 31, len(x) - 1]
    x[spots] = [1.5, -2.5, 3.5, 4.5]
    assert tvmdml.round(x, out=x, rounding_mode="toward_infinity") is x
    assert x[spots].tolist() == [2, -3, 4, 5]
    assert np.count_nonzero(x) == 4


@pytest.mark.parametrize(("shape", "dtype"), [((PAST,), "uint8"), ((3, 180_000_000), "float32")])
def test_nonzero_past_2_to_the_31(shape: tuple[int, ...], dtype: str) -> None:
    x = np.zeros(shape, dtype)
    assert x.nbytes > 1 << 31
    flat = x.reshape(-1)
    spots = sorted({5, flat.size // 2, min(1 << 31, flat.size - 3), flat.size - 1})
    flat[spots] = 1
    expected = np.stack(np.unravel_index(spots, shape), 1)
    np.testing.assert_array_equal(tvmdml.nonzero_coordinates(x), expected)


def test_diagonal_past_2_to_the_31_bytes() -> None:
    side = 46_500
    result = tvmdml.diagonal_matrix(
        sizes=(side, side), dtype="uint8", value=9, diagonal_fill_begin=side - 2, diagonal_fill_end=side
    )
    assert result.nbytes > 1 << 31
    assert np.argwhere(result[:3]).tolist() == [[0, side - 2], [0, side - 1], [1, side - 1]]
    assert np.count_nonzero(result) == 3


def test_top_k_of_a_row_past_2_to_the_31_bytes() -> None:
    x = np.zeros(PAST // 4 + 5, np.float32)
    x[[7, (1 << 29) + 1, len(x) - 1]] = [1, 3, 2]
    values, indices = tvmdml.top_k(x, 4)
    assert values.tolist() == [3, 2, 1, 0]
    assert indices.tolist() == [(1 << 29) + 1, len(x) - 1, 7, 0]


@pytest.mark.parametrize("rows", [1, 6], ids=["a row", "rows"])
def test_gemm_of_a_factor_past_2_to_the_31_bytes(rows: int) -> None:
    b = np.zeros((64, 8_400_000), np.float32)
    assert b.nbytes > 1 << 31
    spots = [(0, 0), (31, 4_200_001), (63, 8_399_999)]
    for place, column in spots:
        b[place, column] = column % 7 + 2
    a = np.arange(1, rows * 64 + 1, dtype=np.float32).reshape(rows, 64)
    result = tvmdml.gemm(a, b)
    for place, column in spots:
        assert result[:, column].tolist() == (a[:, place] * b[place, column]).tolist()
    assert np.count_nonzero(result) == rows * len(spots)


def test_gemm_with_a_result_past_2_to_the_31_bytes() -> None:
    a, b = np.zeros((33_000, 2), np.float16), np.ones((2, 33_000), np.float16)
    a[[0, 16_500, -1], 1] = [1, 2, 3]
    b[1, [5, -1]] = [4, 5]
    result = tvmdml.gemm(a, b)
    assert result.nbytes > 1 << 31
    assert np.count_nonzero(result) == 3 * 33_000
    for row, value in ((0, 1), (16_500, 2), (-1, 3)):
        assert np.array_equal(result[row], b[1] * value)


@pytest.mark.parametrize("rows", [1, 20], ids=["a row", "rows"])
def test_integer_products_of_a_factor_past_2_to_the_31_bytes(rows: int) -> None:
    columns = (1 << 27) + 5 if rows == 1 else 5_400_000
    b = np.zeros((PAST // columns + 1, columns), np.int8)
    assert b.nbytes > 1 << 31
    a = np.arange(1, rows * len(b) + 1, dtype=np.uint64).astype(np.uint8).reshape(rows, len(b))
    zero = np.full((1, 1), 3, np.uint8)
    spots = [(0, 0), (len(b) // 2, columns // 2 + 1), (len(b) - 1, columns - 1)]
    for place, column in spots:
        b[place, column] = column % 7 - 9
    result = tvmdml.matrix_multiply_integer(a, b, zero)
    for place, column in spots:
        assert result[:, column].tolist() == ((a[:, place].astype(int) - 3) * b[place, column]).tolist()
    assert np.count_nonzero(result) == sum(np.count_nonzero(a[:, place] != 3) for place, _ in spots)


@pytest.mark.parametrize("mode", ["nearest_neighbor", "linear"])
def test_resampling_of_a_row_past_2_to_the_31_elements(mode: str, cuda: Target) -> None:
    """No Vulkan driver takes such a row."""
    x = np.arange(PAST // 256 + 1, dtype=np.uint32).astype(np.uint8).repeat(256)  # it can be seen where results are from
    places = (np.arange(61) + 0.5) * len(x) / 61 - 0.5 * (mode == "linear")
    for device in ("cpu", cuda.name):
        found = tvmdml.resample(x.reshape(1, 1, 1, -1), (1, 1, 1, 61), interpolation_mode=mode, device=device).reshape(61)
        difference = found - x[places.astype(np.int64)]
        assert np.isin(difference, (0, 1, 255) if mode == "linear" else 0).all()  # sums of weighed integers are cut
