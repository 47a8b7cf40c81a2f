"""Each algorithm of the CPU schedule of TOP_K, selected by knobs: ties, NaN, both zeros, and rows that are bad for one of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import ALL, Array, Placed, assert_agrees, mixture, seeded, special_values, ties, top_k_desc

from tvmdml import AxisDirection, TensorDataType, TensorDesc, errors, knobs, targets
from tvmdml.targets.cpu import CpuTarget

PARTS: dict[str, Any] = {"algorithm": "select", "task_elements": 1, "part_elements": 1}
# An algorithm: the target, threads, knobs, and the name of the resulting kernel.
VARIANTS: dict[str, tuple[str, int, dict[str, Any], str]] = {
    "rank": ("cpu", 1, {"algorithm": "rank"}, "rank"),
    "sort": ("cpu", 1, {"algorithm": "sort"}, "sort"),
    "sort, short digits": ("cpu", 1, {"algorithm": "sort", "digit_bits": 6}, "sort"),
    "select": ("cpu", 1, {"algorithm": "select"}, "select"),
    "select, short chunks": ("cpu", 1, {"algorithm": "select", "chunk_vectors": 1}, "select"),
    "select, little room": ("cpu", 1, {"algorithm": "select", "room_per_k": 2, "bests_per_k": 1}, "select"),
    "select, then sort": ("cpu", 1, {"algorithm": "select", "rank_k": 1}, "select"),
    "select, three tasks": ("cpu", 3, {"algorithm": "select", "task_elements": 1}, "select"),
    "parts": ("cpu", 5, PARTS, "select"),
    "parts, then sort": ("cpu", 4, PARTS | {"rank_k": 1}, "select"),
    "level 2": ("cpu:x86-64-v2", 1, {"algorithm": "select"}, "select"),
    "level 3": ("cpu:x86-64-v3", 3, {"algorithm": "select", "task_elements": 1}, "select"),
    "level 3, sort": ("cpu:x86-64-v3", 1, {"algorithm": "sort"}, "sort"),
}
COLUMNS: dict[str, tuple[str, int, dict[str, Any], str]] = {
    "columns": ("cpu", 1, {"algorithm": "columns", "columns_k": 64}, "columns"),
    "columns, three tasks": ("cpu", 3, {"algorithm": "columns", "task_elements": 1}, "columns"),
    "columns, level 2": ("cpu:x86-64-v2", 1, {"algorithm": "columns"}, "columns"),
    "copied, ranked": ("cpu", 1, {"algorithm": "rank"}, "rank"),
    "copied, selected": ("cpu", 3, {"algorithm": "select", "task_elements": 1}, "select"),
    "copied, sorted": ("cpu", 1, {"algorithm": "sort"}, "sort"),
}
directions = pytest.mark.parametrize("direction", tuple(AxisDirection), ids=lambda d: d.name.lower())
types = pytest.mark.parametrize("data_type", ALL, ids=str)
# One type of each width and form: variants that only tile or compile the same code differently are tested with these.
SOME = tuple(TensorDataType[name] for name in ("FLOAT16", "FLOAT32", "INT64", "UINT8"))
some_types = pytest.mark.parametrize("data_type", SOME, ids=str)
EVERY_TYPE = ("rank", "sort", "select")
Variant = tuple[targets.Target, str]


@pytest.fixture
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Variant]:
    """The target of a variant and its kernel's name, while its knobs and threads are in force."""
    name, threads, values, way = {**VARIANTS, **COLUMNS}[request.param]
    try:
        target = targets.resolve(name)
    except errors.TvmdmlError as error:
        pytest.skip(f"this processor is none of {name}: {error}")
    monkeypatch.setenv("TVMDML_NUM_THREADS", str(threads))
    monkeypatch.setattr(CpuTarget, "handover", lambda target: 1)
    with knobs.using(top_k=values):
        yield target, way


def rows_of(data_type: TensorDataType, length: int) -> Array:
    """Rows of every kind: random, few values, all equal, sorted both ways, the largest side by side; floats: NaN and zeros."""
    rng = seeded(data_type, length)
    special = special_values(data_type)
    random = mixture(rng, data_type, (length,))
    numbers = np.sort(random[random == random])
    ascending = np.resize(numbers, length)
    ascending.sort()
    block = random.copy()
    block[length // 3 : length // 3 + length // 8 + 1] = ascending[-1]
    rows = [
        random,
        ties(rng, data_type, (length,)),
        np.full(length, special[1], data_type.numpy),
        ascending,
        ascending[::-1],
        block,
        rng.choice(special, length),
        np.where(rng.random(length) < 0.5, special[0], special[1]).astype(data_type.numpy),
    ]
    if data_type.is_float:
        nan = special[np.isnan(special)]
        rows += [
            rng.choice(nan, length),
            np.where(rng.random(length) < 0.02, rng.choice(nan, length), random),
            rng.choice(np.array([0.0, -0.0], data_type.numpy), length),
            np.where(rng.random(length) < 0.9, rng.choice(nan, length), random),
        ]
    return np.stack(rows).astype(data_type.numpy)


@pytest.mark.parametrize("variant", EVERY_TYPE, indirect=True)
@directions
@types
def test_every_way_agrees_for_every_type(data_type: TensorDataType, direction: AxisDirection, variant: Variant) -> None:
    _assert_rows_agree(data_type, direction, variant)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name not in EVERY_TYPE], indirect=True)
@directions
@some_types
def test_every_variant_agrees(data_type: TensorDataType, direction: AxisDirection, variant: Variant) -> None:
    _assert_rows_agree(data_type, direction, variant)


def _assert_rows_agree(data_type: TensorDataType, direction: AxisDirection, variant: Variant) -> None:
    target, way = variant
    for length, k in ((1301, 3), (1301, 70), (2048, 150)):
        rows = rows_of(data_type, length)
        desc = top_k_desc(TensorDesc(data_type, rows.shape), 1, k, direction)
        assert target.kernel(desc).name == way
        assert_agrees(desc, target, rows)


@pytest.mark.parametrize("variant", ["parts", "parts, then sort"], indirect=True)
@directions
@some_types
def test_a_row_split_among_tasks_agrees(data_type: TensorDataType, direction: AxisDirection, variant: Variant) -> None:
    target, _ = variant
    for length, k in ((1301, 1), (2601, 70), (5003, 300)):
        for row in rows_of(data_type, length):
            desc = top_k_desc(TensorDesc(data_type, (length,)), 0, k, direction)
            assert dict(target.kernel(desc).parameters)["split"]
            assert_agrees(desc, target, row)


@pytest.mark.parametrize("variant", COLUMNS, indirect=True)
@directions
@some_types
def test_columns_agree_for_every_kind(data_type: TensorDataType, direction: AxisDirection, variant: Variant) -> None:
    target, way = variant
    columns = np.concatenate([rows_of(data_type, 300)] * 12).T.copy()  # past every multiple of the number of lanes
    for x, axis, k in (
        (columns, 0, 1),
        (columns, 0, 7),
        (columns[:64], 0, 16),
        (np.stack([columns[:90], columns[90:180]]), 1, 5),
    ):
        desc = top_k_desc(TensorDesc(data_type, x.shape), axis, k, direction)
        assert target.kernel(desc).name == way
        assert_agrees(desc, target, x)


@pytest.mark.parametrize("layout", ["padded", "spread", "shifted", "transposed", "reversed axes"])
@pytest.mark.parametrize("variant", ["columns", "copied, selected", "copied, sorted", "select", "parts"], indirect=True)
def test_layouts_agree(variant: Variant, layout: str) -> None:
    target, _ = variant
    data_type = TensorDataType.FLOAT32
    x = np.concatenate([rows_of(data_type, 400)[:9]] * 8)
    for axis, k in ((0, 4), (1, 12)):
        placed = (
            Placed.holding(x, layout) if layout != "reversed axes" else Placed.holding(np.stack([x, x[::-1]], axis=2), "packed")
        )
        desc = top_k_desc(placed.desc, axis, k, "decreasing")
        assert_agrees(desc, target, placed.array)


def test_a_bound_that_many_reach_is_found_again_and_again() -> None:
    # Each sixteenth element is large, so all large elements are in the same lane, and the first bound is almost useless.
    target = targets.resolve("cpu")
    x = seeded("lane").random(1 << 16).astype(np.float32)
    x[::256] += 1 + np.arange(256, dtype=np.float32)
    for k in (5, 60, 250):
        desc = top_k_desc(TensorDesc("float32", x.shape), 0, k, "decreasing")
        assert_agrees(desc, target, x)
        assert_agrees(desc, target, x[::-1].copy())
