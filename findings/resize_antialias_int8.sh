#!/usr/bin/env bash
# ONNX Runtime 1.32.0 (CPU): Resize with antialias=1 of int8 gives 0 wherever the result is negative.
#
# Expected: the weighed means that the same numbers have as floats, rounded. The operator's types include int8, and its text says
# of antialias that it makes "linear" and "cubic" modes "use an antialiasing filter when downscaling", which does not change
# signs.
# Seen: every negative element of the result is 0, as if its range were that of uint8, also when the image is enlarged and no
# filter is needed. Without antialias the same image is right.
#
# Output:
#   onnxruntime 1.32.0 Resize of int8 with antialias=1
#   -20 to -5, 4 x 4 to 2 x 2, as floats: [[-16.88, -15.12], [-9.88, -8.12]]
#   -20 to -5, 4 x 4 to 2 x 2, linear: [[0.0, 0.0], [0.0, 0.0]]
#   -20 to -5, 4 x 4 to 2 x 2, cubic: [[0.0, 0.0], [0.0, 0.0]]
#   -8 to 7, 4 x 4 to 2 x 2, linear: [[0.0, 0.0], [3.0, 4.0]]
#   -20 to -5, 4 x 4 to 2 x 2, linear, antialias=0: [[-17.0, -15.0], [-9.0, -7.0]]
#   -20 to -5, 4 x 4 to 6 x 6, linear, largest and least element: 0.0 0.0
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
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 21, "com.microsoft": 1]> ' + graph)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def resized(image, size, antialias, mode="linear"):
    kind = {"int8": "int8", "float32": "float"}[str(image.dtype)]
    graph = f"""g ({kind}[4,4] x, int64[2] s) => ({kind}[a,b] y) {{
        y = Resize <mode = "{mode}", antialias = {antialias}> (x, , , s) }}"""
    return run(graph, x=image, s=np.array([size, size])).astype(np.float64).round(2).tolist()


print("onnxruntime", onnxruntime.__version__, "Resize of int8 with antialias=1")
below = (np.arange(16) - 20).astype(np.int8).reshape(4, 4)
across = (np.arange(16) - 8).astype(np.int8).reshape(4, 4)
print("-20 to -5, 4 x 4 to 2 x 2, as floats:", resized(below.astype(np.float32), 2, 1))
seen = [resized(below, 2, 1), resized(below, 2, 1, "cubic"), resized(across, 2, 1), resized(below, 2, 0)]
print("-20 to -5, 4 x 4 to 2 x 2, linear:", seen[0])
print("-20 to -5, 4 x 4 to 2 x 2, cubic:", seen[1])
print("-8 to 7, 4 x 4 to 2 x 2, linear:", seen[2])
print("-20 to -5, 4 x 4 to 2 x 2, linear, antialias=0:", seen[3])
enlarged = resized(below, 6, 1)
print("-20 to -5, 4 x 4 to 6 x 6, linear, largest and least element:", np.max(enlarged), np.min(enlarged))
zeros = [[0, 0], [0, 0]]
unchanged = seen[:2] == [zeros, zeros] and seen[2] == [[0, 0], [3, 4]] and np.max(seen[3]) < 0 and not np.any(enlarged)
print("as described" if unchanged else "the behaviour has changed")
sys.exit(0 if unchanged else 1)
PYTHON
