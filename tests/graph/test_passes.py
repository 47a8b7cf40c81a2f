"""Passes: each changes what it should, and not the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import assert_same_bits

import tvmdml
from tvmdml.errors import InvalidArgument
from tvmdml.graph import passes
from tvmdml.graph.passes import layouts
from tvmdml.graph.program import Program

RNG = np.random.default_rng(5)


def array(*shape: int, dtype: str = "float32") -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def fates(compiled: tvmdml.CompiledGraph) -> list[str]:
    """What became of each call, in a few words."""
    return [fate.partition(":")[0] if fate.startswith("kernel") else fate for _, fate in compiled.explain().lines]


def same(graph: tvmdml.Graph, outputs: Sequence[tvmdml.Expression], near: Any = np.array_equal, **given: Any) -> Any:
    """The graph compiled with all passes, whose results are those with none."""
    compiled = graph.compile(outputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "PASSES", ())
        plain = graph.compile(outputs)
    assert plain.kernel_count >= compiled.kernel_count
    assert all(near(result, right) for result, right in zip(compiled(given), plain(given), strict=True))
    return compiled


def test_what_depends_on_constants_is_computed_once() -> None:
    graph = tvmdml.Graph()
    x = graph.input((4, 8), name="x")
    table = tvmdml.exp(graph.constant(array(8))) + 1
    compiled = same(graph, [x * table], x=array(4, 8))
    assert fates(compiled) == ["computed when the graph was compiled"] * 2 + ["kernel 0"]


def test_large_weights_of_bytes_become_floats_once() -> None:
    graph, q = tvmdml.Graph(), np.arange(-64, 64, dtype=np.int8).repeat(1 << 12).reshape(-1, 128)
    weights = tvmdml.cast(graph.constant(q), "float32") * array(1, 128)
    compiled = same(graph, [graph.input((3, 128), name="x") + weights[5:8]], x=array(3, 128))
    assert fates(compiled)[:2] == ["computed when the graph was compiled"] * 2


def test_a_constant_that_is_repeated_without_end_is_not_stored() -> None:
    graph = tvmdml.Graph()
    products = graph.constant(array(1024, 1)) * array(1, 1024)
    compiled = same(graph, [graph.input((1024,), name="x") + products], x=array(1024))
    assert fates(compiled)[0].startswith("kernel")


def test_growth_of_calls_that_follow_each_other_multiplies_nothing() -> None:
    graph = tvmdml.Graph()
    first = graph.constant(array(1 << 17))
    second = tvmdml.tile(first, repeats=[4])
    third = tvmdml.tile(second, repeats=[4])
    compiled = graph.compile([graph.input((1 << 21,), name="x") + third])
    assert fates(compiled)[0] == "computed when the graph was compiled"
    assert fates(compiled)[1].startswith("kernel")


NOTHING: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...]]] = {
    "padding": (lambda x, y: tvmdml.padding(x, start_padding=[1, 0], end_padding=[1, 2], padding_value=2.5), (0, 4)),
    "sum": (lambda x, y: tvmdml.reduce(x, function="sum", axes=[0]), (0, 4)),
    "average": (lambda x, y: tvmdml.reduce(x, function="average", axes=[1]) + y[:, :1], (3, 0)),
    "product": (lambda x, y: tvmdml.gemm(x, x, trans_b="transpose"), (3, 0)),
    "view": (lambda x, y: tvmdml.reduce(x[1:1], function="sum", axes=[0]), (3, 4)),
    "what nothing computes": (lambda x, y: tvmdml.reduce(tvmdml.exp(x), function="multiply", axes=[0]) + y[:1], (0, 4)),
    "product and sum": (lambda x, y: tvmdml.gemm(x, x, y[:, :3] * 2, trans_b="transpose", alpha=3, beta=-2.5), (3, 0)),
    "products and a row": (lambda x, y: tvmdml.gemm(x, x, y[:2, :2], trans_a="transpose", beta=2), (0, 2)),
    "convolution": (
        lambda x, y: tvmdml.convolution(x, np.zeros((4, 0, 1, 2), np.float32), (y[:1] + 1).reshape(1, 4, 1, 1), group_count=2),
        (2, 0, 3, 5),
    ),
    "scatter": (lambda x, y: tvmdml.scatter_elements(y + 1, x.astype(np.int32), x, axis=0), (0, 4)),
    "scatter of rows": (lambda x, y: tvmdml.scatter_nd(y.T, x.astype(np.int64), y[:0, :3]) * 2, (0, 1)),
    "join": (lambda x, y: tvmdml.join((x, y, x, tvmdml.exp(x)), axis=0), (0, 4)),
    "join of none": (lambda x, y: tvmdml.join((x, x), axis=0), (0, 4)),
    "parts": (
        lambda x, y: tvmdml.split(tvmdml.reduce(x, function="sum", axes=[0]), output_axis_sizes=[4, 0], axis=1)[0] * y,
        (0, 4),
    ),
}


@pytest.mark.full(first=1)
@pytest.mark.parametrize("name", NOTHING)
def test_inputs_without_elements_have_the_results_of_functions(name: str, tmp_path: Path) -> None:
    function, sizes = NOTHING[name]
    x, y = np.zeros(sizes, np.float32), np.arange(12, dtype=np.float32).reshape(3, 4)
    graph = tvmdml.Graph()
    given = graph.input(sizes, name="x"), graph.input((3, 4), name="y")
    compiled = graph.compile([function(*given)])
    with np.errstate(all="ignore"):
        expected = function(x, y)
    assert_same_bits(compiled({"x": x, "y": y})[0], expected)
    tvmdml.save_graph(compiled, tmp_path / "graph")
    assert_same_bits(tvmdml.load_graph(tmp_path / "graph")({"x": x, "y": y})[0], expected)


def test_equal_calls_are_one() -> None:
    graph = tvmdml.Graph()
    x = graph.input((4, 8), name="x")
    one, other, third = tvmdml.exp(x), tvmdml.exp(x), tvmdml.exp(x[:, ::2])
    compiled = same(graph, [tvmdml.top_k(one + other, 2).values, third], x=array(4, 8))
    assert fates(compiled) == ["kernel 1", "kernel 1", "kernel 0", "kernel 1", "kernel 2"]


def test_copies_that_change_nothing_are_dropped() -> None:
    graph = tvmdml.Graph()
    x = graph.input((4, 8), name="x")
    y = tvmdml.identity(tvmdml.cast(tvmdml.sin(tvmdml.identity(x)), "float32"))
    compiled = same(graph, [y, tvmdml.identity(x.T)], x=array(4, 8))
    assert fates(compiled) == ["changes nothing", "kernel 0", "changes nothing", "changes nothing", "kernel 1"]


@pytest.mark.full
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_normalization_padding_and_activation_go_into_the_convolution(direction: str) -> None:
    graph = tvmdml.Graph()
    x = graph.input((2, 6, 10, 9), name="x")
    padded = tvmdml.padding(x, start_padding=[0, 0, 1, 2], end_padding=[0, 0, 0, 1])
    weights, bias = array(*((8, 6) if direction == "forward" else (6, 8)), 3, 3), array(1, 8, 1, 1)
    y = tvmdml.convolution(padded, weights, bias, start_padding=[0, 1], end_padding=[1, 0], direction=direction)
    mean, variance, scale, shift = array(1, 8, 1, 1), np.abs(array(1, 8, 1, 1)), array(1, 8, 1, 1), array(1, 8, 1, 1)
    z = tvmdml.activation_leaky_relu(tvmdml.batch_normalization(y, mean, variance, scale, shift), alpha=0.25)
    compiled = same(graph, [z], partial(np.allclose, rtol=1e-5, atol=1e-4), x=array(2, 6, 10, 9))
    assert compiled.kernel_count == (1 if direction == "forward" else 2)


@pytest.mark.full
def test_what_others_read_is_not_fused() -> None:
    graph = tvmdml.Graph()
    x = graph.input((1, 6, 10, 9), name="x")
    y = tvmdml.convolution(x, array(8, 6, 3, 3))
    compiled = same(graph, [tvmdml.activation_relu(y), y], x=array(1, 6, 10, 9))
    assert compiled.kernel_count == 2


@pytest.mark.full
def test_half_precision_is_rounded_before_the_activation() -> None:
    graph = tvmdml.Graph()
    x = graph.input((4, 40), "float16", name="x")
    y = tvmdml.activation_sigmoid(tvmdml.gemm(x, array(40, 20, dtype="float16")))
    same(graph, [y], x=array(4, 40, dtype="float16"))


def test_equal_numbers_are_one_constant() -> None:
    graph = tvmdml.Graph()
    x = graph.input((4, 8), name="x")
    y = tvmdml.join([(x * 0.5)[1:], tvmdml.exp(x[2:] + 0.5)], axis=0) * 0.25 + 0.5
    compiled = same(graph, [y, tvmdml.top_k(y * 0.5, 2).values], x=array(4, 8))
    assert compiled.persistent_size == 8


def test_a_result_that_is_a_copy_of_a_copy_of_an_input() -> None:
    graph = tvmdml.Graph()
    x = graph.input((2, 3))
    once = tvmdml.identity(x)
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    for found in graph.compile([tvmdml.identity(once), tvmdml.identity(tvmdml.identity(once))])([given]):
        assert np.array_equal(found, given)
        assert found is not given


@pytest.mark.full
@pytest.mark.parametrize(
    ("batch", "rows", "side"),
    [(1, 1, "second"), (3, 1, "second"), (1, 5, "second"), (3, 5, "second"), (2, 5, "first")],
)
def test_products_read_repeated_matrices_where_they_are(batch: int, rows: int, side: str) -> None:
    """Heads of keys that are repeated for heads of queries: in all of the batch, in a part, elsewhere, and as the first factor."""
    graph = tvmdml.Graph()
    query, keys = graph.input((batch, 6, rows, 24), name="query"), graph.input((batch, 19, 2, 24), name="keys")

    def repeated(x: tvmdml.Expression) -> tvmdml.Expression:
        return x[:, :, None].broadcast(batch, 2, 3, *x.shape[2:]).reshape(batch, 6, *x.shape[2:])

    every = repeated(keys.transpose(0, 2, 1, 3))
    if side == "second":
        scores = tvmdml.gemm(query, every.transpose(0, 1, 3, 2)) * 0.5 + graph.constant(array(19)).broadcast(batch, 6, rows, 19)
        results = [tvmdml.gemm(tvmdml.activation_softmax(scores, axes=[3]), every)]
    else:
        results = [tvmdml.gemm(every, query, trans_b="transpose")]
    parts = repeated(keys.transpose(0, 2, 3, 1))  # lines of these are contiguous only in the copy
    results += [tvmdml.gemm(query, parts), tvmdml.gemm(query[:, 3:], every[:, 3:], trans_b="transpose")]
    given = {"query": array(batch, 6, rows, 24), "keys": array(batch, 19, 2, 24)}
    compiled = same(graph, results, **given)
    names = [line.partition(" ")[0] for line, fate in compiled.explain().lines if fate.startswith("kernel")]
    assert names.count("ELEMENT_WISE_IDENTITY") == 2  # one for lines, and one for a product of a part of the heads
    alone = graph.compile(results[:1])
    assert "ELEMENT_WISE_IDENTITY" not in str([line for line, fate in alone.explain().lines if fate.startswith("kernel")])


@pytest.mark.full
def test_images_between_convolutions_have_their_channels_last() -> None:
    graph = tvmdml.Graph()
    x = graph.input((1, 3, 20, 18), name="x")

    def conv(image: tvmdml.Expression, filters: int, size: int, **given: Any) -> tvmdml.Expression:
        weights = graph.constant(array(filters, image.shape[1] // given.get("group_count", 1), size, size))
        padding = {"start_padding": [size // 2] * 2, "end_padding": [size // 2] * 2}
        bias = graph.constant(array(1, filters, 1, 1))
        return tvmdml.activation_relu(tvmdml.convolution(image, weights, bias, **padding, **given))

    first = tvmdml.max_pooling(conv(x, 32, 3), window_sizes=[2, 2], strides=[2, 2])
    inner = conv(first, 64, 3) * graph.constant(array(1, 64, 1, 1)).broadcast(1, 64, 10, 9)
    scale = graph.constant(array(1, 96, 1, 1)).broadcast(1, 96, 10, 9)
    side = tvmdml.activation_relu(tvmdml.join([conv(first, 32, 1) + first, inner], axis=1) * scale)
    larger = tvmdml.upsample_2d(conv(side, 96, 3, group_count=96), scale_size=(2, 2), interpolation_mode="nearest_neighbor")
    small = tvmdml.max_pooling(larger + conv(x, 96, 3), window_sizes=[2, 2], strides=[2, 2])
    deep = conv(small, 48, 3, strides=[2, 2]) + 1
    outside = tvmdml.reduce(deep, function="sum", axes=[2, 3])
    compiled = same(graph, [conv(deep, 16, 1), outside, deep], x=array(1, 3, 20, 18))
    if tvmdml.targets.resolve("cpu").processor.has("avx2"):
        assert "last of CONVOLUTION" in str(compiled.explain())
        text = str(compiled.explain())
        assert "FUSED_JOIN, with 2 others" in text
        assert "FUSED_UPSAMPLE_2D, with 1 other" in text
        assert compiled.kernel_count == 14, text
        assert text.count("added: ELEMENT_WISE_IDENTITY") == 2  # of the two results that lie otherwise outside


@pytest.mark.full
def test_means_of_images_with_channels_last_are_taken_where_they_are() -> None:
    """A part that squeezes an image to one place, and scales its channels by what comes of that, needs no copies."""
    graph = tvmdml.Graph()
    x = graph.input((1, 32, 9, 9), name="x")

    def conv(image: tvmdml.Expression, filters: int, size: int) -> tvmdml.Expression:
        weights = graph.constant(array(filters, image.shape[1], size, size))
        return tvmdml.convolution(image, weights, start_padding=[size // 2] * 2, end_padding=[size // 2] * 2)

    deep = conv(tvmdml.activation_relu(conv(x, 64, 3)), 64, 3)
    means = tvmdml.average_pooling(deep, window_sizes=[9, 9])
    scale = tvmdml.activation_sigmoid(conv(means, 64, 1)).broadcast(1, 64, 9, 9)
    # Sums of images have another order where channels are last, and so may have another last bit.
    compiled = same(
        graph,
        [conv(deep * scale, 32, 3)],
        lambda one, right: np.allclose(one, right, 0, 1e-5 * np.abs(right).max()),
        x=array(1, 32, 9, 9),
    )
    text = str(compiled.explain())
    if tvmdml.targets.resolve("cpu").processor.has("avx2"):
        assert text.count("added: ELEMENT_WISE_IDENTITY") == 1, text  # the result


@pytest.mark.full
@pytest.mark.parametrize(("batch", "first", "copies"), [(1, 32, 2), (2, 8, 5)])
def test_some_channels_of_an_image_are_read_where_they_are(
    batch: int, first: int, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of an image are convolved, added and joined; fewer channels than a line has are copied."""
    monkeypatch.setattr(layouts, "_PRODUCTS", 0)
    graph = tvmdml.Graph()
    x = graph.input((batch, 3, 12, 10), name="x")

    def conv(image: tvmdml.Expression, filters: int, size: int = 3, **given: Any) -> tvmdml.Expression:
        weights = graph.constant(array(filters, image.shape[1], size, size))
        y = tvmdml.convolution(image, weights, start_padding=[size // 2] * 2, end_padding=[size // 2] * 2, **given)
        return y * tvmdml.activation_sigmoid(y)

    whole = conv(conv(x, 48), 48 + first, 1)
    some, others = whole[:, :first], whole[:, first:]
    inner = conv(conv(others, 48), 48) + others
    two = conv(inner, 48) * others + tvmdml.activation_relu(others)
    product = conv(inner, 48, 1) + others
    result = conv(tvmdml.join([some, others, inner, two, product], axis=1), 32, 1)
    part = tvmdml.reduce(others[:, :, 2:6], function="sum", axes=[2, 3])
    compiled = same(graph, [result, part], x=array(batch, 3, 12, 10))
    if tvmdml.targets.resolve("cpu").processor.has("avx2"):
        text = str(compiled.explain())
        assert text.count("added: ELEMENT_WISE_IDENTITY") == copies, text  # the result, and what `reduce` reads
        assert text.count("last of FUSED_CONVOLUTION, with 5 others") == 6 * (batch == 1), text


@pytest.mark.full
def test_owned_filters_are_laid_out_as_constants_are() -> None:
    graph = tvmdml.Graph()
    x = graph.input((1, 3, 20, 18), name="x")
    weights = {graph.input(shape, owned=True): array(*shape) for shape in ((32, 3, 3, 3), (64, 32, 3, 3), (8, 64, 1, 1))}
    y = x
    for filters in weights:
        y = tvmdml.convolution(y, filters)
    given, owned, constant = {"x": array(1, 3, 20, 18)}, graph.compile([y]), graph.compile([y], known=weights)
    owned.initialize(weights)
    assert str(owned.explain()) == str(constant.explain())
    if tvmdml.targets.resolve("cpu").processor.has("avx2"):
        assert "last of CONVOLUTION" in str(owned.explain())
    assert np.array_equal(owned(given)[0], constant(given)[0])


def test_a_pass_that_lets_a_call_read_outside_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def shift(program: Program, _: object) -> None:
        (call,) = program.calls
        call.edges["a_tensor"] = call.edges["a_tensor"]._replace(offset=4)

    monkeypatch.setattr(passes, "PASSES", (("reads one element too far", shift),))
    graph = tvmdml.Graph()
    total = graph.input((4,), "float32") + graph.input((4,), "float32")
    with pytest.raises(InvalidArgument, match=r"ELEMENT_WISE_ADD a_tensor, after all passes: .* allowed: at most 12 bytes"):
        graph.compile([total])
