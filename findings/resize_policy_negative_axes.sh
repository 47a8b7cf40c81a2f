#!/usr/bin/env bash
# ONNX Runtime 1.32.0 (CPU): Resize with keep_aspect_ratio_policy and negative axes leaves the sizes of its input as they are.
#
# Expected: axes=[-2, -1] of a matrix mean the same as axes=[0, 1]. The operator's text says of axes: "Negative value means
# counting dimensions from the back. Accepted range is [-r, r-1]".
# Seen: with not_smaller and not_larger the result has the size of the input, without an error. With the policy stretch, negative
# axes are right.
#
# Output:
#   onnxruntime 1.32.0 Resize of 2 x 4 elements to sizes=[4, 6]
#   stretch, axes=[0, 1]: (4, 6)
#   stretch, axes=[-2, -1]: (4, 6)
#   not_smaller, axes=[0, 1]: (4, 8)
#   not_smaller, axes=[-2, -1]: (2, 4)
#   not_larger, axes=[0, 1]: (3, 6)
#   not_larger, axes=[-2, -1]: (2, 4)
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


def shape(axes, policy):
    graph = f"""g (float[2,4] x, int64[2] s) => (float[a,b] y) {{
        y = Resize <axes = {axes}, keep_aspect_ratio_policy = "{policy}"> (x, , , s) }}"""
    return run(graph, x=np.zeros((2, 4), np.float32), s=np.array([4, 6])).shape


print("onnxruntime", onnxruntime.__version__, "Resize of 2 x 4 elements to sizes=[4, 6]")
seen = {}
for policy in ("stretch", "not_smaller", "not_larger"):
    for axes in ([0, 1], [-2, -1]):
        seen[policy, axes[0]] = shape(axes, policy)
        print(f"{policy}, axes={axes}:", seen[policy, axes[0]])
unchanged = seen == {
    ("stretch", 0): (4, 6),
    ("stretch", -2): (4, 6),
    ("not_smaller", 0): (4, 8),
    ("not_smaller", -2): (2, 4),
    ("not_larger", 0): (3, 6),
    ("not_larger", -2): (2, 4),
}
print("as described" if unchanged else "the behaviour has changed")
sys.exit(0 if unchanged else 1)
PYTHON
