"""How this package starts Python child processes: they import the same modules as this process, and none from the current folder.

``python -c`` and ``multiprocessing`` put the current folder first on the module path, so a file ``numpy.py`` in a downloaded folder
would run. The child processes here receive their module path as arguments and set it before they import anything.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_FIRST = "import sys; sys.path[:] = sys.argv[1:]; "
"""``sys`` is built into Python, so no file can replace it."""


def command(code: str) -> list[str]:
    """The command that runs Python code in a child process."""
    return [sys.executable, "-c", _FIRST + code, *module_path()]


def module_path() -> list[str]:
    """This process's module path without the current folder, unless ``PYTHONPATH`` contains it; this package is always on it."""
    here = _current_folder()
    named = [os.path.realpath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    kept = [entry for entry in sys.path if entry and (os.path.realpath(entry) != here or here in named)]
    home = str(Path(__file__).resolve().parents[2])  # last: in a clone it may be the current folder
    return kept if home in kept else [*kept, home]


def _current_folder() -> str:
    try:
        return os.path.realpath(os.getcwd())
    except OSError:  # it was removed
        return ""
