"""How this package starts Python processes of its own: they import what this process would, and nothing from the current folder.

``python -c`` and ``multiprocessing`` put the current folder first on the module path. A file ``numpy.py`` in a folder that somebody
downloaded would run. The children here get their path as arguments, before they import anything.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_FIRST = "import sys; sys.path[:] = sys.argv[1:]; "
"""``sys`` is built into Python, so no file can take its place."""


def command(code: str) -> list[str]:
    """The command that runs Python code in a child."""
    return [sys.executable, "-c", _FIRST + code, *module_path()]


def module_path() -> list[str]:
    """This process's module path without the current folder, unless ``PYTHONPATH`` names it; this package is found in any case."""
    here = _current_folder()
    named = [os.path.realpath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    kept = [entry for entry in sys.path if entry and (os.path.realpath(entry) != here or here in named)]
    home = str(Path(__file__).resolve().parents[1])  # last: in a clone it may be the current folder
    return kept if home in kept else [*kept, home]


def _current_folder() -> str:
    try:
        return os.path.realpath(os.getcwd())
    except OSError:  # it was removed
        return ""
