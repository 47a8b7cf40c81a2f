"""Runs a program that imports a package whose interface is here, by that package's name."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from collections.abc import Sequence
from types import ModuleType


def run(name: str, module: ModuleType, arguments: Sequence[str]) -> int:
    """Run a program with a module in place of the package of a name; the exit code, if the program does not exit by itself.

    Args:
        name: what the program imports.
        module: what it gets.
        arguments: the program and its arguments, or ``-m``, a module and its arguments.
    """
    if not arguments or arguments[0] in ("-h", "--help") or arguments == ["-m"]:
        sys.stderr.write(f"usage: python -m {module.__name__} [-m module | program.py] [argument ...]\n")
        return 0 if arguments and arguments[0] != "-m" else 2
    sys.modules[name] = module
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        sys.path[0] = os.getcwd()
        if not _exists(arguments[1]):
            sys.stderr.write(f"python -m {module.__name__}: there is no module {arguments[1]!r}\n")
            return 2
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return 0
    program = arguments[0]
    if not os.path.isfile(program):
        sys.stderr.write(f"python -m {module.__name__}: there is no file {program!r}\n")
        return 2
    sys.argv = list(arguments)
    sys.path[0] = os.path.dirname(os.path.abspath(program))
    runpy.run_path(program, run_name="__main__")
    return 0


def _exists(name: str) -> bool:
    """Whether there is a module of this name; the packages that it is in are imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:
        if error.name and not name.startswith(error.name):  # a package needs another one
            raise
        return False
    except (ImportError, ValueError):  # a name that begins with a point, or none
        return False
