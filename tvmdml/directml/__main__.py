"""``python -m tvmdml.directml program.py``: run a program that imports ``directml``."""

import sys

import tvmdml.directml
from tvmdml._program import run

if __name__ == "__main__":
    sys.exit(run("directml", tvmdml.directml, sys.argv[1:]))
