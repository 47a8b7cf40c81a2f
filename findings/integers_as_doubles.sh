#!/usr/bin/env bash
# ONNX Runtime 1.32.0 (CPU): Pow and sums of integers are computed in another type, and integers that fit are rounded.
#
# Expected: exact integers, as far as they are in the range of the type; beyond it they wrap, as those of Mul do in the same
# library. The operators' texts allow int64 and speak of no other type: Pow is "f(x) = x^exponent", ReduceSum "the sum of the
# input tensor's elements".
# Seen: 3 to the power of 35 is wrong in its last digits in int64, and the sum of the one element 2^53 + 1 is 2^53, as in float64.
# Beyond the range of int32, Pow gives the least integer, also where the power is positive, and reductions give the largest one.
#
# Output:
#   onnxruntime 1.32.0 integers
#   int64 Pow(3, 35): 50031545098999704; exact: 50031545098999707
#   int64 ReduceSum([2^53 + 1]): 9007199254740992; exact: 9007199254740993
#   int32 Pow(3, 25): -2147483648; exact: 847288609443
#   int32 ReduceSumSquare([50000]): 2147483647; exact: 2500000000
#   int32 Mul(50000, 50000): -1794967296; exact: 2500000000
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


print("onnxruntime", onnxruntime.__version__, "integers")
long, short = np.int64, np.int32
seen = {
    "int64 Pow(3, 35)": run("g (int64[1] a, int64[1] b) => (int64[1] y) { y = Pow(a, b) }", a=long([3]), b=long([35])),
    "int64 ReduceSum([2^53 + 1])": run("g (int64[1] a) => (int64[1] y) { y = ReduceSum(a) }", a=long([2**53 + 1])),
    "int32 Pow(3, 25)": run("g (int32[1] a, int32[1] b) => (int32[1] y) { y = Pow(a, b) }", a=short([3]), b=short([25])),
    "int32 ReduceSumSquare([50000])": run("g (int32[1] a) => (int32[1] y) { y = ReduceSumSquare(a) }", a=short([50000])),
    "int32 Mul(50000, 50000)": run("g (int32[1] a) => (int32[1] y) { y = Mul(a, a) }", a=short([50000])),
}
numbers = [int(result[0]) for result in seen.values()]
exact = [3**35, 2**53 + 1, 3**25, 50000**2, 50000**2]
for (name, _), number, right in zip(seen.items(), numbers, exact, strict=True):
    print(f"{name}: {number}; exact: {right}")
unchanged = numbers == [50031545098999704, 2**53, -(2**31), 2**31 - 1, 50000**2 - 2**32]
print("as described" if unchanged else "the behaviour has changed")
sys.exit(0 if unchanged else 1)
PYTHON
