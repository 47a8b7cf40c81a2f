#!/usr/bin/env bash
# onnx 1.23.2: the reference evaluator's LRN normalises as many channels as there are images, and leaves the others as they are.
#
# Expected: each channel is divided by (bias + alpha / size * sum of squares of neighbouring channels) ^ beta, for every batch.
# Seen: of one image, only the first channel is divided; of two images, the first two. The sums of the others are 0.
#
# Output:
#   onnx 1.23.2 LRN of ones, size = 1, alpha = 1, beta = 1: each element is 1 / (1 + 1)
#   1 image of 3 channels:  [[0.5, 1.0, 1.0]]
#   2 images of 3 channels: [[0.5, 0.5, 1.0], [0.5, 0.5, 1.0]]
#   as described
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check onnx==1.23.2 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -I - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnx.reference

text = '<ir_version: 8, opset_import: ["": 21]> g (float[N,C,1,1] x) => (float[N,C,1,1] y) { y = LRN<size = 1, alpha = 1.0, beta = 1.0>(x) }'
model = onnx.parser.parse_model(text)
onnx.checker.check_model(model)
evaluator = onnx.reference.ReferenceEvaluator(model)

print("onnx", onnx.__version__, "LRN of ones, size = 1, alpha = 1, beta = 1: each element is 1 / (1 + 1)")
seen = [evaluator.run(None, {"x": np.ones((n, 3, 1, 1), np.float32)})[0].reshape(n, 3).tolist() for n in (1, 2)]
print("1 image of 3 channels: ", seen[0])
print("2 images of 3 channels:", seen[1])
unchanged = seen == [[[0.5, 1, 1]], [[0.5, 0.5, 1]] * 2]
print("as described" if unchanged else "the behaviour has changed")
sys.exit(0 if unchanged else 1)
PYTHON
