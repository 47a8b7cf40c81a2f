"""Runs a pack of models/pack.toml where only the runtime is installed: ``python tests/runtime.py ops.tvmdml cpu vulkan``."""

from __future__ import annotations

import importlib.util
import re
import sys
import time
from pathlib import Path

START = time.perf_counter()

import numpy as np  # noqa: E402

import tvmdml  # noqa: E402


def main() -> None:
    assert importlib.util.find_spec("tvm") is None, "the compiler is installed here"
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((32, 32000)).astype(np.float32)
    with tvmdml.load_pack(sys.argv[1], strict=True):
        values, indices = tvmdml.top_k(scores, 50)
        took, memory = time.perf_counter() - START, _peak()
        print(f"first result after {took:.3f} s, with {memory:.0f} MB at most")  # noqa: T201
        for device in sys.argv[2:] or ["cpu"]:
            check(scores, device)
        assert 'K = 3, AxisDirection = "INCREASING" }' in refusal(scores)
    assert np.array_equal(values, -np.sort(-scores, axis=1)[:, :50])
    assert np.array_equal(np.take_along_axis(scores, indices.astype(np.int64), 1), values)
    print("all right on", *(sys.argv[2:] or ["cpu"]))  # noqa: T201


def refusal(scores: np.ndarray) -> str:
    """What is said of a kernel that is in no pack."""
    try:
        tvmdml.top_k(scores, 3, axis_direction="increasing")
    except tvmdml.CompileError as error:
        return str(error)
    raise AssertionError("it ran")


def _peak() -> float:
    """The most memory that this process had, in MB; not what its parent had when it was started."""
    found = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def check(scores: np.ndarray, device: str) -> None:
    """Both doors, on large arrays and small ones."""
    grid = scores.ravel()[: 1000 * 1000].reshape(1000, 1000).copy()
    grid[grid < 0.5] = 0
    for _ in range(20):  # with threads, repeatedly
        assert np.array_equal(tvmdml.nonzero_coordinates(grid, device=device), np.argwhere(grid))
        assert np.array_equal(tvmdml.round(grid, device=device), np.rint(grid))
    half = scores[:1].astype(np.float16)
    assert np.array_equal(tvmdml.top_k(half, 50, device=device).values, -np.sort(-half, axis=1)[:, :50])
    like = tvmdml.TensorDesc("float32", (1000, 1000))
    desc = tvmdml.ElementWiseRound(input_tensor=like, output_tensor=like, rounding_mode="TOWARD_ZERO")
    out = np.empty_like(grid)
    tvmdml.compile(desc, device)(grid, out)
    assert np.array_equal(out, np.trunc(grid))
    tvmdml.round(grid, out=grid, device=device)
    assert np.array_equal(grid, np.rint(grid))


main()
