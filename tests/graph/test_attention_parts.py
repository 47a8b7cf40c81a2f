"""Products, a softmax and products are attention: which are, and what rows of special numbers become."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tvmdml

INF, NAN = np.inf, np.nan
LEAST = float(np.finfo(np.float32).min)
HEADS, ROWS, KEYS, CHANNELS = 3, 19, 26, 16


def given(batch: int, heads: int) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    sizes = {"q": (heads, ROWS, CHANNELS), "k": (heads, KEYS, CHANNELS), "v": (heads, KEYS, CHANNELS), "mask": (1, ROWS, KEYS)}
    arrays = {name: rng.standard_normal((batch, *own)).astype(np.float32) for name, own in sizes.items()}
    return arrays | {"mask": np.zeros_like(arrays["mask"])}


def right(q: Any, k: Any, v: Any, mask: Any, scale: float) -> Any:
    with np.errstate(all="ignore"):
        scores = np.float64(q) @ np.float64(k).swapaxes(2, 3) * scale + mask
        weights = np.exp(scores - scores.max(3, keepdims=True))
        return weights / weights.sum(3, keepdims=True) @ np.float64(v)


def graph_of(batch: int, heads: int, masked: bool = True, rows_first: bool = False) -> tuple[tvmdml.Graph, tvmdml.Expression]:
    """With heads as channels of rows, as exporters write them, or before rows."""
    graph = tvmdml.Graph()

    def rows(name: str, count: int) -> tvmdml.Expression:
        if not rows_first:
            return graph.input((batch, heads, count, CHANNELS), name=name)
        return graph.input((batch, count, heads, CHANNELS), name=name).transpose((0, 2, 1, 3))

    q, k, v = rows("q", ROWS), rows("k", KEYS), rows("v", KEYS)
    scores = tvmdml.gemm(q, k, trans_b="transpose") / 4.0
    if masked:
        scores = scores + graph.input((batch, 1, ROWS, KEYS), name="mask").broadcast(batch, heads, ROWS, KEYS)
    y = tvmdml.gemm(tvmdml.activation_softmax(scores, axes=[3]), v)
    return graph, y.transpose((0, 2, 1, 3)).reshape(batch, ROWS, heads * CHANNELS) if rows_first else y


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("batch", "heads", "rows_first"), [(1, 3, False), (1, 3, True), (2, 3, True), (2, 3, False)])
def test_the_parts_become_attention(batch: int, heads: int, rows_first: bool, masked: bool) -> None:
    graph, y = graph_of(batch, heads, masked, rows_first)
    compiled, arrays = graph.compile(y, target="cpu"), given(batch, heads)
    want = right(**arrays, scale=0.25)
    if not masked:
        del arrays["mask"]
    if rows_first:
        arrays = {name: array if name == "mask" else array.swapaxes(1, 2).copy() for name, array in arrays.items()}
        want = want.swapaxes(1, 2).reshape(batch, ROWS, -1)
    assert compiled.kernel_count == 1
    assert np.abs(compiled(arrays)[0] - want).max() < 1e-5


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("mask", (..., 0, slice(None)), -INF),  # a row that sees nothing is NaN, as a softmax of nothing but -inf is
        ("mask", (..., 0, slice(None)), LEAST),
        ("mask", (..., 4, slice(3, None)), -INF),
        ("mask", (..., 0, 2), INF),
        ("v", (..., 1, 1), NAN),
        ("v", (..., 1, 1), INF),
        ("k", (..., 5, 0), INF),
        ("q", (..., 0, 0), NAN),
        ("q", (..., 0, 0), INF),
    ],
)
def test_special_numbers_are_those_of_the_parts(name: str, place: Any, value: float) -> None:
    graph, y = graph_of(1, HEADS)
    arrays, compiled = given(1, HEADS), graph.compile(y, target="cpu")
    assert compiled.kernel_count == 1
    arrays[name][place] = value
    (got,), want = compiled(arrays), right(**arrays, scale=0.25)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    assert np.abs(got[finite] - want[finite]).max(initial=0) < 1e-5


def scaled_by_an_input(scores: Any, graph: tvmdml.Graph) -> Any:
    return scores * graph.input((1,), name="scale").broadcast(1, HEADS, ROWS, KEYS)


@pytest.mark.parametrize("between", [scaled_by_an_input, lambda scores, _: tvmdml.exp(scores)])
def test_other_calls_between_stay(between: Callable[[Any, tvmdml.Graph], Any]) -> None:
    graph = tvmdml.Graph()
    sizes = {"q": ROWS, "k": KEYS, "v": KEYS}
    q, k, v = (graph.input((1, HEADS, count, CHANNELS), name=name) for name, count in sizes.items())
    weights = tvmdml.activation_softmax(between(tvmdml.gemm(q, k, trans_b="transpose"), graph), axes=[3])
    assert graph.compile(tvmdml.gemm(weights, v), target="cpu").kernel_count > 1


@pytest.mark.parametrize("which", ["scores", "weights"])
def test_scores_that_are_results_stay(which: str) -> None:
    graph = tvmdml.Graph()
    sizes = {"q": ROWS, "k": KEYS, "v": KEYS}
    q, k, v = (graph.input((1, HEADS, count, CHANNELS), name=name) for name, count in sizes.items())
    scores = tvmdml.gemm(q, k, trans_b="transpose")
    weights = tvmdml.activation_softmax(scores, axes=[3])
    compiled = graph.compile([tvmdml.gemm(weights, v), {"scores": scores, "weights": weights}[which]], target="cpu")
    assert compiled.kernel_count == 3


@pytest.mark.parametrize("precision", ["exact", "bf16"])
def test_a_product_of_two_attentions_is_part_of_the_first(precision: Any) -> None:
    graph = tvmdml.Graph(precision=precision)
    rng = np.random.default_rng(2)
    q, k, v, w = arrays = [rng.standard_normal(sizes).astype(np.float32) for sizes in ((40, 32), (32, 36), (36, 64), (64, 48))]
    inputs = [graph.input(array.shape, name=name) for array, name in zip(arrays, "qkvw", strict=True)]

    def softmax(x: Any) -> Any:
        return tvmdml.activation_softmax(x, axes=[1])

    y = softmax(softmax(inputs[0] @ inputs[1]) @ inputs[2]) @ inputs[3]
    compiled = graph.compile(y, target="cpu")
    want = softmax(softmax(np.float64(q) @ np.float64(k)) @ np.float64(v)) @ np.float64(w)
    assert compiled.kernel_count == 3
    assert np.abs(compiled(dict(zip("qkvw", arrays, strict=True)))[0] - want).max() < (1e-5 if precision == "exact" else 0.05)


def test_the_older_softmax_is_known_too() -> None:
    graph = tvmdml.Graph()
    sizes = {"q": ROWS, "k": KEYS, "v": KEYS}
    q, k, v = (graph.input((1, 1, count, CHANNELS), name=name) for name, count in sizes.items())
    scores = tvmdml.TensorDesc("float32", (1, 1, ROWS, KEYS))
    (weights,) = graph.add(
        tvmdml.ActivationSoftmax(input_tensor=scores, output_tensor=scores), [tvmdml.gemm(q, k, trans_b="transpose")]
    )
    arrays, compiled = given(1, 1), graph.compile(tvmdml.gemm(weights, v), target="cpu")
    assert compiled.kernel_count == 1
    want = right(**arrays, scale=1.0)
    del arrays["mask"]
    assert np.abs(compiled(arrays)[0] - want).max() < 1e-5


@pytest.mark.parametrize("sizes", [(1, 26), (19, 26), (200, 300)])
def test_open_sizes(sizes: tuple[int, int]) -> None:
    graph = tvmdml.Graph()
    q = graph.input((2, "rows", 4, CHANNELS), name="q").transpose((0, 2, 1, 3))
    k, v = (graph.input((2, "keys", 4, CHANNELS), name=name).transpose((0, 2, 1, 3)) for name in "kv")
    weights = tvmdml.activation_softmax(tvmdml.gemm(q, k, trans_b="transpose") * 0.5, axes=[3])
    compiled = graph.compile(tvmdml.gemm(weights, v), target="cpu")
    rng = np.random.default_rng(1)
    arrays = {
        name: rng.standard_normal((2, count, 4, CHANNELS)).astype(np.float32)
        for name, count in zip("qkv", (sizes[0], sizes[1], sizes[1]), strict=True)
    }
    want = right(*(arrays[name].swapaxes(1, 2) for name in "qkv"), 0.0, 0.5)
    assert np.abs(compiled(arrays)[0] - want).max() < 1e-5
    assert "FUSED_SOFTMAX_ATTENTION" in str(compiled.explain())


def test_half_precision_stays() -> None:
    graph = tvmdml.Graph()
    q, k, v = (
        graph.input((1, HEADS, count, CHANNELS), "float16", name=name)
        for name, count in zip("qkv", (ROWS, KEYS, KEYS), strict=True)
    )
    weights = tvmdml.activation_softmax(tvmdml.gemm(q, k, trans_b="transpose"), axes=[3])
    assert graph.compile(tvmdml.gemm(weights, v), target="cpu").kernel_count == 3
