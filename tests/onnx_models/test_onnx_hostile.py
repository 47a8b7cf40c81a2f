"""Damaged and hostile ONNX files: each ends in an error of ours that says why."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmdml

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import FLOAT, INT64, N, info, model, ramp  # noqa: E402 - they need ONNX

import tvmdml.onnx  # noqa: E402 - it needs ONNX

REFUSED = (tvmdml.ModelError, tvmdml.InvalidArgument, tvmdml.Unsupported)


def small() -> Any:
    nodes = [N("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]), N("Relu", ["a"], ["b"]), N("Reshape", ["b", "s"], ["y"])]
    return model(nodes, [info("x", [1, 2, 4, 4])], [info("y", [2, 16])], {"w": ramp(2, 2, 3, 3), "s": np.array([2, 16])})


def changed(change: Callable[[Any], object]) -> Any:
    made = small()
    change(made)
    return made


def dims(made: Any, *sizes: int) -> None:
    del made.graph.initializer[0].dims[:]
    made.graph.initializer[0].dims.extend(sizes)


def wrong_attribute(made: Any) -> None:
    node = made.graph.node[0]
    del node.attribute[:]
    node.attribute.append(onnx.helper.make_attribute("pads", "text"))


def external(location: str, **more: str) -> Callable[[Any], None]:
    def change(made: Any) -> None:
        tensor = made.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in {"location": location, **more}.items():
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value

    return change


BROKEN: dict[str, tuple[Callable[[Any], object], str]] = {
    "no such input": (lambda made: made.graph.node[1].input.__setitem__(0, "nowhere"), "'nowhere'"),
    "a circle": (lambda made: made.graph.node[0].input.__setitem__(0, "b"), "'b', which"),
    "an input of its own": (lambda made: made.graph.node[1].input.__setitem__(0, "b"), "'b', which"),
    "no weight": (lambda made: made.graph.initializer.pop(0), "'w', which"),
    "no output": (lambda made: made.graph.node.pop(2), "'y', which"),
    "too few bytes": (lambda made: setattr(made.graph.initializer[0], "raw_data", b"1234"), "4 bytes for 'w'"),
    "huge sizes": (lambda made: dims(made, 1 << 40, 1 << 40), "sizes"),
    "negative sizes": (lambda made: dims(made, -2, 2, 3, 3), "sizes"),
    "many sizes": (lambda made: dims(made, *[1] * 1000), "sizes"),
    "other sizes": (lambda made: dims(made, 6, 6), "Conv"),
    "a type that is none": (lambda made: setattr(made.graph.initializer[0], "data_type", 99), "type 99"),
    "another type": (lambda made: setattr(made.graph.initializer[0], "data_type", INT64), "288 bytes|144 bytes"),
    "an attribute of another type": (wrong_attribute, "pads|Conv"),
    "no inputs of a node": (lambda made: made.graph.node[0].input.__delitem__(slice(None)), "Conv"),
    "too many inputs": (lambda made: made.graph.node[1].input.append("x"), "Relu"),
    "an unknown operator": (lambda made: setattr(made.graph.node[1], "op_type", "Relu\x1b[2J"), "no operator"),
    "an unknown version": (lambda made: setattr(made.opset_import[0], "version", 1 << 40), "Conv|version|operator"),
    "an old version": (lambda made: setattr(made.opset_import[0], "version", 3), "version 3"),
    "a shape of no sense": (
        lambda made: made.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.array([-1, -1]), "s")),
        "Reshape",
    ),
    "too large a shape": (
        lambda made: made.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.array([1 << 62, 1 << 62]), "s")),
        "Reshape",
    ),
    "a tensor made twice": (lambda made: made.graph.node[0].output.__setitem__(0, "b"), "two tensors named 'b'"),
    "a tensor made by one node twice": (lambda made: made.graph.node[1].output.append("b"), "two tensors named 'b'"),
    "a weight that is made": (lambda made: made.graph.node[1].output.append("w"), "two tensors named 'w'"),
    "an input that is made": (lambda made: made.graph.node[1].output.append("x"), "two tensors named 'x'"),
    "outputs of one name": (lambda made: made.graph.output.append(made.graph.output[0]), "outputs of the same name, 'y'"),
    "inputs of one name": (lambda made: made.graph.input.append(made.graph.input[0]), "same name"),
    "an input of strings": (lambda made: setattr(made.graph.input[0].type.tensor_type, "elem_type", 8), "string"),
    "an input of no type": (lambda made: made.graph.input[0].ClearField("type"), "type"),
    "a file above": (external("../secret"), "outside"),
    "an absolute file": (external("/etc/passwd"), "absolute"),
    "no file": (external("nothing.data"), "does not exist"),
    "an offset outside": (external("there.data", offset="99999999"), "100000143 or more"),
    "data that is cut off": (external("there.data", offset="200"), r"which has 288 bytes; allowed: 344 or more.*truncated"),
    "a negative offset": (external("there.data", offset="-8"), "-8"),
    "an offset that is none": (external("there.data", offset="x"), "cannot be mapped"),
    "another length": (external("there.data", length="7"), "7 bytes"),
    "a link outside": (external("link.data"), "outside"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_models_are_refused(name: str, tmp_path: Path) -> None:
    change, said = BROKEN[name]
    path = tmp_path / "in" / "model.onnx"
    path.parent.mkdir()
    path.write_bytes(changed(change).SerializeToString())
    (tmp_path / "secret").write_bytes(bytes(288))
    (path.parent / "there.data").write_bytes(bytes(288))
    (path.parent / "link.data").symlink_to(tmp_path / "secret")
    with pytest.raises(REFUSED, match=said):
        tvmdml.onnx.load(path)


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    whole = small().SerializeToString()
    for content in (b"", b"\x08", b"not a model at all", whole[: len(whole) // 3], bytes(1000)):
        with pytest.raises(tvmdml.ModelError):
            tvmdml.onnx.load(content)
    for given in (tmp_path, tmp_path / "missing.onnx", 7, None):
        with pytest.raises(tvmdml.ModelError):
            tvmdml.onnx.load(given)


@pytest.mark.full
def test_nodes_that_ask_for_much_are_refused() -> None:
    """A small file cannot make this process compute or hold what only a huge one may."""
    many = np.array([1 << 40], np.int64)
    for nodes, weights in (
        ([N("ConstantOfShape", ["n"], ["y"])], {"n": many}),
        ([N("Expand", ["one", "n"], ["a"]), N("Neg", ["a"], ["y"])], {"n": many, "one": np.ones(1, np.float32)}),
        ([N("Tile", ["one", "n"], ["a"]), N("Neg", ["a"], ["y"])], {"n": many, "one": np.ones(1, np.float32)}),
        (
            [N("Range", ["zero", "n", "one"], ["a"]), N("Neg", ["a"], ["y"])],
            {"n": many[0], "zero": np.int64(0), "one": np.int64(1)},
        ),
        ([N("Pad", ["one", "n"], ["y"])], {"n": np.array([1 << 40, 1 << 40]), "one": np.ones(1, np.float32)}),
    ):
        with pytest.raises((*REFUSED, MemoryError)):
            tvmdml.onnx.load(model(nodes, [], [info("y", None)], weights))()
    body = onnx.helper.make_graph(
        [N("Identity", ["going"], ["still"]), N("Neg", ["state"], ["next"])],
        "body",
        [info("i", [], INT64), info("going", [], 9), info("state", [1])],
        [info("still", [], 9), info("next", [1])],
    )
    nodes = [N("Loop", ["n", "", "x"], ["y"], body=body)]
    with pytest.raises(REFUSED, match="rounds"):
        tvmdml.onnx.load(model(nodes, [info("x", [1])], [info("y", [1])], {"n": np.int64(1 << 60)}))
    function = onnx.helper.make_function("own", "Endless", ["a"], ["b"], [N("Endless", ["a"], ["b"], domain="own")], [])
    with pytest.raises(REFUSED, match="recursion"):
        tvmdml.onnx.load(
            model([N("Endless", ["x"], ["y"], domain="own")], [info("x", [1])], [info("y", [1])], functions=[function])
        )


def test_dimensions_that_are_none_do_not_reach_inference() -> None:
    """ONNX's own inference ends the process for some of them."""
    for axis in (1 << 31, -(1 << 31), 1 << 62, -1 << 63, 9):
        node = N("LayerNormalization", ["x", "w"], ["y", "mean", "deviation"], axis=axis)
        with pytest.raises(REFUSED, match="axis"):
            tvmdml.onnx.load(model([node], [info("x", [2, 5])], [info("y", [2, 5])], {"w": ramp(5)}))


def test_sizes_that_no_array_has_are_refused() -> None:
    with pytest.raises(REFUSED, match="sizes"):
        tvmdml.onnx.load(model([N("Neg", ["x"], ["y"])], [info("x", [0, 1 << 62, 1 << 62])], [info("y", None)]))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
def test_changed_bytes_never_end_in_another_error(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from tvmdml.onnx import converting, scopes
    from tvmdml.onnx.stage import Stage

    def convert(self: Stage, shapes: Any, decided: Any) -> None:
        scopes.raise_all("model", converting.Conversion.of(self._origin().model, shapes, decided).problems)

    monkeypatch.setattr(Stage, "made", convert)
    chance = random.Random(seed)
    whole = small().SerializeToString()
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        try:
            tvmdml.onnx.load(bytes(content))
        except REFUSED:
            pass
        except MemoryError:
            pass
    assert FLOAT
