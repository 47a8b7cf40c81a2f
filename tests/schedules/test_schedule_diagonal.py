"""What is particular to DIAGONAL_MATRIX1 on the CPU: which knobs and layouts lead to which kernel."""

from __future__ import annotations

from typing import Any

import pytest
from support import diagonal_desc, tensor

from tvmdml import knobs, targets
from tvmdml.library.scheduling import kernel_for
from tvmdml.targets.cpu import CpuTarget

# Threads, and knobs.
VARIANTS: dict[str, tuple[int, dict[str, Any]]] = {
    "on top": (1, {}),
    "rows": (1, {"on_top_bytes": 0}),
    "streamed": (1, {"stream_bytes": 1}),
    "three tasks, streamed rows": (
        3,
        {"task_bytes": 1, "fill_bytes": 1, "tasks_per_thread": 1, "stream_bytes": 1, "on_top_bytes": 0},
    ),
}


@pytest.mark.parametrize(
    ("variant", "has_input", "layout", "way"),
    [
        ("on top", False, "packed", ("flat", False, False)),
        ("on top", False, "padded", ("rows", False, False)),
        ("on top", True, "transposed", ("rows", False, False)),  # its columns are treated as rows
        ("on top", True, "spread", ("elements", False, False)),
        ("rows", False, "packed", ("rows", False, False)),
        ("streamed", False, "packed", ("flat", False, True)),
        ("three tasks, streamed rows", True, "packed", ("rows", True, True)),
    ],
)
def test_the_knobs_choose_the_way(
    variant: str, has_input: bool, layout: str, way: tuple[str, bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, values = VARIANTS[variant]
    monkeypatch.setenv("TVMDML_NUM_THREADS", str(threads))
    monkeypatch.setattr(CpuTarget, "handover", lambda target: 1)
    with knobs.using(diagonal_matrix=values):
        desc = diagonal_desc(tensor("float32", (40, 90), layout), 7, 0, 1, has_input, layout)
        kernel = kernel_for(desc, targets.resolve("cpu"))
    parameters = dict(kernel.parameters)
    assert (kernel.name, kernel.scalars[0] > 1, parameters["stream"]) == way
    assert kernel.scalars[0] == (3 if way[1] else 1)
