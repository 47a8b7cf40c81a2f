"""ONNX models made to exhaust their reader, and models with data in other files: each ends in an error that says why."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import top_k_desc
from test_pack_sources import Graph

from tvmdml import TensorDesc, errors
from tvmdml.packs import onnx_apart, sources
from tvmdml.packs.spec import Wanted

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")


def call(name: str, before: str, after: str) -> Any:
    return onnx.helper.make_node(name, [before], [after], domain="own")


def function(name: str, *nodes: Any) -> Any:
    """A function from a to b."""
    imports = [onnx.helper.make_opsetid("", 22), onnx.helper.make_opsetid("own", 1)]
    return onnx.helper.make_function("own", name, ["a"], ["b"], nodes, imports)


def twice(name: str) -> list[Any]:
    return [call(name, "a", "t"), call(name, "t", "b")]


def calling(*functions: Any, last: str) -> Graph:
    """A graph that calls one of these."""
    graph = Graph(onnx)
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


def many_nodes(count: int) -> Graph:
    graph = Graph(onnx)
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
    graph = Graph(onnx)
    graph.node("Round", graph.input("x", [4]))
    graph.constants.append(onnx.TensorProto(name="w", dims=sizes, data_type=1, raw_data=b"1234"))
    return graph


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
        (lambda: lying_tensor(1 << 40), f"a tensor 'w' of sizes [{1 << 40}]; allowed: at most "),
        (lambda: lying_tensor(-5, 4), "a tensor 'w' of sizes [-5, 4]"),
    ],
)
def test_what_is_too_large_is_counted_and_refused(make: Callable[[], Graph], message: str, tmp_path: Path) -> None:
    path = make().save(tmp_path)
    with pytest.raises(errors.InvalidArgument, match=re.escape(message)) as caught:
        sources.read([path])
    assert str(caught.value).startswith(f"{path}: given ")


def test_functions_within_the_bounds_are_read(tmp_path: Path) -> None:
    (note, *_) = sources.read([doubling(8).save(tmp_path)]).notes
    assert "129 of 129 nodes are in the spec" in note


# -- What only shape inference finds out ----------------------------------------------------------------------------


def of_rank(kind: str) -> Graph:
    """An output with as many dimensions as an input has elements."""
    graph = Graph(onnx)
    shape = graph.input("shape", [1 << 28], "INT64")
    inputs = (shape,) if kind == "ConstantOfShape" else (graph.input("x", ["n"]), shape)
    graph.node("Round", graph.node(kind, *inputs))
    return graph


def concatenated() -> Graph:
    """A shape put behind itself again and again: each node doubles what is known of it."""
    graph = Graph(onnx)
    x = graph.input("x", [4])
    shape = graph.node("Shape", x)
    for _ in range(40):
        shape = graph.node("Concat", shape, shape, axis=0)
    graph.node("Round", graph.node("Expand", x, shape))
    return graph


def nested(depth: int, kind: str) -> Graph:
    """Graphs in graphs."""
    graph = Graph(onnx)
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


@pytest.mark.parametrize(
    "make", [lambda: of_rank("ConstantOfShape"), lambda: of_rank("Tile"), concatenated], ids=["ConstantOfShape", "Tile", "Concat"]
)
def test_what_exhausts_memory_is_refused(make: Callable[[], Graph], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_apart, "MEMORY", 1 << 28)
    path = make().save(tmp_path)
    assert path.stat().st_size < 4096
    with pytest.raises(errors.InvalidArgument, match=f"{path}: given ") as caught:
        sources.read([path])
    bounds = "shape inference takes more than 256 MiB of memory and 4 times the file's size, or 120 s of processor time"
    assert bounds in str(caught.value) or "sizes are symbolic" in str(caught.value) or "is unknown" in str(caught.value)
    if make is concatenated:
        assert bounds in str(caught.value)


def test_what_takes_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_apart, "SECONDS", 1)
    monkeypatch.setattr(onnx_apart, "MEMORY", 1 << 34)
    with pytest.raises(
        errors.InvalidArgument, match=r"or 1 s of processor time, or fails .*SIGXCPU.*while shape inference"
    ) as caught:
        sources.read([concatenated().save(tmp_path)])
    assert str(caught.value).isprintable(), "what the process says last is at the start of its log"


def test_an_error_does_not_grow_with_what_a_model_says(tmp_path: Path) -> None:
    integers(tmp_path / "k.bin", 2)
    with pytest.raises(errors.InvalidArgument, match="which is not an offset") as caught:
        sources.read([top_k_of(tmp_path, "k.bin", offset=10**4000)])
    assert len(str(caught.value)) < 1500
    with pytest.raises(errors.InvalidArgument, match="which is not a valid file name") as caught:
        sources.read([top_k_of(tmp_path, "k" * 100_000)])
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize("kind", ["If", "Loop"])
def test_graphs_in_graphs_are_read(kind: str, tmp_path: Path) -> None:
    (note, *_) = sources.read([nested(28, kind).save(tmp_path)]).notes
    assert " nodes are in the spec" in note


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
    with pytest.raises(errors.InvalidArgument, match="given a file that is not an ONNX model"):
        sources.read([tmp_path / "model.onnx"])


_READS = """
import signal, sys
from pathlib import Path
from tvmdml.packs import onnx_apart
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever was inherited
onnx_apart.MEMORY = 1 << 34
print("begun", flush=True)
onnx_apart.read(Path(sys.argv[1]), {})
"""


def test_ctrl_c_is_heard(tmp_path: Path) -> None:
    path = concatenated().save(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", _READS, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "begun\n"
        time.sleep(1.5)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
    assert said.strip().endswith("KeyboardInterrupt"), said


# -- Data in other files --------------------------------------------------------------------------------------------


def elsewhere(graph: Graph, location: str, **where: int) -> str:
    """A constant whose data lie in another file."""
    tensor = onnx.TensorProto(name="k", dims=[1], data_type=onnx.TensorProto.INT64, data_location=onnx.TensorProto.EXTERNAL)
    for key, value in {"location": location, **where}.items():
        tensor.external_data.add(key=key, value=str(value))
    graph.constants.append(tensor)
    return "k"


def top_k_of(folder: Path, location: str, **where: int) -> Path:
    graph = Graph(onnx)
    graph.node("TopK", graph.input("x", [4, 9]), elsewhere(graph, location, **where), outputs=2)
    return graph.save(folder)


def integers(path: Path, *values: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(np.array(values, "<i8").tobytes())


def test_data_are_read_from_the_models_folder_and_not_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    integers(Path("k.bin"), 7, 7)
    integers(tmp_path / "model" / "data" / "k.bin", 2, 3)
    integers(tmp_path / "model" / "k.bin", 4, 5)
    for location, where, k in (("k.bin", {"offset": 8, "length": 8}, 5), ("data/k.bin", {}, 2)):
        found = sources.read([top_k_of(tmp_path / "model", location, **where)])
        assert found.spec.wanted == (Wanted(top_k_desc(TensorDesc("float32", (4, 9)), 1, k, "decreasing", "uint64")),)


def test_weights_in_other_files_need_not_be_there(tmp_path: Path) -> None:
    graph = Graph(onnx)
    elsewhere(graph, "weights.bin")
    graph.constants[-1].dims[0] = 1 << 20
    graph.node("Round", graph.node("Add", graph.input("x", [1 << 20]), "k"))
    assert "1 of 2 nodes are in the spec" in sources.read([graph.save(tmp_path)]).notes[0]
    with pytest.raises(errors.InvalidArgument, match="its k is not a constant"):
        sources.read([top_k_of(tmp_path, "weights.bin")])


@pytest.mark.parametrize(
    ("location", "where", "reason"),
    [
        ("../k.bin", {}, "which is outside the folder"),
        ("{outside}/k.bin", {}, "which is an absolute path"),
        ("link.bin", {}, "which is a symbolic link to a file outside the folder"),
        ("folder/k.bin", {}, "which is a symbolic link to a file outside the folder"),
        ("pipe", {}, "which is not a regular file"),
        ("", {}, "which does not name a file"),
        ("own.bin", {"offset": 4}, "which has 4 bytes from offset 4, not 8"),
        ("own.bin", {"offset": -4}, "from offset '-4', which is not an offset in a file"),
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
    with pytest.raises(errors.InvalidArgument, match=re.escape(reason)) as caught:
        sources.read([path])
    assert f"{path}: given a tensor 'k' with data in " in str(caught.value)
    assert f"allowed: files in '{folder}'" in str(caught.value)
