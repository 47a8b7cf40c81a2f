"""Makes a descriptor from a sketch: the input's type and sizes and a few fields.

Fields that the sketch leaves out are zero, as in a zeroed C structure. For the types and sizes of outputs, likely ones are tried
until the rules of the operator accept them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from tvmdml.dxdispatch import descriptors
from tvmdml.dxdispatch.nodes import Node
from tvmdml.enums import FeatureLevel
from tvmdml.errors import InvalidArgument, ModelError, TvmdmlError, Unsupported, message
from tvmdml.operators import Operator
from tvmdml.operators._contract import Field, Role
from tvmdml.tensors import TensorDataType

Sizes = tuple[int, ...]

_MAX_TRIALS = 4096
_ZEROS: Mapping[Role, Any] = {Role.BOOL: False, Role.UINTS: [], Role.INTS: [], Role.FLOATS: [], Role.OPERATOR: []}


def describe(
    cls: type[Operator],
    data_type: TensorDataType,
    sizes: Sizes,
    fields: Mapping[str, Any],
    tensors: Mapping[str, tuple[TensorDataType | None, Sizes | None]],
    level: FeatureLevel,
    *,
    strides: Sizes | None = None,
    extensions: bool = False,
) -> Operator:
    """The descriptor for a sketch.

    Args:
        cls: the operator.
        data_type: the first tensor's type, and that of the others if they support it.
        sizes: the inputs' sizes.
        fields: JSON values by the fields' names; case and underscores do not matter.
        tensors: types and sizes of tensors that differ, or of present optional tensors; ``None`` means a likely type or sizes.
        level: the feature level to check against.
        strides: the first tensor's; packed by default.
        extensions: allow tvmdml's extensions.

    Raises:
        InvalidArgument, Unsupported, ModelError: a field does not exist, or none of the tried descriptors is valid.
    """
    fields = {_field(cls, name).dml_name: value for name, value in fields.items()}
    tensors = {_field(cls, name).dml_name: given for name, given in tensors.items()}
    numbers = [value for value in fields.values() if type(value) is int]
    choices: dict[str, list[Any]] = {}
    layout = {} if strides is None else {"Strides": list(strides)}
    is_first = True
    for field in cls.fields():
        name = field.dml_name
        if name in fields:
            choices[name] = [fields[name]]
        elif field.role in (Role.INPUT, Role.OUTPUT) and (name in tensors or not field.optional):
            kind, own = tensors.get(name, (None, None))
            # The sketch describes the first tensor.
            kind = kind or (data_type if is_first else _likely_type(cls, field, data_type, level, extensions))
            likely = [own] if own else [sizes] if field.role is Role.INPUT else _likely_sizes(sizes, numbers)
            found = [{"DataType": kind.name, "Sizes": list(one), **layout} for one in likely]
            choices[name] = [[tensor] for tensor in found] if field.many else found
            layout, is_first = {}, False
        elif field.enum is not None:
            members = field.enum.__members__
            choices[name] = [data_type.name if data_type.name in members else next(iter(members))]
        elif not field.optional:
            choices[name] = [_ZEROS.get(field.role, 0)]
    first: TvmdmlError | None = None
    said = set()
    together = max(map(len, choices.values()), default=1)
    for turn, trial in enumerate(itertools.islice(_trials(list(choices.values()), together), _MAX_TRIALS)):
        try:
            desc = descriptors.read(cls, Node(dict(zip(choices, trial, strict=True)), cls.NAME))
            desc.validate(level, extensions)
        except (InvalidArgument, ModelError, Unsupported) as error:
            first = first or error
            said.add(str(error))
        else:
            return desc
        if turn + 1 == together and len(said) == 1:
            break  # the same error for all sizes: it has another cause
    assert first is not None  # there is at least one trial
    raise first


def _trials(choices: list[list[Any]], together: int) -> Iterator[tuple[Any, ...]]:
    """All combinations; first those in which all choices advance together, because most outputs have the same sizes."""
    for turn in range(together):
        yield tuple(choice[min(turn, len(choice) - 1)] for choice in choices)
    yield from itertools.product(*choices)


def _field(cls: type[Operator], name: str) -> Field:
    for field in cls.fields():
        if field.dml_name.lower() == name.replace("_", "").lower():
            return field
    raise InvalidArgument(message(f"{cls.NAME} field", repr(name), ", ".join(field.dml_name for field in cls.fields())))


def _likely_type(
    cls: type[Operator], field: Field, wanted: TensorDataType, level: FeatureLevel, extensions: bool
) -> TensorDataType:
    rows = [row for row in cls.SUPPORT if (extensions if row.level is None else row.level <= level)]
    types = [data_type for row in rows for data_type in row.tensors[field.name].types]
    return wanted if wanted in types or not types else types[0]


def _likely_sizes(sizes: Sizes, numbers: list[int]) -> Iterator[Sizes]:
    """Usual sizes of outputs: the input's, one element, one size from a field, or a row of coordinates for each element."""
    yield sizes
    yield (1,) * len(sizes)
    for axis in range(len(sizes)):
        yield from ((*sizes[:axis], number, *sizes[axis + 1 :]) for number in numbers)
    yield (*(1 for _ in sizes[2:]), math.prod(sizes), len(sizes))
