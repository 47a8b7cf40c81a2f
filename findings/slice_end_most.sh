#!/usr/bin/env bash
# ONNX Runtime 1.32.0 (CPU): Slice with a step of -1 takes an end of 2^63 - 1, or 2^31 - 1, for one before the first element.
#
# Expected: nothing. The operator's text says of ends: "for negative stepping it is clamped to [-1, dims[axes[i]]-1]", and
# recommends INT_MIN for slicing backward to the end. Of three elements from the start 2, an end of 2^63 - 1 is thus clamped to 2,
# where the slice starts: it is empty, as with every other end from 2 on.
# Seen: the two largest integers give the whole vector backward, and the other ends nothing.
#
# Output:
#   onnxruntime 1.32.0 Slice of [1, 2, 3] from 2, with a step of -1
#   to 100: []
#   to 2^31 - 2: []
#   to 2^31 - 1: [3.0, 2.0, 1.0]
#   to 2^31: []
#   to 2^63 - 2: []
#   to 2^63 - 1: [3.0, 2.0, 1.0]
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


def sliced(end):
    graph = """g (float[3] x, int64[1] start, int64[1] end, int64[1] axis, int64[1] step) => (float[n] y) {
        y = Slice(x, start, end, axis, step) }"""
    about = {"start": np.array([2]), "end": np.array([end]), "axis": np.array([0]), "step": np.array([-1])}
    return run(graph, x=np.array([1, 2, 3], np.float32), **about).tolist()


print("onnxruntime", onnxruntime.__version__, "Slice of [1, 2, 3] from 2, with a step of -1")
names = {"100": 100, "2^31 - 2": 2**31 - 2, "2^31 - 1": 2**31 - 1, "2^31": 2**31, "2^63 - 2": 2**63 - 2, "2^63 - 1": 2**63 - 1}
seen = {name: sliced(end) for name, end in names.items()}
for name, elements in seen.items():
    print(f"to {name}:", elements)
unchanged = seen == {name: [3, 2, 1] if name in ("2^31 - 1", "2^63 - 1") else [] for name in names}
print("as described" if unchanged else "the behaviour has changed")
sys.exit(0 if unchanged else 1)
PYTHON
