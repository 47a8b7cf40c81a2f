"""NONZERO_COORDINATES on the CPU: every form of its kernels gives the reference's rows, and writes nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import (
    ALL,
    INPUT_LAYOUTS,
    SIZES,
    Array,
    Placed,
    assert_agrees,
    bits_of,
    nonzero_desc,
    seeded,
    sparse,
    special_values,
)

import tvmdml
from tvmdml import TensorDataType, TensorDesc, knobs, targets
from tvmdml.schedules.cpu import nonzero_coordinates as schedule
from tvmdml.schedules.cpu._leaves import Leaves
from tvmdml.targets import Target
from tvmdml.targets.cpu import CpuTarget

DENSITIES = (0, 0.01, 0.1, 0.5, 1)
FORMS: dict[str, dict[str, int]] = {
    "serial": {"task_elements": 1 << 23},
    "parallel": {"task_elements": 1},
    "one is few": {"task_elements": 1, "few_bits": 1},
    "twelve are few": {"task_elements": 1, "few_bits": 12},
}
# Whole words, partial words, a single word; inside a row, across two, across many; across many rows of two and three dimensions.
SHAPES = ((1000,), (40,), (64, 64), (29, 100), (331, 3), (17, 1, 3, 5), (3, 7, 11, 5), (2, 1, 2, 2, 3, 1, 2, 9))


@pytest.fixture(autouse=True)
def three_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_NUM_THREADS", "3")
    monkeypatch.setattr(CpuTarget, "handover", lambda target: 1)


@pytest.fixture(scope="module", params=("", ":x86-64-v2", ":x86-64-v3"))
def level(request: pytest.FixtureRequest) -> Target:
    """This processor, and as much of it as older ones have."""
    try:
        return targets.resolve(f"cpu{request.param}")
    except tvmdml.TvmdmlError as error:
        pytest.skip(str(error))


def check(x: Array, target: Target, layout: str = "packed", columns: int | None = None, **options: Any) -> None:
    """Every density at once would hide which one fails."""
    placed = Placed.holding(x, layout)
    assert_agrees(nonzero_desc(placed.desc, columns, **options), target, placed.array, shifted=options.get("layout") is None)


def examples(shape: tuple[int, ...], data_type: TensorDataType) -> list[Array]:
    """Of several densities, with the first element alone, the last alone, and all in one part."""
    rng = seeded("nonzero", shape, data_type)
    found = [sparse(rng, data_type, shape, density) for density in DENSITIES]
    size = int(np.prod(shape))
    for part in (slice(0, 1), slice(size - 1, size), slice(size // 3, size // 2)):
        x = np.zeros(size, data_type.numpy)
        x[part] = 1
        found.append(x.reshape(shape))
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_form_agrees(form: str, shape: tuple[int, ...]) -> None:
    with knobs.using(nonzero_coordinates=FORMS[form]):
        for x in examples(shape, TensorDataType.FLOAT32):
            check(x, targets.resolve("cpu"))


@pytest.mark.parametrize("form", ["serial", "parallel"])
@pytest.mark.parametrize("shape", [(1000,), (29, 100), (17, 3, 5)], ids=str)
def test_every_form_agrees_on_older_processors(form: str, shape: tuple[int, ...], level: Target) -> None:
    with knobs.using(nonzero_coordinates=FORMS[form]):
        for x in examples(shape, TensorDataType.FLOAT32):
            check(x, level)


@pytest.mark.parametrize("data_type", ALL, ids=lambda t: t.tvm)
@pytest.mark.parametrize("form", ["serial", "parallel"])
def test_every_type_agrees(form: str, data_type: TensorDataType) -> None:
    special = special_values(data_type)
    with knobs.using(nonzero_coordinates=FORMS[form]):
        for x in (*examples((307,), data_type), np.resize(special, 307)):
            check(x, targets.resolve("cpu"))


@pytest.mark.parametrize("rank", SIZES)
@pytest.mark.parametrize("form", ["serial", "parallel"])
def test_every_rank_agrees(form: str, rank: int) -> None:
    with knobs.using(nonzero_coordinates=FORMS[form]):
        for x in examples(SIZES[rank], TensorDataType.FLOAT32):
            check(x, targets.resolve("cpu"))


@pytest.mark.parametrize("columns", [2, 3, 4, 5])
def test_leading_coordinates_that_a_row_need_not_hold(columns: int) -> None:
    for x in examples((1, 1, 1, 5, 70), TensorDataType.UINT8):
        check(x, targets.resolve("cpu"), columns=columns)


@pytest.mark.parametrize("layout", INPUT_LAYOUTS)
@pytest.mark.parametrize("shape", [(5, 150), (130, 5), (2, 3, 70)], ids=str)
def test_every_input_layout_agrees(shape: tuple[int, ...], layout: str) -> None:
    for form in ("serial", "parallel"):
        with knobs.using(nonzero_coordinates=FORMS[form]):
            for x in examples(shape, TensorDataType.FLOAT32):
                check(x, targets.resolve("cpu"), layout)


@pytest.mark.parametrize("layout", ["padded", "transposed", "spread"])
@pytest.mark.parametrize("index", ["uint32", "uint64"])
def test_rows_that_do_not_lie_side_by_side(layout: str, index: str) -> None:
    with knobs.using(nonzero_coordinates=FORMS["parallel"]):
        for x in examples((9, 50), TensorDataType.INT16):
            check(x, targets.resolve("cpu"), index=index, layout=layout)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(1000,), (33, 30)], ids=str)
def test_coordinates_of_64_bits(form: str, shape: tuple[int, ...]) -> None:
    with knobs.using(nonzero_coordinates=FORMS[form]):
        for x in examples(shape, TensorDataType.FLOAT16):
            check(x, targets.resolve("cpu"), index="uint64")


@pytest.mark.parametrize("columns", range(1, 9))
def test_rows_of_many_words(columns: int) -> None:
    shape = (*(2,) * (columns - 1), 20000 >> columns)
    rng = seeded("many", columns)
    with knobs.using(nonzero_coordinates=FORMS["parallel"]):
        for density in (0.03, 0.5, 1):
            check(sparse(rng, TensorDataType.INT8, shape, density), targets.resolve("cpu"))


def test_lengths_around_a_word() -> None:
    for form in ("serial", "parallel"):
        with knobs.using(nonzero_coordinates=FORMS[form]):
            for length in (1, 2, 7, 8, 9, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 257):
                for x in examples((length,), TensorDataType.UINT8):
                    check(x, targets.resolve("cpu"))


def test_zeros_of_both_signs_are_zero_and_everything_else_is_not() -> None:
    for data_type in (TensorDataType.FLOAT16, TensorDataType.FLOAT32, TensorDataType.FLOAT64):
        special = special_values(data_type)
        x = np.resize(special, 200)
        unsigned = bits_of(x)
        nonzero = np.flatnonzero(unsigned << unsigned.dtype.type(1))
        assert np.array_equal(tvmdml.nonzero_coordinates(x)[:, 0], nonzero)


@pytest.mark.parametrize("index", ["uint32", "int64"])
def test_the_function_agrees_with_numpy(index: str) -> None:
    rng = seeded("function", index)
    for dtype in (np.bool_, np.float32, np.int64):
        x = (rng.random((70, 37)) < 0.3).astype(dtype)
        for view in (x, x.T, x[:, ::2], x[::3, 5:], x[:, :1]):
            found = tvmdml.nonzero_coordinates(view, index_dtype=index)
            assert found.dtype == index
            assert np.array_equal(found, np.argwhere(view))


@pytest.mark.usefixtures("forget")
def test_the_twins_of_the_leaves_agree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(schedule, "Leaves", lambda target: Leaves(target, portable=True))
    for shape in ((300,), (31, 7)):
        for x in examples(shape, TensorDataType.FLOAT32):
            check(x, targets.resolve("cpu"))


def test_as_many_tasks_for_each_thread_as_pay() -> None:
    def tasks(elements: int) -> int:
        target = targets.resolve("cpu")
        found: int = schedule.kernel(nonzero_desc(TensorDesc("float32", (elements,))), target, in_place=False).scalars[0]
        return found

    with knobs.using(nonzero_coordinates={"task_elements": 4096, "tasks_per_thread": 4}):
        assert [tasks(n) for n in (8191, 8192, 12288, 24575, 24576, 36864, 49152, 10**6)] == [1, 2, 3, 3, 6, 9, 12, 12]
