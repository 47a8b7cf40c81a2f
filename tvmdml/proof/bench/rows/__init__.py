"""The rows of the benchmark: one file for each operator's module, or for a family, found by listing this folder.

A file is named after the module in ``tvmdml/operators``, or after the family. It may define

- ``CASES``, what is measured on a processor, and ``CASES_ON``, tables of other kinds of targets by kind, with their own goals,
- ``KIND``, a ``task.Kind``, if the operators' work is not what their descriptors say.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from types import ModuleType

from tvmdml import operators


@functools.cache
def modules() -> tuple[str, ...]:
    """The names of the files, those with an underscore last: they look at the rows of the others."""
    return tuple(sorted((m.name for m in pkgutil.iter_modules(__path__)), key=lambda name: (name.startswith("_"), name)))


def load(name: str) -> ModuleType:
    """One of the files."""
    return importlib.import_module(f"{__name__}.{name}")


def of(operator: str) -> list[ModuleType]:
    """The files that are about an operator: its module's, and its family's."""
    cls = operators.by_name(operator)
    return [load(name) for name in dict.fromkeys((operators.module_of(cls), cls.FAMILY)) if name in modules()]
