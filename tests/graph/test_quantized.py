"""Operators between dequantized inputs and a quantized result compute with integers: nearly always the same integers result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvmdml
from tvmdml.errors import InvalidArgument
from tvmdml.graph import passes
from tvmdml.targets import Target

RNG = np.random.default_rng(31)


def integers(dtype: str, *shape: int) -> Any:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)


def real(x: Any, scale: Any, zero: Any = None, axis: int = 0) -> Any:
    """What quantized numbers stand for."""
    return tvmdml.dequantize_linear(x, spread(x, np.float32(scale), axis), None if zero is None else spread(x, zero, axis))


def stored(x: Any, scale: Any, zero: int = 0, dtype: str = "int8") -> Any:
    return tvmdml.quantize_linear(x, spread(x, np.float32(scale), 1), spread(x, np.array(zero, dtype), 1))


def spread(x: Any, values: Any, axis: int) -> Any:
    """One number for all, or one for each place along an axis, repeated by strides."""
    sizes = [np.size(values) if i == axis else 1 for i in range(len(x.shape))]
    return x.graph.constant(np.reshape(values, sizes)).broadcast(x.shape)


def both(graph: tvmdml.Graph, outputs: list[Any], given: dict[str, Any], target: str = "cpu") -> tuple[set[str], list[Any]]:
    """The operators with all passes; results may be one step from those without these, and few are."""
    compiled = graph.compile(outputs, target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(passes.DISABLED, "quantized, quantized_moves")
        plain = graph.compile(outputs, target)
    found = compiled(given)
    for one, other in zip(found, plain(given), strict=True):
        apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
        assert apart.max(initial=0) <= 1
        assert (apart > 0).mean() <= 0.01
        assert one.dtype.kind == "f" or len(np.unique(one)) > min(3, one.size - 1)  # not saturated
    return {timed.name.split(" ")[0] for timed in compiled.profile(given)}, found


def drawn_convolution(graph: tvmdml.Graph, name: str) -> tuple[Any, dict[str, Any]]:
    """A convolution of random sizes and types, with all that may be around it."""
    kinds = [str(RNG.choice(["int8", "uint8"])) for _ in range(3)]
    groups = int(RNG.choice([1, 1, 2]))
    channels, filters, kernel = (int(RNG.integers(1, 9)) * groups, int(RNG.integers(1, 25)) * groups, int(RNG.integers(1, 4)))
    x = graph.input((int(RNG.integers(1, 3)), channels, 9, int(RNG.integers(7, 12))), kinds[0], name=name)
    each = bool(RNG.integers(2))
    w_scale = RNG.uniform(0.001, 0.003, filters if each else 1)
    zeros: list[Any] = [
        None if kind == "int8" and RNG.integers(2) else ((128 if kind == "uint8" else 0) + RNG.integers(-20, 20, n)).astype(kind)
        for kind, n in zip(kinds, (1, filters if each else 1), strict=False)
    ]
    w = graph.constant(integers(kinds[1], filters, channels // groups, kernel, kernel))
    bias: Any = None
    if (form := int(RNG.integers(3))) == 1:
        whole = RNG.integers(-9000, 9000, filters).astype(np.int32)
        bias = real(graph.constant(whole), np.float32(0.02) * np.float32(w_scale)).reshape(1, filters, 1, 1)
    elif form == 2:
        bias = graph.constant(RNG.uniform(-1, 1, (1, filters, 1, 1)).astype(np.float32))
    numbers = {"strides": RNG.integers(1, 3, 2), "start_padding": RNG.integers(0, 2, 2), "end_padding": RNG.integers(0, 2, 2)}
    y = tvmdml.convolution(
        real(x, 0.02, zeros[0]), real(w, w_scale, zeros[1]), bias, group_count=groups,
        **{name: [int(n) for n in some] for name, some in numbers.items()},
    )  # fmt: skip
    limits = np.iinfo(kinds[2])
    zero = int(RNG.integers(limits.min, limits.max + 1))
    if RNG.integers(2):
        y, zero = tvmdml.activation_relu(y), limits.min
    scale = 0.02 * 0.003 * 100 * 100 * np.sqrt(channels // groups * kernel * kernel) / 50
    return stored(y, scale, zero, kinds[2]), {name: integers(kinds[0], *x.shape)}


@pytest.mark.full
def test_random_convolutions() -> None:
    graph = tvmdml.Graph()
    for number in range(6):
        y, given = drawn_convolution(graph, f"x{number}")
        assert both(graph, [y], given)[0] == {"QUANTIZED_LINEAR_CONVOLUTION"}


@pytest.mark.full
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_products(turned: bool, bias: bool) -> None:
    graph = tvmdml.Graph()
    x = graph.input((20, 40), "uint8", name="x")
    w = graph.constant(integers("int8", 24, 40))
    wide = real(w, RNG.uniform(0.001, 0.002, 24))
    if not turned:
        wide = real(graph.constant(integers("int8", 40, 24)), RNG.uniform(0.001, 0.002, 24), axis=1)
    added = (graph.constant(RNG.uniform(-1, 1, (1, 24)).astype(np.float32)).broadcast((20, 24)),) if bias else ()
    y = tvmdml.gemm(real(x, 0.02, np.uint8(120)), wide, *added, trans_b="transpose" if turned else "none")
    names, _ = both(graph, [stored(y, 0.05, 3)], {"x": integers("uint8", 20, 40)})
    assert names == {"QUANTIZED_LINEAR_CONVOLUTION" if bias else "QUANTIZED_LINEAR_MATRIX_MULTIPLY"}


def convolved(graph: tvmdml.Graph, x: Any, channels: int = 16) -> Any:
    """The floats of a convolution of what is dequantized."""
    return tvmdml.convolution(real(x, 0.02, np.int8(5)), real(graph.constant(integers("int8", channels, 16, 1, 1)), 0.002))


@pytest.mark.full
def test_a_residual_block_has_one_input_that_is_dequantized_twice(target: Target) -> None:
    graph = tvmdml.Graph()
    x = graph.input((1, 16, 9, 9), "int8", name="x")
    wide = real(x, 0.02, np.int8(5))
    one, other = (tvmdml.convolution(wide, real(graph.constant(integers("int8", 16, 16, 3, 3)), 0.002),
                                     start_padding=[1, 1], end_padding=[1, 1]) for _ in range(2))  # fmt: skip
    y = stored(real(stored(one, 0.3), 0.3) + wide, 0.4), stored(other, 0.2)
    names, _ = both(graph, list(y), {"x": integers("int8", 1, 16, 9, 9)}, target.name)
    assert names == {"QUANTIZED_LINEAR_CONVOLUTION", "FUSED_QUANTIZED_LINEAR_CONVOLUTION"} or target.kind != "cpu"


@pytest.mark.full
def test_what_has_other_readers_or_scales_keeps_its_floats() -> None:
    graph = tvmdml.Graph()
    x = graph.input((1, 16, 9, 9), "int8", name="x")
    given = {"x": integers("int8", 1, 16, 9, 9)}
    y = convolved(graph, x)
    outside = convolved(graph, x)
    twice = convolved(graph, x)
    behind = tvmdml.activation_sigmoid(convolved(graph, x))
    limited = tvmdml.clip(convolved(graph, x), min=-3, max=3)
    channels = stored(y, RNG.uniform(0.1, 0.2, 16))
    for outputs in ([channels], [outside, stored(outside, 0.1)], [stored(twice, 0.1), stored(twice, 0.2)], [stored(behind, 0.01)],
                    [stored(limited, 0.1)]):  # fmt: skip
        names, _ = both(graph, outputs, given)
        assert not any("QUANTIZED_LINEAR" in name for name in names)


@pytest.mark.full
def test_a_limit_that_saturation_implies_is_dropped() -> None:
    graph = tvmdml.Graph()
    x = graph.input((1, 16, 9, 9), "int8", name="x")
    y = tvmdml.clip(convolved(graph, x), min=0, max=6)
    names, _ = both(graph, [stored(y, 6 / 255, 0, "uint8")], {"x": integers("int8", 1, 16, 9, 9)})
    assert names == {"QUANTIZED_LINEAR_CONVOLUTION"}


@pytest.mark.full
def test_a_bias_too_fine_for_integers_is_added_to_floats() -> None:
    graph = tvmdml.Graph()
    x = graph.input((1, 16, 9, 9), "int8", name="x")
    w = real(graph.constant(integers("int8", 16, 16, 1, 1)), 20.0)
    bias = graph.constant(RNG.uniform(-1, 1, (1, 16, 1, 1)).astype(np.float32))
    names, _ = both(graph, [stored(tvmdml.convolution(real(x, 0.1), w, bias), 10.0)], {"x": integers("int8", 1, 16, 9, 9)})
    assert "QUANTIZED_LINEAR_CONVOLUTION" not in names


@pytest.mark.full(first=1)
@pytest.mark.parametrize("same", [True, False])
def test_moves(same: bool) -> None:
    """With one scale and zero point elements stay what they are, and are never floats."""
    graph = tvmdml.Graph()
    x = graph.input((1, 4, 8, 8), "uint8", name="x")
    given = {"x": integers("uint8", 1, 4, 8, 8)}
    zero, to = np.uint8(130), (0.02 if same else 0.03, 130, "uint8")
    wide = real(x, 0.02, zero)
    outputs = [
        stored(tvmdml.max_pooling(wide, window_sizes=[3, 3], strides=[2, 2], start_padding=[1, 1], end_padding=[0, 0])[0], *to),
        stored(tvmdml.join([wide, real(x, 0.02, zero)], axis=1), *to),
        stored(tvmdml.activation_relu(wide), *to),
        stored(tvmdml.identity(wide.transpose(0, 2, 3, 1)), *to),
        stored(wide.reshape(4, 64), *to),
    ]
    for y in outputs:
        names, (found,) = both(graph, [y], given)
        assert any("QUANTIZE" in name or "FUSED" in name for name in names) != same
        assert found.dtype == np.uint8


def test_an_unknown_pass_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(passes.DISABLED, "quantised")
    graph = tvmdml.Graph()
    with pytest.raises(InvalidArgument, match=r"TVMDML_DISABLE_PASSES.*'quantised'.*quantized"):
        graph.compile([tvmdml.exp(graph.input((3,), name="x"))])
