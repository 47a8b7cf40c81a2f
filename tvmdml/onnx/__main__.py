"""``python -m tvmdml.onnx program.py``: run a program that imports ``onnxruntime``, or ``onnxruntime_genai``."""

import importlib.machinery
import sys

import tvmdml.onnx
from tvmdml.system.program import run

if __name__ == "__main__":
    # Its tools for files are found where the package is installed, behind what is here.
    if (installed := importlib.machinery.PathFinder.find_spec("onnxruntime")) is not None:
        tvmdml.onnx.__path__ += list(installed.submodule_search_locations or ())
    sys.exit(run({"onnxruntime": "tvmdml.onnx", "onnxruntime_genai": "tvmdml.genai"}, sys.argv[1:]))
