"""Resampling in NumPy, in higher precision: for each place of an axis the elements around it, and their weights."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from tvmdml.operators._accuracy import Expected, Near, NumpyArray, within_sum

ANTIALIASED_ABOVE = 2
"""An axis is antialiased if its places are more than this many elements apart."""
_INTEGERS_NEAR = 0.001
"""A value this near to a whole number may be on its other side before it is cut to an integer."""


class AxisMapping(NamedTuple):
    """How the coordinates of an axis follow from each other: ``output = (input + before) * scale + after``."""

    linear: bool
    rounding: str
    """How the nearest element is found: ``"half"`` (halves up), ``"up"`` or ``"down"``."""
    scale: float
    before: float
    after: float
    antialiased: bool

    @property
    def acts(self) -> bool:
        """Whether it is antialiased, and so has more than two elements for a place."""
        return self.linear and self.antialiased and 1 / self.scale > ANTIALIASED_ABOVE

    def is_ratio(self, inputs: int, outputs: int) -> bool:
        """Whether the scale is that of the sizes, as exactly as a float says it: the exact ratio is meant."""
        (least, most), has_ends = _ratios(self.scale)
        if not (inputs > 0 and outputs > 0 and math.isfinite(most)):
            return False
        low = outputs * least.denominator - inputs * least.numerator  # integers: sizes may be open
        high = inputs * most.numerator - outputs * most.denominator
        return bool(low >= 0 and high >= 0) if has_ends else bool(low > 0 and high > 0)


@functools.cache
def _ratios(scale: float) -> tuple[tuple[Any, Any], bool]:
    """Between which numbers the nearest float32 is a scale's, and whether the ends are among them."""
    with np.errstate(over="ignore"):  # one that is too large is infinite
        own = np.float32(scale)
        ends = [np.nextafter(own, np.float32(far)) for far in (-np.inf, np.inf)]
    if not np.isfinite(ends[1]):
        return (math.inf, math.inf), False
    least, most = ((Fraction(float(own)) + Fraction(float(end))) / 2 for end in ends)
    return (least, most), int(own.view(np.uint32)) % 2 == 0


def weighed(rule: AxisMapping, inputs: int, outputs: int) -> tuple[Any, Any]:
    """For each place in a row of elements: numbers of elements, and their weights.

    Places are exact fractions: of a float64 a place in higher precision would not be near enough.
    """
    scale, after = Fraction(rule.scale), Fraction(rule.after)
    step = Fraction(inputs, outputs) if rule.is_ratio(inputs, outputs) else 1 / scale
    base = -after * step - Fraction(rule.before)
    parts = math.lcm(step.denominator, base.denominator, 2)
    radius = math.ceil(1 / scale) if rule.acts else 1
    kind: Any = np.int64 if (outputs * step + abs(base) + inputs + radius + 3) * parts < 2**62 else object
    o = np.arange(outputs).astype(kind)
    x = np.clip(o * int(step * parts) + int(base * parts), -(radius + 2) * parts, (inputs + radius + 1) * parts)[:, None]
    if not rule.linear:
        j = (x + {"half": parts // 2, "up": parts - 1, "down": 0}[rule.rounding]) // parts
        weights = np.ones(x.shape, np.longdouble)
    else:
        j = x // parts + np.arange(-radius - 1 if rule.acts else 0, radius + 2 if rule.acts else 2).astype(kind)
        distance = np.abs(j * parts - x)
        if rule.acts:
            weights = np.maximum(0, 1 - distance.astype(np.longdouble) / parts * np.longdouble(rule.scale))
            weights /= weights.sum(1, keepdims=True)
        else:
            weights = np.maximum(0, parts - distance).astype(np.longdouble) / parts
    return np.clip(j, 0, inputs - 1).astype(np.int64), weights


def gathered(x: NumpyArray, rules: Sequence[AxisMapping], sizes: Sequence[int]) -> Expected:
    """The elements at the places of each axis."""
    linear = any(rule.linear for rule in rules)
    wide: Any = x.dtype if not linear else np.longdouble if x.dtype == np.float64 else np.float64
    found, most, factor = x.astype(wide), np.abs(x.astype(wide)), 2.0
    for axis, (rule, n) in enumerate(zip(rules, sizes, strict=True)):
        places, weights = weighed(rule, x.shape[axis], n)
        if not rule.linear:
            found = found.take(places[:, 0], axis)
            continue
        several = int((weights > 0).sum(1).max(initial=0))
        factor += 4 * (several > 1) + several * rule.acts
        form = [n if i == axis else 1 for i in range(x.ndim)]
        before, magnitude = found, most
        found, most = (np.zeros([*x.shape[:0], *before.shape[:axis], n, *before.shape[axis + 1 :]], wide) for _ in range(2))
        with np.errstate(all="ignore"):
            for j, weight in zip(places.T, weights.T, strict=True):
                w = weight.astype(wide).reshape(form)
                found += np.where(w > 0, w * before.take(j, axis), 0)
                most = np.maximum(most, np.where(w > 0, magnitude.take(j, axis), 0))
    if not linear:
        return found
    if x.dtype.kind != "f":
        return Near(found, x.dtype, 0, _INTEGERS_NEAR)
    return within_sum(found, x.dtype, factor / 2, most)  # eps is two roundings


def scattered(gradient: NumpyArray, rules: Sequence[AxisMapping], sizes: Sequence[int]) -> Expected:
    """The transposed map: what each element contributes to the places."""
    wide: Any = np.longdouble if gradient.dtype == np.float64 else np.float64
    found = gradient.astype(wide)
    magnitudes, terms, factor = np.where(np.isfinite(found), np.abs(found), 0), np.ones(gradient.shape), 2.0
    for axis, (rule, n) in enumerate(zip(rules, sizes, strict=True)):
        places, weights = weighed(rule, n, gradient.shape[axis])
        factor += 4 * bool((weights > 0).sum(1).max(initial=0) > 1)
        found, magnitudes = (_added(one, axis, n, places, weights) for one in (found, magnitudes))
        terms = _added(terms, axis, n, places, weights > 0)
    # A part of a sum may overflow, and so the sum, though the whole would not.
    most = np.finfo(np.float64 if wide is np.longdouble else np.float32).max
    magnitudes = np.where(magnitudes > most * 0.999, np.nan, magnitudes.astype(np.float64))
    return within_sum(found, gradient.dtype, (terms + factor) / 2, magnitudes)


def _added(x: Any, axis: int, n: int, places: Any, weights: Any) -> Any:
    first = np.moveaxis(x, axis, 0)
    found = np.zeros((n, *first.shape[1:]), x.dtype)
    with np.errstate(all="ignore"):
        for j, weight in zip(places.T, weights.T, strict=True):
            w = weight.astype(x.dtype).reshape(-1, *(1 for _ in first.shape[1:]))
            np.add.at(found, j, np.where(w > 0, w * first, 0))
    return np.moveaxis(found, 0, axis)
