"""``python -m tvmdml.onnx program.py``: run a program that imports ``onnxruntime``, or ``onnxruntime_genai``."""

import sys

import tvmdml.genai
import tvmdml.onnx
from tvmdml._program import run

if __name__ == "__main__":
    sys.modules["onnxruntime_genai"] = tvmdml.genai
    sys.exit(run("onnxruntime", tvmdml.onnx, sys.argv[1:]))
