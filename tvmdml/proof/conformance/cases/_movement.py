"""The rules and cases of operators of the movement family, derived from their fields and their support tables.

A file says for each operator how descriptors are made of a first tensor: one or several ways, with different attributes. All types
of a width share kernels, so all types are tried on one form, and one type of each width on the others: all ranks, layouts of both
sides, long and short rows, and so many elements that several threads share them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tvmdml import operators
from tvmdml.enums import NEWEST_FEATURE_LEVEL
from tvmdml.errors import InvalidArgument, Unsupported
from tvmdml.operators import Operator
from tvmdml.operators._contract import Role
from tvmdml.operators._movement import Movement
from tvmdml.proof.conformance.cases._common import DISTINCT, LAYOUTS, ODD, PAIRS, Broken, Case, Sizes, change
from tvmdml.tensors import TensorDataType, TensorDesc

Make = Callable[[TensorDesc], Operator]
X = TensorDesc("float32", (2, 4, 4, 6))
WIDTHS = tuple(TensorDataType[name] for name in ("FLOAT64", "FLOAT32", "INT16", "UINT8"))
"""One type of each width."""
LARGE: Mapping[int, Sequence[Sizes]] = {
    1: ((300_007,), (64,), (1,)),
    2: ((700, 301), (3, 70_000), (67, 45), (40_000, 3)),
    4: ((1, 3, 130, 258), (2, 16, 64, 64), (1, 2, 5, 11), (1, 1, 2, 3)),
}
"""Sizes for other ranks than those of ``ODD``: long and short rows, and few and many of them."""


class Cases(NamedTuple):
    """What the file of an operators' module defines."""

    described: dict[type[Operator], Make]
    broken: dict[str, Broken]
    reference: Callable[[type[Operator]], Iterator[Case]]


def of(
    module: str,
    made: Mapping[type[Operator], Sequence[Make]],
    rules: Mapping[str, Broken] = {},
    sizes: Callable[[Sizes], Sizes] = lambda sizes: sizes,
    first: TensorDesc = X,
) -> Cases:
    """The rules and cases of all operators of a module.

    Args:
        module: the module's name.
        made: for each operator the ways in which a descriptor is made of a first tensor.
        rules: more rules.
        sizes: sizes that the operators allow, from any sizes.
        first: the first tensor of descriptors that rules are broken in.
    """
    found = {cls for cls in operators.all_operators().values() if operators.module_of(cls) == module}
    assert found == set(made)
    return Cases(
        {cls: ways[0] for cls, ways in made.items()},
        {f"{cls.NAME}: {name}": rule for cls, ways in made.items() for name, rule in broken_tensors(cls, ways[0](first)).items()}
        | dict(rules),
        lambda cls: iter(dict.fromkeys(_reference(cls, made[cls], sizes) if cls in made else ())),
    )


def broken_tensors(cls: type[Operator], good: Operator) -> dict[str, Broken]:
    """A level before the operator's; tensors of another type; an output that repeats elements; no tensor."""
    level, own = str(cls.feature_level()), cls.SUPPORT[0].own
    found: dict[str, Broken] = {}
    if level != "1.0":
        found["before its level"] = Broken(
            lambda: good,
            *(f"{cls.NAME} feature_level", "1.0", f"{level} and above", Unsupported, "1.0", "That level introduced the operator."),
        )
    single = [field for field in cls.fields() if field.role in (Role.INPUT, Role.OUTPUT) and not field.many and not field.optional]
    # The first of the tensors that have one type; X is a float32, or indices.
    alike = [field.name for field in single if field.name not in own and field.name not in getattr(cls, "INDICES", ())]
    for name in alike[1:]:
        tensor = getattr(good, name)
        other = dataclasses.replace(tensor, data_type=TensorDataType.FLOAT16)
        found[f"another type of {name}"] = Broken(
            change(good, **{name: other}), f"{cls.NAME} {name}.data_type", "float16", f"float32, as in {alike[0]}"
        )
    for field in single:
        tensor = getattr(good, field.name)
        if field.role is Role.OUTPUT:
            strides = (*tensor.layout[:-1], 0)
            if tensor.sizes[-1] > 1:
                found[f"repeated elements of {field.name}"] = Broken(
                    change(good, **{field.name: TensorDesc(tensor.data_type, tensor.sizes, strides)}),
                    *(f"{cls.NAME} {field.name}", f"strides {strides} for sizes {tensor.sizes}", DISTINCT),
                    advice="Only inputs may repeat elements.",
                )
        found[f"no {field.name}"] = Broken(
            change(good, **{field.name: None}), f"{cls.NAME} {field.name}", "None", f"{field.role.value}: a TensorDesc"
        )
    return found


# -- Reference cases ----------------------------------------------------------------------------------------------


def _reference(cls: type[Operator], ways: Sequence[Make], fitting: Callable[[Sizes], Sizes]) -> Iterator[Case]:
    first = cls.fields()[0].name
    allows = [row.tensors[first] for row in cls.SUPPORT]
    types = dict.fromkeys(one for row in allows for one in row.types)
    ranks = range(min(row.min_rank for row in allows), max(row.max_rank for row in allows) + 1)
    usual = ODD[min(max(3, ranks[0]), ranks[-1])]

    def made(data_type: TensorDataType, sizes: Sizes, way: Make) -> Iterator[Operator]:
        try:
            desc = way(TensorDesc(data_type, fitting(sizes)))
            desc.validate(NEWEST_FEATURE_LEVEL, extensions=True)
        except (InvalidArgument, Unsupported):
            return
        yield desc

    for way in ways:
        for data_type in types:
            yield from (Case(desc, fill) for desc in made(data_type, usual, way) for fill in ("bits", "mixed"))
        few = [one for one in WIDTHS if one in types] or list(types)[:1]
        for data_type in few:
            yield from (Case(desc) for rank in ranks for desc in made(data_type, ODD[rank], way))
        for data_type in few[:: max(1, len(few) - 1)]:
            for one, other in PAIRS:
                base = ODD[3] if 3 in ranks else ODD[ranks[0]]
                yield from (Case(_laid(desc, one, other)) for desc in made(data_type, base, way))
            yield from (
                Case(desc) for rank in LARGE if rank in ranks for sizes in LARGE[rank] for desc in made(data_type, sizes, way)
            )


def _laid(desc: Operator, given: str, result: str) -> Operator:
    """The descriptor with other layouts of its data, and packed indices."""
    indices = desc.INDICES if isinstance(desc, Movement) else ()

    def laid(value: TensorDesc | tuple[TensorDesc, ...], layout: str) -> TensorDesc | tuple[TensorDesc, ...]:
        if isinstance(value, tuple):
            return tuple(laid(one, layout) for one in value)  # type: ignore[misc]
        return TensorDesc(value.data_type, value.sizes, LAYOUTS[layout](value.sizes))

    changed = {
        field.name: laid(getattr(desc, field.name), given if field.role is Role.INPUT else result)
        for field in desc.fields()
        if field.role in (Role.INPUT, Role.OUTPUT) and field.name not in indices
    }
    return dataclasses.replace(desc, **changed)  # type: ignore[type-var]
