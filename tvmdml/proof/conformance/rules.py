"""Rules: the types and ranks of each feature level, and every rule broken once, with the expected message."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import ClassVar

from tvmdml.compiler import compile as compile_operator
from tvmdml.enums import FeatureLevel
from tvmdml.errors import TvmdmlError
from tvmdml.operators import Operator
from tvmdml.proof.conformance import cases
from tvmdml.proof.conformance.checks import Check
from tvmdml.targets import Target
from tvmdml.tensors import MAX_RANK, TensorDataType, TensorDesc


@dataclasses.dataclass(frozen=True)
class RuleCheck(Check):
    """A descriptor that breaks a rule is refused, with a message that says what was given and what is allowed."""

    part: ClassVar[str] = "rules"
    name: str

    @property
    def what(self) -> str:
        """The rule's name."""
        return self.name

    def problem(self, target: Target, seed: int) -> str:
        """What is wrong with the refusal."""
        return refusal(cases.broken(self.operator)[self.name], target)


def refusal(broken: cases.Broken, target: Target) -> str:
    """What is wrong with the refusal of a broken rule; empty if nothing is."""
    start = f"{broken.where}: given {broken.given}; allowed: {broken.allowed}."
    wanted = f"should be refused with {broken.error.__name__}: {start}{' … ' + broken.advice if broken.advice else ''}"
    try:
        compile_operator(broken.build(), target, broken.level)
    except TvmdmlError as error:
        said = str(error)
        right = type(error) is broken.error and said.startswith(start) and said.endswith(broken.advice)
        return "" if right else f"{wanted}; was refused with {type(error).__name__}: {said}"
    return f"{wanted}; was accepted"


@dataclasses.dataclass(frozen=True)
class SupportRule(Check):
    """A feature level accepts exactly the types and ranks of the operator's table."""

    part: ClassVar[str] = "rules"
    level: str

    @property
    def what(self) -> str:
        """The check, with the level."""
        return f"types and ranks at {self.level}"

    def problem(self, target: Target, seed: int) -> str:
        """The first type and rank that are accepted but should not be, or the reverse."""
        make = cases.described(self.operator)
        level = FeatureLevel.of(self.level)
        for data_type, rank in itertools.product(TensorDataType, range(1, MAX_RANK + 1)):
            desc = make(TensorDesc(data_type, (2,) * rank))
            right, said = _is_listed(desc, level), ""
            try:
                desc.validate(level)
            except TvmdmlError as error:
                said = str(error)
            if right == bool(said):
                wanted = "should be accepted" if right else "should be refused"
                return f"{data_type.tvm} of rank {rank} {wanted}; {said or 'was accepted'}"
        return ""


def _is_listed(desc: Operator, level: FeatureLevel) -> bool:
    """Whether a row of the support table allows all tensors of a descriptor."""
    tensors = {name.partition("[")[0]: tensor for name, tensor in desc.tensors() if tensor is not None}
    return any(
        row.level is not None
        and row.level <= level
        and all(
            tensor.data_type in row.tensors[name].types and row.tensors[name].min_rank <= tensor.rank <= row.tensors[name].max_rank
            for name, tensor in tensors.items()
        )
        for row in desc.rows()
    )


def checks(names: Iterable[str], level: FeatureLevel) -> Iterator[Check]:
    """All rules of the operators, at every level."""
    for name in names:
        yield from (RuleCheck(name, rule) for rule in cases.broken(name))
        yield from (SupportRule(name, str(one)) for one in FeatureLevel)
