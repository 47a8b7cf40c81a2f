"""``precision="bf16"``: which nodes round their factors, that their results are rounded no more, and who is asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from support import seeded

import tvmdml
from tvmdml.graph.passes.precision import LEAST_PRODUCTS
from tvmdml.operators._matrix_bfloat16 import rounded

FLOAT = onnx.TensorProto.FLOAT


def network(depth: int) -> onnx.ModelProto:
    """Two products by weights with an addition and Relu behind one, and a product of two results."""
    random = seeded(depth)
    weights = {"w": random.standard_normal((depth, 48)), "v": random.standard_normal((48, depth)), "b": random.standard_normal(48)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["s"]),
        helper.make_node("Relu", ["s"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
        helper.make_node("MatMul", ["r", "y"], ["z"]),
    ]
    inits = [onnx.numpy_helper.from_array(one.astype(np.float32), name) for name, one in weights.items()]
    shapes = {"x": [48, depth], "y": [48, depth], "z": [48, depth]}
    infos = {name: helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in shapes.items()}
    graph = helper.make_graph(nodes, "network", [infos["x"]], [infos["y"], infos["z"]], inits)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def kernels(model: tvmdml.onnx.Runnable) -> str:
    return str(model.explain())


def test_products_by_weights_round_their_factors_only(tmp_path: Path) -> None:
    depth = 70
    made = network(depth)
    onnx.save(made, path := tmp_path / "network.onnx")
    w, v, b = (onnx.numpy_helper.to_array(one).astype(np.float64) for one in made.graph.initializer)
    x = seeded("x").standard_normal((48, depth)).astype(np.float32)
    near = [one.astype(np.float64) for one in (rounded(x), rounded(w.astype(np.float32)), rounded(v.astype(np.float32)))]
    hidden = np.maximum(near[0] @ near[1] + b, 0)
    for _ in range(2):  # the second one comes from the cache
        loaded = tvmdml.onnx.load(path, precision="bf16")
        y, z = loaded.run(None, {"x": x})
        assert kernels(loaded).count("BFLOAT16") == 2
        assert np.abs(y - rounded(hidden.astype(np.float32)).astype(np.float64) @ near[2]).max() < 2**-8 * np.abs(y).max()
        exact = tvmdml.onnx.load(path)
        assert "BFLOAT16" not in kernels(exact)
        own = exact.run(None, {"x": x})[0]
        assert 0 < np.abs(own - y).max() < 2e-2 * np.abs(own).max()
        session = tvmdml.onnx.InferenceSession(path, precision="bf16", providers=["CPUExecutionProvider"])
        assert np.array_equal(session.run(None, {"x": x})[1], z)


def test_short_sums_are_exact() -> None:
    made = network(LEAST_PRODUCTS - 1).SerializeToString()
    x = seeded("x").standard_normal((48, LEAST_PRODUCTS - 1)).astype(np.float32)
    loaded = tvmdml.onnx.load(made, precision="bf16")
    loaded.run(None, {"x": x})
    assert kernels(loaded).count("BFLOAT16") == 1, "only the second product has sums that are long enough"


def test_graphs_have_a_precision() -> None:
    x, w = (seeded(name).standard_normal(sizes).astype(np.float32) for name, sizes in (("x", (20, 64)), ("w", (64, 32))))
    for precision in ("exact", "bf16"):
        graph = tvmdml.Graph(precision=precision)
        given = graph.input(("n", 64), name="x")
        compiled = graph.compile(tvmdml.gemm(given, graph.constant(w)))
        (found,) = compiled({"x": x})
        factors = (x, w) if precision == "exact" else (rounded(x), rounded(w))
        exact = factors[0].astype(np.float64) @ factors[1].astype(np.float64)
        assert np.abs(found - exact).max() < 1e-5 * np.abs(exact).max()
    with pytest.raises(tvmdml.InvalidArgument, match="Graph precision: given 'half'; allowed: 'exact' or 'bf16'"):
        tvmdml.Graph(precision="half")


def test_a_precision_that_there_is_not() -> None:
    with pytest.raises(tvmdml.InvalidArgument, match="load precision: given 'half'; allowed: 'exact' or 'bf16'"):
        tvmdml.onnx.load(b"", precision="half")
