"""Which element is chosen, on each way that a schedule has: of equal ones the first in row-major order, and a NaN before numbers.

A case says which way its kernel takes. So one fails that is served another way, and so does a way of a schedule that no case has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from drawn import plain
from support import Array, ready, reference, seeded, top_k_desc

import tvmdml
from tvmdml import Operator, TensorDesc, TvmdmlError, knobs, operators
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators._contract import Role
from tvmdml.targets import Target

inf, nan = np.inf, np.nan
CONTENTS = ((0.0, -0.0), (-1.0, -0.0, 0.0), (nan, 0.0, -0.0, 1.0, -inf), (-inf,), (nan, -1.0))
"""Few values, which are in many places: zeros of both signs, NaN among numbers, nothing but the least."""
TOLD = ("edges", "together", "grouped", "parts")
"""Parameters of kernels that say which way they take, where they are true."""
ROWS, SWAPPED, LAST = "rows", "columns of rows", "channels last"
ORDERS: dict[str, Callable[[int], tuple[int, ...]]] = {
    ROWS: lambda rank: tuple(range(rank)),
    SWAPPED: lambda rank: (*range(rank - 2), rank - 1, rank - 2),
    LAST: lambda rank: (0, *range(2, rank), 1),
}
"""The dimensions from the one with the largest step to the one whose elements are neighbours."""


def way_of(desc: Operator, target: Target) -> str:
    """How a kernel chooses."""
    kernel = kernel_for(desc.canonical(), target)
    given = dict(kernel.parameters)
    told = () if desc.FAMILY == "pointwise" else TOLD  # nothing is combined there, whatever is a part
    words = [kernel.name, *(name for name in told if given.get(name) is True)]
    if "dimension" in given:
        words.append(f"along {given['dimension']}")
    return " ".join(words)


class Case(NamedTuple):
    """An operator, and how kernels choose."""

    desc: Operator
    ways: Mapping[str, str]
    """By the folder of schedules; empty where it is not run."""
    knobs: Mapping[str, int | str]

    def settings(self) -> dict[str, Mapping[str, int | str]]:
        """The knobs of its schedule."""
        return {operators.tuned_as(type(self.desc)): self.knobs} if self.knobs else {}


def contents(desc: Operator, rng: np.random.Generator) -> Iterator[list[Array | None]]:
    """Inputs: floats of few values; regions, integers and indices within bounds."""
    for choice in CONTENTS:
        found: list[Array | None] = []
        for name, tensor in desc.tensors(Role.INPUT):
            bounds = desc.bounds(name)
            if tensor is None:
                found.append(None)
            elif bounds is None and tensor.data_type.is_float:
                found.append(placed(tensor, rng.choice(np.array(choice), tensor.sizes)))
            else:
                low, high = bounds or (-1, 1)
                found.append(placed(tensor, rng.integers(low, high, tensor.sizes, endpoint=True)))
        yield found


def placed(tensor: TensorDesc, values: Array) -> Array:
    """Values as a tensor lies."""
    memory = np.zeros(tensor.span, tensor.data_type.numpy)
    found = np.lib.stride_tricks.as_strided(memory, tensor.sizes, [step * memory.itemsize for step in tensor.layout])
    found[...] = values
    return found


def check(some: Sequence[Case], target: Target) -> None:
    """Kernels take the ways that the cases say, and choose as the reference does."""
    wrong = []
    for own in some:
        way, desc = own.ways[target.schedules], own.desc
        if not way:
            continue
        with knobs.using(**own.settings()):
            if (found := way_of(desc, target)) != way:
                wrong.append(f"{found} rather than {way}: {desc}")
            else:
                wrong += [f"{way}: {problem}: {desc}" for problem in problems(desc, ready(desc, target))]
    assert not wrong, "\n".join(wrong)


def problems(desc: Operator, run: Callable[..., None]) -> Iterator[str]:
    """What is wrong with the results of each of the contents."""
    for inputs in contents(desc, seeded(desc.exactly())):
        outputs = [None if tensor is None else placed(tensor, np.zeros(())) for _, tensor in desc.tensors(Role.OUTPUT)]
        run(*inputs, *outputs)
        results = tuple(array for array in outputs if array is not None)
        if problem := desc.mismatch(results, reference(desc, *inputs)):
            yield problem


# -- Cases --------------------------------------------------------------------------------------------------------


class Pooling(NamedTuple):
    """A max pooling."""

    sizes: tuple[int, ...]
    window: tuple[int, ...]
    stride: int = 1
    padding: int = 0
    order: str = ROWS
    indices: bool = False
    dtype: str = "float32"

    def desc(self) -> Operator:
        """The descriptor."""
        k, given = len(self.window), (self.stride, self.padding)
        counts = [(n + 2 * given[1] - w) // given[0] + 1 for n, w in zip(self.sizes[2:], self.window, strict=True)]
        y = self.tensor((*self.sizes[:2], *counts))
        return tvmdml.MaxPooling2(
            input_tensor=self.tensor(self.sizes),
            output_tensor=y,
            output_indices_tensor=self.tensor(y.sizes, "uint32") if self.indices else None,
            **dict.fromkeys(("start_padding", "end_padding"), (given[1],) * k),
            strides=(given[0],) * k,
            window_size=self.window,
            dilations=(1,) * k,
        )

    def gradient(self) -> Operator:
        """That of its gradient."""
        desc: Any = self.desc()
        names = ("strides", "window_size", "start_padding", "end_padding", "dilations")
        return tvmdml.MaxPoolingGrad(
            input_tensor=desc.input_tensor,
            input_gradient_tensor=desc.output_tensor,
            output_gradient_tensor=desc.input_tensor,
            **{name: getattr(desc, name) for name in names},
        )

    def tensor(self, sizes: tuple[int, ...], dtype: str = "") -> TensorDesc:
        """A tensor whose dimensions lie in this order."""
        steps, step = [0] * len(sizes), 1
        for i in reversed(ORDERS[self.order](len(sizes))):
            steps[i], step = step, step * sizes[i]
        return TensorDesc(dtype or self.dtype, sizes, tuple(steps))


def case(desc: Operator, cpu: str, gpu: str = "", **settings: int | str) -> Case:
    """A case, with the knobs of its schedule."""
    return Case(desc, {"cpu": cpu, "gpu": gpu}, settings)


def argument(name: str, sizes: tuple[int, ...], axes: tuple[int, ...], direction: str) -> Operator:
    """An ARGMAX or ARGMIN."""
    y = TensorDesc("uint32", tuple(1 if i in axes else n for i, n in enumerate(sizes)))
    found: Operator = operators.by_name(name).of(TensorDesc("float32", sizes), output_tensor=y, axes=axes, axis_direction=direction)
    return found


def extreme(function: str, sizes: tuple[int, ...], axes: tuple[int, ...]) -> Operator:
    """A REDUCE."""
    return tvmdml.Reduce.of(TensorDesc("float32", sizes), function=function, axes=axes)


def pair(name: str, sizes: tuple[int, ...], strides: tuple[int, ...] | None) -> Operator:
    """An element-wise one: the strides are those of the second input."""
    x = TensorDesc("float32", sizes)
    found: Operator = operators.by_name(name).of(x, TensorDesc("float32", sizes, strides), output_tensor=x)
    return found


REGIONS = tvmdml.RoiPooling.of(
    TensorDesc("float32", (2, 3, 9, 11)), TensorDesc("float32", (1, 1, 6, 5)), spatial_scale=1.0, pooled_size=(2, 3)
)
FLAT, TALL, FEW_PLACES = (2, 3, 9, 40), (2, 3, 40, 9), (1, 40, 5, 6)
DEEP, TALL_DEEP, FEW_DEEP = (1, 2, 5, 6, 40), (1, 2, 5, 40, 6), (1, 40, 3, 4, 5)
P = Pooling

SOME = (
    case(P(FLAT, (3, 3), 1, 1, indices=True).desc(), "lines edges along 3", "threads"),
    case(P(TALL, (3, 3), 1, 1, SWAPPED, True).desc(), "lines edges along 2"),
    case(P(FEW_PLACES, (3, 3), 1, 0, LAST).desc(), "rolling along 1"),
    case(P(FEW_PLACES, (3, 3), 1, 1, LAST, True).desc(), "lines along 1"),
    case(P(DEEP, (2, 3, 3), 1, 1).desc(), "rolling edges along 4"),
    case(P(DEEP, (2, 3, 3), indices=True).desc(), "lines along 4", "threads"),
    case(P((1, 40, 3, 4), (3, 4)).desc(), "images together"),
    case(P((1, 2, 3, 7, 9), (3, 7, 9)).desc(), "images", "threads"),
    case(P((1, 2, 3, 5, 5), (2, 3, 3), indices=True).desc(), "default"),
    case(P(DEEP, (2, 3, 3), 1, 1).gradient(), "shifted", "threads"),
    case(P(TALL, (3, 3), 1, 1, SWAPPED).gradient(), "spread"),
    case(REGIONS, "default", "gathers"),
    case(argument("ARGMAX", (40, 5, 7), (1, 2), "decreasing"), "rows grouped", "threads"),
    case(argument("ARGMIN", (9, 5, 70), (0,), "increasing"), "columns"),
    case(argument("ARGMAX", (2, 9000), (1,), "increasing"), "rows parts", "groups parts", part_elements=1024),
    case(pair("ELEMENT_WISE_MAX", (7, 33), None), "lines", "flat"),
)
"""Of each way at least one, but of TOP_K's."""

MORE = (
    case(P(FLAT, (3, 3)).desc(), "rolling along 3", "threads"),
    case(P(FLAT, (3, 3), 1, 1).desc(), "rolling edges along 3"),
    case(P(FLAT, (3, 3), dtype="float16").desc(), "rolling along 3"),
    case(P(FLAT, (3, 3), 2).desc(), "lines along 3"),
    case(P(FLAT, (3, 3), 2, 1).desc(), "lines edges along 3"),
    case(P(FLAT, (6, 6), indices=True).desc(), "lines along 3", "threads"),
    case(P(FLAT, (3, 3), indices=True, dtype="int8").desc(), "lines along 3", "threads"),
    case(P(TALL, (3, 3), 1, 0, SWAPPED).desc(), "lines along 2", "threads"),
    case(P(TALL, (3, 3), 2, 1, SWAPPED, True).desc(), "lines edges along 2"),
    case(P(TALL, (3, 3), 1, 1, SWAPPED, dtype="float64").desc(), "lines edges along 2"),
    case(P(FEW_PLACES, (3, 3), 2, 1, LAST).desc(), "lines along 1", "threads"),
    case(P((2, 3, 7, 9), (7, 9)).desc(), "images", "threads"),
    case(P((2, 3, 20, 20), (20, 20), dtype="float16").desc(), "images"),
    case(P((2, 3, 7, 9), (7, 9), indices=True).desc(), "default", "threads"),
    case(P((2, 3, 5, 5), (3, 3)).desc(), "default"),
    case(P(DEEP, (2, 3, 3)).desc(), "rolling along 4"),
    case(P(DEEP, (1, 3, 3)).desc(), "rolling along 4"),
    case(P(DEEP, (2, 3, 3), 2, 1).desc(), "lines edges along 4"),
    case(P(DEEP, (2, 3, 3), 1, 1, indices=True).desc(), "lines edges along 4"),
    case(P(DEEP, (3, 3, 4), indices=True).desc(), "lines along 4", "threads"),
    case(P(TALL_DEEP, (2, 3, 3), 1, 0, SWAPPED).desc(), "rolling along 3", "threads"),
    case(P(TALL_DEEP, (2, 3, 3), 1, 1, SWAPPED).desc(), "rolling edges along 3"),
    case(P(TALL_DEEP, (2, 3, 3), 1, 0, SWAPPED, True).desc(), "lines along 3"),
    case(P(TALL_DEEP, (2, 3, 3), 1, 1, SWAPPED, True).desc(), "lines edges along 3"),
    case(P(FEW_DEEP, (2, 2, 3), 1, 0, LAST).desc(), "rolling along 1", "threads"),
    case(P(FEW_DEEP, (2, 2, 3), 2, 1, LAST, True).desc(), "lines along 1"),
    case(P((1, 40, 2, 2, 3), (2, 2, 3)).desc(), "images together"),
    case(P(FLAT, (3, 3), 1, 1).gradient(), "shifted", "threads"),
    case(P(DEEP, (3, 3, 4)).gradient(), "default", "threads"),
    case(P(TALL_DEEP, (2, 3, 3), 1, 1, SWAPPED).gradient(), "spread"),
    *(
        case(argument(name, sizes, axes, direction), cpu, gpu)
        for name in ("ARGMAX", "ARGMIN")
        for direction in ("increasing", "decreasing")
        for sizes, axes, cpu, gpu in (
            ((3, 70), (1,), "rows", "groups"),
            ((40, 5, 70), (2,), "rows grouped", ""),
            ((9, 5, 70), (1,), "columns", "threads"),
        )
    ),
    *(
        case(extreme(function, sizes, axes), cpu, gpu)
        for function in ("max", "min")
        for sizes, axes, cpu, gpu in (((3, 70), (1,), "rows", "groups"), ((9, 5, 70), (0,), "columns", "threads"))
    ),
    *(
        case(top_k_desc(TensorDesc("float32", sizes), axis, k, direction), cpu, gpu, algorithm=(cpu or gpu).split()[0])
        for direction in ("increasing", "decreasing")
        for sizes, axis, k, cpu, gpu in (
            *(((64, 40), 0, 3, "columns together", ""), ((9, 40), 1, 9, "rank", ""), ((5, 3000), 1, 9, "select", "")),
            *(((3, 200), 1, 150, "sort", ""), ((9, 40), 1, 9, "", "short"), ((3, 2000), 1, 9, "", "queue")),
            *(((5, 3000), 1, 9, "", "select"), ((3, 200), 1, 150, "", "sort"), ((200, 40), 0, 150, "sort together", "")),
        )
    ),
    case(top_k_desc(TensorDesc("float32", (5, 1, 3)), 1, 1, "increasing"), "copied"),
    *(
        case(pair(name, sizes, strides), cpu, gpu)
        for name in ("ELEMENT_WISE_MAX", "ELEMENT_WISE_MIN")
        for sizes, strides, cpu, gpu in (
            *(((7, 33), None, "lines", "flat"), ((7, 33), (1, 7), "elements", "rows"), ((40, 40), (1, 40), "tiles", "tiles")),
        )
    ),
)


# -- Tests --------------------------------------------------------------------------------------------------------


def test_the_first_of_equal_ones_is_taken_and_a_nan(target: Target) -> None:
    check(SOME, target)


@pytest.mark.full
def test_the_first_of_equal_ones_is_taken_on_every_way(target: Target) -> None:
    check(MORE, target)


def test_every_way_of_the_window_schedule_has_a_case() -> None:
    from tvmdml.schedules.cpu import window  # noqa: F401 - with all its ways
    from tvmdml.schedules.cpu._window import WindowWay

    ways, classes = {"default"}, [WindowWay]
    for way in classes:
        classes += way.__subclasses__()
        ways |= {way.NAME} if "._window" in way.__module__ and way.NAME else set()
    assert {own.ways["cpu"].split()[0] for own in SOME if own.desc.FAMILY == "window"} == ways


CHOOSERS = ("MAX_POOLING", "MAX_POOLING2", "MAX_POOLING_GRAD", "ROI_POOLING", "ARGMAX", "REDUCE", "TOP_K1", "ELEMENT_WISE_MAX")


@pytest.mark.full
@pytest.mark.parametrize("name", CHOOSERS)
def test_every_way_of_a_conformance_case_has_a_case(name: str, target: Target) -> None:
    schedule = operators.tuned_as(operators.by_name(name))
    known = {own.ways[target.schedules] for own in (*SOME, *MORE) if operators.tuned_as(type(own.desc)) == schedule}
    met: dict[str, Operator] = {}
    for drawn in plain(name, target):
        desc: Any = drawn.case.desc
        if getattr(desc, "function", None) in (None, tvmdml.ReduceFunction.MAX, tvmdml.ReduceFunction.MIN):
            try:
                met.setdefault(way_of(desc, target), desc)
            except TvmdmlError:  # the target lacks a type
                continue
    assert met.keys() <= known, {way: str(desc) for way, desc in met.items() if way not in known}


def test_of_elements_with_one_index_unpooling_takes_one_whole(target: Target) -> None:
    x = np.arange(1, 121, dtype=np.float32).reshape(1, 2, 3, 20)
    indices = (np.arange(120, dtype=np.uint32) % 7 * 3).reshape(x.shape)
    found = tvmdml.max_unpooling(x, indices, output_sizes=(1, 1, 5, 6), device=target.name).ravel()
    for place in range(30):
        taken = x[indices == place]
        assert found[place] in taken if taken.size else found[place] == 0
