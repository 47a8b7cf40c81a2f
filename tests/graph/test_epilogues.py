"""Pointwise operators behind others become a part of their kernels, and give the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmdml
from tvmdml.graph import passes
from tvmdml.targets import Target

RNG = np.random.default_rng(9)


def array(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def both(graph: tvmdml.Graph, outputs: list[Any], given: dict[str, Any], target: str = "cpu") -> tvmdml.CompiledGraph:
    """The graph with this pass, whose results have the bits of those without."""
    compiled = graph.compile(outputs, target)
    with pytest.MonkeyPatch.context() as patch:
        new = (passes.chains.run, passes.epilogues.run)
        patch.setattr(passes, "PASSES", tuple(one for one in passes.PASSES if one[1] not in new))
        plain = graph.compile(outputs, target)
    for one, other in zip(compiled(given), plain(given), strict=True):
        assert np.array_equal(one, other, equal_nan=True)
    return compiled


def block(graph: tvmdml.Graph, x: Any, channels: int) -> Any:
    """Two convolutions, and around them what was before."""
    y = x
    for last in (False, True):
        weights = graph.constant(array(channels, channels, 3, 3))
        y = tvmdml.convolution(y, weights, graph.constant(array(channels)), start_padding=[1, 1], end_padding=[1, 1])
        y = tvmdml.activation_relu(y + x if last else y)
    return y


@pytest.mark.full
def test_a_residual_block_is_a_kernel_for_each_convolution(target: Target) -> None:
    graph = tvmdml.Graph()
    x = graph.input((1, 8, 14, 14), name="x")
    y = block(graph, block(graph, x, 8), 8)
    compiled = both(graph, [y], {"x": array(1, 8, 14, 14)}, target.name)
    assert compiled.kernel_count == 4
    assert str(compiled.explain()).count("of FUSED_CONVOLUTION, with 2 others") == 6  # lines of three calls each


@pytest.mark.full
def test_the_last_of_two_heads_is_followed() -> None:
    graph = tvmdml.Graph()
    x = graph.input((1, 8, 14, 14), name="x")
    one, other = (tvmdml.convolution(x, graph.constant(array(8, 8, 1, 1))) for _ in range(2))
    compiled = both(graph, [tvmdml.activation_relu(one - other)], {"x": array(1, 8, 14, 14)})
    assert compiled.kernel_count == 2


@pytest.mark.full
def test_products() -> None:
    graph = tvmdml.Graph()
    x = graph.input((6, 20), name="x", dtype="float16")
    y = tvmdml.gemm(x, graph.constant(array(20, 30, dtype=np.float16))) + graph.constant(array(30, dtype=np.float16))
    y = y * tvmdml.activation_sigmoid(y)
    compiled = both(graph, [y], {"x": array(6, 20, dtype=np.float16)})
    assert compiled.kernel_count == 1


def test_what_has_other_readers_is_left_alone() -> None:
    graph = tvmdml.Graph()
    x = graph.input((6, 20), name="x")
    y = tvmdml.gemm(x, graph.constant(array(20, 20)))
    z = tvmdml.abs(y)
    assert both(graph, [z, y], {"x": array(6, 20)}).kernel_count == 2
    assert both(graph, [z, tvmdml.top_k(y, 2).values], {"x": array(6, 20)}).kernel_count == 3
    assert both(graph, [z + 1, tvmdml.reduce(z, function="sum", axes=[1])], {"x": array(6, 20)}).kernel_count == 3


@pytest.mark.full
def test_what_lies_otherwise_is_left_alone() -> None:
    graph = tvmdml.Graph()
    x = graph.input((1, 8, 6, 6), name="x")
    y = tvmdml.convolution(x, graph.constant(array(8, 8, 3, 3)), start_padding=[1, 1], end_padding=[1, 1])
    assert both(graph, [y + x.transpose(0, 1, 3, 2)], {"x": array(1, 8, 6, 6)}).kernel_count == 2
    assert both(graph, [tvmdml.abs(y.transpose(0, 1, 3, 2))], {"x": array(1, 8, 6, 6)}).kernel_count == 2


@pytest.mark.full
def test_dynamic_quantization_is_a_kernel_for_each_product() -> None:
    """A product of integers, as floats, times a scale, plus a bias, activated."""
    graph = tvmdml.Graph()
    x = graph.input((6, 20), name="x", dtype="uint8")
    weights = graph.constant(RNG.integers(-100, 100, (20, 30), np.int8))
    total = tvmdml.matrix_multiply_integer(x, weights)
    y = tvmdml.cast(total, "float32") * graph.constant(array(1) / 16) + graph.constant(array(30))
    compiled = both(graph, [tvmdml.activation_relu(y)], {"x": RNG.integers(0, 255, (6, 20), np.uint8)})
    assert compiled.kernel_count == 1
    assert "of FUSED_MATRIX_MULTIPLY_INTEGER" in str(compiled.explain())


def test_a_reader_may_see_the_rows_of_a_product_as_several_dimensions() -> None:
    graph = tvmdml.Graph()
    rng = np.random.default_rng(6)
    x, w, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 5, 16), (16, 24), (24,)))
    product = tvmdml.gemm(graph.input((2, 5, 16), name="x").reshape(10, 16), graph.constant(w)).reshape(2, 5, 24)
    compiled = graph.compile(tvmdml.activation_relu(product + b))
    assert compiled.kernel_count == 1
    right = tvmdml.activation_relu(tvmdml.add(tvmdml.gemm(x.reshape(10, 16), w).reshape(2, 5, 24), b))
    assert np.array_equal(compiled([x])[0], right)


@pytest.mark.full
def test_groups_of_channels_that_are_normalized_are_channels_for_what_follows(target: Target) -> None:
    graph = tvmdml.Graph()
    x = graph.input((2, 16, 6, 10), name="x")
    y = tvmdml.mean_variance_normalization(x.reshape(2, 4, 240), axes=[2]).reshape(2, 16, 6, 10)
    y = y * graph.constant(array(1, 16, 1, 1)) + graph.constant(array(1, 16, 1, 1))
    outputs = [y * tvmdml.activation_sigmoid(y)]
    compiled = graph.compile(outputs, target.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "PASSES", tuple(one for one in passes.PASSES if one[1] is not passes.epilogues.run))
        plain = graph.compile(outputs, target.name)
    given = [array(2, 16, 6, 10)]
    assert (compiled.kernel_count, plain.kernel_count) == (1, 2)
    np.testing.assert_allclose(compiled(given)[0], plain(given)[0], rtol=1e-5, atol=1e-6)


def test_equal_pairs_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    own = passes.epilogues.follow_by
    monkeypatch.setattr(passes.epilogues, "follow_by", lambda *given: asked.append(given) or own(*given))
    graph = tvmdml.Graph()
    x = y = graph.input((8, 8), name="x")
    for _ in range(40):
        y = tvmdml.activation_relu(tvmdml.gemm(y, x) * 0.125)
    compiled = graph.compile(y)
    assert (compiled.kernel_count, len(asked)) == (40, 1)


@pytest.mark.full
def test_normalizations_are_followed() -> None:
    graph = tvmdml.Graph()
    x = graph.input((6, 20), name="x")
    y = tvmdml.mean_variance_normalization(x, axes=[1]) + x
    outputs = [tvmdml.activation_softmax(y) * 2.0, tvmdml.abs(tvmdml.reduce(x, function="sum", axes=[1]))]
    assert both(graph, outputs, {"x": array(6, 20)}).kernel_count == 3


def test_a_saved_graph_has_what_follows(tmp_path: Path) -> None:
    graph = tvmdml.Graph()
    x = graph.input((2, 5, 16), name="x")
    y = tvmdml.gemm(x.reshape(10, 16), graph.constant(array(16, 8))).reshape(2, 5, 8) + graph.constant(array(8))
    compiled = graph.compile(tvmdml.activation_softmax(y, axes=[2]) * 0.5)
    assert compiled.kernel_count == 2
    tvmdml.save_graph(compiled, tmp_path / "some.graph")
    given = [array(2, 5, 16)]
    assert np.array_equal(tvmdml.load_graph(tmp_path / "some.graph")(given)[0], compiled(given)[0])


def image(graph: tvmdml.Graph, name: str = "x") -> Any:
    return graph.input((2, 8, 6, 20), name=name)


def heads(graph: tvmdml.Graph, family: str) -> Any:
    """The result of an operator of a family that others may follow."""
    x = image(graph)
    rows = graph.constant(RNG.integers(0, 20, 30).astype(np.int32))
    made: dict[str, Any] = {
        "convolution": lambda: tvmdml.convolution(x, graph.constant(array(16, 8, 3, 3))),
        "product": lambda: tvmdml.gemm(x, graph.constant(array(20, 24)).broadcast(2, 8, 20, 24)),
        "softmax": lambda: tvmdml.activation_softmax(x, axes=[3]),
        "normalization": lambda: tvmdml.mean_variance_normalization(x, axes=[2, 3]),
        "reduction": lambda: tvmdml.reduce(x, function="sum", axes=[3]),
        "slice": lambda: tvmdml.slice(
            x, input_window_offsets=[0, 1, 0, 2], input_window_sizes=[2, 6, 6, 15], input_window_strides=[1, 1, 2, 1]
        ),
        "join": lambda: tvmdml.join([x, graph.constant(array(2, 3, 6, 20))], axis=1),
        "padding": lambda: tvmdml.padding(x, start_padding=[0, 0, 1, 1], end_padding=[0, 0, 1, 1], padding_mode="reflection"),
        "tile": lambda: tvmdml.tile(x, repeats=[1, 2, 1, 2]),
        "gather": lambda: tvmdml.gather(x, rows, axis=3),
        "blocks": lambda: tvmdml.depth_to_space(x, block_size=2),
        "depths": lambda: tvmdml.space_to_depth(x, block_size=2),
        "larger": lambda: tvmdml.upsample_2d(x, scale_size=(2, 1), interpolation_mode="nearest_neighbor"),
        "attention": lambda: tvmdml.multihead_attention(
            *[x.reshape(2, 48, 20)] * 3, head_count=4, scale=0.5, mask_filter_value=-1e4, mask_type="none"
        ),
    }
    found = made[family]()
    return found if isinstance(found, tvmdml.Expression) else found[0]


FAMILIES = (
    *("convolution", "product", "softmax", "normalization", "reduction", "slice", "join", "padding", "tile", "gather", "blocks"),
    *("depths", "larger", "attention"),
)
FOLLOWERS: dict[str, Callable[[tvmdml.Graph, Any], Any]] = {
    "arithmetic": lambda graph, y: (y * 0.5 + 1.25) - 3.0,
    "activation": lambda graph, y: y * tvmdml.activation_sigmoid(y),
    "cast": lambda graph, y: tvmdml.cast(tvmdml.clip(y, min=-100.0, max=100.0), "float16"),
    "comparison": lambda graph, y: tvmdml.where(tvmdml.greater_than(y, 0.25), y, 0.0),
    "quantization": lambda graph, y: tvmdml.quantize_linear(y, graph.constant(array(1) ** 2 + 0.1), graph.constant(np.int8([3]))),
    "bits": lambda graph, y: tvmdml.is_nan(tvmdml.sqrt(y)),
    "rounding": lambda graph, y: tvmdml.round(tvmdml.multiply(y, 7.0)),
    "residual": lambda graph, y: tvmdml.activation_relu(y + graph.input(y.shape, name="r")),
}


APART = {"reduction": ("arithmetic", "comparison", "quantization", "rounding", "residual"), "gather": ("activation",)}
"""What is left alone: other inputs behind results of slices, and functions of elements that are moved one by one."""


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_followed_by_every_family(family: str, draw: Any) -> None:
    """Against the graph without fusion."""
    for name in draw(FOLLOWERS, 2):
        graph = tvmdml.Graph()
        y = FOLLOWERS[name](graph, heads(graph, family))
        given = {one.name: array(*one.desc.sizes) for one in graph.inputs}
        compiled = both(graph, [y], given)
        assert compiled.kernel_count == 1 + (name in APART.get(family, ())), f"{name}: {compiled.explain()}"
