"""What each operator is asked: a file an operator's file, found by its name, with no list of them anywhere.

Such a file has ``DESCRIBED``, a descriptor of a given tensor for each operator; ``BROKEN``, its rules, each broken once; and
``reference()``, what kernels have to agree with the reference in.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from types import ModuleType

from tvmdml import operators
from tvmdml.conformance.cases._common import Broken, Case
from tvmdml.operators import Operator
from tvmdml.tensors import TensorDesc

__all__ = ["Broken", "Case", "broken", "described", "reference"]


def _file(operator: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{operators.module_of(operators.by_name(operator))}")


def described(operator: str) -> Callable[[TensorDesc], Operator]:
    """What makes a descriptor of the operator out of its first tensor, right in everything else."""
    found: Callable[[TensorDesc], Operator] = _file(operator).DESCRIBED[operators.by_name(operator)]
    return found


def broken(operator: str) -> dict[str, Broken]:
    """The operator's rules, each broken once."""
    rules: dict[str, Broken] = _file(operator).BROKEN
    return {name: rule for name, rule in rules.items() if rule.where.split()[0] == operator}


def reference(operator: str) -> Iterator[Case]:
    """What its kernels have to agree with the reference in."""
    cls = operators.by_name(operator)
    yield from (case for case in _file(operator).reference() if type(case.desc) is cls)
