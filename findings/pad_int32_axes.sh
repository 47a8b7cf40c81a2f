#!/usr/bin/env bash
# onnx 1.23.2: shape inference raises on Pad with constant axes of int32.
#
# Expected: axes of int32 are as good as axes of int64: the operator's type Tind of its input axes is "tensor(int32),
# tensor(int64)", and the checker without shape inference accepts the model, as does onnx.reference.
# Seen: with axes of int32 in the model, the checker with full_check=True raises, and so does strict shape inference: it reads
# them as int64 only.
#
# Output:
#   onnx 1.23.2 Pad
#   types of axes: ['tensor(int32)', 'tensor(int64)']
#   axes of int64, check_model: accepted
#   axes of int64, check_model with full_check: accepted
#   axes of int64, infer_shapes with strict_mode: accepted
#   axes of int64, onnx.reference: [0.0, 1.0, 1.0, 0.0]
#   axes of int32, check_model: accepted
#   axes of int32, check_model with full_check: [ShapeInferenceError] Inference error(s): (op_type:Pad): [ShapeInferenceError] ParseData type mismatch for tensor: . Expected:int64 Actual:int32
#   axes of int32, infer_shapes with strict_mode: [ShapeInferenceError] Inference error(s): (op_type:Pad): [ShapeInferenceError] ParseData type mismatch for tensor: . Expected:int64 Actual:int32
#   axes of int32, onnx.reference: [0.0, 1.0, 1.0, 0.0]
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
from onnx.reference import ReferenceEvaluator


def padding(kind):
    """Pads of one element on both sides of the axis 0."""
    return onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 21]> g (float[2] x) => (float[n] y) {
        pads = Constant <value_ints = [1, 1]> ()
        axes = Constant <value = KIND[1] {0}> ()
        y = Pad(x, pads, , axes) }""".replace("KIND", kind)
    )


def outcome(call, *given, **options):
    try:
        call(*given, **options)
    except Exception as error:
        return " ".join(str(error).split())
    return "accepted"


print("onnx", onnx.__version__, "Pad")
kinds = onnx.defs.get_schema("Pad", 21).type_constraints
print("types of axes:", *(sorted(one.allowed_type_strs) for one in kinds if one.type_param_str == "Tind"))
seen = {}
for kind in ("int64", "int32"):
    model = padding(kind)
    seen[kind] = [
        outcome(onnx.checker.check_model, model),
        outcome(onnx.checker.check_model, model, full_check=True),
        outcome(onnx.shape_inference.infer_shapes, model, strict_mode=True),
    ]
    print(f"axes of {kind}, check_model:", seen[kind][0])
    print(f"axes of {kind}, check_model with full_check:", seen[kind][1])
    print(f"axes of {kind}, infer_shapes with strict_mode:", seen[kind][2])
    print(f"axes of {kind}, onnx.reference:", ReferenceEvaluator(model).run(None, {"x": np.ones(2, np.float32)})[0].tolist())
unchanged = (
    seen["int64"] == ["accepted"] * 3
    and seen["int32"][0] == "accepted"
    and all("ParseData type mismatch" in text for text in seen["int32"][1:])
)
print("as described" if unchanged else "the behaviour has changed")
sys.exit(0 if unchanged else 1)
PYTHON
