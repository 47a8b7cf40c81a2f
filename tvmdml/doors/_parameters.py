"""The parameters of a function that is made from a descriptor class."""

from __future__ import annotations

import keyword
from typing import NamedTuple

from tvmdml.operators._contract import Field, Operator, Role
from tvmdml.operators._roles import MISSING, TENSORS, field_of
from tvmdml.tensors import TensorDataType
from tvmdml.tensors.arrays.numbers import Takes

INDEX = "index_dtype"
"""The keyword that chooses the type of indices. By default PyTorch tensors get int64, because PyTorch cannot index with uint32."""


class Parameters(NamedTuple):
    """The parameters of a function, by the names that Python gives them."""

    inputs: dict[str, Field]
    attributes: dict[str, Field]
    ordered: dict[str, Field]
    """The inputs in DirectML's order, in which a kernel takes them."""
    dtypes: dict[str, str]
    """The output's field of each keyword that chooses a type."""


def parameters(cls: type[Operator]) -> Parameters:
    """The parameters of a class's function; optional inputs are last, because they have defaults."""
    tensors = sorted((field for field in cls.fields() if field.role is Role.INPUT), key=lambda field: field.optional)
    alone = len(tensors) == 1 and not tensors[0].many
    inputs = {"input" if alone else _python(field.name.replace("_tensor", "")): field for field in tensors}
    position = {field.name: i for i, field in enumerate(cls.fields())}
    # The type of a number is left out: it is that of the tensors.
    own = [field for field in cls.fields() if field.role not in TENSORS and field.enum is not TensorDataType]
    own += [field_of(name, hint, cls.DEFAULTS.get(name, MISSING)) for name, hint in cls.ARGUMENTS.items()]
    return Parameters(
        inputs,
        {_python(cls.KEYWORDS.get(field.name, field.name)): field for field in own},
        dict(sorted(inputs.items(), key=lambda item: position[item[1].name])),
        dict(cls.DTYPES),
    )


_ZERO_POINT = "_zero_point_tensor"


def alike(cls: type[Operator], own: Parameters) -> tuple[tuple[int, ...], ...]:
    """For each input, the positions of those that support the same types: a number takes the type of the first array among them."""
    types = [[row.tensors[field.name].types for row in cls.SUPPORT] for field in own.ordered.values()]
    found = [tuple(i for i, other in enumerate(types) if other == mine) for mine in types]
    names = [field.name for field in own.ordered.values()]
    for i, name in enumerate(names):  # a zero point has the type of its tensor
        if name.endswith(_ZERO_POINT) and (tensor := name.replace(_ZERO_POINT, "_tensor")) in names:
            found[i] = (names.index(tensor),)
    return tuple(found)


def numbers(cls: type[Operator], own: Parameters) -> tuple[Takes, ...]:
    """For each input, which type a Python number takes there."""
    found = []
    chosen = [(place, *pair) for place, pair in enumerate(reversed(own.dtypes.items()), 1)]
    for field, like in zip(own.ordered.values(), alike(cls, own), strict=True):
        usual = cls.NUMBERS.get(field.name)
        if usual is None:
            found.append(Takes(like))
            continue
        mine = _types(cls, field.name)
        named = ((place, f"tvmdml.{cls.FUNCTION}: {name}") for place, name, output in chosen if _types(cls, output) == mine)
        choice = next(named, None)
        near = tuple((i, frozenset(one.numpy for one in mine)) for i in range(len(own.ordered)) if i not in like)
        found.append(Takes(like, choice, near, usual))
    return tuple(found)


def _types(cls: type[Operator], name: str) -> set[TensorDataType]:
    return {one for row in cls.SUPPORT for one in row.tensors[name].types}


def _python(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name
