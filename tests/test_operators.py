"""The results of every operator: DirectML's examples, called in both ways, and kernels against the reference, bit for bit."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from support import (
    ALL,
    FLOATING,
    INPUT_LAYOUTS,
    INT_MAX,
    INT_MIN,
    LAYOUT_PAIRS,
    OUTPUT_LAYOUTS,
    SIZES,
    VALUES,
    Placed,
    assert_agrees,
    assert_outputs_agree,
    assert_same_bits,
    bands,
    bits_of,
    diagonal_desc,
    flip_sign,
    mixture,
    nans,
    nonzero_desc,
    ordinary,
    plainly,
    random_bits,
    ready,
    reference,
    round_desc,
    run,
    seeded,
    sparse,
    special_values,
    ties,
    top_k_desc,
    zeros_of_both_signs,
)

import tvmdml
from tvmdml import (
    AxisDirection,
    DiagonalMatrix,
    DiagonalMatrix1,
    ElementWiseRound,
    NonzeroCoordinates,
    RoundingMode,
    TensorDataType,
    TensorDesc,
    TopK,
    TopK1,
)
from tvmdml.targets import Target

MODES = tuple(RoundingMode)
DIRECTIONS = tuple(AxisDirection)
types = pytest.mark.parametrize("data_type", ALL, ids=str)
float_types = pytest.mark.parametrize("data_type", FLOATING, ids=str)
ranks = pytest.mark.parametrize("rank", SIZES)
layouts = pytest.mark.parametrize("layouts", LAYOUT_PAIRS, ids=" to ".join)
directions = pytest.mark.parametrize("direction", DIRECTIONS, ids=str)
modes = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name.lower())


# -- DirectML's examples, through both doors ------------------------------------------------------------------------

HALVES = [-2.5, -1.75, -1.5, -1.25, 1.25, 1.5, 1.75, 2.5]
ROUNDED = {
    RoundingMode.HALVES_TO_NEAREST_EVEN: [-2, -2, -2, -1, 1, 2, 2, 2],
    RoundingMode.TOWARD_ZERO: [-2, -1, -1, -1, 1, 1, 1, 2],
    RoundingMode.TOWARD_INFINITY: [-3, -2, -2, -1, 1, 2, 2, 3],
}


@modes
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_round_gives_the_table_of_the_contract(mode: RoundingMode, dtype: str, target: Target) -> None:
    x, expected = np.array(HALVES, dtype), np.array(ROUNDED[mode], dtype)
    assert_same_bits(tvmdml.round(x, rounding_mode=mode, device=target.name), expected)
    desc = TensorDesc(dtype, (8,))
    y = np.empty_like(x)
    tvmdml.compile(ElementWiseRound(input_tensor=desc, output_tensor=desc, rounding_mode=mode), target)(x, y)
    assert_same_bits(y, expected)


TOP_K_EXAMPLES: list[tuple[list[list[int]], int, int, str, list[list[int]], list[list[int]]]] = [
    (
        [[0, 1, 10, 11], [3, 2, 9, 8], [4, 5, 6, 7]],
        *(1, 2, "decreasing"),
        [[11, 10], [9, 8], [7, 6]],
        [[3, 2], [2, 3], [3, 2]],
    ),
    (
        [[0, 1, 10, 11], [3, 2, 9, 8], [4, 5, 6, 7]],
        *(0, 2, "decreasing"),
        [[4, 5, 10, 11], [3, 2, 9, 8]],
        [[2, 2, 0, 0], [1, 1, 1, 1]],
    ),
    (
        [[1, 2, 2, 3], [3, 4, 5, 5], [6, 6, 6, 6]],
        *(1, 3, "decreasing"),
        [[3, 2, 2], [5, 5, 4], [6, 6, 6]],
        [[3, 1, 2], [2, 3, 1], [0, 1, 2]],
    ),
    (
        [[1, 2, 2, 3], [3, 4, 5, 5], [6, 6, 6, 6]],
        *(1, 3, "increasing"),
        [[1, 2, 2], [3, 4, 5], [6, 6, 6]],
        [[0, 1, 2], [0, 1, 2], [0, 1, 2]],
    ),
]


@pytest.mark.parametrize("example", TOP_K_EXAMPLES, ids=lambda e: f"axis {e[1]}, k {e[2]}, {e[3]}")
@pytest.mark.parametrize("dtype", ["float32", "int8", "uint64"])
def test_top_k_gives_the_examples_of_the_contract(example: Any, dtype: str, target: Target) -> None:
    numbers, axis, k, direction, values, indices = example
    x, values, indices = np.array(numbers, dtype), np.array(values, dtype), np.array(indices, np.uint32)
    found = tvmdml.top_k(x, k, axis=axis, axis_direction=direction, device=target.name)
    assert_same_bits(found.values, values)
    assert_same_bits(found.indices, indices)

    tensors = {
        "input_tensor": TensorDesc(dtype, x.shape),
        "output_value_tensor": TensorDesc(dtype, values.shape),
        "output_index_tensor": TensorDesc("uint32", values.shape),
    }
    descs: list[tvmdml.Operator] = [TopK1(**tensors, axis=axis, k=k, axis_direction=direction)]
    if direction == "decreasing":
        descs.append(TopK(**tensors, axis=axis, k=k))
    for desc in descs:
        got, at = np.empty_like(values), np.empty_like(indices)
        tvmdml.compile(desc, target)(x, got, at)
        assert_same_bits(got, values)
        assert_same_bits(at, indices)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_nonzero_gives_the_example_of_the_contract(dtype: str, target: Target) -> None:
    x = np.array([[[[1, 0, 0, 2], [-0.0, 3.5, 0, -5.2]]]], dtype)
    rows = np.array([[0, 0, 0], [0, 0, 3], [0, 1, 1], [0, 1, 3]], np.uint32)
    full = np.insert(rows, 0, 0, axis=1)
    assert_same_bits(tvmdml.nonzero_coordinates(x, device=target.name), full)

    desc = NonzeroCoordinates(
        input_tensor=TensorDesc(dtype, (1, 1, 2, 4)),
        output_count_tensor=TensorDesc("uint32", (1, 1, 1, 1)),
        output_coordinates_tensor=TensorDesc("uint32", (1, 1, 8, 3)),
    )
    count, coordinates = np.empty((1, 1, 1, 1), np.uint32), np.empty((1, 1, 8, 3), np.uint32)
    tvmdml.compile(desc, target)(x, count, coordinates)
    assert count.item() == 4
    assert_same_bits(coordinates[0, 0, :4], rows)


A = [[4, 7, 3, 7, 9], [1, 2, 8, 6, 9], [9, 4, 1, 8, 7], [4, 3, 4, 2, 4]]
DIAGONAL_EXAMPLES: dict[str, tuple[bool, int, int, int, list[list[int]]]] = {
    "band of sevens": (False, 7, 0, 3, [[7, 7, 7, 0, 0], [0, 7, 7, 7, 0], [0, 0, 7, 7, 7], [0, 0, 0, 7, 7]]),
    "no lower bound": (True, 0, INT_MIN, 1, [[0, 7, 3, 7, 9], [0, 0, 8, 6, 9], [0, 0, 0, 8, 7], [0, 0, 0, 0, 4]]),
    "inverted": (True, 0, 1, 0, [[4, 0, 0, 0, 0], [0, 2, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 2, 0]]),
}


@types
@pytest.mark.parametrize("name", DIAGONAL_EXAMPLES)
def test_diagonal_matrix_gives_the_examples_of_the_contract(name: str, data_type: TensorDataType, target: Target) -> None:
    has_input, value, begin, end, numbers = DIAGONAL_EXAMPLES[name]
    x, expected = np.array(A, data_type.numpy), np.array(numbers, data_type.numpy)
    source: dict[str, Any] = {"input": x} if has_input else {"sizes": (4, 5), "dtype": data_type.tvm}
    found = tvmdml.diagonal_matrix(**source, value=value, diagonal_fill_begin=begin, diagonal_fill_end=end, device=target.name)
    assert_same_bits(found, expected)

    tensor = TensorDesc(data_type, (4, 5))
    desc = DiagonalMatrix1(
        input_tensor=tensor if has_input else None,
        output_tensor=tensor,
        value_data_type=data_type,
        value=value,
        diagonal_fill_begin=begin,
        diagonal_fill_end=end,
    )
    y = np.empty_like(x)
    tvmdml.compile(desc, target)(x if has_input else None, y)
    assert_same_bits(y, expected)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint16"])
def test_diagonal_matrix_of_level_2_fills_one_diagonal_and_truncates_the_value(dtype: str, target: Target) -> None:
    desc = DiagonalMatrix(output_tensor=TensorDesc(dtype, (1, 2, 3, 4)), offset=1, value=2.75)
    y = np.full((1, 2, 3, 4), 9, dtype)
    tvmdml.compile(desc, target)(y)
    filled = 2.75 if dtype.startswith("f") else 2
    one = np.array([[0, filled, 0, 0], [0, 0, filled, 0], [0, 0, 0, filled]], dtype)
    assert_same_bits(y, np.array([[one, one]]))


# -- The references against the contract in plain Python ------------------------------------------------------------


@modes
@float_types
def test_the_reference_of_round_is_the_contract(data_type: TensorDataType, mode: RoundingMode) -> None:
    rng = seeded("plain round", data_type, mode)
    quarters = (np.arange(-20, 21) / 4).astype(data_type.numpy)
    for x in (special_values(data_type), quarters, random_bits(rng, data_type, (300,)), _near_halves(data_type)[:400]):
        desc = round_desc(TensorDesc(data_type, x.shape), mode)
        assert_same_bits(reference(desc, x)[0], plainly(desc, x)[0], any_nan=True)


@directions
@types
def test_the_reference_of_top_k_is_the_contract(data_type: TensorDataType, direction: AxisDirection) -> None:
    rng = seeded("plain top k", data_type, direction)
    for values, (sizes, axis) in itertools.product(VALUES, [((9,), 0), ((3, 8), 1), ((6, 2), 0), ((2, 5, 3), 1)]):
        x = values(rng, data_type, sizes)
        for k in (1, sizes[axis] // 2, sizes[axis]):
            desc = top_k_desc(TensorDesc(data_type, sizes), axis, k, direction, rng.choice(["uint32", "uint64"]))
            assert_outputs_agree(desc, reference(desc, x), plainly(desc, x))


@types
def test_the_reference_of_nonzero_is_the_contract(data_type: TensorDataType) -> None:
    rng = seeded("plain nonzero", data_type)
    for sizes, density in itertools.product([(1,), (1, 1, 1), (7,), (3, 4), (1, 1, 2, 3), (2, 1, 3)], (0, 0.3, 1)):
        x = sparse(rng, data_type, sizes, density)
        effective = max(TensorDesc(data_type, sizes).effective_rank, 1)
        for columns in range(effective, len(sizes) + 1):
            desc = nonzero_desc(TensorDesc(data_type, sizes), columns)
            assert_outputs_agree(desc, reference(desc, x), plainly(desc, x))


@pytest.mark.parametrize("has_input", [True, False], ids=["input", "no input"])
@types
def test_the_reference_of_diagonal_matrix_is_the_contract(data_type: TensorDataType, has_input: bool) -> None:
    rng = seeded("plain diagonal", data_type, has_input)
    for sizes in [(3, 4), (4, 2), (1, 1), (2, 2, 3), (1, 5), (5, 1)]:
        x = random_bits(rng, data_type, sizes) if has_input else None
        for begin, end in bands(*sizes[-2:]):
            desc = diagonal_desc(TensorDesc(data_type, sizes), 7, begin, end, has_input)
            assert_outputs_agree(desc, reference(desc, x), plainly(desc, x))


def test_the_reference_of_diagonal_matrix_of_level_2_is_the_contract() -> None:
    for dtype, offset, value in itertools.product(
        ("float32", "float16", "int32", "uint8"), (INT_MIN, -2, 0, 3, INT_MAX), (2.75, 0.0, 1.0)
    ):
        desc = DiagonalMatrix(output_tensor=TensorDesc(dtype, (1, 2, 3, 4)), offset=offset, value=value)
        assert_outputs_agree(desc, reference(desc), plainly(desc, None))


# -- ELEMENT_WISE_ROUND -------------------------------------------------------------------------------------------


def _near_halves(data_type: TensorDataType) -> np.ndarray[Any, Any]:
    """Numbers on, just below and just above n + 1/2 and n, up to where no fractions are left, of both signs."""
    dtype = data_type.numpy.type
    mantissa = np.finfo(data_type.tvm).nmant
    powers = 2.0 ** np.arange(-mantissa - 4, mantissa + 3)
    whole = np.concatenate([np.arange(0, 9), powers, powers + 1, powers - 1])
    centres = np.concatenate([whole, whole + 0.5, whole + 0.25, whole + 0.75]).astype(dtype)
    around = [centres]
    for direction in (-np.inf, np.inf):
        near = centres
        for _ in range(3):
            near = np.nextafter(near, dtype(direction))
            around.append(near)
    found = np.concatenate(around)
    return np.concatenate([found, flip_sign(found)])


@modes
@layouts
@ranks
@float_types
def test_round_agrees_for_every_rank_and_layout(
    data_type: TensorDataType, rank: int, layouts: tuple[str, str], mode: RoundingMode, target: Target
) -> None:
    x = Placed.holding(mixture(seeded(data_type, rank, layouts), data_type, SIZES[rank]), layouts[0])
    assert_agrees(round_desc(x.desc, mode, layouts[1]), target, x.array, shifted=layouts[1] == "shifted")


@modes
def test_round_agrees_for_every_float16_there_is(mode: RoundingMode, target: Target) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    assert_agrees(round_desc(TensorDesc("float16", x.shape), mode), target, x)


@modes
def test_round_agrees_for_float32_of_every_exponent(mode: RoundingMode, target: Target) -> None:
    # Each upper half of a bit pattern, with changing lower halves.
    upper = np.arange(1 << 16, dtype=np.uint32)
    x = ((upper << 16) | (upper * 40503 & 0xFFFF)).view(np.float32)
    assert_agrees(round_desc(TensorDesc("float32", x.shape), mode), target, x)


@modes
@float_types
def test_round_agrees_around_halves_and_where_fractions_end(data_type: TensorDataType, mode: RoundingMode, target: Target) -> None:
    x = _near_halves(data_type)
    assert_agrees(round_desc(TensorDesc(data_type, x.shape), mode), target, x)


@modes
def test_round_is_not_adding_a_half_and_cutting_off(mode: RoundingMode, target: Target) -> None:
    x = np.array([0.49999997, -0.49999997, 8388609.0, -8388609.0, 16777217.0, -0.4, 0.0, -0.0], np.float32)
    expected = np.array([0.0, -0.0, 8388609.0, -8388609.0, 16777217.0, -0.0, 0.0, -0.0], np.float32)
    assert_same_bits(tvmdml.round(x, rounding_mode=mode, device=target.name), expected)


@modes
@float_types
def test_round_passes_infinities_and_nan_through(data_type: TensorDataType, mode: RoundingMode, target: Target) -> None:
    infinities = np.array([np.inf, -np.inf], data_type.numpy)
    assert_same_bits(tvmdml.round(infinities, rounding_mode=mode, device=target.name), infinities)
    every = np.concatenate([nans(data_type), flip_sign(nans(data_type))])
    assert np.isnan(tvmdml.round(every, rounding_mode=mode, device=target.name)).all()


@pytest.mark.parametrize("layout", OUTPUT_LAYOUTS)
@ranks
@float_types
def test_round_in_place_is_the_same(data_type: TensorDataType, rank: int, layout: str, target: Target) -> None:
    rng = seeded("in place", data_type, rank, layout)
    mode = MODES[rank % 3]
    x = Placed.holding(mixture(rng, data_type, SIZES[rank]), layout)
    desc = round_desc(x.desc, mode, layout)
    (expected,) = reference(desc, x.array.copy())
    ready(desc, target)(x.array, x.array)
    assert_same_bits(x.array, expected, any_nan=True)
    x.assert_nothing_else_was_written()


@pytest.mark.usefixtures("in_parallel")
@modes
@layouts
@pytest.mark.parametrize("rank", [1, 2, 4, 6])
@float_types
def test_round_in_parallel_is_the_same(data_type: TensorDataType, rank: int, layouts: tuple[str, str], mode: RoundingMode) -> None:
    x = Placed.holding(mixture(seeded(data_type, rank, layouts), data_type, SIZES[rank]), layouts[0])
    desc = round_desc(x.desc, mode, layouts[1])
    assert_agrees(desc, _cpu(desc), x.array, shifted=layouts[1] == "shifted")


# -- TOP_K and TOP_K1 ---------------------------------------------------------------------------------------------


def _axis_and_k(rank: int, turn: int) -> tuple[int, int]:
    """An axis whose size is above 1, another one each turn, and a k from 1 to its size."""
    long = [i for i, n in enumerate(SIZES[rank]) if n > 1]
    axis = long[turn % len(long)]
    return axis, 1 + (7 * turn) % SIZES[rank][axis]


@layouts
@ranks
@types
def test_top_k_agrees_for_every_rank_and_layout(
    data_type: TensorDataType, rank: int, layouts: tuple[str, str], target: Target
) -> None:
    turn = LAYOUT_PAIRS.index(layouts) + rank + data_type
    axis, k = _axis_and_k(rank, turn)
    rng = seeded("top k", data_type, rank, layouts)
    x = Placed.holding(VALUES[turn % len(VALUES)](rng, data_type, SIZES[rank]), layouts[0])
    desc = top_k_desc(x.desc, axis, k, DIRECTIONS[turn % 2], ("uint32", "uint64")[turn // 2 % 2], layouts[1])
    assert_agrees(desc, target, x.array, shifted=layouts[1] == "shifted")


@pytest.mark.parametrize("way", ["sort", "select"])
@pytest.mark.parametrize("axis", [0, 1, 2], ids="axis {}".format)
@layouts
def test_the_long_ways_of_top_k_agree_for_every_layout(layouts: tuple[str, str], axis: int, way: str, target: Target) -> None:
    turn = LAYOUT_PAIRS.index(layouts)
    data_type = ALL[(turn + 3 * axis) % len(ALL)]
    sizes = [2, 3, 2]
    sizes[axis], k = {"sort": (200, 77), "select": (1500, 40)}[way]
    rng = seeded("long", data_type, axis, layouts, way)
    x = Placed.holding(VALUES[turn % len(VALUES)](rng, data_type, tuple(sizes)), layouts[0])
    desc = top_k_desc(x.desc, axis, k, DIRECTIONS[turn % 2], layout=layouts[1])
    _assert_way(desc, way)
    assert_agrees(desc, target, x.array, shifted=layouts[1] == "shifted")


# The algorithm, the length, and several k for it. The lengths are near whole registers and whole chunks.
WAYS = [
    ("rank", 1, (1,)),
    ("rank", 2, (1, 2)),
    ("rank", 63, (1, 63)),
    ("rank", 64, (1, 31)),
    ("select", 129, (1, 2, 20)),
    ("select", 1025, (1, 33, 170)),
    ("select", 3001, (1, 5, 32, 300)),
    ("select", 5000, (257, 800)),
    ("sort", 66, (60, 66)),
    ("sort", 1024, (172, 1000, 1024)),
    ("sort", 2100, (2100,)),
]


@directions
@types
@pytest.mark.parametrize(("way", "length", "ks"), WAYS, ids=lambda v: str(v) if isinstance(v, (str, int)) else "")
def test_every_way_of_top_k_agrees_for_awkward_values(
    way: str, length: int, ks: tuple[int, ...], data_type: TensorDataType, direction: AxisDirection, target: Target
) -> None:
    rng = seeded("ways", way, length, data_type, direction)
    rows = np.concatenate([values(rng, data_type, (1, length)) for values in VALUES])
    for k in ks:
        desc = top_k_desc(TensorDesc(data_type, rows.shape), 1, k, direction)
        _assert_way(desc, way)
        assert_agrees(desc, target, rows)


@pytest.mark.usefixtures("in_parallel")
@directions
@types
@pytest.mark.parametrize(("way", "length", "k"), [("rank", 60, 9), ("sort", 300, 80), ("select", 1100, 60)])
def test_every_way_of_top_k_in_parallel_is_the_same(
    way: str, length: int, k: int, data_type: TensorDataType, direction: AxisDirection
) -> None:
    rng = seeded("parallel", way, data_type, direction)
    rows = np.concatenate([values(rng, data_type, (1, length)) for values in VALUES])
    desc = top_k_desc(TensorDesc(data_type, rows.shape), 1, k, direction)
    _assert_way(desc, way)
    assert_agrees(desc, _cpu(desc), rows)


@pytest.mark.usefixtures("in_parallel")
@pytest.mark.parametrize(("way", "k"), [("sort", 20_000), ("select", 32), ("select", 400)])
def test_tasks_that_run_at_once_do_not_share_scratch(way: str, k: int) -> None:
    # Long enough to make tasks overlap: a short task ends before the next begins.
    x = random_bits(seeded(way), TensorDataType.UINT32, (12, 60_000))
    desc = top_k_desc(TensorDesc("uint32", x.shape), 1, k, "increasing")
    _assert_way(desc, way)
    assert_agrees(desc, _cpu(desc), np.sort(x, axis=1)[:, ::-1].copy() if k == 32 else x)


@pytest.mark.usefixtures("in_parallel")
@layouts
@pytest.mark.parametrize("rank", [3, 5, 8])
def test_top_k_in_parallel_agrees_for_every_layout(rank: int, layouts: tuple[str, str]) -> None:
    turn = LAYOUT_PAIRS.index(layouts) + rank
    data_type = ALL[turn % len(ALL)]
    axis, k = _axis_and_k(rank, turn)
    x = Placed.holding(ties(seeded(rank, layouts), data_type, SIZES[rank]), layouts[0])
    desc = top_k_desc(x.desc, axis, k, DIRECTIONS[turn % 2], layout=layouts[1])
    assert_agrees(desc, _cpu(desc), x.array, shifted=layouts[1] == "shifted")


@directions
@types
def test_ties_come_in_ascending_index_order(data_type: TensorDataType, direction: AxisDirection, target: Target) -> None:
    for length, k in ((40, 20), (200, 100), (1500, 100)):
        x = np.full((length,), 3, data_type.numpy)
        found = tvmdml.top_k(x, k, axis_direction=direction, device=target.name)
        assert_same_bits(found.indices, np.arange(k, dtype=np.uint32))


@directions
@float_types
def test_zeros_of_both_signs_tie_and_keep_their_sign(data_type: TensorDataType, direction: AxisDirection, target: Target) -> None:
    for length, k in ((40, 20), (200, 100), (1500, 100)):
        x = zeros_of_both_signs(seeded(length), data_type, (length,))
        found = tvmdml.top_k(x, k, axis_direction=direction, device=target.name)
        assert_same_bits(found.indices, np.arange(k, dtype=np.uint32))
        assert_same_bits(found.values, x[:k])


@float_types
def test_nan_of_every_kind_ranks_above_infinity_and_keeps_its_payload(data_type: TensorDataType, target: Target) -> None:
    some = np.concatenate([nans(data_type), flip_sign(nans(data_type))])
    for padding in (0, 200, 1500):
        numbers = np.concatenate([[np.inf, -np.inf, 0, 1], np.zeros(padding)]).astype(data_type.numpy)
        x = np.concatenate([numbers, some])
        k = len(some) + (40 if padding else 0)
        down = tvmdml.top_k(x, k, axis_direction="decreasing", device=target.name)
        assert_same_bits(down.values[: len(some)], some)
        assert_same_bits(down.indices[: len(some)], np.arange(len(numbers), len(x), dtype=np.uint32))
        assert down.values[len(some) :][:1].tolist() in ([], [np.inf])
        up = tvmdml.top_k(x, len(x), axis_direction="increasing", device=target.name)
        assert_same_bits(up.values[len(numbers) :], some)
        assert up.values[0] == -np.inf


@directions
@types
def test_k_equal_to_the_axis_is_a_stable_sort(data_type: TensorDataType, direction: AxisDirection, target: Target) -> None:
    x = ordinary(seeded(data_type), data_type, (500,)) if data_type.is_float else mixture(seeded(1), data_type, (500,))
    found = tvmdml.top_k(x, 500, axis_direction=direction, device=target.name)
    ascending = np.sort(x)
    expected = ascending if direction is AxisDirection.INCREASING else ascending[::-1]
    assert (found.values == expected).all()
    assert sorted(found.indices.tolist()) == list(range(500))


@ranks
def test_top_k_of_level_1_is_top_k1_decreasing(rank: int, target: Target) -> None:
    axis, k = _axis_and_k(rank, 1)
    x = mixture(seeded(rank), TensorDataType.FLOAT32, SIZES[rank])
    one = top_k_desc(TensorDesc("float32", x.shape), axis, k, "decreasing")
    tensors = {name: getattr(one, name) for name in ("input_tensor", "output_value_tensor", "output_index_tensor")}
    assert_outputs_agree(one, run(TopK(**tensors, axis=axis, k=k), target, x), reference(one, x))


def _assert_way(desc: TopK1, way: str) -> None:
    """The CPU's schedule takes the way that a test is about."""
    assert tvmdml.targets.resolve("cpu").kernel(desc.canonical()).name == way


# -- NONZERO_COORDINATES ------------------------------------------------------------------------------------------

DENSITIES = (0.0, 0.001, 0.1, 0.5, 1.0)
densities = pytest.mark.parametrize("density", DENSITIES)


@pytest.mark.parametrize("layout", INPUT_LAYOUTS)
@ranks
@types
def test_nonzero_agrees_for_every_rank_and_layout(data_type: TensorDataType, rank: int, layout: str, target: Target) -> None:
    turn = INPUT_LAYOUTS.index(layout) + data_type
    x = Placed.holding(sparse(seeded(data_type, rank, layout), data_type, SIZES[rank], DENSITIES[2 + turn % 2]), layout)
    out = OUTPUT_LAYOUTS[turn % len(OUTPUT_LAYOUTS)]
    desc = nonzero_desc(x.desc, index=("uint32", "uint64")[turn % 2], layout=out)
    assert_agrees(desc, target, x.array, shifted=out == "shifted")


@densities
@pytest.mark.parametrize("sizes", [(4097,), (64, 64), (3, 5, 130), (17, 1, 129), (40, 3, 2, 5, 1, 3)], ids=str)
@types
def test_nonzero_agrees_at_every_density(data_type: TensorDataType, sizes: tuple[int, ...], density: float, target: Target) -> None:
    x = sparse(seeded(data_type, sizes, density), data_type, sizes, density)
    if density in (0, 1):
        assert np.count_nonzero(x) == density * x.size
    assert_agrees(nonzero_desc(TensorDesc(data_type, sizes)), target, x)


@pytest.mark.usefixtures("in_parallel")
@densities
@pytest.mark.parametrize("sizes", [(4097,), (3,), (3, 5, 130), (67, 61), (2, 2, 2, 2, 2, 2, 2, 2)], ids=str)
@types
def test_nonzero_in_parallel_is_the_same(data_type: TensorDataType, sizes: tuple[int, ...], density: float) -> None:
    x = sparse(seeded(data_type, sizes, density), data_type, sizes, density)
    desc = nonzero_desc(TensorDesc(data_type, sizes))
    assert_agrees(desc, _cpu(desc), x)


@pytest.mark.usefixtures("in_parallel")
@pytest.mark.parametrize("layout", INPUT_LAYOUTS)
@pytest.mark.parametrize("rank", [2, 4, 7])
def test_nonzero_in_parallel_agrees_for_every_layout(rank: int, layout: str) -> None:
    turn = INPUT_LAYOUTS.index(layout) + rank
    data_type, out = ALL[turn % len(ALL)], OUTPUT_LAYOUTS[turn % len(OUTPUT_LAYOUTS)]
    x = Placed.holding(sparse(seeded(rank, layout), data_type, SIZES[rank], 0.4), layout)
    desc = nonzero_desc(x.desc, layout=out)
    assert_agrees(desc, _cpu(desc), x.array, shifted=out == "shifted")


@pytest.mark.usefixtures("in_parallel")
def test_tasks_of_nonzero_may_begin_and_end_anywhere(target: Target) -> None:
    # One nonzero element, at each position in turn: it is on either side of every boundary between tasks.
    desc = nonzero_desc(TensorDesc("uint8", (7, 29)))
    for at in range(7 * 29):
        x = np.zeros(7 * 29, np.uint8)
        x[at] = 255
        assert_agrees(desc, target, x.reshape(7, 29))


@pytest.mark.parametrize("rank", [1, 2, 3, 5, 8])
def test_a_row_holds_the_last_coordinates_from_effective_rank_to_rank(rank: int, target: Target) -> None:
    for effective in range(rank + 1):
        sizes = ((1,) * (rank - effective) + (3, 2, 2, 3, 2, 2, 2, 2)[:effective]) or (1,)
        x = sparse(seeded(rank, effective), TensorDataType.FLOAT32, sizes, 0.6)
        for columns in range(max(effective, 1), rank + 1):
            assert_agrees(nonzero_desc(TensorDesc("float32", sizes), columns), target, x)


@pytest.mark.parametrize(("rank", "coordinates_rank"), [*itertools.product([1, 4, 8], [2, 5, 8])])
def test_dimension_counts_of_nonzero_may_differ(rank: int, coordinates_rank: int, target: Target) -> None:
    x = sparse(seeded(rank), TensorDataType.INT16, SIZES[rank], 0.5)
    desc = nonzero_desc(TensorDesc("int16", SIZES[rank]), rank=coordinates_rank)
    tvmdml.compile(desc, target)
    assert_agrees(desc, target, x)


@float_types
def test_nan_is_not_zero_but_both_zeros_and_only_they_are(data_type: TensorDataType, target: Target) -> None:
    x = special_values(data_type)
    found = tvmdml.nonzero_coordinates(x, device=target.name)
    assert found[:, 0].tolist() == [i for i, value in enumerate(x.tolist()) if value != 0]
    assert len(found) == len(x) - 2


def test_nonzero_takes_bool_and_any_byte_of_it(target: Target) -> None:
    raw = np.array([0, 1, 2, 0, 255, 128], np.uint8)
    assert tvmdml.nonzero_coordinates(raw.view(bool), device=target.name)[:, 0].tolist() == [1, 2, 4, 5]


# -- DIAGONAL_MATRIX and DIAGONAL_MATRIX1 -------------------------------------------------------------------------


@pytest.mark.parametrize("has_input", [True, False], ids=["input", "no input"])
@layouts
@pytest.mark.parametrize("rank", [r for r in SIZES if r > 1])
@types
def test_diagonal_matrix_agrees_for_every_rank_and_layout(
    data_type: TensorDataType, rank: int, layouts: tuple[str, str], has_input: bool, target: Target
) -> None:
    turn = LAYOUT_PAIRS.index(layouts) + rank
    begin, end = [(-1, 2), (2, -1), (0, 0), (INT_MIN, 0), (1, INT_MAX), (1, INT_MIN)][turn % 6]
    x = Placed.holding(random_bits(seeded(data_type, rank, layouts), data_type, SIZES[rank]), layouts[0])
    desc = diagonal_desc(x.desc, 100, begin, end, has_input, layouts[1])
    assert_agrees(desc, target, x.array if has_input else None, shifted=layouts[1] == "shifted")


@pytest.mark.parametrize("has_input", [True, False], ids=["input", "no input"])
@pytest.mark.parametrize("sizes", [(4, 5), (5, 3), (1, 9), (9, 1), (1, 1), (2, 70, 67)], ids=str)
def test_every_kind_of_band_is_filled(sizes: tuple[int, ...], has_input: bool, target: Target) -> None:
    x = random_bits(seeded(sizes), TensorDataType.INT16, sizes)
    for begin, end in bands(*sizes[-2:]):
        desc = diagonal_desc(TensorDesc("int16", sizes), -321, begin, end, has_input)
        assert_agrees(desc, target, x if has_input else None)


@types
def test_the_value_reaches_the_limits_of_its_type_and_keeps_every_bit(data_type: TensorDataType, target: Target) -> None:
    for value in special_values(data_type):
        desc = diagonal_desc(TensorDesc(data_type, (3, 4)), value.item(), 0, 2, False)
        assert_agrees(desc, target, None)
        (result,) = run(desc, target, None)
        if np.isnan(value):
            assert np.isnan(result[0, :2]).all()
        else:
            assert bits_of(result[0, :2]).tolist() == [int(bits_of(value))] * 2


@float_types
def test_the_input_keeps_nan_payloads_and_zero_signs(data_type: TensorDataType, target: Target) -> None:
    x = np.resize(special_values(data_type), (6, 7))
    desc = diagonal_desc(TensorDesc(data_type, (6, 7)), 1.5, 0, 0)
    assert_same_bits(run(desc, target, x)[0], x)


@pytest.mark.usefixtures("in_parallel")
@pytest.mark.parametrize("has_input", [True, False], ids=["input", "no input"])
@layouts
@pytest.mark.parametrize("rank", [2, 4, 7])
def test_diagonal_matrix_in_parallel_is_the_same(rank: int, layouts: tuple[str, str], has_input: bool) -> None:
    turn = LAYOUT_PAIRS.index(layouts) + rank
    data_type = ALL[turn % len(ALL)]
    x = Placed.holding(random_bits(seeded(rank, layouts), data_type, SIZES[rank]), layouts[0])
    desc = diagonal_desc(x.desc, 100, *((-1, 2), (2, -1))[turn % 2], has_input, layouts[1])
    assert_agrees(desc, _cpu(desc), x.array if has_input else None, shifted=layouts[1] == "shifted")


@pytest.mark.parametrize("offset", [INT_MIN, -3, -1, 0, 2, 5, INT_MAX])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_diagonal_matrix_of_level_2_agrees(dtype: str, offset: int, target: Target) -> None:
    value = 77.9 if dtype.startswith("u") else -77.9
    assert_agrees(DiagonalMatrix(output_tensor=TensorDesc(dtype, (2, 3, 4, 5)), offset=offset, value=value), target)


def _cpu(desc: tvmdml.Operator) -> Target:
    """The CPU, where this operator now runs in parallel."""
    target = tvmdml.targets.resolve("cpu")
    assert dict(target.kernel(desc.canonical()).parameters)["parallel"] is True
    return target
