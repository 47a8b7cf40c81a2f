"""Products with, and slices of, matrices that a DEQUANTIZE with blocks makes read the few bits, and write no matrix of floats."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import Array, run, seeded

import tvmdml
from tvmdml.enums import NEWEST_FEATURE_LEVEL
from tvmdml.operators._gather_blocks_fused import BlockwiseGather
from tvmdml.operators.gather import Gather
from tvmdml.operators.quantization import Dequantize
from tvmdml.targets import Target

K, N, BLOCK = 192, 48, 32
LIMITS = {"uint4": (0, 16), "int4": (-8, 8), "uint8": (0, 256), "int8": (-128, 128)}


def stored(kind: str, rows: int, columns: int, key: str) -> tuple[tvmdml.TensorDesc, Array, Array]:
    """A tensor of few bits, its array, and its elements."""
    desc = tvmdml.TensorDesc(kind, (rows, columns))
    values = seeded(key, kind).integers(*LIMITS[kind], (rows, columns)).astype(desc.data_type.unpacked.numpy)
    return desc, desc.pack(values), values


class Made:
    """A graph with a product behind a DEQUANTIZE."""

    def __init__(self, kind: str, zeros: bool, given: bool = False, dtype: str = "float32", rows: Any = 5) -> None:
        self.graph = tvmdml.Graph()
        desc, array, values = stored(kind, N, K, "matrix")
        scale = (seeded("scale").standard_normal((N, K // BLOCK)) * 0.1).astype(dtype)
        zero_desc, zero_array, zero = stored(kind, N, K // BLOCK, "zeros")
        tensors = [tvmdml.TensorDesc(dtype, scale.shape), *([zero_desc] if zeros else [])]
        self.dequantize = Dequantize.of(desc, tensors, quantization_type="scale_zero_point" if zeros else "scale")
        less = np.repeat(zero.astype(int), BLOCK, 1) if zeros else self.dequantize.middle()
        self.matrix = (values.astype(float) - less) * np.repeat(scale.astype(float), BLOCK, 1)
        self.fed = {"matrix": array} if given else {}
        source = self.graph.input(array.shape, array.dtype, name="matrix") if given else self.graph.constant(array)
        parts = [self.graph.constant(part) for part in (scale, *([zero_array] if zeros else []))]
        floats = self.graph.add(self.dequantize, [source, *parts])[0]
        assert floats is not None
        self.floats = floats
        self.rows, self.dtype = rows, dtype

    @functools.cached_property
    def x(self) -> Any:
        """The first factor."""
        return self.graph.input((self.rows, K), self.dtype, name="x")

    def run(self, *results: Any, rows: int = 5, **fed: Array) -> tuple[Any, Array, str]:
        """The results, the first factor, and what became of the calls."""
        net = self.graph.compile(list(results), target="cpu")
        x = seeded("x", rows).standard_normal((rows, K)).astype(self.x.dtype)
        answers = net({"x": x, **self.fed, **fed})
        return answers, x.astype(float), str(net.explain())


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("kind", LIMITS)
def test_the_bits_are_read(kind: str, zeros: bool, given: bool) -> None:
    made = Made(kind, zeros, given)
    (y,), x, text = made.run(tvmdml.gemm(made.x, made.floats, trans_b="transpose"))
    assert np.allclose(y, x @ made.matrix.T, atol=1e-5 * (np.abs(x) @ np.abs(made.matrix.T)).max())
    assert "bits of FUSED_BLOCKWISE_GEMM" in text
    assert "of DEQUANTIZE" not in text


@pytest.mark.parametrize("rows", [1, 3, 7, 9, 40])
@pytest.mark.parametrize("columns", [48, 332])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("kind", LIMITS)
def test_columns_beside_each_other_are_read_where_they_are_given(kind: str, zeros: bool, columns: int, rows: int) -> None:
    """A matrix {places, columns} that is an input of each run is never written as floats."""
    graph, rng, places = tvmdml.Graph(), seeded("across", kind, str(zeros), columns), 80
    desc, array, values = stored(kind, places, columns, "given")
    zero_desc, zero_array, zero = stored(kind, 2, columns, "given zeros")
    scale = (rng.standard_normal((2, columns)) * 0.1).astype(np.float32)
    tensors = [tvmdml.TensorDesc("float32", scale.shape), *([zero_desc] if zeros else [])]
    dequantize = Dequantize.of(desc, tensors, quantization_type="scale_zero_point" if zeros else "scale")
    fed = {"matrix": array, "scale": scale} | ({"zero": zero_array} if zeros else {})
    (floats,) = graph.add(dequantize, [graph.input(one.shape, one.dtype, name=name) for name, one in fed.items()])
    less = np.repeat(zero.astype(int), places // 2, 0) if zeros else dequantize.middle()
    matrix = (values.astype(float) - less) * np.repeat(scale.astype(float), places // 2, 0)
    x = rng.standard_normal((rows, places)).astype(np.float32)
    net = graph.compile([tvmdml.gemm(graph.input(x.shape, "float32", name="x"), floats)], target="cpu")
    (y,) = net({"x": x, **fed})
    assert np.abs(y - x @ matrix).max() <= 1e-5 * (np.abs(x) @ np.abs(matrix)).max()
    assert "of FUSED_BLOCKWISE_GEMM" in str(net.explain())
    assert "of DEQUANTIZE" not in str(net.explain())
    assert net.temporary_size == 0


def test_halves_are_computed_as_floats() -> None:
    made = Made("uint4", True, dtype="float16")
    (y,), x, text = made.run(tvmdml.gemm(made.x, made.floats, trans_b="transpose"))
    assert "bits of FUSED_BLOCKWISE_GEMM" in text
    assert np.allclose(y, x @ made.matrix.T, rtol=2**-10, atol=1e-4)


def test_what_is_added_and_what_follows() -> None:
    made = Made("uint4", False)
    bias = seeded("bias").standard_normal((1, N)).astype(np.float32)
    product = tvmdml.gemm(made.x, made.floats, bias, trans_b="transpose", beta=1.0)
    (y,), x, text = made.run(tvmdml.activation_relu(product))
    assert np.allclose(y, np.maximum(x @ made.matrix.T + bias, 0), atol=1e-4)
    assert "bits of FUSED_BLOCKWISE_GEMM_CHAIN, with 2 others" in text


def test_rows_are_open() -> None:
    made = Made("uint4", True, rows="n")
    net = made.graph.compile([tvmdml.gemm(made.x, made.floats, trans_b="transpose")], target="cpu")
    for rows in (1, 2, 3, 7, 8, 9, 40, 1):
        x = seeded("open", rows).standard_normal((rows, K)).astype(np.float32)
        assert np.allclose(net({"x": x})[0], x @ made.matrix.T, atol=1e-4), rows
        assert "of DEQUANTIZE" not in str(net.at(n=rows).explain())
        assert net.at(n=rows).temporary_size == 0


def test_devices_have_a_kernel_for_few_rows_and_one_for_many(device: Target) -> None:
    made = Made("uint4", True, rows="n")
    result = tvmdml.activation_relu(tvmdml.gemm(made.x, made.floats, trans_b="transpose"))
    nets = [made.graph.compile([result], target=target) for target in ("cpu", device)]
    for rows in (1, 8, 9, 40, 1):
        x = seeded("devices", rows).standard_normal((rows, K)).astype(np.float32)
        (wanted,), (found,) = (net({"x": x}) for net in nets)
        assert np.allclose(found, wanted, atol=1e-4), rows
        text = str(nets[1].at(n=rows).explain())
        assert ("bits of FUSED_BLOCKWISE_GEMM" in text) == (rows <= 8), text
        assert ("tiles of FUSED_BLOCKWISE_GEMM" in text) == (rows > 8), text
        assert "of DEQUANTIZE" not in text


def test_places_behind_the_last_one_are_not_read() -> None:
    made = Made("uint4", True)
    (y,), x, text = made.run(tvmdml.gemm(made.x[:, :100], made.floats[:, :100], trans_b="transpose"))
    assert np.allclose(y, x[:, :100] @ made.matrix[:, :100].T, atol=1e-4)
    assert "BLOCKWISE_GEMM" in text


def test_other_readers_get_floats() -> None:
    made = Made("int8", False)
    (y, floats), x, text = made.run(tvmdml.gemm(made.x, made.floats, trans_b="transpose"), made.floats)
    assert np.allclose(floats, made.matrix)
    assert np.allclose(y, x @ made.matrix.T, atol=1e-3)
    assert "BLOCKWISE_GEMM" in text
    assert "not needed" not in text.splitlines()[0]


@pytest.mark.parametrize(
    "product",
    [
        lambda made: tvmdml.gemm(made.x[:, :N], made.floats),
        lambda made: tvmdml.gemm(made.x[:, 3:], made.floats[:, 3:], trans_b="transpose"),
        lambda made: tvmdml.gemm(made.x, made.floats, trans_b="transpose", alpha=2.0),
        lambda made: tvmdml.gemm(made.x, made.floats[::2], trans_b="transpose"),
    ],
    ids=["places of several rows in a block", "a part", "a factor", "every other row"],
)
def test_what_no_kernel_serves_is_computed_from_floats(product: Any) -> None:
    made = Made("uint4", True)
    (y,), _, text = made.run(product(made))
    assert "BLOCKWISE_GEMM" not in text
    other = Made("uint4", True)
    other.floats = other.graph.constant(made.matrix.astype(np.float32))
    (wanted,), *_ = other.run(product(other))
    assert np.allclose(y, wanted, atol=1e-4)


def test_it_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_DISABLE_PASSES", "blockwise")
    made = Made("uint4", True)
    (y,), x, text = made.run(tvmdml.gemm(made.x, made.floats, trans_b="transpose"))
    assert "BLOCKWISE_GEMM" not in text
    assert np.allclose(y, x @ made.matrix.T, atol=1e-4)


def test_a_saved_graph_has_the_bits(tmp_path: Path) -> None:
    made = Made("uint4", True)
    net = made.graph.compile([tvmdml.activation_relu(tvmdml.gemm(made.x, made.floats, trans_b="transpose"))], target="cpu")
    tvmdml.save_graph(net, str(tmp_path / "net.graph"))
    x = seeded("saved").standard_normal((5, K)).astype(np.float32)
    (y,) = tvmdml.load_graph(str(tmp_path / "net.graph"), "cpu")({"x": x})
    assert np.array_equal(y, net({"x": x})[0])
    assert (tmp_path / "net.graph").stat().st_size < 2 * N * K


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("kind", LIMITS)
def test_blocks_of_rows_that_are_places_of_a_sum(kind: str, zeros: bool, target: Target) -> None:
    """The matrix is {places, columns}, with rows that begin within bytes. Packed anew, both products read it."""
    graph, rng, (places, columns) = tvmdml.Graph(), seeded("places", kind), (96, 45)
    desc, array, values = stored(kind, places, columns, "turned")
    zero_desc, zero_array, zero = stored(kind, 3, columns, "turned zeros")
    scale = (rng.standard_normal((3, columns)) * 0.1).astype(np.float32)
    tensors = [tvmdml.TensorDesc("float32", scale.shape), *([zero_desc] if zeros else [])]
    dequantize = Dequantize.of(desc, tensors, quantization_type="scale_zero_point" if zeros else "scale")
    (floats,) = graph.add(dequantize, [graph.constant(one) for one in (array, scale, *([zero_array] if zeros else []))])
    less = np.repeat(zero.astype(int), 32, 0) if zeros else dequantize.middle()
    matrix = (values.astype(float) - less) * np.repeat(scale.astype(float), 32, 0)
    x = rng.standard_normal((2, 4, places)).astype(np.float32)
    net = graph.compile([tvmdml.gemm(graph.input((4, places), "float32", name=name), floats) for name in "xy"], target=target)
    for found, one in zip(net({"x": x[0], "y": x[1]}), x, strict=True):
        assert np.abs(found - one @ matrix).max() <= 1e-5 * (np.abs(one) @ np.abs(matrix)).max()
    assert str(net.explain()).count("of FUSED_BLOCKWISE_GEMM") == 2
    assert "of DEQUANTIZE" not in str(net.explain())


@pytest.mark.parametrize("name", ["one scale", "by rows", "by columns"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("columns", [K, 75])
def test_products_with_whole_bytes(name: str, turned: bool, columns: int, target: Target) -> None:
    """A scale for each column, or one, is one block of a row; one for each place of a sum is none."""
    floats, matrix, graph = tables(name, columns)
    x = seeded("bytes").standard_normal((3, columns if turned else N)).astype(np.float32)
    options: dict[str, Any] = {"trans_b": "transpose"} if turned else {}
    net = graph.compile([tvmdml.gemm(graph.input(x.shape, "float32", name="x"), floats, **options)], target=target)
    (y,), right = net({"x": x}), x.astype(float) @ (matrix.T if turned else matrix)
    assert np.abs(y - right).max() <= 1e-5 * (np.abs(x) @ np.abs(matrix.T if turned else matrix)).max()
    across = name == ("by rows" if turned else "by columns")
    assert ("of FUSED_BLOCKWISE_GEMM" in str(net.explain())) == (across or name == "one scale")


def tables(name: str, columns: int) -> tuple[Any, Array, Any]:
    """A graph's table of floats, these, and the graph: quantized in blocks, by rows, by columns, or with one scale."""
    graph, rng, zeros = tvmdml.Graph(), seeded("tables", name), columns % 2 == 0
    if name in LIMITS:
        made = Made(name, zeros)
        return made.floats[:, :columns], made.matrix[:, :columns], made.graph
    q = rng.integers(0, 256, (N, columns)).astype(np.uint8)
    shape = {"one scale": (1, 1), "by rows": (N, 1), "by columns": (1, columns)}[name]
    scale, zero = rng.standard_normal(shape).astype(np.float32), rng.integers(0, 256, shape).astype(np.uint8)
    floats = tvmdml.dequantize_linear(*map(graph.constant, (q, scale, zero)[: 2 + zeros]))
    return floats, (q.astype(float) - zero * zeros) * scale, graph


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", [*LIMITS, "one scale", "by rows", "by columns"])
def test_only_slices_that_are_gathered_become_floats(name: str, axis: int, target: Target) -> None:
    for columns in (K, 75):
        floats, matrix, graph = tables(name, columns)
        indices = graph.input(("n", 3), "int64", name="indices")
        net = graph.compile([tvmdml.gather(floats, indices, axis=axis)], target=target)
        for count in (1, 4):
            size = (N, columns)[axis]
            chosen = seeded("gathered", count).integers(-size, size, (count, 3))
            chosen[0, :2] = -size - 5, size + 5  # the first and the last one
            (found,) = net({"indices": chosen})
            right = np.take(matrix, np.clip(np.where(chosen < 0, chosen + size, chosen), 0, size - 1), axis)
            assert np.array_equal(found, right.astype(np.float32)), (columns, count)
            at = net.at(n=count)
            assert "of FUSED_BLOCKWISE_GATHER" in str(at.explain())
            assert at.temporary_size == 0


def test_a_table_of_halves_is_rounded_once(target: Target) -> None:
    made = Made("int4", True, dtype="float16")
    net = made.graph.compile([tvmdml.gather(made.floats, made.graph.input((2,), "int64", name="indices"), axis=0)], target=target)
    (found,) = net({"indices": np.array([3, -1])})
    assert np.array_equal(found, made.matrix.astype(np.float16)[[3, -1]])


def gather(**changed: Any) -> BlockwiseGather:
    table, scale = tvmdml.TensorDesc("uint4", (9, 40)), tvmdml.TensorDesc("float32", (9, 3))
    own = Gather.of(tvmdml.TensorDesc("float32", (9, 40)), tvmdml.TensorDesc("int32", (1, 4)), axis=0, index_dimensions=1)
    return dataclasses.replace(BlockwiseGather.of_table(own, table, [scale], (1, 16)), **changed)


def test_the_operator_by_itself(target: Target) -> None:
    rng, desc = seeded("itself"), gather()
    inputs = [desc.input_tensor.pack(rng.integers(0, 16, (9, 40))), np.array([[3, -2, 8, 9]], np.int32)]
    inputs.append(rng.standard_normal((9, 3)).astype(np.float32))
    assert np.array_equal(run(desc, target, *inputs)[0], desc.reference(*inputs)[0])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"block_sizes": (1,)}, "block_sizes: given (1,); allowed: 2 numbers"),
        ({"block_sizes": (1, 8)}, "quantization_tensors[0]"),
        ({"quantization_tensors": ()}, "quantization_tensors: given 0; allowed: 1 or 2"),
        ({"axis": 2}, "axis: given 2"),
    ],
)
def test_what_it_does_not_take(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(tvmdml.InvalidArgument) as caught:
        gather(**changed).validate(NEWEST_FEATURE_LEVEL, extensions=True)
    assert said in str(caught.value)
