"""What is particular to TOP_K on the CPU: bounds that are useless, and tasks that run at the same time."""

from __future__ import annotations

import numpy as np
import pytest
from support import assert_agrees, random_bits, seeded, top_k_desc

from tvmdml import TensorDataType, TensorDesc, targets
from tvmdml.library.scheduling import kernel_for


def test_a_bound_that_many_reach_is_found_again_and_again() -> None:
    # Each sixteenth element is large, so all large elements are in the same lane, and the first bound is almost useless.
    target = targets.resolve("cpu")
    x = seeded("lane").random(1 << 16).astype(np.float32)
    x[::256] += 1 + np.arange(256, dtype=np.float32)
    for k in (5, 60, 250):
        desc = top_k_desc(TensorDesc("float32", x.shape), 0, k, "decreasing")
        assert_agrees(desc, target, x)
        assert_agrees(desc, target, x[::-1].copy())


@pytest.mark.full(first=1)
@pytest.mark.usefixtures("in_parallel")
@pytest.mark.parametrize(("way", "k"), [("sort", 20_000), ("select", 32), ("select", 400)])
def test_tasks_that_run_at_once_do_not_share_scratch(way: str, k: int) -> None:
    # Long enough to make tasks overlap: a short task ends before the next begins.
    x = random_bits(seeded(way), TensorDataType.UINT32, (12, 60_000))
    target = targets.resolve("cpu")
    desc = top_k_desc(TensorDesc("uint32", x.shape), 1, k, "increasing")
    kernel = kernel_for(desc, target)
    assert (kernel.name, kernel.scalars[0] > 1) == (way, True), "several tasks"
    assert_agrees(desc, target, np.sort(x, axis=1)[:, ::-1].copy() if k == 32 else x)
