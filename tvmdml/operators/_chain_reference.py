"""The reference of several operators in turn: exact if all are, otherwise with a bound that follows from theirs.

What a result that is not exact does to later ones is found by trying: the operators run again with that result at both ends of its
bound, and anywhere between them. Twice the greatest change is the bound of what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmdml.operators._accuracy import Expected, Near, NumpyArray, as_array
from tvmdml.operators._contract import Operator, Role

_TRIES = 4
"""How often the operators run with results anywhere within their bounds, beside the two ends."""
_SAFETY = 2.0


class ChainStep(NamedTuple):
    """An operator, and the numbers of the values that it takes: the inputs' first, then the results' in turn."""

    operator: Operator
    values: tuple[int, ...]


def expected(steps: Sequence[ChainStep], inputs: Sequence[NumpyArray], results: Sequence[int]) -> tuple[Expected, ...]:
    """What the values with the numbers ``results`` are."""
    middle = _run(steps, inputs, as_array)
    if not any(isinstance(one, Near) for one in middle):
        return tuple(middle[number] for number in results)
    rng = np.random.default_rng(len(steps))
    ends: list[Callable[[Near], NumpyArray]] = [lambda near: _moved(near, -1.0), lambda near: _moved(near, 1.0)]
    ends += [lambda near: _moved(near, rng.uniform(-1, 1, near.shape).round(1))] * _TRIES
    firm = _firm(steps, middle, len(inputs))
    others = [_run(steps, inputs, end, middle, firm) for end in ends]
    return tuple(
        middle[number] if firm[number] else _with_bound(middle[number], [other[number] for other in others]) for number in results
    )


def _firm(steps: Sequence[ChainStep], found: Sequence[Expected], count: int) -> list[bool]:
    """Whether each value follows from exact ones alone: then its operator's bound is all."""
    firm = [True] * count
    for step in steps:
        alone = all(firm[one] and not isinstance(found[one], Near) for one in step.values)
        firm += [alone] * len(step.operator.outputs())
    return firm


def _run(
    steps: Sequence[ChainStep],
    inputs: Sequence[NumpyArray],
    choose: Callable[[Near], NumpyArray],
    before: Sequence[Expected] = (),
    firm: Sequence[bool] = (),
) -> list[Expected]:
    """All values, if later operators take of a result that is not exact what ``choose`` makes of it.

    Those that are ``firm`` are taken from the run ``before``.
    """
    found: list[Expected] = list(inputs)
    arrays: list[NumpyArray] = list(inputs)
    for step in steps:
        first, count = len(found), len(step.operator.outputs())
        if firm and firm[first]:
            made = tuple(before[first : first + count])
        else:
            given = iter(arrays[number] for number in step.values)
            tensors = [tensor for _, tensor in step.operator.tensors(Role.INPUT)]
            taken = (None if tensor is None else next(given)[tuple(map(slice, tensor.sizes))] for tensor in tensors)
            with np.errstate(all="ignore"):
                made = step.operator.reference(*taken)
        found += made
        arrays += [choose(one) if isinstance(one, Near) else one for one in made]
    return found


def _moved(near: Near, by: Any) -> NumpyArray:
    """Values that are moved within their bound: by -1 to its lower end, by 1 to its upper end.

    One that may be anything is minus infinity, infinity, or between them NaN. It may be an infinite sum, too: in narrower sums
    other terms overflow.
    """
    if near.dtype.kind != "f":
        return Near(near.values + by * near.error, near.dtype, 0, 0.0).rounded()
    wide, limits, rounded = np.longdouble if near.dtype == np.float64 else np.float64, np.finfo(near.dtype), near.rounded()
    with np.errstate(all="ignore"):
        steps = near.steps * np.spacing(np.minimum(np.abs(rounded), limits.max)).astype(wide)
        moved = near.values.astype(wide) + by * (np.asarray(near.error, wide) + steps + limits.tiny)
        moved = np.where(np.isfinite(near.values), moved, rounded)
        return np.where(np.isnan(near.error), np.where(np.abs(by) == 1, by * np.inf, np.nan), moved).astype(near.dtype)


def _with_bound(middle: Expected, others: Sequence[Expected]) -> Expected:
    array = as_array(middle)
    wide = np.float64 if array.dtype.kind != "f" or array.dtype.itemsize < 8 else np.longdouble
    with np.errstate(all="ignore"):
        found = [as_array(other) for other in others]
        changes = [np.where(_bits(one) == _bits(array), 0, np.abs(one.astype(wide) - array.astype(wide))) for one in found]
        error = _SAFETY * np.max(changes, axis=0)
    error = np.where(np.isfinite(error), error, np.nan)  # where it is not finite, a result may be anything
    return middle._replace(error=middle.error + error) if isinstance(middle, Near) else Near(array, array.dtype, 0, error)


def _bits(array: NumpyArray) -> NumpyArray:
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")
