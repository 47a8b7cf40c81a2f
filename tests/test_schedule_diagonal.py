"""Each algorithm of the CPU schedule of DIAGONAL_MATRIX1, selected by knobs, in memory that shows writes outside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support import INT_MAX, INT_MIN, Placed, assert_agrees, diagonal_desc, random_bits, seeded, tensor

from tvmdml import TensorDataType, errors, knobs, targets
from tvmdml.targets.cpu import CpuTarget

# Elements are moved as bits, so one type of each size is enough.
TYPES = (TensorDataType.UINT8, TensorDataType.FLOAT16, TensorDataType.FLOAT32, TensorDataType.INT64)
BANDS = (
    *((0, 1), (-2, 3), (7, 8), (-60, 70)),
    *((INT_MIN, 1), (1, INT_MAX), (INT_MIN, INT_MAX)),
    *((1, 0), (3, -2), (50, -40), (INT_MAX, INT_MIN)),  # inverted
    *((4, 4), (1000, 2000), (INT_MIN, INT_MIN + 1)),  # nothing to fill
)
ROWS: dict[str, Any] = {"on_top_bytes": 0}
STREAMED: dict[str, Any] = {"stream_bytes": 1}
TASKS: dict[str, Any] = {"task_bytes": 1, "fill_bytes": 1, "tasks_per_thread": 1}
# An algorithm: the target, threads, knobs.
VARIANTS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "on top": ("cpu", 1, {}),
    "on top, in blocks": ("cpu", 1, {"block_bytes": 1024}),
    "rows": ("cpu", 1, ROWS),
    "streamed": ("cpu", 1, STREAMED),
    "streamed rows": ("cpu", 1, ROWS | STREAMED),
    "three tasks": ("cpu", 3, TASKS),
    "three tasks, streamed": ("cpu", 3, TASKS | STREAMED),
    "three tasks, streamed rows": ("cpu", 3, TASKS | STREAMED | ROWS),
    "level 2": ("cpu:x86-64-v2", 1, {}),
    "level 2, streamed rows": ("cpu:x86-64-v2", 1, STREAMED | ROWS),
    "level 3, streamed rows": ("cpu:x86-64-v3", 1, STREAMED | ROWS),
}
types = pytest.mark.parametrize("data_type", TYPES, ids=str)


@pytest.fixture
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[targets.Target]:
    """The target of a variant, while its knobs and threads are in force."""
    name, threads, values = VARIANTS[request.param]
    try:
        found = targets.resolve(name)
    except errors.TvmdmlError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("TVMDML_NUM_THREADS", str(threads))
    monkeypatch.setattr(CpuTarget, "handover", lambda target: 1)
    with knobs.using(diagonal_matrix=values):
        yield found


def variants(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("target", names or VARIANTS, indirect=True)


def agrees(target: targets.Target, data_type: TensorDataType, sizes: tuple[int, ...], has_input: bool) -> None:
    """For every band, on memory that begins at a cache line or one element past it."""
    x = random_bits(seeded(data_type, sizes), data_type, sizes)
    for i, (begin, end) in enumerate(BANDS):
        shifted = (i + sizes[-1]) % 2 == 0
        placed = Placed.holding(x, "shifted" if shifted else "packed")
        desc = diagonal_desc(placed.desc, 7, begin, end, has_input)
        assert_agrees(desc, target, placed.array if has_input else None, shifted=shifted)


@variants()
@pytest.mark.parametrize("has_input", [False, True], ids=["zeros", "input"])
@types
def test_every_way_gives_the_same(target: targets.Target, data_type: TensorDataType, has_input: bool) -> None:
    # Rows of several lines and a remainder, of exact lines, and matrices with more columns than rows.
    for sizes in ((2, 23, 150), (3, 9, 192), (2, 2, 517)):
        agrees(target, data_type, sizes, has_input)


@variants("on top", "streamed", "three tasks")
@types
def test_bands_may_share_a_line(target: targets.Target, data_type: TensorDataType) -> None:
    # Without input, several rows share a line.
    for sizes in ((2, 90, 1), (2, 70, 3), (2, 40, 8), (2, 31, 17)):
        agrees(target, data_type, sizes, has_input=False)


@variants("on top", "three tasks")
@pytest.mark.parametrize("has_input", [False, True], ids=["zeros", "input"])
@pytest.mark.parametrize("data_type", [TensorDataType.UINT8, TensorDataType.INT64], ids=str)
def test_rows_may_be_shorter_than_a_line(target: targets.Target, data_type: TensorDataType, has_input: bool) -> None:
    for sizes in ((1, 1), (5, 1), (1, 5), (3, 2), (4, 4), (7, 16), (2, 33), (5, 63), (3, 64)):
        agrees(target, data_type, sizes, has_input)


@variants("on top", "streamed", "three tasks, streamed")
@types
def test_rows_may_have_gaps(target: targets.Target, data_type: TensorDataType) -> None:
    sizes = (3, 11, 150)
    for layout in ("padded", "transposed", "spread"):
        x = Placed.holding(random_bits(seeded(layout), data_type, sizes), layout)
        for begin, end in BANDS:
            assert_agrees(diagonal_desc(x.desc, 7, begin, end, layout=layout), target, x.array)
            assert_agrees(diagonal_desc(x.desc, 7, begin, end, has_input=False, layout=layout), target, None)


@variants("on top", "three tasks")
@types
def test_rows_may_become_columns(target: targets.Target, data_type: TensorDataType) -> None:
    # More columns than are processed together.
    sizes = (2, 21, 37)
    for layouts in (("transposed", "packed"), ("packed", "transposed"), ("shuffled", "padded")):
        x = Placed.holding(random_bits(seeded(layouts), data_type, sizes), layouts[0])
        for begin, end in BANDS:
            assert_agrees(diagonal_desc(x.desc, 7, begin, end, layout=layouts[1]), target, x.array)


@pytest.mark.parametrize(
    ("target", "has_input", "layout", "way"),
    [
        ("on top", False, "packed", ("flat", False, False)),
        ("on top", False, "padded", ("rows", False, False)),
        ("on top", True, "transposed", ("rows", False, False)),  # its columns are treated as rows
        ("on top", True, "spread", ("elements", False, False)),
        ("rows", False, "packed", ("rows", False, False)),
        ("streamed", False, "packed", ("flat", False, True)),
        ("three tasks, streamed rows", True, "packed", ("rows", True, True)),
    ],
    indirect=["target"],
)
def test_the_knobs_choose_the_way(target: targets.Target, has_input: bool, layout: str, way: tuple[str, bool, bool]) -> None:
    kernel = target.kernel(diagonal_desc(tensor("float32", (40, 90), layout), 7, 0, 1, has_input, layout))
    parameters = dict(kernel.parameters)
    assert (kernel.name, parameters["parallel"], parameters["stream"]) == way
    assert kernel.scalars[0] == (3 if way[1] else 1)
