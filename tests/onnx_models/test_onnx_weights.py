"""Large weights are read apart from the message; a file whose frame is strange is parsed whole."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmdml

onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")

import tvmdml.onnx  # noqa: E402 - it needs ONNX
from tvmdml.onnx import reading, weights  # noqa: E402 - they need ONNX


def model() -> Any:
    helper = onnx.helper
    arrays = {
        "w": np.arange(2048, dtype=np.float32).reshape(32, 64) - 1000,
        "small": np.arange(64, dtype=np.float32),
        "half": np.arange(4096, dtype=np.float16).reshape(64, 64),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "small"], ["b"]),
        helper.make_node("Cast", ["half"], ["c"], to=onnx.TensorProto.FLOAT),
        helper.make_node("MatMul", ["b", "c"], ["y"]),
    ]
    kept = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    kept.append(helper.make_tensor("halves of bytes", onnx.TensorProto.INT4, (128, 128), np.full((128, 128), -3)))
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, n]) for name, n in (("x", 32), ("y", 64))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_large_tensors_are_not_in_the_message(tmp_path: Path) -> None:
    content = model().SerializeToString()
    (tmp_path / "m.onnx").write_bytes(content)
    for given in (tmp_path / "m.onnx", content):
        source = reading.ReadModel(given)
        there = {one.name: one for one in source.model.graph.initializer}
        assert [name for name, one in there.items() if one.HasField("raw_data")] == ["small"]
        for one in model().graph.initializer:
            right = onnx.numpy_helper.to_array(one)
            found = source.array(there[one.name])
            assert np.array_equal(found, right)
            assert found.dtype == right.dtype
            assert one.name == "small" or found.ctypes.data % 64 == 0 or found.dtype.itemsize == 1
    x = np.ones((2, 32), np.float32)
    (found,), (right,) = (tvmdml.onnx.load(one)(x=x) for one in (tmp_path / "m.onnx", model()))
    assert np.array_equal(found, right)


def test_weights_in_other_files_hold_no_descriptors(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    source = reading.ReadModel(tmp_path / "m.onnx")
    before = len(os.listdir("/proc/self/fd"))
    found = [source.array(one) for one in source.model.graph.initializer]
    assert len(os.listdir("/proc/self/fd")) == before
    for one, array in zip(model().graph.initializer, found, strict=True):
        assert np.array_equal(onnx.numpy_helper.to_array(one), array)
        assert not array.flags.writeable or array.dtype.itemsize == 1


def test_a_damaged_frame_is_left_to_the_parser() -> None:
    content = model().SerializeToString()
    rng = random.Random(3)
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(rng.choice((1, 2, 8))):
            damaged[rng.randrange(len(damaged)) if rng.random() < 0.3 else rng.randrange(300)] = rng.randrange(256)
        damaged = damaged[: rng.choice((len(damaged), rng.randrange(len(damaged))))]
        found = weights.apart(io.BytesIO(damaged), len(damaged))
        whole = onnx.ModelProto()
        try:
            whole.ParseFromString(bytes(damaged))
        except Exception:  # Protocol Buffers' own kind
            continue
        if found is not None:
            rest = onnx.ModelProto()
            rest.ParseFromString(found.message)
            for i, (first, count) in found.places.items():
                rest.graph.initializer[i].raw_data = bytes(damaged[first : first + count])
            assert rest == whole


def test_a_graph_in_two_parts_is_parsed_whole() -> None:
    first, second = model(), onnx.ModelProto()
    second.graph.name = "other"
    content = first.SerializeToString() + second.SerializeToString()
    assert weights.apart(io.BytesIO(content), len(content)) is None
    assert reading.ReadModel(content).model.graph.name == "other"
