"""Products with matrices of few bits in blocks: right for all bits, blocks and zero points, and the same bits for all tasks."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from fenced import Place, Work, run
from support import Array, assert_outputs_agree, desc_of, reference, seeded

import tvmdml
from tvmdml import knobs, targets
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators._following import follow
from tvmdml.operators._matrix_blocks_fused import BlockwiseGemm
from tvmdml.operators._pointwise_fused import Result
from tvmdml.targets.cpu import host

BITS, BLOCKS, ZEROS, SIGNED, FLOATS = (
    (2, 4, 8),
    (16, 32, 64, 128, 256),
    ("none", "bits", "floats"),
    (False, True),
    ("float32", "float16"),
)
EVERY = list(itertools.product(BITS, BLOCKS, ZEROS, SIGNED, FLOATS))
SOME = EVERY[::11]
"""Each value of each with each of the next."""
LEVELS = ("cpu", "cpu:x86-64-v3", "cpu:x86-64-v2")
ROWS = (1, 2, 3, 7, 8, 9, 33, 128)
ENDS = (Place(at_end=True), Place(at_end=False))


def given(
    rows: int, columns: int, places: int, bits: int, block: int, zeros: str, signed: bool, dtype: str, across: bool = False
) -> tuple[BlockwiseGemm, list[Array | None]]:
    """A descriptor and its inputs. Behind the last element of a row of the matrix are other bits."""
    rng, blocks = seeded(str((rows, columns, places, bits, block, zeros))), -(-places // block)
    x = rng.standard_normal((rows, places)).astype(dtype)
    of_matrix, of_blocks = ((places, columns + 8), (blocks, columns)) if across else ((columns, blocks * block), (columns, blocks))
    w = rng.integers(0, 256, (of_matrix[0], -(-of_matrix[1] * bits // 8)), np.uint8)
    scale = (rng.standard_normal(of_blocks) * 0.1).astype(dtype)
    zero = {
        "none": None,
        "bits": rng.integers(0, 256, (of_blocks[0], -(-of_blocks[1] * bits // 8)), np.uint8),
        "floats": (rng.random(of_blocks) * (1 << bits)).astype(dtype),
    }[zeros]
    arrays = [x, w, scale, zero]
    tensors = [None if array is None else desc_of(array) for array in arrays]
    return BlockwiseGemm.of(*tensors, bits=bits, block_size=block, is_signed=signed, is_across=across), arrays


def agrees(desc: Any, arrays: list[Array | None], where: str, *ways: str) -> None:
    """The kernel reads and writes nothing outside of its arrays, and its results are right."""
    target = targets.resolve(where)
    assert kernel_for(desc, target).name in ways
    expected = reference(desc, *arrays)
    for place in ENDS:
        assert_outputs_agree(desc, run(Work(desc, target), arrays, "kernel", place, place), expected)


def runs(where: str) -> bool:
    return where == "cpu" or host.host().has("avx2")


@pytest.mark.parametrize("form", SOME, ids=str)
def test_a_row_and_many_rows(form: tuple[Any, ...]) -> None:
    """Places are no multiple of a block, columns none of a vector."""
    agrees(*given(1, 67, 3 * form[1] + 24, *form), "cpu", "bits")
    agrees(*given(21, 67, 3 * form[1] + 24, *form), "cpu", "bit_tiles")


@pytest.mark.full
@pytest.mark.some(40)
@pytest.mark.parametrize("number", range(len(EVERY)))
def test_every_form(number: int) -> None:
    """Each with its processor and two numbers of rows."""
    where = LEVELS[number % len(LEVELS)]
    if not runs(where):
        pytest.skip(f"this processor has no {where}")
    form = EVERY[number]
    for rows in (ROWS[number % len(ROWS)], ROWS[(number + 3) % len(ROWS)]):
        agrees(*given(rows, 49, 2 * form[1] + 40, *form), where, "bits", "bit_tiles")


@pytest.mark.parametrize("where", LEVELS[1:])
@pytest.mark.parametrize("form", [(4, 32, "none", False, "float32"), (2, 64, "bits", True, "float16")], ids=str)
def test_processors_without_long_vectors(form: tuple[Any, ...], where: str) -> None:
    if not runs(where):
        pytest.skip(f"this processor has no {where}")
    for rows in (1, 5, 12):
        agrees(*given(rows, 83, 344, *form), where, "bits", "bit_tiles")


@pytest.mark.parametrize("where", LEVELS[:2])
@pytest.mark.parametrize(
    ("bits", "block", "zeros"), [(8, 4, "bits"), (8, 8, "bits"), (4, 8, "bits"), (2, 16, "bits"), (8, 4, "floats"), (4, 8, "none")]
)
def test_a_vector_has_many_blocks(bits: int, block: int, zeros: str, where: str) -> None:
    if not runs(where):
        pytest.skip(f"this processor has no {where}")
    for rows in (1, 9):
        agrees(*given(rows, 67, 40 * block + block // 2, bits, block, zeros, rows == 1, "float32"), where, "bits", "bit_tiles")


@pytest.mark.parametrize("where", LEVELS)
@pytest.mark.parametrize("form", SOME[::3], ids=str)
def test_bytes_hold_neighbouring_columns(form: tuple[Any, ...], where: str) -> None:
    """Blocks may have any number of places, and rows are as many as there are kernels."""
    if not runs(where):
        pytest.skip(f"this processor has no {where}")
    bits, _, *others = form
    for rows, columns, block in ((1, 67, 27), (2, 600, 40), (7, 131, 32), (21, 67, 27)):
        agrees(*given(rows, columns, 2 * block + 5, bits, block, *others, across=True), where, "bits", "bit_tiles")


def test_bytes_of_columns_have_the_default_kernel_on_devices(device: targets.Target) -> None:
    """It is right, but not fast: passes of graphs do not choose it there."""
    desc, arrays = given(3, 67, 50, 4, 27, "bits", False, "float32", across=True)
    agrees(desc, arrays, str(device), "default")


WITH_BYTES = "cpu:x86-64-v4+avx512vnni"


def has_bytes() -> bool:
    return host.host().has("avx512f") and host.host().has("avx512vnni")


@pytest.mark.parametrize("form", [form for form in SOME if form[1] > 16][::2], ids=str)
def test_rows_that_may_be_rounded(form: tuple[Any, ...]) -> None:
    """They become bytes where a processor multiplies these, and are within half a step of the largest of their block."""
    for rows in (1, 2, 3, 21):
        desc, arrays = given(rows, 67, 3 * form[1] + 24, *form)
        desc = dataclasses.replace(desc, may_round=True)
        if has_bytes():
            agrees(desc, arrays, WITH_BYTES, "bit_integers")
    agrees(desc, arrays, "cpu:x86-64-v2", "bits", "bit_tiles")


@pytest.mark.skipif(not has_bytes(), reason="this processor does not multiply bytes in vectors of 64")
def test_rounded_rows_are_integers_of_their_blocks() -> None:
    """Rows that are integers of up to 127 are not changed; what is no number makes no number; 0 stays 0."""
    desc, (x, *others) = given(5, 64, 256, 4, 32, "bits", False, "float32")
    assert x is not None
    x[...] = seeded("integers").integers(-127, 128, x.shape)
    x[:, ::32] = 127
    x[2], x[3, 40], x[4, 40] = 0, np.nan, np.inf
    results = []
    for way in (desc, dataclasses.replace(desc, may_round=True)):
        y = np.empty((5, 64), np.float32)
        tvmdml.compile(way, target=WITH_BYTES)(x, *others, y)
        results.append(y)
    exact, rounded = results
    assert np.allclose(rounded[:2], exact[:2], rtol=1e-5, atol=1e-2)
    assert not rounded[2].any()
    assert np.isnan(rounded[3]).all()
    assert not np.isfinite(rounded[4]).any()


SIZES = (
    (2, 130, 500),
    (3, 64, 1376),
    (4, 70, 96),
    (8, 1, 40),
    (1, 3, 1000),
    (40, 3, 70),
    (9, 1, 600),
    (1, 16, 7),
    (150, 300, 1024),
)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes(sizes: tuple[int, int, int]) -> None:
    agrees(*given(*sizes, 4, 32, "bits", False, "float32"), "cpu", "bits", "bit_tiles")


@pytest.mark.usefixtures("in_parallel")
@pytest.mark.parametrize("rows", [1, 6, 30])
def test_bits_of_sums_do_not_depend_on_tasks(rows: int) -> None:
    desc, arrays = given(rows, 330, 1000, 4, 32, "bits", False, "float32")
    results, tasks = [], set()
    for least in (1 << 25, 1 << 10):
        with knobs.using(matrix={"task_products": least}):
            tasks.add(kernel_for(desc, targets.resolve("cpu")).scalars[0])
            y = np.full((rows, 330), np.nan, np.float32)
            tvmdml.compile(desc, target="cpu")(*arrays, y)
            results.append(y)
    assert len(tasks) == 2
    assert np.array_equal(*results)


def test_a_difference_of_zero_contributes_nothing() -> None:
    """Elements that are their zero point stand for 0, however large what they are multiplied with is."""
    desc, arrays = given(1, 32, 256, 4, 32, "bits", False, "float32")
    x, w, _, zero = arrays
    assert x is not None
    assert w is not None
    assert zero is not None
    w[:, 16:], zero[:] = 0x55, 0x55
    x[:, 32:] = 1e30
    agrees(desc, arrays, "cpu", "bits")
    y = np.empty((1, 32), np.float32)
    tvmdml.compile(desc, target="cpu")(*arrays, y)
    assert np.abs(y).max() < 1e3


@pytest.mark.parametrize("rows", [1, 20])
def test_what_follows_is_part_of_the_kernel(rows: int) -> None:
    desc, arrays = given(rows, 75, 200, 4, 32, "none", False, "float32")
    y = desc.output_tensor
    other = seeded("follows").standard_normal((rows, 75)).astype(np.float32)
    nodes = [tvmdml.ElementWiseAdd.of(y, y), tvmdml.ActivationSigmoid.of(y)]
    followed = follow(desc, nodes, [[0, 1], [Result(0)]])
    assert kernel_for(followed, targets.resolve("cpu")).name == ("bits" if rows == 1 else "bit_tiles")
    result = np.full((rows, 75), np.nan, np.float32)
    tvmdml.compile(followed, target="cpu")(*arrays, result, other)
    assert_outputs_agree(followed, (result,), reference(followed, *arrays, other))


@pytest.mark.parametrize(("block", "places"), [(12, 70), (48, 100), (4, 30)])
def test_blocks_that_are_no_power_of_two_of_words_have_the_default_kernel(block: int, places: int) -> None:
    desc, arrays = given(3, 20, places, 4, block, "bits", False, "float32")
    agrees(desc, arrays, "cpu", "default")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"bits": 3}, "bits: given 3; allowed: 2, 4 or 8"),
        ({"block_size": 0}, "block_size: given 0; allowed: 1 or more"),
        ({"bits": 8}, "b_tensor.sizes: given (5, 32); allowed: (5, 64), or more in the last dimension"),
        ({"block_size": 8}, "scale_tensor.sizes: given (5, 2); allowed: (5, 8), or more in the last dimension"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], said: str) -> None:
    _, arrays = given(1, 5, 64, 4, 32, "none", False, "float32")
    tensors = [None if array is None else desc_of(array) for array in arrays]
    wrong = BlockwiseGemm.of(*tensors, **{"bits": 4, "block_size": 32, "is_signed": False, **changed})
    with pytest.raises(tvmdml.InvalidArgument) as error:
        tvmdml.compile(wrong, target="cpu")
    assert said in str(error.value)
