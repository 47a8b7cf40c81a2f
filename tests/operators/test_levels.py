"""What the CPU's code computes at each level of x86-64: all pairs of difficult values, of a sample of the pointwise operators.

LLVM has other instructions at each level, and other ways around those that are missing. The sample is drawn anew when the source
changes; a few operators and types, whose code differs most, are always in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drawn import of
from support import Array, assert_outputs_agree, random_bits, reference, seeded, special_values

from tvmdml import CompiledOperator, Operator, TensorDataType, TensorDesc, TvmdmlError, operators, targets
from tvmdml.operators._contract import Role
from tvmdml.operators._pointwise import Pointwise
from tvmdml.proof.conformance import cases
from tvmdml.targets import Target

DRAWN = 6
"""Operators of a level, with a type each: some seconds."""
ALWAYS = (
    ("CAST", "float32"), ("CAST", "float64"), ("ELEMENT_WISE_ADD", "float16"), ("ELEMENT_WISE_DIVIDE", "int8"),
    ("ELEMENT_WISE_DIVIDE", "int32"), ("ELEMENT_WISE_DIVIDE", "uint32"), ("ELEMENT_WISE_MAX", "float32"),
    ("ELEMENT_WISE_MEAN", "int64"), ("ELEMENT_WISE_MODULUS_FLOOR", "float32"), ("ELEMENT_WISE_POW", "int32"),
    ("ELEMENT_WISE_ROUND", "float64"),
)  # fmt: skip


def _described(name: str, data_type: TensorDataType, count: int) -> Operator:
    return cases.described(name)(TensorDesc(data_type, (count,)))


def _served() -> list[tuple[str, TensorDataType]]:
    """The operators whose inputs have the elements of the outputs, of any rank, with their types."""
    found = []
    for name, cls in operators.all_operators().items():
        if (
            issubclass(cls, Pointwise)
            and cls.SINGLE == ()
            and cls.operands is Pointwise.operands
            and all(allowed.min_rank == 1 for row in cls.SUPPORT for allowed in row.tensors.values())
            and not any(field.many for field in cls.fields())
        ):
            first = next(field.name for field in cls.fields() if field.role in (Role.INPUT, Role.OUTPUT))
            found += [(name, one) for one in TensorDataType if any(one in row.tensors[first].types for row in cls.SUPPORT)]
    return found


def _filled(desc: Operator, count: int) -> list[Array]:
    """The inputs: all pairs of difficult values in the first two, any of them in the others, then random bits."""
    inputs = [tensor for _, tensor in desc.tensors(Role.INPUT) if tensor is not None]
    values = [special_values(tensor.data_type) for tensor in inputs]
    pairs = [x.reshape(-1) for x in np.meshgrid(*(values[:2]))]
    rng, size = seeded("levels", desc.NAME), pairs[0].size if pairs else 0
    pairs += [rng.choice(x, size) for x in values[2:]]
    more = [random_bits(rng, tensor.data_type, (count - size,)) for tensor in inputs]
    return [np.concatenate(both) for both in zip(pairs, more, strict=True)]


def _level(name: str) -> Target:
    try:
        return targets.resolve(name)
    except TvmdmlError as error:
        pytest.skip(str(error))


@pytest.mark.full
@pytest.mark.parametrize("level", ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_all_pairs_of_difficult_values_at_each_level(level: str, pytestconfig: pytest.Config) -> None:
    target, rng = _level(f"cpu:{level}"), of(int(pytestconfig.getoption("--case-seed")), "levels", level)
    drawn: list[tuple[str, Any]] = [*ALWAYS, *rng.sample(_served(), DRAWN)]
    for name, data_type in drawn:
        count = 1000 + rng.randrange(64)
        desc = _described(name, TensorDataType.of(data_type, ""), count)
        inputs = _filled(desc, count)
        outputs = tuple(np.empty(tensor.sizes, tensor.data_type.numpy) for tensor in desc.outputs())
        CompiledOperator(desc, target)(*inputs, *outputs)
        with np.errstate(all="ignore"):
            assert_outputs_agree(desc, outputs, reference(desc, *inputs))
