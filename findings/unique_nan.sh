#!/usr/bin/env bash
# ONNX Runtime 1.32.0 (CPU): Unique takes NaN for equal to any number, so NaN is lost, or all numbers are.
#
# Expected: the different elements, sorted: of [3, NaN, 3, 1] the numbers 1 and 3, and NaN, as NumPy and ONNX's reference give them.
# Seen: elements are ordered by <, for which NaN is equal to each of them. Behind a number, NaN is counted as that number; as the first
# element it is the only one that is different. Indices and counts follow: an element that occurs twice has a count of 3.
#
# Output:
#   onnxruntime 1.32.0 Unique
#   [3.0, nan, 3.0, nan] -> [3.0], counts [4]
#   [3.0, nan, 3.0, 1.0] -> [1.0, 3.0], counts [1, 3]
#   [nan, 3.0, 1.0, 2.0] -> [nan], counts [4]
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
nan = float("nan")
text = """<ir_version: 8, opset_import: ["": 21]> g (float[n] x) => (float[k] y, int64[k] counts) { y, , , counts = Unique(x) }"""
model = onnx.parser.parse_model(text)
onnx.checker.check_model(model)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
print("onnxruntime", onnxruntime.__version__, "Unique")
wanted = {(3.0, nan, 3.0, nan): ([3.0], [4]), (3.0, nan, 3.0, 1.0): ([1.0, 3.0], [1, 3]), (nan, 3.0, 1.0, 2.0): ([nan], [4])}
unchanged = True
for elements, (different, counts) in wanted.items():
    y, seen = session.run(None, {"x": np.array(elements, np.float32)})
    print(list(elements), "->", f"{y.tolist()}, counts {seen.tolist()}")
    unchanged = unchanged and np.array_equal(y, different, equal_nan=True) and seen.tolist() == counts
print("as described" if unchanged else "the behaviour has changed")
sys.exit(0 if unchanged else 1)
PYTHON
