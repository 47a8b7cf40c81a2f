#!/usr/bin/env bash
# ONNX Runtime 1.32.0 (CPU): MultiHeadAttention with unidirectional=1, no past, and more keys than queries masks all queries but
# the last one.
#
# Expected: one rule for all queries. The operator's text says of unidirectional: "Whether every token can only attend to previous
# tokens." With 3 queries and 5 keys that is keys 0 to i for query i (ends of rows 0, 1, 2), or, if the last query belongs to the
# last key, keys 0 to i + 2 (2, 3, 4). All scores are equal here, and key k has the value k, so that a result is half of the last
# key that was seen.
# Seen: query 0 sees key 0, query 1 keys 0 and 1, and query 2 all five: results of neither rule. With as many keys as queries all
# is well.
#
# Output:
#   onnxruntime 1.32.0 MultiHeadAttention, unidirectional: the last key that each query sees
#   3 queries, 3 keys: [0.0, 1.0, 2.0]
#   3 queries, 5 keys: [0.0, 1.0, 4.0]
#   2 queries, 6 keys: [0.0, 5.0]
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


def attend(queries, keys):
    value = np.repeat(np.arange(keys, dtype=np.float32)[None, :, None], 8, axis=2)
    graph = f"""g (float[1,{queries},8] q, float[1,{keys},8] k, float[1,{keys},8] v) => (float[1,{queries},8] y) {{
        y = com.microsoft.MultiHeadAttention <num_heads = 1, unidirectional = 1> (q, k, v) }}"""
    result = run(graph, q=np.zeros((1, queries, 8), np.float32), k=np.zeros((1, keys, 8), np.float32), v=value)
    return (result[0, :, 0] * 2).tolist()


print("onnxruntime", onnxruntime.__version__, "MultiHeadAttention, unidirectional: the last key that each query sees")
seen = {(queries, keys): attend(queries, keys) for queries, keys in ((3, 3), (3, 5), (2, 6))}
for (queries, keys), last in seen.items():
    print(f"{queries} queries, {keys} keys:", last)
unchanged = seen == {(3, 3): [0, 1, 2], (3, 5): [0, 1, 4], (2, 6): [0, 5]}
print("as described" if unchanged else "the behaviour has changed")
sys.exit(0 if unchanged else 1)
PYTHON
