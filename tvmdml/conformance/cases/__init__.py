"""The cases of each operator: one file for each operator's module, with the same name.

Such a file defines ``DESCRIBED``, functions that make a descriptor from a tensor, by operator; ``BROKEN``, its rules, each broken
once; and ``reference(cls)``, the cases in which an operator's kernels must agree with the reference (those of other operators are
left out here).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from types import ModuleType

from tvmdml import operators
from tvmdml.conformance.cases._common import Broken, Case
from tvmdml.errors import Unsupported, message
from tvmdml.operators import Operator
from tvmdml.tensors import TensorDesc

__all__ = ["Broken", "Case", "broken", "described", "reference"]


def _file(operator: str) -> ModuleType:
    name = f"{__name__}.{operators.module_of(operators.by_name(operator))}"
    if importlib.util.find_spec(name) is None:
        advice = f"Write {name.replace('.', '/')}.py, as tvmdml/operators/README.md says."
        raise Unsupported(message("conformance", f"{operator}, which has no cases", "operators with cases", advice))
    return importlib.import_module(name)


def described(operator: str) -> Callable[[TensorDesc], Operator]:
    """The function that makes a descriptor from its first tensor, with correct values for everything else."""
    return _file(operator).DESCRIBED[operators.by_name(operator)]


def broken(operator: str) -> dict[str, Broken]:
    """The operator's rules, each broken once."""
    rules: dict[str, Broken] = _file(operator).BROKEN
    return {name: rule for name, rule in rules.items() if rule.where.split()[0] == operator}


def reference(operator: str) -> Iterator[Case]:
    """The cases in which the operator's kernels must agree with the reference."""
    cls = operators.by_name(operator)
    yield from (case for case in _file(operator).reference(cls) if type(case.desc) is cls)
