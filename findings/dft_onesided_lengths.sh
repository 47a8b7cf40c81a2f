#!/usr/bin/env bash
# ONNX Runtime 1.32.0 (CPU): the inverse of a onesided DFT takes other frequencies if the length is not the usual one.
#
# Expected: as numpy.fft.irfft: of 3 frequencies and a length of 6, the fourth frequency is 0, and so the mean of the result is the
# first frequency by 6.
# Seen: for the usual length, 4, it agrees with NumPy. For 6 it does not: the mean is 0.
#
# Output:
#   onnxruntime 1.32.0 DFT, inverse and onesided, of 1, 2 + 1j, 4
#   length 4: ONNX Runtime [2.25, -1.25, 0.25, -0.25]; NumPy [2.25, -1.25, 0.25, -0.25]
#   length 6: ONNX Runtime [1.5, -0.122, -0.7887, 0.1667, -0.2113, 0.4553]; NumPy [2.1667, -0.4553, -1.122, 0.8333, -0.5447, 0.122]
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


def inverse(length):
    graph = "g (float[1,3,2] x, int64 n, int64 axis) => (float[1,M,1] y) { y = DFT<inverse = 1, onesided = 1>(x, n, axis) }"
    return run(graph, x=np.float32([[[1, 0], [2, 1], [4, 0]]]), n=np.array(length), axis=np.array(1)).reshape(-1)


print("onnxruntime", onnxruntime.__version__, "DFT, inverse and onesided, of 1, 2 + 1j, 4")
seen = {}
for length in (4, 6):
    found, right = (np.round(one.astype(np.float64), 4).tolist() for one in (inverse(length), np.fft.irfft([1, 2 + 1j, 4], length)))
    print(f"length {length}: ONNX Runtime {found}; NumPy {right}")
    seen[length] = np.allclose(found, right, atol=1e-3)
unchanged = seen == {4: True, 6: False}
print("as described" if unchanged else "the behaviour has changed")
sys.exit(0 if unchanged else 1)
PYTHON
