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
from tvmdml.doors._made import made

__all__ = ["functions", "public_name", "public_names", "public_names_by_module"]


@functools.cache
def public_names(module: str) -> dict[str, Any]:
    """The functions of an operator's file and the types of their results, by name."""
    found: dict[str, Any] = {}
    if importlib.util.find_spec(f"{__name__}.{module}") is not None:
        written = importlib.import_module(f"{__name__}.{module}")
        found |= {name: getattr(written, name) for name in written.__all__}
    for cls in operators.classes_in(module):
        if vars(cls).get("FUNCTION"):
            found |= made(cls)
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
        if name in (found := public_names(module)):
            return found[name]
    raise AttributeError(name)


def public_names_by_module() -> dict[str, list[str]]:
    """Every name that ``public_name`` finds, by the operator's file."""
    return {module: list(public_names(module)) for module in operators.modules()}
