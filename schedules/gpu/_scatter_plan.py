"""What kernels of updates have in common: the places that updates go to, and the elements that are written."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from tvmdml.kernels import movement
from tvmdml.kernels import tensorir as T
from tvmdml.kernels.layout import collapse
from tvmdml.operators._movement_scatter import Scattered
from tvmdml.schedules.gpu import VECTOR_BYTES, Numbers
from tvmdml.schedules.gpu._words import unravel


class ScatterPlan(NamedTuple):
    """The integers of updates, whatever is done with them."""

    numbers: dict[str, int | tuple[int, ...]]
    ranks: tuple[int, int, int, int]
    """How many coordinates an update has that has an index of its own, and an element; how many indices an update has; and how many
    coordinates those updates have that are for one place."""
    lanes: int
    """How many neighbours a thread writes at once: all of one place, contiguous and aligned on every side."""
    table: int
    """How many places there are. Columns whose indices are their own have their own places."""
    entered: int
    """How many updates have indices of their own."""
    length: int
    """How many updates a column has."""
    items: int
    """How many vectors of elements are written."""
    span: int

    @classmethod
    def of(cls, desc: Scattered) -> ScatterPlan:
        """The plan of an operator."""
        updates = desc.updates()
        indices, places = updates.indices, tuple(index.size for index in updates.indices)
        split = len(updates.columns)
        own = [any(index.at.steps[i] for index in indices) for i in range(split)]
        keys = tuple(n if is_own else 1 for n, is_own in zip(updates.columns, own, strict=True))
        weights = tuple(math.prod((*keys, *places)[i + 1 :]) for i in range(split + len(places)))
        entered, (*looked, at_table, number) = collapse(
            (*keys, *updates.order),
            *(index.at.steps for index in indices),
            (*weights[:split], *(0 for _ in updates.order)),
            (*(0 for _ in keys), *(math.prod(updates.order[i + 1 :]) for i in range(len(updates.order)))),
        )
        written, steps = collapse(
            (*updates.columns, *places),
            (*updates.source.steps, *(index.source for index in indices)),
            (*updates.given.steps[:split], *(0 for _ in places)),
            (*(w if is_own else 0 for w, is_own in zip(weights, own, strict=False)), *weights[split:]),
            (*updates.result.steps, *(index.result for index in indices)),
            reorder=True,
        )
        order, (given,) = collapse(updates.order, updates.given.steps[split:])
        lanes = _together(written, steps, given, VECTOR_BYTES // desc.outputs()[0].data_type.itemsize)
        table = math.prod((*keys, *places))
        spans = (tensor.span for _, tensor in desc.tensors() if tensor is not None)
        numbers: dict[str, int | tuple[int, ...]] = {
            "table": table,
            "entered": entered,
            "looked": sum(looked, ()),
            "bases": tuple(index.at.base for index in indices),
            "at_table": at_table,
            "number": number,
            "sizes": places,
            "weights": weights[split:],
            "written": written,
            "steps": sum(steps, ()),
            "order": order,
            "given": given,
        }
        return cls(
            numbers,
            (len(entered), len(written), len(places), len(order)),
            lanes,
            table,
            math.prod(entered),
            updates.length,
            math.prod(written) // lanes,
            max(*spans, table, math.prod(written), *(abs(step) for own in (*steps, *looked) for step in own)),
        )


def _together(sizes: tuple[int, ...], steps: tuple[tuple[int, ...], ...], given: tuple[int, ...], most: int) -> int:
    if not sizes or [own[-1] for own in steps] != [1, 1, 0, 1]:
        return 1
    source, update, _, result = steps
    while any(number % most for number in (sizes[-1], *source[:-1], *update[:-1], *result[:-1], *given)):
        most //= 2
    return most


class Updating:
    """Base class of what writes such kernels."""

    numbers: Numbers
    n: Any
    """The integers of ``numbers`` in the kernel."""
    ranks: tuple[int, int, int, int]
    lanes: int

    def destination(self, indices: Any, item: Any) -> tuple[Any, Any, list[Any]]:
        """Where an update goes, whether its indices are in range, and its coordinates."""
        n, (entered, _, looks, _) = self.n, self.ranks
        at = self.coordinates(item, n.entered)
        place, fits = self.sum(at, n.at_table), None
        for j in range(looks):
            whence = n.bases[j] + self.sum(at, n.looked[entered * j : entered * (j + 1)])
            index = T.let(movement.normalized(indices[whence], n.sizes[j]))
            fits = movement.both(fits, (index >= self.numbers.const(0)) & (index < n.sizes[j]))
            place = place + index * n.weights[j]
        return T.let(place), fits, at

    def element(self, item: Any) -> tuple[Any, Any, Any, Any]:
        """Where the elements that a thread writes are: in the input, in the first update, in the table and in the result."""
        n, written = self.n, self.ranks[1]
        *rest, last = n.written or [self.numbers.const(1)]
        *at, last = self.coordinates(item, [*rest, T.let(T.truncdiv(last, self.numbers.const(self.lanes)))])
        at = [*at, T.let(last * self.numbers.const(self.lanes))]
        whence, given, place, where = (T.let(self.sum(at, n.steps[written * i : written * (i + 1)])) for i in range(4))
        return whence, given, place, where

    def update(self, given: Any, number: Any) -> Any:
        """Where such elements are in the update with a number."""
        return self.run(T.let(given + self.sum(self.coordinates(number, self.n.order), self.n.given)))

    def items(self) -> Any:
        """How many threads write."""
        return T.truncdiv(self.product(self.n.written), self.numbers.const(self.lanes))

    def coordinates(self, item: Any, sizes: list[Any]) -> list[Any]:
        """Those of a row-major number."""
        return [T.cast(digit, self.numbers.dtype) for digit in unravel(item, sizes)]

    def sum(self, at: list[Any], steps: list[Any]) -> Any:
        """An offset."""
        return T.dot(at, steps) if steps else self.numbers.const(0)

    def product(self, sizes: list[Any]) -> Any:
        """The number of elements of these sizes."""
        return math.prod(sizes, start=self.numbers.const(1))

    def run(self, at: Any) -> Any:
        """The places of neighbours that are written at once."""
        return at if self.lanes == 1 else T.run(T.let(T.multiple(at, self.lanes)), self.lanes)
