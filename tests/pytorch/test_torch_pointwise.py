"""The PyTorch operators of the pointwise family: PyTorch's rules for each, with types drawn from those that it takes."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from drawn import of
from support import seeded

from tvmdml import doors, operators
from tvmdml.operators._contract import Role
from tvmdml.operators._pointwise import Pointwise
from tvmdml.tensors import TensorDataType

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tvmdml.torch import _schemas  # noqa: E402 - registers

FUNCTIONS = {
    name: function
    for module in operators.modules()
    for name, function in doors.functions(module).items()
    if issubclass(function.operator, Pointwise) and "quantize" not in name
}
"""All but those whose scales and zero points have types that depend on one another."""
WITHIN_1 = ("acos", "asin", "atanh")
"""Functions that have numbers from -1 to 1 only."""
_TYPES = 2
"""How many types of an operator are drawn."""


def _tensor(data_type: TensorDataType, field: str, axis: int) -> Any:
    """Small numbers that no operator makes a NaN of: PyTorch's checks compare results. The first is not packed."""
    x = seeded("pointwise", field).integers(1, 4, (2, 5)) if axis else seeded("pointwise", field).integers(1, 4, (5, 2)).T
    return torch.from_numpy(x.astype(data_type.numpy))


def _value(kind: str) -> Any:
    return {"ScalarType?": torch.float32, "SymInt": 2, "SymInt[]": (2, 5), "float[]": (0.5,)}.get(kind, 0.5)


@pytest.mark.drawn("name", FUNCTIONS, 10)
def test_an_operator_keeps_pytorchs_rules(name: str, pytestconfig: pytest.Config) -> None:
    function, rng = FUNCTIONS[name], of(pytestconfig.getoption("--case-seed"), "opcheck", name)
    (schema, *_) = _schemas.schemas(function)
    fields = [field.name for field in function.operator.fields() if field.role is Role.INPUT]
    attributes = {
        parameter.name: _value(schema.arguments[parameter.name])
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty and not schema.arguments.get(parameter.name, "Tensor").startswith("Tensor")
    }
    row = function.operator.SUPPORT[-1]
    types: list[Any] = [one for one in row.tensors[fields[0]].types if not one.is_nibble] if fields else [None]
    if name.startswith("bit_"):  # of two floats' bits, they may make a NaN
        types = [one for one in types if not one.is_float]
    for drawn in rng.sample(types, min(_TYPES, len(types))):
        tensors = [
            _tensor(drawn if field not in row.own or field == fields[0] else row.tensors[field].types[0], field, axis)
            for axis, field in enumerate(fields)
        ]
        single = getattr(function.operator, "SINGLE", ())
        tensors = [one[:1, :1] if field in single else one for field, one in zip(fields, tensors, strict=True)]
        least = [row.tensors[field].min_rank for field in fields]
        tensors = [one[(None,) * (rank - one.dim())] if rank > one.dim() else one for one, rank in zip(tensors, least, strict=True)]
        if name in WITHIN_1:
            tensors = [one / 8 for one in tensors]
        found = torch.library.opcheck(getattr(torch.ops.tvmdml, name).default, tensors, attributes)
        assert set(found.values()) == {"SUCCESS"}
