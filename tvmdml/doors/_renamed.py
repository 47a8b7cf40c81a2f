"""One name for one thing: keywords that functions had, or that others have, are refused with the name that is meant.

Such a parameter costs a call nothing, and is neither in the signature nor in the documentation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

ABSENT: Any = object()
"""The default of a parameter that is refused."""
REQUIRED: Any = object()
"""The default of a parameter that must be given, and may have been by another name."""
MEANT = {"window_sizes": "window_size", "interpolation_mode": "mode", "axes": "axis", "axis": "axes"}
"""What is written in place of a keyword."""
_MORE = {"axes": ", a list of dimensions", "axis": ", one dimension"}


def refuse(function: str, keyword: str, name: str, value: object) -> None:
    """Say what a keyword is called, or that it is missing.

    Args:
        function: the function's name.
        keyword: the keyword that it has.
        name: what may be written in its place.
        value: what was given by that name.

    Raises:
        TypeError: always.
    """
    if value is ABSENT:
        raise TypeError(f"{function}() missing 1 required keyword-only argument: {keyword!r}")
    raise TypeError(f"{function}() has no keyword {name!r}: it is called {keyword!r} here{_MORE.get(keyword, '')}")


def hidden(function: F) -> F:
    """The function, whose signature does not show what it refuses."""
    signature = inspect.signature(function)
    shown = [
        one.replace(default=one.empty) if one.default is REQUIRED else one
        for one in signature.parameters.values()
        if one.default is not ABSENT
    ]
    if len(shown) < len(signature.parameters):
        function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return function
