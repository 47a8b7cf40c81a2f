"""PyTorch's operators with tensors of indices, as graphs of tvmdml: what they give, and that PyTorch computes none of it."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

from tvmdml.torch import backend  # noqa: E402 - it needs PyTorch

Given = dict[str, Any]


def column(index: Any, x: Any) -> Any:
    return index[:, None].expand(-1, x.shape[1])


def _sized(function: Callable[..., Any], reduce: str, **more: Any) -> Callable[..., Any]:
    return lambda x, at, other, w: function(x, 0, column(at, x), w, reduce=reduce, **more)


LOOKED_UP: dict[str, Callable[..., Any]] = {
    "rows": lambda x, at, other, w: x[at] * w,
    "columns": lambda x, at, other, w: x[:, at % 8] + 1,
    "places": lambda x, at, other, w: x[at, other % 8] * w[:, 0],
    "places of many": lambda x, at, other, w: x[None].expand(3, -1, -1)[:, at[:, None], other[None, :5] % 8] * 2,
    "negative": lambda x, at, other, w: x[at - 20] * w,
    "index_select": lambda x, at, other, w: torch.index_select(x, 1, other % 8) * 2,
    "gather": lambda x, at, other, w: x.gather(0, column(at, x)[:, :5]) * 2,
    "of bools": lambda x, at, other, w: torch.where((x > 0)[at], w, -w),
}
COMBINED: dict[str, Callable[..., Any]] = {
    "index_add": lambda x, at, other, w: torch.relu(torch.zeros_like(x).index_add(0, at, w)),
    "index_add along columns": lambda x, at, other, w: x.index_add(1, at[:6] % 8, w[:20, :6], alpha=2),
    "scatter_add": lambda x, at, other, w: x.scatter_add(0, column(at, x), w),
    "scatter_add of a part": lambda x, at, other, w: x.scatter_add(0, column(at, x)[:30, :5], w),
    "scatter_add to a vector": lambda x, at, other, w: x[:, 0].scatter_add(0, at, w[:, 0]),
    "index_put": lambda x, at, other, w: x.index_put((at, other % 8), w[:, 1], accumulate=True),
    "index_put of rows": lambda x, at, other, w: x.index_put((at,), w, accumulate=True),
    "index_put of a number": lambda x, at, other, w: x.index_put((at[:3],), torch.tensor(2.0)) * 2,
    "scatter": lambda x, at, other, w: x.scatter(0, torch.arange(20)[:, None].expand(-1, 8)[:9, :4], w),
    "scatter of a number": lambda x, at, other, w: x.scatter(1, at[:20, None] % 8, 3.0),
    "scatter that adds": lambda x, at, other, w: torch.scatter(x, 0, column(at, x), w, reduce="add"),
    "index_reduce": lambda x, at, other, w: torch.index_reduce(x, 0, at, w, "prod"),
    **{
        f"scatter_reduce, {reduce}{', alone' * (not alone)}": _sized(torch.scatter_reduce, reduce, include_self=alone)
        for reduce in ("sum", "prod", "mean", "amax", "amin")
        for alone in (True, False)
    },
}


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that are made."""
    made: list[Any] = []
    original = backend._Part._made

    def noted(self: Any, *arguments: Any) -> Any:
        made.append(original(self, *arguments))
        return made[-1]

    monkeypatch.setattr(backend._Part, "_made", noted)
    torch._dynamo.reset()
    return made


def drawn(count: int, dtype: Any) -> list[Any]:
    generator = torch.Generator().manual_seed(count)
    x, w = (torch.randn(n, 8, generator=generator).to(dtype) for n in (20, count))
    at, other = (torch.randint(0, 20, (count,), generator=generator) for _ in range(2))
    return [x, at, other, w]


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", [*LOOKED_UP, *COMBINED])
def test_any_number_of_indices(name: str, graphs: list[Any]) -> None:
    function = {**LOOKED_UP, **COMBINED}[name]
    compiled = torch.compile(function, backend="tvmdml", dynamic=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="index_reduce|scatter")
        warnings.filterwarnings("error", message="tvmdml")
        for count in (40, 53, 77):
            given = drawn(count, torch.float32)
            torch.testing.assert_close(compiled(*given), function(*given), rtol=1e-5, atol=1e-5)
    assert 1 <= len(graphs) <= 4


@pytest.mark.full
def test_sums_are_pytorchs_bits() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(COMBINED["scatter_add"], backend="tvmdml")
    for dtype in (torch.float32, torch.float64, torch.int64, torch.int32):
        given = drawn(60, dtype)
        with torch.no_grad():
            assert torch.equal(compiled(*given), COMBINED["scatter_add"](*given))


@pytest.mark.full
def test_gradients_flow_through_indices() -> None:
    torch._dynamo.reset()
    layer = lambda x, at, other, w: torch.zeros_like(x).index_add(0, other, x[at] * w).square().sum()  # noqa: E731
    compiled = torch.compile(layer, backend="tvmdml")
    slopes = []
    for function in (compiled, layer):
        given = drawn(50, torch.float32)
        given[0].requires_grad_()
        given[3].requires_grad_()
        function(*given).backward()
        slopes.append([given[0].grad, given[3].grad])
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-4, atol=1e-4)


def test_masks_stay_in_pytorch() -> None:
    torch._dynamo.reset()
    function = functools.partial(lambda x, w: torch.relu(x[w > 0]) * 2)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", message="tvmdml")
        x = torch.randn(20, 8)
        torch.testing.assert_close(torch.compile(function, backend="tvmdml")(x, x[:, 0]), function(x, x[:, 0]))
