"""The rules and cases of operators with windows, derived from their fields and their support tables.

A file says for each operator how descriptors are made of a first tensor and of the windows' numbers. All types are tried on one
form of windows, and some types on the others: windows that overlap, that leave gaps, that lie in the padding, or over the image.
Paddings may be much wider than windows, so that many windows have no element at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from tvmdml import operators
from tvmdml.enums import NEWEST_FEATURE_LEVEL
from tvmdml.errors import InvalidArgument, Unsupported
from tvmdml.operators import Operator
from tvmdml.operators._contract import Role
from tvmdml.proof.conformance.cases import _movement
from tvmdml.proof.conformance.cases._common import KINDS, LAYOUTS, PAIRS, Broken, Case, Sizes, change
from tvmdml.tensors import TensorDataType, TensorDesc

X = TensorDesc("float32", (2, 3, 5, 6))


class WindowForm(NamedTuple):
    """The numbers of windows, the same in each spatial dimension."""

    window: int
    stride: int = 1
    dilation: int = 1
    start: int = 0
    end: int = 0
    more: bool = False
    """Whether the output has as many windows as the ceiling allows."""
    option: bool = False
    """The other value of an operator's own attribute."""
    beside: tuple[int, int] = (0, 0)
    """More padding of the last dimension, before and behind it."""


FORMS = (
    WindowForm(3, 2, start=1, end=1),
    WindowForm(2, 2, option=True),
    WindowForm(3, start=1, end=1, option=True),
    WindowForm(2, dilation=2, end=2, option=True),
    WindowForm(3, 3, start=1, more=True, option=True),
    WindowForm(2, 3, start=2, end=3, more=True),
    WindowForm(1, 2),
    WindowForm(5, 1, start=4, end=4),
    WindowForm(99),
    WindowForm(99, start=2, end=1, option=True),
    WindowForm(2, end=3, beside=(0, 40)),
    WindowForm(3, start=1, beside=(40, 0), option=True),
    WindowForm(3, 2, start=2, end=2, beside=(19, 40), more=True),
    WindowForm(2, 5, 3, end=9, beside=(30, 7), option=True),
    WindowForm(4, 4, 2, start=7, beside=(4, 60), option=True),
    WindowForm(99, 3, start=9, beside=(30, 30)),
)
SHAPES: Mapping[int, tuple[Sizes, ...]] = {
    3: ((2, 3, 7),),
    4: ((2, 3, 5, 7), (1, 2, 4, 45), (1, 3, 9, 36), (1, 20, 3, 4), (1, 1, 1, 1)),
    5: ((1, 2, 3, 4, 9), (2, 1, 2, 5, 19)),
}
ORDERED: tuple[tuple[Sizes, Sizes], ...] = (
    ((1, 36, 5, 6), (0, 2, 3, 1)),
    ((2, 2, 37, 5), (0, 1, 3, 2)),
    ((1, 36, 2, 3, 4), (0, 2, 3, 4, 1)),
    ((1, 2, 3, 37, 4), (0, 1, 2, 4, 3)),
)
"""Shapes, and their dimensions in memory: neighbours are in a dimension that is not the last, and long."""
LARGE = ((1, 3, 40, 70), (1, 2, 9, 64), (2, 64, 14, 15), (1, 2, 7, 150), (1, 1, 70, 71))
Make = Callable[[TensorDesc, WindowForm], Operator]


def beside(form: Any, k: int) -> tuple[list[int], list[int]]:
    """The paddings before and behind each spatial dimension."""
    start, end = form.beside
    return [form.start] * (k - 1) + [form.start + start], [form.end] * (k - 1) + [form.end + end]


def numbers(x: TensorDesc, form: WindowForm, dilated: bool = True) -> dict[str, Any]:
    """The attributes of windows that fit into a tensor: cut to its size, if they are larger."""
    k = max(x.rank - 2, 1)
    dilation = form.dilation if dilated else 1
    starts, ends = beside(form, k)
    rooms = [start + n + end for start, n, end in zip(starts, x.sizes[2:] or (1,), ends, strict=True)]
    found: dict[str, Any] = {
        "strides": [form.stride] * k,
        "window_size": [min(form.window, (room - 1) // dilation + 1) for room in rooms],
        "start_padding": starts,
        "end_padding": ends,
    }
    if dilated:
        found["dilations"] = [dilation] * k
    return found


def sizes(x: TensorDesc, form: WindowForm, dilated: bool = True) -> Sizes:
    """The sizes of the pooled tensor; those of the tensor itself if it has no spatial dimensions."""
    if x.rank < 3:
        return x.sizes
    given = numbers(x, form, dilated)
    counts = []
    for n, window, start, end in zip(
        x.sizes[2:], *(given[name] for name in ("window_size", "start_padding", "end_padding")), strict=True
    ):
        room = n + start + end - (window - 1) * (form.dilation if dilated else 1) - 1
        counts.append(room // form.stride + 1 + (form.more and room % form.stride > 0))
    return (*x.sizes[:2], *counts)


class Cases(NamedTuple):
    """What the file of an operators' module defines."""

    described: dict[type[Operator], Callable[[TensorDesc], Operator]]
    broken: dict[str, Broken]
    reference: Callable[[type[Operator]], Iterator[Case]]


def of(module: str, made: Mapping[type[Operator], Make], rules: Mapping[str, Broken] = {}, x: TensorDesc = X) -> Cases:
    """The rules and cases of all operators of a module."""
    found = {cls for cls in operators.all_operators().values() if operators.module_of(cls) == module}
    assert found == set(made)
    broken: dict[str, Broken] = {}
    for cls, make in made.items():
        good = make(x, FORMS[0])
        broken |= {f"{cls.NAME}: {name}": rule for name, rule in _movement.broken_tensors(cls, good).items()}
        broken |= {f"{cls.NAME}: {name}": rule for name, rule in _broken(cls, good).items()}
    return Cases(
        {cls: lambda x, make=make: make(x, FORMS[0]) for cls, make in made.items()},  # type: ignore[misc]
        broken | dict(rules),
        lambda cls: iter(dict.fromkeys(_reference(cls, made[cls]) if cls in made else ())),
    )


def _broken(cls: type[Operator], good: Any) -> dict[str, Broken]:
    """Too few numbers, a zero, a window that is too large, a pooled tensor that is too large."""
    if not hasattr(good, "window_size"):
        return {}
    name = cls.NAME
    whole, pooled = good.whole(), good.pooled()
    room, usual = whole.sizes[3] + good.start_padding[1] + good.end_padding[1], pooled.sizes[3]
    too_many = dataclasses.replace(pooled, sizes=(*pooled.sizes[:3], usual + 2), strides=None)
    indices = {"output_indices_tensor": None} if hasattr(good, "output_indices_tensor") else {}
    most = -(-(room - good.window_size[1]) // good.strides[1]) + 1
    return {
        "too few strides": Broken(change(good, strides=(1,)), f"{name} strides", "1 number", "2, one for each spatial dimension"),
        "no stride": Broken(change(good, strides=(1, 0)), f"{name} strides[1]", "0", "1 or more"),
        "an empty window": Broken(change(good, window_size=(0, 1)), f"{name} window_size[0]", "0", "1 or more"),
        "a window that is too large": Broken(
            change(good, window_size=(1, room + 1)),
            f"{name} window_size[1]",
            f"{room + 1}, over {room + 1}",
            f"within {room} elements",
        ),
        "too many windows": Broken(
            change(good, **{cls.POOLED: too_many}, **indices),  # type: ignore[attr-defined]
            *(f"{name} {cls.POOLED}.sizes[3]", str(usual + 2), f"1 to {most}; usually {usual}"),  # type: ignore[attr-defined]
        ),
    }


def _reference(cls: type[Operator], make: Make) -> Iterator[Case]:
    first = cls.fields()[0].name
    allows = [row.tensors[first] for row in cls.SUPPORT]
    types = dict.fromkeys(one for row in allows for one in row.types)
    ranks = range(min(row.min_rank for row in allows), max(row.max_rank for row in allows) + 1)

    def made(data_type: TensorDataType, shape: Sizes, form: WindowForm) -> Iterator[Operator]:
        try:
            desc = make(TensorDesc(data_type, shape), form)
            desc.validate(NEWEST_FEATURE_LEVEL, extensions=True)
        except (InvalidArgument, Unsupported):
            return
        yield desc

    few = [one for one in (*KINDS, TensorDataType.INT8) if one in types][:4]
    for data_type in types:
        for form in FORMS[:2]:
            yield from (Case(desc, fill) for desc in made(data_type, SHAPES[4][0], form) for fill in ("normal", "mixed"))
    for number, form in enumerate(FORMS):
        for rank in ranks:
            for data_type in few:
                for shape in SHAPES[rank]:
                    yield from (Case(desc) for desc in made(data_type, shape, form))
        for shape in LARGE if 4 in ranks else ():
            yield from (Case(desc, "normal") for desc in made(few[number % len(few)], shape, form))
        for fill in ("special", "zeros", "bits", "normal"):
            yield from (Case(desc, fill) for desc in made(few[number % len(few)], SHAPES[4][number % 3], form))
        for place, (one, other) in enumerate(PAIRS):
            base = SHAPES[4][place % 3]
            yield from (Case(laid(desc, one, other)) for desc in made(few[place % len(few)], base, form))
        for shape, order in ORDERED if 5 in ranks else ORDERED[:2]:
            yield from (Case(ordered(desc, order)) for desc in made(few[number % len(few)], shape, form))


def ordered(desc: Operator, order: Sizes) -> Operator:
    """The descriptor with the dimensions of all tensors of its rank in another order in memory."""
    changed = {}
    for name, tensor in desc.tensors():
        if tensor is not None and tensor.rank == len(order):
            steps, step = [0] * len(order), 1
            for i in reversed(order):
                steps[i], step = step, step * tensor.sizes[i]
            changed[name] = TensorDesc(tensor.data_type, tensor.sizes, tuple(steps))
    return dataclasses.replace(desc, **changed)  # type: ignore[type-var]


def laid(desc: Operator, given: str, result: str) -> Operator:
    """The descriptor with other layouts of all tensors."""
    changed = {
        field.name: TensorDesc(tensor.data_type, tensor.sizes, LAYOUTS[given if field.role is Role.INPUT else result](tensor.sizes))
        for field in desc.fields()
        if isinstance(tensor := getattr(desc, field.name), TensorDesc)
    }
    return dataclasses.replace(desc, **changed)  # type: ignore[type-var]
