"""Operators of a program's own: what they compute, what is kept of them, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import INT64, N, info, model  # noqa: E402 - they need ONNX

import tvmdml  # noqa: E402
import tvmdml.onnx  # noqa: E402 - it needs ONNX
from tvmdml.onnx import own_operators  # noqa: E402

X = np.array([-3, 0.25, 2], np.float32)


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """What a test adds goes away."""
    yield
    own_operators.OWN.clear()


def foo(**attributes: Any) -> Any:
    """A model of an operator ``own.Foo``, and one of ONNX's."""
    nodes = [N("Foo", ["x"], ["a"], domain="own", **attributes), N("Neg", ["a"], ["y"])]
    return model(nodes, [info("x", ["n"])], [info("y", ["n"])], {}, ir_version=10)


def test_a_function_computes_a_node() -> None:
    @tvmdml.onnx.operator("own.Foo")
    def twice(node: tvmdml.onnx.Node) -> Any:
        return node.x() * node.real("factor", 2.0)

    assert tvmdml.onnx.load(foo())(x=X)[0].tolist() == (-2 * X).tolist()
    assert tvmdml.onnx.load(foo(factor=3.0))(x=X)[0].tolist() == (-3 * X).tolist()
    assert twice.__name__ == "twice"


def test_several_outputs_and_sizes_that_are_open() -> None:
    @tvmdml.onnx.operator("own.Halves")
    def halves(node: tvmdml.onnx.Node) -> Any:
        x, middle = node.x(), node.shape()[0] // 2
        return tvmdml.slice(x, [0], [middle]), np.array([middle]) if isinstance(middle, int) else None

    @tvmdml.onnx.operator("own.Ends")
    def ends(node: tvmdml.onnx.Node) -> Any:
        low, high = node.integers(1)
        return tvmdml.max(node.x(), node.like(low, node.x())), tvmdml.min(node.x(), node.like(high, node.x()))

    nodes = [N("Ends", ["x", "limits"], ["a", "b"], domain="own")]
    inputs, outputs = [info("x", ["n"]), info("limits", [2], INT64)], [info("a", ["n"]), info("b", ["n"])]
    loaded = tvmdml.onnx.load(model(nodes, inputs, outputs, {}, ir_version=10))
    for low, high in ((0, 1), (-2, 0)):
        a, b = loaded(x=X, limits=np.array([low, high]))
        assert (a.tolist(), b.tolist()) == (np.maximum(X, low).tolist(), np.minimum(X, high).tolist())


@pytest.mark.parametrize(
    ("kind", "allowed"),
    [
        ("Foo", "com.example.Scale"),
        ("ai.onnx.ml.Foo", "com.example.Scale"),
        (3, "com.example.Scale"),
        ("com.microsoft.FusedMatMul", "does not have"),
    ],
)
def test_names_that_are_refused(kind: Any, allowed: str) -> None:
    with pytest.raises(tvmdml.InvalidArgument, match=allowed):
        tvmdml.onnx.operator(kind)


def test_a_second_function_is_refused() -> None:
    @tvmdml.onnx.operator("own.Foo")
    def same(node: tvmdml.onnx.Node) -> Any:
        return node.x()

    with pytest.raises(tvmdml.InvalidArgument, match=r"operator own\.Foo: given .*negated beside .*same; allowed: one function"):

        @tvmdml.onnx.operator("own.Foo", version="2")
        def negated(node: tvmdml.onnx.Node) -> Any:
            return -node.x()

    with pytest.raises(tvmdml.InvalidArgument, match="a function of a node"):
        tvmdml.onnx.operator("own.Bar")(3)  # type: ignore[type-var] # that is what is tested


def test_a_function_may_be_written_anew() -> None:
    """As in the cell of a notebook."""
    for factor in (2, 3):
        names: dict[str, Any] = {"tvmdml": tvmdml, "__name__": "notebook"}
        exec(f"@tvmdml.onnx.operator('own.Foo')\ndef foo(node):\n    return node.x() * {factor}", names)
        assert tvmdml.onnx.load(foo().SerializeToString())(x=X)[0].tolist() == (-factor * X).tolist()


def test_rules_are_of_the_package() -> None:
    from tvmdml.onnx import node

    with pytest.raises(tvmdml.InvalidArgument, match=r"Use tvmdml\.onnx\.operator"):
        node.rule("own.Foo")(lambda one: one.x())
    assert "own.Foo" not in node.RULES


@pytest.mark.parametrize(
    ("result", "said"),
    [("a text", "returned 'a text'"), (None, "is used"), (object(), "allowed: expressions and arrays")],
    ids=["text", "nothing", "object"],
)
def test_results_that_are_no_tensors_are_refused(result: Any, said: str) -> None:
    tvmdml.onnx.operator("own.Foo")(lambda node: result)
    with pytest.raises(tvmdml.Unsupported, match=said):
        tvmdml.onnx.load(foo())(x=X)


PROGRAM = """
import os, sys
if "ALONE" in os.environ:
    sys.modules["onnx"] = sys.modules["tvm"] = sys.modules["tvmdml.onnx.node"] = None  # an import would fail
import numpy as np, tvmdml.onnx
@tvmdml.onnx.operator("own.Foo"{version})
def foo(node):
    return node.x() * {factor}
print(tvmdml.onnx.load(sys.argv[1])(x=np.ones(3, np.float32))[0].tolist()[0])
"""


def test_plans_are_kept_by_what_functions_are(tmp_path: Path) -> None:
    """The same file needs no conversion in a later process; a changed one, or another version, is converted."""
    place, program = tmp_path / "m.onnx", tmp_path / "program.py"
    onnx.save(foo(), place)

    def run(factor: float, version: str = "", **more: str) -> Any:
        program.write_text(PROGRAM.format(version=version, factor=factor))
        environment = {**os.environ, "TVMDML_CACHE_DIR": str(tmp_path / "cache"), **more}
        done = subprocess.run([sys.executable, program, place], capture_output=True, text=True, env=environment, check=False)
        return done.stdout.strip() or done.stderr

    assert run(2.0) == "-2.0"
    assert run(2.0, ALONE="1") == "-2.0"
    assert "onnx" in run(3.0, ALONE="1"), "it must be converted, which cannot be"
    assert run(3.0) == "-3.0"
    assert "onnx" in run(3.0, ', version="2"', ALONE="1")
    assert run(3.0, ', version="2"') == "-3.0"


def test_of_functions_that_are_closed_over_objects_nothing_is_kept() -> None:
    own: list[int] = [2]
    tvmdml.onnx.operator("own.Foo")(lambda node: node.x() * own[0])
    assert own_operators.own_operators_key() is None
    assert tvmdml.onnx.load(foo().SerializeToString())(x=X)[0].tolist() == (-2 * X).tolist()
