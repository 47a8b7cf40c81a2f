#!/usr/bin/env bash
# ONNX Runtime 1.32.0 (CPU): with several threads, ScatterND with a reduction loses updates whose indices meet.
#
# Expected: "reduction is add: indices may have duplicate entries". 100000 rows of ones, which are added to 8 rows, sum up to 100000 in
# each column.
# Seen: threads add to the same row at the same time, without a lock: with one thread the sums are right, with two some are less, and
# others in each run. ScatterElements, which runs on one thread, is right.
#
# Output (the numbers of the last line but one differ from run to run):
#   onnxruntime 1.32.0 ScatterND of 100000 rows of 64 ones to 8 rows, reduction = add
#   1 thread: no element is lost in 20 runs
#   2 threads: elements are lost in 4 of 20 runs, 934200 at most
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

COUNT, WIDTH, RUNS = 100000, 64, 20
text = """<ir_version: 8, opset_import: ["": 18]> g (int32[8, w] x, int64[n, 1] i, int32[n, w] u) => (int32[8, w] y) {
    y = ScatterND<reduction = "add">(x, i, u) }"""
model = onnx.parser.parse_model(text)
onnx.checker.check_model(model)
feeds = {
    "x": np.zeros((8, WIDTH), np.int32),
    "i": np.random.default_rng(0).integers(0, 8, (COUNT, 1)),
    "u": np.ones((COUNT, WIDTH), np.int32),
}


def lost(threads):
    """How many updates each run loses."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [COUNT * WIDTH - int(session.run(None, feeds)[0].sum()) for _ in range(RUNS)]


print("onnxruntime", onnxruntime.__version__, f"ScatterND of {COUNT} rows of {WIDTH} ones to 8 rows, reduction = add")
single, two = lost(1), lost(2)
print(f"1 thread: no element is lost in {RUNS} runs" if not any(single) else f"1 thread: {max(single)} elements are lost")
print(f"2 threads: elements are lost in {sum(n > 0 for n in two)} of {RUNS} runs, {max(two)} at most")
unchanged = not any(single) and any(two)
print("as described" if unchanged else "the behaviour has changed")
sys.exit(0 if unchanged else 1)
PYTHON
