"""Functions for arrays, such as ``tvmdml.round``: made from the operators' descriptors, or written in a file here.

A function is made from a descriptor class that names one (``FUNCTION``). A function that needs more than that is written in a file
of this folder, with the name of the operator's file. There is no list of functions.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

from tvmdml import operators
from tvmdml.doors import _docs
from tvmdml.doors._made import RESULT, made

__all__ = ["functions", "public_name", "public_names", "public_names_by_module"]


_MORE = "\n\n`tvmdml operators {}` shows the structure's fields, types by feature level, and knobs."


@functools.cache
def public_names(module: str) -> dict[str, Any]:
    """The functions of an operator's file and the types of their results, by name."""
    found = _written(module)
    for cls in _classes(module):
        found |= _made(cls)
    return found


@functools.cache
def _written(module: str) -> dict[str, Any]:
    """Those that are written in a file here."""
    if importlib.util.find_spec(f"{__name__}.{module}") is None:
        return {}
    written = importlib.import_module(f"{__name__}.{module}")
    found = {name: getattr(written, name) for name in written.__all__}
    for function in filter(inspect.isfunction, {id(value): value for value in found.values()}.values()):
        if function.__doc__ is not None:  # with -OO there are none
            function.__doc__ = inspect.cleandoc(_docs.completed(function)) + _MORE.format(function.__name__)
    return found


def _classes(module: str) -> list[Any]:
    """The classes that functions are made from."""
    return [cls for cls in operators.classes_in(module) if vars(cls).get("FUNCTION")]


@functools.cache
def _made(cls: Any) -> dict[str, Any]:
    found = made(cls)
    found[cls.FUNCTION].__doc__ = inspect.cleandoc(found[cls.FUNCTION].__doc__) + _MORE.format(cls.FUNCTION)
    return found


def functions(module: str) -> dict[str, Any]:
    """The functions of an operator's file, by name."""
    return {name: value for name, value in public_names(module).items() if inspect.isfunction(value)}


@functools.cache
def public_name(name: str) -> object:
    """A function, or the type of a function's results.

    Raises:
        AttributeError: no operator has a function of this name.
    """
    for module in operators.modules_like(name):
        if name in (written := _written(module)):
            return written[name]
        for cls in _classes(module):
            if (name in (cls.FUNCTION, *cls.ALIASES) or name.endswith(RESULT)) and name in (own := _made(cls)):
                return own[name]
    raise AttributeError(name)


def public_names_by_module() -> dict[str, list[str]]:
    """Every name that ``public_name`` finds, by the operator's file."""
    return {module: list(public_names(module)) for module in operators.modules()}
