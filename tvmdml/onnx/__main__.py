"""``python -m tvmdml.onnx program.py``: run a program that imports ``onnxruntime``."""

import sys

import tvmdml.onnx
from tvmdml._program import run

if __name__ == "__main__":
    sys.exit(run("onnxruntime", tvmdml.onnx, sys.argv[1:]))
