"""``python -m tvmdml.pydirectml program.py``: run a program that imports ``pydirectml``."""

import sys

import tvmdml.pydirectml
from tvmdml.directml.running import run

if __name__ == "__main__":
    sys.exit(run("pydirectml", tvmdml.pydirectml, sys.argv[1:]))
