#!/usr/bin/env bash
# ONNX Runtime 1.32.0 (CPU): ThresholdedRelu as a function of RNN has the threshold 0 if the model gives none; as an operator, 1.
#
# Expected: "default values are the same as of corresponding ONNX operators", as RNN's text says of activation_alpha. LeakyRelu, as a
# function, has the operator's 0.01.
# Seen: ThresholdedRelu passes 0.5 where the operator of the same library gives 0. ScaledTanh without numbers gives 0 for everything.
#
# Output:
#   onnxruntime 1.32.0 functions of RNN without their numbers, for one step with weight 1
#   LeakyRelu of -2: -0.02; the operator: -0.02
#   ThresholdedRelu of 0.5: 0.5; the operator: 0.0
#   ScaledTanh of 3: 0.0
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

onnxruntime.set_default_logger_severity(4)


def run(graph, **inputs):
    """The first result of a graph in ONNX's text format."""
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 21]> ' + graph)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def step(function, x):
    """An RNN of one element with the weights 1 and 0, for one step."""
    attributes = f'hidden_size = 1, activations = ["{function}"]'
    graph = f"g (float[1,1,1] x, float[1,1,1] w, float[1,1,1] r) => (float[1,1,1,1] y) {{ y = RNN<{attributes}>(x, w, r) }}"
    ones = np.ones((1, 1, 1), np.float32)
    return round(float(run(graph, x=ones * x, w=ones, r=ones * 0).item()), 6)


def alone(function, x):
    """The operator of the same name."""
    return round(float(run(f"g (float[1] x) => (float[1] y) {{ y = {function}(x) }}", x=np.float32([x])).item()), 6)


print("onnxruntime", onnxruntime.__version__, "functions of RNN without their numbers, for one step with weight 1")
leaky, threshold, scaled = step("LeakyRelu", -2), step("ThresholdedRelu", 0.5), step("ScaledTanh", 3)
operators = alone("LeakyRelu", -2), alone("ThresholdedRelu", 0.5)
print(f"LeakyRelu of -2: {leaky}; the operator: {operators[0]}")
print(f"ThresholdedRelu of 0.5: {threshold}; the operator: {operators[1]}")
print(f"ScaledTanh of 3: {scaled}")
unchanged = (leaky, threshold, scaled, *operators) == (-0.02, 0.5, 0.0, -0.02, 0.0)
print("as described" if unchanged else "the behaviour has changed")
sys.exit(0 if unchanged else 1)
PYTHON
