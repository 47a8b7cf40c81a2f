#!/usr/bin/env bash
# ONNX Runtime 1.32.0 (CPU): pools with auto_pad = SAME_UPPER have another number of windows with dilations, and begin elsewhere with
# a kernel that is smaller than the stride. Conv of the same library takes the first element, and refuses such dilations.
#
# Expected: as many results as there are strides in the input, "output_shape = ceil(input_shape / strides)", and no padding below 0.
# Seen: with dilations the padding is that of a kernel without them, so 4 elements make 3 averages. With a kernel of 1 and strides of
# 3, AveragePool takes the second of three elements, as if the padding were -1.
#
# Output:
#   onnxruntime 1.32.0 auto_pad = SAME_UPPER
#   4 elements, kernel 2, dilations 2, strides 1: AveragePool gives 3 results
#   of 1, 2, 3, kernel 1, strides 3: AveragePool takes 2.0, Conv takes 1.0
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


def pool(x, attributes):
    graph = f"g (float[1,1,N] x) => (float[1,1,M] y) {{ y = AveragePool<auto_pad = \"SAME_UPPER\", {attributes}>(x) }}"
    return run(graph, x=np.float32([[x]]))[0, 0].tolist()


def convolution(x, kernel, attributes):
    graph = f"g (float[1,1,N] x, float[1,1,K] w) => (float[1,1,M] y) {{ y = Conv<auto_pad = \"SAME_UPPER\", {attributes}>(x, w) }}"
    return run(graph, x=np.float32([[x]]), w=np.float32([[kernel]]))[0, 0].tolist()


print("onnxruntime", onnxruntime.__version__, "auto_pad = SAME_UPPER")
count = len(pool([1, 2, 3, 4], "kernel_shape = [2], dilations = [2]"))
print(f"4 elements, kernel 2, dilations 2, strides 1: AveragePool gives {count} results")
(taken,) = pool([1, 2, 3], "kernel_shape = [1], strides = [3]")
(first,) = convolution([1, 2, 3], [1], "kernel_shape = [1], strides = [3]")
print(f"of 1, 2, 3, kernel 1, strides 3: AveragePool takes {taken}, Conv takes {first}")
unchanged = (count, taken, first) == (3, 2.0, 1.0)
print("as described" if unchanged else "the behaviour has changed")
sys.exit(0 if unchanged else 1)
PYTHON
