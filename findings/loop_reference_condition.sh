#!/usr/bin/env bash
# onnx 1.23.2: the reference evaluator runs no round of a Loop without a condition, and gives stacked numbers a dimension too much.
#
# Expected: the operator's text calls the inputs M and cond optional; without cond a loop runs M rounds. A result of each round, such as
# a sum without dimensions, is stacked along a new first axis: two rounds give the shape [2].
# Seen: without cond the evaluator runs nothing, and then fails to concatenate nothing. With cond it gives the shape [2, 1]. ONNX
# Runtime runs both models as the text says.
#
# Output:
#   onnx 1.23.2 Loop of two rounds, which sums
#   condition left out: ValueError: need at least one array to concatenate
#   condition given: shape (2, 1) [[6.0], [12.0]]
#   ONNX Runtime 1.32.0: shape (2,) [6.0, 12.0] and shape (2,) [6.0, 12.0]
#   as described
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -I - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

onnxruntime.set_default_logger_severity(4)


def about(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def model(condition):
    nodes = [
        helper.make_node("Identity", ["on"], ["goes_on"]),
        helper.make_node("ReduceSum", ["v"], ["sum"], keepdims=0),
        helper.make_node("Add", ["v", "v"], ["w"]),
    ]
    taken = [about("i", TensorProto.INT64, []), about("on", TensorProto.BOOL, []), about("v", TensorProto.FLOAT, [3])]
    made = [about("goes_on", TensorProto.BOOL, []), about("w", TensorProto.FLOAT, [3]), about("sum", TensorProto.FLOAT, [])]
    loop = helper.make_node("Loop", ["two", condition, "x"], ["last", "sums"], body=helper.make_graph(nodes, "body", taken, made))
    weights = [numpy_helper.from_array(np.array(2), "two"), numpy_helper.from_array(np.array(True), "yes")]
    graph = helper.make_graph([loop], "g", [about("x", TensorProto.FLOAT, [3])], [about("sums", TensorProto.FLOAT, [2])], weights)
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(whole, full_check=True)
    return whole


def shown(array):
    return f"shape {array.shape} {array.tolist()}"


def reference(condition):
    try:
        return shown(ReferenceEvaluator(model(condition)).run(None, {"x": x})[0])
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def runtime(condition):
    session = onnxruntime.InferenceSession(model(condition).SerializeToString(), providers=["CPUExecutionProvider"])
    return shown(session.run(None, {"x": x})[0])


x = np.array([1, 2, 3], np.float32)
print("onnx", onnx.__version__, "Loop of two rounds, which sums")
seen = reference(""), reference("yes"), runtime(""), runtime("yes")
print("condition left out:", seen[0])
print("condition given:", seen[1])
print(f"ONNX Runtime {onnxruntime.__version__}:", seen[2], "and", seen[3])
right = "shape (2,) [6.0, 12.0]"
wanted = "ValueError: need at least one array to concatenate", "shape (2, 1) [[6.0], [12.0]]", right, right
print("as described" if seen == wanted else "the behaviour has changed")
sys.exit(0 if seen == wanted else 1)
PYTHON
