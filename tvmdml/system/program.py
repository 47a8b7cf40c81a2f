"""Runs a program that imports packages whose interfaces are here, by those packages' names."""

from __future__ import annotations

import importlib
import importlib.util
import os
import runpy
import sys
from collections.abc import Mapping, Sequence


def run(modules: Mapping[str, str], arguments: Sequence[str]) -> int:
    """Run a program with modules in place of the packages that it imports; the exit code, if the program does not exit by itself.

    Args:
        modules: what the program gets for what it imports. The first is the one that is run as a program.
        arguments: the program and its arguments, or ``-m``, a module and its arguments.
    """
    command = f"python -m {next(iter(modules.values()))}"
    if not arguments or arguments[0] in ("-h", "--help") or arguments == ["-m"]:
        sys.stderr.write(f"usage: {command} [-m module | program.py] [argument ...]\n")
        return 0 if arguments and arguments[0] != "-m" else 2
    sys.modules |= {name: importlib.import_module(module) for name, module in modules.items()}
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        sys.path[0] = os.getcwd()
        if not _exists(arguments[1]):
            sys.stderr.write(f"{command}: there is no module {arguments[1]!r}\n")
            return 2
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return 0
    program = arguments[0]
    if not os.path.isfile(program):
        sys.stderr.write(f"{command}: there is no file {program!r}\n")
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
