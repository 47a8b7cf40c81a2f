"""The cases of each operator: one file for each operator's module, with the same name, unless all of its operators are pointwise.

Such a file defines ``DESCRIBED``, functions that make a descriptor from a tensor, by operator; ``BROKEN``, its rules, each broken
once; and ``reference(cls)``, the cases in which an operator's kernels must agree with the reference (those of other operators are
left out here).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator

from tvmdml import operators
from tvmdml.errors import Unsupported, message
from tvmdml.operators import Operator
from tvmdml.operators._pointwise import Pointwise
from tvmdml.proof.conformance.cases._common import Broken, Case
from tvmdml.proof.conformance.cases._pointwise import Cases, of
from tvmdml.tensors import TensorDesc

__all__ = ["Broken", "Case", "broken", "described", "reference"]


def _cases(operator: str) -> Cases:
    module = operators.module_of(operators.by_name(operator))
    name = f"{__name__}.{module}"
    if importlib.util.find_spec(name) is not None:
        file = importlib.import_module(name)
        return Cases(file.DESCRIBED, file.BROKEN, file.reference)
    if all(issubclass(cls, Pointwise) for cls in operators.classes_in(module)):
        return _of_pointwise(module)
    advice = f"Write {name.replace('.', '/')}.py, as tvmdml/operators/README.md says."
    raise Unsupported(message("conformance", f"{operator}, which has no cases", "operators with cases", advice))


_of_pointwise = functools.cache(of)


def described(operator: str) -> Callable[[TensorDesc], Operator]:
    """The function that makes a descriptor from its first tensor, with correct values for everything else."""
    return _cases(operator).described[operators.by_name(operator)]


def broken(operator: str) -> dict[str, Broken]:
    """The operator's rules, each broken once."""
    return {name: rule for name, rule in _cases(operator).broken.items() if rule.where.split()[0] == operator}


def reference(operator: str) -> Iterator[Case]:
    """The cases in which the operator's kernels must agree with the reference."""
    cls = operators.by_name(operator)
    yield from (case for case in _cases(operator).reference(cls) if type(case.desc) is cls)
