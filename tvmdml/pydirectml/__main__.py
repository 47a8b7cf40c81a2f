"""``python -m tvmdml.pydirectml program.py``: run a program that imports ``pydirectml``, or early versions of ``directml``."""

import sys

import tvmdml.pydirectml
from tvmdml.system.program import run

if __name__ == "__main__":
    sys.modules["directml"] = tvmdml.pydirectml  # whose first versions had this interface
    sys.exit(run("pydirectml", tvmdml.pydirectml, sys.argv[1:]))
