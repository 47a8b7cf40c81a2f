"""Specs from files: what each kind of file contributes, that functions and models compile the same, and the notes on the rest."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import folders
import numpy as np
import pytest
from support import round_desc, top_k_desc
from test_authorities import OURS

import tvmdml
import tvmdml.dxdispatch
from tvmdml import TensorDesc, compiler, errors, functions, onnx_nodes
from tvmdml.conformance import onnx_cases
from tvmdml.packs import onnx_apart, onnx_models, sources, spec
from tvmdml.packs.spec import Wanted

MODELS = sorted(folders.MODELS.glob("*.json"))


# -- Files --------------------------------------------------------------------------------------------------------


def test_several_files_are_one_spec(tmp_path: Path) -> None:
    one = Wanted(round_desc(TensorDesc("float32", (8,))))
    other = Wanted(round_desc(TensorDesc("float32", (9,))))
    spec.write(tmp_path / "a.toml", [one], ["cpu"], {"top_k": {"algorithm": "sort"}})
    spec.write(tmp_path / "b.TOML", [other, one], ["vulkan", "cpu"], {"top_k": {"room_per_k": 8}})
    found = sources.read([tmp_path / "a.toml", str(tmp_path / "b.TOML")])
    assert found.spec == spec.Spec(("cpu", "vulkan"), (one, other), {"top_k": {"algorithm": "sort", "room_per_k": 8}})
    assert found.notes == ()
    assert sources.read([tmp_path / "a.toml"], ["vulkan"]).spec.targets == ("vulkan",)
    spec.write(tmp_path / "b.TOML", [], (), {"top_k": {"algorithm": "rank"}})
    with pytest.raises(errors.InvalidArgument, match=r"knobs.top_k.algorithm: given 'sort' and 'rank'"):
        sources.read([tmp_path / "a.toml", tmp_path / "b.TOML"])


def test_other_files_and_sizes_of_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"allowed: .toml, .json, .onnx"):
        sources.read([tmp_path / "a.yaml"])
    with pytest.raises(errors.InvalidArgument, match="size batch: given 0"):
        sources.read([], sizes={"batch": 0})
    with pytest.raises(errors.InvalidArgument, match="size: given 'batch'; allowed: none: no model leaves one open"):
        sources.read([], sizes={"batch": 1})
    os.mkfifo(tmp_path / "pipe.onnx")
    for name in ("missing.onnx", "missing.json", "missing.toml", "pipe.onnx"):
        with pytest.raises(errors.TvmdmlError, match=name):
            sources.read([tmp_path / name])


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_a_dxdispatch_model_gives_what_it_compiles(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    find = compiler.CompiledOperator._launch_sharing

    class Seen(compiler.CompiledOperator):
        def __init__(self, desc: Any, target: Any) -> None:
            compiled.append(Wanted(spec.plain(desc)).line)
            super().__init__(desc, target)

        def _launch_sharing(self, shared: Any) -> Any:
            compiled.append(Wanted(spec.plain(self.desc), shared).line)
            return find(self, shared)

    monkeypatch.setattr(compiler, "CompiledOperator", Seen)
    tvmdml.dxdispatch.read(path).run(output_path=tmp_path, write=lambda text: None)
    found = sources.read([path]).spec.wanted
    assert compiled
    assert set(compiled) <= {one.line for one in found}
    assert [one for one in found if not one.shared] == [*dict.fromkeys(one for one in found if not one.shared)]


def test_a_dxdispatch_model_with_other_operators_is_refused(tmp_path: Path) -> None:
    model = {"resources": {}, "dispatchables": {"a": {"type": "NO_SUCH_OPERATOR"}}, "commands": []}
    (tmp_path / "a.json").write_text(json.dumps(model))
    with pytest.raises(errors.ModelError, match=r"given NO_SUCH_OPERATOR"):
        sources.read([tmp_path / "a.json"])


# -- ONNX -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def onnx(near: None) -> Any:
    return pytest.importorskip("onnx", reason="ONNX is not installed")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Wanted]:
    """What functions ask to have compiled, from now on; nothing is."""
    asked = []

    def launch(desc: Any, target: Any, shared: Any = ()) -> Any:
        asked.append(Wanted(spec.plain(desc), shared))
        return lambda *arrays: None

    monkeypatch.setattr(functions, "_launch", launch)
    monkeypatch.setattr(functions, "_plans", {})
    monkeypatch.setattr(functions, "_quick_plans", None)
    return asked


@pytest.fixture
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are read in this process. (``test_pack_onnx_bounds`` reads them in another one, as ``sources`` does.)"""
    monkeypatch.setattr(onnx_apart, "read", onnx_models.read)


class Graph:
    """A graph in the making."""

    def __init__(self, onnx: Any, opset: int = 22) -> None:
        self.onnx, self.opset = onnx, opset
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.constants: list[Any] = []
        self.functions: list[Any] = []

    def input(self, name: str, shape: Any, kind: str = "FLOAT") -> str:
        self.inputs.append(self.onnx.helper.make_tensor_value_info(name, getattr(self.onnx.TensorProto, kind), shape))
        return name

    def constant(self, *values: int, scalar: bool = False) -> str:
        name = f"constant {len(self.constants)}"
        array = np.array(values[0] if scalar else values, np.int64)
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def node(self, kind: str, *inputs: str, outputs: int = 1, name: str = "", **attributes: Any) -> str:
        results = [f"{kind} {len(self.nodes)} {i}" for i in range(outputs)]
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, results, name=name, **attributes))
        return results[0]

    def save(self, folder: Path, name: str = "model.onnx") -> Path:
        helper = self.onnx.helper
        graph = helper.make_graph(self.nodes, "graph", self.inputs, [], self.constants)
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("own", 1)]
        model = helper.make_model(graph, opset_imports=imports, functions=self.functions)
        (folder / name).write_bytes(model.SerializeToString())
        return folder / name


@pytest.mark.filterwarnings("ignore")  # ONNX's computation of the expected outputs issues warnings
@pytest.mark.parametrize("operator", OURS)
def test_onnx_cases_give_what_functions_compile(operator: str, onnx: Any, compiled: list[Wanted], tmp_path: Path) -> None:
    function, least = OURS[operator]
    ran = 0
    for case in onnx_cases.collected()[operator]:
        model = onnx.ModelProto.FromString(case.model.SerializeToString())
        for value, array in [*zip(model.graph.input, case.inputs, strict=True)][1:]:  # k is one, and is a constant here
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
        (tmp_path / "case.onnx").write_bytes(model.SerializeToString())
        compiled.clear()
        functions._plans.clear()
        with contextlib.suppress(errors.TvmdmlError):
            function(*case.inputs, **case.attributes)
        if compiled:
            assert sources.read([tmp_path / "case.onnx"]).spec.wanted == tuple(compiled), case.name
            ran += 1
        else:  # an unsupported type, or no elements
            with pytest.raises(errors.InvalidArgument, match=operator) as caught:
                sources.read([tmp_path / "case.onnx"])
            ran += "has no elements" in str(caught.value)
    assert ran >= least


@pytest.mark.parametrize("opset", [1, 10, 11, 24])
def test_top_k_of_every_version(onnx: Any, opset: int, compiled: list[Wanted], tmp_path: Path) -> None:
    graph = Graph(onnx, opset)
    x = graph.input("x", [4, 9])
    if opset == 1:
        graph.node("TopK", x, outputs=2, k=3, axis=0)
    elif opset == 10:
        graph.node("TopK", x, graph.constant(3), outputs=2, axis=0)
    else:
        graph.node("TopK", x, graph.constant(3), outputs=2, axis=0, largest=0, sorted=0)
    array = np.zeros((4, 9), np.float32)
    tvmdml.top_k(array, 3, axis=0, axis_direction="decreasing" if opset < 11 else "increasing", index_dtype="int64")
    assert sources.read([graph.save(tmp_path)]).spec.wanted == tuple(compiled)


def test_arrays_without_dimensions_and_truths(onnx: Any, compiled: list[Wanted], tmp_path: Path) -> None:
    graph = Graph(onnx)
    graph.node("Round", graph.input("x", []))
    graph.node("NonZero", graph.input("b", [3, 4], "BOOL"))
    tvmdml.round(np.zeros((), np.float32))
    tvmdml.nonzero_coordinates(np.zeros((3, 4), bool), index_dtype="int64")
    assert sources.read([graph.save(tmp_path)]).spec.wanted == tuple(compiled)


def test_open_sizes_are_given_by_name(onnx: Any, tmp_path: Path) -> None:
    graph = Graph(onnx)
    graph.node("Round", graph.node("Bernoulli", graph.input("x", ["batch", "n", 3])), name="last")
    path = graph.save(tmp_path)
    found = sources.read([path], sizes={"batch": 8, "n": 5})
    assert found.spec.wanted == (Wanted(round_desc(TensorDesc("float32", (8, 5, 3)), "halves_to_nearest_even")),)
    assert found.notes == (f"{path}: 1 of 2 nodes are in the spec; the others are Bernoulli 1",)
    with pytest.raises(errors.InvalidArgument, match=r"Round 'last': its input is float32\[8, n, 3\]: sizes are symbolic"):
        sources.read([path], sizes={"batch": 8})
    with pytest.raises(errors.InvalidArgument, match=r"size: given 'bach'; allowed: batch, n. Did you mean batch\?"):
        sources.read([path], sizes={"batch": 8, "n": 5, "bach": 3})


def _min_with_the_length(graph: Graph, x: str) -> str:
    """What exporters write for ``min(k, x.shape[1])``."""
    length = graph.node("Gather", graph.node("Shape", x), graph.constant(1, scalar=True))
    k = graph.node("Unsqueeze", graph.node("Min", length, graph.constant(50, scalar=True)), graph.constant(0))
    return graph.node("Reshape", graph.node("Cast", k, to=7), graph.constant(-1))


def _cut_from_the_shape(graph: Graph, x: str) -> str:
    cut = graph.node("Slice", graph.node("Shape", x), graph.constant(1), graph.constant(2), graph.constant(0))
    return graph.node("ReduceMin", graph.node("Concat", cut, graph.constant(50), axis=0), keepdims=1)


def _half_of_the_shape(graph: Graph, x: str) -> str:
    whole = graph.node("Shape", x, start=1)
    return graph.node("Sub", graph.node("Add", whole, whole), graph.node("Mul", whole, graph.constant(1)))


@pytest.mark.parametrize("make", [_min_with_the_length, _cut_from_the_shape, _half_of_the_shape])
def test_a_k_that_comes_from_the_shape_is_constant(onnx: Any, make: Callable[[Graph, str], str], tmp_path: Path) -> None:
    graph = Graph(onnx)
    x = graph.input("x", [2, "n"])
    k = make(graph, x)
    values = graph.node("TopK", x, k, outputs=2)
    graph.node("TopK", graph.node("Bernoulli", values), make(graph, graph.nodes[-1].output[0]), outputs=2, largest=0)
    found = sources.read([graph.save(tmp_path)], sizes={"n": 7})
    x_desc = TensorDesc("float32", (2, 7))
    expected = [Wanted(top_k_desc(x_desc, 1, 7, direction, "uint64")) for direction in ("decreasing", "increasing")]
    assert list(found.spec.wanted) == expected
    (note,) = found.notes
    assert "2 of" in note
    assert "Bernoulli 1" in note
    for node in graph.nodes:  # what computes k is no operation of its own
        if node.op_type in onnx_nodes.OPERATORS and node.op_type != "TopK":
            assert f"constant {node.op_type} " in note


def test_only_what_is_constant_needs_no_kernel(onnx: Any, tmp_path: Path) -> None:
    graph = Graph(onnx)
    x, two = graph.input("x", [3], "INT64"), graph.constant(2)
    graph.node("Add", x, graph.node("Add", two, two))
    graph.node("Cast", graph.constant(300), to=onnx.TensorProto.UINT8)  # another value in that type: not folded
    found = sources.read([graph.save(tmp_path)])
    assert [one.desc.NAME for one in found.spec.wanted] == ["ELEMENT_WISE_ADD", "CAST"]
    assert "2 of 3 nodes are in the spec; the others are constant Add 1" in found.notes[0]


def test_constants_may_be_nodes(onnx: Any, tmp_path: Path) -> None:
    graph = Graph(onnx)
    x = graph.input("x", [4, 5])
    ks = [graph.node("Constant", value_ints=[2]), graph.node("Constant", value_int=3)]
    ks.append(graph.node("Constant", value=onnx.numpy_helper.from_array(np.array([4], np.int64))))
    for k in ks:
        graph.node("TopK", x, graph.node("Identity", k), outputs=2)
    found = sources.read([graph.save(tmp_path)]).spec.wanted
    assert [one.desc.k for one in found if isinstance(one.desc, tvmdml.TopK1)] == [2, 3, 4]


def test_what_lies_in_subgraphs_and_functions_is_found(onnx: Any, tmp_path: Path) -> None:
    helper, graph = onnx.helper, Graph(onnx)
    x, k = graph.input("x", [4, 5]), graph.constant(2)
    inner = Graph(onnx)
    inner.node("TopK", x, k, outputs=2)
    out = [helper.make_tensor_value_info(inner.nodes[0].output[0], onnx.TensorProto.FLOAT, None)]
    branch = helper.make_graph(inner.nodes, "branch", [], out)
    graph.node("If", graph.input("c", [], "BOOL"), then_branch=branch, else_branch=branch)
    body = [helper.make_node("Round", ["a"], ["b"]), helper.make_node("NonZero", ["b"], ["c"])]
    graph.functions.append(helper.make_function("own", "F", ["a"], ["c"], body, [helper.make_opsetid("", 22)]))
    graph.node("F", x, domain="own")
    found = sources.read([graph.save(tmp_path)])
    assert {one.desc.NAME for one in found.spec.wanted} == {"TOP_K1", "ELEMENT_WISE_ROUND", "NONZERO_COORDINATES"}
    assert "4 of 5 nodes are in the spec; the others are If 1" in found.notes[0]


def test_what_is_not_taken_is_said(onnx: Any, tmp_path: Path) -> None:
    graph = Graph(onnx)
    x, k = graph.input("x", [4, 5]), graph.input("k", [1], "INT64")
    graph.node("Round", x)
    graph.node("TopK", x, k, outputs=2, name="a")
    graph.node("TopK", x, graph.constant(9), outputs=2, name="b")
    graph.node("TopK", graph.node("Foo", x, domain="own"), graph.constant(1), outputs=2, name="c")
    graph.node("TopK", x, graph.constant(0), outputs=2, name="d")
    graph.node("Round", graph.input("e", [2, 0]), name="e")
    graph.node("EyeLike", x, dtype=8, name="f")
    graph.node("Round", graph.input("h", [2], "BFLOAT16"), name="g")
    path = graph.save(tmp_path)
    notes = sources.read([path]).notes
    assert notes[0] == f"{path}: 1 of 9 nodes are in the spec; the others are own.Foo 1"
    said = {note.removeprefix(f"{path}: ").partition(": ")[0]: note for note in notes[1:]}
    expected = {
        "TopK 'a'": "its k is not a constant",
        "TopK 'b'": "TOP_K1 k: given 9; allowed: 0 to 5",
        "TopK 'c'": "the type of its input is unknown",
        "TopK 'd'": "it has no elements, and so needs no kernel",
        "Round 'e'": "it has no elements, and so needs no kernel",
        "EyeLike 'f'": "EyeLike",
        "Round 'g'": "bfloat16",
    }
    assert set(said) == set(expected)
    for node, reason in expected.items():
        assert reason in said[node], said[node]


INT64 = np.iinfo(np.int64)


@pytest.mark.parametrize("kind", ["FLOAT", "BOOL"])
def test_any_k_and_type_of_trilu_can_be_said(onnx: Any, kind: str, tmp_path: Path) -> None:
    x = np.ones((3, 4), np.float32 if kind == "FLOAT" else np.uint8)
    for k, upper in itertools.product((INT64.min, INT64.min + 1, -(2**31) - 1, -1, 2**31, INT64.max), (0, 1)):
        graph = Graph(onnx)
        graph.node("Trilu", graph.input("t", [3, 4], kind), graph.constant(k), upper=upper)
        (one,) = sources.read([graph.save(tmp_path)]).spec.wanted
        keep = np.triu if upper else np.tril
        assert np.array_equal(one.desc.reference(x)[0], keep(x, max(min(k, 10), -10)))
    for k in (INT64.min + 1, INT64.max):
        graph = Graph(onnx)
        graph.node("EyeLike", graph.input("t", [3, 4]), k=k)
        (one,) = sources.read([graph.save(tmp_path)]).spec.wanted
        assert not one.desc.reference(None)[0].any()


def test_a_model_with_nothing_of_ours_is_refused(onnx: Any, tmp_path: Path) -> None:
    graph = Graph(onnx)
    graph.node("Bernoulli", graph.node("Bernoulli", graph.node("RandomNormalLike", graph.input("x", [2]))))
    others, allowed = "Bernoulli 2, RandomNormalLike 1", ", ".join(onnx_nodes.OPERATORS)
    with pytest.raises(errors.InvalidArgument, match=f"given a model of {others}; allowed: one with {allowed}"):
        sources.read([graph.save(tmp_path)])
    with pytest.raises(errors.InvalidArgument, match="given a model of no nodes"):
        sources.read([Graph(onnx).save(tmp_path)])


def test_weights_are_left_aside(onnx: Any, tmp_path: Path) -> None:
    graph = Graph(onnx)
    graph.constants.append(onnx.numpy_helper.from_array(np.zeros((5, 4000), np.float32), "weights"))
    product = graph.node("MatMul", graph.input("x", [3, 5]), "weights")
    graph.node("TopK", product, graph.constant(2), outputs=2)
    found = sources.read([graph.save(tmp_path)])
    product, largest = found.spec.wanted
    assert [tensor.sizes for _, tensor in product.desc.tensors() if tensor is not None] == [(3, 5), (5, 4000), (3, 4000)]
    assert largest == Wanted(top_k_desc(TensorDesc("float32", (3, 4000)), 1, 2, "decreasing", "uint64"))


def test_without_onnx_the_message_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(errors.Unsupported, match="pip install onnx"):
        sources.read([tmp_path / "a.onnx"])
