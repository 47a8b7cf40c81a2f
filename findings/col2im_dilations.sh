#!/usr/bin/env bash
# ONNX Runtime 1.32.0 (CPU): Col2Im with dilations is right in two dimensions of space, and wrong in one.
#
# Expected: the same sums for one row, whether it is an image of one dimension or of two with a height of 1.
# Seen: with one dimension of space, the second channel has zeros at its end, and its elements are elsewhere.
#
# Output:
#   onnxruntime 1.32.0 Col2Im with dilations of 2
#   a row of 5:      [[1.0, 2.0, 7.0, 5.0, 13.0], [10.0, 11.0, 12.0, 0.0, 0.0]]
#   an image of 1x5: [[1.0, 2.0, 7.0, 5.0, 6.0], [7.0, 8.0, 19.0, 11.0, 12.0]]
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


def images(sizes, block, dilations):
    result = f"float[{', '.join('ABCD'[: len(sizes) + 2])}]"
    graph = f"g (float[1,4,3] x, int64[D] i, int64[D] b) => ({result} y) {{ y = Col2Im<dilations = {dilations}>(x, i, b) }}"
    x = np.arange(1, 13, dtype=np.float32).reshape(1, 4, 3)
    return run(graph, x=x, i=np.int64(sizes), b=np.int64(block)).reshape(2, 5).tolist()


print("onnxruntime", onnxruntime.__version__, "Col2Im with dilations of 2")
row, image = images([5], [2], [2]), images([1, 5], [1, 2], [1, 2])
print("a row of 5:     ", row)
print("an image of 1x5:", image)
unchanged = (row, image) == ([[1, 2, 7, 5, 13], [10, 11, 12, 0, 0]], [[1, 2, 7, 5, 6], [7, 8, 19, 11, 12]])
print("as described" if unchanged else "the behaviour has changed")
sys.exit(0 if unchanged else 1)
PYTHON
