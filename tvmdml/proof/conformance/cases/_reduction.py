"""The cases of the reduction family: which axes, how long and how many slices, which layouts; rules that all operators share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tvmdml.operators import Operator
from tvmdml.proof.conformance.cases._common import DISTINCT, ODD, PAIRS, Broken, Case, change, tensor
from tvmdml.tensors import TensorDataType, TensorDesc

Make = Callable[[TensorDesc, tuple[int, ...], int, str], Operator]
"""An operator of an input, for reduced axes, one of several ways, and with a layout of the outputs."""

_SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((37, 64), (1,)),  # slices are rows
    ((5, 1000), (1,)),
    ((3, 70_001), (1,)),  # rows in parts
    ((1, 300_007), (1,)),
    ((64, 37), (0,)),  # neighbouring slices
    ((1000, 5), (0,)),
    ((70_001, 3), (0,)),
    ((40, 257), (0,)),
    ((3, 50, 70), (1,)),
    ((3, 50, 70), (0, 2)),  # rows of several
    ((4, 6, 7, 9), (0, 2, 3)),
    ((9, 10, 11), (0, 1, 2)),
    ((300, 3), (1,)),  # short slices
    ((2000, 1), (1,)),
)


def cases(
    make: Make, types: Sequence[TensorDataType], fills: Sequence[str], fixed: Callable[[int], tuple[int, ...]] | None = None
) -> Iterator[Case]:
    """Every type, rank, layout and way; long and short slices. ``fixed`` gives the axes of an operator that has no choice."""
    yield from dict.fromkeys(_cases(make, types, fills, fixed))


def _cases(
    make: Make, types: Sequence[TensorDataType], fills: Sequence[str], fixed: Callable[[int], tuple[int, ...]] | None
) -> Iterator[Case]:
    if fixed:
        for image in ((300, 1001), (5, 64)):
            yield Case(make(TensorDesc(types[0], image), fixed(2), 0, "packed"), fills[0])
    for number, data_type in enumerate(types):
        for rank, sizes in ODD.items():
            axes = tuple(i for i in range(rank) if (rank + number) >> (i % 3) & 1) or (rank - 1,)
            yield Case(make(TensorDesc(data_type, sizes), fixed(rank) if fixed else axes, rank + number, "packed"), fills[0])
        for way, fill in enumerate(fills):
            yield Case(make(TensorDesc(data_type, (3, 45)), (1,), way + number, "packed"), fill)
            yield Case(make(TensorDesc(data_type, (45, 37)), fixed(2) if fixed else (0,), way + number, "packed"), fill)
        for place, (one, other) in enumerate(PAIRS):
            for axis in (0, 1):
                axes = fixed(2) if fixed else (axis,)
                yield Case(make(tensor(data_type, (37, 41), one), axes, place + axis, other), fills[0])
        for place, (sizes, axes) in enumerate(_SHAPES):
            if fixed is None or fixed(len(sizes)) == axes:
                yield Case(make(TensorDesc(data_type, sizes), axes, place + number, "packed"), fills[place % 2])


def axes_rules(name: str, good: Operator) -> dict[str, Broken]:
    """The rules of a field ``axes``, for a descriptor of rank 4."""
    return {
        f"{name} along no axes": Broken(change(good, axes=()), f"{name} axes", "()", "1 to 4 axes"),
        f"{name} along axis 4": Broken(
            change(good, axes=(0, 4)), f"{name} axes[1]", "4", "0 to 3", advice="The input has no such dimension."
        ),
        f"{name} twice along an axis": Broken(
            change(good, axes=(1, 1)), f"{name} axes[1]", "1", "an axis that is not there already"
        ),
    }


def output_rules(name: str, good: Operator, sizes: tuple[int, ...] = (2, 3, 4, 5)) -> dict[str, Broken]:
    """The rules of an output that has the input's type and sizes, with a descriptor of float32."""
    turned = (*sizes[:-2], sizes[-1], sizes[-2])
    repeated = (*(0 for _ in sizes[:-1]), 0)
    return {
        f"{name} to another type": Broken(
            change(good, output_tensor=TensorDesc("float16", sizes)),
            *(f"{name} output_tensor.data_type", "float16", "float32, as in input_tensor"),
        ),
        f"{name} to turned sizes": Broken(
            change(good, output_tensor=TensorDesc("float32", turned)),
            *(f"{name} output_tensor.sizes", str(turned), f"{sizes}, as in input_tensor"),
        ),
        f"{name} to repeated elements": Broken(
            change(good, output_tensor=TensorDesc("float32", sizes, repeated)),
            *(f"{name} output_tensor", f"strides {repeated} for sizes {sizes}", DISTINCT),
        ),
    }
