"""Which knobs count inside of a block: ``using`` sets some, ``untuned`` ignores tuning logs. Programs import it from ``tvmdml``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from tvmdml import operators
from tvmdml.errors import InvalidArgument, message, safe_repr
from tvmdml.kernels.knobs import Constraint as Constraint
from tvmdml.kernels.knobs import Knob as Knob
from tvmdml.kernels.knobs import Knobs as Knobs
from tvmdml.kernels.knobs import Value as Value
from tvmdml.kernels.knobs import in_force as in_force
from tvmdml.kernels.knobs import is_declared, setting
from tvmdml.kernels.knobs import logs_count as logs_count
from tvmdml.kernels.knobs import of as of
from tvmdml.kernels.knobs import untuned as untuned


@contextlib.contextmanager
def using(**given: Mapping[str, Value]) -> Iterator[None]:
    """Set knobs for operators that are compiled inside: ``with knobs.using(top_k={"algorithm": "sort"}):``.

    It applies to ``tvmdml.compile`` and functions in the whole process, on targets with a schedule that has the knob and accepts
    the value. What was compiled before keeps its kernels.

    Raises:
        InvalidArgument: no operator has that name, or its value is not a dict. (The names and values of knobs are checked when a
            kernel is made.)
    """
    for name, values in given.items():
        if not isinstance(values, Mapping):
            raise InvalidArgument(message(f"knobs.using {name}", safe_repr(values), "a dict of knob names and values"))
        families = operators.families_of(name) if name.isidentifier() else ()
        if not (is_declared(name) or families or name in operators.modules()):
            allowed = "an operator's module or a family of operators, such as top_k or pointwise"
            raise InvalidArgument(message("knobs.using", safe_repr(name), allowed))
        if families and name not in families:
            raise InvalidArgument(message("knobs.using", safe_repr(name), ", ".join(families), "The knobs are its family's."))
    with setting(given):
        yield
