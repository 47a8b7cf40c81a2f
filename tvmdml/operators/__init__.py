"""The operators' definitions: one file for each operator, found by listing this folder."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from types import ModuleType

from tvmdml.errors import Unsupported, message, safe_repr
from tvmdml.operators._contract import Operator

__all__ = ["Operator", "all_operators", "by_name", "module_of", "public_name"]


@functools.cache
def _modules() -> tuple[str, ...]:
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")))


def _load(module: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{module}")


def _defined_in(module: ModuleType) -> list[type[Operator]]:
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Operator) and value.__module__ == module.__name__
    ]


@functools.cache
def all_operators() -> dict[str, type[Operator]]:
    """Every operator, by DirectML's name without ``DML_OPERATOR_``, in the order of the names."""
    found = {cls.NAME: cls for module in _modules() for cls in _defined_in(_load(module))}
    return dict(sorted(found.items()))


def by_name(name: str) -> type[Operator]:
    """The descriptor class of an operator, by DirectML's name, with or without ``DML_OPERATOR_``, in upper or lower case.

    Raises:
        Unsupported: tvmdml has no such operator.
    """
    wanted = name.upper().removeprefix("DML_OPERATOR_")
    for module in _candidates(wanted.lower()):
        for cls in _defined_in(_load(module)):
            if wanted == cls.NAME:
                return cls
    if wanted in all_operators():
        return all_operators()[wanted]
    raise Unsupported(message("operator", safe_repr(name), ", ".join(all_operators()), "`tvmdml operators` lists them."))


def module_of(cls: type[Operator]) -> str:
    """The short name of the module that defines an operator; its schedules have the same name."""
    return cls.__module__.rpartition(".")[2]


def public_name(name: str) -> object:
    """A public name of an operator's module: a descriptor class or a function in its ``__all__``.

    Raises:
        AttributeError: no operator's module defines this name.
    """
    # Try the likely module first, so that one name needs one import: TopK1 and top_k are both in top_k.py.
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    for module in (*_candidates(snake), *_modules()):
        loaded = _load(module)
        if name in loaded.__all__:
            return getattr(loaded, name)
    raise AttributeError(name)


def public_names_by_module() -> dict[str, list[str]]:
    """Every name that ``public_name`` finds, by the operator's module."""
    return {module: list(_load(module).__all__) for module in _modules()}


def _candidates(snake: str) -> list[str]:
    return [name for name in (snake, snake.rstrip("0123456789")) if name in _modules()]
