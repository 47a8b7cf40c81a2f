"""``python -m tvmdml.directml program.py``: run a program that imports ``directml``, or ``pydirectml``."""

import sys

import tvmdml.directml
import tvmdml.pydirectml
from tvmdml.system.program import run

if __name__ == "__main__":
    sys.modules["pydirectml"] = tvmdml.pydirectml
    sys.exit(run("directml", tvmdml.directml, sys.argv[1:]))
