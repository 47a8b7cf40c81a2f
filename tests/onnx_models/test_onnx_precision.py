"""``precision="bf16"``: which nodes round their factors, that their results are rounded no more, and who is asked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from commands import call
from onnx import helper
from support import seeded

import tvmdml
from tvmdml.errors import safe_repr
from tvmdml.graph.passes.precision import LEAST_PRODUCTS
from tvmdml.operators._matrix_bfloat16_fused import rounded

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
    made = network(LEAST_PRODUCTS[False] - 1).SerializeToString()
    x = seeded("x").standard_normal((48, LEAST_PRODUCTS[False] - 1)).astype(np.float32)
    loaded = tvmdml.onnx.load(made, precision="bf16")
    loaded.run(None, {"x": x})
    assert kernels(loaded).count("BFLOAT16") == 1, "only the second product has sums that are long enough"


def test_networks_with_depthwise_convolutions_round_long_sums_only() -> None:
    random, least = seeded("depthwise"), LEAST_PRODUCTS[True]
    shapes = {"d": (64, 1, 3, 3), "w": (least - 32, 64, 1, 1), "v": (64, least - 32, 1, 1), "u": (64, 64, 3, 3)}
    weights = {name: 0.1 * random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "d"], ["a"], group=64, pads=[1] * 4),
        helper.make_node("Conv", ["a", "w"], ["b"]),
        helper.make_node("Conv", ["b", "v"], ["c"]),
        helper.make_node("Conv", ["c", "u"], ["y"], pads=[1] * 4),
    ]
    x = random.standard_normal((1, 64, 24, 24)).astype(np.float32)
    infos = [helper.make_tensor_value_info(name, FLOAT, x.shape) for name in ("x", "y")]
    for first, count in ((0, 1), (1, 3)):
        some = nodes[first:]
        inits = [onnx.numpy_helper.from_array(weights[name], name) for node in some for name in node.input[1:]]
        infos[0].name = some[0].input[0]
        graph = helper.make_graph(some, "network", infos[:1], infos[1:], inits)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        results = {}
        for precision in ("exact", "bf16"):
            loaded = tvmdml.onnx.load(made, precision=precision)
            results[precision] = loaded.run(None, {infos[0].name: x})[0]
        assert kernels(loaded).count("BFLOAT16") == count
        off = np.abs(results["exact"] - results["bf16"]).max()
        assert 0 < off < 2e-2 * np.abs(results["exact"]).max()


@pytest.mark.parametrize("kernel", [(3,), (3, 3), (1, 1)], ids=str)
def test_images_are_copied_where_their_channels_are_not_last(kernel: tuple[int, ...]) -> None:
    random = seeded(str(kernel))
    x = random.standard_normal((1, 64, *(14 for _ in kernel))).astype(np.float32)
    w = 0.1 * random.standard_normal((48, 64, *kernel)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[2] * len(kernel), pads=[kernel[0] // 2] * 2 * len(kernel))
    infos = [helper.make_tensor_value_info(name, FLOAT, sizes) for name, sizes in (("x", x.shape), ("y", None))]
    graph = helper.make_graph([node], "one", infos[:1], infos[1:], [onnx.numpy_helper.from_array(w, "w")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    loaded = tvmdml.onnx.load(made, precision="bf16")
    (y,) = loaded.run(None, {"x": x})
    assert kernels(loaded).count("BFLOAT16") == 1
    near = tvmdml.convolution(rounded(x), rounded(w), strides=[2] * len(kernel), **_padding(kernel))
    assert np.abs(y - near).max() < 1e-5 * np.abs(near).max()


def _padding(kernel: tuple[int, ...]) -> dict[str, list[int]]:
    return {name: [kernel[0] // 2] * len(kernel) for name in ("start_padding", "end_padding")}


@pytest.mark.parametrize("is_read", [False, True], ids=["", "weights are a result"])
@pytest.mark.parametrize("scaled", ["Div", "Mul", ""])
def test_attention_rounds_its_factors(scaled: str, is_read: bool) -> None:
    random = seeded(scaled)
    x = {name: random.standard_normal((2, 50, 3, 40)).astype(np.float32) for name in "qkv"}
    x["m"] = np.where(random.standard_normal((2, 1, 1, 50)) > 1, -1e4, 0).astype(np.float32)
    orders = {"q": (1, 3), "k": (3, 1), "v": (1, 3)}
    nodes = [helper.make_node("Transpose", [name], [f"{name}t"], perm=[0, 2, *order]) for name, order in orders.items()]
    nodes.append(helper.make_node("MatMul", ["qt", "kt"], ["p"]))
    nodes.append(helper.make_node(scaled or "Identity", ["p", "s"] if scaled else ["p"], ["r"]))
    nodes += [helper.make_node("Add", ["r", "m"], ["a"]), helper.make_node("Softmax", ["a"], ["w"], axis=-1)]
    nodes += [helper.make_node("MatMul", ["w", "vt"], ["o"]), helper.make_node("Transpose", ["o"], ["y"], perm=[0, 2, 1, 3])]
    scale = np.array({"Div": 40**0.5, "Mul": 40**-0.5, "": 1.0}[scaled], np.float32)
    infos = [helper.make_tensor_value_info(name, FLOAT, one.shape) for name, one in x.items()]
    results = [helper.make_tensor_value_info(name, FLOAT, None) for name in ("y", "w")[: 1 + is_read]]
    graph = helper.make_graph(nodes, "attention", infos, results, [onnx.numpy_helper.from_array(scale, "s")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    exact = tvmdml.onnx.load(made).run(None, x)
    loaded = tvmdml.onnx.load(made, precision="bf16")
    found = loaded.run(None, x)
    assert ("FUSED_BFLOAT16_ATTENTION" in kernels(loaded)) != is_read
    assert np.abs(found[0] - exact[0]).max() < 2e-2 * np.abs(exact[0]).max()
    assert np.array_equal(found[0], exact[0]) == is_read


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
    graph = tvmdml.Graph(precision="bf16")
    own, other, narrow = (graph.input(sizes, name=name) for name, sizes in (("x", (20, 64)), ("y", (64, 32)), ("z", (20, 8))))
    said = str(graph.compile([tvmdml.gemm(own, other), tvmdml.gemm(narrow, graph.constant(w[:8]))]).explain())
    for why in ("no factor is a weight", f"a sum has fewer than {LEAST_PRODUCTS[False]} products"):
        assert f"tiles of GEMM; float32: {why}" in said


@pytest.mark.parametrize("given", ["half", 1, None, np.array(["bf16"]), np.array(["bf16", "exact"])], ids=repr)
def test_a_precision_that_there_is_not(given: Any, tmp_path: Path) -> None:
    graph = tvmdml.Graph()
    product = tvmdml.gemm(graph.input((3, 64), name="x"), graph.constant(np.ones((64, 32), np.float32)))
    tvmdml.save_graph(graph.compile(product), saved := tmp_path / "saved.graph")
    shown = re.escape(safe_repr(given))
    for model in (b"", saved):
        with pytest.raises(tvmdml.InvalidArgument, match=f"load precision: given {shown}; allowed: 'exact' or 'bf16'"):
            tvmdml.onnx.load(model, precision=given)
    with pytest.raises(tvmdml.InvalidArgument, match=f"Graph precision: given {shown}; allowed: 'exact' or 'bf16'"):
        tvmdml.Graph(precision=given)


def test_commands_have_the_option(tmp_path: Path) -> None:
    made = network(70)
    del made.graph.node[-1], made.graph.output[-1]  # which other rows would not fit
    made.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(made, path := tmp_path / "network.onnx")
    pack, option = tmp_path / "network.pack", ["--precision", "bf16", "--size", "n=48"]

    def said(*words: object, code: int = 0) -> str:
        done = call(*words)
        assert done.exit_code == code, done.output
        return done.output

    assert (
        said("explain", path, *option).count("FUSED_BFLOAT16")
        > 0
        == said("explain", path, "--size", "n=48").count("FUSED_BFLOAT16")
    )
    x = seeded("x").standard_normal((48, 70)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    said("run", path, *option, "--input", f"x={tmp_path / 'x.npy'}", "--output_path", tmp_path)
    (expected, *_) = tvmdml.onnx.load(path, {"n": 48}, precision="bf16").run(None, {"x": x})
    assert np.array_equal(np.load(tmp_path / "y.npy"), expected)
    for sizes in ("n=48", "n=47..49"):
        said("pack", "build", path, "-o", pack, "--target", "cpu", "--precision", "bf16", "--size", sizes)
        loaded = tvmdml.onnx.load(pack, {"n": 48})
        assert np.array_equal(loaded.run(None, {"x": x})[0], expected)
    assert "nothing wrong" in said("pack", "verify", path, *option)
    for command in ("run", "explain"):
        assert "a pack or a saved graph computes as it was made" in said(command, pack, "--precision", "bf16", code=1)
    assert "a pack has its own" in said("pack", "verify", pack, "--precision", "bf16", code=2)
    assert "--precision needs the files of ONNX models" in said("bench", "--precision", "bf16", code=2)
