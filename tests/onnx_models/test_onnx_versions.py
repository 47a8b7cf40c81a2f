"""Versions of ONNX's operators: what changed is in one table, and nodes of each version mean what that version says."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

from onnx_nodes import differences, result, results  # noqa: E402 - they need ONNX

from tvmdml.onnx import described, folding  # noqa: E402
from tvmdml.onnx.origin import OLDEST_OPSET  # noqa: E402
from tvmdml.onnx.rules import RULES  # noqa: E402
from tvmdml.onnx.versions import CHANGES  # noqa: E402

F, I = np.float32, np.int64  # noqa: E741


def f(*numbers: Any) -> Any:
    return np.array(numbers, F)


def i(*numbers: Any) -> Any:
    return np.array(numbers, I)


def neighbours() -> Iterator[tuple[Any, Any]]:
    """The schemas of each operator that is converted, with those of the next version, from the oldest version that is read on."""
    versions = collections.defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and (schema.name in RULES or described.is_mapped(schema.name) or folding.folds(schema.name)):
            versions[schema.name].append(schema)
    for several in versions.values():
        several.sort(key=lambda one: int(one.since_version))
        yield from ((a, b) for a, b in itertools.pairwise(several) if b.since_version > OLDEST_OPSET)


def usual(schema: Any, name: str) -> Any:
    value = schema.attributes[name].default_value
    return onnx.helper.get_attribute_value(value) if value.name else None


def changes(old: Any, new: Any) -> set[str]:
    """What an older node says otherwise than a newer one."""
    found = {name for name in old.attributes if name not in new.attributes}
    found |= {name for name in old.attributes if name in new.attributes and usual(old, name) != usual(new, name)}
    found |= {one.name for one, other in zip(old.inputs, new.inputs, strict=False) if one.name.lower() != other.name.lower()}
    return found | ({"deprecated"} if new.deprecated else set())


SAME_INPUTS = {("BatchNormalization", 14)}
"""Inputs that only have other names."""


def test_whatever_changes_a_meaning_is_in_the_table() -> None:
    missing = {}
    for old, new in neighbours():
        table = {change.version: change for change in CHANGES.get(old.name, ())}
        if (found := changes(old, new)) and new.since_version not in table:
            missing[old.name, new.since_version] = found
    assert not missing
    versions = {(new.name, int(new.since_version)) for _, new in neighbours()}
    assert not {(kind, one.version) for kind, several in CHANGES.items() for one in several} - versions


def test_attributes_and_inputs_of_older_nodes_have_a_place_in_newer_ones() -> None:
    wrong = {}
    for old, new in neighbours():
        change = {one.version: one for one in CHANGES.get(old.name, ())}.get(new.since_version)
        if change is None or new.deprecated:
            continue
        gone = {name for name in old.attributes if name not in new.attributes}
        lost = gone - set(change.moved) - ({"spatial"} if old.name == "BatchNormalization" else set()) - {"directions"}
        places = dict(enumerate(change.inputs)) or {place: place for place in range(len(old.inputs))}
        if old.name != "Scan" and (old.name, new.since_version) not in SAME_INPUTS:
            names = {
                one.name.lower()
                for place, one in enumerate(old.inputs)
                if new.inputs[places[place]].name.lower() != one.name.lower()
            }
            lost |= names
        if lost:
            wrong[old.name, new.since_version] = lost
    assert not wrong


@pytest.mark.full(first=1)
@pytest.mark.parametrize("opset", [8, 7])
def test_constants_of_every_version_have_every_type(opset: int) -> None:
    """The schema before version 9 had floats only, but exporters wrote the sizes of a Reshape as constants then, too."""
    import tvmdml.onnx

    node, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    arrays = {"sizes": i(2, -1), "numbers": np.array([1, 2], np.int32), "flags": np.array([True, False])}
    nodes = [node("Constant", [], [name], value=onnx.numpy_helper.from_array(array)) for name, array in arrays.items()]
    nodes += [node("Reshape", ["x", "sizes"], ["y"]), node("Not", ["flags"], ["f"]), node("Cast", ["numbers"], ["n"], to=1)]
    graph = onnx.helper.make_graph(
        nodes, "g", [value("x", onnx.TensorProto.FLOAT, [4])], [onnx.ValueInfoProto(name=name) for name in "yfn"]
    )
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)
    assert [one.tolist() for one in tvmdml.onnx.load(made)(x=f(1, 2, 3, 4))] == [[[1, 2], [3, 4]], [False, True], [1, 2]]


X = np.arange(24, dtype=F).reshape(2, 3, 4)


def softmax(x: Any, axes: tuple[int, ...]) -> Any:
    e = np.exp(x - x.max(axes, keepdims=True))
    return e / e.sum(axes, keepdims=True)


def test_softmax_is_of_the_last_dimension_since_version_13() -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 4)).astype(F)
    both, last = softmax(x, (1, 2)), softmax(x, (2,))
    largest = (x == x.max(2, keepdims=True)).astype(F)
    one = (x == x.max((1, 2), keepdims=True)).astype(F)
    assert not differences(
        {f"Softmax {n}": (result("Softmax", [x], opset=n), right) for n, right in ((12, both), (13, last))}
        | {f"LogSoftmax {n}": (result("LogSoftmax", [x], opset=n), np.log(right)) for n, right in ((12, both),)}
        | {f"Hardmax {n}": (result("Hardmax", [x], opset=n), right) for n, right in ((12, one), (13, largest))}
        | {"its axis": (result("Softmax", [x], opset=12, axis=2), last)}
    )


def test_attributes_that_became_inputs() -> None:
    x = f([3, 1, 2], [-1, 5, 0])
    cases = {
        "Clip 7": (result("Clip", [x], opset=7, min=0.0, max=2.0), x.clip(0, 2)),
        "Clip 11": (result("Clip", [x, np.array(0, F), np.array(2, F)], opset=11), x.clip(0, 2)),
        "Pad 10": (result("Pad", [x], opset=10, pads=[0, 1, 0, 0], value=7.0), np.pad(x, ((0, 0), (1, 0)), constant_values=7)),
        "Pad 11": (result("Pad", [x, i(0, 1, 0, 0), np.array(7, F)], opset=11), np.pad(x, ((0, 0), (1, 0)), constant_values=7)),
        "ReduceSum 12": (result("ReduceSum", [x], opset=12, axes=[1]), x.sum(1, keepdims=True)),
        "ReduceSum 13": (result("ReduceSum", [x, i(1)], opset=13, known=[1]), x.sum(1, keepdims=True)),
        "ReduceMax 17": (result("ReduceMax", [x], opset=17, axes=[0]), x.max(0, keepdims=True)),
        "ReduceMax 18": (result("ReduceMax", [x, i(0)], opset=18, known=[1]), x.max(0, keepdims=True)),
        "Slice 9": (result("Slice", [x], opset=9, starts=[1], ends=[3], axes=[1]), x[:, 1:3]),
        "Slice 10": (result("Slice", [x, i(1), i(3), i(1)], opset=10), x[:, 1:3]),
        "Squeeze 12": (result("Squeeze", [x[None]], opset=12, axes=[0]), x),
        "Squeeze 13": (result("Squeeze", [x[None], i(0)], opset=13), x),
        "Unsqueeze 12": (result("Unsqueeze", [x], opset=12, axes=[0]), x[None]),
        "Unsqueeze 13": (result("Unsqueeze", [x, i(0)], opset=13), x[None]),
        "Split 12": (results("Split", [x], opset=12, outputs=2, axis=1, split=[1, 2])[1], x[:, 1:]),
        "Split 13": (results("Split", [x, i(1, 2)], opset=13, outputs=2, axis=1)[1], x[:, 1:]),
        "TopK 9": (results("TopK", [x], opset=9, outputs=2, k=1)[0], x.max(1, keepdims=True)),
        "TopK 10": (results("TopK", [x, i(1)], opset=10, outputs=2)[0], x.max(1, keepdims=True)),
        "Dropout 7": (result("Dropout", [x], opset=7, ratio=0.75), x),
        "Dropout 12": (result("Dropout", [x, np.array(0.75, F)], opset=12), x),
        "Upsample 7": (result("Upsample", [x], opset=7, scales=[1.0, 2.0]), x.repeat(2, 1)),
        "Upsample 9": (result("Upsample", [x, f(1, 2)], opset=9, known=[1]), x.repeat(2, 1)),
    }
    assert not differences(cases)


def test_the_axis_of_a_transform_became_an_input_and_the_last_but_one() -> None:
    x = np.random.default_rng(2).standard_normal((2, 3, 4, 1)).astype(F)

    def along(axis: int) -> Any:
        found = np.fft.fft(x[..., 0], axis=axis)
        return np.stack([found.real, found.imag], -1).astype(F)

    assert not differences({
        "usual of 17": (result("DFT", [x], opset=17), along(1)),
        "stated of 17": (result("DFT", [x], opset=17, axis=2), along(2)),
        "usual of 20": (result("DFT", [x], opset=20), along(2)),
        "stated of 20": (result("DFT", [x, None, np.array(1)], opset=20, known=[2]), along(1)),
    })  # fmt: skip


def test_resize_before_version_11_has_the_places_of_upsample() -> None:
    """They begin with the first element; of dimensions that are reduced the element behind a place is taken, as in ONNX Runtime."""
    row = f(0, 1, 2, 3)
    assert not differences({
        "enlarged": (result("Resize", [row, f(1.75)], opset=10, known=[1]), f(0, 0, 1, 1, 2, 2, 3)),
        "enlarged since": (result("Resize", [row, f(), f(1.75)], opset=11, known=[1, 2]), f(0, 0, 1, 1, 2, 3, 3)),
        "reduced": (result("Resize", [row, f(0.6)], opset=10, known=[1]), f(0, 2)),
        "reduced since": (result("Resize", [row, f(), f(0.6)], opset=11, known=[1, 2]), f(0, 2)),
        "both": (
            result("Resize", [row.reshape(2, 2), f(0.5, 1.5)], opset=10, known=[1]),
            f([0, 0, 1]),
        ),
        "weighed": (result("Resize", [row, f(2)], opset=10, known=[1], mode="linear"), f(0, 0.5, 1, 1.5, 2, 2.5, 3, 3)),
    })  # fmt: skip


def test_regions_are_moved_by_half_a_pixel_since_version_16() -> None:
    x, region, about = np.arange(64, dtype=F).reshape(1, 1, 8, 8), f([1, 1, 5, 5]), {"output_width": 2, "sampling_ratio": 2}
    half = "half_pixel"
    assert not differences({
        "10": (result("RoiAlign", [x, region, i(0)], opset=10, output_height=1, **about), f([[[26, 28]]])),
        "15": (result("RoiAlign", [x, region, i(0)], opset=15, output_height=1, **about), f([[[26, 28]]])),
        "16": (result("RoiAlign", [x, region, i(0)], opset=16, output_height=1, **about), f([[[21.5, 23.5]]])),
        "16 as before": (
            result("RoiAlign", [x, region, i(0)], opset=16, coordinate_transformation_mode=f"output_{half}", **about),
            f([[[26, 28]]]),
        ),
    })  # fmt: skip


def test_groups_have_scales_before_version_21() -> None:
    x = np.random.default_rng(3).standard_normal((1, 4, 6)).astype(F)
    flat = x.reshape(1, 2, 12)
    normal = ((flat - flat.mean(2, keepdims=True)) / np.sqrt(flat.var(2, keepdims=True) + 1e-5)).reshape(x.shape)
    scale = f(1, 2)
    assert not differences({
        "18": (
            result("GroupNormalization", [x, scale, f(0, 1)], opset=18, num_groups=2),
            normal * scale.repeat(2)[:, None] + f(0, 0, 1, 1)[:, None],
        ),
        "21": (
            result("GroupNormalization", [x, f(1, 2, 3, 4), f(0, 0, 1, 1)], opset=21, num_groups=2),
            normal * f(1, 2, 3, 4)[:, None] + f(0, 0, 1, 1)[:, None],
        ),
    })  # fmt: skip


@pytest.mark.full
def test_modes_of_samples_have_their_names_of_each_version() -> None:
    x, grid = np.arange(4, dtype=F).reshape(1, 1, 2, 2), np.zeros((1, 1, 1, 2), F)
    for opset, mode in ((16, {}), (16, {"mode": "bilinear"}), (20, {"mode": "linear"})):
        assert result("GridSample", [x, grid], opset=opset, **mode).item() == 1.5


@pytest.mark.parametrize("opset", [15, 18])
def test_optional_tensors_are_of_both_versions(opset: int) -> None:
    import tvmdml.onnx

    node, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [node("Optional", ["x"], ["o"]), node("OptionalHasElement", ["o"], ["b"]), node("OptionalGetElement", ["o"], ["y"])]
    outputs = [value("b", onnx.TensorProto.BOOL, []), value("y", onnx.TensorProto.FLOAT, [2])]
    graph = onnx.helper.make_graph(nodes, "g", [value("x", onnx.TensorProto.FLOAT, [2])], outputs)
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)
    there, x = tvmdml.onnx.load(made)(x=f(1, 2))
    assert there.item() is True
    assert x.tolist() == [1, 2]
