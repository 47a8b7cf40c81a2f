"""The rules and cases of every pointwise operator, derived from its fields and its support table.

An operator proves its expression: in every combination of types on contiguous tensors, whose kernel all ranks share, with every
kind of values; and in a few types with strides, repeated elements, tiles and in place. That the schedules are right for all
layouts, lengths and tasks is tested with formulas of the tests' own.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tvmdml import operators
from tvmdml.errors import InvalidArgument, Unsupported
from tvmdml.operators import Operator
from tvmdml.operators._contract import Role
from tvmdml.operators._pointwise import Pointwise
from tvmdml.proof.conformance.cases._attributes import ATTRIBUTES
from tvmdml.proof.conformance.cases._common import DISTINCT, ODD, PAIRS, Broken, Case, Sizes, change, in_place, tensor
from tvmdml.tensors import TensorDataType, TensorDesc

Attributes = Mapping[str, Any]
Types = Mapping[str, TensorDataType]
"""A type for each tensor, by name."""
SCALED: Attributes = {"scale_bias": (2.6, -3.3)}
NONE: Attributes = {}
X = TensorDesc("float32", (2, 3, 4, 5))


class Cases(NamedTuple):
    """What the file of an operators' module defines."""

    described: dict[type[Operator], Callable[[TensorDesc], Operator]]
    broken: dict[str, Broken]
    reference: Callable[[type[Operator]], Iterator[Case]]


def of(module: str) -> Cases:
    """The rules and cases of all operators of a module; ``_attributes.py`` has those to try.

    Operators with lists of tensors are left out: the module's file has their cases.
    """
    found = [cls for cls in operators.all_operators().values() if operators.module_of(cls) == module]
    own = [cls for cls in found if issubclass(cls, Pointwise) and not any(field.many for field in cls.fields())]
    table = {cls: _tried(cls, ATTRIBUTES.get(cls.NAME, ({},))) for cls in own}
    return Cases(
        {cls: _described(cls, own[0]) for cls, own in table.items()},
        {name: rule for cls, own in table.items() for name, rule in _broken(cls, own[0]).items()},
        lambda cls: iter(dict.fromkeys(_reference(cls, table[cls]) if cls in table else ())),
    )


def _tried(cls: type[Pointwise], attributes: Sequence[Attributes]) -> Sequence[Attributes]:
    scaled = any(field.role is Role.SCALE_BIAS for field in cls.fields())
    return (*attributes, {**attributes[-1], **SCALED}) if scaled else attributes


def _names(cls: type[Operator], *roles: Role) -> list[str]:
    return [field.name for field in cls.fields() if field.role in (roles or (Role.INPUT, Role.OUTPUT))]


def combinations(cls: type[Pointwise], attributes: Attributes = NONE) -> tuple[Types, ...]:
    """Every combination of types that a row of the support table and ``check`` allow.

    Tensors without types of their own have the same type.
    """
    found: dict[tuple[TensorDataType, ...], Types] = {}
    names = _names(cls)
    for row in cls.SUPPORT:
        alike = [name for name in names if name not in row.own]
        groups = [alike] * bool(alike) + [[name] for name in names if name in row.own]
        for types in itertools.product(*(row.tensors[group[0]].types for group in groups)):
            own = {name: one for group, one in zip(groups, types, strict=True) for name in group}
            found.setdefault(tuple(own[name] for name in names), {name: own[name] for name in names})
    return tuple(types for types in found.values() if _is_allowed(cls, types, attributes))


def _is_allowed(cls: type[Pointwise], types: Types, attributes: Attributes) -> bool:
    try:
        made(cls, types, (1,), attributes).check()
    except InvalidArgument:
        return False
    return True


def made(cls: type[Pointwise], types: Types, sizes: Sizes, attributes: Attributes, layouts: Mapping[str, str] = {}) -> Pointwise:
    """A descriptor whose tensors are packed, unless they have another layout. Data types as attributes are the first tensor's."""
    ones = (1,) * len(sizes)
    tensors = {name: tensor(one, ones if name in cls.SINGLE else sizes, layouts.get(name, "packed")) for name, one in types.items()}
    stated = {field.name: next(iter(types.values())) for field in cls.fields() if field.enum is TensorDataType}
    given = {**tensors, **stated, **attributes}
    needed = {one.name for one in dataclasses.fields(cls) if one.default is dataclasses.MISSING}
    if missing := sorted(needed - set(given)):
        raise LookupError(f"{cls.NAME}: no values of {', '.join(missing)} for conformance; give some in cases/_attributes.py")
    return cls(**given)


def _described(cls: type[Pointwise], attributes: Attributes) -> Callable[[TensorDesc], Operator]:
    every = combinations(cls, attributes)
    first, own = next(iter(every[0])), cls.SUPPORT[0].own

    def described(x: TensorDesc) -> Operator:
        # Tensors of one type, if they may be: an early level may ask for it.
        found = sorted((types for types in every if types[first] is x.data_type), key=lambda types: len({*types.values()}))
        types = next(iter(found), every[0])
        alike = {name: x.data_type for name in types if name not in own}
        return made(cls, {**types, **alike} if alike else {**types, first: x.data_type}, x.sizes, attributes)

    return described


# -- Rules --------------------------------------------------------------------------------------------------------


def _broken(cls: type[Pointwise], attributes: Attributes) -> dict[str, Broken]:
    """A level before the operator's; tensors that differ in type, sizes or rank; an output that repeats elements; no tensor."""
    every = combinations(cls, attributes)
    good = made(cls, every[0], X.sizes, attributes)
    names, level, own = _names(cls), str(cls.feature_level()), cls.SUPPORT[0].own
    (first, *others), outputs = names, _names(cls, Role.OUTPUT)
    found: dict[str, Broken] = {}
    if level != "1.0":
        found["before its level"] = Broken(
            lambda: good,
            f"{cls.NAME} feature_level",
            "1.0",
            f"{level} and above",
            Unsupported,
            "1.0",
            "That level introduced the operator.",
        )
    alike = [name for name in names if name not in own]
    kinds = list(dict.fromkeys(types[alike[0]] for types in every)) if alike else []
    for name in alike[1:]:
        mine, other = getattr(good, name), next(one for one in kinds if one is not getattr(good, name).data_type)
        found[f"another type of {name}"] = Broken(
            change(good, **{name: TensorDesc(other, X.sizes)}),
            *(f"{cls.NAME} {name}.data_type", other.tvm, f"{mine.data_type.tvm}, as in {alike[0]}"),
        )
    for name in others:
        for what, sizes in (("sizes", (2, 3, 5, 4)), ("rank", (6, 4, 5))):
            if getattr(good, name) is None:
                continue
            strange = change(good, **{name: TensorDesc(getattr(good, name).data_type, sizes)})
            wanted = f"(1, 1, 1, 1): one element, with the rank of {first}" if name in cls.SINGLE else f"{X.sizes}, as in {first}"
            found[f"another {what} of {name}"] = Broken(strange, f"{cls.NAME} {name}.sizes", str(sizes), wanted)
    for name in outputs:
        strides = (60, 20, 5, 0)
        found[f"repeated elements of {name}"] = Broken(
            change(good, **{name: TensorDesc(getattr(good, name).data_type, X.sizes, strides)}),
            *(f"{cls.NAME} {name}", f"strides {strides} for sizes {X.sizes}", DISTINCT),
            advice="Only inputs may repeat elements.",
        )
    for field in cls.fields():
        if field.name in names and not field.optional:
            found[f"no {field.name}"] = Broken(
                change(good, **{field.name: None}), f"{cls.NAME} {field.name}", "None", f"{field.role.value}: a TensorDesc"
            )
    return {f"{cls.NAME}: {name}": rule for name, rule in found.items()}


# -- Reference cases ----------------------------------------------------------------------------------------------


def _reference(cls: type[Pointwise], attributes: Sequence[Attributes]) -> Iterator[Case]:
    every = combinations(cls, attributes[0])
    inputs, outputs = _names(cls, Role.INPUT), _names(cls, Role.OUTPUT)
    for types in every:
        for own in attributes:
            yield from (Case(made(cls, types, (4099,), own), fill) for fill in ("bits", "special", "normal"))
            if len(inputs) == 1 and types[inputs[0]].itemsize <= 2:
                yield Case(made(cls, types, (256, 256), own), "every")
        for own in (attributes[0], attributes[-1]):
            yield from (Case(made(cls, types, sizes, own)) for sizes in ODD.values())
    for types in _few(every):
        own = attributes[-1]
        for few in ((1,), (1000,), (3, 1, 77)):
            yield from in_place(made(cls, types, few, own))
        for one, other in PAIRS:
            layouts = dict.fromkeys(outputs, other)
            ways = [{**layouts, name: one} for name in inputs] or [layouts]
            yield from (Case(made(cls, types, (5, 3, 19), own, way)) for way in ways)
        for sizes in ((67, 45), (64, 32)):
            yield from (Case(made(cls, types, sizes, own, {name: "transposed"})) for name in inputs or outputs)
        yield from (Case(made(cls, types, (length,), own)) for length in (300_007, 1 << 16))
        for layout in ("outer repeated", "inner repeated", "transposed"):
            yield from (Case(made(cls, types, (700, 301), own, {name: layout})) for name in inputs[-1:])
    yield Case(made(cls, every[0], (2 << 20, 3), attributes[0]), "normal")


def _few(every: Sequence[Types]) -> Iterator[Types]:
    """One combination for each of the widths of the first type, the widest and the narrowest included."""
    found: dict[int, Types] = {}
    for types in every:
        found.setdefault(next(iter(types.values())).itemsize, types)
    yield from (found[width] for width in sorted(found)[:: max(1, len(found) - 1)])
