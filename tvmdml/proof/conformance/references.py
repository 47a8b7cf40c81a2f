"""Reference cases: kernels run in guarded memory, and their results are compared bit for bit with the operator's reference."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Iterable, Iterator
from typing import ClassVar

import numpy as np

from tvmdml.compiler import CompiledOperator
from tvmdml.enums import NEWEST_FEATURE_LEVEL, FeatureLevel
from tvmdml.errors import InvalidArgument, Unsupported, message
from tvmdml.library import lines
from tvmdml.operators import Operator, _shared
from tvmdml.operators._contract import Shared
from tvmdml.operators._trial import OperatorTrial
from tvmdml.proof.conformance import cases
from tvmdml.proof.conformance.checks import Check, is_taken
from tvmdml.proof.conformance.fills import FILLS
from tvmdml.targets import Target


@dataclasses.dataclass(frozen=True)
class ReferenceCase(Check):
    """A kernel gives the same results as the reference, on one input."""

    part: ClassVar[str] = "cases"
    case: cases.Case

    @property
    def what(self) -> str:
        """The descriptor as in a pack's spec, and the input."""
        return f"{line(self.case.desc, self.case.shared)}, input {self.case.fill!r}"

    def problem(self, target: Target, seed: int) -> str:
        """What is wrong with the kernel's results."""
        desc, fill, shared = self.case
        # A case's seed does not depend on the other cases.
        number = zlib.crc32(self.what.encode())
        values = functools.partial(FILLS[fill], np.random.default_rng([seed, number]))
        return tried(desc, target, OperatorTrial(desc, shared, values, shift=number % 4, flushed=target.flushed()))


def line(desc: Operator, shared: Shared = ()) -> str:
    """A descriptor as a line in a pack's spec."""
    return lines.toml(lines.of(desc), _shared.write(desc, shared))


def tried(desc: Operator, target: Target, trial: OperatorTrial) -> str:
    """Compile an operator, allowing extensions, and call it; returns what is wrong, empty if nothing is."""
    desc.validate(NEWEST_FEATURE_LEVEL, extensions=True)
    operator = CompiledOperator(desc, target)
    places = trial.places()
    with target.holding([place.memory for place in places.values()]) as there:
        given = [None if array is None else there(array) for array in trial.arguments(places)]
        names = [name for name, _ in desc.tensors()]
        owned = {name: array for name, array in zip(names, given, strict=True) if name in desc.owned()}
        operator.initialize(**owned)
        operator(*(None if name in owned else array for name, array in zip(names, given, strict=True)))
        target.wait()
    return trial.problem(places)


def checks(names: Iterable[str], level: FeatureLevel) -> Iterator[ReferenceCase]:
    """The operators' cases that the level supports."""
    for name in names:
        for case in cases.reference(name):
            if is_taken(case.desc, level):
                yield ReferenceCase(name, case)


def again(text: str, fill: str, target: Target, seed: int) -> str:
    """Run a case of a report again: ``{ operator = "TOP_K1", … }`` and the name of its input.

    Raises:
        InvalidArgument: there is no such descriptor or input.
    """
    from tvmdml.library import spec

    if fill not in FILLS:
        raise InvalidArgument(message("case input", repr(fill), ", ".join(FILLS)))
    try:
        (wanted,) = spec.parse(f"kernels = [{text}]", "case").wanted
    except (Unsupported, ValueError) as error:
        raise InvalidArgument(str(error)) from None
    return ReferenceCase(wanted.desc.NAME, cases.Case(wanted.desc, fill, wanted.shared)).problem(target, seed)
