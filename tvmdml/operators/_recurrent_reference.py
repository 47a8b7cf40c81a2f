"""Recurrent networks in NumPy, with numbers that know how far off a kernel's may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tvmdml.operators._accuracy import Expected, Near, NumpyArray
from tvmdml.operators._reduction_activated import activated_near

if TYPE_CHECKING:
    from tvmdml.operators._contract import Operator


class BoundedNumber:
    """Values in higher precision than the kernel's, and how far off its results may be: NaN where they may be anything."""

    def __init__(self, values: NumpyArray, error: Any, dtype: Any) -> None:
        limits = np.finfo(np.float64 if np.dtype(dtype) == np.float64 else np.float32)
        self.values, self.dtype = values, np.dtype(dtype)
        self.unit = float(limits.eps) / 2
        # Where a kernel's number may be too large for its type, or infinite instead of finite, nothing is sure any more.
        unsure = np.isfinite(values) & (np.abs(values) > limits.max / 4)
        found = np.broadcast_to(np.asarray(error, np.float64), values.shape)
        self.error = np.where(unsure | ~np.isfinite(found), np.nan, found)

    def like(self, values: NumpyArray, error: Any, operations: int = 1) -> BoundedNumber:
        """A result, with the error that these many roundings add."""
        limits = np.finfo(np.float64 if self.dtype == np.float64 else np.float32)
        size = np.where(np.isfinite(values), np.abs(values), 0)
        more = np.asarray(operations * (self.unit * size + float(limits.tiny)), np.float64)
        return BoundedNumber(values, np.asarray(error, np.float64) + more, self.dtype)

    def __add__(self, other: BoundedNumber) -> BoundedNumber:
        return self.like(self.values + other.values, self.error + other.error)

    def __mul__(self, other: BoundedNumber) -> BoundedNumber:
        error = _times(self.values, other.error) + _times(other.values, self.error) + self.error * other.error
        return self.like(self.values * other.values, error)

    def __rsub__(self, other: float) -> BoundedNumber:
        return self.like(other - self.values, self.error)

    def clipped(self, limit: float) -> BoundedNumber:
        """Within both limits; NaN stays."""
        return BoundedNumber(np.clip(self.values, -limit, limit), self.error, self.dtype)

    def rounded(self) -> BoundedNumber:
        """The number in its type, where that has fewer digits than it is computed with."""
        if self.dtype != np.float16:
            return self
        with np.errstate(over="ignore"):
            values = self.values.astype(np.float16).astype(self.values.dtype)
        size, edge = np.abs(self.values), 65520.0
        near_edge = (size + self.error >= edge) & (size - self.error < edge)
        error = np.where(self.error == 0, 0, self.error + 2.0**-10 * (size + self.error) + 2.0**-24)
        sure = np.isinf(values) & (size - self.error >= edge)
        return BoundedNumber(values, np.where(sure, 0, np.where(near_edge, np.nan, error)), self.dtype)

    def where(self, condition: NumpyArray, other: BoundedNumber) -> BoundedNumber:
        """This number where the condition holds, otherwise the other one."""
        return BoundedNumber(
            np.where(condition, self.values, other.values), np.where(condition, self.error, other.error), self.dtype
        )


def _times(values: NumpyArray, error: NumpyArray) -> NumpyArray:
    """An error that is multiplied; nothing of no error, whatever it is multiplied by."""
    return np.where(error == 0, 0, np.abs(values).astype(np.float64) * error)


def function(activation: Operator) -> Any:
    """An activation of a number."""

    def of(x: BoundedNumber) -> BoundedNumber:
        values, error = activated_near(activation, x.values, x.error, x.dtype)
        return x.like(values, error)

    return of


LEAST = 2.0**-100
"""Vectors of smaller elements may be rounded to 0, if elements are rounded."""
_MOST = 2.0**100


def products(x: BoundedNumber, weights: NumpyArray, rounding: float = 0.0) -> BoundedNumber:
    """The sums of products with each row of weights, in any order. Elements of ``x`` may be rounded, by so much of the largest."""
    limits = np.finfo(np.float64 if x.dtype == np.float64 else np.float32)
    finite = np.where(np.isfinite(weights), weights, 0)
    size = np.abs(np.where(np.isfinite(x.values), x.values, 0)) @ np.abs(finite).T
    count = weights.shape[1]
    own = (1.01 * count + 4) * x.unit * size + count * float(limits.tiny)
    error = np.asarray(own, np.float64) + x.error @ np.abs(finite).T.astype(np.float64)
    if rounding:
        peak = np.abs(x.values).max(axis=-1, keepdims=True, initial=0) + x.error.max(axis=-1, keepdims=True, initial=0)
        off = np.where(peak < _MOST, rounding * peak + LEAST, np.nan)  # NaN of what is not finite
        error = error + off * np.abs(finite).sum(axis=1)
    unsure = (size > limits.max / 4) | ((x.error != 0).astype(float) @ (~np.isfinite(weights)).T.astype(float) > 0)
    return BoundedNumber(x.values @ weights.T, np.where(unsure, np.nan, error), x.dtype)


def run(desc: Any, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
    """All directions; the outputs that are present."""
    from tvmdml.operators._contract import Role

    names = [name for name, _ in desc.tensors(Role.INPUT)]
    given = {name: one for name, one in zip(names, inputs, strict=True) if one is not None}
    with np.errstate(all="ignore"):
        found = [_direction(desc, given, d) for d in range(desc.directions)]
    results = []
    for name, tensor in desc.tensors(Role.OUTPUT):
        if tensor is None:
            continue
        parts = [one[name] for one in found]
        values, errors = (np.stack(list(some), axis=1) for some in ([p[0] for p in parts], [p[1] for p in parts]))
        results.append(Near(values.reshape(tensor.sizes), parts[0][2], 0, errors.reshape(tensor.sizes)))
    return tuple(results)


def _direction(desc: Any, given: dict[str, NumpyArray], d: int) -> dict[str, Any]:
    x = given["input_tensor"]
    dtype = x.dtype
    wide = np.longdouble if dtype == np.float64 else np.float64
    steps, batch, hidden, gates = desc.steps, desc.batch, desc.hidden, desc.GATES

    def part(name: str, *at: int) -> NumpyArray:
        return given[name][at].astype(wide)

    def exact(values: NumpyArray) -> BoundedNumber:
        return BoundedNumber(values, 0.0, dtype)

    weights, recurrence = (part(name, 0, d).reshape(gates, hidden, -1) for name in ("weight_tensor", "recurrence_tensor"))
    biases = part("bias_tensor", 0, 0, d) if "bias_tensor" in given else np.zeros(2 * gates * hidden, wide)
    biases = biases.reshape(2, gates, 1, hidden)
    states = [
        part(n, 0, d) if n in given else np.zeros((batch, hidden), wide) for n in ("hidden_init_tensor", "cell_mem_init_tensor")
    ]
    y, c = map(exact, states)
    peepholes = [exact(one) for one in part("peephole_tensor", 0, 0, d).reshape(3, 1, hidden)] if "peephole_tensor" in given else []
    lengths = np.full(batch, steps)
    if "sequence_lengths_tensor" in given:
        # UINT32, or signed integers in calls of functions
        lengths = np.array([max(0, min(int(one), steps)) for one in given["sequence_lengths_tensor"].reshape(-1)], np.int64)
    functions = [function(one) for one in desc.activation_descs[d * len(desc.USUAL) :][: len(desc.USUAL)]]
    sequence, errors = np.zeros((steps, batch, hidden), wide), np.zeros((steps, batch, hidden))
    rows = np.arange(batch)
    last = exact(np.zeros((batch, hidden), wide))
    last_cell = last
    for step in range(int(lengths.max(initial=0))):
        active = step < lengths
        time = np.where(active, lengths - 1 - step if desc.is_backward(d) else step, 0)
        now = exact(x[0, time, rows].astype(wide))

        def of_input(gate: int, now: BoundedNumber = now) -> BoundedNumber:
            return products(now, weights[gate], desc.rounding) + exact(biases[0, gate])

        def of_state(gate: int, vector: BoundedNumber) -> BoundedNumber:
            return products(vector, recurrence[gate], desc.rounding) + exact(biases[1, gate])

        plain, *cells = desc.step(functions, of_input, of_state, y, c, peepholes)
        own = active[:, None]
        for b in np.flatnonzero(active):
            sequence[time[b], b], errors[time[b], b] = plain.values[b], plain.error[b]
        y, last = plain.rounded().where(own, y), plain.where(own, last)
        if cells:
            c, last_cell = cells[0].where(own, c), cells[0].where(own, last_cell)
    found: dict[str, Any] = {"output_sequence_tensor": (sequence, errors, dtype)}
    for name, one in (("output_single_tensor", last), ("output_cell_single_tensor", last_cell)):
        found[name] = (one.values[None], one.error[None], dtype)
    return found
