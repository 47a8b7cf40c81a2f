"""Running sums and products: the contract's examples, other libraries, and the order in which floats are combined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import Array, assert_same_bits, seeded

import tvmdml
from tvmdml import knobs
from tvmdml.targets import Target

f32 = np.float32
SUM, PRODUCT = "cumulative_summation", "cumulative_product"
SIZES = ((3, 5), (37, 8), (3, 16), (2, 300), (2, 4096 + 277))


def run(name: str, x: Any, axis: int = -1, exclusive: bool = False, decreasing: bool = False, **keywords: Any) -> Any:
    """The function, with the name of its own keyword."""
    own = {f"has_exclusive_{'sum' if name == SUM else 'product'}": exclusive}
    return getattr(tvmdml, name)(x, axis=axis, axis_direction="decreasing" if decreasing else "increasing", **own, **keywords)


def ordered(name: str, x: Array, exclusive: bool, decreasing: bool) -> Array:
    """Results along the last axis in exactly the order that the family describes."""
    combine, none = (np.add, x.dtype.type(-0.0)) if name == SUM else (np.multiply, x.dtype.type(1))
    first = x.dtype.type(name == PRODUCT) if exclusive else none
    x = x[..., ::-1] if decreasing else x
    missing = -x.shape[-1] % 4096
    y = np.concatenate([x, np.zeros((*x.shape[:-1], missing), x.dtype)], -1).reshape(*x.shape[:-1], -1, 16, 16, 16)
    for width in (1, 2, 4, 8):
        for i in (i for i in range(16) if i & width):
            y[..., i] = combine(y[..., i - i % width - 1], y[..., i])
    in_block, blocks = _chained(combine, y[..., -1], none)
    in_tile, tiles = _chained(combine, blocks, none)
    in_row, _ = _chained(combine, tiles, first)
    base = combine(combine(in_row[..., None], in_tile)[..., None], in_block)
    if exclusive:
        y = np.concatenate([np.full((*y.shape[:-1], 1), none), y[..., :-1]], -1)
    found = combine(base[..., None], y).reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]
    return np.ascontiguousarray(found[..., ::-1] if decreasing else found)


def _chained(combine: Any, x: Array, first: Any) -> tuple[Array, Array]:
    before, total = np.empty_like(x), np.full(x.shape[:-1], first, x.dtype)
    for i in range(x.shape[-1]):
        before[..., i] = total
        total = combine(total, x[..., i])
    return before, total


@pytest.mark.full
@pytest.mark.drawn("scan", [(SUM, False, False), (SUM, True, True), (PRODUCT, False, True)], 1)
def test_every_target_layout_and_way_gives_the_same_bits(scan: tuple[str, bool, bool], target: Target) -> None:
    name, exclusive, decreasing = scan
    rng = seeded(name)
    for sizes in SIZES:
        x = (rng.standard_normal(sizes) if name == SUM else np.exp2(rng.uniform(-0.25, 0.25, sizes))).astype(f32)
        wanted = ordered(name, x, exclusive, decreasing)
        ways = ("rows", 16), ("columns", 1), ("columns", 4), ("columns", 16)
        for algorithm, together in ways if target.kind == "cpu" else (("whole", 0), ("tiles", 0)):
            with knobs.using(scan={"algorithm": algorithm} | ({"together": together} if together else {})):
                tvmdml.functions.forget_plans()
                assert_same_bits(run(name, x, -1, exclusive, decreasing, device=target.name), wanted)
                turned = run(name, np.ascontiguousarray(x.T), 0, exclusive, decreasing, device=target.name)
                assert_same_bits(np.ascontiguousarray(turned.T), wanted)
    tvmdml.functions.forget_plans()


@pytest.mark.full
def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    x = seeded("threads").standard_normal((1, 200_001)).astype(f32)
    wanted = ordered(SUM, x, False, False)
    for threads in ("1", "3"):
        monkeypatch.setenv("TVMDML_NUM_THREADS", threads)
        tvmdml.functions.forget_plans()
        with knobs.using(scan={"task_elements": 1024, "part_tiles": 1}):
            assert_same_bits(run(SUM, x), wanted)
    tvmdml.functions.forget_plans()


@pytest.mark.full
@pytest.mark.parametrize("decreasing", [False, True])
def test_results_past_the_caches_have_the_same_bits(decreasing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = seeded("streamed")
    for threads, sizes in (("1", (3, 2000)), ("1", (65, 8)), ("1", (5, 8192)), ("3", (1, 200_001))):
        monkeypatch.setenv("TVMDML_NUM_THREADS", threads)
        x = rng.standard_normal(sizes).astype(f32)
        wanted = ordered(SUM, x, False, decreasing)
        room = np.empty(x.size + 16, f32)
        for start in range(2):  # in one of these results, or in neither, vectors are lines
            result = room[start:][: x.size].reshape(sizes)
            tvmdml.functions.forget_plans()
            with knobs.using(scan={"stream_bytes": 1, "task_elements": 1024, "part_tiles": 1}):
                run(SUM, x, -1, False, decreasing, out=result)
            assert_same_bits(result, wanted)
    tvmdml.functions.forget_plans()


IN = [[2, 1, 3, 5], [3, 8, 7, 3], [9, 6, 2, 4]]
EXAMPLES = [
    (SUM, False, False, [[2, 3, 6, 11], [3, 11, 18, 21], [9, 15, 17, 21]]),
    (SUM, True, False, [[0, 2, 3, 6], [0, 3, 11, 18], [0, 9, 15, 17]]),
    (SUM, False, True, [[11, 9, 8, 5], [21, 18, 10, 3], [21, 12, 6, 4]]),
    (PRODUCT, False, False, [[2, 2, 6, 30], [3, 24, 168, 504], [9, 54, 108, 432]]),
    (PRODUCT, True, False, [[1, 2, 2, 6], [1, 3, 24, 168], [1, 9, 54, 108]]),
    (PRODUCT, False, True, [[30, 15, 15, 5], [504, 168, 21, 3], [432, 48, 8, 4]]),
]


@pytest.mark.full(first=1)
@pytest.mark.parametrize(("name", "exclusive", "decreasing", "expected"), EXAMPLES)
def test_examples_of_the_contract(name: str, exclusive: bool, decreasing: bool, expected: Any, target: Target) -> None:
    for dtype in ("float32", "int32"):
        found = run(name, np.array(IN, dtype), 1, exclusive, decreasing, device=target.name)
        assert_same_bits(found, np.array(expected, dtype))


@pytest.mark.full(first=1)
def test_zeros_infinities_and_what_is_before_a_nan(target: Target) -> None:
    nan, inf = np.nan, np.inf
    for x, wanted in (
        ([-0.0, -0.0], [-0.0, -0.0]),
        ([1, nan, 2], [1, nan, nan]),
        ([1, inf, 2, -inf, 3], [1, inf, inf, nan, nan]),
    ):
        assert_same_bits(run(SUM, np.array(x, f32), device=target.name), np.array(wanted, f32), any_nan=True)
    first = run(SUM, np.array([-0.0, 1], f32), exclusive=True, device=target.name)
    assert_same_bits(first, np.array([0.0, 0.0], f32))


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint32", "int64", "uint64"])
def test_integers_wrap_as_in_numpy(dtype: str, target: Target) -> None:
    info = np.iinfo(dtype)
    x = seeded(dtype).integers(info.min, info.max, (7, 300), dtype, endpoint=True)
    assert_same_bits(run(SUM, x, 1, device=target.name), np.cumsum(x, 1, dtype))
    assert_same_bits(run(PRODUCT, x | x.dtype.type(1), 0, device=target.name), np.cumprod(x | x.dtype.type(1), 0, dtype))


def test_a_half_is_summed_in_single_precision() -> None:
    x = np.full(5000, 0.1, np.float16)
    assert abs(float(run(SUM, x)[-1]) - 5000 * float(x[0])) < 0.5


def test_gradients_of_sums_are_pytorchs() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import tvmdml.torch  # noqa: F401

    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(3, 7, dtype=torch.float64)
    (own,) = torch.autograd.grad((torch.ops.tvmdml.cumulative_summation(x, axis=0) * weights).sum(), x)
    (theirs,) = torch.autograd.grad((torch.cumsum(x, 0) * weights).sum(), x)
    torch.testing.assert_close(own, theirs)
    for direction in ("increasing", "decreasing"):
        for exclusive in (False, True):
            scan = lambda x, d=direction, e=exclusive: torch.ops.tvmdml.cumulative_summation(  # noqa: E731
                x, axis=1, axis_direction=d, has_exclusive_sum=e
            )
            assert torch.autograd.gradcheck(scan, (x,))
