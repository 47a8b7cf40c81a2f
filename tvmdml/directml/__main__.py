"""``python -m tvmdml.directml program.py``: run a program that imports ``directml``, or ``pydirectml``."""

import sys

from tvmdml.system.program import run

if __name__ == "__main__":
    sys.exit(run({"directml": "tvmdml.directml", "pydirectml": "tvmdml.pydirectml"}, sys.argv[1:]))
