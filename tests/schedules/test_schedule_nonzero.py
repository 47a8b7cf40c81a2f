"""What is particular to NONZERO_COORDINATES on the CPU: its tasks, and the Python twins of its leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import (
    Array,
    Placed,
    assert_agrees,
    nonzero_desc,
    seeded,
    sparse,
)

from tvmdml import TensorDataType, TensorDesc, knobs, targets
from tvmdml.library.scheduling import kernel_for
from tvmdml.schedules.cpu import nonzero_coordinates as schedule
from tvmdml.schedules.cpu._leaves import Leaves
from tvmdml.targets import Target
from tvmdml.targets.cpu import CpuTarget

DENSITIES = (0, 0.01, 0.1, 0.5, 1)


@pytest.fixture(autouse=True)
def three_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_NUM_THREADS", "3")
    monkeypatch.setattr(CpuTarget, "handover", lambda target: 1)


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


@pytest.mark.usefixtures("forget")
def test_the_twins_of_the_leaves_agree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TVMDML_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(schedule, "Leaves", lambda target: Leaves(target, portable=True))
    for shape in ((300,), (31, 7)):
        for x in examples(shape, TensorDataType.FLOAT32):
            check(x, targets.resolve("cpu"))


def test_tasks_may_begin_and_end_anywhere() -> None:
    # One nonzero element, at each position in turn: it is on either side of every boundary between tasks.
    x = np.zeros(7 * 29, np.uint8)
    with knobs.using(nonzero_coordinates={"task_elements": 1}):
        for at in range(x.size):
            x[:], x[at] = 0, 255
            check(x.reshape(7, 29), targets.resolve("cpu"))


def test_as_many_tasks_for_each_thread_as_pay() -> None:
    def tasks(elements: int) -> int:
        target = targets.resolve("cpu")
        found: int = kernel_for(nonzero_desc(TensorDesc("float32", (elements,))), target).scalars[0]
        return found

    with knobs.using(nonzero_coordinates={"task_elements": 4096, "tasks_per_thread": 4}):
        assert [tasks(n) for n in (8191, 8192, 12288, 24575, 24576, 36864, 49152, 10**6)] == [1, 2, 3, 3, 6, 9, 12, 12]
