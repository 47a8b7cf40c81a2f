"""Builds the emulator and prints what makes a shell use it: ``eval "$(python -m tests.cuda_emulator)"``."""

from __future__ import annotations

import shlex
import sys

from . import environment, missing

if missing():
    sys.exit(missing())
for name, value in environment().items():
    sys.stdout.write(f"export {name}={shlex.quote(value)}\n")
