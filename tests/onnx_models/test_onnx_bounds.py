"""ONNX models made to exhaust their reader, and models with data in other files: each ends in an error that says why."""

from __future__ import annotations

import itertools
import os
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmdml
from tvmdml import errors

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

import tvmdml.onnx  # noqa: E402 - it needs ONNX

REFUSED = (errors.ModelError, errors.InvalidArgument, errors.Unsupported)


class Graph:
    """A graph in the making."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.constants: list[Any] = []
        self.functions: list[Any] = []

    def input(self, name: str, shape: Any, kind: str = "FLOAT") -> str:
        self.inputs.append(onnx.helper.make_tensor_value_info(name, getattr(onnx.TensorProto, kind), shape))
        return name

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        results = [f"{kind} {len(self.nodes)} {i}" for i in range(outputs)]
        self.nodes.append(onnx.helper.make_node(kind, inputs, results, **attributes))
        return results[0]

    def save(self, folder: Path, name: str = "model.onnx") -> Path:
        helper = onnx.helper
        out = [helper.make_tensor_value_info(self.nodes[-1].output[0], onnx.TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "graph", self.inputs, out, self.constants)
        imports = [helper.make_opsetid(domain, 21 if not domain else 1) for domain in ("", "own", "other", "com.microsoft")]
        model = helper.make_model(graph, opset_imports=imports, functions=self.functions)
        (folder / name).write_bytes(model.SerializeToString())
        return folder / name


def call(name: str, before: str, after: str, overload: str = "") -> Any:
    return onnx.helper.make_node(name, [before], [after], domain="own", overload=overload)


def function(name: str, *nodes: Any, overload: str = "", domain: str = "own") -> Any:
    """A function from a to b."""
    imports = [onnx.helper.make_opsetid("", 22), onnx.helper.make_opsetid("own", 1)]
    return onnx.helper.make_function(domain, name, ["a"], ["b"], nodes, imports, overload=overload)


def simple(kind: str) -> Any:
    """A node from a to b."""
    return onnx.helper.make_node(kind, ["a"], ["b"])


def twice(name: str) -> list[Any]:
    return [call(name, "a", "t"), call(name, "t", "b")]


def calling(*functions: Any, last: str) -> Graph:
    """A graph that calls one of these."""
    graph = Graph()
    graph.functions = [*functions]
    graph.node("Round", graph.node(last, graph.input("x", [4]), domain="own"))
    return graph


def doubling(depth: int) -> Graph:
    first = function("F0", onnx.helper.make_node("Round", ["a"], ["b"]))
    return calling(first, *(function(f"F{i}", *twice(f"F{i - 1}")) for i in range(1, depth)), last=f"F{depth - 1}")


def branch(nodes: list[Any], result: str) -> Any:
    out = onnx.helper.make_tensor_value_info(result, onnx.TensorProto.FLOAT, None)
    return onnx.helper.make_graph(nodes, "branch", [], [out])


def doubling_in_branches(depth: int) -> Graph:
    """Functions whose calls stand in the graphs of an If."""
    functions = [function("F0", onnx.helper.make_node("Round", ["a"], ["b"]))]
    for i in range(1, depth):
        branches = {f"{kind}_branch": branch([call(f"F{i - 1}", "a", kind)], kind) for kind in ("then", "else")}
        functions.append(
            function(
                f"F{i}",
                onnx.helper.make_node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(np.array(True))),
                onnx.helper.make_node("If", ["c"], ["b"], **branches),
            )
        )
    return calling(*functions, last=f"F{depth - 1}")


def chain(depth: int) -> Graph:
    first = function("F0", onnx.helper.make_node("Round", ["a"], ["b"]))
    return calling(first, *(function(f"F{i}", call(f"F{i - 1}", "a", "b")) for i in range(1, depth)), last=f"F{depth - 1}")


def in_branches_of_functions(depth: int) -> Graph:
    """Functions whose only call stands in a graph of an If with a known condition."""
    functions = [function("F0", simple("Round"))]
    yes = onnx.helper.make_node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(np.array(True)))
    for i in range(1, depth):
        branches = {"then_branch": branch([call(f"F{i - 1}", "a", "t")], "t"), "else_branch": branch([], "a")}
        functions.append(function(f"F{i}", yes, onnx.helper.make_node("If", ["c"], ["b"], **branches)))
    return calling(*functions, last=f"F{depth - 1}")


def many_nodes(count: int) -> Graph:
    graph = Graph()
    x = graph.input("x", [4])
    graph.nodes = [onnx.helper.make_node("Round", [x], ["y"])] * count
    return graph


def fat_function() -> Graph:
    """Not many nodes, and a name in each that is long."""
    text = onnx.helper.make_node("Round", ["a"], ["b"], doc_string="x" * 40_000)
    return calling(
        function("F0", text),
        function("F1", *twice("F0")),
        *(function(f"F{i}", *twice(f"F{i - 1}")) for i in range(2, 14)),
        last="F13",
    )


def lying_tensor(*sizes: int) -> Graph:
    graph = Graph()
    graph.node("Round", graph.input("x", [4]))
    graph.constants.append(onnx.TensorProto(name="w", dims=sizes, data_type=1, raw_data=b"1234"))
    return graph


@pytest.mark.full(first=1)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: doubling(40), f"more than {1 << 18} nodes when its functions are inlined; allowed: at most {1 << 18}"),
        (lambda: doubling_in_branches(60), f"more than {1 << 18} nodes"),
        (lambda: many_nodes(263_000), f"more than {1 << 18} nodes"),
        (fat_function, "more than 256 MiB of nodes when its functions are inlined; allowed: at most 256 MiB"),
        (lambda: chain(150), "functions with endless recursion, or more than 100 nested calls ('F149' -> 'F148' -> 'F147'"),
        (
            lambda: calling(function("F", call("G", "a", "b")), function("G", call("F", "a", "b")), last="F"),
            "or more than 100 nested calls ('F' -> 'G' -> …); allowed: at most 100 nested calls, without recursion",
        ),
        (lambda: in_branches_of_functions(60), "more than 100 functions and graphs in each other; allowed: at most 100"),
        (lambda: calling(function("F", call("F", "a", "b", "other")), last="F"), "own.F of 'b': no operator of this name is known"),
        (
            lambda: calling(function("F", simple("Neg")), function("F", simple("Abs")), last="F"),
            "functions of the same domain, name",
        ),
        (lambda: lying_tensor(1 << 40), f"a tensor 'w' of sizes [{1 << 40}]; allowed: "),
        (lambda: lying_tensor(-5, 4), "a tensor 'w' of sizes [-5, 4]"),
    ],
)
def test_what_is_too_large_is_counted_and_refused(make: Callable[[], Graph], message: str, tmp_path: Path) -> None:
    with pytest.raises(REFUSED, match=re.escape(message)):
        tvmdml.onnx.load(make().save(tmp_path))


def test_functions_within_the_bounds_are_read(tmp_path: Path) -> None:
    (y,) = tvmdml.onnx.load(doubling(8).save(tmp_path))(x=np.full(4, 0.6, np.float32))
    assert y.tolist() == [1, 1, 1, 1]


def test_functions_are_told_apart_by_domain_name_and_overload(tmp_path: Path) -> None:
    """A call without an overload is not one with an overload, also in functions and in the graphs of nodes."""
    plus = onnx.helper.make_node("Add", ["a", "a"], ["b"])
    inner = [call("F", "a", "t", "second"), call("F", "t", "b")]
    yes = onnx.helper.make_node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(np.array(True)))
    chosen = onnx.helper.make_node(
        "If", ["c"], ["b"], then_branch=branch([call("F", "a", "t", "second")], "t"), else_branch=branch([call("F", "a", "e")], "e")
    )
    graph = Graph()
    graph.functions = [
        function("F", simple("Neg")),
        function("F", plus, overload="second"),
        function("F", *inner, overload="both"),
        function("F", yes, chosen, overload="chosen"),
        function("F", simple("Abs"), domain="other"),
    ]
    x = graph.input("x", [2])
    made = [graph.node("F", x, domain="own", overload=one) for one in ("", "second", "both", "chosen")]
    graph.node("Concat", *made, graph.node("F", x, domain="other"), axis=0)
    (y,) = tvmdml.onnx.load(graph.save(tmp_path))(x=np.array([1, -3], np.float32))
    assert y.tolist() == [-1, 3, 2, -6, -2, 6, 2, -6, 1, 3]


def test_a_models_function_does_not_replace_an_operator(tmp_path: Path) -> None:
    """As in ONNX Runtime. ``own`` has operators of no standard, ``com.microsoft`` some that are known here, and more."""
    graph = Graph()
    graph.functions = [
        function(name, simple("Neg"), domain=domain) for name, domain in (("Relu", ""), ("QuickGelu", "com.microsoft"))
    ]
    graph.functions.append(function("Nameless", simple("Neg"), domain="com.microsoft"))
    x = graph.input("x", [2])
    made = [graph.node("Relu", x), graph.node("QuickGelu", x, domain="com.microsoft", alpha=0.0)]
    graph.node("Concat", *made, graph.node("Nameless", x, domain="com.microsoft"), axis=0)
    (y,) = tvmdml.onnx.load(graph.save(tmp_path))(x=np.array([1, -3], np.float32))
    assert y.tolist() == [1, 0, 0.5, -1.5, -1, 3]


def test_an_input_that_a_function_call_leaves_out_is_left_out_everywhere(tmp_path: Path) -> None:
    """Also where a graph in a node of the function reads it, and in functions that it calls."""
    imports = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("own", 1)]
    clip = onnx.helper.make_node("Clip", ["a", "low", "high"], ["b"])
    yes = onnx.helper.make_node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(np.array(True)))
    inner = branch([onnx.helper.make_node("Clip", ["a", "low", "high"], ["t"])], "t")
    chosen = onnx.helper.make_node("If", ["c"], ["b"], then_branch=inner, else_branch=inner)
    again = onnx.helper.make_node("Plain", ["a", "low", "high"], ["b"], domain="own")
    graph = Graph()
    graph.functions = [
        onnx.helper.make_function("own", name, ["a", "low", "high"], ["b"], nodes, imports)
        for name, nodes in (("Plain", [clip]), ("Chosen", [yes, chosen]), ("Again", [again]))
    ]
    x, high = graph.input("x", [3]), graph.input("high", [])
    graph.node("Concat", *(graph.node(name, x, "", high, domain="own") for name in ("Plain", "Chosen", "Again")), axis=0)
    (y,) = tvmdml.onnx.load(graph.save(tmp_path))(x=np.array([1, -3, 9], np.float32), high=np.array(2, np.float32))
    assert y.tolist() == [1, -3, 2] * 3


@pytest.mark.full
def test_names_of_functions_are_not_copied_for_each_node(tmp_path: Path) -> None:
    """Twenty functions with names of 100 KB, and 300 nodes in the innermost one: 600 MB, if each node had all these names."""
    names = [f"F{i}" + "x" * 100_000 for i in range(20)]
    steps = ["a", *(f"t{i}" for i in range(299)), "b"]
    nodes = [onnx.helper.make_node("Neg", [before], [after]) for before, after in itertools.pairwise(steps)]
    functions = [function(names[0], *nodes), *(function(name, call(below, "a", "b")) for below, name in itertools.pairwise(names))]
    path = calling(*functions, last=names[-1]).save(tmp_path)
    tracemalloc.start()
    try:
        tvmdml.onnx.load(path)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def concatenated() -> Graph:
    """A shape put behind itself again and again: each node doubles what is known of it."""
    graph = Graph()
    x = graph.input("x", [4])
    shape = graph.node("Shape", x)
    for _ in range(40):
        shape = graph.node("Concat", shape, shape, axis=0)
    graph.node("Round", graph.node("Expand", x, shape))
    return graph


def nested(depth: int, kind: str) -> Graph:
    """Graphs in graphs."""
    graph = Graph()
    x, condition = graph.input("x", [4]), graph.input("c", [], "BOOL")
    node = onnx.helper.make_node("Round", [x], ["r"])
    for level in range(depth):
        inner = branch([node], node.output[0])
        if kind == "If":
            node = onnx.helper.make_node(
                "If", [condition], [f"y{level}"], then_branch=inner, else_branch=inner if level < 4 else branch([], x)
            )
        else:
            bool_info = onnx.helper.make_tensor_value_info(condition, onnx.TensorProto.BOOL, [])
            inner = onnx.helper.make_graph([node], "body", [], [bool_info, inner.output[0]])
            node = onnx.helper.make_node("Loop", ["", condition], [f"y{level}"], body=inner)
    graph.nodes = [node]
    return graph


def test_what_would_exhaust_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(REFUSED, match="4294967296"):
        tvmdml.onnx.load(concatenated().save(tmp_path))


def test_an_error_does_not_grow_with_what_a_model_says(tmp_path: Path) -> None:
    integers(tmp_path / "k.bin", 2)
    for path in (top_k_of(tmp_path, "k.bin", offset=10**4000), top_k_of(tmp_path, "k" * 100_000)):
        with pytest.raises(REFUSED, match="data of 'k'") as caught:
            tvmdml.onnx.load(path)
        assert len(str(caught.value)) < 1500


def test_conditions_in_conditions_are_read(tmp_path: Path) -> None:
    model = tvmdml.onnx.load(nested(12, "If").save(tmp_path))
    assert model(x=np.full(4, 0.6, np.float32), c=np.array(True))[0].tolist() == [1, 1, 1, 1]


def field(number: int, content: bytes) -> bytes:
    """A field of Protocol Buffers."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


@pytest.mark.parametrize("kind", [b"If", b"Loop"])
def test_graphs_too_deep_in_graphs_are_refused(kind: bytes, tmp_path: Path) -> None:
    graph = b""
    for _ in range(3000):  # onnx itself would not write this
        attribute = field(1, b"body") + field(6, graph) + _varint(20 << 3) + _varint(5)
        graph = field(1, field(4, kind) + field(5, attribute))
    (tmp_path / "model.onnx").write_bytes(field(7, graph))
    with pytest.raises(REFUSED, match="ONNX model"):
        tvmdml.onnx.load(tmp_path / "model.onnx")


# -- Data in other files --------------------------------------------------------------------------------------------


def elsewhere(graph: Graph, location: str, **where: int) -> str:
    """A constant whose data lie in another file."""
    tensor = onnx.TensorProto(name="k", dims=[1], data_type=onnx.TensorProto.INT64, data_location=onnx.TensorProto.EXTERNAL)
    for key, value in {"location": location, **where}.items():
        tensor.external_data.add(key=key, value=str(value))
    graph.constants.append(tensor)
    return "k"


def top_k_of(folder: Path, location: str, **where: int) -> Path:
    graph = Graph()
    graph.node("TopK", graph.input("x", [4, 9]), elsewhere(graph, location, **where), outputs=2)
    return graph.save(folder)


def integers(path: Path, *values: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(np.array(values, "<i8").tobytes())


def test_data_are_read_from_the_models_folder_and_not_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    integers(Path("k.bin"), 7, 7)
    integers(tmp_path / "model" / "data" / "k.bin", 2)
    integers(tmp_path / "model" / "k.bin", 4, 5)
    for location, where, k in (("k.bin", {"offset": 8, "length": 8}, 5), ("data/k.bin", {}, 2)):
        model = tvmdml.onnx.load(top_k_of(tmp_path / "model", location, **where))
        assert model(x=np.zeros((4, 9), np.float32))[0].shape == (4, k)


@pytest.mark.parametrize(
    ("location", "where", "reason"),
    [
        ("../k.bin", {}, "which is outside the folder"),
        ("{outside}/k.bin", {}, "which is an absolute path"),
        ("link.bin", {}, "which is a symbolic link to a file outside the folder"),
        ("folder/k.bin", {}, "which is a symbolic link to a file outside the folder"),
        ("pipe", {}, "which is not a regular file"),
        ("", {}, "which does not name a file"),
        ("own.bin", {"offset": -4}, "of 8 bytes: from -4 on 8 bytes for 8"),
    ],
)
def test_no_data_are_read_outside_the_models_folder(tmp_path: Path, location: str, where: dict[str, int], reason: str) -> None:
    folder, outside = tmp_path / "model", tmp_path / "outside"
    integers(outside / "k.bin", 2)
    integers(tmp_path / "k.bin", 2)
    integers(folder / "own.bin", 2)
    (folder / "link.bin").symlink_to("../k.bin")
    (folder / "folder").symlink_to(outside)
    os.mkfifo(folder / "pipe")
    path = top_k_of(folder, location.format(outside=outside), **where)
    with pytest.raises(REFUSED, match=re.escape(reason)) as caught:
        tvmdml.onnx.load(path)
    assert "data of 'k' in " in str(caught.value)
    assert f"allowed: files in '{folder}'" in str(caught.value)


def test_a_model_and_its_data_may_be_links_to_one_other_folder(tmp_path: Path) -> None:
    """As in Hugging Face's cache. A link to any other place is refused, and so is one of a model that is no link."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "5f3a" / "onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    integers(blobs / "d4", 2)
    os.rename(top_k_of(tmp_path, "model.onnx_data"), blobs / "e7")
    (snapshot / "model.onnx").symlink_to("../../../blobs/e7")
    (snapshot / "model.onnx_data").symlink_to("../../../blobs/d4")
    for _ in range(2):  # the second one from the cache
        assert tvmdml.onnx.load(snapshot / "model.onnx")(x=np.zeros((4, 9), np.float32))[0].shape == (4, 2)
    integers(tmp_path / "secret", 2)
    (snapshot / "model.onnx_data").unlink()
    (snapshot / "model.onnx_data").symlink_to(tmp_path / "secret")
    with pytest.raises(REFUSED, match="link to a file outside the folder"):
        tvmdml.onnx.load(snapshot / "model.onnx")
    (snapshot / "model.onnx").unlink()
    os.rename(blobs / "e7", snapshot / "model.onnx")
    (snapshot / "model.onnx_data").unlink()
    (snapshot / "model.onnx_data").symlink_to("../../../blobs/d4")
    with pytest.raises(REFUSED, match="link to a file outside the folder"):
        tvmdml.onnx.load(snapshot / "model.onnx")


def test_data_that_are_cut_off_are_not_read(tmp_path: Path) -> None:
    integers(tmp_path / "own.bin", 2)
    with pytest.raises(REFUSED, match=r"data of 'k' in 'own.bin', which has 8 bytes; allowed: 12 or more\. The file is truncated"):
        tvmdml.onnx.load(top_k_of(tmp_path, "own.bin", offset=4))


def test_names_control_no_terminal_and_fill_no_screen() -> None:
    """Of inputs, sizes, nodes, operators, functions and weights; in errors, and in the ``repr`` of what is made of a model."""
    bad = "\x1b[2J\u202e\n" + "é" * 3000
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT

    def model(nodes: list[Any], weights: Any = (), shape: Any = (2,), name: str = bad) -> Any:
        info = helper.make_tensor_value_info
        graph = helper.make_graph(nodes, bad, [info(name, kind, list(shape))], [info(nodes[-1].output[0], kind, None)], weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    whole = model([helper.make_node("Neg", [bad], [bad + "y"], name=bad)], shape=(bad, bad + "2"))
    made = tvmdml.onnx.load(whole)
    broken = onnx.TensorProto(name=bad, dims=[2], data_type=kind, raw_data=b"1")
    tries: list[Callable[[], Any]] = [
        lambda: tvmdml.onnx.load(model([helper.make_node(bad, [bad], ["y"], domain=bad)])),
        lambda: tvmdml.onnx.load(model([helper.make_node("Relu", [bad], [bad + "y"], name=bad, axis=bad)])),
        lambda: tvmdml.onnx.load(model([helper.make_node("Relu", [bad + "2"], ["y"], name=bad)])),
        lambda: tvmdml.onnx.load(model([helper.make_node("Add", ["x", bad], ["y"])], [broken], name="x")),
        lambda: tvmdml.onnx.load(whole, {bad + "3": 1}),
        lambda: made({bad: np.zeros(2, np.float32)}),
        lambda: made({bad: np.zeros((2, 2))}),
        lambda: made({}),
        lambda: made([1, 2]),
        lambda: made.run([bad], {bad: np.zeros((2, 2), np.float32)}),
        lambda: made.compiled({bad: (2, 2)})({"x": 1}),
    ]
    said = [repr(made), repr(made.compiled({bad: (2, 2)})), repr(tvmdml.Graph(bad))]
    said.append(repr(tvmdml.Graph().input((2,), name=bad)))
    for one in tries:
        with pytest.raises(REFUSED) as caught:
            one()
        said.append(str(caught.value))
    wrong = [text for text in said if len(text.encode()) > 2000 or not text.replace("\n  ", "").isprintable()]
    assert not wrong
