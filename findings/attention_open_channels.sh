#!/usr/bin/env bash
# onnx 1.23.2, shape inference of Attention (opset 23) with three dimensions: where the channels of V have a name instead of a
# number, the result is said to have exactly 0 channels. onnx's checker accepts the model.
#
# Expected: the name of V's channels, or an unknown size.
# Seen: 0, as a known size.
#
# Output:
#   onnx 1.23.2 Attention of V with 30 channels, and with channels d
#   30: [2, 4, 30]
#   d:  [2, 4, 0]
#   as described
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check onnx==1.23.2 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -I - <<'PYTHON'
import sys

import onnx


def inferred(channels):
    """The sizes of the result that onnx infers: numbers, names, or a question mark."""
    graph = f"g (float[2,4,24] q, float[2,6,24] k, float[2,6,{channels}] v) => (float[A,B,C] y)"
    node = "{ r = Attention<q_num_heads = 3, kv_num_heads = 3>(q, k, v) y = Identity(r) }"
    model = onnx.parser.parse_model(f'<ir_version: 11, opset_import: ["": 23]> {graph} {node}')
    onnx.checker.check_model(model)
    (value,) = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph.value_info
    sizes = value.type.tensor_type.shape.dim
    return [one.dim_value if one.HasField("dim_value") else one.dim_param or "?" for one in sizes]


print("onnx", onnx.__version__, "Attention of V with 30 channels, and with channels d")
known, named = inferred(30), inferred("d")
print("30:", known)
print("d: ", named)
unchanged = (known, named) == ([2, 4, 30], [2, 4, 0])
print("as described" if unchanged else "the behaviour has changed")
sys.exit(0 if unchanged else 1)
PYTHON
